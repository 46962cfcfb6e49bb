//! Sends each request that the permission table (`latchfs serve --print-permissions`) lists. The
//! test fails if the table lists a request that this module can't send.

use super::site::{SHOWN, Site, Sites};
use super::{ALL, Case, Outcome, Who};
use latchfs::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use latchfs::engine::{
    Acquire, Annotate, ClientId, EndHoldOff, EndSession, Firm, Forget, IfExists, LeaseKey,
    LeaseTerms, Leave, LeaveReason, LockName, Move, Op, OpenSession, Outcome as Decided, Patch,
    QueuePolicy, Release, Renew, Reset, ResetScope, SessionEnd, SessionId, Steal, StealReason,
    Ticket,
};
use latchfs::service::batch::batch_messages::{
    ANY_START, BatchItem, ItemReply, RequestBatch, decode_response, encode_batch,
};
use latchfs::service::{Children, List, Unavailable};

/// Sends a request of the permission table for a caller, and returns its outcome.
pub(super) fn send(sites: &Sites, request: &str, who: &Who, case: &Case) -> Outcome {
    match request.split_once(' ').expect("two words") {
        ("batch", ask) => batch(sites, ask, who, case),
        ("line", word) => line(sites, word, who, case),
        (method, path) => http(sites, method, path, who, case),
    }
}

fn http(sites: &Sites, method: &str, path: &str, who: &Who, case: &Case) -> Outcome {
    let Case { client, lock, .. } = case;
    let named = |path: &str| path.replace("{name}", lock).replace("{node}", "999");
    let session = || path.replace("{session}", &open(sites, who.site, client).to_string());
    let (mut until, mut body) = (None, Vec::new());
    let asked = match (method, path) {
        (
            "GET",
            "/lock"
            | "/locks"
            | "/locks/{name}"
            | "/locks/{name}/previous"
            | "/history"
            | "/backup"
            | "/metrics"
            | "/cluster"
            | "/cluster/pending"
            | "/"
            | "/me"
            | "/healthz"
            | "/readyz"
            | "/openapi.json",
        )
        | ("POST", "/cluster/transfer" | "/cluster/nodes/{node}/promote")
        | ("DELETE", "/cluster/nodes/{node}") => named(path),
        ("POST" | "DELETE", "/lock")
        | ("DELETE", "/locks" | "/locks/{name}/previous")
        | ("POST" | "PUT" | "PATCH" | "DELETE", "/locks/{name}")
        | ("POST", "/sessions") => format!("{}?client={client}", named(path)),
        ("POST", "/locks/{name}/steal") => format!("{}?client={client}&reason=why", named(path)),
        ("PATCH", "/locks/{name}/previous") => {
            format!("{}?client={client}&token=1&handover=x&counter=1", named(path))
        }
        ("POST", "/check") => format!("/check?name={lock}&token=1"),
        ("POST", "/reset") => format!("/reset?of=nobody&client={client}&reason=why"),
        ("POST", "/grant-now") => format!("/grant-now?client={client}&reason=why"),
        ("GET" | "DELETE", "/sessions/{session}") | ("POST", "/sessions/{session}/keepalive") => {
            session()
        }
        ("GET", "/events") => {
            until = Some(SHOWN);
            "/events?since=0".to_owned()
        }
        ("GET", "/door/v1/events") => {
            until = Some(SHOWN);
            format!("/door/v1/events?start={ANY_START}&since=0")
        }
        ("POST", "/door/v1/ask") => {
            body = encode_batch(&batch_of(BatchItem::Now));
            path.to_owned()
        }
        // None of these servers lets machines join, which a caller with the right to ask is told.
        ("POST", path) if path.starts_with("/devices/v1/") => path.to_owned(),
        _ => panic!("say here how {method} {path} is asked"),
    };
    let (code, body) = sites.http(who, method, &asked, &body, until);
    let text = String::from_utf8_lossy(&body);
    let is_denied = code == 401 || (code == 403 && text.contains("\"E_DENIED\""));
    Outcome { is_denied, body }
}

/// Opens a session for `client` with a credential that has all rights; returns its id.
pub(super) fn open(sites: &Sites, site: Site, client: &str) -> u64 {
    let path = format!("/sessions?client={client}");
    let (code, body) = sites.http(&Who { site, ..ALL }, "POST", &path, &[], None);
    let text = String::from_utf8(body).expect("text");
    assert_eq!(code, 201, "{text}");
    let json: serde_json::Value = serde_json::from_str(text.trim()).expect("JSON");
    json["session"].as_u64().expect("a number")
}

fn line(sites: &Sites, word: &str, who: &Who, Case { client, lock, .. }: &Case) -> Outcome {
    let asked = match word {
        "LOCK" | "RENEW" | "UNLOCK" | "OWN" => format!("{word},{lock},{client}"),
        "REGISTER" => format!("{word},127.0.0.1:9"),
        "AUTH" => format!("{word},{}", who.token.unwrap_or("nothing")),
        _ => panic!("say here how {word} is asked"),
    };
    let is_open = who.site == Site::Open || word == "AUTH";
    let auth = who.token.filter(|_| !is_open).map(|token| format!("AUTH,{token}"));
    let lines: Vec<_> = auth.into_iter().chain([asked]).collect();
    let said = sites.line(who, &lines);
    Outcome { is_denied: said.is_empty() || said == "ERROR", body: said.into_bytes() }
}

fn batch_of(ask: BatchItem) -> RequestBatch {
    RequestBatch::new(0, vec![ask])
}

fn batch(sites: &Sites, ask: &str, who: &Who, case: &Case) -> Outcome {
    let ask = ask_of(sites, ask, who.site, case);
    let Some(reply) = submit(sites, who, ask) else {
        return Outcome { is_denied: true, body: Vec::new() };
    };
    let is_denied = matches!(&reply, ItemReply::Unavailable(Unavailable::Denied { .. }));
    Outcome { is_denied, body: format!("{reply:?}").into_bytes() }
}

/// Sends a batch with a single command, and returns the reply to it; `None` if the caller is not
/// authenticated.
pub(super) fn submit(sites: &Sites, who: &Who, ask: BatchItem) -> Option<ItemReply> {
    let bytes = encode_batch(&batch_of(ask));
    let (code, body) = sites.http(who, "POST", "/door/v1/ask", &bytes, None);
    if code == 401 {
        return None;
    }
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
    decode_response(&body[4..]).expect("an answer").replies.pop()
}

fn ask_of(sites: &Sites, ask: &str, site: Site, case: &Case) -> BatchItem {
    let name = || LockName::parse(&case.lock).expect("a name");
    let client = || ClientId::parse(case.client).expect("a client");
    let key = || LeaseKey { name: name(), client: client(), token: None };
    let reason = || StealReason::parse("why").expect("a reason");
    let (term, patch) = (LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT), Patch::default());
    let session = || SessionId::named(open(sites, site, case.client));
    let op = match ask {
        "view" => return BatchItem::View(name()),
        "list" => return BatchItem::List(List { limit: 4_096, ..List::default() }),
        "children" => {
            let parent = Some(LockName::parse("team").expect("a name"));
            return BatchItem::Children(Children { parent, cursor: None, limit: 4_096 });
        }
        "about" => return BatchItem::About,
        "now" => return BatchItem::Now,
        "leases" => return BatchItem::Leases(session(), None),
        "urls" => return BatchItem::Urls,
        "settle" => Op::Settle,
        "acquire" => Op::Acquire(acquire(name(), client(), QueuePolicy::Skip)),
        "renew" => {
            Op::Renew(Renew { key: key(), term: None, firm: Firm::Keep, patch, acquires: false })
        }
        "annotate" => Op::Annotate(Annotate { key: key(), patch, handover: None }),
        "release" => Op::Release(Release::of(key())),
        "leave" => {
            let ticket = queue(sites, site, case);
            Op::Leave(Leave { name: name(), ticket, why: LeaveReason::Asked })
        }
        "move" => {
            let to = LockName::parse(&case.to).expect("a name");
            Op::Move(Move { from: key(), to, over: IfExists::Refuse })
        }
        "steal" => Op::Steal(Steal {
            name: name(),
            client: client(),
            reason: reason(),
            term,
            patch,
            at_once: false,
            only: None,
        }),
        "open-session" => {
            let (ttl, grace) = (Some(TTL_DEFAULT), GRACE_DEFAULT);
            Op::OpenSession(OpenSession { client: client(), ttl, grace })
        }
        "keep-alive" => Op::KeepAlive(session()),
        "end-session" => Op::EndSession(EndSession { session: session(), end: SessionEnd::Closed }),
        "grant-now" => Op::EndHoldOff(EndHoldOff { by: client(), reason: reason() }),
        "forget" => Op::Forget(Forget { name: name(), by: client() }),
        "reset" => {
            let whose = ResetScope::Of(ClientId::parse("nobody").expect("a client"));
            Op::Reset(Reset::new(whose, client(), reason()))
        }
        _ => panic!("say here how the part '{ask}' of a batch is asked"),
    };
    BatchItem::Submit(op.into())
}

fn acquire(name: LockName, client: ClientId, line: QueuePolicy) -> Acquire {
    Acquire { line, ..Acquire::new(name, client, LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT)) }
}

/// Makes the client wait for a lock that another client holds. Returns the ticket, which identifies
/// the client's place in the queue of the lock.
fn queue(sites: &Sites, site: Site, case: &Case) -> Ticket {
    let admin = Who { site, ..ALL };
    let holder = ClientId::parse("holder").expect("a client");
    let waiter = ClientId::parse(case.client).expect("a client");
    let name = || LockName::parse(&case.lock).expect("a name");
    let ask = |op| submit(sites, &admin, BatchItem::Submit(Op::Acquire(op).into())).expect("known");
    ask(acquire(name(), holder, QueuePolicy::Skip));
    match ask(acquire(name(), waiter, QueuePolicy::Join(None))) {
        ItemReply::Answered(Ok(Decided::Waiting { ticket, .. })) => ticket,
        other => panic!("{other:?}"),
    }
}
