//! Encodes the ids of requests, and the answers that the engine remembers of them.

use super::codec::WITH_CALLERS;
use super::command::{Digest, IdempotencyKey, Replay, RequestId};
use super::encoding::{Codec, Decoder, Malformed, require};
use super::idempotency::IdempotencyRecord;
use super::limits::REQUEST_KEY_BYTES_MAX;
use super::name::ClientId;
use crate::time::Time;
use std::sync::Arc;

impl Codec for RequestId {
    fn put(&self, out: &mut Vec<u8>) {
        self.caller.put(out);
        self.key.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let caller: Arc<str> = if from.format() < WITH_CALLERS {
            // Formats before [`WITH_CALLERS`] stored a client instead of a caller. The prefix
            // `client:` makes it a caller that no front end produces today, so no new request is
            // taken for a repeat of the decoded one.
            format!("client:{}", ClientId::take(from)?).into()
        } else {
            Codec::take(from)?
        };
        let mut key: Arc<str> = Codec::take(from)?;
        if from.format() < WITH_CALLERS && !(1..=REQUEST_KEY_BYTES_MAX).contains(&key.len()) {
            // Formats before [`WITH_CALLERS`] did not limit the length of an idempotency key. A key
            // that exceeds today's limit is replaced by its hash, which still distinguishes it from
            // other keys.
            key = format!("{:032x}", long_key(&key)).into();
        }
        Ok(Self { caller, key })
    }
}

/// FNV-1a with 128 bits: enough to tell old keys apart for the ten minutes that they are
/// remembered.
fn long_key(key: &str) -> u128 {
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    key.bytes().fold(start, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

impl Codec for IdempotencyKey {
    fn put(&self, out: &mut Vec<u8>) {
        self.id.put(out);
        self.digest.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let id = Codec::take(from)?;
        let digest = if from.format() < WITH_CALLERS { Digest(0) } else { Codec::take(from)? };
        Ok(Self { id, digest })
    }
}

impl Codec for Digest {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self(u128::from_le_bytes(from.take_array()?)))
    }
}

impl Codec for IdempotencyRecord {
    fn put(&self, out: &mut Vec<u8>) {
        self.until.put(out);
        self.digest.put(out);
        self.replay.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let until = Codec::take(from)?;
        if from.format() < WITH_CALLERS {
            let replay = Replay { at: Time::ZERO, first: Codec::take(from)?, ends: None };
            return Ok(Self { until, digest: Digest(0), replay });
        }
        Ok(Self { until, digest: Codec::take(from)?, replay: Codec::take(from)? })
    }
}

/// The number by which the encoding identifies the variant [`Outcome::Replayed`].
const REPLAYED: u8 = 13;

impl Codec for Replay {
    fn put(&self, out: &mut Vec<u8>) {
        self.at.put(out);
        self.first.put(out);
        self.ends.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let at = Codec::take(from)?;
        // The first answer that a replayed outcome contains must not be a replayed outcome too: a
        // hostile peer would nest them until the stack overflows.
        require(from.peek() != Some(REPLAYED))?;
        Ok(Self { at, first: Codec::take(from)?, ends: Codec::take(from)? })
    }
}
