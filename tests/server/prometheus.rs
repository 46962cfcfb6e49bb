//! The rules of `contrib/prometheus` and the dashboard of `contrib/grafana`, evaluated by a real
//! Prometheus that scrapes a server and two cluster nodes.

use crate::harness::{Scratch, Server, eventually};
use crate::nodes::Nodes;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn contrib(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib").join(path)
}

fn rules_file() -> PathBuf {
    contrib("prometheus/latchfs.rules.yml")
}

/// A running Prometheus that scrapes servers.
struct Prometheus {
    child: Child,
    url: String,
    scratch: Scratch,
}

impl Prometheus {
    #[track_caller]
    fn watching(servers: &[&Server]) -> Self {
        let scratch = Scratch::new();
        let target = |server: &&Server| server.url.replace("http://", "");
        let targets = servers.iter().map(target).collect::<Vec<_>>().join("', '");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: ['{}']\n\
             scrape_configs:\n\
             - {{ job_name: latchfs, static_configs: [{{ targets: ['{targets}'] }}] }}\n",
            rules_file().display(),
        );
        let path = scratch.path().join("prometheus.yml");
        fs::write(&path, config).expect("ours");
        // Prometheus can't choose a free port itself, so the test finds one.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let address = port.expect("loopback").to_string();
        let log = fs::File::create(scratch.path().join("log")).expect("ours");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", path.display()));
        command.arg(format!("--storage.tsdb.path={}", scratch.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().expect("contrib/test installs prometheus");
        Self { child, url: format!("http://{address}"), scratch }
    }

    /// Returns the response of the Prometheus API to a query.
    fn api(&self, path: &str, query: &str) -> Option<Value> {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "20", "-G", "--data-urlencode"]);
        command.arg(format!("query={query}")).arg(format!("{}/api/v1/{path}", self.url));
        serde_json::from_slice(&command.output().expect("curl is there").stdout).ok()
    }

    /// Waits until a Prometheus expression has a result; fails if the expression is invalid.
    #[track_caller]
    fn result(&self, expression: &str) -> Value {
        eventually(expression, || {
            let answer = self.api("query", expression)?;
            assert_eq!(answer["status"], "success", "{expression}: {answer}");
            let found = &answer["data"]["result"];
            (!found.as_array()?.is_empty()).then(|| found.clone())
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default();
            eprintln!("prometheus said:\n{log}");
        }
    }
}

/// Starts a server, and makes every event happen that its metrics count.
fn a_busy_server() -> Server {
    let server = Server::start(&[]);
    let post = |path: &str| server.curl(&["-X", "POST", path]);
    post("/locks/a?client=x").is(200);
    post("/locks/a?client=x&reentrant=1").is(200);
    post("/locks/a?client=y").is(409);
    post("/locks/a/steal?client=y&reason=test").is(200);
    post("/locks/b?client=x").is(200);
    server.curl(&["-X", "DELETE", "/locks/b?client=x"]).is(200);
    post("/sessions?client=x").is(201);
    server
}

/// Collects the value of every `expr` field in a JSON value.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| expressions(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

/// Replaces the variables `$__rate_interval` and `$__interval` in an expression of a Grafana
/// dashboard by durations, so that Prometheus can evaluate it.
#[track_caller]
fn filled_in(expression: &str) -> String {
    let filled = expression.replace("$__rate_interval", "1m").replace("$__interval", "15s");
    assert!(!filled.contains('$'), "{filled}");
    filled
}

/// Returns the names of the latchfs metrics in a Prometheus expression.
fn metrics_in(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.starts_with("latchfs_"))
}

#[track_caller]
fn promtool(arguments: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("contrib/test installs prometheus");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn rules_and_metrics_are_well_formed() {
    promtool(&["check", "rules", &rules_file().display().to_string()], "");
    let server = a_busy_server();
    promtool(&["check", "metrics"], &server.curl(&["/metrics"]).body);
    let nodes = Nodes::start();
    promtool(&["check", "metrics"], &nodes.leader.curl(&["/metrics"]).body);
}

#[test]
fn dashboard_and_rules_use_existing_metrics() {
    let server = a_busy_server();
    let nodes = Nodes::start();
    let servers = [&server, &nodes.leader, &nodes.learner];
    let prometheus = Prometheus::watching(&servers);
    // A rate needs at least two samples of each series, so the test waits until Prometheus has
    // scraped each of the three servers three times.
    prometheus.result("count(count_over_time(latchfs_locks[1m]) > 2) == 3");
    // Metrics of latency have no rate unless an operation follows the first scrape, so the test
    // acquires a lock now.
    nodes.leader.curl(&["-X", "POST", "/locks/a?client=x"]).is(200);
    let dashboard = fs::read_to_string(contrib("grafana/latchfs.json")).expect("it is there");
    let mut shown = Vec::new();
    expressions(&serde_json::from_str(&dashboard).expect("JSON"), &mut shown);
    assert!(shown.len() > 10, "{shown:?}");
    // Prometheus must return data for the expression of each panel in the Grafana dashboard.
    let shown: Vec<_> = shown.iter().map(|expression| filled_in(expression)).collect();
    for expression in &shown {
        prometheus.result(expression);
    }
    let all = eventually("all rules have been evaluated", || {
        let answer = prometheus.api("rules", "")?;
        let groups = answer["data"]["groups"].as_array()?;
        let rules = groups.iter().filter_map(|group| group["rules"].as_array());
        let rules: Vec<Value> = rules.flatten().cloned().collect();
        rules.iter().all(|rule| rule["health"] != "unknown").then_some(rules)
    });
    assert!(all.len() > 3, "{all:?}");
    for rule in &all {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    let recorded = all.iter().filter(|rule| rule["type"] == "recording");
    let mut known: BTreeSet<_> = recorded.filter_map(|rule| rule["name"].as_str()).collect();
    let pages = servers.map(|server| server.curl(&["/metrics"]).body);
    let lines = pages.iter().flat_map(|page| page.lines());
    known.extend(lines.filter_map(|line| line.split(['{', ' ']).next()));
    let used = all.iter().filter_map(|rule| rule["query"].as_str());
    for expression in used.chain(shown.iter().map(String::as_str)) {
        for name in metrics_in(expression) {
            assert!(known.contains(name), "{name} of '{expression}' is not on /metrics");
        }
    }
    // A stolen lock must make the alert `LatchfsLocksStolen` fire.
    server.curl(&["-X", "POST", "/locks/a/steal?client=z&reason=test"]).is(200);
    let fires = eventually("the theft is an alert", || {
        let alerts = prometheus.api("alerts", "")?["data"]["alerts"].as_array()?.clone();
        alerts.into_iter().find(|alert| alert["labels"]["alertname"] == "LatchfsLocksStolen")
    });
    assert_eq!(fires["state"], "firing");
}
