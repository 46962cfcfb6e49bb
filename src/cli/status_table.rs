//! Formats lock statuses for people: the table of `ls`, the page of `status`, and one line for a
//! change. The module only turns JSON into text, and sends no request.
//!
//! Tables of text: aligned columns, measured as a terminal shows them, and shortened to its width.

use super::output::{Colour, TerminalStyle, counted, harmless};
use crate::holder_id::Maker;
use crate::status::WAITER_FIELDS;
use crate::time::Span;
use rustix::termios::tcgetwinsize;
use serde_json::Value;
use std::fmt::Write;
use std::io;
use std::io::IsTerminal;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const HEAD: [&str; 6] = ["NAME", "PHASE", "HOLDER", "EXPIRES IN", "WAITERS", "NOTE"];

/// The JSON status of a lock, read field by field; a missing field reads as empty.
#[derive(Clone, Copy)]
pub(super) struct Status<'a>(pub(super) &'a Value);

impl Status<'_> {
    /// Returns the value of a text field of the status, without control characters.
    pub(super) fn text(self, field: &str) -> String {
        harmless(self.0[field].as_str().unwrap_or_default())
    }

    /// Returns the value of a field of the status that is a whole number.
    pub(super) fn number(self, field: &str) -> Option<i64> {
        self.0[field].as_i64()
    }

    /// Returns the phase of the lock: `held`, `grace` or `free`.
    pub(super) fn phase(self) -> String {
        self.text("phase")
    }

    /// Returns the time until the lease expires, or how long a lease lasts that does not expire.
    pub(super) fn left(self) -> Option<String> {
        match self.phase().as_str() {
            "grace" => Some("expired".into()),
            _ => self
                .number("expires_in_ms")
                .map(|ms| Span::from_millis(ms.unsigned_abs()).to_string())
                .or_else(|| self.lasts()),
        }
    }

    /// Returns how long a lease lasts that does not expire, in words.
    fn lasts(self) -> Option<String> {
        Some(self.text("lasts")).filter(|lasts| !lasts.is_empty())
    }

    /// Returns until when nothing is granted, and why, if the status says so.
    pub(super) fn not_granting(self) -> Option<String> {
        self.0["hold_off"]["detail"].as_str().map(harmless)
    }

    /// Returns the holder of the lock, or all holders of a shared lock.
    fn holders(self) -> Vec<String> {
        match self.0["holders"].as_array() {
            Some(holders) => holders.iter().map(|holder| Status(holder).text("client")).collect(),
            None => [self.text("holder")].into_iter().filter(|holder| !holder.is_empty()).collect(),
        }
    }

    /// Returns the waiters in the lock's queue, in the order in which they are served.
    pub(super) fn waiters(self) -> Vec<Self> {
        self.0["waiters"].as_array().into_iter().flatten().map(Status).collect()
    }

    /// Formats the length of the queue and the caller's own place in it: `2 (you: 1)`.
    fn line(self) -> String {
        let count = self.waiters().len();
        match self.number("place") {
            Some(place) => format!("{count} (you: {place})"),
            None => count.to_string(),
        }
    }

    /// Formats each waiter with its place in the queue: `1. laptop2:bob, for 24s, since ..., you`.
    pub(super) fn waiting(self) -> Vec<String> {
        let own = self.number("place");
        let line = |(number, waiter): (i64, Status<'_>)| {
            let fields = WAITER_FIELDS.iter();
            let mut words: Vec<_> =
                fields.filter_map(|field| field.in_words(&waiter.0[field.name])).collect();
            words.insert(0, format!("{number}. {}", waiter.text("client")));
            words.extend((own == Some(number)).then(|| "you".to_owned()));
            harmless(&words.join(", "))
        };
        (1..).zip(self.waiters()).map(line).collect()
    }

    /// Formats the token and times of the lease: `token 7, expires in 30s, grace 5s`.
    pub(super) fn terms(self) -> String {
        let span = |field| self.number(field).map(|ms| Span::from_millis(ms.unsigned_abs()));
        let mut terms = Vec::new();
        terms.extend(self.number("token").map(|token| format!("token {token}")));
        terms.extend(self.number("seat").map(|seat| format!("seat {seat}")));
        if let Some(lasts) = self.lasts() {
            terms.push(format!("held {lasts}"));
        } else {
            terms.extend(self.left().map(|left| format!("expires in {left}")));
            terms.extend(span("grace_ms").map(|grace| format!("grace {grace}")));
        }
        terms.join(", ")
    }

    /// Formats the last handover of the lock's name: `clean, of laptop1, token 7, released, set
    /// 2024-01-15T10:30:00.000Z`. Returns an empty text if there is none.
    fn previous(self) -> String {
        let previous = Status(&self.0["previous"]);
        let Some(token) = previous.number("token") else { return String::new() };
        let of = format!("of {}, token {token}, {}", previous.text("client"), previous.text("end"));
        let at = Some(previous.text("at")).filter(|at| !at.is_empty());
        let at = at.map_or_else(String::new, |at| format!(", set {at}"));
        format!("{}, {of}{at}", previous.text("handover"))
    }

    /// Formats how many may hold the lock beside its holder: ` (shared)`, ` (2 of 3 seats)`.
    pub(super) fn mode(self) -> String {
        match (self.text("mode").as_str(), self.number("max")) {
            (_, Some(max)) => format!(" ({} of {})", self.holders().len(), seats(max)),
            ("shared", None) => " (shared)".to_owned(),
            _ => String::new(),
        }
    }
}

/// Formats a number of seats: `1 seat`, `3 seats`.
fn seats(count: i64) -> String {
    counted(count.unsigned_abs(), "seat")
}

/// The note of the lock of a slot whose work is done.
pub(super) const SLOT_DONE: &str = "done";

/// Whether a lock is that of a slot whose work is done, which `run --slot` keeps.
pub(super) fn is_finished_slot(status: Status<'_>) -> bool {
    status.text("note") == SLOT_DONE && status.text("name").contains('@')
}

/// Formats who holds a lock, since when and with which note, as the end of a sentence: `held by
/// laptop1:alice, taken 4m12s ago (note: nightly)`.
pub(super) fn held_by(status: Status<'_>) -> String {
    let holders = status.holders();
    let (Some(first), phase) = (holders.first(), status.phase()) else {
        return status.not_granting().unwrap_or_else(|| "free, and not granted yet".to_owned());
    };
    let more = match holders.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let by = if phase == "grace" { "in grace for" } else { "held by" };
    let held = status.number("held_ms").map(|ms| (ms.unsigned_abs() / 1_000).max(1));
    let held =
        held.map_or_else(String::new, |secs| format!(", taken {} ago", Span::from_secs(secs)));
    let note = match status.text("note") {
        note if note.is_empty() => note,
        note => format!(" (note: {note})"),
    };
    let taken = status.number("max").map_or_else(String::new, |_| status.mode());
    format!("{by} {first}{more}{taken}{held}{note}")
}

/// Returns the lines of a table of locks, the head first, with at most `width` columns.
pub(super) fn table(
    statuses: &[&Value],
    style: TerminalStyle,
    width: Option<usize>,
) -> Vec<String> {
    let rows = statuses.iter().map(|status| row(Status(status)));
    let rows: Vec<_> = [HEAD.map(String::from)].into_iter().chain(rows).collect();
    let colours = rows.iter().enumerate().map(|(number, row)| match row[1].as_str() {
        _ if number == 0 => Some(Colour::Faint),
        "grace" => Some(Colour::Yellow),
        _ => None,
    });
    let lines = aligned(&rows, width).into_iter().zip(colours);
    lines.map(|(line, colour)| colour.map_or(line.clone(), |it| style.paint(it, &line))).collect()
}

fn row(status: Status<'_>) -> [String; 6] {
    let holders = status.holders();
    let holder = match holders.as_slice() {
        [first, _, ..] if status.number("max").is_some() => {
            format!("{first} and {} more{}", holders.len() - 1, status.mode())
        }
        [first, _, ..] => format!("{first} and {} more", holders.len() - 1),
        [only] => format!("{only}{}", status.mode()),
        [] => String::new(),
    };
    [
        status.text("name"),
        status.phase(),
        or_dash(holder),
        or_dash(status.left().unwrap_or_default()),
        status.line(),
        status.text("note"),
    ]
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

/// Formats the page of `status`, one fact per line.
pub(super) fn page(status: Status<'_>, style: TerminalStyle) -> String {
    let phase = status.phase();
    let colour = match phase.as_str() {
        "free" => Colour::Green,
        _ => Colour::Yellow,
    };
    let mut facts = vec![("lock", status.text("name")), ("phase", style.paint(colour, &phase))];
    if phase != "free" {
        if let (Some(max), Some(holders)) = (status.number("max"), status.0["holders"].as_array()) {
            facts.extend(holders.iter().map(Status).map(|of| {
                let (client, token) = (of.text("client"), of.number("token").unwrap_or_default());
                let seat = of.number("seat").unwrap_or_default();
                ("holder", format!("{client}, seat {seat} of {max}, token {token}"))
            }));
        } else {
            let mode = status.mode();
            facts.extend(status.holders().into_iter().map(|of| ("holder", of + &mode)));
        }
        facts.push(match (phase.as_str(), status.lasts(), status.left()) {
            ("held", Some(lasts), _) => ("lasts", lasts),
            ("held", None, Some(left)) => {
                ("expires", format!("in {left}, at {}", status.text("expires_at")))
            }
            ("held", None, None) => ("lasts", "without expiry".to_owned()),
            _ => ("grace", format!("until {}, for the holder only", status.text("grace_until"))),
        });
        facts.extend(status.number("token").map(|token| ("token", token.to_string())));
        facts.push(("since", status.text("acquired_at")));
        facts.push(("renewed", status.text("renewed_at")));
        facts.push(("process", process_of(&status.text("holder_id"))));
        facts.push(("note", status.text("note")));
    }
    facts.extend(status.not_granting().map(|said| ("granted", said)));
    facts.extend(status.waiting().into_iter().map(|waiting| ("waiting", waiting)));
    facts.push(("previous", status.previous()));
    facts.retain(|(_, fact)| !fact.is_empty());
    facts.iter().fold(String::new(), |mut text, (name, fact)| {
        let _ = writeln!(text, "{name:<8}  {fact}");
        text
    })
}

/// Returns what people want to know of the process that a holder's id names; the id as it is if it
/// names none.
pub(super) fn process_of(holder_id: &str) -> String {
    match Maker::parse(holder_id) {
        Some(Maker { process, .. }) if process.pid == 0 => "not known".to_owned(),
        Some(maker) if !maker.is_of_this_boot() => {
            format!("{}, before a restart or on another machine", maker.process.pid)
        }
        Some(Maker { process, .. }) if process.runs() => process.pid.to_string(),
        Some(Maker { process, .. }) => format!("{}, which has ended", process.pid),
        None => holder_id.to_owned(),
    }
}

const GAP: &str = "  ";
/// The width to which a column is shortened at most.
const COLUMN_MIN: usize = 8;
/// The mark for the rest of a shortened cell.
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
    use serde_json::json;

    fn held() -> Value {
        json!({
            "name": "build", "holder": "laptop1:alice", "phase": "held", "mode": "exclusive",
            "expires_at": "2024-01-15T10:30:30.000Z", "expires_in_ms": 23_100, "token": 7,
            "grace_ms": 5_000, "acquired_at": "2024-01-15T10:30:00.000Z", "note": "nightly",
            "waiters": [
                {"client": "b", "since": "2024-01-15T10:30:05.000Z", "waited_ms": 1_900},
                {"client": "c", "since": "2024-01-15T10:30:06.000Z", "waited_ms": 900},
            ],
            "place": 2,
        })
    }

    #[test]
    fn the_table_is_aligned() {
        let grace = json!({"name": "deploy/production", "holder": "ci", "phase": "grace",
            "expires_in_ms": 0, "mode": "shared", "waiters": []});
        let shared = json!({"name": "read", "holder": "a", "phase": "held", "mode": "shared",
            "expires_in_ms": 1_000, "holders": [{"client": "a"}, {"client": "b"}]});
        let statuses = [&held(), &grace, &shared];
        let text = table(&statuses, TerminalStyle::Plain, None).join("\n") + "\n";
        let expected = "\
NAME               PHASE  HOLDER         EXPIRES IN  WAITERS     NOTE
build              held   laptop1:alice  24s         2 (you: 2)  nightly
deploy/production  grace  ci (shared)    expired     0
read               held   a and 1 more   1s          0
";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_empty_table_has_its_head() {
        let text = table(&[], TerminalStyle::Plain, None);
        assert_eq!(text, ["NAME  PHASE  HOLDER  EXPIRES IN  WAITERS  NOTE"]);
    }

    #[test]
    fn page_shows_the_known_facts() {
        let text = page(Status(&held()), TerminalStyle::Plain);
        let expected = "\
lock      build
phase     held
holder    laptop1:alice
expires   in 24s, at 2024-01-15T10:30:30.000Z
token     7
since     2024-01-15T10:30:00.000Z
note      nightly
waiting   1. b, for 1.9s, since 2024-01-15T10:30:05.000Z
waiting   2. c, for 900ms, since 2024-01-15T10:30:06.000Z, you
";
        assert_eq!(text, expected);
        let open = json!({"name": "x", "holder": "a", "phase": "held", "expires_in_ms": null,
            "grace_until": null, "lasts": "while the file is open", "token": 7});
        let text = page(Status(&open), TerminalStyle::Plain);
        assert!(text.contains("lasts     while the file is open\n"), "{text}");
        assert!(!text.contains("grace"), "{text}");
        assert_eq!(Status(&open).terms(), "token 7, held while the file is open");
        let free = json!({"name": "x", "holder": "", "is_expired": true, "phase": "free",
            "previous": {"seq": 3, "token": 7, "client": "a", "at": "2024-01-15T10:30:00.000Z",
                "end": "released", "handover": "clean 4", "counter": 2}});
        let text = page(Status(&free), TerminalStyle::Plain);
        let line = "previous  clean 4, of a, token 7, released, set 2024-01-15T10:30:00.000Z\n";
        assert_eq!(text, format!("lock      x\nphase     free\n{line}"));
        let free = json!({"name": "x", "holder": "", "is_expired": true, "phase": "free",
            "previous": {"seq": 3}});
        assert_eq!(page(Status(&free), TerminalStyle::Plain), "lock      x\nphase     free\n");
    }

    #[test]
    fn terms_fit_in_a_line() {
        assert_eq!(Status(&held()).terms(), "token 7, expires in 24s, grace 5s");
        assert_eq!(Status(&json!({})).terms(), "");
    }
}

#[cfg(test)]
mod table_tests {
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
