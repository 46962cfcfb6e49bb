//! The API of a single lock: status, acquire, renew, release, steal, sessions, tokens, and
//! idempotency keys.

use serde_json::{Value, json};
use testing::{Server, soon};

#[test]
fn lock_is_acquired_renewed_released_and_acquired_again() {
    let server = Server::start(&[]);
    let free = server.curl(&["/locks/build"]).is(200);
    assert_eq!((&free["phase"], &free["name"]), (&json!("free"), &json!("build")));
    let reply = server.curl(&["-X", "POST", "/locks/build?client=a&ttl=60s&note=hi"]);
    let granted = reply.is(200);
    assert_eq!((&granted["holder"], &granted["renewed"]), (&json!("a"), &json!(false)));
    assert_eq!((&granted["phase"], &granted["ttl_ms"]), (&json!("held"), &json!(60_000)));
    assert!(granted["expires_in_ms"].as_u64().is_some_and(|left| left > 50_000), "{granted}");
    let token = granted["token"].as_u64().expect("a token");
    assert_eq!(reply.header("etag"), Some(format!("\"{token}\"").as_str()));
    let status = server.curl(&["/locks/build"]);
    assert_eq!(status.is(200)["note"], "hi");
    assert_eq!(status.header("etag"), Some(format!("\"{token}\"").as_str()));
    let renewed = server.curl(&["-X", "POST", "/locks/build?client=a&reentrant=1"]).is(200);
    assert_eq!((&renewed["token"], &renewed["renewed"]), (&json!(token), &json!(true)));
    assert_eq!(server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200)["released"], true);
    let repeated = server.curl(&["-X", "PUT", "/locks/build?client=a"]).is(200);
    assert!(repeated["token"].as_u64().is_some_and(|newer| newer > token), "{repeated}");
}

#[test]
fn percent_encoded_names_are_equivalent() {
    let server = Server::start(&[]);
    for path in ["/locks/team/build", "/locks/team%2Fbuild", "/locks/t%65am/build"] {
        let held = server.curl(&["-X", "POST", &format!("{path}?client=a&reentrant=1")]).is(200);
        assert_eq!(held["name"], "team/build");
        assert_eq!(server.curl(&[path]).is(200)["holder"], "a");
    }
    for (path, holder) in [("/locks/caf%C3%A9", "a"), ("/locks/a%20b", "a"), ("/locks/%3F", "a")] {
        let held = server.curl(&["-X", "POST", &format!("{path}?client={holder}")]).is(200);
        assert_eq!(held["holder"], holder);
    }
    for path in ["/locks/%FF", "/locks/a//b", "/locks/.latchfs", "/locks/a%00b", "/locks/a%2F.."] {
        assert_eq!(server.curl(&["--path-as-is", path]).is(400)["kind"], "E_INVALID", "{path}");
    }
    server.curl(&[&format!("/locks/{}", "x".repeat(256))]).is(400);
}

#[test]
fn conflict_names_the_holder_and_when_to_retry() {
    let server = Server::start(&[]);
    let held = server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let reply = server.curl(&["-X", "POST", "/locks/build?client=b"]);
    let refused = reply.is(409);
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused["type"], "urn:latchfs:E_LOCK_CONFLICT");
    assert_eq!(refused["kind"], "E_LOCK_CONFLICT");
    assert_eq!((&refused["reason"], &refused["holder"]), (&json!("held"), &json!("a")));
    assert_eq!(refused["token"], held["token"]);
    let wait = refused["retry_after_ms"].as_u64().expect("it ends");
    assert!((30_000..=35_000).contains(&wait), "{refused}");
    assert!(reply.header("retry-after").is_some_and(|secs| secs.parse::<u64>().is_ok()));
}

/// A job may release twice, at its end and in a trap. Any other release of a free lock fails.
#[test]
fn a_second_release_of_the_last_tenure_succeeds() {
    let server = Server::start(&[]);
    let delete = |lock: &str, options: &str| {
        server.curl(&["-X", "DELETE", &format!("/locks/{lock}?{options}")])
    };
    let held = server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let mine = format!("client=a&token={}", held["token"]);
    assert_eq!(delete("build", &mine).is(200)["released"], true);
    for _ in 0..2 {
        assert_eq!(delete("build", &mine).is(200)["released"], false);
    }
    delete("build", &format!("client=b&token={}", held["token"])).is(410);
    delete("build", "client=a").is(403);
    server.curl(&["-X", "POST", "/locks/build?client=b"]).is(200);
    delete("build", &mine).is(412);
    // A tenure that lapsed or was stolen was not released.
    let lapses = server.curl(&["-X", "POST", "/locks/short?client=a&ttl=1s&grace=0s"]).is(200);
    let stolen = server.curl(&["-X", "POST", "/locks/lost?client=a"]).is(200);
    server.curl(&["-X", "POST", "/locks/lost/steal?client=b&reason=test"]).is(200);
    server.curl(&["-X", "DELETE", "/locks/lost?client=b"]).is(200);
    soon("it lapses", || (server.curl(&["/locks/short"]).is(200)["phase"] == "free").then_some(()));
    delete("short", &format!("client=a&token={}", lapses["token"])).is(410);
    soon("the lock is free", || {
        (server.curl(&["/locks/lost"]).is(200)["phase"] == "free").then_some(())
    });
    delete("lost", &format!("client=a&token={}", stolen["token"])).is(410);
}

/// A lock with seats has as many holders, each with a seat and a token of its own.
#[test]
fn seats_are_given_over_http() {
    let server = Server::start(&[]);
    let post = |options: &str| server.curl(&["-X", "POST", &format!("/locks/gpu?{options}")]);
    let holders = ["a", "b"].map(|client| post(&format!("client={client}&max=2")).is(200));
    assert_eq!(holders.each_ref().map(|held| held["seat"].clone()), [json!(0), json!(1)]);
    let refused = post("client=c&max=2").is(409);
    assert_eq!(refused["reason"], "held");
    let detail = refused["detail"].as_str().expect("a sentence");
    assert!(detail.contains("all 2 seats are taken, one of them by a for"), "{detail}");
    for options in ["client=c&max=3", "client=c&max=3&wait=10s"] {
        let refused = post(options).is(409);
        let detail = refused["detail"].as_str().expect("a sentence");
        assert!(detail.contains("has 2 seats while somebody holds it"), "{detail}");
    }
    for wrong in ["max=0", "max=1001", "max=2&mode=shared", "max=2&remember=true", "max=two"] {
        post(&format!("client=c&{wrong}")).is(400);
    }
    let status = server.curl(&["/locks/gpu"]).is(200);
    assert_eq!(
        (&status["mode"], &status["max"], &status["seat"]),
        (&json!("seats"), &json!(2), &json!(0))
    );
    let seats = status["holders"].as_array().expect("a list").iter();
    let seats = seats.map(|holder| (holder["client"].clone(), holder["seat"].clone()));
    assert_eq!(seats.collect::<Vec<_>>(), [(json!("a"), json!(0)), (json!("b"), json!(1))]);

    // The seat of one holder is taken, and nobody uses it until that holder has stopped.
    let steal = |token: &Value| {
        let path = format!("/locks/gpu/steal?client=c&reason=stuck&token={token}");
        server.curl(&["-X", "POST", &path])
    };
    let stolen = steal(&holders[0]["token"]).is(200);
    assert_eq!(stolen["seat"], 0);
    assert!(stolen["begins_in_ms"].as_u64().is_some_and(|left| left > 500), "{stolen}");
    steal(&holders[0]["token"]).is(412);

    // A waiter learns its seat too, and so does a repeat of its request.
    server.curl(&["-X", "DELETE", "/locks/gpu?client=b"]).is(200);
    for _ in 0..2 {
        let path = "/locks/gpu?client=d&max=2&wait=10s";
        let granted = server.curl(&["-X", "POST", "-H", "Idempotency-Key: one", path]).is(200);
        assert_eq!(granted["seat"], 1, "{granted}");
    }
    let metrics = server.curl(&["/metrics"]).body;
    assert!(metrics.contains("latchfs_holders_by_prefix{prefix=\"/\"} 2\n"), "{metrics}");
}

/// Two programs that act for one client exclude each other: the second is refused, unless its
/// request says that it refers to the lease of the first.
#[test]
fn two_programs_of_one_client_exclude_each_other() {
    let server = Server::start(&[]);
    let post =
        |options: &str| server.curl(&["-X", "POST", &format!("/locks/build?client=ci{options}")]);
    let first = post("&wait=10m").is(200);
    let refused = post("").is(409);
    assert_eq!((&refused["reason"], &refused["holder"]), (&json!("own"), &json!("ci")));
    let detail = refused["detail"].as_str().expect("a sentence");
    assert!(detail.contains("held by your own user, ci,"), "{detail}");
    assert_eq!(post("&wait=1s").is(409)["reason"], "waited_in_vain");
    assert_eq!(post("&reentrant=0").is(409)["reason"], "own");
    for means_its_own in ["&reentrant=true", &format!("&token={}", first["token"])] {
        let renewed = post(means_its_own).is(200);
        assert_eq!((&renewed["token"], &renewed["renewed"]), (&first["token"], &json!(true)));
    }
    // Two waiting requests of one client have two places in the queue, and are granted the lock one
    // after the other.
    let path = "/locks/build?client=ci&wait=60s";
    let (one, two) = (server.open(&["-X", "POST", path]), server.open(&["-X", "POST", path]));
    server.in_line("build", 2);
    server
        .curl(&["-X", "DELETE", &format!("/locks/build?client=ci&token={}", first["token"])])
        .is(200);
    server.in_line("build", 1);
    let held = server.curl(&["/locks/build"]).is(200)["token"].clone();
    server.curl(&["-X", "DELETE", &format!("/locks/build?client=ci&token={held}")]).is(200);
    let tokens = [one, two].map(|open| open.reply().is(200)["token"].as_u64().expect("a token"));
    assert_ne!(tokens[0], tokens[1]);
}

/// A request that names the session of a lease renews that lease, although its client already holds
/// the lock.
#[test]
fn acquire_with_the_session_of_a_lease_renews_it() {
    let server = Server::start(&[]);
    let [own, other] = ["1", "2"]
        .map(|_| server.curl(&["-X", "POST", "/sessions?client=ci"]).is(201)["session"].clone());
    let post = |session: &Value, options: &str| {
        let path = format!("/locks/build?client=ci&session={session}{options}");
        server.curl(&["-X", "POST", &path])
    };
    let first = post(&own, "").is(200);
    for options in ["", "&wait=1s", "&note=again"] {
        let renewed = post(&own, options).is(200);
        assert_eq!((&renewed["token"], &renewed["renewed"]), (&first["token"], &json!(true)));
    }
    assert_eq!(post(&other, "").is(409)["reason"], "own");
    assert_eq!(post(&other, "&wait=1s").is(409)["reason"], "waited_in_vain");
    assert_eq!(server.curl(&["/locks/build"]).is(200)["note"], "again");
}

#[test]
fn token_limits_a_request_to_its_tenure() {
    let server = Server::start(&[]);
    let first = server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200)["token"].clone();
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    let tag = format!("If-Match: \"{first}\"");
    // `If-Match` names the token of the first lease, which has been released since. The lock is
    // free, so the request is answered with 410.
    let gone = server.curl(&["-X", "POST", "-H", &tag, "/locks/build?client=a"]).is(410);
    assert_eq!(gone["kind"], "E_LOCK_EXPIRED");
    let second = server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200)["token"].clone();
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let stale = server.curl(&["-X", method, "-H", &tag, "/locks/build?client=a"]).is(412);
        assert_eq!(stale["kind"], "E_FENCING_MISMATCH", "{method}");
        assert_eq!(stale["token"], second, "{method}");
    }
    let tag = format!("If-Match: \"{second}\"");
    let kept = server.curl(&["-X", "PATCH", "-H", &tag, "/locks/build?client=a"]).is(200);
    assert_eq!(kept["token"], second);
    server.curl(&["-X", "PATCH", "-H", &tag, "/locks/build?client=b"]).is(403);
    server.curl(&["-X", "DELETE", "-H", "If-Match: x", "/locks/build?client=a"]).is(400);
    server.curl(&["-X", "DELETE", &format!("/locks/build?client=a&token={second}")]).is(200);
}

/// A release arrives late: its client has given up waiting for the response, and has acquired the
/// same lock again in the meantime. The release is refused, because it names the earlier acquire.
#[test]
fn late_release_does_not_end_a_later_acquisition() {
    let server = Server::start(&[]);
    let session = server.curl(&["-X", "POST", "/sessions?client=a"]).is(201)["session"].clone();
    let acquire = format!("/locks/build?client=a&session={session}");
    let first = server.curl(&["-X", "POST", &acquire]).is(200);
    let repeated = server.curl(&["-X", "POST", &acquire]).is(200);
    assert_eq!((&first["acquisition"], &repeated["acquisition"]), (&json!(0), &json!(1)));
    assert_eq!(first["token"], repeated["token"]);
    let release = |acquisition: &Value| {
        let token = &first["token"];
        let path = format!("/locks/build?client=a&token={token}&acquisition={acquisition}");
        server.curl(&["-X", "DELETE", &path])
    };
    let late = release(&first["acquisition"]).is(412);
    assert_eq!((&late["kind"], &late["acquisition"]), (&json!("E_FENCING_MISMATCH"), &json!(1)));
    assert_eq!(server.curl(&["/locks/build"]).is(200)["phase"], "held");
    release(&repeated["acquisition"]).is(200);
    assert_eq!(server.curl(&["/locks/build"]).is(200)["phase"], "free");
    server.curl(&["-X", "DELETE", "/locks/build?client=a&acquisition=x"]).is(400);
}

#[test]
fn renewal_changes_only_the_options_that_it_names() {
    let server = Server::start(&[]);
    server.curl(&["-X", "PATCH", "/locks/build?client=a"]).is(403);
    server.curl(&["-X", "POST", "/locks/build?client=a&ttl=60s&grace=7s&note=why"]).is(200);
    let kept = server.curl(&["-X", "PATCH", "/locks/build?client=a"]).is(200);
    assert_eq!((&kept["ttl_ms"], &kept["grace_ms"]), (&json!(60_000), &json!(7_000)));
    let longer = server.curl(&["-X", "PATCH", "/locks/build?client=a&ttl=2m"]).is(200);
    assert_eq!((&longer["ttl_ms"], &longer["grace_ms"]), (&json!(120_000), &json!(7_000)));
    assert_eq!(server.curl(&["/locks/build"]).is(200)["note"], "why");
}

#[test]
fn options_are_read_from_query_form_and_json() {
    let server = Server::start(&[]);
    let held = server.curl(&["-d", "client=a&ttl=60s", "/locks/form"]).is(200);
    assert_eq!(held["ttl_ms"], 60_000);
    let body = r#"{"client":"a","ttl":"1m","mode":"shared","note":null}"#;
    let json = "content-type: application/json";
    server.curl(&["-H", json, "-d", body, "/locks/json"]).is(200);
    server.curl(&["-X", "POST", "/locks/json?client=b&mode=shared"]).is(200);
    let status = server.curl(&["/locks/json"]).is(200);
    assert_eq!(status["holders"].as_array().map(Vec::len), Some(2));
    server.curl(&["-X", "POST", "/locks/json?client=c"]).is(409);
    for wrong in
        [r#"{"ttl":60}"#, r#"{"x":1}"#, "[]", "{", r#"{"token":-1}"#, r#"{"reentrant":"?"}"#]
    {
        let refused = server.curl(&["-H", json, "-d", wrong, "/locks/json?client=c"]).is(400);
        assert_eq!(refused["kind"], "E_INVALID", "{wrong}");
    }
    let odd = server.curl(&["-H", "content-type: text/xml", "-d", "<a/>", "/locks/x?client=c"]);
    odd.is(415);
}

#[test]
fn repeated_request_has_one_effect() {
    let server = Server::start(&[]);
    let key = "Idempotency-Key: 0c1f";
    let first = server.curl(&["-X", "POST", "-H", key, "/locks/build?client=a"]).is(200);
    // A request without an Idempotency-Key is refused, because the client already holds the lock. A
    // request with the key of the first one gets the first response again.
    server.curl(&["-X", "POST", "/locks/build?client=a"]).is(409);
    let repeated = server.curl(&["-X", "POST", "-H", key, "/locks/build?client=a"]);
    assert_eq!(repeated.header("idempotent-replayed"), Some("true"));
    assert_eq!(repeated.header("etag"), Some(&*format!("\"{}\"", first["token"])));
    same_but_for_the_milliseconds(&first, &repeated.is(200));
    assert_eq!(repeated.json()["current"]["phase"], "held");
    let free = "Idempotency-Key: 0c20";
    let released = server.curl(&["-X", "DELETE", "-H", free, "/locks/build?client=a"]).is(200);
    assert_eq!(released, json!({ "name": "build", "released": true }));
    let others = server.curl(&["-X", "POST", "/locks/build?client=b"]).is(200);
    let repeated = server.curl(&["-X", "DELETE", "-H", free, "/locks/build?client=a"]).is(200);
    assert_eq!(
        (&repeated["released"], &repeated["current"]["holder"]),
        (&json!(true), &json!("b"))
    );
    // The first request is repeated after its lease was released and another client has acquired
    // the lock. The response is the first one, with the present holder in `current`.
    let repeated = server.curl(&["-X", "POST", "-H", key, "/locks/build?client=a"]).is(200);
    same_but_for_the_milliseconds(&first, &repeated);
    let current = &repeated["current"];
    assert_eq!((&current["holder"], &current["token"]), (&json!("b"), &others["token"]));
    // A repeat may send its options in the body instead of the query. A request with the same key
    // that names another client is refused, because it is a different request.
    let body = "client=a";
    server.curl(&["-H", key, "-d", body, "/locks/build"]).is(200);
    server.curl(&["-X", "POST", "-H", key, "/locks/build?client=b"]).is(422);
    let long = format!("Idempotency-Key: {}", "x".repeat(300));
    server.curl(&["-X", "POST", "-H", &long, "/locks/build?client=a"]).is(400);
}

/// A repeat of a request whose lease has expired, while another client holds the lock, gets the
/// first response, marked as a replay, and beside it the current holder.
#[test]
fn repeat_after_the_tenure_gets_the_first_response() {
    let server = Server::start(&[]);
    let key = "Idempotency-Key: 0c1f";
    let ask = ["-X", "POST", "-H", key, "/locks/build?client=a&ttl=1s&grace=0s"];
    let first = server.curl(&ask).is(200);
    let others = server.curl(&["-X", "POST", "/locks/build?client=b&wait=20s"]).is(200);
    let repeated = server.curl(&ask);
    assert_eq!(repeated.is(200)["phase"], "held", "as it was then");
    same_but_for_the_milliseconds(&first, &repeated.json());
    assert_eq!(repeated.header("idempotent-replayed"), Some("true"));
    let current = &repeated.json()["current"];
    assert_eq!((&current["holder"], &current["token"]), (&json!("b"), &others["token"]));
    // The repeated request has not changed the holder of the lock, and the server answers the next
    // request within a second.
    let status = server.curl(&["--max-time", "1", "/locks/build"]).is(200);
    assert_eq!((&status["holder"], &status["token"]), (&json!("b"), &others["token"]));
}

/// A repeat of a request that opens a session, or that acquires a lock in the name of a session,
/// gets the first response, and opens no second session.
#[test]
fn repeat_opens_no_second_session() {
    let server = Server::start(&[]);
    let ask = ["-X", "POST", "-H", "Idempotency-Key: 1", "/sessions?client=a&ttl=1m"];
    let first = server.curl(&ask).is(201);
    let repeated = server.curl(&ask);
    assert_eq!(repeated.header("idempotent-replayed"), Some("true"));
    let repeated = repeated.is(201);
    same_but_for_the_milliseconds(&first, &repeated);
    assert_eq!(repeated["current"]["session"], first["session"]);
    let held = format!("/locks/x?client=a&session={}", first["session"]);
    let ask_held = ["-X", "POST", "-H", "Idempotency-Key: 2", &held];
    let granted = server.curl(&ask_held).is(200);
    server.curl(&["-X", "DELETE", &format!("/sessions/{}", first["session"])]).is(200);
    assert_eq!(server.curl(&ask).is(201)["current"], Value::Null);
    let repeated = server.curl(&ask_held).is(200);
    assert_eq!((&repeated["token"], &repeated["phase"]), (&granted["token"], &json!("held")));
    assert_eq!(repeated["current"]["phase"], "free");
}

/// Checks that the repeated response equals the first one, except for the times in it: the wall
/// clock times are computed when each response is written, and the remaining time may differ by
/// less than a second.
#[track_caller]
fn same_but_for_the_milliseconds(first: &Value, repeated: &Value) {
    let close = |key: &str| {
        let at = |value: &Value| value[key].as_u64().expect("a number");
        at(repeated).abs_diff(at(first)) < 1_000
    };
    for (key, value) in first.as_object().expect("an object") {
        match key.as_str() {
            "expires_in_ms" => assert!(close(key), "{first} {repeated}"),
            "expires_at" | "grace_until" => assert!(repeated[key].is_string(), "{repeated}"),
            _ => assert_eq!(value, &repeated[key], "{key}"),
        }
    }
}

#[test]
fn steal_needs_a_reason_and_begins_after_a_delay() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events?prefix=team/"]);
    let held = server.curl(&["-X", "POST", "/locks/team/build?client=a"]).is(200);
    server.curl(&["-X", "POST", "/locks/team/build/steal?client=b"]).is(400);
    let why = "reason=host+died";
    let stolen =
        server.curl(&["-X", "POST", &format!("/locks/team/build/steal?client=b&{why}")]).is(200);
    assert!(stolen["token"].as_u64() > held["token"].as_u64(), "{stolen}");
    assert!(stolen["begins_in_ms"].as_u64().is_some_and(|left| left <= 1_000), "{stolen}");
    let refused = server.curl(&["-X", "POST", "/locks/team/build?client=c"]).is(409);
    assert_eq!(refused["reason"], "steal_grace");
    let stolen = events.until("stolen");
    assert_eq!((&stolen.data["by"], &stolen.data["reason"]), (&json!("b"), &json!("host died")));
    // A PUT to a path that ends in `/steal` steals nothing: it acquires the lock whose name ends in
    // `/steal`.
    let lock = server.curl(&["-X", "PUT", "/locks/team/steal?client=c"]).is(200);
    assert_eq!(lock["name"], "team/steal");
    let path = "/locks/team%2Fsteal?client=c&reentrant=1";
    let lock = server.curl(&["-X", "POST", path]).is(200);
    assert_eq!((&lock["name"], &lock["renewed"]), (&json!("team/steal"), &json!(true)));
}
