//! The virtual network: messages may be lost, late, doubled and overtaken, and some ends may not
//! reach others, in one direction or both.

use super::seeded_random::SeededRandom;
use super::sim_types::sleep;
use crate::time::Span;
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// An end: a node by its number, a client by a higher one.
pub(super) type End = u64;

/// How often the network loses or doubles a message, and how long it may delay one.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetworkFaults {
    /// Lost, of a hundred.
    pub(super) loss: u64,
    /// Doubled, of a hundred.
    pub(super) doubled: u64,
    /// On its way for up to so many milliseconds.
    pub(super) late_ms: u64,
}

impl NetworkFaults {
    /// As on a good day.
    pub(super) const FAIR: Self = Self { loss: 2, doubled: 2, late_ms: 3 };

    /// When all is mended: a message may be late or doubled, and none is lost.
    pub(super) const MENDED: Self = Self { loss: 0, ..Self::FAIR };
}

/// The network.
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

    /// From now on these do not reach those.
    pub(super) fn cut(&self, pairs: impl IntoIterator<Item = (End, End)>) {
        self.state.lock().cut.extend(pairs);
    }

    /// Removes all partitions, and sets how messages fare from now on.
    pub(super) fn mend(&self, weather: NetworkFaults) {
        let mut state = self.state.lock();
        state.weather = weather;
        state.cut.clear();
    }

    /// Returns when a message has arrived: `false` if it never does.
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

    /// If this message is doubled: how much later the second one comes.
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
    fn a_network_that_is_mended_loses_nothing() {
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
