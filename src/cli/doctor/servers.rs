//! Checks of servers: the one that `--server` names, and those whose locks are mounted.
//!
//! Checks of a cluster, from the report of one of its nodes: the state of each node, and the number
//! of voters.

use super::finding::Finding;
use crate::auth::{EXPIRY_NOTICE_SECS, validity_of_certificate};
use crate::cli::connect::credential_options::ServerKeyArgs;
use crate::cli::exit::CliResult;
use crate::cli::output::harmless;
use crate::cli::serve::cluster_command::votes;
use crate::client::api_request::fetch;
use crate::client::http_transport::{Http, ServerAccess, is_on_this_machine};
use crate::client::server_clock::{Stuck, probe};
use crate::service::unavailable::MAJORITY_ADVICE;
use crate::service::{Contact, RttSample};
use crate::time::{Span, Wall};
use serde_json::Value;
use std::fs;

/// The difference of wall clocks above which `doctor` reports it, since displayed times are wrong
/// by the difference.
const SKEW_SHOWN_MS: u64 = 2_000;

/// The round trip above which a server counts as slow: a quarter of the 2 s after which a mount
/// retries.
const ROUND_TRIP_SLOW: Span = Span::from_millis(500);

/// Timeout of the readiness probe.
const PATIENCE: Span = Span::from_secs(2);

/// Returns the findings about the server at `url`: whether it is reachable and accepts the
/// credentials, then its latency and its clock.
pub(super) fn named(url: &str, key: &ServerKeyArgs) -> CliResult<Vec<Finding>> {
    let check = "server";
    let server = match Http::new(&key.access(url)?) {
        Ok(server) => server,
        Err(error) => {
            let fix = "name it by --server http://HOST:PORT, or https://HOST:PORT with --ca FILE";
            let says = format!("{url} can't be asked: {error}");
            return Ok(vec![Finding::wrong(check, says, fix)]);
        }
    };
    Ok(match probe(&server) {
        Ok(heard) => {
            let says = format!("{url} accepts these credentials and speaks this protocol version");
            let mut findings = vec![Finding::well(check, says)];
            findings.extend(of_answers(url, heard));
            findings.extend(not_ready(url, key)?);
            findings.extend(metrics_token(url, key)?);
            findings.extend(expiring(url, key)?);
            findings
        }
        Err(stuck) => vec![stuck_at(check, url, &stuck)],
    })
}

/// Returns a finding if the server grants no lock now, from its readiness probe.
fn not_ready(url: &str, key: &ServerKeyArgs) -> CliResult<Option<Finding>> {
    Ok(match fetch(&key.access(url)?, "GET", "/readyz", PATIENCE) {
        Ok((503, problem)) => Some(of_problem(url, &problem)),
        // Another check reports a server that does not answer.
        Ok(_) | Err(_) => None,
    })
}

/// Returns a finding for each certificate that expires soon: those with which the command connects,
/// and those of the server.
fn expiring(url: &str, key: &ServerKeyArgs) -> CliResult<Vec<Finding>> {
    let access = key.access(url)?;
    let me = fetch(&access, "GET", "/me", PATIENCE).map(|(_, me)| me).unwrap_or_default();
    let of_server = me["certificates"].as_object().into_iter().flatten();
    let of_server = of_server.filter_map(|(name, end)| {
        Some((format!("the {} certificate of {url}", harmless(name)), end.as_i64()?))
    });
    let own = [
        (access.identity.as_ref().map(|(own, _)| own), "your client certificate for"),
        (access.ca.as_ref(), "the CA certificate by which you verify"),
    ];
    let own = own.into_iter().filter_map(|(pem, name)| {
        Some((format!("{name} {url}"), validity_of_certificate(pem?)?.1))
    });
    Ok(own.chain(of_server).filter_map(|(name, end)| of_expiry(&name, end, Wall::now())).collect())
}

fn of_expiry(name: &str, end: i64, now: Wall) -> Option<Finding> {
    if end - now.secs > EXPIRY_NOTICE_SECS {
        return None;
    }
    let at = Wall { secs: end, nanos: 0 };
    let fix = "make another one by 'latchfs cert', and send SIGHUP to the server if it is one of \
               the server's; a server with --home makes its own one at each start";
    let says = if end < now.secs { "has expired at" } else { "expires at" };
    Some(Finding::wrong("certificate", format!("{name} {says} {at}"), fix))
}

/// The token with which Prometheus reads metrics, as contrib/prometheus has it.
const METRICS_TOKEN: &str = "/etc/prometheus/latchfs.token";

/// Returns a finding if the token of Prometheus on this machine may do more than read. A server
/// that does not know the token does not know what it may do. The token is sent to no other
/// machine: the server there may not be the one that Prometheus reads.
fn metrics_token(url: &str, key: &ServerKeyArgs) -> CliResult<Option<Finding>> {
    if !is_on_this_machine(url) {
        return Ok(None);
    }
    let Ok(token) = fs::read_to_string(METRICS_TOKEN) else { return Ok(None) };
    let access = key.access(url)?;
    let access = ServerAccess { token: Some(token.trim().to_owned()), identity: None, ..access };
    Ok(match fetch(&access, "GET", "/me", PATIENCE) {
        Ok((200, me)) => of_metrics_token(url, &me),
        Ok(_) | Err(_) => None,
    })
}

fn of_metrics_token(url: &str, me: &Value) -> Option<Finding> {
    (me["read_only"] == false).then(|| {
        let says = format!("the token in {METRICS_TOKEN} may change locks of {url}");
        let fix = "write 'clients = []' into its entry in the file of --tokens, so that it reads \
                   alone";
        Finding::odd("metrics token", says, fix)
    })
}

/// Returns the finding about a server whose readiness probe failed with this problem.
fn of_problem(url: &str, problem: &Value) -> Finding {
    let says = problem["detail"].as_str().map_or_else(
        || format!("{url} is not ready, and does not say why"),
        |detail| format!("{url} is not ready: {}", harmless(detail)),
    );
    let fix = match problem["reason"].as_str() {
        Some("hold_off") => format!(
            "wait; or if no client relies on an old lease any more: latchfs cluster grant-now \
             --server {url} --reason WHY"
        ),
        Some("no_majority") => MAJORITY_ADVICE.to_owned(),
        _ => format!("latchfs cluster status --server {url}"),
    };
    Finding::wrong("server", says, fix)
}

/// Returns the finding about a mount whose own lock service grants no lock yet.
fn of_hold_off(about: &Value) -> Option<Finding> {
    let said = about["hold_off"]["detail"].as_str().map(harmless)?;
    let dir = about["dir"].as_str().map(harmless).unwrap_or_default();
    let fix = "wait; --grant-at-once skips that, where no earlier holder can be alive";
    Some(Finding::wrong("mount", format!("{dir}: {said}"), fix))
}

fn stuck_at(check: &'static str, url: &str, stuck: &Stuck) -> Finding {
    let is_tls = url.starts_with("https:");
    let (says, fix) = match stuck {
        Stuck::Unreachable(why) => (
            format!("{url} can't be reached: {why}"),
            "start it there by 'latchfs serve --listen ADDRESS'; see whether the name, the port \
             and the firewalls between are right",
        ),
        Stuck::Untrusted(why) => (
            format!("the certificate of {url} is not trusted: {why}"),
            "name by --ca the certificate of the authority that signed the server's, and use a \
             host name from it; an http server is named http://",
        ),
        Stuck::Denied(why) => (
            format!("{url} rejects these credentials: {why}"),
            "authenticate by --token-file FILE, or by --cert FILE and --key FILE",
        ),
        Stuck::Foreign(why) => (
            format!("{url} is not a latchfs server of this protocol version: {why}"),
            "install the same version at both ends, and see whether the port is the right one",
        ),
        Stuck::Silent(why) if is_tls => (
            format!("{url} accepts connections but does not answer: {why}"),
            "see on its machine whether it runs, and what its log says",
        ),
        Stuck::Silent(why) => (
            format!("{url} accepts connections but does not answer: {why}"),
            "see whether it is an https server; else on its machine what its log says",
        ),
    };
    Finding::wrong(check, says, fix)
}

/// Returns the findings about the server of a mount, from the description that the mount gives of
/// itself.
pub(super) fn of_mount(about: &Value) -> Vec<Finding> {
    let check = "server";
    let (server, dir) = (&about["server"], about["dir"].as_str().unwrap_or_default());
    let Some(url) = server["url"].as_str() else {
        return of_hold_off(about).into_iter().collect();
    };
    let contact = about["contact"].as_str().unwrap_or_default();
    let why = server["trouble"].as_str().unwrap_or("it does not answer");
    let fix = format!("latchfs doctor --server {url}, with the credentials of the mount");
    let mut findings = vec![match contact {
        _ if contact == Contact::Connected.as_str() => {
            Finding::well(check, format!("{dir} is connected to {url}"))
        }
        _ if contact == Contact::Jeopardy.as_str() => Finding::wrong(
            check,
            format!("{dir} waits for {url}, and what is held is still held: {why}"),
            fix,
        ),
        _ => Finding::wrong(
            check,
            format!("{dir} has lost {url}, and all that open files held: {why}"),
            fix,
        ),
    }];
    let round_trip = server["round_trip_us"].as_u64().map(|us| Span::from_nanos(us * 1_000));
    let heard = round_trip.zip(server["wall_ahead_ms"].as_i64());
    if let Some((round_trip, wall_ahead_ms)) = heard {
        findings.extend(of_answers(url, RttSample { round_trip, wall_ahead_ms }));
    }
    findings
}

/// Returns the findings about the round-trip time and the clock of a server that answers.
fn of_answers(url: &str, heard: RttSample) -> [Finding; 2] {
    let RttSample { round_trip, wall_ahead_ms: ahead } = heard;
    let (took, us) = ("round trip", round_trip.as_nanos() / 1_000);
    let says = format!("{url} answers within {}.{:03}ms", us / 1_000, us % 1_000);
    let slow = "look for a loaded machine or network: after 2 s a call has no answer";
    let apart = Span::from_millis(ahead.unsigned_abs());
    let direction = if ahead < 0 { "behind" } else { "ahead of" };
    let clock = "server clock";
    let differs =
        format!("the wall clock of {url} is {apart} {direction} ours; nothing depends on it");
    [
        if round_trip > ROUND_TRIP_SLOW {
            Finding::odd(took, says, slow)
        } else {
            Finding::well(took, says)
        },
        if ahead.unsigned_abs() > SKEW_SHOWN_MS {
            Finding::odd(clock, differs, "as root on both: timedatectl set-ntp true")
        } else {
            Finding::well(clock, differs)
        },
    ]
}

/// Timeout of the request for the cluster's report: a node waits one second for the other nodes
/// before it answers.
const NODES_PATIENCE: Span = Span::from_secs(5);

/// Maximum lag of a node in log entries. A node that is further behind may need a snapshot, and
/// can't take over if the leader fails.
const LAG_MAX: u64 = 1_000;

/// The maximum median fsync latency of a node. Even a spinning disk is faster, and each change
/// waits for one fsync.
const SYNC_MAX: Span = Span::from_millis(20);

const CHECK: &str = "cluster";

/// Returns the findings about a cluster, from the report of the first server in `urls` that is a
/// node of a cluster.
pub(super) fn of_nodes(urls: &[&str], key: &ServerKeyArgs) -> CliResult<Vec<Finding>> {
    for url in urls {
        // Servers without a usable report are skipped: another check reports a server that does not
        // answer, and a server that is no node, or denies the report to the command's credentials,
        // is no problem.
        if let Ok((200, report)) = fetch(&key.access(url)?, "GET", "/cluster", NODES_PATIENCE) {
            return Ok(of_report(&report, url));
        }
    }
    Ok(Vec::new())
}

/// Returns one finding for each problem in a cluster's report, or a single finding that the cluster
/// has no problem.
fn of_report(report: &Value, url: &str) -> Vec<Finding> {
    let nodes: Vec<_> = report["nodes"].as_array().into_iter().flatten().collect();
    let mut findings: Vec<_> = of_majority(report, &nodes, url).into_iter().collect();
    let has_majority = has_majority(&nodes);
    for node in &nodes {
        findings.extend(of_node(node, url, has_majority));
    }
    findings.extend(of_voters(&nodes, url));
    if findings.is_empty() {
        findings.push(Finding::well(CHECK, well(report, &nodes)));
    }
    findings
}

/// Returns a finding if the cluster can't grant locks, because it has no majority or no leader.
fn of_majority(report: &Value, nodes: &[&Value], url: &str) -> Option<Finding> {
    let (count, there) = voters(nodes);
    let needed = count / 2 + 1;
    if there < needed {
        let says = format!(
            "the cluster has no majority: {there} of {count} voters answer, and {needed} are \
             needed, so nothing is granted"
        );
        return Some(Finding::wrong(CHECK, says, MAJORITY_ADVICE));
    }
    let says = if report["leader"].is_null() {
        "no node leads: nothing is granted, and nothing expires".to_owned()
    } else {
        return None;
    };
    let fix = format!(
        "start nodes until a majority of the voters answers: latchfs cluster status --server {url}"
    );
    Some(Finding::wrong(CHECK, says, fix))
}

/// Returns the number of voters, and how many of them answer.
fn voters(nodes: &[&Value]) -> (usize, usize) {
    let voters = nodes.iter().filter(|node| votes(node));
    (voters.clone().count(), voters.filter(|node| answers(node)).count())
}

fn has_majority(nodes: &[&Value]) -> bool {
    let (count, there) = voters(nodes);
    there > count / 2
}

/// Returns a finding for each problem of one node. Without a majority no node can be removed.
fn of_node(node: &Value, url: &str, has_majority: bool) -> Vec<Finding> {
    let named = name_of(node);
    if !answers(node) {
        let why = node["trouble"].as_str().unwrap_or("it does not say why");
        let heard = node["heard_ms_ago"].as_u64().map(Span::from_millis);
        let heard = heard.map_or(String::new(), |ago| format!(", heard of {ago} ago"));
        let says = format!("{named} does not answer{heard}: {why}");
        let mut fix = "start it on its machine, or see there what its log says".to_owned();
        if has_majority {
            let id = &node["id"];
            let removal =
                format!("; if its data is lost: latchfs cluster remove {id} --server {url}");
            fix.push_str(&removal);
        }
        return vec![Finding::wrong(CHECK, says, fix)];
    }
    let mut findings = Vec::new();
    if let Some(lag) = node["lag"].as_u64().filter(|lag| *lag > LAG_MAX) {
        let says = format!("{named} is {lag} entries behind the leader");
        let fix = "see whether its disk, its machine or the network to it is too slow; one that \
                    has just joined needs some time";
        findings.push(Finding::wrong(CHECK, says, fix));
    }
    let median = node["sync_median_us"].as_u64().map(|us| Span::from_nanos(us * 1_000));
    if let Some(median) = median.filter(|median| *median > SYNC_MAX) {
        let says = format!(
            "the disk of {named} takes {median} for half of its syncs; each change waits for one"
        );
        let fix = "see what else writes to that disk, or put --data on a faster one";
        findings.push(Finding::wrong(CHECK, says, fix));
    }
    findings
}

/// Returns a finding if the cluster would tolerate more failed nodes with another number of voters.
fn of_voters(nodes: &[&Value], url: &str) -> Option<Finding> {
    let voters = nodes.iter().filter(|node| votes(node)).count();
    let learner = nodes.iter().find(|node| node["role"] == "learner" && answers(node));
    match (voters, learner) {
        (1, Some(learner)) => {
            let says = format!(
                "{} learns and does not vote: while one node decides, none may fail",
                name_of(learner)
            );
            let fix = "start a third with --data, --peer-listen and --seed: then all three vote";
            Some(Finding::odd(CHECK, says, fix))
        }
        (voters, Some(learner)) if voters > 0 && voters.is_multiple_of(2) => {
            let says = format!(
                "{} could vote: {voters} voters survive no more failures than {}",
                name_of(learner),
                voters - 1
            );
            let fix = format!("latchfs cluster promote {} --server {url}", learner["id"]);
            Some(Finding::wrong(CHECK, says, fix))
        }
        (2, None) => {
            let says = "there are two voters, and both are needed: neither may fail";
            let fix = "start a third with --data, --peer-listen and --seed, and it votes";
            Some(Finding::wrong(CHECK, says, fix))
        }
        _ => None,
    }
}

fn well(report: &Value, nodes: &[&Value]) -> String {
    let leader = &report["leader"];
    match nodes.iter().filter(|node| votes(node)).count() {
        0 | 1 => format!("node {leader} decides alone; of three, one could fail"),
        voters => format!(
            "all {} nodes answer, node {leader} leads, and {} of {voters} voters may fail",
            nodes.len(),
            (voters - 1) / 2
        ),
    }
}

fn answers(node: &Value) -> bool {
    node["reachable"] == true
}

/// Returns how messages name a node: by its id, with its name and address if they are known.
fn name_of(node: &Value) -> String {
    let text = |field: &str| node[field].as_str().filter(|text| !text.is_empty());
    match (text("name"), text("address")) {
        (Some(name), Some(address)) => format!("node {} ({name}, {address})", node["id"]),
        _ => format!("node {}", node["id"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn about(contact: &str, round_trip_us: u64, wall_ahead_ms: i64) -> Value {
        let server = json!({
            "url": "http://box:8080", "round_trip_us": round_trip_us,
            "wall_ahead_ms": wall_ahead_ms, "trouble": "no answer in time",
        });
        json!({ "dir": "/locks", "contact": contact, "server": server })
    }

    #[test]
    fn findings_of_a_mount_show_its_contact_with_the_server() {
        let well = of_mount(&about("connected", 1_250, -3));
        let says: Vec<_> = well.iter().map(|finding| finding.says.as_str()).collect();
        let expected = [
            "/locks is connected to http://box:8080",
            "http://box:8080 answers within 1.250ms",
            "the wall clock of http://box:8080 is 3ms behind ours; nothing depends on it",
        ];
        assert_eq!(says, expected);
        assert!(well.iter().all(|finding| finding.fix.is_none()));
        for (contact, word) in [("in jeopardy", "still held"), ("lost", "has lost")] {
            let found = of_mount(&about(contact, 1, 0));
            assert!(found[0].is_wrong() && found[0].says.contains(word), "{found:?}");
            assert!(found[0].says.ends_with("no answer in time"), "{found:?}");
        }
        assert_eq!(of_mount(&json!({"kind": "embedded"})), []);
        let held_off = json!({"dir": "/locks", "hold_off": {"detail": "nothing is granted"}});
        let [found] = &of_mount(&held_off)[..] else { panic!("one finding") };
        assert!(found.is_wrong() && found.says == "/locks: nothing is granted", "{found:?}");
    }

    #[test]
    fn a_token_of_prometheus_that_does_more_than_read_is_odd() {
        assert_eq!(of_metrics_token("u", &json!({"read_only": true})), None);
        // An older server does not say it.
        assert_eq!(of_metrics_token("u", &json!({})), None);
        let found = of_metrics_token("u", &json!({"read_only": false})).expect("a finding");
        assert!(found.fix.is_some_and(|fix| fix.contains("clients = []")));
    }

    #[test]
    fn the_token_of_prometheus_is_sent_to_no_other_machine() {
        for here in ["unix:/run/x", "http://127.0.0.1:1", "https://localhost:1", "http://[::1]:1"] {
            assert!(is_on_this_machine(here), "{here}");
        }
        for there in ["https://box:8443", "http://192.0.2.1:1", "https://localhost.evil:1", "x"] {
            assert!(!is_on_this_machine(there), "{there}");
        }
    }

    #[test]
    fn a_certificate_is_a_finding_thirty_days_before_its_end() {
        let now = Wall { secs: 1_800_000_000, nanos: 0 };
        let found = |days: i64| of_expiry("c", now.secs + days * 86_400, now);
        assert_eq!(found(31), None);
        assert_eq!(found(29).expect("soon").says, "c expires at 2027-02-13T08:00:00.000Z");
        assert!(found(-1).expect("over").says.contains("has expired at"));
    }

    /// No lock depends on wall clocks, so a difference between them is reported as odd and not as a
    /// problem.
    #[test]
    fn clocks_that_differ_are_odd_and_not_wrong() {
        for ahead in [2_001, -86_400_000] {
            let [_, clock] =
                of_answers("u", RttSample { round_trip: Span::ZERO, wall_ahead_ms: ahead });
            assert!(!clock.is_wrong() && clock.fix.is_some(), "{clock:?}");
        }
        let [took, _] =
            of_answers("u", RttSample { round_trip: Span::from_secs(1), wall_ahead_ms: 0 });
        assert!(!took.is_wrong() && took.fix.is_some(), "{took:?}");
    }
}

#[cfg(test)]
mod node_checks_tests {
    use super::*;
    use crate::cli::doctor::finding::Level;
    use serde_json::json;

    fn node(id: u64, role: &str) -> Value {
        json!({
            "id": id, "name": "box", "address": "10.0.0.1:7100", "role": role, "reachable": true,
            "trouble": null, "heard_ms_ago": 12, "lag": 3, "sync_median_us": 400,
        })
    }

    fn three() -> Vec<Value> {
        vec![node(1, "leader"), node(7, "voter"), node(9, "voter")]
    }

    #[track_caller]
    fn only(nodes: &[Value], level: Level, says: &str, fix: &str) {
        let found = of_report(&json!({ "leader": 1, "nodes": nodes }), "http://u");
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.level, one.says.as_str()), (level, says), "{found:?}");
        let given = one.fix.as_deref().unwrap_or_default();
        assert!(given.contains(fix) && given.is_empty() == fix.is_empty(), "{given}");
    }

    #[test]
    fn each_problem_is_one_finding() {
        use Level::{Odd, Well, Wrong};
        only(&three(), Well, "all 3 nodes answer, node 1 leads, and 1 of 3 voters may fail", "");
        only(&three()[..1], Well, "node 1 decides alone; of three, one could fail", "");
        let with = |field: &str, value: Value| {
            let mut nodes = three();
            nodes[1][field] = value;
            nodes
        };
        let mut silent = with("reachable", json!(false));
        silent[1]["trouble"] = json!("connection refused");
        // The report contains the last known lag of the silent node. The lag is ignored, because
        // the node does not answer.
        silent[1]["lag"] = json!(9_999);
        let says = "node 7 (box, 10.0.0.1:7100) does not answer, heard of 12ms ago: connection \
                    refused";
        only(&silent, Wrong, says, "latchfs cluster remove 7 --server http://u");
        let says = "node 7 (box, 10.0.0.1:7100) is 1001 entries behind the leader";
        only(&with("lag", json!(LAG_MAX + 1)), Wrong, says, "network");
        only(
            &with("lag", json!(LAG_MAX)),
            Well,
            "all 3 nodes answer, node 1 leads, and 1 of 3 voters may fail",
            "",
        );
        let says = "the disk of node 7 (box, 10.0.0.1:7100) takes 21ms for half of its syncs; each \
                    change waits for one";
        only(&with("sync_median_us", json!(20_001)), Wrong, says, "faster");
        let two = &three()[..2];
        only(two, Wrong, "there are two voters, and both are needed: neither may fail", "third");
        let learner = node(12, "learner");
        let says = "node 12 (box, 10.0.0.1:7100) could vote: 2 voters survive no more failures \
                    than 1";
        let fix = "latchfs cluster promote 12 --server http://u";
        only(&[two, std::slice::from_ref(&learner)].concat(), Wrong, says, fix);
        let says = "node 12 (box, 10.0.0.1:7100) learns and does not vote: while one node decides, \
                    none may fail";
        only(&[node(1, "leader"), learner], Odd, says, "third");
        // A report that contains two problems, and then three, yields a finding for each of them.
        let found = of_report(&json!({ "leader": null, "nodes": silent }), "http://u");
        let says: Vec<_> = found.iter().map(|finding| finding.says.as_str()).collect();
        assert_eq!(says.len(), 2, "{says:?}");
        assert_eq!(says[0], "no node leads: nothing is granted, and nothing expires");
        silent[2]["reachable"] = json!(false);
        let found = of_report(&json!({ "leader": 1, "nodes": silent }), "http://u");
        assert_eq!(found.len(), 3, "{found:?}");
        let says = "the cluster has no majority: 1 of 3 voters answer, and 2 are needed, so \
                    nothing is granted";
        assert_eq!(found[0].says, says);
        assert!(found.iter().all(|one| !one.fix.as_deref().unwrap_or("").contains("remove")));
    }
}
