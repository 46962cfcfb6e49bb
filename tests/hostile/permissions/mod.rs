//! Every request of every front end, with every kind of credential: the outcome must be the one
//! that the table of `latchfs serve --print-permissions` states. The test evaluates the table with
//! code of its own.

mod ask;
mod files;
mod local;
mod peer_port;
mod sessions;
mod site;

use local::LocalMount;
use site::{Site, Sites};
use std::collections::BTreeSet;
use testing::{ALICE, BOB, run_latchfs};

/// A row of the permission table, as the program prints it.
struct Row {
    client: String,
    locks: String,
    right: String,
    requests: Vec<String>,
}

/// A caller, and the rights of its credentials.
#[allow(clippy::struct_excessive_bools)] // They are the rights of the table.
struct Who {
    name: &'static str,
    site: Site,
    token: Option<&'static str>,
    is_known: bool,
    clients: &'static [&'static str],
    locks: &'static str,
    steal: bool,
    cluster: bool,
    /// Whether the caller has the peer secret, as a node of the cluster does.
    node: bool,
    /// The user who connects to the socket or uses the mount; `None` for root.
    user: Option<&'static str>,
}

/// The values of one test request: the client for which it acts, and the locks that it concerns.
#[derive(Debug)]
struct Case {
    client: &'static str,
    lock: String,
    /// The new name of the lock, if the test request moves it to another name.
    to: String,
}

/// The outcome of a test request: whether the server has denied it, and the body of the answer.
struct Outcome {
    is_denied: bool,
    body: Vec<u8>,
}

const NOBODY: Who = Who {
    name: "no credential",
    site: Site::Tokens,
    token: None,
    is_known: false,
    clients: &[],
    locks: "team/",
    steal: false,
    cluster: false,
    node: false,
    user: None,
};
const LIMITED: Who = Who {
    name: "limited token",
    token: Some("the secret of the limited"),
    is_known: true,
    clients: &["a"],
    ..NOBODY
};
const ALL: Who = Who {
    name: "token with all rights",
    token: Some("the secret of everybody"),
    is_known: true,
    clients: &["a", "b"],
    locks: "",
    steal: true,
    cluster: true,
    ..NOBODY
};

/// The callers that the test plays: at least one for each kind of credential that the server's
/// front ends accept.
const CALLERS: &[Who] = &[
    NOBODY,
    Who { name: "unknown token", token: Some("a guess of some length"), ..NOBODY },
    LIMITED,
    Who { name: "steal token", token: Some("the secret of the thief"), steal: true, ..LIMITED },
    Who {
        name: "cluster token",
        token: Some("the secret of the builder"),
        cluster: true,
        ..LIMITED
    },
    Who {
        name: "token for all locks",
        token: Some("the secret of the reader"),
        locks: "",
        ..LIMITED
    },
    Who {
        name: "administrator of locks",
        token: Some("the secret of the keeper"),
        clients: &["a", "b"],
        locks: "",
        steal: true,
        ..LIMITED
    },
    ALL,
    Who { name: "no credentials wanted", site: Site::Open, token: None, ..ALL },
    Who { name: "client certificate", site: Site::Certified, token: None, locks: "", ..LIMITED },
    Who { name: "no certificate", site: Site::Certified, ..NOBODY },
    MOUNTER,
    Who { name: "root at a user's mount", user: None, ..MOUNTER },
    OTHER_USER,
];

/// The user who has mounted, as the kernel identifies that user at the socket and in the mount.
const MOUNTER: Who = Who {
    name: "mounter",
    site: Site::Mount,
    token: None,
    cluster: false,
    clients: &[BOBS, ALICES],
    user: Some(ALICE),
    ..ALL
};
/// Another user of the mount, who may act as one client only.
const OTHER_USER: Who = Who {
    name: "another user of a mount",
    clients: &[BOBS],
    steal: false,
    user: Some(BOB),
    ..MOUNTER
};
/// The client names under which the users Alice and Bob hold locks in a mount.
const ALICES: &str = "box:latchfs-a";
const BOBS: &str = "box:latchfs-b";

/// Returns the permission table, parsed from what the program prints.
fn table() -> Vec<Row> {
    let (code, text) = run_latchfs(&["serve", "--print-permissions"]);
    assert_eq!(code, Some(0), "{text}");
    let mut lines = text.lines().take_while(|line| !line.is_empty());
    let head = lines.next().expect("a head");
    let at = |word| head.find(word).expect("a column");
    let columns = ["CLIENT", "LOCKS", "RIGHT", "REQUESTS"].map(at);
    let mut rows: Vec<Row> = Vec::new();
    for line in lines {
        let part = |from: usize, to: usize| {
            line.get(from..to.min(line.len())).unwrap_or_default().trim().to_owned()
        };
        let listed = part(columns[3], usize::MAX);
        let requests = listed.split(',').map(str::trim).filter(|request| !request.is_empty());
        let requests = requests.map(str::to_owned);
        if part(0, columns[0]).is_empty() {
            rows.last_mut().expect("a row before").requests.extend(requests);
            continue;
        }
        rows.push(Row {
            client: part(columns[0], columns[1]),
            locks: part(columns[1], columns[2]),
            right: part(columns[2], columns[3]),
            requests: requests.collect(),
        });
    }
    assert!(rows.len() > 20, "{text}");
    rows
}

impl Row {
    /// Whether this row of the permission table allows a request of `who` as `client` on `locks`.
    /// The test decides that by code of its own and not by that of the program under test.
    fn allows(&self, who: &Who, client: &str, locks: &[&str]) -> bool {
        let has_right = match &*self.right {
            "none" => return true,
            "known" => true,
            "steal" => who.steal,
            "admin" => who.steal && who.site != Site::Open,
            "cluster" => who.cluster,
            "node" => who.node,
            other => panic!("no such right: {other}"),
        };
        let is_for_client = match &*self.client {
            "-" => true,
            "named" | "owner" => who.clients.contains(&client),
            other => panic!("no such client: {other}"),
        };
        let is_for_locks = match &*self.locks {
            "-" | "visible" => true,
            "named" => locks.iter().all(|lock| lock.starts_with(who.locks)),
            "all" => who.locks.is_empty(),
            "all, or cluster" => who.locks.is_empty() || who.cluster,
            other => panic!("no such locks: {other}"),
        };
        who.is_known && has_right && is_for_client && is_for_locks
    }
}

impl Case {
    /// Returns one case with the caller's own client and locks, and cases with a foreign client or
    /// lock. Each case has lock names of its own.
    fn all(who: &Who, number: &mut usize) -> [Self; 4] {
        *number += 1;
        let [own, others] = if who.site == Site::Mount { [BOBS, ALICES] } else { ["a", "b"] };
        let name = |prefix: &str, what: &str| format!("{prefix}/{what}{number}");
        let case = |client: &'static str, prefix, to| {
            let (lock, to) = (name(prefix, &client.replace(':', "-")), name(to, "to"));
            Self { client, lock, to }
        };
        [
            case(own, "team", "team"),
            case(others, "team", "team"),
            case(own, "other", "team"),
            case(own, "team", "other"),
        ]
    }

    /// Returns the names of the locks that a test request contains or implies.
    fn locks(&self, request: &str) -> Vec<&str> {
        match request {
            "batch move" => vec![&self.lock, &self.to],
            _ if request.ends_with(" /lock") => vec!["default"],
            _ => vec![&self.lock],
        }
    }
}

/// Whether the response to `request`, if the request is allowed, must contain the locks that the
/// caller may see.
fn shows(request: &str) -> bool {
    let lists = ["GET /locks", "GET /history", "GET /events", "GET /door/v1/events"];
    lists.contains(&request) || ["batch list", "batch children"].contains(&request)
}

#[test]
fn every_request_is_decided_by_the_table() {
    let (sites, mut number, mut wrong) = (Sites::start(), 0, Vec::new());
    let asked = |request: &&String| {
        !request.starts_with("ctl ") && !request.starts_with("file ") && *request != "peer port"
    };
    for row in table() {
        for (request, who) in row.requests.iter().filter(asked).flat_map(with_all) {
            for case in Case::all(who, &mut number) {
                let outcome = ask::send(&sites, request, who, &case);
                let allowed = row.allows(who, case.client, &case.locks(request));
                let mut found = |what: &str| {
                    wrong.push(format!("{request} by {}: {what}, {case:?}", who.name));
                };
                let may_be_empty = row.locks == "visible" && !case.lock.starts_with(who.locks);
                match (allowed, outcome.is_denied) {
                    (true, true) if !may_be_empty => found("denied"),
                    (false, false) => found("not denied"),
                    _ => {}
                }
                let has = |marker: &[u8]| outcome.body.windows(marker.len()).any(|w| w == marker);
                if !who.locks.is_empty() && has(site::HIDDEN) {
                    found("shows what is hidden");
                }
                if allowed && shows(request) && !has(site::SHOWN) {
                    found("does not show what is there");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn with_all(request: &String) -> impl Iterator<Item = (&String, &'static Who)> {
    // The HTTP socket of a mount does not accept the line protocol, so no such requests are sent to
    // it.
    let has = |who: &&Who| who.site != Site::Mount || !request.starts_with("line ");
    CALLERS.iter().filter(has).map(move |who| (request, who))
}

/// Requests to the control file of a mount by the user who has mounted, by root, and by another
/// user are allowed or denied as the table says.
#[test]
fn every_request_to_a_mount_is_decided_by_the_table() {
    let (mount, mut seen) = (LocalMount::start(), BTreeSet::new());
    for row in table() {
        for request in row.requests.iter().filter_map(|request| request.strip_prefix("ctl ")) {
            seen.insert(request.to_owned());
            for who in CALLERS.iter().filter(|who| who.site == Site::Mount) {
                let ask = format!("{{\"do\":\"{request}\",\"name\":\"x\",\"reason\":\"why\"}}");
                let said = mount.ctl(who, &ask);
                let is_denied = said.contains("\"E_DENIED\"");
                let own = who.clients[0];
                let allowed = row.allows(who, own, &["x"]);
                assert_eq!(!is_denied, allowed, "{}: {ask}: {said}", who.name);
            }
        }
    }
    assert!(seen.contains("steal") && seen.len() > 5, "{seen:?}");
}

/// The chapter `permissions.md` contains the permission table exactly as the program prints it.
#[test]
fn documentation_contains_the_printed_table() {
    let (_, printed) = run_latchfs(&["serve", "--print-permissions"]);
    let document = include_str!("../../../contrib/doc/permissions.md");
    assert!(document.contains(&printed), "print it anew into contrib/doc/permissions.md");
}
