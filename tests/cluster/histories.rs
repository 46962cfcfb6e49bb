//! Records histories of three real nodes whose leaders are killed and stopped, and checks them with
//! the simulator's checker: the history is linearizable, no lease ends early, no two clients hold
//! one lock, no refused request is granted later, and a repeated request gets its first answer.
//!
//! `contrib/histories` records a longer history, and `LATCHFS_SEED` repeats the random choices of a
//! run.

use crate::chaos::seed;
use crate::load::Dice;
use latchfs::time::{Span, Time, boot_now};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use testing::HttpConnection;
use testing::client_history::{Belief, History, Lock, Sharing, StepKind, Who};
use testing::net::Machine;
use testing::nodes::{Cluster, talk};
use testing::promises::check;

/// The number of operations of a run, unless `LATCHFS_OPERATIONS` says otherwise.
const OPERATIONS: u64 = 10_000;
/// The number of concurrent clients, and the number of locks for which they compete.
const CLIENTS: u64 = 40;
const LOCKS: usize = 30;
/// Every third lock has seats, and so many of them.
const SEATS: usize = 2;
/// The shortest ttl, so that abandoned locks are soon free again.
const TTL: Span = Span::from_secs(1);
/// How long a client waits in the queue of a lock, in seconds.
const QUEUE_SECONDS: u64 = 1;
/// How long a client waits for an answer before it tries another node, and how often it tries.
const ANSWER_LIMIT: Duration = Duration::from_millis(1_500);
const TRIES: usize = 8;
/// A run injects each kind of fault once per this number of operations, but at least twice.
const OPERATIONS_PER_STRIKE: u64 = 5_000;
/// The kinds of faults that a run injects: SIGKILL or SIGSTOP of the leader or of a random node.
const KILLED_LEADER: &str = "kill -9 of the leader";
const STOPPED_LEADER: &str = "SIGSTOP of the leader";
const KILLED_ANY: &str = "kill -9 of any node";
const STOPPED_ANY: &str = "SIGSTOP of any node";

/// A lease that a client has been granted. The client uses a new client name for each lock that it
/// acquires.
#[derive(Clone)]
struct Held {
    lock: Lock,
    who: Who,
    token: u64,
    from: Time,
    until: Time,
    /// Whether the client never renews or releases the lease, so that the lease expires.
    abandoned: bool,
}

/// The outcome of an operation, and the interval in which the operation took place.
struct Came {
    from: Time,
    to: Time,
    /// The status code and the body of the answer; `None` if the outcome of the operation is
    /// unknown.
    answer: Option<(u16, Value)>,
}

/// The number of operations of a run, by the name of the kind of operation.
type Counts = BTreeMap<&'static str, u64>;

struct Client {
    number: u64,
    urls: Vec<String>,
    dice: Dice,
    history: Arc<Mutex<History>>,
    done: Sender<()>,
    at: usize,
    connection: Option<HttpConnection>,
    requests: u64,
    held: Vec<Held>,
    counts: Counts,
}

impl Client {
    fn live(mut self, stop: &AtomicBool) -> Counts {
        while !stop.load(Ordering::Relaxed) {
            self.drop_the_late();
            let (lock, choice) = (self.below(LOCKS as u64) as usize, self.below(100));
            let holds = self.held.iter().position(|held| !held.abandoned);
            match holds {
                Some(at) if choice < 25 => self.renew(at),
                Some(at) if choice < 70 => self.release(at),
                _ if choice < 50 => self.acquire(lock, false),
                _ if choice < 60 => self.acquire(lock, true),
                _ => self.read_lock(lock),
            }
        }
        while let Some(held) = self.held.pop() {
            self.believed(&held, boot_now());
        }
        self.counts
    }

    fn below(&mut self, end: u64) -> u64 {
        self.dice.next() % end
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn note(&self, act: impl FnOnce(&mut History)) {
        act(&mut self.history.lock().expect("no client panics"));
    }

    /// Sends a request until it is answered, `TRIES` times at most. The retries carry the same
    /// idempotency key, so they have no second effect.
    fn request(&mut self, method: &str, path: &str, key: &str) -> Came {
        let (from, mut answer) = (boot_now(), None);
        let mut tries = 0;
        while answer.is_none() && tries < TRIES {
            tries += 1;
            answer = self.ask_once(method, path, key).filter(|(code, _)| *code != 503);
            if answer.is_none() {
                self.turn();
            }
        }
        let known = answer.is_some();
        if tries > 1 && known {
            self.count("retries");
            if answer.as_ref().is_some_and(is_replay) {
                self.count("replays to retries");
            }
        }
        self.note(|history| if known { history.answered += 1 } else { history.unknown += 1 });
        if !known {
            self.count("unknown outcomes");
        }
        // The error is ignored: the send fails only if the test has stopped reading.
        let _ = self.done.send(());
        Came { from, to: boot_now(), answer }
    }

    fn ask_once(&mut self, method: &str, path: &str, key: &str) -> Option<(u16, Value)> {
        let mut talk = match self.connection.take() {
            Some(talk) => talk,
            None => talk(&self.urls, self.at),
        };
        let wait = if path.contains("wait=") { QUEUE_SECONDS } else { 0 };
        talk.wait_at_most(ANSWER_LIMIT + Duration::from_secs(wait))?;
        let answer = talk.ask_with(method, path, &format!("Idempotency-Key: {key}\r\n"))?;
        self.connection = Some(talk);
        Some(answer)
    }

    /// Chooses a random node for the client's next request; it may be the node of the last request.
    fn turn(&mut self) {
        self.connection = None;
        self.at = self.below(self.urls.len() as u64) as usize;
    }

    fn key(&mut self) -> String {
        self.requests += 1;
        format!("{}-{}", self.number, self.requests)
    }

    /// In one of ten calls, repeats an answered request at a random node: the answer must be the
    /// same.
    fn repeat(&mut self, method: &str, path: &str, key: &str, first: &Value, who: &Who) {
        if self.below(10) != 0 {
            return;
        }
        self.turn();
        if let Some(answer @ (200, _)) = self.request(method, path, key).answer {
            assert!(is_replay(&answer), "{method} {path} was done twice: {answer:?}");
            self.count("repeats");
            let (_, repeated) = answer;
            let key: Arc<str> = key.into();
            self.note(|history| {
                history.replied(who, &key, &gist(first));
                history.replied(who, &key, &gist(&repeated));
            });
        }
    }

    fn acquire(&mut self, lock: Lock, waits: bool) {
        let key = self.key();
        let who: Who = format!("c{key}").into();
        let wait = if waits { format!("&wait={QUEUE_SECONDS}s") } else { String::new() };
        let mode = if has_seats(lock) { format!("&max={SEATS}") } else { String::new() };
        let path = format!("/locks/lin{lock}?client={who}&ttl=1s&grace=0s{mode}{wait}");
        let came = self.request("POST", &path, &key);
        match &came.answer {
            Some((200, body)) => {
                let token = body["token"].as_u64().expect("a token");
                self.count(if waits { "grants to waiters" } else { "grants" });
                if let Some(seat) = body["seat"].as_u64() {
                    assert!(seat < SEATS as u64, "{body}");
                    self.count("seats");
                }
                self.note(|history| {
                    history.tenure(lock, token, &who);
                    let what = StepKind::Granted(token, sharing(lock));
                    history.act(lock, came.from, Some(came.to), what);
                });
                self.secured(token, came.from);
                let abandoned = self.below(100) < 4;
                if abandoned {
                    self.count("abandoned");
                }
                let (from, until) = (came.to, came.from + TTL);
                self.held.push(Held { lock, who: Arc::clone(&who), token, from, until, abandoned });
                self.repeat("POST", &path, &key, body, &who);
                if waits {
                    // The answer to an acquire request that has waited in the queue does not tell
                    // the client how much of the ttl is left. The answer to a renewal does, so the
                    // client renews the lease at once.
                    self.renew(self.held.len() - 1);
                }
            }
            // A request that was answered with 409 is refused for good: neither this try nor an
            // earlier try with the same idempotency key may be granted later.
            Some((409, body)) => {
                assert_ne!(body["holder"], *who, "refused, and held by the client itself: {body}");
                self.count(if waits { "waits in vain" } else { "conflicts" });
                self.in_the_way(lock, &came, body);
            }
            Some((410, body)) if body["reason"] == "left_queue" => self.count("waits in vain"),
            Some((code, body)) => {
                // Status 410 means that the lock was granted, but that the lease had ended before
                // the answer was sent.
                let over = *code == 410;
                assert!(over || is_passing(*code), "acquire came to {code}: {body}");
                self.count(if over { "grants that were over" } else { "passing refusals" });
                self.note(|history| history.left_open(lock, &who, came.from));
            }
            None => self.note(|history| history.left_open(lock, &who, came.from)),
        }
    }

    fn in_the_way(&self, lock: Lock, came: &Came, body: &Value) {
        if let (Some(token), Some(holder)) = (body["token"].as_u64(), body["holder"].as_str()) {
            let holder: Who = holder.into();
            self.note(|history| {
                history.tenure(lock, token, &holder);
                history.act(lock, came.from, Some(came.to), StepKind::InTheWay(token));
            });
        }
    }

    /// Records in the history that a lease lasts at least one ttl from the time `from` at which its
    /// client sent the acquire or renew request.
    fn secured(&self, token: u64, from: Time) {
        self.note(|history| history.secure(token, from + TTL));
    }

    fn renew(&mut self, at: usize) {
        let Held { lock, who, token, .. } = self.held[at].clone();
        let key = self.key();
        let path = format!("/locks/lin{lock}?client={who}&token={token}");
        let came = self.request("PATCH", &path, &key);
        match &came.answer {
            Some((200, body)) => {
                assert_eq!(body["token"].as_u64(), Some(token), "{body}");
                self.count("renewals");
                self.note(|h| h.act(lock, came.from, Some(came.to), StepKind::Kept(token)));
                self.secured(token, came.from);
                if self.held[at].until < came.to {
                    self.believed(&self.held[at], came.to);
                    self.held[at].from = came.to;
                }
                self.held[at].until = self.held[at].until.max(came.from + TTL);
                self.repeat("PATCH", &path, &key, body, &who);
            }
            Some((code, body)) => self.gone(at, &came, *code, body),
            None => {}
        }
    }

    fn release(&mut self, at: usize) {
        let held = self.held.swap_remove(at);
        // A client stops relying on a lease when it sends the release request, whatever the answer
        // to that request will be.
        self.believed(&held, boot_now());
        let Held { lock, who, token, .. } = held.clone();
        let key = self.key();
        let path = format!("/locks/lin{lock}?client={who}&token={token}");
        let from = boot_now();
        let came = self.request("DELETE", &path, &key);
        match &came.answer {
            Some((200, body)) => {
                self.count("releases");
                self.note(|h| h.act(lock, came.from, Some(came.to), StepKind::Released(token)));
                self.repeat("DELETE", &path, &key, body, &who);
            }
            Some((code, body)) => {
                let refused = is_gone(*code);
                assert!(refused || is_passing(*code), "release came to {code}: {body}");
                if refused {
                    self.count("too late");
                    if came.to < held.until {
                        println!("release of token {token} on lock {lock}: {code} {body}");
                    }
                    self.note(|h| h.act(lock, came.from, Some(came.to), StepKind::NotKept(token)));
                } else {
                    self.note(|history| history.free(token, from));
                }
            }
            None => self.note(|history| history.free(token, from)),
        }
    }

    /// Handles the answer to a renewal request that the server has refused: if the answer says that
    /// the lease is over, records that in the history.
    fn gone(&mut self, at: usize, came: &Came, code: u16, body: &Value) {
        if !is_gone(code) {
            return assert!(is_passing(code), "renew came to {code}: {body}");
        }
        self.count("too late");
        let held = self.held.swap_remove(at);
        if came.to < held.until {
            println!("renewal of token {} on lock {}: {code} {body}", held.token, held.lock);
        }
        let what = StepKind::NotKept(held.token);
        self.note(|history| history.act(held.lock, came.from, Some(came.to), what));
        self.believed(&held, came.to);
    }

    fn read_lock(&mut self, lock: Lock) {
        let key = self.key();
        let came = self.request("GET", &format!("/locks/lin{lock}"), &key);
        let Some((code, body)) = &came.answer else { return };
        assert!(*code == 200, "a read came to {code}: {body}");
        self.count("reads");
        let of = |holder: &Value, client: &str| -> Option<(u64, Who)> {
            Some((holder["token"].as_u64()?, holder[client].as_str()?.into()))
        };
        let holders: Vec<(u64, Who)> = match body["holders"].as_array() {
            Some(holders) => holders.iter().filter_map(|holder| of(holder, "client")).collect(),
            None => of(body, "holder").into_iter().collect(),
        };
        self.note(|history| {
            for (token, holder) in &holders {
                history.tenure(lock, *token, holder);
            }
            let seen = StepKind::Seen(holders.iter().map(|(token, _)| *token).collect());
            history.act(lock, came.from, Some(came.to), seen);
        });
    }

    fn drop_the_late(&mut self) {
        let now = boot_now();
        let late: Vec<_> = self.held.extract_if(.., |held| held.until <= now).collect();
        for held in late {
            // Some clients notice too late that their lease is over.
            if self.below(4) == 0 {
                self.held.push(held);
                self.release(self.held.len() - 1);
            } else {
                self.believed(&held, now);
            }
        }
    }

    fn believed(&self, held: &Held, now: Time) {
        let Held { lock, ref who, token, from, until, .. } = *held;
        let (who, until) = (Arc::clone(who), until.min(now));
        let mode = sharing(lock);
        let asked = from;
        let belief = Belief { lock, token, who, mode, asked, from, until };
        self.note(|history| history.believed(belief));
    }
}

const fn has_seats(lock: Lock) -> bool {
    lock.is_multiple_of(3)
}

const fn sharing(lock: Lock) -> Sharing {
    if has_seats(lock) { Sharing::Shared } else { Sharing::Alone }
}

/// Returns the part of an answer that must be the same when the request is repeated.
fn gist(body: &Value) -> String {
    format!("token {}, released {}", body["token"], body["released"])
}

/// Whether the server has answered a repeated request with the first answer to that request. Only
/// such an answer also shows the current state of the lock, in `current`.
fn is_replay((_, body): &(u16, Value)) -> bool {
    body.get("current").is_some()
}

/// Whether a status code means that the lease is over or belongs to another client.
const fn is_gone(code: u16) -> bool {
    matches!(code, 403 | 409 | 410 | 412)
}

/// Whether a status code means that the request exceeded a limit, and had no effect.
const fn is_passing(code: u16) -> bool {
    code == 429
}

/// The threads of a run, one for each client.
struct Crowd {
    stop: Arc<AtomicBool>,
    done: Receiver<()>,
    operations: u64,
    threads: Vec<JoinHandle<Counts>>,
    history: Arc<Mutex<History>>,
}

impl Crowd {
    fn begin(machine: &Machine, urls: &[String], seed: u64) -> Self {
        let seats = (0..LOCKS).filter(|lock| has_seats(*lock)).map(|lock| (lock, SEATS));
        let history = Arc::new(Mutex::new(History::with_seats(seats)));
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, done) = channel();
        let thread = |number: u64| {
            let (machine, stop) = (machine.clone(), Arc::clone(&stop));
            let dice = Dice(seed.wrapping_add(number));
            let (urls, history, done) = (urls.to_vec(), Arc::clone(&history), tell.clone());
            let (at, connection, requests) = (number as usize % urls.len(), None, 0);
            let (held, counts) = (vec![], Counts::new());
            let client = Client {
                number,
                urls,
                dice,
                history,
                done,
                at,
                connection,
                requests,
                held,
                counts,
            };
            thread::spawn(move || {
                machine.enter();
                client.live(&stop)
            })
        };
        let threads = (1..=CLIENTS).map(thread).collect();
        Self { stop, done, operations: 0, threads, history }
    }

    /// Lets the clients work for `millis` milliseconds.
    fn pass(&mut self, millis: u64) {
        let until = boot_now() + Span::from_millis(millis);
        while boot_now() < until {
            let left = until.since(boot_now()).as_duration();
            if self.done.recv_timeout(left).is_ok() {
                self.operations += 1;
            }
        }
        let failed = self.threads.iter().any(JoinHandle::is_finished);
        assert!(!failed, "a client has ended");
    }

    fn end(self) -> (History, Counts) {
        self.stop.store(true, Ordering::Relaxed);
        let mut counts = Counts::new();
        for thread in self.threads {
            for (what, count) in thread.join().expect("the client is well") {
                *counts.entry(what).or_default() += count;
            }
        }
        let history = std::mem::take(&mut *self.history.lock().expect("no client panics"));
        (history, counts)
    }
}

/// Injects a fault: kills or stops a node for a while, by turns; four times out of five the leader.
/// Returns the kind of fault.
fn strike(
    cluster: &mut Cluster,
    crowd: &mut Crowd,
    (number, dice): (u64, &mut Dice),
) -> &'static str {
    let any = dice.next() as usize % cluster.nodes.len();
    let hits_leader = number % 5 != 4;
    let which = if hits_leader { cluster.leader() } else { any };
    let daemon = |cluster: &mut Cluster, signal| cluster.nodes[which].daemon.signal(signal);
    if number.is_multiple_of(2) {
        cluster.nodes[which].daemon.kill();
        crowd.pass(200 + dice.next() % 800);
        cluster.nodes[which].daemon.restart();
        if hits_leader { KILLED_LEADER } else { KILLED_ANY }
    } else {
        daemon(cluster, libc::SIGSTOP);
        // In about half of the cases, the node is stopped for longer than a client waits for an
        // answer.
        crowd.pass(300 + dice.next() % 2_500);
        daemon(cluster, libc::SIGCONT);
        if hits_leader { STOPPED_LEADER } else { STOPPED_ANY }
    }
}

#[test]
fn histories_of_three_nodes_are_linearizable() {
    let wanted = std::env::var("LATCHFS_OPERATIONS");
    let wanted = wanted.map_or(OPERATIONS, |text| text.parse().expect("a number"));
    let (seed, began) = (seed(), boot_now());
    let (mut cluster, mut dice) = (Cluster::of(3), Dice(seed));
    let mut crowd = Crowd::begin(&cluster.clients, &cluster.urls(), seed);
    let mut strikes = Counts::new();
    let each = (wanted / OPERATIONS_PER_STRIKE).max(2);
    let leaders_struck = |strikes: &Counts| {
        [KILLED_LEADER, STOPPED_LEADER].map(|kind| strikes.get(kind).copied().unwrap_or_default())
    };
    // Clients complete some operations between two faults, unless no node answers at all.
    for number in 0..20 + wanted / 100 {
        let kind = strike(&mut cluster, &mut crowd, (number, &mut dice));
        *strikes.entry(kind).or_default() += 1;
        if crowd.operations >= wanted && leaders_struck(&strikes).iter().all(|n| *n >= each) {
            break;
        }
        crowd.pass(500 + dice.next() % 1_500);
    }
    cluster.voters(3);
    crowd.pass(1_000);
    let operations = crowd.operations;
    let (history, counts) = crowd.end();
    cluster.agree();
    let took = boot_now().since(began).as_millis() / 1_000;
    let violations = check(&history);
    println!(
        "histories: {operations} operations in {took} s, strikes {strikes:?}, {counts:?}, {} \
         violations",
        violations.len()
    );
    let first: Vec<_> = violations.iter().take(5).map(ToString::to_string).collect();
    assert!(violations.is_empty(), "{} violations: {first:#?}", violations.len());
    assert!(operations >= wanted, "only {operations} operations");
    let struck = leaders_struck(&strikes);
    assert!(struck.iter().all(|count| *count >= each), "{each} of each are wanted: {strikes:?}");
    // A history with too few operations of some kind would prove nothing.
    let least = |what, least| {
        let count = counts.get(what).copied().unwrap_or_default();
        assert!(count >= least, "only {count} {what}");
    };
    for what in
        ["grants", "seats", "grants to waiters", "conflicts", "renewals", "releases", "reads"]
    {
        least(what, wanted / 500);
    }
    for what in ["abandoned", "repeats"] {
        least(what, wanted / 500);
    }
    for what in ["waits in vain", "too late", "retries", "replays to retries"] {
        least(what, 1);
    }
}

/// A thread that waits for the answer to a request.
type Late = JoinHandle<Option<(u16, Value)>>;

/// Sends a request on a new connection, and reads the answer in another thread, however late it
/// comes.
fn send(cluster: &Cluster, at: usize, path: &str, key: &str) -> Late {
    let (machine, url) = (cluster.clients.clone(), cluster.urls()[at].clone());
    let (path, header) = (path.to_owned(), format!("Idempotency-Key: {key}\r\n"));
    thread::spawn(move || {
        machine.enter();
        HttpConnection::to(&url)?.ask_with("POST", &path, &header)
    })
}

/// A client repeats a request whose first try is still pending at a stopped node, and the repeat is
/// refused. When the node resumes, and the lock is free by then, the first try is refused as well.
#[test]
fn the_first_try_of_a_refused_request_is_not_granted_later() {
    let cluster = Cluster::of(3);
    let leader = cluster.leader();
    let (stopped, other) = ((leader + 1) % 3, (leader + 2) % 3);
    for (lock, wait) in [("late", ""), ("waited", "&wait=1s")] {
        let path = format!("/locks/{lock}");
        let (code, held) = cluster.curl(other, "POST", &format!("{path}?client=ann"));
        assert_eq!(code, 200, "{held}");
        let asks = format!("{path}?client=bob{wait}");
        cluster.nodes[stopped].daemon.signal(libc::SIGSTOP);
        let first_try = send(&cluster, stopped, &asks, lock);
        let repeat = send(&cluster, other, &asks, lock).join().expect("it asks");
        let (code, refused) = repeat.expect("two of three nodes answer");
        assert_eq!((code, &refused["holder"]), (409, &"ann".into()), "{refused}");
        let token = &held["token"];
        let free = format!("{path}?client=ann&token={token}");
        assert_eq!(cluster.curl(other, "DELETE", &free).0, 200);
        cluster.nodes[stopped].daemon.signal(libc::SIGCONT);
        let (code, late) = first_try.join().expect("it asks").expect("the node goes on");
        assert!(matches!(code, 409 | 410), "{code}: {late}");
        let (_, seen) = cluster.curl(other, "GET", &path);
        assert_eq!(seen["phase"], "free", "{seen}");
        let repeated = send(&cluster, other, &asks, lock).join().expect("it asks");
        let (code, repeated) = repeated.expect("all nodes answer");
        let wanted = if wait.is_empty() { (409, "refused_before") } else { (410, "left_queue") };
        assert_eq!((code, repeated["reason"].as_str()), (wanted.0, Some(wanted.1)), "{repeated}");
        // The same request with another idempotency key is a new request, so it is granted.
        let anew = send(&cluster, other, &asks, &format!("{lock}-anew")).join().expect("it asks");
        assert_eq!(anew.expect("all nodes answer").0, 200);
    }
}
