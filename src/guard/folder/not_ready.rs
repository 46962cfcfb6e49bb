//! The sentences that say why a folder is not ready, and the next step.

use super::folder_barrier::{Arrival, MissingFiles};
use std::fmt;

/// How many of the missing paths a sentence names.
const NAMED_MOST: usize = 3;
/// How many of the missing paths a refusal of `guard accept` names.
const REFUSED_NAMED_MOST: usize = 10;

/// Why a folder is not ready, as sentences without a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotReady {
    /// The sentence that names files.
    named: String,
    /// The sentence for users who may not know the names of all files.
    counted: String,
}

impl NotReady {
    /// Returns why a folder is not ready that was compared.
    pub(in crate::guard) fn of(arrival: &Arrival) -> Self {
        let counted = match arrival {
            Arrival::NotArrived(missing) => Counted(missing).to_string(),
            _ => arrival.to_string(),
        };
        Self { named: arrival.to_string(), counted }
    }

    /// Returns why a folder that was compared is not accepted: it names more of the files.
    pub(in crate::guard) fn of_refused(arrival: &Arrival) -> Self {
        let Self { named, counted } = Self::of(arrival);
        let named = match arrival {
            Arrival::NotArrived(missing) => Named(missing, REFUSED_NAMED_MOST).to_string(),
            _ => named,
        };
        Self { named, counted }
    }

    /// Returns that a folder could not be compared. The reason may name a file.
    pub(in crate::guard) fn failed(why: String) -> Self {
        let counted = "the folder can't be compared; its owner sees why with 'latchfs guard \
                       status'";
        Self { named: why, counted: counted.to_owned() }
    }

    /// Returns a reason that names no file.
    pub(in crate::guard) fn said(why: String) -> Self {
        Self { named: why.clone(), counted: why }
    }

    /// Returns the sentence for a user who may know the names of all files, or may not.
    pub(crate) fn text(&self, may_see_names: bool) -> &str {
        if may_see_names { &self.named } else { &self.counted }
    }
}

/// The part of the sentence that names no files.
struct Counted<'a>(&'a MissingFiles);

/// The sentence with the names of some files.
struct Named<'a>(&'a MissingFiles, usize);

/// A number of bytes, as people read it.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes @ 0..1_000 => write!(f, "{bytes} bytes"),
            bytes @ 1_000..1_000_000 => write!(f, "{} KB", bytes / 1_000),
            bytes @ 1_000_000..1_000_000_000 => write!(f, "{} MB", bytes / 1_000_000),
            bytes => write!(f, "{} GB", bytes / 1_000_000_000),
        }
    }
}

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingFiles { client, token, missing } = self.0;
        if let Some(marker) = &missing.marker {
            let of = marker.name.tenure.token.as_u64();
            if of == *token {
                write!(f, "the marker of {client}'s tenure {of} has not arrived yet; ")?;
            } else {
                write!(f, "the marker of tenure {of} has not arrived yet; ")?;
            }
            return f.write_str("the sync tool may still bring it");
        }
        if missing.count == 0 {
            return f.write_str("'.latchfs/ignore' is not the one of the last marker yet");
        }
        write!(
            f,
            "{} of {} files of {client}'s tenure {token} have not arrived, {}",
            missing.count,
            missing.of,
            Bytes(missing.bytes)
        )
    }
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(it, most) = self;
        write!(f, "{}", Counted(it))?;
        let missing = &it.missing;
        if missing.marker.is_some() {
            return Ok(());
        }
        for (number, path) in missing.paths.iter().take(*most).enumerate() {
            f.write_str(if number == 0 { ": " } else { ", " })?;
            write!(f, "'{}' {}", path.path, path.because)?;
        }
        let named = missing.paths.len().min(*most) as u64;
        match missing.count.saturating_sub(named) {
            more @ 1.. if named > 0 => write!(f, ", and {more} more"),
            _ => Ok(()),
        }
    }
}

/// Writes a sentence without a full stop.
impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(_) | Self::First(_) => f.write_str("everything is here"),
            Self::NotArrived(missing) => write!(f, "{}", Named(missing, NAMED_MOST)),
            Self::Unsure(why) => write!(
                f,
                "nobody can say whether everything is here: {why}; {}, or go on with the folder as \
                 it stands by 'latchfs guard accept --reason WHY'",
                why.next_step()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barrier::arrival_target::Unsure;
    use barrier::folder_path::FolderPath;
    use barrier::ready::{MissingBecause, MissingPath, NotArrived};

    #[test]
    fn a_sentence_names_what_is_missing_and_the_next_step() {
        let path = |name: &str| MissingPath {
            path: FolderPath::parse(name).expect("valid"),
            because: MissingBecause::NotHere,
            bytes: 1,
        };
        let paths = ["a", "b", "c", "d"].map(path).to_vec();
        let missing =
            NotArrived { paths, count: 4, bytes: 12_345_678, of: 41, ..NotArrived::default() };
        let of = |missing| {
            let (client, token) = ("laptop1".to_owned(), 17);
            Arrival::NotArrived(Box::new(MissingFiles { client, token, missing })).to_string()
        };
        assert_eq!(
            of(missing),
            "4 of 41 files of laptop1's tenure 17 have not arrived, 12 MB: 'a' is not \
             here yet, 'b' is not here yet, 'c' is not here yet, and 1 more"
        );
        let counted = NotReady::of(&Arrival::NotArrived(Box::new(MissingFiles {
            client: "laptop1".to_owned(),
            token: 17,
            missing: NotArrived {
                paths: [path("secret")].to_vec(),
                count: 1,
                of: 41,
                ..NotArrived::default()
            },
        })));
        let counts = "1 of 41 files of laptop1's tenure 17 have not arrived, 0 bytes";
        assert_eq!(counted.text(false), counts);
        assert_eq!(counted.text(true), format!("{counts}: 'secret' is not here yet"));
        let failed = NotReady::failed("secret: no access".to_owned());
        assert!(!failed.text(false).contains("secret") && failed.text(true).contains("secret"));
        let unsure = Arrival::Unsure(Unsure::NoHandover).to_string();
        assert!(unsure.contains("does not know the folder"), "{unsure}");
        assert!(unsure.contains("'latchfs guard accept --reason WHY'"), "{unsure}");
        let ignore = NotArrived { is_other_ignore: true, ..NotArrived::default() };
        let ignore = of(ignore);
        assert!(ignore.contains("'.latchfs/ignore'"), "{ignore}");
        let sizes = [999, 1_999, 1_999_999, 1_999_999_999].map(|size| Bytes(size).to_string());
        assert_eq!(sizes, ["999 bytes", "1 KB", "1 MB", "1 GB"]);
    }
}
