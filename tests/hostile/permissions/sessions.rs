//! Requests that use a session. By the permission table, the caller must be allowed to act as the
//! client that the request names, and as the owner of the session.

use super::ask::{open, submit};
use super::site::{Site, Sites};
use super::{ALICES, BOBS, CALLERS, Row, Who, table};
use latchfs::engine::values::lease::GRACE_DEFAULT;
use latchfs::engine::{
    Acquire, ClientId, Firm, LeaseKey, LeaseTerms, LockName, Mode, Op, OpenId, Ownership, Patch,
    QueuePolicy, Renew, SessionId, Steal, StealReason, Ttl,
};
use latchfs::service::Unavailable;
use latchfs::service::batch::batch_messages::{BatchItem, ItemReply};

const OVER_HTTP: [&str; 4] =
    ["POST /locks/{name}", "PUT /locks/{name}", "PATCH /locks/{name}", "POST /locks/{name}/steal"];
const IN_A_BATCH: [&str; 4] = ["batch acquire", "batch open-file", "batch renew", "batch steal"];

/// Returns the name that the permission table has for a request of this test. The table has one
/// entry for all acquires in a batch, also for those by an open file.
fn in_the_table(request: &str) -> &str {
    if request == "batch open-file" { "batch acquire" } else { request }
}

fn is_denied(sites: &Sites, who: &Who, request: &str, client: &str, lock: &str, on: u64) -> bool {
    let Some(part) = request.strip_prefix("batch ") else {
        let (method, path) = request.split_once(' ').expect("two words");
        let path = path.replace("{name}", lock);
        let why = if path.ends_with("/steal") { "&reason=why" } else { "" };
        let path = format!("{path}?client={client}&session={on}{why}");
        let (code, body) = sites.http(who, method, &path, &[], None);
        let text = String::from_utf8_lossy(&body);
        return code == 401 || (code == 403 && text.contains("\"E_DENIED\""));
    };
    let session = SessionId::named(on);
    let (name, client) = (LockName::parse(lock).expect("a name"), ClientId::parse(client));
    let client = client.expect("a client");
    let key = LeaseKey { name: name.clone(), client: client.clone(), token: None };
    let (mode, patch, line) = (Mode::Exclusive, Patch::default(), QueuePolicy::Skip);
    let on_session = LeaseTerms::Session(session);
    let op = match part {
        "acquire" => {
            let hold = Ownership::Client;
            Op::Acquire(Acquire {
                mode,
                hold,
                line,
                patch,
                ..Acquire::new(name, client, on_session)
            })
        }
        "open-file" => {
            let hold = Ownership::OpenFile(OpenId { session, number: 1 });
            let term = LeaseTerms::Own(Ttl::parse("10s").expect("a ttl"), GRACE_DEFAULT);
            Op::Acquire(Acquire { mode, hold, line, patch, ..Acquire::new(name, client, term) })
        }
        "renew" => {
            let (term, firm) = (Some(on_session), Firm::Keep);
            Op::Renew(Renew { key, term, firm, patch, acquires: false })
        }
        "steal" => {
            let reason = StealReason::parse("why").expect("a reason");
            Op::Steal(Steal {
                name,
                client,
                reason,
                term: on_session,
                patch,
                at_once: false,
                only: None,
            })
        }
        other => panic!("say here how {other} is asked"),
    };
    match submit(sites, who, BatchItem::Submit(op.into())) {
        None => true,
        Some(reply) => matches!(reply, ItemReply::Unavailable(Unavailable::Denied { .. })),
    }
}

#[test]
fn requests_with_sessions_of_others_are_decided_by_the_table() {
    let (sites, mut number, mut wrong) = (Sites::start(), 0, Vec::new());
    let rows = table();
    let row_of = |request: &str| -> &Row {
        let has = |row: &&Row| row.requests.iter().any(|listed| listed == request);
        rows.iter().find(has).unwrap_or_else(|| panic!("{request} is not in the table"))
    };
    for who in CALLERS {
        let [own, others] = if who.site == Site::Mount { [BOBS, ALICES] } else { ["a", "b"] };
        for request in OVER_HTTP.into_iter().chain(IN_A_BATCH) {
            let row = row_of(in_the_table(request));
            for (client, owner) in [(own, own), (own, others), (others, own)] {
                number += 1;
                let lock = format!("team/on-{number}");
                let session = open(&sites, who.site, owner);
                let denied = is_denied(&sites, who, request, client, &lock, session);
                let allowed = row.allows(who, client, &[&lock]) && row.allows(who, owner, &[&lock]);
                if denied == allowed {
                    let by = format!("{request} by {} as {client}", who.name);
                    wrong.push(format!("{by} on a session of {owner}: denied {denied}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
