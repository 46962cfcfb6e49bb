//! Clients that send requests as fast as they are answered, and remember the answers.
//!
//! Checks at each answer: a newly granted lock has a higher token than all tokens that were granted
//! before its request was sent, and no client is granted a lock that another client holds and has
//! not released. Check at the end: every granted lock is held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use testing::HttpConnection;
use testing::net::Machine;
use testing::nodes::talk;

/// The number of locks that each client uses alone, and the number of locks for which all clients
/// compete.
const OWN: u64 = 12;
const SHARED: u64 = 3;

/// The time in microseconds after which a request without an answer has been executed, or never
/// will be.
const OVER_US: u64 = 4_000_000;

/// A small generator of random numbers (splitmix64): the same seed gives the same run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The state that all client threads share.
#[derive(Default)]
pub(crate) struct World {
    /// The highest fencing token in any answer that a client has got so far.
    highest: AtomicU64,
    tokens: Mutex<BTreeSet<u64>>,
    /// The holder of each lock for which clients compete: the client that was granted the lock and
    /// has not tried to release it since.
    holders: Mutex<BTreeMap<String, usize>>,
    pub(crate) answers: AtomicU64,
    /// The number of requests that got no answer, so that the client does not know whether they
    /// were executed.
    pub(crate) unknown: AtomicU64,
    /// The longest pause between two answers to a client, in microseconds.
    pub(crate) gap: AtomicU64,
    stop: AtomicBool,
}

/// The threads of a run, one for each client.
pub(crate) struct Load {
    pub(crate) world: Arc<World>,
    threads: Vec<JoinHandle<Client>>,
    urls: Vec<String>,
    machine: Machine,
}

/// A client thread, and the locks that it holds, with their tokens, according to the answers that
/// it has got.
struct Client {
    number: usize,
    held: BTreeMap<String, u64>,
    /// The locks for which the client's last request got no answer, so that each may be held or
    /// not; with the time of that request.
    open: BTreeMap<String, u64>,
    world: Arc<World>,
}

impl Load {
    /// Starts `clients` client threads on a machine; they spread their requests over `urls`.
    pub(crate) fn begin(machine: &Machine, urls: &[String], clients: usize, seed: u64) -> Self {
        let world = Arc::new(World::default());
        let thread = |number| {
            let (machine, urls, world) = (machine.clone(), urls.to_vec(), Arc::clone(&world));
            thread::spawn(move || {
                machine.enter();
                let (held, open) = (BTreeMap::new(), BTreeMap::new());
                let mut client = Client { number, held, open, world };
                client.request(&urls, Dice(seed.wrapping_add(number as u64)));
                client
            })
        };
        let threads = (0..clients).map(thread).collect();
        Self { world, threads, urls: urls.to_vec(), machine: machine.clone() }
    }

    /// Waits until the clients have got `answers` more answers.
    #[track_caller]
    pub(crate) fn await_answers(&self, answers: u64) {
        let wanted = self.world.answers.load(Ordering::Relaxed) + answers;
        testing::eventually_in_cluster("answers", || {
            let failed = self.threads.iter().any(JoinHandle::is_finished);
            assert!(!failed, "a client has ended");
            (self.world.answers.load(Ordering::Relaxed) >= wanted).then_some(())
        });
    }

    /// Returns the longest pause between two answers to any client since the last call.
    pub(crate) fn gap(&self) -> Duration {
        Duration::from_micros(self.world.gap.swap(0, Ordering::Relaxed))
    }

    /// Stops all clients, and compares the answers that they got with the state that the nodes
    /// show.
    #[track_caller]
    pub(crate) fn end(self) -> Arc<World> {
        self.world.stop.store(true, Ordering::Relaxed);
        let ended = self.threads.into_iter().map(|thread| thread.join().expect("it is well"));
        let clients: Vec<_> = ended.collect();
        let (urls, machine) = (self.urls, self.machine);
        let compare = thread::spawn(move || {
            machine.enter();
            for at in 0..urls.len() {
                let mut talk = talk(&urls[at..=at], 0);
                for client in &clients {
                    client.compare(&mut talk);
                }
            }
        });
        compare.join().expect("what was granted is held");
        self.world
    }
}

impl Client {
    /// Sends requests of this client until the run is stopped.
    fn request(&mut self, urls: &[String], mut dice: Dice) {
        let mut connection = None;
        let mut last = now();
        while !self.world.stop.load(Ordering::Relaxed) {
            let mut to = match connection.take() {
                Some(talk) => talk,
                None => talk(urls, dice.next() as usize % urls.len()),
            };
            let shared = dice.next().is_multiple_of(5);
            let name = if shared {
                format!("shared{}", dice.next() % SHARED)
            } else {
                format!("own{}-{}", self.number, dice.next() % OWN)
            };
            if let Some(since) = self.open.get(&name) {
                let is_over = now() - since > OVER_US;
                connection = (!is_over || self.find_out(&mut to, &name, shared)).then_some(to);
                continue;
            }
            match self.ask_once(&mut to, &name, shared, dice.next()) {
                Some(true) => {
                    let at = now();
                    self.world.gap.fetch_max(at - last, Ordering::Relaxed);
                    last = at;
                    self.world.answers.fetch_add(1, Ordering::Relaxed);
                    connection = Some(to);
                }
                known => {
                    self.open.insert(name, now());
                    self.world.unknown.fetch_add(1, Ordering::Relaxed);
                    // A node without a quorum refuses requests, so the client switches to another
                    // node half of the time.
                    connection = known.filter(|_| dice.next().is_multiple_of(2)).map(|_| to);
                }
            }
        }
    }

    /// Sends one request. Returns whether the node executed it (`false` after a 503), or `None` if
    /// the connection is gone.
    fn ask_once(
        &mut self,
        to: &mut HttpConnection,
        name: &str,
        shared: bool,
        dice: u64,
    ) -> Option<bool> {
        let holds = self.held.contains_key(name);
        let release = if shared { holds && dice.is_multiple_of(2) } else { holds };
        let path = format!("/locks/{name}?client=c{}", self.number);
        let below = self.world.highest.load(Ordering::SeqCst);
        if release && shared {
            self.world.holders.lock().expect("sound").remove(name);
        }
        let (code, body) = if release {
            to.request("DELETE", &path)?
        } else {
            to.request("POST", &format!("{path}&ttl=1h&reentrant=1"))?
        };
        match (release, code) {
            (true, 200) => drop(self.held.remove(name)),
            (false, 200) => self.granted(name, shared, below, body["token"].as_u64()),
            (false, 409) if shared && !holds => {}
            (_, 503) => return Some(false),
            other => panic!("{name}, client {}: {other:?} {body}", self.number),
        }
        Some(true)
    }

    /// Finds out whether a request without an answer had an effect. Returns whether the connection
    /// still works.
    fn find_out(&mut self, to: &mut HttpConnection, name: &str, shared: bool) -> bool {
        let below = 0;
        let Some((200, body)) = to.request("GET", &format!("/locks/{name}")) else { return false };
        self.open.remove(name);
        let ours = body["holder"] == format!("c{}", self.number);
        match body["token"].as_u64().filter(|_| ours) {
            Some(token) if self.held.get(name) == Some(&token) => {
                self.granted(name, shared, below, Some(token));
            }
            Some(token) => {
                self.held.remove(name);
                self.granted(name, shared, below, Some(token));
            }
            None => drop(self.held.remove(name)),
        }
        true
    }

    fn granted(&mut self, name: &str, shared: bool, below: u64, token: Option<u64>) {
        let token = token.expect("a grant has a token");
        let before = self.held.insert(name.to_owned(), token);
        assert!(before.is_none_or(|before| before == token), "{name}: a tenure was lost");
        if before.is_none() {
            assert!(token > below, "{name}: token {token} after {below}");
            let is_new = self.world.tokens.lock().expect("sound").insert(token);
            assert!(is_new, "{name}: token {token} came twice");
            self.world.highest.fetch_max(token, Ordering::SeqCst);
        }
        if shared {
            let mut holders = self.world.holders.lock().expect("sound");
            let other = holders.insert(name.to_owned(), self.number);
            let own = other.is_none_or(|other| other == self.number);
            assert!(own, "{name} was granted to {} while {other:?} holds it", self.number);
        }
    }

    /// Compares the state that a node shows with the answers that this client got. If the last
    /// request for a lock has no answer, the lock may be held or not.
    fn compare(&self, talk: &mut HttpConnection) {
        let names = (0..OWN).map(|n| format!("own{}-{n}", self.number));
        for name in names.chain((0..SHARED).map(|n| format!("shared{n}"))) {
            let (code, body) = talk.request("GET", &format!("/locks/{name}")).expect("it answers");
            assert_eq!(code, 200, "{body}");
            let ours = body["holder"] == format!("c{}", self.number);
            let token = body["token"].as_u64().filter(|_| ours);
            if !self.open.contains_key(&name) {
                let known = self.held.get(&name).copied();
                assert_eq!(token, known, "{name}, of client {}: {body}", self.number);
            }
        }
    }
}

/// Returns the time of the steady clock in microseconds.
pub(crate) fn now() -> u64 {
    latchfs::time::steady_now().as_nanos() / 1_000
}
