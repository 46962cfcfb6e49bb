//! Fuzzing of the HTTP API by requests generated from the server's own `OpenAPI` document: no
//! response is a 5xx, every response conforms to the document, and the server survives.

use serde_json::Value;
use std::fs;
use std::process::Command;
use testing::{Scratch, Server, python_tool};

/// The number of requests for each operation: as many as a minute on a loaded machine allows.
const EXAMPLES: &str = "60";

/// The checks that the fuzzer applies to each response. Its check of unsupported methods is left
/// out: `/locks/{name}/steal` is a steal for POST only, and for other methods the path of a lock
/// whose name ends in `/steal`.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_schema_conformance";

/// Returns the `OpenAPI` document without requests that may never end: the event stream, and the
/// option `wait`.
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
fn generated_requests_cause_no_server_error() {
    let server = Server::start(&[]);
    let scratch = Scratch::new();
    let path = scratch.path().join("openapi.json");
    let document = what_ends(server.curl(&["/openapi.json"]).is(200));
    fs::write(&path, document.to_string()).expect("a fresh directory");
    let seed = latchfs::time::boot_now().as_nanos() % 1_000_000_007;
    println!("schemathesis --seed {seed}");
    let output = Command::new(python_tool("schemathesis"))
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
