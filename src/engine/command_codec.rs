//! Encodes commands, and the parts of them whose form has changed between formats.

use super::codec::{
    WITH_ACQUISITIONS, WITH_HANDOVERS, WITH_OPEN_RELEASES, WITH_RESET_PARTS, WITH_TAKEOVERS,
};
use super::command::{
    Acquire, Annotate, Command, Forget, LeaseKey, Release, Reset, ResetPart, Steal, Tenure,
};
use super::encoding::{Codec, Decoder, Malformed, require};

impl Codec for Command {
    fn put(&self, out: &mut Vec<u8>) {
        self.request.put(out);
        self.order.put(out);
        self.acknowledged.put(out);
        self.op.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (request, order, acknowledged) =
            (Codec::take(from)?, Codec::take(from)?, Codec::take(from)?);
        Ok(Self { request, op: Codec::take(from)?, order, acknowledged })
    }
}

/// The byte before the mode of an encoded acquire, which differs from the byte of each mode: the
/// token of the lease to take over follows, and then the mode.
const TAKING_OVER: u8 = 2;
/// The byte before the mode of an encoded acquire, after the token of a lease to take over: the
/// acquire asks for the name to be remembered.
const REMEMBERING: u8 = 3;

impl Codec for Acquire {
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.client.put(out);
        if let Some(token) = &self.takes_over {
            out.push(TAKING_OVER);
            token.put(out);
        }
        if self.remember {
            out.push(REMEMBERING);
        }
        self.mode.put(out);
        self.hold.put(out);
        self.term.put(out);
        self.line.put(out);
        self.patch.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (name, client) = (Codec::take(from)?, Codec::take(from)?);
        let takes_over = if from.peek() == Some(TAKING_OVER) {
            require(from.format() >= WITH_TAKEOVERS)?;
            let _flag = u8::take(from)?;
            Some(Codec::take(from)?)
        } else {
            None
        };
        let remember = take_flag(from, REMEMBERING)?;
        let (mode, hold, term) = (Codec::take(from)?, Codec::take(from)?, Codec::take(from)?);
        let (line, patch) = (Codec::take(from)?, Codec::take(from)?);
        Ok(Self { name, client, mode, hold, term, line, patch, takes_over, remember })
    }
}

/// Decodes a byte that is there only if a part of a value follows which [`WITH_HANDOVERS`] has
/// added. Returns whether it is there.
pub(super) fn take_flag(from: &mut Decoder<'_>, flag: u8) -> Result<bool, Malformed> {
    if from.peek() != Some(flag) {
        return Ok(false);
    }
    require(from.format() >= WITH_HANDOVERS)?;
    u8::take(from).map(|_| true)
}

/// The byte before the patch of an encoded annotation, which differs from the first byte of each
/// patch: a handover follows, and then the patch.
const WITH_HANDOVER: u8 = 2;

impl Codec for Annotate {
    fn put(&self, out: &mut Vec<u8>) {
        self.key.put(out);
        if let Some(handover) = &self.handover {
            out.push(WITH_HANDOVER);
            handover.put(out);
        }
        self.patch.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let key = Codec::take(from)?;
        let has_handover = take_flag(from, WITH_HANDOVER)?;
        let handover = if has_handover { Some(Codec::take(from)?) } else { None };
        Ok(Self { key, patch: Codec::take(from)?, handover })
    }
}

/// The byte before the lifetime of an encoded tenure, which differs from the first byte of each
/// lifetime: what is remembered of the name follows, and then the lifetime.
const AFTER_PREVIOUS: u8 = 2;

impl Codec for Tenure {
    fn put(&self, out: &mut Vec<u8>) {
        self.token.put(out);
        if let Some(previous) = &self.previous {
            out.push(AFTER_PREVIOUS);
            previous.put(out);
        }
        self.life.put(out);
        self.acquired_at.put(out);
        self.acquisition.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let token = Codec::take(from)?;
        let has_previous = take_flag(from, AFTER_PREVIOUS)?;
        let previous = if has_previous { Some(Codec::take(from)?) } else { None };
        let (life, acquired_at) = (Codec::take(from)?, Codec::take(from)?);
        let acquisition = from.take_since(WITH_ACQUISITIONS)?;
        Ok(Self { token, life, acquired_at, acquisition, previous })
    }
}

/// The byte before the lifetime of an encoded steal, which differs from the first byte of each
/// lifetime: the steal does not wait for the holder of a remembered name.
const AT_ONCE: u8 = 2;

impl Codec for Steal {
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.client.put(out);
        self.reason.put(out);
        if self.at_once {
            out.push(AT_ONCE);
        }
        self.term.put(out);
        self.patch.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (name, client, reason) = (Codec::take(from)?, Codec::take(from)?, Codec::take(from)?);
        let at_once = take_flag(from, AT_ONCE)?;
        let (term, patch) = (Codec::take(from)?, Codec::take(from)?);
        Ok(Self { name, client, reason, term, patch, at_once })
    }
}

impl Codec for Forget {
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.by.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        require(from.format() >= WITH_HANDOVERS)?;
        Ok(Self { name: Codec::take(from)?, by: Codec::take(from)? })
    }
}

/// The byte before the scope of an encoded reset, which differs from the byte of each scope: the
/// first and the last name of the part follow, and then the scope.
const PART_BY_NAMES: u8 = 2;
/// The same, if the numbers of leases and queue places follow that earlier parts have ended.
const REST_OF_PARTS: u8 = 3;

impl Codec for Reset {
    fn put(&self, out: &mut Vec<u8>) {
        match &self.part {
            ResetPart::Rest { holds: 0, waits: 0 } => {}
            ResetPart::Names(first, last) => {
                out.push(PART_BY_NAMES);
                first.put(out);
                last.put(out);
            }
            ResetPart::Rest { holds, waits } => {
                out.push(REST_OF_PARTS);
                holds.put(out);
                waits.put(out);
            }
        }
        self.whose.put(out);
        self.by.put(out);
        self.reason.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let tag = from.peek().filter(|tag| [PART_BY_NAMES, REST_OF_PARTS].contains(tag));
        let part = if let Some(tag) = tag {
            require(from.format() >= WITH_RESET_PARTS)?;
            let _tag = u8::take(from)?;
            match tag {
                PART_BY_NAMES => ResetPart::Names(Codec::take(from)?, Codec::take(from)?),
                _ => ResetPart::Rest { holds: Codec::take(from)?, waits: Codec::take(from)? },
            }
        } else {
            ResetPart::ALL
        };
        require(tag.is_none() || part != ResetPart::ALL)?;
        let (whose, by, reason) = (Codec::take(from)?, Codec::take(from)?, Codec::take(from)?);
        Ok(Self { part, whose, by, reason })
    }
}

/// Flag in the byte after the key of an encoded release: the acquisition number follows, which
/// tells which acquire of the lease the release ends.
const OF_ACQUISITION: u8 = 1;
/// Flag in the byte after the key of an encoded release: the id of the open file whose lease ends
/// follows.
const OF_OPEN_FILE: u8 = 2;
/// Flag in the byte after the key of an encoded release: the handover to set follows.
const HANDING_OVER: u8 = 4;
/// Flag in the byte after the key of an encoded release: the holder acknowledges that the lock was
/// taken from it.
const ACKNOWLEDGING_LOSS: u8 = 8;

impl Codec for Release {
    fn put(&self, out: &mut Vec<u8>) {
        self.key.put(out);
        let of_acquisition = if self.acquisition.is_some() { OF_ACQUISITION } else { 0 };
        let of_open_file = if self.open.is_some() { OF_OPEN_FILE } else { 0 };
        let handing_over = if self.handover.is_some() { HANDING_OVER } else { 0 };
        let acknowledging = if self.acknowledges { ACKNOWLEDGING_LOSS } else { 0 };
        out.push(of_acquisition | of_open_file | handing_over | acknowledging);
        if let Some(acquisition) = &self.acquisition {
            acquisition.put(out);
        }
        if let Some(open) = &self.open {
            open.put(out);
        }
        if let Some(handover) = &self.handover {
            handover.put(out);
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let key = LeaseKey::take(from)?;
        if from.format() < WITH_ACQUISITIONS {
            return Ok(Self::of(key));
        }
        let flags = u8::take(from)?;
        require(flags <= OF_ACQUISITION | OF_OPEN_FILE | HANDING_OVER | ACKNOWLEDGING_LOSS)?;
        require(flags < HANDING_OVER || from.format() >= WITH_HANDOVERS)?;
        require(flags < OF_OPEN_FILE || from.format() >= WITH_OPEN_RELEASES)?;
        let acquisition = if flags & OF_ACQUISITION == 0 { None } else { Some(Codec::take(from)?) };
        let open = if flags & OF_OPEN_FILE == 0 { None } else { Some(Codec::take(from)?) };
        let handover = if flags & HANDING_OVER == 0 { None } else { Some(Codec::take(from)?) };
        let acknowledges = flags & ACKNOWLEDGING_LOSS != 0;
        Ok(Self { key, acquisition, open, handover, acknowledges })
    }
}
