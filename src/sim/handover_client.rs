//! A simulated client that sets handovers: it acquires names that are remembered, sets handovers in
//! some of its tenures, sends late copies of them, and ends its tenures in every way.

use super::client::{PATIENCE, RequestResult, SimClient};
use super::client_leases::less;
use super::handover_history::{EndKind, EndRequest, SentHandover, ToldPrevious};
use super::node_messages::NodeRequest;
use super::sim_types::{SimTypeConfig, now, sleep};
use super::world::World;
use crate::engine::{
    Acquire, Annotate, Answer, Grace, Handover, LeaseKey, LeaseTerms, Lifetime, LockName, Op,
    Outcome, Ownership, Patch, Release, Steal, StealReason, Tenure, Ttl,
};
use crate::time::Time;
use openraft::type_config::TypeConfigExt;
use std::sync::Arc;

/// The number of names for which the clients compete.
const NAMES: usize = 2;

/// A client that sets handovers.
pub(super) struct HandoverClient {
    client: SimClient,
    /// The number of handovers that the client has sent, by which their texts differ.
    sent: u64,
}

/// A tenure of such a client.
struct OwnTenure {
    name: usize,
    key: LeaseKey,
    token: u64,
    is_of_session: bool,
    counter: u64,
}

fn named(name: usize) -> LockName {
    LockName::parse(&format!("folder{name}")).expect("a valid name")
}

impl HandoverClient {
    /// Returns the client with this number, which no other client of the simulation has.
    pub(super) fn new(world: &Arc<World>, number: u64) -> Self {
        Self { client: SimClient::new(world, number), sent: 0 }
    }

    /// Performs random tenures until `until`.
    pub(super) async fn live(mut self, until: Time) {
        while now() < until {
            self.client.keep_up().await;
            self.client.drop_the_late();
            let dice = self.client.world.dice.clone();
            let name = dice.index(NAMES);
            let tenure =
                if dice.percent(6) { self.steal(name).await } else { self.acquire(name).await };
            if let Some(tenure) = tenure {
                self.spend(tenure).await;
            }
            sleep(dice.millis(1, 150)).await;
        }
    }

    async fn acquire(&mut self, name: usize) -> Option<OwnTenure> {
        let session = self.client.session.as_ref().map(|session| session.id);
        let session = session.filter(|_| self.client.world.dice.percent(50));
        let term = session.map_or_else(|| self.own_term(), LeaseTerms::Session);
        let ask = Acquire {
            hold: Ownership::Exclusive(None),
            remember: true,
            ..Acquire::new(named(name), self.client.id(), term)
        };
        let came = self.client.ask(Op::Acquire(ask)).await;
        match &came.answer {
            Some(Ok(Outcome::Granted(tenure))) => {
                Some(self.begun(name, &came, tenure, session.is_some()))
            }
            _ => None,
        }
    }

    async fn steal(&mut self, name: usize) -> Option<OwnTenure> {
        let steal = Steal {
            name: named(name),
            client: self.client.id(),
            reason: StealReason::parse("to see what comes of it").expect("a reason"),
            term: self.own_term(),
            patch: Patch::default(),
            at_once: false,
        };
        let came = self.client.ask(Op::Steal(steal)).await;
        let by = came.answer.as_ref().and_then(|answer| answer.as_ref().ok()?.tenure());
        let by = by.map(|tenure| tenure.token.as_u64());
        self.note_end(EndKind::Steal { name, by }, &came);
        match &came.answer {
            Some(Ok(Outcome::Stolen(tenure))) if tenure.previous.is_some() => {
                Some(self.begun(name, &came, tenure, false))
            }
            _ => None,
        }
    }

    fn own_term(&self) -> LeaseTerms {
        let ttl = Ttl::new(self.client.world.dice.millis(1_000, 2_000)).expect("long enough");
        LeaseTerms::Own(ttl, Grace::NONE)
    }

    /// Records what a grant told of the last handover.
    fn begun(
        &self,
        name: usize,
        came: &RequestResult,
        tenure: &Tenure,
        is_of_session: bool,
    ) -> OwnTenure {
        let token = tenure.token.as_u64();
        let last = tenure.previous.as_ref().and_then(|previous| previous.last.clone());
        let (asked, answered) = (came.from, came.to);
        let (session, lasts_until) = match tenure.life {
            Lifetime::Own { ttl, .. } => (None, asked + less(ttl.span())),
            Lifetime::Session(id) => (Some(id), self.client.session_secured()),
        };
        self.client.world.record.handovers(|history| {
            let told = ToldPrevious { name, token, asked, answered, session, lasts_until, last };
            history.told.push(told);
        });
        let client = self.client.id();
        let key = LeaseKey { name: named(name), client, token: Some(tenure.token) };
        OwnTenure { name, key, token, is_of_session, counter: 0 }
    }

    /// Sets some handovers or none, and ends the tenure or leaves it to expire.
    async fn spend(&mut self, mut tenure: OwnTenure) {
        let dice = self.client.world.dice.clone();
        let count = if dice.percent(45) { 0 } else { 1 + dice.below(3) };
        let mut before = None;
        for _ in 0..count {
            sleep(dice.millis(1, 200)).await;
            let handover = self.next(&mut tenure);
            let (key, patch) = (tenure.key.clone(), Patch::default());
            let op = Op::Annotate(Annotate { key, patch, handover: Some(handover.clone()) });
            let came = self.client.ask(op.clone()).await;
            self.note_set(&handover, &came);
            if let Some(late) = before.replace(op).filter(|_| dice.percent(40)) {
                self.send_late(late);
            }
        }
        sleep(dice.millis(1, 300)).await;
        match dice.below(10) {
            0..6 => self.release(tenure).await,
            6 | 7 if tenure.is_of_session => {
                let Some(session) = self.client.session.as_ref().map(|own| own.id) else { return };
                if let Some(ended) = self.client.end_session().await {
                    self.note_end(EndKind::EndSession(session), &ended);
                }
            }
            // Left to expire, or to be stolen.
            _ => {}
        }
    }

    async fn release(&mut self, mut tenure: OwnTenure) {
        let hands_over = self.client.world.dice.percent(40);
        let handover = hands_over.then(|| self.next(&mut tenure));
        let release = Release { handover: handover.clone(), ..Release::of(tenure.key.clone()) };
        let came = self.client.ask(Op::Release(release)).await;
        if let Some(handover) = &handover {
            self.note_set(handover, &came);
        }
        self.note_end(EndKind::Release(tenure.token), &came);
    }

    /// Returns the next handover of a tenure, and records it as sent.
    fn next(&mut self, tenure: &mut OwnTenure) -> Handover {
        tenure.counter += 1 + self.client.world.dice.below(2);
        self.sent += 1;
        let who = Arc::clone(&self.client.who);
        let text: Arc<str> = format!("{who} sets {}", self.sent).into();
        let OwnTenure { name, token, counter, .. } = *tenure;
        let sent = SentHandover { name, who, token, counter, sent: now(), told: None };
        self.client.world.record.handovers(|history| {
            history.sent.insert(Arc::clone(&text), sent);
        });
        Handover { text, counter }
    }

    fn note_set(&self, handover: &Handover, came: &RequestResult) {
        if is_done(came.answer.as_ref()) {
            self.client.world.record.handovers(|history| {
                let sent = history.sent.get_mut(&handover.text).expect("it was sent");
                sent.told = Some(came.to);
            });
        }
    }

    /// Records a request that ends tenures.
    fn note_end(&self, kind: EndKind, came: &RequestResult) {
        let done = is_done(came.answer.as_ref()).then_some(came.to);
        let request = EndRequest { kind, sent: came.from, done };
        self.client.world.record.handovers(|history| history.ends.push(request));
    }

    /// Sends an earlier request once more, as a request of its own that arrives late.
    fn send_late(&mut self, op: Op) {
        self.client.requests += 1;
        let key = format!("late-{}", self.client.requests).into();
        let request = NodeRequest::Submit(self.client.command(&key, op, None).into());
        let (world, end, node) =
            (Arc::clone(&self.client.world), self.client.end, self.client.node);
        let later = world.dice.millis(0, 300);
        SimTypeConfig::spawn(async move {
            sleep(later).await;
            world.ask(end, node, request, PATIENCE).await;
        });
    }
}

fn is_done(answer: Option<&Answer>) -> bool {
    let done = |outcome: &Outcome| {
        use Outcome::{Annotated, Released, SessionEnded, Stolen};
        matches!(outcome, Annotated | Released | SessionEnded | Stolen(_))
    };
    answer.is_some_and(|answer| answer.as_ref().is_ok_and(done))
}
