//! Machines that change their copies of the folder through the views of guards: a turn begins when
//! the files of the last one have arrived.

use crate::syncing::access::Access;
use crate::syncing::random::Random;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testing::{Guard, Scratch, Server, latchfs, pause};
use testing::{run_within, signal};

/// How long the files of a turn may take to arrive.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(300);
/// How long a machine waits at most before it gives up, or before its guard is killed.
const PATIENCE: Duration = Duration::from_millis(300);

/// A guard on each machine.
pub(crate) struct Guarded<'a> {
    _server: Server,
    machines: &'a [Scratch],
    /// Each guard, which is gone only while it is being replaced.
    guards: Vec<Option<Guard>>,
    random: Random,
}

/// Makes the first machine's folder a guarded one. The sync tool carries its record to the others.
pub(crate) fn init(machines: &[Scratch]) -> Server {
    let server = Server::of(&machines[0]);
    machines[0].init(&["--server", &server.url, "--client", "m0"]);
    server
}

/// Starts the guard of a machine.
fn start_guard(machine: usize, scratch: &Scratch) -> Guard {
    Guard::start(scratch, "view", &["--client", &format!("m{machine}"), "--ttl", "5s"])
}

impl<'a> Guarded<'a> {
    /// Starts a guard on each machine. All have the record of the folder already.
    pub(crate) fn start(server: Server, machines: &'a [Scratch], seed: u64) -> Self {
        let guards =
            machines.iter().enumerate().map(|(at, scratch)| Some(start_guard(at, scratch)));
        Self { _server: server, machines, guards: guards.collect(), random: Random::new(seed) }
    }

    fn guard(&self, machine: usize) -> &Guard {
        self.guards[machine].as_ref().expect("it runs")
    }

    /// Returns the view of a machine.
    pub(crate) fn view(&self, machine: usize) -> PathBuf {
        self.guard(machine).view.clone()
    }

    /// Begins to take the lock, and lets a random time pass. Returns the command that takes it.
    fn begin_to_take(&mut self, machine: usize) -> Child {
        let mut take = latchfs();
        take.args(["guard", "take"]).arg(&self.guard(machine).view);
        let child = take.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        pause(self.random.between(Duration::ZERO, PATIENCE));
        child
    }
}

/// Ends a command that takes the lock, as Ctrl-C does.
fn interrupt(mut take: Child) {
    signal(take.id().cast_signed(), libc::SIGINT);
    take.wait().expect("it ends");
}

/// Whether a command that takes the lock still waits.
fn is_waiting(take: &mut Child) -> bool {
    take.try_wait().expect("our child").is_none()
}

impl Access for Guarded<'_> {
    fn take(&mut self, machine: usize) -> PathBuf {
        let guard = self.guard(machine);
        let mut take: Command = latchfs();
        run_within(ARRIVAL_LIMIT, take.args(["guard", "take"]).arg(&guard.view)).ok();
        guard.view.clone()
    }

    fn give(&mut self, machine: usize) {
        self.guard(machine).request("give", &[]).ok();
    }

    fn give_up_while_arriving(&mut self, machine: usize) -> bool {
        let mut take = self.begin_to_take(machine);
        let was_arriving = is_waiting(&mut take);
        interrupt(take);
        self.give(machine);
        was_arriving
    }

    fn kill_while_arriving(&mut self, machine: usize) -> bool {
        let mut take = self.begin_to_take(machine);
        let was_arriving = is_waiting(&mut take);
        let guard = self.guards[machine].take().expect("it runs");
        guard.kill();
        interrupt(take);
        self.guards[machine] = Some(start_guard(machine, &self.machines[machine]));
        was_arriving
    }
}

impl Drop for Guarded<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for guard in self.guards.iter().flatten() {
                let status = std::fs::read_to_string(guard.path(".latchfs/status"));
                eprintln!("{}: {status:?}", guard.view.display());
            }
        }
    }
}
