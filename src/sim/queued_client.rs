//! A simulated client in a queue: it polls the lock to see whether it has been served, and leaves
//! the queue after a while.

use super::client::{RequestResult, SimClient, name};
use super::client_history::{Lock, ObservedQueuePlace, StepKind};
use super::client_leases::{ClientLease, less, sharing};
use super::sim_types::{now, sleep};
use crate::engine::{Acquire, Holder, Leave, LeaveReason, Lifetime, Op, Ticket};
use crate::time::{Span, Time};
use std::sync::Arc;

/// The interval at which a waiter polls the lock.
const LOOK_AGAIN: Span = Span::from_millis(80);

impl SimClient {
    /// Waits until the lock is granted, or for a random time, after which the client leaves the
    /// queue. Records the queue place in the history.
    pub(super) async fn wait(
        &mut self,
        lock: Lock,
        joined: &RequestResult,
        ticket: Ticket,
        ask: &Acquire,
    ) {
        let (who, told, number) = (Arc::clone(&self.who), joined.to, ticket.as_u64());
        let mut place = ObservedQueuePlace { lock, who, told, ticket: number, served: None };
        let enough = now() + self.world.dice.millis(300, 5_000);
        while now() < enough {
            sleep(LOOK_AGAIN).await;
            self.keep_up().await;
            let from = joined.from;
            let Some((sent, view, at)) = self.look(lock).await else { continue };
            let made = |holder: &&Holder| {
                let details = &holder.lease.details;
                holder.lease.holder == ask.client
                    && details.holder_id() == ask.patch.holder_id.as_ref()
            };
            if let Some(holder) = view.holders.iter().find(made) {
                place.served = Some(holder.lease.token.as_u64());
                self.served(ask, lock, from, (sent, at), holder);
                break;
            }
            if !view.waiters.iter().any(|waiter| waiter.ticket == ticket) {
                break;
            }
        }
        if place.served.is_none() {
            self.left_open(lock, joined.from);
            let why = LeaveReason::Asked;
            self.ask(Op::Leave(Leave { name: name(lock), ticket, why })).await;
        }
        self.world.record.history(|history| history.place(place));
    }

    /// Records the grant of a lock to a waiter, which learned of it by a read: `sent` is the time
    /// of the read on the client's clock, and `at` an upper bound of the engine time.
    fn served(
        &mut self,
        ask: &Acquire,
        lock: Lock,
        from: Time,
        (sent, at): (Time, Time),
        holder: &Holder,
    ) {
        let (token, life) = (holder.lease.token.as_u64(), &holder.lease.life);
        let left = holder.ends.expires_at.since(at);
        let until = match life {
            Lifetime::Own { .. } => Some(sent + less(left)),
            Lifetime::Session(_) => None,
        };
        let elsewhere = self.is_of_another_session(life);
        self.world.record.history(|history| {
            if !history.granted.contains(&token) {
                let what = StepKind::Granted(token, sharing(ask.mode));
                history.act(lock, from, Some(now()), what);
            }
            let secured = match until {
                _ if elsewhere => Time::ZERO,
                Some(_) => self.clock.virtual_at(sent) + less(left),
                None => self.session_secured(),
            };
            history.secure(token, secured);
            if until.is_none() {
                history.hangs_on_session(token);
            }
        });
        if !elsewhere && !self.held.iter().any(|held| held.token == token) {
            let (hold, mode, acquisition) = (ask.hold, ask.mode, holder.lease.acquisition);
            let (asked, from, runs_out) = (from, now(), false);
            let one =
                ClientLease { lock, token, hold, mode, acquisition, asked, from, until, runs_out };
            self.held.push(one);
        }
    }
}
