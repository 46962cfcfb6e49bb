//! The format of a snapshot: its file, replaced atomically, with a version and a checksum; and the
//! encoded state in it, which is also sent to other nodes.

use super::data_dir_error::DataError;
use super::entry_codec::{put_meta, take_meta};
use super::types::{ClusterId, Meta, Snapshot};
use crate::engine::Engine;
use crate::engine::codec::{
    self, Codec, DecodeError, Decoder, Encoder, FORMAT_VERSION, Malformed, check_version,
};
use crate::storage::atomic_file::{Durable, replace};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Magic bytes at the start of the file, before its version.
const MAGIC: &[u8; 8] = b"latchsnp";
/// The version of the file. A node that finds another one refuses to start.
const VERSION: u32 = 1;
/// The length of the file header: magic bytes, version, and a checksum of everything after the
/// header.
const HEAD_BYTES: usize = 16;

/// The decoded contents of a snapshot: the replicated state at one entry of the log.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotContents {
    pub(crate) meta: Meta,
    pub(crate) cluster: Option<ClusterId>,
    /// The cluster version, which is that of the encoded state.
    pub(crate) version: u8,
    pub(crate) engine: Engine,
}

/// Encodes the state, as it is stored in the file and sent to other nodes.
pub(crate) fn to_bytes(version: u8, cluster: Option<ClusterId>, engine: &Engine) -> Arc<[u8]> {
    let mut out = Encoder::message(version);
    cluster.put(&mut out);
    out.extend_from_slice(&codec::encode_engine(version, engine));
    out.into_bytes().into()
}

/// Replaces the snapshot file at `path` atomically.
pub(super) fn write(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    replace(path, &[&to_file(snapshot)], Durable::Yes).map(drop)
}

/// Encodes a snapshot with its metadata as the contents of a file.
pub(crate) fn to_file(snapshot: &Snapshot) -> Vec<u8> {
    let mut meta = Encoder::new(FORMAT_VERSION);
    put_meta(&snapshot.meta, &mut meta);
    let length = (meta.len() as u32).to_le_bytes();
    let parts: [&[u8]; 3] = [&length, &meta, &snapshot.snapshot];
    let mut sum = crc32fast::Hasher::new();
    for part in parts {
        sum.update(part);
    }
    let (version, sum) = (VERSION.to_le_bytes(), sum.finalize().to_le_bytes());
    let parts: [&[u8]; 6] = [MAGIC, &version, &sum, parts[0], parts[1], parts[2]];
    parts.concat()
}

/// Reads the snapshot file, or returns `None` if there is none.
pub(super) fn read(path: &Path) -> Result<Option<Snapshot>, DataError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::io(path, error)),
    };
    from_file(path, &bytes).map(Some)
}

/// Decodes the contents of a file that [`to_file`] encoded; `path` is for error messages.
pub(crate) fn from_file(path: &Path, bytes: &[u8]) -> Result<Snapshot, DataError> {
    let damaged = |why: &str| DataError::damaged(path, why);
    let (head, body) =
        bytes.split_at_checked(HEAD_BYTES).ok_or_else(|| damaged("it is cut off"))?;
    let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    if &head[..8] != MAGIC {
        return Err(damaged("it is no snapshot"));
    }
    if number(8) != VERSION {
        let why = format!("it has version {}, and this latchfs knows version {VERSION}", number(8));
        return Err(DataError::OtherVersion { file: path.to_path_buf(), why });
    }
    if number(12) != crc32fast::hash(body) {
        return Err(damaged("it has the wrong sum"));
    }
    parse(body).map_err(|Malformed| damaged("it can't be understood"))
}

fn parse(body: &[u8]) -> Result<Snapshot, Malformed> {
    let (length, rest) = body.split_first_chunk().ok_or(Malformed)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (meta, state) = rest.split_at_checked(length).ok_or(Malformed)?;
    let mut from = Decoder::new(FORMAT_VERSION, meta);
    let meta = take_meta(&mut from)?;
    from.end()?;
    Ok(Snapshot { meta, snapshot: state.into() })
}

/// Decodes the encoded state in a snapshot, and returns it with the snapshot's metadata.
pub(crate) fn unpack(snapshot: &Snapshot) -> Result<SnapshotContents, DecodeError> {
    let (version, body) = snapshot.snapshot.split_first().ok_or(Malformed)?;
    check_version(*version)?;
    let mut from = Decoder::new(*version, body);
    let (meta, cluster) = (snapshot.meta.clone(), Codec::take(&mut from)?);
    let engine = codec::decode_engine(*version, from.rest())?;
    Ok(SnapshotContents { meta, cluster, version: *version, engine })
}

/// Reads the snapshot file at `path` and decodes its state; `None` if there is no file.
pub(super) fn load(path: &Path) -> Result<Option<SnapshotContents>, DataError> {
    let Some(snapshot) = read(path)? else { return Ok(None) };
    unpack(&snapshot).map(Some).map_err(|error| match error {
        DecodeError::Version(unknown) => {
            let why = format!("its state has {unknown}");
            DataError::OtherVersion { file: path.to_path_buf(), why }
        }
        DecodeError::Malformed => DataError::damaged(path, "its state can't be understood"),
    })
}
