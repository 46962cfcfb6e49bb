//! The interface of a sync tool that the turns use.

use crate::syncing::toy_sync::ToySync;

/// A sync tool that runs on each machine.
pub(crate) trait SyncTool {
    /// Cuts a machine off: nothing is carried to it or from it.
    fn stop(&mut self, machine: usize);

    /// Ends what `stop` began.
    fn resume(&mut self, machine: usize);

    /// Says that a machine's folder has changed, to a tool that would look for changes too late.
    fn changed(&mut self, machine: usize);

    /// Has a machine receive slowly, so that a transfer can be hit in its middle. Returns whether
    /// the tool can.
    fn slow_down(&mut self, machine: usize) -> bool;

    /// Kills the tool of a machine while it receives the file `name`, and starts it again at full
    /// speed. Returns whether it was still receiving.
    fn kill_while_receiving(&mut self, machine: usize, name: &str) -> bool;
}

impl SyncTool for ToySync {
    fn stop(&mut self, machine: usize) {
        ToySync::stop(self, machine);
    }

    fn resume(&mut self, machine: usize) {
        ToySync::resume(self, machine);
    }

    fn changed(&mut self, _machine: usize) {}

    fn slow_down(&mut self, _machine: usize) -> bool {
        false
    }

    fn kill_while_receiving(&mut self, _machine: usize, _name: &str) -> bool {
        false
    }
}
