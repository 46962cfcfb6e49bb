//! The encoding of views, events and refusals. These are only sent to other processes and never
//! stored, so their encoding is versioned by the protocol that carries them, not by the format of
//! the stored state.

use super::command_codec::take_flag;
use super::encoding::{Codec, Decoder, Malformed, wire_enum, wire_struct};
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
}

/// The byte before the mode of an encoded view, which differs from the byte of each mode: what is
/// remembered of the name follows, and then the mode.
const AFTER_PREVIOUS: u8 = 2;
/// The same, before the hold-off.
const AFTER_HOLD_OFF: u8 = 3;

impl Codec for LockView {
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.at.put(out);
        if let Some(hold_off) = &self.hold_off {
            out.push(AFTER_HOLD_OFF);
            hold_off.put(out);
        }
        if let Some(previous) = &self.previous {
            out.push(AFTER_PREVIOUS);
            previous.put(out);
        }
        self.mode.put(out);
        self.holders.put(out);
        self.waiters.put(out);
        self.has_below.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (name, at) = (Codec::take(from)?, Codec::take(from)?);
        let has_hold_off = take_flag(from, AFTER_HOLD_OFF)?;
        let hold_off = if has_hold_off { Some(Codec::take(from)?) } else { None };
        let has_previous = take_flag(from, AFTER_PREVIOUS)?;
        let previous = if has_previous { Some(Codec::take(from)?) } else { None };
        let (mode, holders) = (Codec::take(from)?, Codec::take(from)?);
        let (waiters, has_below) = (Codec::take(from)?, Codec::take(from)?);
        Ok(Self { name, at, mode, holders, waiters, has_below, previous, hold_off })
    }
}

/// The byte before the [`Way`] of an encoded conflict, which differs from the first byte of each
/// way: what is remembered of the name follows, and then the way.
const WAY_AFTER_PREVIOUS: u8 = 255;

impl Codec for Conflict {
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.holder.put(out);
        self.token.put(out);
        self.mode.put(out);
        self.ends.put(out);
        if let Some(previous) = &self.previous {
            out.push(WAY_AFTER_PREVIOUS);
            previous.put(out);
        }
        self.way.put(out);
        self.waiting.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (name, holder, token) = (Codec::take(from)?, Codec::take(from)?, Codec::take(from)?);
        let (mode, ends) = (Codec::take(from)?, Codec::take(from)?);
        let has_previous = take_flag(from, WAY_AFTER_PREVIOUS)?;
        let previous = if has_previous { Some(Codec::take(from)?) } else { None };
        let (way, waiting) = (Codec::take(from)?, Codec::take(from)?);
        Ok(Self { name, holder, token, mode, ends, way, waiting, previous })
    }
}

impl Codec for bool {
    fn put(&self, out: &mut Vec<u8>) {
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
        17 NoHandoversYet,
        18 HoldOff { name, hold_off, waiting },
    }
    LimitedField { 0 Note, 1 HolderId, 2 Key, 3 Caller, 4 Spared, 5 Handover }
    Way { 0 Held, 1 Grace, 2 Own, 3 Behind, 4 StealGrace { until } }
}

/// A tag and the maximum. A share is encoded as the limit of its table, which every version
/// decodes.
impl Codec for Limit {
    fn put(&self, out: &mut Vec<u8>) {
        let (tag, max) = match self {
            Self::Locks(max) | Self::Share(ShareOf::Locks, max) => (0, max),
            Self::Waiters(max)
            | Self::AllWaiters(max)
            | Self::Share(ShareOf::Waiters | ShareOf::Queue, max) => (1, max),
            Self::Holders(max) | Self::Share(ShareOf::Holders, max) => (2, max),
            Self::Sessions(max) | Self::Share(ShareOf::Sessions, max) => (3, max),
            Self::QueuedRequests(max) => (4, max),
            Self::Tokens => return out.push(5),
            Self::Remembered(max) | Self::Share(ShareOf::Remembered, max) => (6, max),
        };
        out.push(tag);
        max.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(match u8::take(from)? {
            0 => Self::Locks(usize::take(from)?),
            1 => Self::Waiters(usize::take(from)?),
            2 => Self::Holders(usize::take(from)?),
            3 => Self::Sessions(usize::take(from)?),
            4 => Self::QueuedRequests(usize::take(from)?),
            5 => Self::Tokens,
            6 => Self::Remembered(usize::take(from)?),
            _ => return Err(Malformed),
        })
    }
}

/// The result of a command is encoded as a tag for success or refusal, followed by the outcome or
/// the refusal.
impl<T: Codec> Codec for Result<T, Refusal> {
    fn put(&self, out: &mut Vec<u8>) {
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
