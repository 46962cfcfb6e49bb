//! Texts of operating system errors, for use inside a sentence.

use std::fmt::Display;

/// Start of the suffix that Rust adds to OS errors: a number that does not help the reader.
const CODE: &str = " (os error ";

/// Returns the text of an OS error: its first letter in lower case, and without the suffix that
/// Rust adds, such as `(os error 13)`.
pub fn said(error: &impl Display) -> String {
    let text = error.to_string();
    let mut parts = text.split(CODE);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    let mut letters = whole.chars();
    let first = letters.next().map(char::to_lowercase);
    first.into_iter().flatten().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn errors_are_words() {
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(said(&denied), "permission denied");
        let inside = format!("connecting: {denied}, then nothing");
        assert_eq!(said(&inside), "connecting: Permission denied, then nothing");
        assert_eq!(said(&io::Error::other("It sent no device")), "it sent no device");
        assert_eq!(said(&""), "");
    }
}
