//! A durable server that is killed at random moments under load: after a restart all acknowledged
//! changes are there, and no token is granted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use testing::{HttpConnection, Scratch, Server, rounds};

/// How often the server is killed in a short run.
const ROUNDS: usize = 15;
/// How often the server is killed in a long run.
const ROUNDS_LONG: usize = 30;
/// The number of concurrent clients.
const CLIENTS: usize = 6;
/// The maximum number of answers to clients before the server is killed.
const ANSWERS_MAX: u64 = 2_400;
/// The number of locks that each client uses alone, and the number of locks for which all clients
/// compete.
const OWN: u64 = 12;
const SHARED: u64 = 3;

/// A small generator of random numbers (splitmix64): the same seed gives the same run.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The state of the locks, as far as the answers to one client show it.
#[derive(Default, Clone)]
struct Knows {
    /// The tokens of the locks that the client holds, by name.
    held: BTreeMap<String, u64>,
    /// The lock whose last request has no answer, so that it may be held or not.
    open: Option<String>,
    /// All fencing tokens that the client was ever granted: one for each time that it got a lock,
    /// since renewals keep the token.
    tokens: BTreeSet<u64>,
}

/// Sends requests of one client until the server is gone. Returns what its answers show about the
/// locks.
fn run_client(
    url: &str,
    client: usize,
    seed: u64,
    mut knows: Knows,
    answered: &mpsc::Sender<()>,
) -> Knows {
    let mut dice = Dice(seed);
    let Some(mut talk) = HttpConnection::to(url) else { return knows };
    loop {
        let shared = dice.next().is_multiple_of(5);
        let name = if shared {
            format!("shared{}", dice.next() % SHARED)
        } else {
            format!("own{client}-{}", dice.next() % OWN)
        };
        let holds = knows.held.contains_key(&name);
        let path = format!("/locks/{name}?client=c{client}");
        let release = if shared { dice.next().is_multiple_of(2) } else { holds };
        let answer = if release {
            talk.request("DELETE", &path)
        } else {
            talk.request("POST", &format!("{path}&ttl=1h"))
        };
        let Some((code, body)) = answer else {
            knows.open = Some(name);
            return knows;
        };
        match (release, code) {
            (true, 200) => drop(knows.held.remove(&name)),
            (true, 403 | 404 | 409 | 410) if shared => drop(knows.held.remove(&name)),
            (false, 200) => {
                let token = body["token"].as_u64().expect("a grant has a token");
                let before = knows.held.insert(name, token);
                let new = knows.tokens.insert(token);
                assert!(new || before == Some(token), "token {token} came twice");
            }
            (false, 409) if shared => {}
            other => panic!("{name}: {other:?} {body}"),
        }
        // The error is ignored: the send fails only if the test has stopped reading.
        let _ = answered.send(());
    }
}

/// Compares the state that a restarted server shows with its earlier answers. If the last request
/// for a lock has no answer, the lock may be held or not.
fn compare(url: &str, client: usize, knows: &mut Knows) {
    let mut talk = HttpConnection::to(url).expect("it listens");
    let names = (0..OWN).map(|n| format!("own{client}-{n}"));
    for name in names.chain((0..SHARED).map(|n| format!("shared{n}"))) {
        let (code, body) = talk.request("GET", &format!("/locks/{name}")).expect("it answers");
        assert_eq!(code, 200, "{body}");
        let ours = body["holder"] == format!("c{client}");
        let token = body["token"].as_u64().filter(|_| ours);
        if knows.open.as_ref() == Some(&name) {
            match token {
                Some(token) => {
                    knows.held.insert(name, token);
                    knows.tokens.insert(token);
                }
                None => drop(knows.held.remove(&name)),
            }
        } else {
            assert_eq!(token, knows.held.get(&name).copied(), "{name}, of client {client}: {body}");
        }
    }
    knows.open = None;
}

fn start(data: &Path) -> Server {
    Server::listen(&["--data", &data.display().to_string()])
}

#[test]
fn what_was_answered_is_there_after_any_kill() {
    let named = std::env::var("LATCHFS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = named.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("LATCHFS_SEED={seed}");
    let mut dice = Dice(seed);
    let scratch = Scratch::new();
    let data = scratch.path().join("data");
    let mut all = vec![Knows::default(); CLIENTS];
    let (mut answers, mut round) = (0, 0);
    // The test continues until the log is long enough for a snapshot: how many answers one log
    // entry covers depends on the machine.
    let rounds = rounds(ROUNDS, ROUNDS_LONG);
    while round < rounds || !data.join("snapshot").exists() {
        assert!(round < 4 * ROUNDS_LONG, "no snapshot after {answers} answers");
        round += 1;
        let server = start(&data);
        for (client, knows) in all.iter_mut().enumerate() {
            compare(&server.url, client, knows);
        }
        let (tell, answered) = mpsc::channel();
        let wanted = dice.next() % ANSWERS_MAX;
        answers += wanted;
        all = thread::scope(|scope| {
            let clients: Vec<_> = std::mem::take(&mut all)
                .into_iter()
                .enumerate()
                .map(|(client, knows)| {
                    let (url, tell, own) = (&server.url, tell.clone(), dice.next());
                    scope.spawn(move || run_client(url, client, own, knows, &tell))
                })
                .collect();
            // After this sender is dropped, the channel closes when all clients have ended. That
            // also ends the iterator below, should fewer answers arrive than it waits for.
            drop(tell);
            answered.iter().take(wanted as usize).for_each(drop);
            server.signal(libc::SIGKILL);
            let ended = clients.into_iter().map(|client| client.join().expect("a client is well"));
            ended.collect()
        });
        let tokens = all.iter().map(|knows| knows.tokens.len()).sum::<usize>();
        let different: BTreeSet<_> = all.iter().flat_map(|knows| &knows.tokens).collect();
        assert_eq!(different.len(), tokens, "round {round}: a token was given to two clients");
    }
    let server = start(&data);
    for (client, knows) in all.iter_mut().enumerate() {
        compare(&server.url, client, knows);
    }
    let highest = all.iter().flat_map(|knows| &knows.tokens).max().copied().unwrap_or_default();
    let fresh = server.curl(&["-X", "POST", "/locks/new?client=new"]).is(200)["token"].as_u64();
    assert!(fresh > Some(highest), "{fresh:?} is not above {highest}");
    println!("{round} kills, {answers} answers, {highest} tenures");
}
