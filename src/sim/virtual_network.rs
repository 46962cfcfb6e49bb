//! The virtual network: it may lose, delay, duplicate and reorder messages, and may partition nodes
//! and clients, in one direction or both.

use super::seeded_random::SeededRandom;
use super::sim_types::sleep;
use crate::time::Span;
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// The address of a node (its id) or of a client (a higher number).
pub(super) type End = u64;

/// How often the network loses or duplicates a message, and how long it may delay one.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetworkFaults {
    /// The percentage of messages that are lost.
    pub(super) loss: u64,
    /// The percentage of messages that arrive twice.
    pub(super) doubled: u64,
    /// The longest delay of a message, in milliseconds.
    pub(super) late_ms: u64,
}

impl NetworkFaults {
    /// The faults of a network in normal operation.
    pub(super) const FAIR: Self = Self { loss: 2, doubled: 2, late_ms: 3 };

    /// The faults after the final repair: a message may be late or duplicated, and none is lost.
    pub(super) const MENDED: Self = Self { loss: 0, ..Self::FAIR };
}

/// The virtual network between nodes and clients.
pub(super) struct VirtualNetwork {
    state: Mutex<NetworkState>,
    dice: SeededRandom,
}

struct NetworkState {
    weather: NetworkFaults,
    /// Pairs of sender and receiver between which no message arrives.
    cut: BTreeSet<(End, End)>,
}

impl VirtualNetwork {
    pub(super) fn new(dice: &SeededRandom) -> Self {
        let state = NetworkState { weather: NetworkFaults::FAIR, cut: BTreeSet::new() };
        Self { state: Mutex::new(state), dice: dice.clone() }
    }

    pub(super) fn set_weather(&self, weather: NetworkFaults) {
        self.state.lock().weather = weather;
    }

    /// Drops all messages from now on between these pairs of sender and receiver.
    pub(super) fn cut(&self, pairs: impl IntoIterator<Item = (End, End)>) {
        self.state.lock().cut.extend(pairs);
    }

    /// Removes all partitions, and replaces the probabilities of lost, late and duplicated
    /// messages.
    pub(super) fn mend(&self, weather: NetworkFaults) {
        let mut state = self.state.lock();
        state.weather = weather;
        state.cut.clear();
    }

    /// Waits until a message has arrived. Returns `false` if the message is lost.
    pub(super) async fn pass(&self, from: End, to: End) -> bool {
        let delay = {
            let state = self.state.lock();
            if state.cut.contains(&(from, to)) || self.dice.percent(state.weather.loss) {
                None
            } else {
                Some(self.dice.millis(0, state.weather.late_ms))
            }
        };
        let Some(delay) = delay else { return false };
        sleep(delay).await;
        true
    }

    /// Returns the delay of a duplicate, if this message is duplicated.
    pub(super) fn double(&self) -> Option<Span> {
        let NetworkFaults { doubled, late_ms, .. } = self.state.lock().weather;
        self.dice.percent(doubled).then(|| self.dice.millis(0, 20 * late_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::type_config::AsyncRuntime;
    use openraft_rt_sim::SimRuntime;

    #[test]
    fn a_mended_network_loses_no_messages() {
        let lost = |weather| {
            SimRuntime::with_seed(1).block_on(async move {
                let net = VirtualNetwork::new(&SeededRandom::new(1));
                net.cut([(1, 2)]);
                net.mend(weather);
                let mut lost = 0;
                for _ in 0..1_000 {
                    lost += u64::from(!net.pass(1, 2).await);
                }
                lost
            })
        };
        assert_eq!(lost(NetworkFaults::MENDED), 0);
        assert!(lost(NetworkFaults::FAIR) > 0);
    }
}
