//! The encoding of views, events and refusals, which are sent to other processes and never stored.

use super::encoding::{Codec, Decoder, Encoder, Malformed, wire_enum, wire_struct};
use super::event::{Event, EventKind, TenureEnd};
use super::limits::LimitedField;
use super::refusal::{Conflict, Limit, Reason, Refusal, ShareOf, Way};
use super::view::{Child, Holder, LockView, WaiterView};

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
    }
    LimitedField { 0 Note, 1 HolderId, 2 Key, 3 Caller, 4 Spared, 5 Handover }
    Way { 0 Held, 1 Grace, 2 Own, 3 Behind, 4 StealGrace { until } }
    Limit {
        0 Locks(max), 1 Waiters(max), 2 AllWaiters(max), 3 Holders(max), 4 Sessions(max),
        5 QueuedRequests(max), 6 Remembered(max), 7 Tokens, 8 Share(table, max),
    }
    ShareOf { 0 Locks, 1 Waiters, 2 Queue, 3 Holders, 4 Sessions, 5 Remembered }
}

/// The result of a command is encoded as a tag for success or refusal, followed by the outcome or
/// the refusal.
impl<T: Codec> Codec for Result<T, Refusal> {
    fn put(&self, out: &mut Encoder) {
        match self {
            Ok(value) => {
                out.push(0);
                value.put(out);
            }
            Err(refusal) => {
                out.push(1);
                refusal.put(out);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => T::take(from).map(Ok),
            1 => Refusal::take(from).map(Err),
            _ => Err(Malformed),
        }
    }
}
