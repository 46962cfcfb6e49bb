//! The invitations of a server, as a pure value: the time and all randomness are arguments.
//!
//! A slot has at most one invitation. A wrong confirmation ends it, so that an attacker has one
//! guess for each code that a person asks for. Nobody learns before a confirmation whether a slot
//! has an invitation: an exchange with an empty slot uses a secret that nobody knows.

use super::join_code::{
    Exchange, JoinCode, JoinRole, JoinSecret, SLOTS_MAX, SharedKey, Transcript, is_slot,
};
use crate::time::{Span, Time};
use rand_core::CryptoRngCore;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of exchanges of one slot that are not confirmed. One more ends the oldest.
const ATTEMPTS_MAX: usize = 8;

/// How long an invitation lasts.
pub(crate) const INVITATION_SPAN: Span = Span::from_secs(600);

/// How long after its first message an exchange must be confirmed.
const ATTEMPT_SPAN: Span = Span::from_secs(30);

/// What a machine becomes that uses an invitation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum InvitationKind {
    /// A client of the server.
    #[default]
    Device,
    /// A node of the server's cluster, with the key of its CA.
    Node,
}

impl InvitationKind {
    /// Returns the name of the kind, which the confirmations cover.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Node => "node",
        }
    }
}

/// The invitations of a server.
#[derive(Default)]
pub(crate) struct Invitations {
    slots: [InvitationSlot; SLOTS_MAX],
}

#[derive(Default)]
struct InvitationSlot {
    open: Option<Invitation>,
    /// The invitation that ended last, and how.
    ended: Option<(u64, InvitationEnd)>,
    attempts: VecDeque<JoinAttempt>,
}

struct Invitation {
    id: u64,
    kind: InvitationKind,
    secret: JoinSecret,
    /// The name that the device gets, if the invitation is for one device.
    name: Option<String>,
    until: Time,
    stage: InvitationStage,
}

/// How far an invitation is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InvitationStage {
    /// Nobody has confirmed the code.
    Open,
    /// The machine with this name has confirmed the code of a node, and waits until a person allows
    /// that.
    Asks(String),
    /// A machine has confirmed the code, and is being registered.
    Joins,
}

/// An exchange that is not confirmed.
struct JoinAttempt {
    id: u64,
    until: Time,
    key: SharedKey,
    hello: JoinHello,
    message: Vec<u8>,
}

/// The first message of a device.
#[derive(Debug, Clone)]
pub(crate) struct JoinHello {
    pub(crate) slot: u8,
    /// The name by which the device wants to be known.
    pub(crate) name: String,
    /// Its certificate request (PEM).
    pub(crate) request: String,
    pub(crate) message: Vec<u8>,
}

/// The confirmation of a device, and what the server knows of the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinConfirmation<'a> {
    pub(crate) slot: u8,
    pub(crate) attempt: u64,
    pub(crate) confirmation: &'a [u8],
    /// The certificate of the server's CA (PEM).
    pub(crate) ca: &'a str,
    /// The value that the TLS connection exports.
    pub(crate) exporter: &'a [u8],
}

/// A machine that has proved that it knows the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfirmedDevice {
    /// The id of the invitation.
    pub(crate) invitation: u64,
    pub(crate) kind: InvitationKind,
    pub(crate) name: String,
    /// Its certificate request (PEM).
    pub(crate) request: String,
    /// The proof of the server for the device.
    pub(crate) confirmation: Vec<u8>,
}

/// How an invitation has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InvitationEnd {
    /// The device with this name has joined.
    Joined(String),
    /// A machine has confirmed another code.
    WrongCode,
    /// Nobody has used the invitation in time.
    Expired,
    /// The invitation was revoked.
    Revoked,
}

/// An invitation that nobody has used yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenInvitation {
    pub(crate) slot: u8,
    pub(crate) kind: InvitationKind,
    pub(crate) name: Option<String>,
    pub(crate) left: Span,
}

/// Why a machine may not join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinRefusal {
    /// The message is none of the exchange, or there is no such slot.
    Malformed,
    /// The code is wrong, used up, revoked or expired.
    Code,
}

impl Invitations {
    /// Opens an invitation, and returns its id and its code. `None`: all slots are taken.
    pub(crate) fn invite(
        &mut self,
        now: Time,
        kind: InvitationKind,
        name: Option<String>,
        random: &mut impl CryptoRngCore,
    ) -> Option<(u64, JoinCode)> {
        self.expire(now);
        let (slot, place) = (1..).zip(&mut self.slots).find(|(_, slot)| slot.open.is_none())?;
        let (id, secret) = (random.next_u64(), JoinSecret::random(random));
        place.attempts.clear();
        let code = JoinCode { slot, secret: secret.clone() };
        let (until, stage) = (now + INVITATION_SPAN, InvitationStage::Open);
        place.open = Some(Invitation { id, kind, secret, name, until, stage });
        Some((id, code))
    }

    /// Answers the first message of a device. Returns the id of the exchange, and the message of
    /// the server.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        hello: JoinHello,
        random: &mut impl CryptoRngCore,
    ) -> Result<(u64, Vec<u8>), JoinRefusal> {
        self.expire(now);
        let slot = self.slot(hello.slot).ok_or(JoinRefusal::Malformed)?;
        let unknown = JoinSecret::random(random);
        let secret = slot.open.as_ref().map_or(&unknown, |open| &open.secret);
        let (exchange, message) = Exchange::begin(JoinRole::Server, secret, random);
        let key = exchange.end(&hello.message).ok_or(JoinRefusal::Malformed)?;
        if slot.attempts.len() == ATTEMPTS_MAX {
            slot.attempts.pop_front();
        }
        let (id, until) = (random.next_u64(), now + ATTEMPT_SPAN);
        slot.attempts.push_back(JoinAttempt { id, until, key, hello, message: message.clone() });
        Ok((id, message))
    }

    /// Checks the confirmation of a machine. If it is right, nobody else can use the invitation,
    /// and [`Self::finish`] ends it.
    pub(crate) fn confirm(
        &mut self,
        now: Time,
        given: &JoinConfirmation<'_>,
    ) -> Result<ConfirmedDevice, JoinRefusal> {
        self.expire(now);
        let slot = self.slot(given.slot).ok_or(JoinRefusal::Code)?;
        let place = slot.attempts.iter().position(|attempt| attempt.id == given.attempt);
        let attempt = place.and_then(|place| slot.attempts.remove(place));
        let attempt = attempt.ok_or(JoinRefusal::Code)?;
        let open = slot.open.as_mut().filter(|open| open.stage == InvitationStage::Open);
        let open = open.ok_or(JoinRefusal::Code)?;
        let kind = open.kind;
        let wanted = attempt.transcript(kind, &attempt.hello.name, given);
        if !attempt.key.accepts(JoinRole::Device, &wanted, given.confirmation) {
            slot.end(InvitationEnd::WrongCode);
            return Err(JoinRefusal::Code);
        }
        let name = open.name.clone().unwrap_or(attempt.hello.name.clone());
        open.stage = match kind {
            InvitationKind::Device => InvitationStage::Joins,
            InvitationKind::Node => InvitationStage::Asks(name.clone()),
        };
        let invitation = open.id;
        slot.attempts.clear();
        let agreed = attempt.transcript(kind, &name, given);
        let confirmation = attempt.key.confirmation(JoinRole::Server, &agreed);
        let request = attempt.hello.request;
        Ok(ConfirmedDevice { invitation, kind, name, request, confirmation })
    }

    /// Ends the invitation that a machine has confirmed, if the machine was registered. Otherwise
    /// its code can be used again.
    pub(crate) fn finish(&mut self, slot: u8, device: &ConfirmedDevice, is_registered: bool) {
        let Some(slot) = self.slot(slot) else { return };
        match &mut slot.open {
            Some(open) if open.id != device.invitation => {}
            None => {}
            Some(_) if is_registered => slot.end(InvitationEnd::Joined(device.name.clone())),
            Some(open) => open.stage = InvitationStage::Open,
        }
    }

    /// Allows the machine that has confirmed the code of a node to become one, or revokes the
    /// invitation. Returns whether it waits for that.
    pub(crate) fn allow(&mut self, now: Time, slot: u8, id: u64, is_allowed: bool) -> bool {
        self.expire(now);
        let Some(slot) = self.slot(slot) else { return false };
        let asking = slot.open.as_mut().filter(|open| open.id == id);
        let Some(open) = asking.filter(|open| matches!(open.stage, InvitationStage::Asks(_)))
        else {
            return false;
        };
        open.stage = InvitationStage::Joins;
        if !is_allowed {
            slot.end(InvitationEnd::Revoked);
        }
        true
    }

    /// Revokes the invitation in a slot. Returns whether there was one.
    pub(crate) fn revoke(&mut self, now: Time, slot: u8) -> bool {
        self.expire(now);
        let is_open = |open: &Invitation| !open.is_joining();
        let slot = self.slot(slot).filter(|slot| slot.open.as_ref().is_some_and(is_open));
        slot.map(|slot| slot.end(InvitationEnd::Revoked)).is_some()
    }

    /// Returns all invitations that nobody has used yet.
    pub(crate) fn open(&mut self, now: Time) -> Vec<OpenInvitation> {
        self.expire(now);
        let open = (1..).zip(&self.slots).filter_map(|(slot, place)| {
            let Invitation { kind, name, until, .. } = place.open.as_ref()?;
            let (kind, name, left) = (*kind, name.clone(), until.since(now));
            Some(OpenInvitation { slot, kind, name, left })
        });
        open.collect()
    }

    /// Returns how an invitation has ended, or for how long it may still be used and how far that
    /// has come. An invitation that is not known any more counts as expired.
    pub(crate) fn state(
        &mut self,
        now: Time,
        slot: u8,
        id: u64,
    ) -> Result<(Span, InvitationStage), InvitationEnd> {
        self.expire(now);
        let slot = self.slot(slot).ok_or(InvitationEnd::Expired)?;
        match (&slot.open, &slot.ended) {
            (Some(open), _) if open.id == id => Ok((open.until.since(now), open.stage.clone())),
            (_, Some((ended, end))) if *ended == id => Err(end.clone()),
            _ => Err(InvitationEnd::Expired),
        }
    }

    fn slot(&mut self, number: u8) -> Option<&mut InvitationSlot> {
        is_slot(number).then(|| &mut self.slots[usize::from(number) - 1])
    }

    fn expire(&mut self, now: Time) {
        for slot in &mut self.slots {
            let is_over = |open: &Invitation| open.until <= now && !open.is_joining();
            if slot.open.as_ref().is_some_and(is_over) {
                slot.end(InvitationEnd::Expired);
            }
            slot.attempts.retain(|attempt| attempt.until > now);
        }
    }
}

impl Invitation {
    /// Whether a machine is being registered, which nobody stops any more.
    fn is_joining(&self) -> bool {
        self.stage == InvitationStage::Joins
    }
}

impl InvitationSlot {
    /// Ends the invitation, and all exchanges with its secret.
    fn end(&mut self, end: InvitationEnd) {
        self.attempts.clear();
        self.ended = self.open.take().map(|open| (open.id, end));
    }
}

impl JoinAttempt {
    fn transcript<'a>(
        &'a self,
        kind: InvitationKind,
        name: &'a str,
        given: &JoinConfirmation<'a>,
    ) -> Transcript<'a> {
        Transcript {
            kind: kind.as_str(),
            slot: given.slot,
            name,
            ca: given.ca,
            request: &self.hello.request,
            messages: [&self.hello.message, &self.message],
            exporter: given.exporter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::OsRng;

    const NOW: Time = Time::ZERO;
    const EXPORTER: &[u8] = &[7; 32];

    /// A device that has sent its first message, and has the answer.
    struct Joining {
        kind: InvitationKind,
        slot: u8,
        attempt: u64,
        key: SharedKey,
        hello: JoinHello,
        answer: Vec<u8>,
    }

    fn begun(server: &mut Invitations, now: Time, code: &JoinCode) -> Joining {
        let (exchange, message) = Exchange::begin(JoinRole::Device, &code.secret, &mut OsRng);
        let (slot, name) = (code.slot, "laptop".to_owned());
        let hello = JoinHello { slot, name, request: "a request".to_owned(), message };
        let begun = server.begin(now, hello.clone(), &mut OsRng);
        let (attempt, answer) = begun.expect("a first message is always answered");
        let key = exchange.end(&answer).expect("a message");
        Joining { kind: InvitationKind::Device, slot, attempt, key, hello, answer }
    }

    impl Joining {
        fn transcript<'a>(&'a self, name: &'a str, exporter: &'a [u8]) -> Transcript<'a> {
            let (slot, request) = (self.slot, &*self.hello.request);
            let messages = [&*self.hello.message, &*self.answer];
            let kind = self.kind.as_str();
            Transcript { kind, slot, name, ca: "the CA", request, messages, exporter }
        }

        /// Confirms on a connection whose value at the server is `EXPORTER`, and at the device
        /// `exporter`.
        fn confirmed_on(
            &self,
            server: &mut Invitations,
            now: Time,
            exporter: &[u8],
        ) -> Result<ConfirmedDevice, JoinRefusal> {
            let transcript = self.transcript("laptop", exporter);
            let confirmation = &self.key.confirmation(JoinRole::Device, &transcript);
            let (slot, attempt) = (self.slot, self.attempt);
            let (ca, exporter) = ("the CA", EXPORTER);
            let given = JoinConfirmation { slot, attempt, confirmation, ca, exporter };
            let device = server.confirm(now, &given)?;
            let agreed = self.transcript(&device.name, EXPORTER);
            assert!(self.key.accepts(JoinRole::Server, &agreed, &device.confirmation));
            Ok(device)
        }

        /// Confirms and is registered, on a connection as it should be.
        fn confirm(&self, server: &mut Invitations, now: Time) -> Result<String, JoinRefusal> {
            let device = self.confirmed_on(server, now, EXPORTER)?;
            server.finish(self.slot, &device, true);
            Ok(device.name)
        }
    }

    fn invited(name: Option<&str>) -> (Invitations, u64, JoinCode) {
        let mut server = Invitations::default();
        let invited =
            server.invite(NOW, InvitationKind::Device, name.map(str::to_owned), &mut OsRng);
        let (id, code) = invited.expect("a slot is free");
        (server, id, code)
    }

    fn invite(server: &mut Invitations) -> Option<(u64, JoinCode)> {
        server.invite(NOW, InvitationKind::Device, None, &mut OsRng)
    }

    /// Returns a code of the same slot with another secret.
    fn guess(code: &JoinCode) -> JoinCode {
        JoinCode { slot: code.slot, secret: JoinSecret::random(&mut OsRng) }
    }

    #[test]
    fn device_joins_once_under_its_name_or_that_of_the_invitation() {
        for (wanted, name) in [(None, "laptop"), (Some("study"), "study")] {
            let (mut server, id, code) = invited(wanted);
            let (one, two) = (begun(&mut server, NOW, &code), begun(&mut server, NOW, &code));
            assert!(server.state(NOW, code.slot, id).is_ok());
            assert_eq!(one.confirm(&mut server, NOW), Ok(name.to_owned()));
            let joined = InvitationEnd::Joined(name.to_owned());
            assert_eq!(server.state(NOW, code.slot, id), Err(joined));
            // Two joins at once, a replay of the first one, and a used code.
            assert_eq!(two.confirm(&mut server, NOW), Err(JoinRefusal::Code));
            assert_eq!(one.confirm(&mut server, NOW), Err(JoinRefusal::Code));
            let late = begun(&mut server, NOW, &code);
            assert_eq!(late.confirm(&mut server, NOW), Err(JoinRefusal::Code));
        }
    }

    #[test]
    fn wrong_confirmation_ends_its_slot_alone() {
        let (mut server, id, code) = invited(None);
        let (other, second) = invite(&mut server).expect("a slot is free");
        let right = begun(&mut server, NOW, &code);
        let wrong = begun(&mut server, NOW, &guess(&code));
        assert_eq!(wrong.confirm(&mut server, NOW), Err(JoinRefusal::Code));
        assert_eq!(server.state(NOW, code.slot, id), Err(InvitationEnd::WrongCode));
        assert_eq!(right.confirm(&mut server, NOW), Err(JoinRefusal::Code), "too late");
        assert!(server.state(NOW, second.slot, other).is_ok());
        let other = begun(&mut server, NOW, &second);
        assert_eq!(other.confirm(&mut server, NOW), Ok("laptop".to_owned()));
    }

    /// A relay passes all messages on, but has two TLS connections.
    #[test]
    fn relay_in_the_middle_ends_the_slot() {
        let (mut server, id, code) = invited(None);
        let device = begun(&mut server, NOW, &code);
        let refused = device.confirmed_on(&mut server, NOW, &[8; 32]);
        assert_eq!(refused, Err(JoinRefusal::Code));
        assert_eq!(server.state(NOW, code.slot, id), Err(InvitationEnd::WrongCode));
    }

    #[test]
    fn stranger_has_one_guess_for_each_slot_and_learns_nothing_before_it() {
        let mut server = Invitations::default();
        let mut invited = Vec::new();
        for _ in 0..SLOTS_MAX / 2 {
            invited.push(invite(&mut server).expect("a slot is free"));
        }
        for slot in 1..=SLOTS_MAX as u8 {
            let secret = JoinSecret::random(&mut OsRng);
            // With and without an invitation the answer is one message, which differs each time.
            let code = JoinCode { slot, secret };
            let tries = [(); 2].map(|()| begun(&mut server, NOW, &code));
            assert_ne!(tries[0].answer, tries[1].answer);
            for joining in tries {
                assert_eq!(joining.confirm(&mut server, NOW), Err(JoinRefusal::Code));
            }
        }
        for (id, code) in invited {
            assert_eq!(server.state(NOW, code.slot, id), Err(InvitationEnd::WrongCode));
        }
    }

    #[test]
    fn invitation_and_exchange_expire() {
        let (mut server, id, code) = invited(None);
        let slow = begun(&mut server, NOW, &code);
        assert_eq!(slow.confirm(&mut server, NOW + ATTEMPT_SPAN), Err(JoinRefusal::Code));
        let end = NOW + INVITATION_SPAN;
        let before = Time::from_nanos(end.as_nanos() - 1);
        assert!(server.state(before, code.slot, id).is_ok(), "a slow exchange ends no invitation");
        let late = begun(&mut server, before, &code);
        assert_eq!(late.confirm(&mut server, end), Err(JoinRefusal::Code));
        assert_eq!(server.state(end, code.slot, id), Err(InvitationEnd::Expired));
        assert!(server.open(end).is_empty());
    }

    #[test]
    fn revoked_invitation_lets_nobody_in() {
        let (mut server, id, code) = invited(Some("study"));
        let open = server.open(NOW);
        assert_eq!((open.len(), open[0].slot, open[0].left), (1, 1, INVITATION_SPAN));
        let device = begun(&mut server, NOW, &code);
        assert!(server.revoke(NOW, code.slot) && !server.revoke(NOW, code.slot));
        assert!(!server.revoke(NOW, 0) && !server.revoke(NOW, 17));
        assert_eq!(device.confirm(&mut server, NOW), Err(JoinRefusal::Code));
        assert_eq!(server.state(NOW, code.slot, id), Err(InvitationEnd::Revoked));
    }

    #[test]
    fn device_that_can_not_be_registered_leaves_the_invitation() {
        let (mut server, id, code) = invited(None);
        let [first, other] = [(); 2].map(|()| begun(&mut server, NOW, &code));
        let device = first.confirmed_on(&mut server, NOW, EXPORTER).expect("the code is right");
        assert_eq!(server.state(NOW, code.slot, id).expect("open").1, InvitationStage::Joins);
        // Meanwhile nobody else uses the code, and nothing ends it.
        assert!(!server.revoke(NOW, code.slot));
        assert!(server.state(NOW + INVITATION_SPAN, code.slot, id).is_ok());
        assert_eq!(other.confirm(&mut server, NOW), Err(JoinRefusal::Code));
        let wrong = begun(&mut server, NOW, &guess(&code));
        assert_eq!(wrong.confirm(&mut server, NOW), Err(JoinRefusal::Code));
        server.finish(code.slot, &device, false);
        assert!(begun(&mut server, NOW, &code).confirm(&mut server, NOW).is_ok());
        // What becomes of the first machine does not matter to the next invitation of the slot.
        let (id, code) = invite(&mut server).expect("a slot is free");
        server.finish(code.slot, &device, true);
        assert_eq!(server.state(NOW, code.slot, id).expect("open").1, InvitationStage::Open);
    }

    #[test]
    fn code_of_one_kind_is_wrong_for_another_kind() {
        for (invited, joins) in [
            (InvitationKind::Device, InvitationKind::Node),
            (InvitationKind::Node, InvitationKind::Device),
        ] {
            let mut server = Invitations::default();
            let opened = server.invite(NOW, invited, None, &mut OsRng);
            let (id, code) = opened.expect("a slot is free");
            let machine = Joining { kind: joins, ..begun(&mut server, NOW, &code) };
            assert_eq!(machine.confirm(&mut server, NOW), Err(JoinRefusal::Code));
            assert_eq!(server.state(NOW, code.slot, id), Err(InvitationEnd::WrongCode));
        }
    }

    #[test]
    fn node_joins_once_a_person_has_allowed_it() {
        for is_allowed in [true, false] {
            let mut server = Invitations::default();
            let opened = server.invite(NOW, InvitationKind::Node, None, &mut OsRng);
            let (id, code) = opened.expect("a slot is free");
            assert!(!server.allow(NOW, code.slot, id, true), "nobody has asked");
            let machine = begun(&mut server, NOW, &code);
            let machine = Joining { kind: InvitationKind::Node, ..machine };
            let device = machine.confirmed_on(&mut server, NOW, EXPORTER).expect("it is right");
            let asks = InvitationStage::Asks("laptop".to_owned());
            assert_eq!(server.state(NOW, code.slot, id).expect("open").1, asks);
            assert!(!server.allow(NOW, code.slot, id + 1, true), "another invitation");
            assert!(server.allow(NOW, code.slot, id, is_allowed));
            assert!(!server.allow(NOW, code.slot, id, true), "it was decided");
            server.finish(code.slot, &device, is_allowed);
            let joined = InvitationEnd::Joined("laptop".to_owned());
            let end = if is_allowed { joined } else { InvitationEnd::Revoked };
            assert_eq!(server.state(NOW, code.slot, id), Err(end));
        }
    }

    #[test]
    fn slots_and_exchanges_are_limited() {
        let (mut server, _, code) = invited(None);
        for _ in 1..SLOTS_MAX {
            assert!(invite(&mut server).is_some());
        }
        assert!(invite(&mut server).is_none());
        let first = begun(&mut server, NOW, &code);
        let second = begun(&mut server, NOW, &code);
        for _ in 1..ATTEMPTS_MAX {
            begun(&mut server, NOW, &code);
        }
        let slot = server.slot(code.slot).expect("a slot");
        assert_eq!(slot.attempts.len(), ATTEMPTS_MAX);
        assert_eq!(first.confirm(&mut server, NOW), Err(JoinRefusal::Code), "the oldest");
        assert!(second.confirm(&mut server, NOW).is_ok(), "one more exchange ends no invitation");
    }

    #[test]
    fn malformed_message_is_refused_by_each_slot_alike() {
        let (mut server, id, code) = invited(None);
        for slot in [0, code.slot, 2, 17] {
            let message = vec![0x42; 33];
            let hello =
                JoinHello { slot, name: "laptop".to_owned(), request: String::new(), message };
            assert_eq!(server.begin(NOW, hello, &mut OsRng), Err(JoinRefusal::Malformed), "{slot}");
        }
        assert!(server.state(NOW, code.slot, id).is_ok());
    }
}
