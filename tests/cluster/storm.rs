//! All kinds of faults in random order, by a seed: nodes are killed, stopped, isolated, lose
//! incoming packets, are made to transfer the leadership, and are replaced by new ones, while
//! clients take short leases through all of them.
//!
//! Each client relies on its own clock, as a real one does: it believes that it holds a lease from
//! the answer on until it requests the release or until its own deadline, which counts from before
//! the request. At the end the test checks all beliefs against each other and against all
//! observations.

use crate::chaos::seed;
use crate::load::{Dice, now};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use testing::HttpConnection;
use testing::net::Machine;
use testing::nodes::{Cluster, talk};

/// The number of concurrent clients.
const CLIENTS: usize = 12;
/// The number of locks for which all clients compete.
const LOCKS: u64 = 8;
/// The ttl of a lease, in microseconds.
pub(crate) const TTL: u64 = 2_000_000;
/// The safety margin that a client deducts, for a slow clock and the latency of the answer.
pub(crate) const MARGIN: u64 = TTL / 1_000 + 50_000;
/// The number of answers of a short run; `LATCHFS_ANSWERS=50000 cargo test --test cluster storm`
/// makes a long run.
const ANSWERS: u64 = 12_500;
/// The maximum duration of a short run, however many answers there were.
const PATIENCE: Duration = Duration::from_secs(25);
/// The maximum duration of a fault, in milliseconds.
const FAULT_MS: u64 = 3_000;

/// A client's belief that it holds a lock.
#[derive(Debug, Clone)]
pub(crate) struct Belief {
    pub(crate) lock: u64,
    pub(crate) client: usize,
    pub(crate) token: u64,
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// The time at which the client got the answer that its release succeeded.
    pub(crate) given_back: Option<u64>,
}

/// A client's observation of the state of a lock, and the times before and after it.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) lock: u64,
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// The fencing token of the lease by which a client held the lock; `None` if the lock was free.
    pub(crate) token: Option<u64>,
}

/// The record of one client: its beliefs that it holds locks, and its observations of locks.
#[derive(Default)]
pub(crate) struct Diary {
    pub(crate) number: usize,
    pub(crate) beliefs: Vec<Belief>,
    pub(crate) observations: Vec<Observation>,
    /// For each lock that the client believes to hold now, the index of that belief in `beliefs`.
    pub(crate) current: BTreeMap<u64, usize>,
    /// Violations of the guarantees that this client itself has observed, as sentences.
    faults: Vec<String>,
}

impl Diary {
    /// Returns the client's belief that it holds `lock`, or `None` if the client does not believe
    /// so, or no longer because its deadline has passed.
    pub(crate) fn holds(&mut self, lock: u64) -> Option<Belief> {
        let belief = self.current.get(&lock).map(|at| self.beliefs[*at].clone())?;
        if now() < belief.until {
            return Some(belief);
        }
        self.current.remove(&lock);
        None
    }

    pub(crate) fn fault(&mut self, what: &str) {
        self.faults.push(format!("client {}: {what}", self.number));
    }

    /// Sends one request of the client; returns `None` if its outcome is unknown.
    fn step(&mut self, to: &mut HttpConnection, dice: &mut Dice) -> Option<()> {
        let lock = dice.next() % LOCKS;
        let path = format!("/locks/storm{lock}?client=c{}", self.number);
        let held = self.holds(lock);
        match (held, dice.next() % 8) {
            (_, 0 | 1) => self.read_lock(to, lock),
            (Some(belief), 2..=4) => self.give_back(to, &belief, &path),
            (held, _) => self.take(to, lock, held.as_ref(), &path),
        }
    }

    fn read_lock(&mut self, to: &mut HttpConnection, lock: u64) -> Option<()> {
        let asked = now();
        let (code, body) = to.request("GET", &format!("/locks/storm{lock}"))?;
        match code {
            200 => {
                let held = body["phase"] == "held";
                let token = body["token"].as_u64().filter(|_| held);
                self.observations.push(Observation { lock, asked, answered: now(), token });
            }
            503 => {}
            _ => self.fault(&format!("a look at {lock} came to {code}: {body}")),
        }
        (code == 200).then_some(())
    }

    fn take(
        &mut self,
        to: &mut HttpConnection,
        lock: u64,
        held: Option<&Belief>,
        path: &str,
    ) -> Option<()> {
        let asked = now();
        let (code, body) = to.request("POST", &format!("{path}&ttl=2s&grace=0s&reentrant=1"))?;
        let answered = now();
        let until = asked + TTL - MARGIN;
        match (code, body["token"].as_u64(), held) {
            (200, Some(token), Some(belief)) if token == belief.token => {
                let at = self.current[&lock];
                self.beliefs[at].until = until.max(belief.until);
            }
            (200, Some(token), held) => {
                if let Some(belief) = held.filter(|belief| answered < belief.until) {
                    self.fault(&format!("{belief:?} was lost, and is {token} now"));
                }
                let client = self.number;
                self.current.insert(lock, self.beliefs.len());
                let (from, given_back) = (answered, None);
                self.beliefs.push(Belief { lock, client, token, from, until, given_back });
            }
            (409, _, Some(belief)) if answered < belief.until => {
                self.fault(&format!("{belief:?} was lost: {body}"));
            }
            (409, ..) => {}
            (503, ..) => return None,
            _ => self.fault(&format!("taking {lock} came to {code}: {body}")),
        }
        Some(())
    }

    fn give_back(&mut self, to: &mut HttpConnection, belief: &Belief, path: &str) -> Option<()> {
        let asked = now();
        let at = self.current.remove(&belief.lock).expect("it believes so");
        // A client stops relying on a lease when it sends the release request, whatever the answer
        // to that request will be.
        self.beliefs[at].until = asked.min(belief.until);
        let (code, body) = to.request("DELETE", &format!("{path}&token={}", belief.token))?;
        let answered = now();
        match code {
            200 => self.beliefs[at].given_back = Some(answered),
            503 => return None,
            _ if answered < belief.until => {
                self.fault(&format!("{belief:?} was lost: {code} {body}"));
            }
            _ => {}
        }
        Some(())
    }
}

/// The threads of a run, one for each client.
pub(crate) struct Crowd {
    stop: Arc<AtomicBool>,
    answers: Receiver<()>,
    pub(crate) count: u64,
    threads: Vec<JoinHandle<Diary>>,
}

/// A client's connection to the test: the client reports each answer, and learns when to stop.
pub(crate) struct Ear {
    stop: Arc<AtomicBool>,
    answered: Sender<()>,
}

impl Ear {
    pub(crate) fn report_answer(&self) {
        // The error is ignored: the send fails only if the test has stopped reading.
        let _ = self.answered.send(());
    }

    pub(crate) fn has_enough(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Crowd {
    /// Starts `clients` threads, each of which runs `client` until the run is stopped.
    pub(crate) fn begin(
        clients: usize,
        seed: u64,
        client: impl Fn(Diary, Dice, &Ear) -> Diary + Send + Clone + 'static,
    ) -> Self {
        let (stop, (tell, answers)) = (Arc::new(AtomicBool::new(false)), channel());
        let thread = |number: usize| {
            let ear = Ear { stop: Arc::clone(&stop), answered: tell.clone() };
            let client = client.clone();
            thread::spawn(move || {
                let dice = Dice(seed.wrapping_add(number as u64 + 1));
                client(Diary { number, ..Diary::default() }, dice, &ear)
            })
        };
        let threads = (0..clients).map(thread).collect();
        Self { stop, answers, count: 0, threads }
    }

    /// Starts client threads that send requests to the nodes at `urls`.
    fn of_nodes(machine: &Machine, urls: &[String], seed: u64) -> Self {
        let (machine, urls) = (machine.clone(), urls.to_vec());
        Self::begin(CLIENTS, seed, move |diary, dice, ear| {
            machine.enter();
            keep(diary, &urls, dice, ear)
        })
    }

    /// Lets the clients work for `millis` milliseconds.
    pub(crate) fn pass(&mut self, millis: u64) {
        let until = now() + millis * 1_000;
        while let Some(left) = until.checked_sub(now()).filter(|left| *left > 0) {
            if self.answers.recv_timeout(Duration::from_micros(left)).is_ok() {
                self.count += 1;
            }
        }
    }

    pub(crate) fn end(self) -> Vec<Diary> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().expect("it is well")).collect()
    }
}

fn keep(mut diary: Diary, urls: &[String], mut dice: Dice, ear: &Ear) -> Diary {
    let mut connection = None;
    while !ear.has_enough() {
        let mut to = match connection.take() {
            Some(talk) => talk,
            None => talk(urls, dice.next() as usize % urls.len()),
        };
        if diary.step(&mut to, &mut dice).is_some() {
            ear.report_answer();
            connection = Some(to);
        }
    }
    diary
}

/// Returns all contradictions among the beliefs and observations of the clients.
fn check(diaries: &[Diary]) -> Vec<String> {
    let mut faults: Vec<_> = diaries.iter().flat_map(|diary| diary.faults.clone()).collect();
    let mut beliefs: Vec<_> = diaries.iter().flat_map(|diary| &diary.beliefs).collect();
    beliefs.sort_by_key(|belief| belief.from);
    let (mut last, mut tokens) = (BTreeMap::<u64, &Belief>::new(), BTreeMap::new());
    for belief in beliefs.iter().copied() {
        // One client may get the same token in two answers, because a renewal keeps the token. Two
        // clients must never get the same token.
        let of = (belief.lock, belief.client);
        if *tokens.entry(belief.token).or_insert(of) != of {
            faults.push(format!("a token was given twice: {belief:?}"));
        }
        let before = last.entry(belief.lock).or_insert(belief);
        if before.client != belief.client && belief.from < before.until {
            faults.push(format!("two at once: {before:?} and {belief:?}"));
        }
        if before.token > belief.token {
            faults.push(format!("tokens fall: {before:?} and then {belief:?}"));
        }
        if belief.until >= before.until {
            *before = belief;
        }
    }
    for observation in diaries.iter().flat_map(|diary| &diary.observations) {
        let of_lock = || beliefs.iter().filter(|belief| belief.lock == observation.lock);
        let all_the_time =
            of_lock().find(|b| b.from <= observation.asked && observation.answered <= b.until);
        if let Some(belief) = all_the_time.filter(|belief| Some(belief.token) != observation.token)
        {
            faults.push(format!("{observation:?} does not show {belief:?}"));
        }
        let over = |b: &&&Belief| {
            Some(b.token) == observation.token
                && b.given_back.is_some_and(|at| at < observation.asked)
        };
        if let Some(belief) = of_lock().find(over) {
            faults.push(format!("{observation:?} shows what was over: {belief:?}"));
        }
    }
    faults
}

/// Injects a random fault into the cluster, and ends it after a while.
pub(crate) fn strike(cluster: &mut Cluster, crowd: &mut Crowd, dice: &mut Dice) {
    let count = cluster.nodes.len();
    let any = dice.next() as usize % count;
    let lasts = 200 + dice.next() % (FAULT_MS - 200);
    // Faults of the leader reveal most, so it is chosen at least half of the time.
    let which = if dice.next().is_multiple_of(2) { cluster.leader() } else { any };
    match dice.next() % 8 {
        0 | 1 => {
            cluster.nodes[which].daemon.kill();
            crowd.pass(lasts / 2);
            cluster.nodes[which].daemon.restart();
        }
        2 => {
            for node in &mut cluster.nodes {
                node.daemon.kill();
            }
            for node in &mut cluster.nodes {
                node.daemon.restart();
            }
        }
        3 => {
            cluster.nodes[which].daemon.signal(libc::SIGSTOP);
            crowd.pass(lasts);
            cluster.nodes[which].daemon.signal(libc::SIGCONT);
        }
        4 => {
            // Isolates a minority of the nodes: one of three, or two of five.
            let cut: Vec<_> = (0..count / 2).map(|n| (which + n) % count).collect();
            for at in &cut {
                cluster.nodes[*at].machine.isolate(true);
            }
            crowd.pass(lasts);
            for at in &cut {
                cluster.nodes[*at].machine.isolate(false);
            }
        }
        5 => {
            cluster.nodes[which].machine.deaf(true);
            crowd.pass(lasts);
            cluster.nodes[which].machine.deaf(false);
        }
        6 => {
            // The cluster may refuse to transfer the leadership if no other voter is ready to lead.
            let _ = cluster.request(any, &["transfer"]);
        }
        _ => cluster.replace(which),
    }
    crowd.pass(500 + dice.next() % 500);
}

fn storm(count: usize) {
    let seed = seed();
    let (mut cluster, mut dice) = (Cluster::of(count), Dice(seed));
    let mut crowd = Crowd::of_nodes(&cluster.clients, &cluster.urls(), seed);
    let wanted = std::env::var("LATCHFS_ANSWERS");
    let wanted = wanted.map_or(ANSWERS, |wanted| wanted.parse().expect("a number of answers"));
    let end = now() + PATIENCE.as_micros() as u64 * wanted.div_ceil(ANSWERS);
    let mut strikes = 0;
    while crowd.count < wanted && now() < end {
        strike(&mut cluster, &mut crowd, &mut dice);
        strikes += 1;
    }
    cluster.voters(count);
    let answers = crowd.count;
    let diaries = crowd.end();
    cluster.agree();
    // A run with too few answers proves nothing.
    let answers_min = wanted / 4;
    judge(&format!("{count} nodes, {strikes} strikes"), &diaries, answers, answers_min);
}

/// Fails the test if any guarantee was violated, or if there were too few answers to reveal a
/// violation.
pub(crate) fn judge(what: &str, diaries: &[Diary], answers: u64, answers_min: u64) {
    let faults = check(diaries);
    let grants: usize = diaries.iter().map(|diary| diary.beliefs.len()).sum();
    println!("{what}: {answers} answers, {grants} grants");
    assert!(faults.is_empty(), "{} faults: {:#?}", faults.len(), &faults[..faults.len().min(9)]);
    assert!(answers >= answers_min, "only {answers} answers");
}

#[test]
fn three_nodes_in_a_storm() {
    storm(3);
}

#[test]
fn five_nodes_in_a_storm() {
    storm(5);
}

/// `check`, which compares the records of all clients, detects each kind of contradiction.
#[test]
fn the_checker_detects_contradictions() {
    let belief = |client, token, from, until| Belief {
        lock: 1,
        client,
        token,
        from,
        until,
        given_back: None,
    };
    let faults = |beliefs: Vec<Belief>, observations: Vec<Observation>| {
        check(&[Diary { beliefs, observations, ..Diary::default() }])
    };
    let observation = |asked, answered, token| Observation { lock: 1, asked, answered, token };
    let one = || belief(1, 5, 10, 50);
    assert!(faults(vec![one(), belief(2, 6, 50, 90)], vec![]).is_empty());
    assert!(faults(vec![one(), belief(2, 6, 49, 90)], vec![])[0].contains("two at once"));
    assert!(faults(vec![one(), belief(2, 4, 60, 90)], vec![])[0].contains("tokens fall"));
    assert!(faults(vec![one(), belief(2, 5, 60, 90)], vec![])[0].contains("given twice"));
    assert!(faults(vec![one()], vec![observation(5, 20, None)]).is_empty());
    assert!(faults(vec![one()], vec![observation(20, 30, None)])[0].contains("does not show"));
    assert!(faults(vec![one()], vec![observation(20, 30, Some(4))])[0].contains("does not show"));
    let over = Belief { given_back: Some(52), ..one() };
    assert!(faults(vec![over], vec![observation(60, 70, Some(5))])[0].contains("what was over"));
}
