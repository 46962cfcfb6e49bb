//! The budget of connections that have not proved yet that a node opened them. It is apart from the
//! places of nodes, and a new connection is never refused: beyond the budget, the oldest one ends.
//!
//! A handshake takes one or two round trips, so that of a node is over long before a flood has
//! filled the budget after it.

use crate::shares::Identity;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Maximum number of handshakes at a time, at some 20 KiB each.
const HANDSHAKES_MAX: usize = 256;
/// Maximum number of handshakes of one address.
const HANDSHAKES_OF_ONE_MAX: usize = HANDSHAKES_MAX / 2;

/// The connections whose handshake is not over, oldest first.
#[derive(Debug, Default)]
pub(super) struct Handshakes(Mutex<PendingHandshakes>);

#[derive(Debug, Default)]
struct PendingHandshakes {
    queue: VecDeque<PendingHandshake>,
    next: u64,
}

#[derive(Debug)]
struct PendingHandshake {
    number: u64,
    from: Identity,
    /// Dropped to end the connection.
    _lasts: oneshot::Sender<()>,
}

/// A handshake that counts against the budget until this is dropped.
pub(super) struct Handshake {
    all: Arc<Handshakes>,
    number: u64,
    lasts: oneshot::Receiver<()>,
}

impl Handshakes {
    /// Counts a new handshake, and ends the oldest one of its address, or of the address with the
    /// most, if there are too many.
    pub(super) fn begin(self: &Arc<Self>, from: &Identity) -> Handshake {
        let mut pending = self.0.lock();
        let (lasting, lasts) = oneshot::channel();
        let number = pending.next;
        pending.next += 1;
        pending.queue.push_back(PendingHandshake { number, from: from.clone(), _lasts: lasting });
        if pending.count(from) > HANDSHAKES_OF_ONE_MAX {
            pending.end_oldest(from);
        } else if pending.queue.len() > HANDSHAKES_MAX
            && let Some(most) = pending.most()
        {
            pending.end_oldest(&most);
        }
        Handshake { all: Arc::clone(self), number, lasts }
    }
}

impl PendingHandshakes {
    fn count(&self, from: &Identity) -> usize {
        self.queue.iter().filter(|pending| pending.from == *from).count()
    }

    /// Returns the address with the most handshakes; of several, the one with the oldest.
    fn most(&self) -> Option<Identity> {
        let mut counts: HashMap<&Identity, usize> = HashMap::new();
        for pending in &self.queue {
            *counts.entry(&pending.from).or_default() += 1;
        }
        // `max_by_key` returns the last of several.
        let oldest_last = self.queue.iter().rev();
        oldest_last.max_by_key(|pending| counts[&pending.from]).map(|pending| pending.from.clone())
    }

    fn end_oldest(&mut self, from: &Identity) {
        if let Some(place) = self.queue.iter().position(|pending| pending.from == *from) {
            self.queue.remove(place);
        }
    }
}

impl Handshake {
    /// Waits until this handshake has to make room for a newer one.
    pub(super) async fn crowded_out(&mut self) {
        // The sender never sends, so the result is always an error.
        let _ = (&mut self.lasts).await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut pending = self.all.0.lock();
        if let Ok(place) = pending.queue.binary_search_by_key(&self.number, |one| one.number) {
            pending.queue.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(number: u16) -> Identity {
        let [high, low] = number.to_be_bytes();
        Identity::of_address(Ipv4Addr::new(10, 0, high, low).into())
    }

    fn has_ended(handshake: &mut Handshake) -> bool {
        handshake.lasts.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn a_flood_of_one_address_ends_its_own_handshakes() {
        let all = Arc::new(Handshakes::default());
        let mut victim = all.begin(&address(2));
        let mut flood: Vec<_> = (0..1_000).map(|_| all.begin(&address(1))).collect();
        let lasting = flood.iter_mut().filter_map(|one| (!has_ended(one)).then_some(())).count();
        assert_eq!(lasting, HANDSHAKES_OF_ONE_MAX);
        assert!(!has_ended(&mut victim));
        // A node at the address of the flood.
        let mut node = all.begin(&address(1));
        let later: Vec<_> = (1..HANDSHAKES_OF_ONE_MAX).map(|_| all.begin(&address(1))).collect();
        assert!(!has_ended(&mut node), "many have come after it");
        drop((later, node, victim, flood));
        assert_eq!(all.0.lock().queue.len(), 0);
    }

    #[test]
    fn a_flood_of_many_addresses_ends_the_oldest_handshakes() {
        let all = Arc::new(Handshakes::default());
        let mut flood: Vec<_> = (0..1_000).map(|number| all.begin(&address(number))).collect();
        let lasting = flood.iter_mut().filter_map(|one| (!has_ended(one)).then_some(())).count();
        assert_eq!(lasting, HANDSHAKES_MAX);
        let mut node = all.begin(&address(5_000));
        assert!(!has_ended(&mut node), "the newest one lasts");
        let twice = all.begin(&address(5_001));
        drop((twice, node, flood));
        assert_eq!(all.0.lock().queue.len(), 0);
    }
}
