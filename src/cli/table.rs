//! Tables of text: aligned columns, measured as a terminal shows them, and shortened to its width.

use rustix::termios::tcgetwinsize;
use std::io::{self, IsTerminal};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const GAP: &str = "  ";
/// The width to which a column is shortened at most.
const COLUMN_MIN: usize = 8;
/// What stands for the rest of a shortened cell.
const REST: char = '\u{2026}';

/// Returns the columns and lines of the terminal on standard output; `None` if that is no terminal.
pub(super) fn terminal_size() -> Option<(usize, usize)> {
    let size = io::stdout().is_terminal().then(|| tcgetwinsize(io::stdout()).ok()).flatten()?;
    (size.ws_col > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

/// Formats rows as lines with aligned columns. A line has at most `width` columns, unless there are
/// too many: the widest cells are shortened first.
pub(super) fn aligned<const COLUMNS: usize>(
    rows: &[[String; COLUMNS]],
    width: Option<usize>,
) -> Vec<String> {
    let widest = |column: usize| rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = fitting(std::array::from_fn(widest), width);
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| {
            let cell = shortened(cell, width);
            let gap = width - cell.width();
            cell + &" ".repeat(gap)
        });
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Returns widths of columns that fit into a line of `width` columns.
fn fitting<const COLUMNS: usize>(
    mut widths: [usize; COLUMNS],
    width: Option<usize>,
) -> [usize; COLUMNS] {
    let room = width.unwrap_or(usize::MAX).saturating_sub(GAP.len() * COLUMNS.saturating_sub(1));
    while widths.iter().sum::<usize>() > room {
        match widths.iter_mut().max() {
            Some(widest) if *widest > COLUMN_MIN => *widest -= 1,
            _ => break,
        }
    }
    widths
}

/// Returns the beginning of a text that is at most `width` columns wide.
fn shortened(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let fits = |c: &char| {
        let left = room.checked_sub(c.width().unwrap_or(0));
        room = left.unwrap_or(room);
        left.is_some()
    };
    text.chars().take_while(fits).chain([REST]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[[&str; 2]], width: Option<usize>) -> Vec<String> {
        let rows: Vec<_> = rows.iter().map(|row| row.map(str::to_owned)).collect();
        aligned(&rows, width)
    }

    #[test]
    fn columns_are_aligned_as_a_terminal_shows_them() {
        let rows = [["a", "x"], ["\u{65e5}\u{672c}", "y"], ["e\u{301}", "z"]];
        assert_eq!(table(&rows, None), ["a     x", "\u{65e5}\u{672c}  y", "e\u{301}     z"]);
    }

    #[test]
    fn the_widest_cells_are_shortened_to_the_width() {
        let rows = [["name", "a note that is long"], ["\u{65e5}\u{672c}", "ok"]];
        let lines = table(&rows, Some(16));
        assert_eq!(lines, ["name  a note th\u{2026}", "\u{65e5}\u{672c}  ok"]);
        let wide = [["\u{65e5}\u{672c}\u{8a9e}\u{65e5}\u{672c}\u{8a9e}", ""]];
        let lines = table(&wide, Some(10));
        assert_eq!(lines, ["\u{65e5}\u{672c}\u{8a9e}\u{2026}"]);
        assert!(lines[0].width() <= 10);
        assert_eq!(table(&rows, Some(1))[0], "name  a note \u{2026}", "no less than is readable");
    }
}
