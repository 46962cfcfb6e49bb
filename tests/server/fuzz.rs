//! Requests that nobody thinks of, made from the server's own document: none is answered with
//! a 5xx, none takes the server along, and every answer is as the document says.

use crate::harness::{LATCHFS, Scratch, Server};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Requests for each operation: what a minute on a loaded machine allows.
const EXAMPLES: &str = "60";

/// The checks of each answer. Methods have a test of their own: the path of a steal is, for other
/// methods, that of a lock.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_schema_conformance";

/// The document without what never ends: the stream of events, and waits of hours.
fn what_ends(mut document: Value) -> Value {
    let paths = document["paths"].as_object_mut().expect("paths");
    paths.shift_remove("/events");
    for act in paths.values_mut().flat_map(|path| path.as_object_mut().expect("acts").values_mut())
    {
        if let Some(parameters) = act["parameters"].as_array_mut() {
            parameters.retain(|parameter| parameter["name"] != "wait");
        }
        let schema = &mut act["requestBody"]["content"]["application/json"]["schema"];
        if let Some(members) = schema["properties"].as_object_mut() {
            members.shift_remove("wait");
        } else {
            act.as_object_mut().expect("an act").shift_remove("requestBody");
        }
    }
    document
}

#[test]
fn no_request_is_answered_with_an_error_of_ours() {
    let server = Server::start(&[]);
    let scratch = Scratch::new();
    let path = scratch.path().join("openapi.json");
    let document = what_ends(server.curl(&["/openapi.json"]).is(200));
    fs::write(&path, document.to_string()).expect("a fresh directory");
    let target = Path::new(LATCHFS).parent().and_then(Path::parent).expect("it lies there");
    let seed = latchfs::time::boot_now().as_nanos() % 1_000_000_007;
    println!("schemathesis --seed {seed}");
    let output = Command::new(target.join("test-tools/venv/bin/schemathesis"))
        .args(["run", "--url", &server.url, "--checks", CHECKS, "--max-examples", EXAMPLES])
        .args(["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-color"])
        .args(["--suppress-health-check", "all", "--request-timeout", "20", "--warnings", "off"])
        .args(["--seed", &seed.to_string()])
        .arg(&path)
        .current_dir(scratch.path())
        .output()
        .expect("contrib/test installs it");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    server.curl(&["/healthz"]).is(200);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}
