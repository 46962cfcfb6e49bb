//! Markers: immutable files in `.latchfs` in which a tenure says what it left in the folder. Any
//! machine, and any program, can put a file there, so that they are read as untrusted input.
//!
//! The names of markers and checkpoints, and links to them.
//!
//! Checkpoints: markers that name every path of the folder, so that a machine can start from one,
//! and older markers can be removed.

use super::chain::ancestors;
use super::folder_path::FolderPath;
use super::handover::{HandoverId, MarkerCounts};
use crate::chain::MarkerFiles;
use crate::folder_path::ContentDigest;
use crate::tenure_id::TenureId;
use engine::Token;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::{fmt, io};

/// The version of markers that this version of latchfs writes.
const VERSION: u32 = 1;
/// The maximum size of the file of a marker in bytes.
pub const MARKER_BYTES_MAX: u64 = 256 * 1_024 * 1_024;
/// The maximum number of paths that a marker names.
pub const CHANGES_MAX: usize = 1_048_576;
/// The maximum length of each text in a marker in bytes, paths excepted.
pub const MARKER_TEXT_BYTES_MAX: usize = 1_024;

/// How a path stands in the folder. Markers name regular files only: directories, symlinks and
/// special files count as no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PathState {
    /// No regular file has the path.
    Gone,
    /// A person accepted that the path is ignored: no machine waits for it any more, whether a file
    /// stands there or not.
    Ignored,
    /// A regular file has the path.
    File {
        /// The size in bytes.
        size: u64,
        /// The digest of the content.
        digest: ContentDigest,
        /// The mode bits. They keep no folder from being ready.
        mode: u32,
    },
}

/// A path that a marker names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Change {
    /// The path.
    pub path: FolderPath,
    /// How the path stood when the list of the marker was closed.
    pub state: PathState,
    /// Whether the path was changed past the view meanwhile.
    pub is_foreign: bool,
}

/// That a person went on without what had not arrived.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acceptance {
    /// The handover that the acceptance set.
    pub handover: HandoverId,
    /// The reason that the person gave.
    pub reason: String,
}

/// A marker or a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Marker {
    /// The name of the marker.
    pub name: MarkerName,
    /// The id of the folder.
    pub folder: String,
    /// The name of the folder's lock.
    pub lock: String,
    /// The client that wrote the marker, for messages only.
    pub holder: String,
    /// The marker or checkpoint on which this one builds; `None` for the first one of a folder.
    pub previous: Option<MarkerLink>,
    /// The last checkpoint before this marker.
    pub checkpoint: Option<MarkerLink>,
    /// When the marker was written, in milliseconds since 1970, for messages only.
    pub at: u64,
    /// Whether the tenure's gate had closed for good before the list was made.
    pub is_last: bool,
    /// The acceptance before this marker.
    pub accepted: Option<Acceptance>,
    /// The digest of `.latchfs/ignore`; `None` if the folder has no such file.
    pub ignore: Option<ContentDigest>,
    /// The paths that were changed, or all paths of a checkpoint, in their order.
    pub changes: Vec<Change>,
}

/// A marker as it was read from its file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct StoredMarker {
    /// The marker.
    pub marker: Marker,
    /// The name of the marker, and the digest of its file.
    pub link: MarkerLink,
}

/// Why a file is no marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkerError {
    /// The file is too large.
    TooLarge,
    /// The file is not as this version of latchfs writes markers.
    Damaged(String),
    /// The marker names another version.
    Version(u32),
    /// The name or the digest of the file is not that of its content.
    Name,
}

impl fmt::Display for MarkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(f, "the file has more than {MARKER_BYTES_MAX} bytes"),
            Self::Damaged(why) => write!(f, "the file is no marker: {why}"),
            Self::Version(found) => {
                write!(
                    f,
                    "the marker has version {found}, and this latchfs knows version {VERSION}"
                )
            }
            Self::Name => f.write_str("the file's name or digest is not that of its content"),
        }
    }
}

/// The version of a marker.
#[derive(Deserialize)]
struct VersionJson {
    v: u32,
}

/// A marker as JSON. The order of the fields is that of the file.
#[derive(Serialize, Deserialize)]
struct MarkerJson<'a> {
    v: u32,
    folder: Cow<'a, str>,
    engine: Cow<'a, str>,
    lock: Cow<'a, str>,
    token: u64,
    n: u64,
    holder: Cow<'a, str>,
    previous: Option<LinkJson>,
    checkpoint: Option<LinkJson>,
    at: u64,
    last: bool,
    accepted: Option<AcceptanceJson<'a>>,
    ignore: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    whole: bool,
    #[serde(deserialize_with = "bounded_changes")]
    changes: Vec<ChangeJson<'a>>,
}

#[derive(Serialize, Deserialize)]
struct LinkJson {
    name: String,
    sha256: String,
}

#[derive(Serialize, Deserialize)]
struct AcceptanceJson<'a> {
    handover: Cow<'a, str>,
    reason: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
struct ChangeJson<'a> {
    path: Cow<'a, str>,
    r#type: TypeJson,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    foreign: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TypeJson {
    File,
    Gone,
    Ignored,
}

impl TypeJson {
    fn of(state: PathState) -> Self {
        match state {
            PathState::Gone => Self::Gone,
            PathState::Ignored => Self::Ignored,
            PathState::File { .. } => Self::File,
        }
    }
}

/// Reads a list of changes, and fails before it takes memory for too many.
fn bounded_changes<'de, 'a, D>(from: D) -> Result<Vec<ChangeJson<'a>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Bounded<'a>(PhantomData<ChangeJson<'a>>);

    impl<'de, 'a> Visitor<'de> for Bounded<'a> {
        type Value = Vec<ChangeJson<'a>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {CHANGES_MAX} changes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut changes = Vec::new();
            while let Some(change) = list.next_element()? {
                if changes.len() == CHANGES_MAX {
                    return Err(A::Error::custom(format!("more than {CHANGES_MAX} changes")));
                }
                changes.push(change);
            }
            Ok(changes)
        }
    }

    from.deserialize_seq(Bounded(PhantomData))
}

fn damaged(why: impl fmt::Display) -> MarkerError {
    MarkerError::Damaged(why.to_string())
}

fn link_json(link: &MarkerLink) -> LinkJson {
    LinkJson { name: link.name.to_string(), sha256: link.digest.to_string() }
}

fn read_link(json: &LinkJson) -> Result<MarkerLink, MarkerError> {
    let name = MarkerName::parse(&json.name).ok_or_else(|| damaged("a link has no valid name"))?;
    Ok(MarkerLink { name, digest: read_digest(&json.sha256)? })
}

fn read_digest(text: &str) -> Result<ContentDigest, MarkerError> {
    ContentDigest::parse(text).ok_or_else(|| damaged("a digest is not 64 hexadecimal digits"))
}

fn read_text(text: &str) -> Result<String, MarkerError> {
    if text.len() > MARKER_TEXT_BYTES_MAX {
        return Err(damaged(format!("a text has more than {MARKER_TEXT_BYTES_MAX} bytes")));
    }
    Ok(text.to_owned())
}

fn change_json(change: &Change) -> ChangeJson<'_> {
    let path = Cow::Borrowed(change.path.as_str());
    let (size, sha256, mode) = match change.state {
        PathState::Gone | PathState::Ignored => (None, None, None),
        PathState::File { size, digest, mode } => {
            (Some(size), Some(digest.to_string()), Some(mode))
        }
    };
    let r#type = TypeJson::of(change.state);
    ChangeJson { path, r#type, size, sha256, mode, foreign: change.is_foreign }
}

fn read_change(json: &ChangeJson<'_>) -> Result<Change, MarkerError> {
    let path = FolderPath::parse(&json.path).map_err(damaged)?;
    let state = match (json.r#type, json.size, &json.sha256) {
        (TypeJson::Gone, None, None) => PathState::Gone,
        (TypeJson::Ignored, None, None) => PathState::Ignored,
        (TypeJson::File, Some(size), Some(digest)) => {
            let mode = json.mode.unwrap_or(0);
            PathState::File { size, digest: read_digest(digest)?, mode: mode & 0o7777 }
        }
        _ => return Err(damaged("a change has not the fields of its type")),
    };
    Ok(Change { path, state, is_foreign: json.foreign })
}

/// Reads the changes in the order of their paths. Each path may occur once.
fn read_changes(json: &[ChangeJson<'_>], kind: MarkerKind) -> Result<Vec<Change>, MarkerError> {
    let mut changes = Vec::with_capacity(json.len());
    for change in json {
        changes.push(read_change(change)?);
    }
    changes.sort_by(|one, other| one.path.cmp(&other.path));
    if changes.windows(2).any(|pair| pair[0].path == pair[1].path) {
        return Err(damaged("a path occurs twice"));
    }
    let is_gone = |change: &Change| change.state == PathState::Gone;
    if kind == MarkerKind::Checkpoint && changes.iter().any(is_gone) {
        return Err(damaged("a checkpoint names a path that is gone"));
    }
    Ok(changes)
}

impl Marker {
    /// Returns the paths that were changed past the view of the guard that wrote the marker.
    pub fn foreign_paths(&self) -> Vec<FolderPath> {
        let foreign = self.changes.iter().filter(|change| change.is_foreign);
        foreign.map(|change| change.path.clone()).collect()
    }

    /// Returns the link to the marker.
    pub fn link(&self) -> io::Result<MarkerLink> {
        Ok(MarkerLink { name: self.name, digest: ContentDigest::of(&self.write()?) })
    }

    /// Returns the bytes of the marker's file: canonical JSON.
    pub fn write(&self) -> io::Result<Vec<u8>> {
        let accepted = self.accepted.as_ref().map(|accepted| AcceptanceJson {
            handover: Cow::Owned(accepted.handover.to_string()),
            reason: Cow::Borrowed(accepted.reason.as_str()),
        });
        let json = MarkerJson {
            v: VERSION,
            folder: Cow::Borrowed(&self.folder),
            engine: Cow::Owned(format!("{:016x}", self.name.tenure.engine)),
            lock: Cow::Borrowed(&self.lock),
            token: self.name.tenure.token.as_u64(),
            n: self.name.number,
            holder: Cow::Borrowed(&self.holder),
            previous: self.previous.as_ref().map(link_json),
            checkpoint: self.checkpoint.as_ref().map(link_json),
            at: self.at,
            last: self.is_last,
            accepted,
            ignore: self.ignore.map(|digest| digest.to_string()),
            whole: self.name.kind == MarkerKind::Checkpoint,
            changes: self.changes.iter().map(change_json).collect(),
        };
        let bytes = serde_json::to_vec(&json)?;
        if bytes.len() as u64 > MARKER_BYTES_MAX || self.changes.len() > CHANGES_MAX {
            return Err(io::Error::other(MarkerError::TooLarge.to_string()));
        }
        Ok(bytes)
    }

    /// Reads the bytes of a marker's file. Unknown fields are ignored.
    pub fn read(bytes: &[u8]) -> Result<Self, MarkerError> {
        if bytes.len() as u64 > MARKER_BYTES_MAX {
            return Err(MarkerError::TooLarge);
        }
        // The version is read first: a marker of another version may have other fields.
        let version: VersionJson = serde_json::from_slice(bytes).map_err(damaged)?;
        if version.v != VERSION {
            return Err(MarkerError::Version(version.v));
        }
        let json: MarkerJson<'_> = serde_json::from_slice(bytes).map_err(damaged)?;
        let engine = u64::from_str_radix(&json.engine, 16).unwrap_or(0);
        if format!("{engine:016x}") != json.engine {
            return Err(damaged("its engine is not 16 hexadecimal digits"));
        }
        let kind = if json.whole { MarkerKind::Checkpoint } else { MarkerKind::Marker };
        let tenure = TenureId { engine, token: Token::named(json.token) };
        let accepted = json.accepted.as_ref().map(|accepted| {
            let id = u128::from_str_radix(&accepted.handover, 16).map(HandoverId);
            let id = id.ok().filter(|id| id.to_string() == accepted.handover);
            let handover =
                id.ok_or_else(|| damaged("its handover is not 32 hexadecimal digits"))?;
            Ok(Acceptance { handover, reason: read_text(&accepted.reason)? })
        });
        Ok(Self {
            name: MarkerName { kind, tenure, number: json.n },
            folder: read_text(&json.folder)?,
            lock: read_text(&json.lock)?,
            holder: read_text(&json.holder)?,
            previous: json.previous.as_ref().map(read_link).transpose()?,
            checkpoint: json.checkpoint.as_ref().map(read_link).transpose()?,
            at: json.at,
            is_last: json.last,
            accepted: accepted.transpose()?,
            ignore: json.ignore.as_deref().map(read_digest).transpose()?,
            changes: read_changes(&json.changes, kind)?,
        })
    }

    /// Returns the state that the marker names for a path. A checkpoint names every path.
    pub fn state_of(&self, path: &FolderPath) -> Option<PathState> {
        match self.changes.binary_search_by(|change| change.path.cmp(path)) {
            Ok(at) => Some(self.changes[at].state),
            Err(_) => (self.name.kind == MarkerKind::Checkpoint).then_some(PathState::Gone),
        }
    }
}

impl StoredMarker {
    /// Reads a marker from the file with this name in `.latchfs`.
    pub(crate) fn read(file_name: &str, bytes: &[u8]) -> Result<Self, MarkerError> {
        let marker = Marker::read(bytes)?;
        let link = MarkerLink { name: marker.name, digest: ContentDigest::of(bytes) };
        if link.file_name() == file_name {
            Ok(Self { marker, link })
        } else {
            Err(MarkerError::Name)
        }
    }
}

/// The kinds of files in which a tenure says what it left in the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MarkerKind {
    /// The file names the paths that were changed since the marker before it.
    Marker,
    /// The file names all paths of the folder: no other path is a part of it.
    Checkpoint,
}

/// The name of a marker: the tenure, and the number of the marker in it. Two writers can use one
/// name; only the digest tells their markers apart, and numbers order nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MarkerName {
    /// Whether the marker is a checkpoint.
    pub kind: MarkerKind,
    /// The tenure that wrote the marker.
    pub tenure: TenureId,
    /// The number of the marker in its tenure, from 1.
    pub number: u64,
}

/// The text before the tenure in the name of a checkpoint.
const CHECKPOINT: &str = "checkpoint-";

/// Parses a decimal number as it is written, without a sign and leading zeros.
pub(super) fn parse_number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

impl MarkerName {
    /// Parses `ENGINE-TOKEN-N` or `checkpoint-ENGINE-TOKEN-N`.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = match text.strip_prefix(CHECKPOINT) {
            Some(rest) => (MarkerKind::Checkpoint, rest),
            None => (MarkerKind::Marker, text),
        };
        let mut parts = rest.split('-');
        let engine = u64::from_str_radix(parts.next()?, 16).ok()?;
        let token = Token::named(parse_number(parts.next()?)?);
        let number = parse_number(parts.next()?)?;
        let name = Self { kind, tenure: TenureId { engine, token }, number };
        (name.to_string() == text).then_some(name)
    }

    /// Parses the name of a marker's file in `.latchfs`. Returns the name of the marker, and the
    /// first digits of the digest.
    pub fn parse_file_name(file_name: &str) -> Option<(Self, &str)> {
        let text = file_name.strip_suffix(".json")?;
        let (name, digits) = text.strip_prefix("markers/").unwrap_or(text).rsplit_once('-')?;
        let name = Self::parse(name)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_valid = digits.len() == 8
            && digits.bytes().all(is_digit)
            && text.starts_with("markers/") == (name.kind == MarkerKind::Marker);
        is_valid.then_some((name, digits))
    }

    /// Returns the name of the file in `.latchfs` whose content has this digest.
    pub fn file_name(&self, digest: &ContentDigest) -> String {
        let dir = match self.kind {
            MarkerKind::Marker => "markers/",
            MarkerKind::Checkpoint => "",
        };
        format!("{dir}{self}-{}.json", digest.first_digits())
    }
}

impl fmt::Display for MarkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == MarkerKind::Checkpoint {
            f.write_str(CHECKPOINT)?;
        }
        write!(f, "{}-{}", self.tenure, self.number)
    }
}

/// Names one marker exactly: the digest is that of the marker's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MarkerLink {
    /// The name of the marker.
    pub name: MarkerName,
    /// The digest of the bytes of the marker's file.
    pub digest: ContentDigest,
}

impl MarkerLink {
    /// Returns the name of the marker's file in `.latchfs`.
    pub fn file_name(&self) -> String {
        self.name.file_name(&self.digest)
    }
}

impl fmt::Display for MarkerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.name, self.digest.first_digits())
    }
}

/// A checkpoint is due when more markers than this follow the last one.
const MARKERS_DUE: u64 = 64;

/// Whether the next marker should be a checkpoint: many markers follow the last one, or they name
/// more than a quarter of the files.
pub fn is_due(since: MarkerCounts, files: usize) -> bool {
    since.markers > MARKERS_DUE || since.paths.saturating_mul(4) > files as u64
}

/// Returns the markers that nobody needs any more after the checkpoint `newest` was handed over:
/// those before the checkpoint before it. A machine that is as far behind as that starts from the
/// checkpoint.
pub fn removable(markers: &MarkerFiles, newest: MarkerLink) -> Vec<MarkerLink> {
    let is_checkpoint = |link: &MarkerLink| link.name.kind == MarkerKind::Checkpoint;
    let mut before = ancestors(markers, newest).map(|(link, _)| link).skip(1);
    let Some(_previous) = before.by_ref().find(is_checkpoint) else { return Vec::new() };
    before.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &str = concat!(
        r#"{"v":1,"folder":"00000000000000000000000000000001","engine":"000000000000000e","#,
        r#""lock":"folder-1","token":17,"n":3,"holder":"laptop1","previous":{"name":"#,
        r#""000000000000000e-12-1","sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca"#,
        r#"495991b7852b855"},"checkpoint":null,"at":1700000000000,"last":true,"accepted":"#,
        r#"{"handover":"0000000000000000000000000000000a","reason":"lost"},"ignore":null,"#,
        r#""changes":[{"path":"a/b","type":"file","size":5,"sha256":"#,
        r#""2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824","mode":420},"#,
        r#"{"path":"old","type":"gone","foreign":true}]}"#
    );

    fn marker() -> Marker {
        let tenure = |token| TenureId { engine: 0xe, token: Token::named(token) };
        let kind = MarkerKind::Marker;
        let hello = PathState::File { size: 5, digest: ContentDigest::of(b"hello"), mode: 0o644 };
        let path = |text| FolderPath::parse(text).expect("valid");
        Marker {
            name: MarkerName { kind, tenure: tenure(17), number: 3 },
            folder: "00000000000000000000000000000001".to_owned(),
            lock: "folder-1".to_owned(),
            holder: "laptop1".to_owned(),
            previous: Some(MarkerLink {
                name: MarkerName { kind, tenure: tenure(12), number: 1 },
                digest: ContentDigest::of(b""),
            }),
            checkpoint: None,
            at: 1_700_000_000_000,
            is_last: true,
            accepted: Some(Acceptance { handover: HandoverId(10), reason: "lost".to_owned() }),
            ignore: None,
            changes: vec![
                Change { path: path("a/b"), state: hello, is_foreign: false },
                Change { path: path("old"), state: PathState::Gone, is_foreign: true },
            ],
        }
    }

    #[test]
    fn a_marker_is_canonical_json() {
        let bytes = marker().write().expect("memory suffices");
        assert_eq!(String::from_utf8_lossy(&bytes), BYTES);
        assert_eq!(Marker::read(&bytes), Ok(marker()));
        let more = BYTES.replace(r#""v":1,"#, r#""v":1,"later":[{"a":1}],"#);
        assert_eq!(Marker::read(more.as_bytes()), Ok(marker()), "unknown fields are ignored");
        let path = |text| FolderPath::parse(text).expect("valid");
        assert_eq!(marker().state_of(&path("old")), Some(PathState::Gone));
        assert_eq!(marker().state_of(&path("a")), None);
    }

    #[test]
    fn a_damaged_marker_is_refused() {
        for (from, to) in [
            ("\"a/b\"", "\"/a/b\""),
            ("\"a/b\"", "\"a/../../b\""),
            ("\"a/b\"", "\"a//b\""),
            ("\"a/b\"", "\"a\\u0000b\""),
            ("\"a/b\"", "\".latchfs/folder\""),
            ("\"a/b\"", "\"old\""),
            ("\"file\"", "\"symlink\""),
            ("\"file\"", "\"gone\""),
            ("\"size\":5,", ""),
            ("\"size\":5,", "\"size\":-5,"),
            ("2cf24dba", "2CF24DBA"),
            ("\"000000000000000e\"", "\"e\""),
            ("000000000000000e-12-1", "../x"),
            ("\"last\":true,", ""),
            ("\"at\":", "\"at\":1,\"at\":"),
            ("\"gone\"", "\"gone\",\"size\":1"),
            ("\"v\":1", "\"v\":2"),
            ("000a\"", "a\""),
            ("]}", "]}x"),
        ] {
            let text = BYTES.replacen(from, to, 1);
            assert_ne!(text, BYTES, "{from}");
            let error = Marker::read(text.as_bytes()).expect_err(&text).to_string();
            assert!(error.contains("marker"), "{error}");
        }
        for other in [r#"{"v":2}"#.to_owned(), BYTES.replace("\"v\":1", "\"v\":2")] {
            let error = Marker::read(other.as_bytes()).expect_err("another version").to_string();
            assert_eq!(error, "the marker has version 2, and this latchfs knows version 1");
        }
        let whole = BYTES.replace("\"changes\"", "\"whole\":true,\"changes\"");
        assert!(Marker::read(whole.as_bytes()).is_err(), "a checkpoint names no path as gone");
        let whole = whole.replace(",{\"path\":\"old\",\"type\":\"gone\",\"foreign\":true}", "");
        let whole = Marker::read(whole.as_bytes()).expect("a checkpoint");
        let path = FolderPath::parse("other").expect("valid");
        assert_eq!(whole.state_of(&path), Some(PathState::Gone), "it names every path");
    }

    #[test]
    fn paths_that_differ_by_normalization_occur_once() {
        let composed = BYTES.replace("a/b", "caf\u{e9}");
        let other = BYTES.replace("a/b", "cafe\u{301}");
        assert_eq!(Marker::read(composed.as_bytes()), Marker::read(other.as_bytes()));
        let both = composed.replace("\"old\"", "\"cafe\u{301}\"");
        let error = Marker::read(both.as_bytes()).expect_err("twice");
        assert!(error.to_string().contains("twice"), "{error}");
    }

    #[test]
    fn markers_have_bounds() {
        let bytes = vec![0; MARKER_BYTES_MAX as usize + 1];
        assert_eq!(Marker::read(&bytes), Err(MarkerError::TooLarge));
        assert_ne!(Marker::read(&bytes[1..]), Err(MarkerError::TooLarge));
        let long = "x".repeat(MARKER_TEXT_BYTES_MAX);
        let text = BYTES.replace("laptop1", &long);
        assert!(Marker::read(text.as_bytes()).is_ok());
        let text = BYTES.replace("laptop1", &format!("{long}x"));
        assert!(Marker::read(text.as_bytes()).is_err());
        let one = r#"{"path":"a","type":"gone"},"#;
        let list = one.repeat(CHANGES_MAX + 1);
        let (head, _) = BYTES.split_once('[').expect("a list");
        let text = format!("{head}[{}]}}", list.trim_end_matches(','));
        let error = Marker::read(text.as_bytes()).expect_err("too many").to_string();
        assert!(error.contains("more than 1048576 changes"), "{error}");
    }

    #[test]
    fn the_name_of_the_file_is_that_of_its_content() {
        let bytes = marker().write().expect("memory suffices");
        let digest = ContentDigest::of(&bytes);
        let name = format!("markers/000000000000000e-17-3-{}.json", digest.first_digits());
        let stored = StoredMarker::read(&name, &bytes).expect("its name");
        assert_eq!(stored.link, MarkerLink { name: marker().name, digest });
        let changed = BYTES.replace("laptop1", "laptop2");
        assert_eq!(StoredMarker::read(&name, changed.as_bytes()), Err(MarkerError::Name));
        let other = name.replace("17-3", "17-4");
        assert_eq!(StoredMarker::read(&other, &bytes), Err(MarkerError::Name));
    }
}

#[cfg(test)]
mod marker_name_tests {
    use super::*;

    #[test]
    fn the_name_of_a_marker_is_that_of_its_tenure_and_number() {
        let tenure = TenureId { engine: 0xe, token: Token::named(17) };
        let name = MarkerName { kind: MarkerKind::Marker, tenure, number: 3 };
        assert_eq!(name.to_string(), "000000000000000e-17-3");
        let whole = MarkerName { kind: MarkerKind::Checkpoint, ..name };
        let digest = ContentDigest::of(b"");
        assert_eq!(name.file_name(&digest), "markers/000000000000000e-17-3-e3b0c442.json");
        assert_eq!(whole.file_name(&digest), "checkpoint-000000000000000e-17-3-e3b0c442.json");
        for name in [name, whole] {
            assert_eq!(MarkerName::parse(&name.to_string()), Some(name));
            let file = name.file_name(&digest);
            assert_eq!(MarkerName::parse_file_name(&file), Some((name, "e3b0c442")));
        }
        for wrong in [
            "000000000000000e-17-3-e3b0c442.json",
            "markers/checkpoint-000000000000000e-17-3-e3b0c442.json",
            "markers/000000000000000e-17-3-E3b0c442.json",
            "markers/000000000000000e-17-3-e3b0c44.json",
            "markers/000000000000000e-17-3.json",
            "markers/000000000000000e-17-3-e3b0c442",
            "markers/markers/000000000000000e-17-3-e3b0c442.json",
        ] {
            assert_eq!(MarkerName::parse_file_name(wrong), None, "{wrong}");
        }
        for wrong in [
            "e-17-3",
            "000000000000000e-17",
            "000000000000000e-017-3",
            "000000000000000e-+17-3",
            "000000000000000E-17-3",
            "000000000000000e-17-3-4",
            "checkpoint-checkpoint-000000000000000e-17-3",
            "../../x",
            "",
        ] {
            assert_eq!(MarkerName::parse(wrong), None, "{wrong}");
        }
    }
}

#[cfg(test)]
mod checkpoint_tests {
    use super::super::chain::walk;
    use super::super::test_markers::TestMarkers;
    use super::*;

    #[test]
    fn a_checkpoint_is_due_after_many_markers_or_changes() {
        let due = |markers, paths, files| is_due(MarkerCounts { markers, paths }, files);
        assert!(!due(64, 0, 0) && due(65, 0, 0));
        assert!(!due(1, 250, 1_000) && due(1, 251, 1_000));
        assert!(due(0, u64::MAX, 1_000));
    }

    #[test]
    fn markers_before_the_previous_checkpoint_can_be_removed() {
        let mut markers = TestMarkers::default();
        let zero = markers.checkpoint(1, None, &[]);
        let one = markers.marker(2, Some(zero), &[]);
        let two = markers.checkpoint(3, Some(one), &[]);
        let three = markers.marker(4, Some(two), &[]);
        let four = markers.checkpoint(5, Some(three), &[]);
        assert_eq!(removable(&markers.files, four), [one, zero]);
        assert_eq!(removable(&markers.files, two), []);
        for link in removable(&markers.files, four) {
            markers.remove(link);
        }
        assert!(walk(&markers.files, four, None).is_ok());
        assert!(walk(&markers.files, three, None).is_ok());
        assert_eq!(removable(&markers.files, four), []);
    }
}
