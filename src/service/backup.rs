//! The format of backups: the state of an engine in one file whose checksum reveals damage.
//!
//! ```text
//! latchfs backup 1
//! taken 2026-01-15T10:30:00.000Z
//! engine 0123456789abcdef
//! bytes 1234
//! sum (SHA-256 of all above and of the state)
//!
//! (the state)
//! ```

use crate::engine::Engine;
use crate::engine::codec::{self, Malformed, UnknownVersion, check_version};
use crate::time::Wall;
use sha2::{Digest, Sha256};
use std::fmt;

/// The magic text at the start of a backup, before its version.
const MAGIC: &str = "latchfs backup ";
/// The maximum length in bytes of the lines before the state: five short ones.
const HEAD_BYTES_MAX: usize = 1_024;
/// The maximum length of a backup in bytes: several times that of a million locks of 400 bytes.
pub const BACKUP_BYTES_MAX: usize = 4 << 30;

/// A decoded backup.
#[derive(Debug)]
pub struct Backup {
    /// The time of the backup, by the server's wall clock.
    pub taken: String,
    /// The id of the engine; 0 if it has none.
    pub engine_id: u64,
    /// The state of the engine.
    pub engine: Engine,
}

/// Why a file cannot be used as a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupError {
    /// The file is not a backup.
    Foreign,
    /// Another version of latchfs wrote the file.
    Version(UnknownVersion),
    /// The file is truncated: the number of bytes present and expected.
    CutOff(usize, usize),
    /// The checksum does not match, or the state cannot be decoded.
    Damaged,
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(
                f,
                "it is not a backup; name a file that 'latchfs cluster \
                backup' has written"
            ),
            Self::Version(unknown) => write!(
                f,
                "another version of latchfs wrote it: it has {unknown}; restore it with that one"
            ),
            Self::CutOff(have, want) => {
                write!(f, "it is cut off: {have} bytes of {want} are there; take another one")
            }
            Self::Damaged => write!(f, "it is damaged: its sum is wrong; take another one"),
        }
    }
}

impl std::error::Error for BackupError {}

/// Returns the bytes of a backup of the engine state `state`, which was taken at the time `taken`
/// and which [`codec::encode_state`] has encoded.
pub fn write(engine_id: u64, taken: Wall, state: &[u8]) -> Vec<u8> {
    let (version, state) = state.split_first().unwrap_or((&0, &[]));
    let bytes = state.len();
    let head = format!("{MAGIC}{version}\ntaken {taken}\nengine {engine_id:016x}\nbytes {bytes}\n");
    let head = format!("{head}sum {}\n\n", sum(head.as_bytes(), state));
    [head.as_bytes(), state].concat()
}

fn sum(head: &[u8], state: &[u8]) -> String {
    let mut digest = Sha256::new();
    digest.update(head);
    digest.update(state);
    format!("{:x}", digest.finalize())
}

/// Decodes a backup that [`write()`] made. Fails unless all of it is intact.
pub fn read(bytes: &[u8]) -> Result<Backup, BackupError> {
    let begin = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    if !begin.starts_with(MAGIC.as_bytes()) {
        return Err(BackupError::Foreign);
    }
    let line = |name: &str| {
        let mut lines = begin.split(|byte| *byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()));
        value.and_then(|value| std::str::from_utf8(value).ok()).ok_or(BackupError::Damaged)
    };
    let number = |name| line(name)?.parse::<usize>().map_err(|_| BackupError::Damaged);
    let version = u8::try_from(number(MAGIC)?).unwrap_or(u8::MAX);
    check_version(version).map_err(BackupError::Version)?;
    let end = begin.windows(2).position(|pair| pair == b"\n\n").ok_or(BackupError::Damaged)?;
    let (head, state) = (&bytes[..=end], &bytes[end + 2..]);
    let want = number("bytes ")?;
    if state.len() < want {
        return Err(BackupError::CutOff(state.len(), want));
    }
    let said = line("sum ")?;
    let summed = head.len().checked_sub("sum \n".len() + said.len()).ok_or(BackupError::Damaged)?;
    if state.len() != want || sum(&head[..summed], state) != said {
        return Err(BackupError::Damaged);
    }
    let engine = codec::decode_engine(version, state).map_err(|Malformed| BackupError::Damaged)?;
    let engine_id = u64::from_str_radix(line("engine ")?, 16).map_err(|_| BackupError::Damaged)?;
    Ok(Backup { taken: line("taken ")?.to_owned(), engine_id, engine })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, Grace, Op, OpenSession, Ttl};
    use crate::time::Time;

    fn engine() -> Engine {
        let mut engine = Engine::default();
        let client = ClientId::parse("a").expect("valid");
        let ttl = Some(Ttl::parse("1h").expect("valid"));
        let open = Op::OpenSession(OpenSession { client, ttl, grace: Grace::NONE });
        engine.apply(Time::from_secs(7), &open.into(), &mut vec![]).expect("there is room");
        engine
    }

    #[test]
    fn a_backup_is_read_back_and_a_damaged_one_is_rejected() {
        let bytes = write(7, Wall::now(), &codec::encode_state(1, &engine()));
        let backup = read(&bytes).expect("as it was written");
        assert_eq!((backup.engine_id, backup.engine), (7, engine()));
        for at in 0..bytes.len() {
            let cut = read(&bytes[..at]).map(drop);
            assert!(cut.is_err(), "cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(read(&changed).is_err(), "changed at {at}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(read(&longer).map(drop), Err(BackupError::Damaged));
    }

    #[test]
    fn a_backup_of_another_version_is_refused() {
        let text = String::from_utf8_lossy(&write(7, Wall::now(), &[1])).into_owned();
        for (other, found) in [("0", 0), ("2", 2), ("999", u8::MAX)] {
            let other = text.replace("latchfs backup 1", &format!("latchfs backup {other}"));
            let refused = read(other.as_bytes()).map(drop).expect_err("another version");
            assert_eq!(refused, BackupError::Version(UnknownVersion { found }));
            let said = refused.to_string();
            let both = format!("version {found}, and this latchfs knows version 1");
            assert!(said.contains(&both), "{said}");
        }
        assert_eq!(read(b"PK").map(drop), Err(BackupError::Foreign));
    }
}
