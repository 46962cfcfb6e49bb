//! Checks of servers: the one that `--server` names, and those whose locks are mounted.

use super::finding::Finding;
use crate::cli::connect::credential_options::ServerKeyArgs;
use crate::cli::exit::CliResult;
use crate::cli::output::harmless;
use crate::client::api_request::fetch;
use crate::client::http_transport::Http;
use crate::client::server_clock::{Stuck, probe};
use crate::service::lock_service::MAJORITY_ADVICE;
use crate::service::{Contact, RttSample};
use crate::time::Span;
use serde_json::Value;

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
            let mend = "name it by --server http://HOST:PORT, or https://HOST:PORT with --ca FILE";
            let says = format!("{url} can't be asked: {error}");
            return Ok(vec![Finding::wrong(check, says, mend)]);
        }
    };
    Ok(match probe(&server) {
        Ok(heard) => {
            let says = format!("{url} accepts these credentials and speaks this protocol version");
            let mut findings = vec![Finding::well(check, says)];
            findings.extend(of_answers(url, heard));
            findings.extend(not_ready(url, key)?);
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

/// Returns the finding about a server whose readiness probe failed with this problem.
fn of_problem(url: &str, problem: &Value) -> Finding {
    let says = problem["detail"].as_str().map_or_else(
        || format!("{url} is not ready, and does not say why"),
        |detail| format!("{url} is not ready: {}", harmless(detail)),
    );
    let mend = match problem["reason"].as_str() {
        Some("hold_off") => format!(
            "wait; or if no client relies on an old lease any more: latchfs cluster grant-now \
             --server {url} --reason WHY"
        ),
        Some("no_majority") => MAJORITY_ADVICE.to_owned(),
        _ => format!("latchfs cluster status --server {url}"),
    };
    Finding::wrong("server", says, mend)
}

/// Returns the finding about a mount whose own lock service grants no lock yet.
fn of_hold_off(about: &Value) -> Option<Finding> {
    let said = about["hold_off"]["detail"].as_str().map(harmless)?;
    let dir = about["dir"].as_str().map(harmless).unwrap_or_default();
    let mend = "wait; --grant-at-once skips that, where no earlier holder can be alive";
    Some(Finding::wrong("mount", format!("{dir}: {said}"), mend))
}

fn stuck_at(check: &'static str, url: &str, stuck: &Stuck) -> Finding {
    let is_tls = url.starts_with("https:");
    let (says, mend) = match stuck {
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
    Finding::wrong(check, says, mend)
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
    let mend = format!("latchfs doctor --server {url}, with the credentials of the mount");
    let mut findings = vec![match contact {
        _ if contact == Contact::Connected.as_str() => {
            Finding::well(check, format!("{dir} is connected to {url}"))
        }
        _ if contact == Contact::Jeopardy.as_str() => Finding::wrong(
            check,
            format!("{dir} waits for {url}, and what is held is still held: {why}"),
            mend,
        ),
        _ => Finding::wrong(
            check,
            format!("{dir} has lost {url}, and all that open files held: {why}"),
            mend,
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
        assert!(well.iter().all(|finding| finding.mend.is_none()));
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

    /// No lock depends on wall clocks, so a difference between them is reported as odd and not as a
    /// problem.
    #[test]
    fn clocks_that_differ_are_odd_and_not_wrong() {
        for ahead in [2_001, -86_400_000] {
            let [_, clock] =
                of_answers("u", RttSample { round_trip: Span::ZERO, wall_ahead_ms: ahead });
            assert!(!clock.is_wrong() && clock.mend.is_some(), "{clock:?}");
        }
        let [took, _] =
            of_answers("u", RttSample { round_trip: Span::from_secs(1), wall_ahead_ms: 0 });
        assert!(!took.is_wrong() && took.mend.is_some(), "{took:?}");
    }
}
