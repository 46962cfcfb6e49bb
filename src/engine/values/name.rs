//! Names of locks and clients, validated when they are parsed.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The maximum length of a whole name in bytes: the memory of a lock must have a bound.
pub const NAME_BYTES_MAX: usize = 1_024;
/// The maximum length of one part of a name in bytes: the kernel's own limit for a file name.
pub const PART_BYTES_MAX: usize = 255;
/// The maximum length of a client name in bytes: several times that of a host name (64) and a user
/// (32).
pub const CLIENT_BYTES_MAX: usize = 255;
/// The prefix of names that are reserved for the mount's own files.
pub const RESERVED_PREFIX: &str = ".latchfs";

/// The name of a lock: `build`, `team/build`.
///
/// Names are ordered by their bytes.
#[derive(Clone)]
pub struct LockName(NameText);

/// The text of a name. A short one is stored inline: in a search among a million locks, following a
/// pointer to each name that is compared is the main cost.
#[derive(Clone)]
enum NameText {
    Short(u8, [u8; SHORT_BYTES_MAX]),
    Long(Arc<str>),
}

/// The length of the longest text that is stored inline: with the tag of the enum and a length byte
/// it fits into three words.
const SHORT_BYTES_MAX: usize = 22;

impl NameText {
    fn new(text: &str) -> Self {
        let mut bytes = [0; SHORT_BYTES_MAX];
        match bytes.get_mut(..text.len()) {
            Some(begin) => {
                begin.copy_from_slice(text.as_bytes());
                Self::Short(text.len() as u8, bytes)
            }
            None => Self::Long(text.into()),
        }
    }

    // Maps of names are searched in other crates as well, which without LTO inline what says so.
    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => &bytes[..usize::from(*length)],
            Self::Long(text) => text.as_bytes(),
        }
    }

    fn as_str(&self) -> &str {
        match self {
            Self::Short(..) => {
                std::str::from_utf8(self.as_bytes()).expect("it was text when it was made")
            }
            Self::Long(text) => text,
        }
    }
}

impl PartialEq for LockName {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes() == other.0.as_bytes()
    }
}

impl Eq for LockName {}

impl PartialOrd for LockName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockName {
    /// Compares the bytes, which sorts names by their Unicode code points.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.as_bytes().cmp(other.0.as_bytes())
    }
}

impl Hash for LockName {
    /// Hashes as `str` does (the bytes and 0xff), so that a map of names can be queried with a
    /// `&str`. A test checks this.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.0.as_bytes());
        state.write_u8(0xff);
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockName").field(&self.as_str()).finish()
    }
}

/// The name of a client: `laptop1`, `laptop1:alice`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(Arc<str>);

/// Why a text is not a valid name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameError {
    /// The text, or a part of it, is empty.
    Empty,
    /// A part is longer than [`PART_BYTES_MAX`], or the whole than [`NAME_BYTES_MAX`].
    TooLong,
    /// The bytes are not UTF-8.
    NotUtf8,
    /// The text contains a control character.
    Control,
    /// The text contains a character that no terminal shows, or one that changes the order in which
    /// others are shown, so that it looks like another name.
    Invisible,
    /// A part is `.` or `..`.
    Dots,
    /// The name begins with [`RESERVED_PREFIX`].
    Reserved,
}

impl LockName {
    /// Parses and validates the name of a lock.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let name = Self::parse_stored(text)?;
        match name {
            _ if name.is_own() => Err(NameError::Reserved),
            _ if name.is_deceptive() => Err(NameError::Invisible),
            name => Ok(name),
        }
    }

    /// Parses one of the names that latchfs keeps for itself, which begin with
    /// [`RESERVED_PREFIX`].
    pub fn parse_own(text: &str) -> Result<Self, NameError> {
        Self::parse_stored(text)
    }

    /// Whether latchfs keeps the name for itself, so that no client may use it.
    pub fn is_own(&self) -> bool {
        self.as_str().starts_with(RESERVED_PREFIX)
    }

    /// Whether the name does not look like what it is: see [`NameError::Invisible`].
    pub fn is_deceptive(&self) -> bool {
        is_deceptive(self.as_str())
    }

    /// Parses a name that another process may have accepted before deceptive names were refused, or
    /// one that latchfs keeps for itself.
    pub(crate) fn parse_stored(text: &str) -> Result<Self, NameError> {
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        if !is_plain(text) {
            text.split('/').try_for_each(check_part)?;
        }
        Ok(Self(NameText::new(text)))
    }

    /// Parses the name of a lock from bytes, which must be UTF-8.
    pub fn parse_bytes(bytes: &[u8]) -> Result<Self, NameError> {
        // The length is checked before the encoding: a long text of invalid UTF-8 is reported as
        // too long.
        if bytes.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        Self::parse(std::str::from_utf8(bytes).map_err(|_| NameError::NotUtf8)?)
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether the name has more than one part, such as `team/build`, and so lies below another
    /// name.
    pub(crate) fn has_parts(&self) -> bool {
        self.0.as_bytes().contains(&b'/')
    }

    /// Returns the names above this one, nearest first: `a/b` and `a` for `a/b/c`.
    pub fn parents(&self) -> impl Iterator<Item = Self> + '_ {
        parents(self.as_str()).filter_map(|parent| Self::parse(parent).ok())
    }

    /// Returns the last part of the name: `build` for `team/build`.
    pub fn last_part(&self) -> &str {
        self.as_str().rsplit('/').next().unwrap_or_default()
    }
}

/// Returns the names above `name`, nearest first.
pub(crate) fn parents(name: &str) -> impl Iterator<Item = &str> {
    fn above(name: &str) -> Option<&str> {
        name.rsplit_once('/').map(|(above, _)| above)
    }
    std::iter::successors(above(name), |name| above(name))
}

/// Lets a map of locks be searched by a `&str`, without building a [`LockName`] first.
impl std::borrow::Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl std::borrow::Borrow<str> for ClientId {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl ClientId {
    /// Whether this client is `host` itself or one of its users: `laptop1:alice` is one of
    /// `laptop1`.
    pub fn is_of_host(&self, host: &Self) -> bool {
        let rest = self.as_str().strip_prefix(host.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }

    /// Parses the name of a client.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let client = Self::parse_stored(text)?;
        if client.is_deceptive() { Err(NameError::Invisible) } else { Ok(client) }
    }

    /// Whether the name does not look like what it is: see [`NameError::Invisible`].
    pub fn is_deceptive(&self) -> bool {
        is_deceptive(self.as_str())
    }

    /// Parses a name that another process may have accepted before deceptive names were refused.
    pub(crate) fn parse_stored(text: &str) -> Result<Self, NameError> {
        match text {
            "" => Err(NameError::Empty),
            _ if text.len() > CLIENT_BYTES_MAX => Err(NameError::TooLong),
            _ if text.chars().any(char::is_control) => Err(NameError::Control),
            _ => Ok(Self(text.into())),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this client is `other` or one of its users.
    pub fn belongs_to(&self, other: &Self) -> bool {
        let rest = self.0.strip_prefix(other.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }

    /// Returns the host: the text before the first colon.
    pub fn host(&self) -> &str {
        self.0.split(':').next().unwrap_or(&self.0)
    }
}

/// Whether a text has zero-width characters, or characters that control the direction of text.
fn is_deceptive(text: &str) -> bool {
    let deceives = |c: char| {
        matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{feff}')
    };
    !text.is_ascii() && text.chars().any(deceives)
}

/// Whether a name needs no further checks: it is one part of ASCII letters, digits, `-` and `_`.
/// Each file system request brings a name, and most names are of this kind.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=PART_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain)
}

fn check_part(part: &str) -> Result<(), NameError> {
    match part {
        "" => Err(NameError::Empty),
        "." | ".." => Err(NameError::Dots),
        _ if part.len() > PART_BYTES_MAX => Err(NameError::TooLong),
        _ if part.chars().any(char::is_control) => Err(NameError::Control),
        _ => Ok(()),
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a name, and each part of it, needs at least one byte"),
            Self::TooLong => write!(
                f,
                "a name has at most {PART_BYTES_MAX} bytes in each part and {NAME_BYTES_MAX} in all"
            ),
            Self::NotUtf8 => write!(f, "a name is UTF-8"),
            Self::Control => write!(f, "a name has no control characters"),
            Self::Invisible => {
                write!(f, "a name has no characters that are invisible or reorder others")
            }
            Self::Dots => write!(f, "a part of a name is not '.' or '..'"),
            Self::Reserved => {
                write!(f, "names that begin with {RESERVED_PREFIX} are latchfs's own")
            }
        }
    }
}

impl std::error::Error for NameError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_parts() {
        let name = LockName::parse("team/build").expect("valid");
        assert_eq!((name.as_str(), name.last_part()), ("team/build", "build"));
        assert!(LockName::parse("naïve lock, 2nd").is_ok());
        assert!(is_plain("build-1_a"), "nearly every name needs no further check");
        assert!(!is_plain("") && !is_plain("a/b") && !is_plain("a b"));
    }

    #[test]
    fn an_invalid_name_gives_its_reason() {
        let why = |text: &str| LockName::parse(text).err();
        assert_eq!(why(""), Some(NameError::Empty));
        assert_eq!(why("a//b"), Some(NameError::Empty));
        assert_eq!(why("/a"), Some(NameError::Empty));
        assert_eq!(why("a/../b"), Some(NameError::Dots));
        assert_eq!(why("a\nb"), Some(NameError::Control));
        assert_eq!(why("a\u{7f}"), Some(NameError::Control));
        for hidden in ['\u{200b}', '\u{200f}', '\u{202e}', '\u{2066}', '\u{feff}', '\u{61c}'] {
            let text = format!("prod{hidden}");
            assert_eq!(why(&text), Some(NameError::Invisible), "{hidden:?}");
            assert_eq!(ClientId::parse(&text), Err(NameError::Invisible));
            assert!(LockName::parse_stored(&text).is_ok(), "what is stored can be read");
        }
        assert_eq!(why(".latchfs"), Some(NameError::Reserved));
        assert_eq!(why(".latchfs-2/x"), Some(NameError::Reserved));
        assert_eq!(why(&"x".repeat(255)), None);
        assert_eq!(why(&"x".repeat(256)), Some(NameError::TooLong));
        let long = format!("{}/", "y".repeat(127)).repeat(8) + "zz";
        assert_eq!(why(&(long[..1_023].to_owned() + "z")), None);
        assert_eq!(why(&(long + "z")), Some(NameError::TooLong));
        assert_eq!(LockName::parse_bytes(b"\xff").err(), Some(NameError::NotUtf8));
    }

    #[test]
    fn a_map_of_names_can_be_queried_with_a_text() {
        let long = "x".repeat(SHORT_BYTES_MAX + 1);
        for text in ["build", "team/naïve", &long] {
            let names = std::collections::HashSet::from([LockName::parse(text).expect("valid")]);
            assert!(names.contains(text), "{text}");
        }
    }

    #[test]
    fn clients_have_a_host() {
        let host = |text| ClientId::parse(text).expect("valid").host().to_owned();
        assert_eq!(host("laptop1:alice"), "laptop1");
        assert_eq!(host("laptop1"), "laptop1");
        let belongs = |one, other| {
            let client = |text| ClientId::parse(text).expect("valid");
            client(one).belongs_to(&client(other))
        };
        assert!(belongs("laptop1", "laptop1") && belongs("laptop1:a:b", "laptop1:a"));
        assert!(!belongs("laptop10", "laptop1") && !belongs("laptop1", "laptop1:a"));
        assert_eq!(ClientId::parse(""), Err(NameError::Empty));
        assert_eq!(ClientId::parse("a\tb"), Err(NameError::Control));
    }
}
