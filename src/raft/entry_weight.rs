//! Size limits: how many bytes of commands one log entry may hold, and how many bytes of entries
//! one RPC call may carry. The weight of a command is an estimate of its size in bytes, in memory
//! or in the log, whichever is more.

use super::types::{Entry, Payload, Proposal};
use crate::engine::{
    ClientId, Command, Handover, LeaseKey, Op, Patch, ResetPart, ResetScope, TextPatch,
};
use openraft::EntryPayload;

/// The highest weight of the commands in one entry, unless the first command alone exceeds it. For
/// comparison: 512 requests, each with a name, a note and a short text, together weigh a tenth of
/// this limit.
pub(super) const ENTRY_WEIGHT_MAX: usize = 4 << 20;

/// The highest weight of the entries in one call, unless the first entry alone exceeds it.
pub(super) const CALL_WEIGHT_MAX: usize = ENTRY_WEIGHT_MAX;

/// The weight of an entry without commands, such as a membership entry with its addresses.
const OTHER_WEIGHT: usize = 4 << 10;

/// Returns the weight of a command in bytes.
pub(super) fn weight_of(command: &Command) -> usize {
    let id = command.request.as_ref().map(|request| &request.id);
    let id = id.map_or(0, |id| id.caller.len() + id.key.len());
    let acknowledged = command.acknowledged.as_ref();
    let acknowledged = acknowledged.map_or(0, |keys| keys.from.len() + keys.below.len());
    let key = |key: &LeaseKey| key.name.as_str().len() + key.client.as_str().len();
    let said = match &command.op {
        Op::Acquire(ask) => {
            ask.name.as_str().len() + ask.client.as_str().len() + patch_weight(&ask.patch)
        }
        Op::Renew(ask) => key(&ask.key) + patch_weight(&ask.patch),
        Op::Annotate(ask) => {
            key(&ask.key) + patch_weight(&ask.patch) + handover_weight(ask.handover.as_ref())
        }
        Op::Release(ask) => key(&ask.key) + handover_weight(ask.handover.as_ref()),
        Op::Leave(ask) => ask.name.as_str().len(),
        Op::Move(ask) => key(&ask.from) + ask.to.as_str().len(),
        Op::Steal(ask) => {
            let named = ask.name.as_str().len() + ask.client.as_str().len();
            named + ask.reason.as_str().len() + patch_weight(&ask.patch)
        }
        Op::OpenSession(ask) => ask.client.as_str().len(),
        Op::Reset(ask) => {
            let spared = match &ask.whose {
                ResetScope::AllBut(kept) => {
                    let each = |client: &ClientId| size_of_val(client) + client.as_str().len();
                    kept.iter().map(each).sum()
                }
                ResetScope::Of(client) => client.as_str().len(),
            };
            let part = match &ask.part {
                ResetPart::Names(first, last) => first.as_str().len() + last.as_str().len(),
                ResetPart::Rest { .. } => 0,
            };
            part + spared + ask.by.as_str().len() + ask.reason.as_str().len()
        }
        #[cfg(feature = "planted-version")]
        Op::Planted(name) => name.as_str().len(),
        Op::Forget(ask) => ask.name.as_str().len() + ask.by.as_str().len(),
        Op::EndHoldOff(ask) => ask.by.as_str().len() + ask.reason.as_str().len(),
        Op::Settle | Op::KeepAlive(_) | Op::EndSession(_) => 0,
    };
    size_of::<Command>() + id + acknowledged + said
}

/// Returns the total weight of commands in bytes.
pub(super) fn weight_of_all(commands: &[Command]) -> usize {
    commands.iter().map(weight_of).sum()
}

/// Returns the total weight of entries in bytes.
pub(super) fn weight_of_entries(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| payload_weight(&entry.payload)).sum()
}

fn handover_weight(handover: Option<&Handover>) -> usize {
    handover.map_or(0, |handover| handover.text.len())
}

fn patch_weight(patch: &Patch) -> usize {
    let texts = [&patch.holder_id, &patch.note].map(|text| text.as_ref().map_or(0, |t| t.len()));
    let text = match &patch.text {
        Some(TextPatch::Set(text) | TextPatch::Append(text)) => text.len(),
        None => 0,
    };
    texts.iter().sum::<usize>() + text
}

/// Returns how many of `entries` one call may carry, and their total weight: as many as fit into
/// [`CALL_WEIGHT_MAX`], but at least one if there is any.
pub(super) fn fitting(entries: &[Entry]) -> (usize, usize) {
    let (mut count, mut sum) = (0, 0);
    for entry in entries {
        let weight = payload_weight(&entry.payload);
        if count > 0 && sum + weight > CALL_WEIGHT_MAX {
            break;
        }
        (count, sum) = (count + 1, sum + weight);
    }
    (count, sum)
}

fn payload_weight(payload: &Payload) -> usize {
    match payload {
        EntryPayload::Normal(Proposal::Commands(body)) => {
            weight_of_all(&body.commands) + size_of::<Entry>()
        }
        EntryPayload::Normal(_) | EntryPayload::Blank | EntryPayload::Membership(_) => OTHER_WEIGHT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::codec::Codec;
    use crate::engine::lease_terms::{GRACE_DEFAULT, TTL_DEFAULT};
    use crate::engine::{
        Acquire, Annotate, ClientId, EndHoldOff, Forget, Handover, IfExists, LeaseTerms, LockName,
        Move, Release, Reset, Steal, StealReason,
    };
    use crate::raft::types::{Commands, LogId};
    use crate::time::Time;
    use openraft::vote::leader_id_adv::LeaderId;
    use std::sync::Arc;

    fn commands() -> Vec<Command> {
        let name = |part: &str| LockName::parse(&part.repeat(250)).expect("a name");
        let client = || ClientId::parse(&"c".repeat(250)).expect("a client");
        let key = || LeaseKey { name: name("k"), client: client(), token: None };
        let patch = Patch {
            holder_id: Some("h".repeat(500).into()),
            note: Some("n".repeat(1_000).into()),
            text: Some(TextPatch::Set(vec![7; 4_000].into())),
            ..Patch::default()
        };
        let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
        let reason = || StealReason::parse(&"r".repeat(1_000)).expect("a reason");
        let acquire = Acquire { patch: patch.clone(), ..Acquire::new(name("a"), client(), term) };
        let steal = Steal {
            name: name("s"),
            client: client(),
            reason: reason(),
            term,
            patch: patch.clone(),
            at_once: false,
        };
        let whose = ResetScope::AllBut(vec![client(); 1_000]);
        let handover = || Some(Handover { text: "t".repeat(256).into(), counter: u64::MAX });
        [
            Op::Settle,
            Op::Acquire(acquire),
            Op::Annotate(Annotate { key: key(), patch, handover: handover() }),
            Op::Release(Release { handover: handover(), ..Release::of(key()) }),
            Op::Forget(Forget { name: name("f"), by: client() }),
            Op::Move(Move { from: key(), to: name("t"), over: IfExists::Refuse }),
            Op::Steal(steal),
            Op::EndHoldOff(EndHoldOff { by: client(), reason: reason() }),
            Op::Reset(Reset::new(whose, client(), reason())),
        ]
        .map(Command::from)
        .into()
    }

    fn entry(index: u64, commands: Vec<Command>) -> Entry {
        let log_id = LogId { leader_id: LeaderId { term: 1, node_id: 1 }, index };
        let commands = Arc::new(Commands { now: Time::ZERO, commands });
        Entry { log_id, payload: EntryPayload::Normal(Proposal::Commands(commands)) }
    }

    /// The encoding of a command in the log is never longer than the weight of the command.
    #[test]
    fn a_command_weighs_at_least_its_bytes() {
        for command in commands() {
            let mut bytes = crate::engine::codec::Encoder::new(1);
            command.put(&mut bytes);
            let weight = weight_of(&command);
            assert!(weight >= bytes.len(), "{weight} for {} bytes: {command:?}", bytes.len());
            assert!(weight < 2 * bytes.len() + 2 * size_of::<Command>(), "{weight}: {command:?}");
        }
    }

    #[test]
    fn a_call_carries_what_fits_and_at_least_one_entry() {
        let heavy = || vec![commands().pop().expect("a reset"); 10];
        let weight = weight_of_all(&heavy());
        let entries: Vec<Entry> = (0..100).map(|index| entry(index, heavy())).collect();
        let (count, sum) = fitting(&entries);
        assert!((1..100).contains(&count) && sum <= CALL_WEIGHT_MAX, "{count} entries of {weight}");
        assert!(sum + weight > CALL_WEIGHT_MAX / 2, "{sum}");
        assert_eq!(fitting(&entries[..1]).0, 1);
        assert_eq!(fitting(&[]), (0, 0));
        let alone = [entry(1, (0..20).flat_map(|_| heavy()).collect()), entry(2, vec![])];
        let (count, sum) = fitting(&alone);
        assert!(count == 1 && sum > CALL_WEIGHT_MAX, "{count} of {sum}");
    }
}
