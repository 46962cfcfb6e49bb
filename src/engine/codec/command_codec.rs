//! The encoding of views, events and refusals, which are sent to other processes and never stored.
//!
//! Encodes the remembered names of an engine.

use super::encoding::{Codec, Decoder, Encoder, Malformed, require, wire_enum, wire_struct};
use crate::state::EngineState;
use crate::values::details::{LimitedField, REMEMBERED_MAX};
use crate::values::event::{Child, Event, EventKind, Holder, LockView, TenureEnd, WaiterView};
use crate::values::handover::{LastHandover, RememberedName, RememberedNames, StolenTenure};
use crate::values::name::LockName;
use crate::values::refusal::{Conflict, Limit, Reason, Refusal, ShareOf, Way};

wire_struct! {
    Holder { lease, ends }
    WaiterView { client, ticket, mode, since }
    Child { name, lock }
    Event { at, what }
    Refusal { at, reason }
    LockView { name, at, mode, holders, waiters, has_below, previous, hold_off }
    Conflict { name, holder, token, mode, ends, way, waiting, previous }
}

impl Codec for bool {
    fn put(&self, out: &mut Encoder) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

wire_enum! {
    EventKind {
        0 Granted { name, holder, token, mode, hold, waited },
        1 Renewed { name, holder, token },
        2 Annotated { name, token },
        3 Expired { name, holder, token },
        4 Ended { name, holder, token, held, end },
        5 Joined { name, client, ticket },
        6 Left { name, client, ticket, why },
        7 SessionOpened { session, client },
        8 SessionKept { session },
        9 SessionOver { session, client, end },
        10 HoldOffEnded { by },
    }
    TenureEnd { 0 Released, 1 Lapsed, 2 Moved { to }, 3 Replaced, 4 Stolen { by, reason } }
    Reason {
        0 Conflict(conflict),
        1 NotHeld { name, client, holder },
        2 Expired { name, token },
        3 StaleToken { name, named, current },
        4 NoSession(id),
        5 NotInLine(name),
        6 SameName(name),
        7 Limit(limit),
        8 TextTooLong(name),
        9 KeyReused(key),
        10 Oversized(part),
        11 AcquiredAgain { name, token, current },
        12 TooLong { max },
        13 LateCopy(id),
        14 NotRemembered(name),
        15 HandoverNeedsToken(name),
        16 OldHandover { name, named, current },
        17 HoldOff { name, hold_off, waiting },
        18 NeedsClusterVersion { requires, version },
        19 OtherSeats { name, named, has },
        20 SeatsAndHandovers(name),
        21 NothingToSteal { name, named, current },
    }
    LimitedField { 0 Note, 1 HolderId, 2 Key, 3 Caller, 4 Spared, 5 Handover }
    Way { 0 Held, 1 Grace, 2 Own, 3 Behind, 4 StealGrace { until } }
    Limit {
        0 Locks(max), 1 Waiters(max), 2 AllWaiters(max), 3 Holders(max), 4 Sessions(max),
        5 QueuedRequests(max), 6 Remembered(max), 7 Tokens, 8 Share(table, max),
        9 Unanswered(max),
    }
    ShareOf { 0 Locks, 1 Waiters, 2 Queue, 3 Holders, 4 Sessions, 5 Remembered }
}

impl EngineState {
    /// Decodes the remembered names of an engine.
    pub(super) fn take_names(&mut self, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        let count = from.take_length::<RememberedName>()?;
        require(count <= REMEMBERED_MAX)?;
        for _ in 0..count {
            let RememberedName { name, owner, previous } = Codec::take(from)?;
            let last = self.remembered.0.last_key_value();
            require(last.is_none_or(|(last, _)| *last < name))?;
            let is_issued = |last: &LastHandover| last.token.as_u64() < self.mint.upcoming();
            require(previous.last.as_ref().is_none_or(is_issued))?;
            self.insert_memory(name, owner, previous);
        }
        self.take_stolen(from)
    }

    /// Decodes the tenures whose loss was not acknowledged yet.
    fn take_stolen(&mut self, from: &mut Decoder<'_>) -> Result<(), Malformed> {
        let count = from.take_length::<StolenTenure>()?;
        require(count <= self.remembered.len())?;
        let mut before = None;
        for _ in 0..count {
            let (name, stolen) = (LockName::take(from)?, StolenTenure::take(from)?);
            require(before.as_ref().is_none_or(|before| *before < name))?;
            require(stolen.token.as_u64() < self.mint.upcoming())?;
            require(self.remembered.get(&name).is_some())?;
            self.note_stolen(&name, Some(stolen));
            before = Some(name);
        }
        Ok(())
    }
}

impl RememberedNames {
    /// Encodes all names, as [`EngineState::take_names`] decodes them.
    pub(crate) fn put(&self, out: &mut Encoder) {
        self.len().put(out);
        for (name, owner, previous) in self.iter() {
            name.put(out);
            owner.put(out);
            previous.put(out);
        }
        let stolen = self.0.iter().filter_map(|(name, it)| Some((name, it.stolen.as_ref()?)));
        let stolen: Vec<_> = stolen.collect();
        stolen.len().put(out);
        for (name, tenure) in stolen {
            name.put(out);
            tenure.put(out);
        }
    }
}
