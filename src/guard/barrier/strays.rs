//! Conflict copies and temporary files of sync tools, known by their names.

use super::folder_path::{FolderPath, FolderPathError};

/// Whether a name is one under which a sync tool writes a file before it gets its place.
pub(crate) fn is_sync_temporary(name: &str) -> bool {
    let within = |start: &str, end: &str| {
        name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
    };
    within(".syncthing.", ".tmp")
        || name.starts_with("~syncthing~")
        || within(".unison.", ".unison.tmp")
        || within("", ".partial")
}

/// Whether a name is one of the files and directories that sync tools keep for themselves.
pub(crate) fn is_sync_tool_file(name: &str) -> bool {
    [".stfolder", ".stversions", ".stignore", ".dropbox", ".dropbox.cache"].contains(&name)
}

/// Splits a name before its last dot. The first character belongs to the stem.
fn split_end(name: &str) -> (&str, &str) {
    match name.rfind('.') {
        Some(at) if at > 0 => name.split_at(at),
        _ => (name, ""),
    }
}

/// Returns the name without `mark` and what follows it, up to the last dot after the mark.
fn without_mark(name: &str, mark: &str) -> Option<String> {
    let (stem, rest) = name.split_once(mark)?;
    let end = rest.rfind('.').map_or("", |at| &rest[at..]);
    Some(format!("{stem}{end}"))
}

/// Returns the name without the part in parentheses that `is_mark` accepts.
fn without_parentheses(name: &str, is_mark: impl Fn(&str) -> bool) -> Option<String> {
    let (stem, rest) = name.rsplit_once('(')?;
    let (inside, end) = rest.split_once(')')?;
    is_mark(inside).then(|| format!("{}{end}", stem.trim_end()))
}

/// Returns the name without ` 2` or a higher number before the last dot.
fn without_number(name: &str) -> Option<String> {
    let (stem, end) = split_end(name);
    let (stem, number) = stem.rsplit_once(' ')?;
    let is_number = (1..=4).contains(&number.len())
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && !number.starts_with('0')
        && number != "1";
    is_number.then(|| format!("{stem}{end}"))
}

/// Returns the path of which this path is a conflict copy by its name; `None` if its name is no
/// such name. `is_there` says whether a file stands, or should stand, under another path: a number
/// at the end of a name means a conflict only beside the name without it.
pub(crate) fn original_of(
    path: &FolderPath,
    is_there: impl Fn(&FolderPath) -> bool,
) -> Option<FolderPath> {
    let name = path.name();
    let marked = without_mark(name, ".sync-conflict-")
        .or_else(|| without_parentheses(name, |inside| inside.contains("conflicted copy")))
        .or_else(|| without_parentheses(name, |inside| inside.starts_with("SFConflict ")))
        .or_else(|| without_mark(name, "_conflict-"))
        .or_else(|| name.split_once(".conflict on ").map(|(stem, _)| stem.to_owned()));
    let beside = |name: String| -> Result<FolderPath, FolderPathError> { path.beside(&name) };
    if let Some(name) = marked {
        // A copy of a file that has no other name than the mark is a stray as well.
        return Some(beside(name).unwrap_or_else(|_| path.clone()));
    }
    let original = beside(without_number(name)?).ok()?;
    is_there(&original).then_some(original)
}

#[cfg(test)]
mod tests {
    use super::super::test_tree::path;
    use super::*;

    #[test]
    fn conflict_copies_are_known_by_their_names() {
        let cases = [
            ("d/note.sync-conflict-20240101-120000-ABCDEFG.md", Some("d/note.md")),
            (".sync-conflict-20240101-120000-ABCDEFG.bashrc", Some(".bashrc")),
            ("Makefile.sync-conflict-20240101-120000-ABCDEFG", Some("Makefile")),
            ("a (laptop1's conflicted copy 2024-01-01).txt", Some("a.txt")),
            ("a b (conflicted copy)", Some("a b")),
            ("a (SFConflict me@home 2024-01-01-12-00-00).txt", Some("a.txt")),
            ("a_conflict-20240101-120000.txt", Some("a.txt")),
            ("a.txt.conflict on 2024-01-01", Some("a.txt")),
            ("there 2.txt", Some("there.txt")),
            ("there 12", None),
            ("chapter 2.txt", None),
            ("there 1.txt", None),
            ("there 02.txt", None),
            ("a (1).txt", None),
            ("a.txt", None),
        ];
        for (name, original) in cases {
            let found = original_of(&path(name), |at| at.as_str() == "there.txt");
            assert_eq!(found, original.map(path), "{name}");
        }
    }

    #[test]
    fn temporary_names_are_no_conflict_copies() {
        for name in
            [".syncthing.a.txt.tmp", "~syncthing~a.txt", ".unison.a.1.unison.tmp", "a.partial"]
        {
            assert!(is_sync_temporary(name), "{name}");
            assert_eq!(original_of(&path(name), |_| true), None, "{name}");
        }
        for name in [".syncthing.tmp", "a.tmp", "unison.tmp", "partial"] {
            assert!(!is_sync_temporary(name), "{name}");
        }
        assert!(is_sync_tool_file(".stfolder") && !is_sync_tool_file("stfolder"));
    }
}
