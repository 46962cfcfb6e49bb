//! The record of a folder's lock as a value: its 14 fields, and the two of them that the holder
//! writes.

use crate::base::random;
use crate::engine::{Patch, TextPatch};
use crate::service::TOLERATED_SKEW;
use crate::time::{Span, Wall};
use serde_json::{Value, json};
use std::sync::Arc;

/// The maximum size of a record that a program writes, in bytes. One with all fields has some 500.
pub(crate) const RECORD_TEXT_BYTES_MAX: usize = 4_096;
/// The maximum length of the nonce and of the session id in bytes.
const PROOF_FIELD_BYTES_MAX: usize = 128;
/// How long after skew has been allowed for an expired lock may not be stolen yet.
const STEAL_GRACE: Span = Span::from_secs(1);
/// The part of the ttl after which a lease is renewed.
const RENEWALS_PER_TTL: u64 = 3;

/// The fields of a lock record, in their order.
pub(crate) const RECORD_FIELDS: [&str; 14] = [
    "lock_id",
    "worktree_id",
    "holder_id",
    "holder_nonce",
    "session_id",
    "acquire_seq",
    "created_at",
    "last_renewed_at",
    "lease_duration_ms",
    "renew_interval_ms",
    "max_clock_skew_ms",
    "steal_grace_ms",
    "lease_expires_at",
    "fencing_token",
];

/// The proof that a program is the holder: two texts that it chose when it acquired the lock. They
/// are kept for the tenure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HolderProof {
    nonce: String,
    session: String,
}

impl HolderProof {
    /// Returns the proof of a tenure that no program has begun by a record: 128 random bits, and
    /// the session in the lock service.
    pub(crate) fn of_guard(session: u64) -> Self {
        let nonce = format!("{:016x}{:016x}", random(), random());
        Self { nonce, session: session.to_string() }
    }

    /// Parses a record that a program has written. Only these two fields of it count. `None` if it
    /// is no record.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > RECORD_TEXT_BYTES_MAX {
            return None;
        }
        let record: Value = serde_json::from_slice(text).ok()?;
        let record = record.as_object()?;
        if RECORD_FIELDS.iter().any(|name| !record.contains_key(*name)) {
            return None;
        }
        Some(Self {
            nonce: proof_field(record.get("holder_nonce")?)?,
            session: proof_field(record.get("session_id")?)?,
        })
    }

    /// Reads the proof in the text that the lock service keeps for a lease. `None` if a guard
    /// before lock records has acquired it.
    pub(crate) fn in_lease(text: &[u8]) -> Option<Self> {
        let kept: Value = serde_json::from_slice(text).ok()?;
        let field = |name: &str| proof_field(&kept[name]);
        Some(Self { nonce: field("holder_nonce")?, session: field("session_id")? })
    }

    /// Returns the text that the lock service keeps for the lease.
    pub(in crate::guard) fn to_lease(&self) -> Arc<[u8]> {
        let kept = json!({"holder_nonce": self.nonce, "session_id": self.session});
        kept.to_string().into_bytes().into()
    }

    /// Returns what the lock service keeps of the holder: the proof, and the id of the process,
    /// `host:user:pid:start:session.start.boot`.
    pub(crate) fn details(&self, holder_id: Arc<str>) -> Patch {
        let text = Some(TextPatch::Set(self.to_lease()));
        Patch { holder_id: Some(holder_id), text, ..Patch::default() }
    }
}

fn proof_field(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    let fits = !text.is_empty() && text.len() <= PROOF_FIELD_BYTES_MAX;
    (fits && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// Returns the id of a process as a record shows it, `host:user:pid:start_time`, from that of the
/// lock service, which also names the login session and the boot.
fn shown_holder(id: &str) -> &str {
    match id.rsplit_once(':') {
        Some((process, session)) if session.contains('.') => process,
        _ => id,
    }
}

/// A tenure of the folder's lock as its record shows it. Times are wall-clock times, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockRecord {
    /// The engine that decides about the lock.
    pub(crate) engine: u64,
    /// The name of the lock.
    pub(crate) lock: String,
    /// The id of the folder.
    pub(crate) folder: String,
    /// The process that holds the lock, or the client if the process is unknown.
    pub(crate) holder: String,
    /// The proof of the holder, if it is known.
    pub(crate) proof: Option<HolderProof>,
    /// The number of the grant among all grants of the lock.
    pub(crate) seq: u64,
    /// The fencing token.
    pub(crate) token: u64,
    /// When the tenure began.
    pub(crate) created: Wall,
    /// When the lease was last renewed.
    pub(crate) renewed: Wall,
    /// When the lease was last renewed, on this machine's boot clock.
    pub(crate) renewed_boot: Span,
    /// When the lease expires.
    pub(crate) expires: Wall,
    /// How long the lease still lasts; zero for an expired lease.
    pub(crate) expires_in: Span,
    /// How long each renewal lasts.
    pub(crate) ttl: Span,
}

impl LockRecord {
    /// Returns the record as JSON, followed by a line end.
    pub(crate) fn to_text(&self) -> String {
        let proof = self.proof.as_ref();
        let ttl = self.ttl.as_millis();
        let record = json!({
            "lock_id": format!("{:016x}:{}", self.engine, self.lock),
            "worktree_id": self.folder,
            "holder_id": shown_holder(&self.holder),
            "holder_nonce": proof.map_or("", |proof| &proof.nonce),
            "session_id": proof.map_or("", |proof| &proof.session),
            "acquire_seq": self.seq,
            "created_at": self.created.to_string(),
            "last_renewed_at": self.renewed.to_string(),
            "last_renewed_boot_ms": self.renewed_boot.as_millis(),
            "lease_duration_ms": ttl,
            "renew_interval_ms": ttl / RENEWALS_PER_TTL,
            "max_clock_skew_ms": TOLERATED_SKEW.as_millis(),
            "steal_grace_ms": STEAL_GRACE.as_millis(),
            "lease_expires_at": self.expires.to_string(),
            "expires_in_ms": self.expires_in.as_millis(),
            "fencing_token": self.token,
        });
        serde_json::to_string_pretty(&record).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::values::lease::GRACE_OF_FOLDER;

    fn record() -> LockRecord {
        let at = |secs| Wall { secs, nanos: 0 };
        LockRecord {
            engine: 0xabc,
            lock: "folder-f".to_owned(),
            folder: "f".to_owned(),
            holder: "laptop1:0:7:70:4.40.9".to_owned(),
            proof: Some(HolderProof { nonce: "n".to_owned(), session: "s".to_owned() }),
            seq: 3,
            token: 17,
            created: at(10),
            renewed: at(20),
            renewed_boot: Span::from_secs(5),
            expires: at(50),
            expires_in: Span::from_secs(30),
            ttl: Span::from_secs(30),
        }
    }

    #[test]
    fn a_record_has_the_fields_of_the_seed_and_can_be_written_back() {
        let text = record().to_text();
        let shown: Value = serde_json::from_str(&text).expect("JSON");
        for field in RECORD_FIELDS {
            assert!(!shown[field].is_null(), "{field}: {shown}");
        }
        assert_eq!(shown["holder_id"], "laptop1:0:7:70");
        assert_eq!(shown["renew_interval_ms"], 10_000);
        assert_eq!(HolderProof::parse(text.as_bytes()), record().proof);
    }

    #[test]
    fn the_seed_s_skew_and_grace_are_the_grace_of_a_folder() {
        let sum = TOLERATED_SKEW.as_millis() + STEAL_GRACE.as_millis();
        assert_eq!(sum, GRACE_OF_FOLDER.span().as_millis());
    }

    #[test]
    fn only_a_record_of_bounded_size_is_one() {
        let whole: Value = serde_json::from_str(&record().to_text()).expect("JSON");
        let parse = |value: &Value| HolderProof::parse(value.to_string().as_bytes());
        assert!(parse(&whole).is_some());
        for field in RECORD_FIELDS {
            let mut less = whole.clone();
            less.as_object_mut().expect("an object").remove(field);
            assert_eq!(parse(&less), None, "{field}");
        }
        let with = |field: &str, value: Value| {
            let mut other = whole.clone();
            other[field] = value;
            parse(&other)
        };
        let long = "x".repeat(PROOF_FIELD_BYTES_MAX);
        assert!(with("holder_nonce", json!(long)).is_some());
        for broken in [json!(""), json!(7), json!(format!("{long}x")), json!("a\nb")] {
            assert_eq!(with("holder_nonce", broken.clone()), None, "{broken}");
            assert_eq!(with("session_id", broken.clone()), None, "{broken}");
        }
        let padding = "x".repeat(RECORD_TEXT_BYTES_MAX);
        assert_eq!(with("lock_id", json!(padding)), None);
        assert_eq!(HolderProof::parse(b""), None);
        assert_eq!(HolderProof::parse(b"[]"), None);
    }

    #[test]
    fn the_lock_service_keeps_the_proof() {
        let proof = HolderProof::of_guard(5);
        assert_eq!(HolderProof::in_lease(&proof.to_lease()), Some(proof.clone()));
        assert_ne!(HolderProof::of_guard(5), proof);
        assert_eq!(HolderProof::in_lease(b"text"), None);
    }
}
