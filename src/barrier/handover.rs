//! The handover of a folder: the text that a guard lets the lock service remember for the name of
//! the folder's lock, and the service's answer about the tenure that set it.

use crate::folder_path::ContentDigest;
use crate::marker::{MarkerLink, MarkerName, parse_number};
use engine::Token;
use std::fmt;

/// The maximum length of a handover in bytes.
pub const HANDOVER_BYTES_MAX: usize = 256;
/// The version of the text that this version of latchfs writes.
const VERSION: &str = "1";

/// The random id of one handover. A machine knows by it that it wrote a handover itself: the name
/// of the client proves nothing, because a cloned machine has it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandoverId(pub u128);

impl fmt::Display for HandoverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The state in which a tenure left the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandoverKind {
    /// A marker names everything that was changed.
    Clean,
    /// The folder is being changed, and no marker names the changes yet.
    Dirty,
    /// A person went on without what had not arrived, and no marker says so yet.
    Accepted,
}

impl HandoverKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Dirty => "dirty",
            Self::Accepted => "accepted",
        }
    }
}

/// The number of markers since the last checkpoint, and of the paths that they name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MarkerCounts {
    /// The markers since the last checkpoint.
    pub markers: u64,
    /// The paths that these markers name; a path counts in each of them.
    pub paths: u64,
}

/// The message of a guard to the next tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handover {
    /// The random id of this handover.
    pub id: HandoverId,
    /// The state of the folder.
    pub kind: HandoverKind,
    /// The number of the next marker of the tenure. A marker that ends a dirty tenure has at least
    /// this number.
    pub next: u64,
    /// The newest marker of a clean folder. In other handovers the marker on which the tenure
    /// builds, if there is one.
    pub marker: Option<MarkerLink>,
    /// The number of markers since the last checkpoint up to that marker.
    pub counts: MarkerCounts,
}

/// Why a text is no handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandoverError {
    /// The text is too long.
    TooLong,
    /// The text has another version, which is the value.
    Version(u32),
    /// A field is missing, superfluous or damaged.
    Field(&'static str),
}

impl fmt::Display for HandoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "it has more than {HANDOVER_BYTES_MAX} bytes"),
            Self::Version(found) => write!(
                f,
                "it has version {found}, and this latchfs knows version {VERSION}; run the same \
                 version of latchfs on all machines"
            ),
            Self::Field(name) => write!(f, "its field '{name}' is missing or damaged"),
        }
    }
}

impl Handover {
    /// Parses the text that the lock service remembers.
    pub fn parse(text: &str) -> Result<Self, HandoverError> {
        if text.len() > HANDOVER_BYTES_MAX {
            return Err(HandoverError::TooLong);
        }
        let mut fields = text.split(' ');
        let version = fields.next().unwrap_or_default();
        if version != VERSION {
            let found = version.parse().ok().filter(|found: &u32| found.to_string() == version);
            return Err(found.map_or(HandoverError::Field("version"), HandoverError::Version));
        }
        let mut field = |name| fields.next().ok_or(HandoverError::Field(name));
        let kind = match field("kind")? {
            "clean" => HandoverKind::Clean,
            "dirty" => HandoverKind::Dirty,
            "accepted" => HandoverKind::Accepted,
            _ => return Err(HandoverError::Field("kind")),
        };
        let id = u128::from_str_radix(field("id")?, 16).map_err(|_| HandoverError::Field("id"))?;
        let mut number = |name| parse_number(field(name)?).ok_or(HandoverError::Field(name));
        let next = number("next")?;
        let counts = MarkerCounts { markers: number("markers")?, paths: number("paths")? };
        let (name, digest) = (field("marker")?, field("digest")?);
        let marker = match (MarkerName::parse(name), ContentDigest::parse(digest)) {
            (Some(name), Some(digest)) => Some(MarkerLink { name, digest }),
            _ if (name, digest) == ("-", "-") && kind != HandoverKind::Clean => None,
            (None, _) => return Err(HandoverError::Field("marker")),
            _ => return Err(HandoverError::Field("digest")),
        };
        let handover = Self { id: HandoverId(id), kind, next, marker, counts };
        if handover.to_string() == text {
            Ok(handover)
        } else {
            // The text has a field too many, or a number in another notation.
            Err(HandoverError::Field("end"))
        }
    }
}

/// The text that the lock service remembers.
impl fmt::Display for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MarkerCounts { markers, paths } = self.counts;
        let (kind, id, next) = (self.kind.as_str(), self.id, self.next);
        write!(f, "{VERSION} {kind} {id} {next} {markers} {paths} ")?;
        match &self.marker {
            Some(marker) => write!(f, "{} {}", marker.name, marker.digest),
            None => f.write_str("- -"),
        }
    }
}

/// How the tenure ended that set the handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandoverEnd {
    /// The tenure has not ended.
    Open,
    /// The guard released the lock.
    Released,
    /// The lease expired.
    Expired,
    /// The lock was stolen.
    Stolen,
    /// The session was ended by somebody else.
    Session,
    /// The service was restored, and does not know what happened since then.
    Unknown,
}

/// The handover that the lock service remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remembered {
    /// The service does not know the folder.
    Nothing,
    /// The text is no handover.
    Damaged(HandoverError),
    /// A handover.
    Handover(Handover),
}

impl Remembered {
    /// Reads the text that the service remembers, if there is one.
    pub fn read(text: Option<&str>) -> Self {
        match text.map(Handover::parse) {
            None => Self::Nothing,
            Some(Err(error)) => Self::Damaged(error),
            Some(Ok(handover)) => Self::Handover(handover),
        }
    }
}

/// The lock service's answer about the last tenure that set a handover.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PreviousTenure {
    /// The number of the grant of the name, counted by the service.
    pub seq: u64,
    /// The fencing token of the tenure.
    pub token: Token,
    /// The client that held the lock, for messages only.
    pub client: String,
    /// When the handover was set, in milliseconds since 1970, for messages only.
    pub at: u64,
    /// How the tenure ended.
    pub end: HandoverEnd,
    /// The handover that the tenure set.
    pub handover: Remembered,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::MarkerKind;
    use crate::tenure_id::TenureId;

    fn longest() -> Handover {
        let tenure = TenureId { engine: u64::MAX, token: Token::named(u64::MAX) };
        let name = MarkerName { kind: MarkerKind::Checkpoint, tenure, number: u64::MAX };
        Handover {
            id: HandoverId(u128::MAX),
            kind: HandoverKind::Accepted,
            next: u64::MAX,
            marker: Some(MarkerLink { name, digest: ContentDigest::of(b"") }),
            counts: MarkerCounts { markers: u64::MAX, paths: u64::MAX },
        }
    }

    #[test]
    fn a_handover_is_a_short_text() {
        let longest = longest();
        let text = longest.to_string();
        assert!(text.len() <= HANDOVER_BYTES_MAX, "{} bytes", text.len());
        assert_eq!(Handover::parse(&text), Ok(longest));
        let dirty = Handover { kind: HandoverKind::Dirty, next: 4, marker: None, ..longest };
        let text = dirty.to_string();
        assert!(text.starts_with("1 dirty ffff") && text.ends_with(" - -"), "{text}");
        assert_eq!(Remembered::read(Some(&text)), Remembered::Handover(dirty));
        assert_eq!(Remembered::read(None), Remembered::Nothing);
    }

    #[test]
    fn a_damaged_handover_is_an_error_that_says_so() {
        let text = longest().to_string();
        let cases = [
            (String::new(), HandoverError::Field("version")),
            (format!("2{}", &text[1..]), HandoverError::Version(2)),
            (format!("{text}{}", "0".repeat(256)), HandoverError::TooLong),
            (format!("{text} x"), HandoverError::Field("end")),
            (format!(" {text}"), HandoverError::Field("version")),
            (format!("0{text}"), HandoverError::Field("version")),
            (text.replace(" accepted", " Accepted"), HandoverError::Field("kind")),
            (text.replace(" ffff", " gfff"), HandoverError::Field("id")),
            (text.replace(" ffff", " FFFF"), HandoverError::Field("end")),
            (text.replace(" 18446744073709551615", " 08"), HandoverError::Field("next")),
            (text.replace(" checkpoint-", " ../"), HandoverError::Field("marker")),
            (text[..text.len() - 1].to_owned(), HandoverError::Field("digest")),
            ("1 clean 00 1 1 1 - -".to_owned(), HandoverError::Field("marker")),
            ("1 dirty".to_owned(), HandoverError::Field("id")),
        ];
        let said = HandoverError::Version(2).to_string();
        assert!(said.starts_with("it has version 2, and this latchfs knows version 1"), "{said}");
        for (text, error) in cases {
            assert_eq!(Handover::parse(&text), Err(error), "{text}");
            let said = error.to_string();
            assert!(said.contains("it"), "{said}");
        }
    }

    #[test]
    fn no_change_of_one_byte_makes_another_handover_of_the_same_text() {
        let text = longest().to_string();
        for at in 0..text.len() {
            for byte in 0..128_u8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] = byte;
                let changed = String::from_utf8(bytes).expect("ASCII");
                if let Ok(handover) = Handover::parse(&changed) {
                    assert_eq!(handover.to_string(), changed);
                }
            }
        }
    }
}
