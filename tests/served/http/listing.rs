//! The endpoints about many locks, metrics and documentation: pages, token checks, history,
//! metrics, and the `OpenAPI` document.

use serde_json::{Value, json};
use testing::Server;

fn names(page: &Value) -> Vec<&str> {
    let locks = page["locks"].as_array().expect("a list");
    locks.iter().filter_map(|lock| lock["name"].as_str()).collect()
}

#[test]
fn held_locks_are_listed_in_pages() {
    let server = Server::start(&[]);
    assert_eq!(server.curl(&["/locks"]).is(200), json!({ "locks": [], "next": null }));
    for name in ["b", "team/x", "team/y", "team/z", "a"] {
        server.curl(&["-X", "POST", &format!("/locks/{name}?client=a")]).is(200);
    }
    let all = server.curl(&["/locks"]).is(200);
    assert_eq!(names(&all), ["a", "b", "team/x", "team/y", "team/z"]);
    let team = server.curl(&["/locks?prefix=team/&limit=2"]).is(200);
    assert_eq!((names(&team), &team["next"]), (vec!["team/x", "team/y"], &json!("team/y")));
    let rest = server.curl(&["/locks?prefix=team/&limit=2&after=team/y"]).is(200);
    assert_eq!((names(&rest), &rest["next"]), (vec!["team/z"], &Value::Null));
    server.curl(&["/locks?limit=0"]).is(400);
    server.curl(&["/locks?limit=x"]).is(400);
}

/// Remembered names are listed also while nobody holds their locks, and other names are not.
#[test]
fn remembered_names_are_listed() {
    let server = Server::start(&[]);
    assert_eq!(server.curl(&["/locks?remembered=true"]).is(200)["locks"], json!([]));
    for name in ["folder-c", "folder-a", "folder-b", "other"] {
        let path = format!("/locks/{name}?client=x&remember=true");
        server.curl(&["-X", "POST", &path]).is(200);
    }
    server.curl(&["-X", "POST", "/locks/folder-plain?client=x"]).is(200);
    server.curl(&["-X", "DELETE", "/locks/folder-b?client=x"]).is(200);
    for more in ["", "&consistency=stale"] {
        let list =
            |query: &str| server.curl(&[&format!("/locks?remembered=true{more}{query}")]).is(200);
        assert_eq!(names(&list("")), ["folder-a", "folder-b", "folder-c", "other"]);
        let folders = list("&prefix=folder-&limit=2");
        assert_eq!(names(&folders), ["folder-a", "folder-b"]);
        assert_eq!(
            (&folders["locks"][0]["holder"], &folders["next"]),
            (&"x".into(), &"folder-b".into())
        );
        let free = &folders["locks"][1];
        assert_eq!((&free["phase"], &free["previous"]), (&"free".into(), &json!({ "seq": 1 })));
        assert_eq!(names(&list("&prefix=folder-&limit=2&after=folder-b")), ["folder-c"]);
    }
    let held = server.curl(&["/locks?prefix=folder-"]).is(200);
    assert_eq!(names(&held), ["folder-a", "folder-c", "folder-plain"]);
}

/// On a single server, a stale read is as current as a linearizable one.
#[test]
fn stale_read_of_a_single_server_is_current() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/team/x?client=a"]).is(200);
    let list = server.curl(&["/locks?consistency=stale&prefix=team/"]).is(200);
    assert_eq!((names(&list), &list["age_ms"]), (vec!["team/x"], &json!(0)));
    let one = server.curl(&["/locks/team/x?consistency=stale"]).is(200);
    assert_eq!((&one["holder"], &one["age_ms"]), (&json!("a"), &json!(0)));
    let before = server.curl(&["/locks/team/x?consistency=local"]).is(200);
    assert_eq!((&before["holder"], &before["age_ms"]), (&json!("a"), &json!(0)), "an alias");
    let now = server.curl(&["/locks/team/x?consistency=linearizable"]).is(200);
    assert_eq!(now.get("age_ms"), None);
    let why = server.curl(&["/locks?consistency=strong"]).is(400);
    assert!(why["detail"].as_str().is_some_and(|why| why.contains("linearizable or stale")));
}

#[test]
fn check_tells_whether_a_token_is_current() {
    let server = Server::start(&[]);
    let first = server.curl(&["-X", "POST", "/locks/a?client=x"]).is(200)["token"].clone();
    let checked = server.curl(&["-X", "POST", &format!("/check?name=a&token={first}")]).is(200);
    assert_eq!((&checked["current"], &checked["phase"]), (&json!(true), &json!("held")));
    server.curl(&["-X", "DELETE", "/locks/a?client=x"]).is(200);
    let checked = server.curl(&["-X", "POST", &format!("/check?name=a&token={first}")]).is(200);
    assert_eq!((&checked["current"], &checked["current_token"]), (&json!(false), &Value::Null));
    let second = server.curl(&["-X", "POST", "/locks/a?client=x"]).is(200)["token"].clone();
    let body = json!({ "checks": [
        { "name": "a", "token": first }, { "name": "a", "token": second },
    ] });
    let json = "content-type: application/json";
    let both = server.curl(&["-H", json, "-d", &body.to_string(), "/check"]).is(200);
    assert_eq!(both["checks"][0]["current"], false);
    assert_eq!(both["checks"][0]["current_token"], second);
    assert_eq!(both["checks"][1]["current"], true);
    server.curl(&["-X", "POST", "/check"]).is(400);
    server.curl(&["-X", "POST", "/check?name=a"]).is(400);
}

#[test]
fn ended_tenures_are_in_the_history() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/a?client=x"]).is(200);
    server.curl(&["-X", "DELETE", "/locks/a?client=x"]).is(200);
    let history = server.curl(&["/history"]).is(200);
    let tenure = &history["tenures"][0];
    assert_eq!((&tenure["name"], &tenure["end"]), (&json!("a"), &json!("released")));
    assert_eq!(server.curl(&["/history?prefix=b"]).is(200)["tenures"], json!([]));
    server.curl(&["-X", "POST", "/locks/b?client=x"]).is(200);
    server.curl(&["-X", "POST", "/locks/b/steal?client=y&reason=host+died"]).is(200);
    let history = server.curl(&["/history?prefix=b"]).is(200);
    let stolen = &history["tenures"][0];
    assert_eq!((&stolen["holder"], &stolen["end"]), (&json!("x"), &json!("stolen")));
    assert_eq!((&stolen["by"], &stolen["reason"]), (&json!("y"), &json!("host died")));
}

#[test]
fn metrics_count_requests_and_grants() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/a?client=x"]).is(200);
    server.curl(&["-X", "POST", "/locks/a?client=y"]).is(409);
    let waits = server.open(&["-X", "POST", "/locks/a?client=y&wait=60s"]);
    server.in_line("a", 1);
    server.curl(&["-X", "DELETE", "/locks/a?client=x"]).is(200);
    waits.reply().is(200);
    let metrics = server.curl(&["/metrics"]);
    assert_eq!(metrics.code, 200);
    for line in [
        "latchfs_grants_total 2",
        "latchfs_refusals_total{kind=\"E_LOCK_CONFLICT\"} 2",
        "latchfs_locks 1",
        "latchfs_waiters 0",
        "latchfs_wait_seconds_count 1",
        "latchfs_hold_seconds_count 1",
        "latchfs_hold_seconds_bucket{le=\"+Inf\"} 1",
        "latchfs_http_requests_total{method=\"POST\",route=\"/locks/{name}\",code=\"409\"} 1",
        "# TYPE latchfs_wait_seconds histogram",
    ] {
        assert!(metrics.body.lines().any(|has| has == line), "{line}\n{}", metrics.body);
    }
    // Prometheus asks for OpenMetrics; other clients get the text format of Prometheus.
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let open = server.curl(&["-H", accept, "/metrics"]);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.header("content-type"), Some(kind));
    assert!(open.body.ends_with("# EOF\n"), "{}", open.body);
    let version = env!("CARGO_PKG_VERSION");
    assert!(metrics.body.contains(&format!("latchfs_build_info{{version=\"{version}\"}} 1")));
    // The metrics page has only one `# TYPE` line for each metric family, as Prometheus requires.
    let heads: Vec<_> = metrics.body.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let mut once = heads.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(heads.len(), once.len(), "{heads:?}");
}

/// Every path in the `OpenAPI` document exists on the server, and answers other methods with 405.
#[test]
fn document_and_server_agree() {
    let server = Server::start(&[]);
    let document = server.curl(&["/openapi.json"]).is(200);
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() > 10);
    for (path, methods) in paths {
        let path = path.replace("{name}", "some").replace("{session}", "7");
        let methods = methods.as_object().expect("methods");
        for method in ["get", "post", "put", "patch", "delete"] {
            if path == "/events" && method == "get" {
                continue; // it would go on for ever
            }
            let reply = server.curl(&["-X", &method.to_ascii_uppercase(), &path]);
            let known = methods.contains_key(method);
            // `/locks/{name}/steal` is a steal for POST only. For all other methods it is the path
            // of a lock whose name ends in `/steal`, so they are not answered with 405.
            let known = known || (path.ends_with("/steal") && method != "post");
            assert_eq!(reply.code == 405, !known, "{method} {path}: {reply:?}");
            assert_ne!(reply.code, 404, "{method} {path}");
        }
    }
}
