//! The metrics page as other programs read it; the rules of `contrib/prometheus` and the dashboard
//! of `contrib/grafana`, evaluated by a real Prometheus that scrapes a server and a cluster.

use crate::http::nodes::Nodes;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testing::{Scratch, Server, eventually, python_tool};

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
    /// Starts a Prometheus that scrapes these servers, each with its label `cluster`.
    #[track_caller]
    fn watching(servers: &[(&str, &Server)]) -> Self {
        let scratch = Scratch::new();
        let target = |(cluster, server): &(&str, &Server)| {
            format!("{{ targets: ['{}'], labels: {{ cluster: {cluster} }} }}", instance(server))
        };
        let targets = servers.iter().map(target).collect::<Vec<_>>().join(", ");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: ['{}']\n\
             scrape_configs:\n\
             - {{ job_name: latchfs, static_configs: [{targets}] }}\n",
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

    /// Returns the values of an expression at a moment, by their labels.
    #[track_caller]
    fn values(&self, expression: &str, at: &str) -> BTreeMap<String, f64> {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "20", "-G", "--data-urlencode"]);
        command.arg(format!("query={expression}")).arg("--data-urlencode");
        command.arg(format!("time={at}")).arg(format!("{}/api/v1/query", self.url));
        let output = command.output().expect("curl is there").stdout;
        let answer: Value = serde_json::from_slice(&output).expect("JSON");
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let samples = answer["data"]["result"].as_array().expect("a list");
        let value = |sample: &Value| sample["value"][1].as_str().and_then(|it| it.parse().ok());
        samples
            .iter()
            .map(|sample| (sample["metric"].to_string(), value(sample).expect("a number")))
            .collect()
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

/// Returns the label `instance` of the metrics of a server.
fn instance(server: &Server) -> String {
    server.url.replace("http://", "")
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

/// Replaces the variables in an expression of a Grafana dashboard, so that Prometheus can evaluate
/// it: `$__rate_interval` and `$__interval` by durations, `$cluster` by `cluster`, and `$instance`
/// by `instance`.
#[track_caller]
fn filled_in(expression: &str, cluster: &str, instance: &str) -> String {
    let filled = expression.replace("$__rate_interval", "1m").replace("$__interval", "15s");
    let filled = filled.replace("$cluster", cluster).replace("$instance", instance);
    assert!(!filled.contains('$'), "{filled}");
    filled
}

/// Returns the expressions of the Grafana dashboard.
#[track_caller]
fn dashboard() -> Vec<String> {
    let dashboard = fs::read_to_string(contrib("grafana/latchfs.json")).expect("it is there");
    let mut shown = Vec::new();
    expressions(&serde_json::from_str(&dashboard).expect("JSON"), &mut shown);
    assert!(shown.len() > 10, "{shown:?}");
    shown
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
    let tests = contrib("prometheus/latchfs.tests.yml").display().to_string();
    promtool(&["test", "rules", &tests], "");
    let example = contrib("prometheus/prometheus.yml").display().to_string();
    promtool(&["check", "config", &example], "");
    let server = a_busy_server();
    promtool(&["check", "metrics"], &server.curl(&["/metrics"]).body);
    let nodes = Nodes::start();
    promtool(&["check", "metrics"], &nodes.leader.curl(&["/metrics"]).body);
    are_open_metrics(&server);
    are_open_metrics(&nodes.leader);
}

/// A reader of `OpenMetrics` that is not ours: it prints the name, type and help text of each
/// metric, and the names of its samples.
const READER: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
families = list(parse(sys.stdin.read()))
print(json.dumps([[it.name, it.type, it.documentation, sorted({s.name for s in it.samples})]
                  for it in families]))
";

/// Fails unless the metrics of a server are valid `OpenMetrics`, each metric has a help text of its
/// own, and those of the process and of requests are among them.
#[track_caller]
fn are_open_metrics(server: &Server) {
    let accept = "Accept: application/openmetrics-text; version=1.0.0";
    let page = server.curl(&["-H", accept, "/metrics"]).body;
    let mut command = Command::new(python_tool("python"));
    command.args(["-c", READER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("contrib/test installs it");
    child.stdin.take().expect("piped").write_all(page.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{page}");
    let families: Vec<(String, String, String, Vec<String>)> =
        serde_json::from_slice(&output.stdout).expect("JSON");
    let mut helps = BTreeSet::new();
    for (name, kind, help, samples) in &families {
        assert!(!help.is_empty() && helps.insert(help), "{name}: {help}");
        assert!(name.starts_with("latchfs_") || name.starts_with("process_"), "{name}");
        assert_eq!(kind == "counter", *samples == [format!("{name}_total")], "{name}: {samples:?}");
    }
    for (name, kind) in [
        ("process_cpu_seconds", "counter"),
        ("process_resident_memory_bytes", "gauge"),
        ("process_open_fds", "gauge"),
        ("process_max_fds", "gauge"),
        ("process_start_time_seconds", "gauge"),
        ("latchfs_build_info", "gauge"),
        ("latchfs_locks_by_phase", "gauge"),
        ("latchfs_locks_by_prefix", "gauge"),
        ("latchfs_http_request_duration_seconds", "histogram"),
    ] {
        assert!(families.iter().any(|it| it.0 == name && it.1 == kind), "{name}: {families:?}");
    }
}

#[test]
fn dashboard_and_rules_use_existing_metrics() {
    let server = a_busy_server();
    let nodes = Nodes::start();
    let servers = [&server, &nodes.leader, &nodes.learner];
    let [first, second, third] = servers;
    let prometheus = Prometheus::watching(&[("alone", first), ("c", second), ("c", third)]);
    // A rate needs at least two samples of each series, so the test waits until Prometheus has
    // scraped each of the three servers three times.
    prometheus.result("count(count_over_time(latchfs_locks[1m]) > 2) == 3");
    // Metrics of latency have no rate unless an operation follows the first scrape, so the test
    // acquires a lock now.
    nodes.leader.curl(&["-X", "POST", "/locks/a?client=x"]).is(200);
    // Prometheus must return data for the expression of each panel in the Grafana dashboard.
    let shown = dashboard();
    let shown: Vec<_> = shown.iter().map(|shown| filled_in(shown, ".*", ".*")).collect();
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
    have_runbooks(&all);
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

/// Fails unless each alert has a severity, a summary, a description, a section of its own in the
/// chapter about alerts, and tests in which it fires and in which it does not.
#[track_caller]
fn have_runbooks(rules: &[Value]) {
    let chapter = fs::read_to_string(contrib("doc/alerts.md")).expect("it is there");
    let tests = fs::read_to_string(contrib("prometheus/latchfs.tests.yml")).expect("it is there");
    let sections = chapter.split("\n### ").skip(1).filter_map(|section| section.split_once('\n'));
    let sections: BTreeMap<_, _> = sections.collect();
    let mut alerts = BTreeSet::new();
    for rule in rules.iter().filter(|rule| rule["type"] == "alerting") {
        let name = rule["name"].as_str().expect("a name");
        assert!(alerts.insert(name), "{name} is there once");
        let severity = rule["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning", "info"].contains(&severity), "{rule}");
        for annotation in ["summary", "description"] {
            let text = rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {annotation}");
        }
        let runbook = format!("contrib/doc/alerts.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook"], runbook.as_str(), "{name}");
        // One paragraph for the meaning, one for the remedy.
        let paragraphs = sections.get(name).map(|section| section.trim().split("\n\n").count());
        assert!(paragraphs >= Some(2), "contrib/doc/alerts.md says nothing about {name}");
        let checks = tests.split("      - expr: ").filter(|check| {
            check.contains(&format!("alertname=\"{name}\", alertstate=\"firing\""))
        });
        let (quiet, fires): (Vec<_>, Vec<_>) =
            checks.partition(|check| check.contains("exp_samples: []"));
        assert!(!quiet.is_empty() && !fires.is_empty(), "{name} has no test");
    }
    let described: BTreeSet<_> = sections.keys().copied().collect();
    assert_eq!(alerts, described, "contrib/doc/alerts.md has one section for each alert");
}

/// The part of an expression that leaves out all nodes of a cluster but the leader.
const LEADER_ONLY: &str = " unless on (job, instance) latchfs_cluster_leads == 0";

/// The dashboard, evaluated at one moment.
struct Evaluated<'a> {
    shown: Vec<String>,
    prometheus: &'a Prometheus,
    at: &'a str,
}

impl Evaluated<'_> {
    fn value(&self, expression: &str) -> BTreeMap<String, f64> {
        self.prometheus.values(expression, self.at)
    }

    /// Fails unless each expression about the locks of a cluster has the values that its leader, or
    /// the only server, reports.
    #[track_caller]
    fn shows_the_leader(&self, cluster: &str, leader: &Server) {
        let own = format!("{{instance=\"{}\"}}", instance(leader));
        for expression in self.shown.iter().filter(|shown| shown.contains(LEADER_ONLY)) {
            let has = self.value(&filled_in(expression, cluster, ".*"));
            let of_cluster = format!("{{cluster=~\"{cluster}\"}}");
            let should = expression.replace(LEADER_ONLY, "");
            let should = filled_in(&should, cluster, ".*").replace(&of_cluster, &own);
            let should = self.value(&should);
            assert!(!has.is_empty() && has.len() == should.len(), "{expression}: {has:?}");
            for (labels, value) in &has {
                let same = should.get(labels).is_some_and(|it| (it - value).abs() < 1e-9);
                assert!(same || value.is_nan(), "{expression}: {has:?}, not {should:?}");
            }
        }
    }

    /// Fails unless the first expression with this part has this value, among others.
    #[track_caller]
    fn shows(&self, part: &str, labels: &str, number: f64) {
        let expression = self.shown.iter().find(|shown| shown.contains(part)).expect(part);
        let has = self.value(&filled_in(expression, ".*", ".*"));
        let labels = labels.replace('\'', "\"");
        assert_eq!(has.get(&labels), Some(&number), "{expression}: {has:?}");
    }

    /// Fails unless requests and resources are shown by server, or as a sum over all servers.
    #[track_caller]
    fn adds_servers_up(&self, cluster: &str, servers: [&Server; 3]) {
        let of_servers = self.shown.iter().filter(|shown| shown.contains("$instance"));
        for expression in of_servers.clone().filter(|shown| shown.starts_with("sum by (instance)"))
        {
            let has = self.value(&filled_in(expression, cluster, ".*"));
            assert_eq!(has.len(), 3, "{expression}: {has:?}");
        }
        for expression in of_servers.filter(|shown| shown.starts_with("sum by (method")) {
            let has = self.value(&filled_in(expression, cluster, ".*"));
            let one = |server| self.value(&filled_in(expression, cluster, &instance(server)));
            let each = servers.map(one);
            for (labels, sum) in &has {
                let parts: f64 = each.iter().filter_map(|values| values.get(labels)).sum();
                assert!((parts - sum).abs() < 1e-9, "{expression}: {has:?}, not {each:?}");
            }
            assert!(has.values().any(|rate| *rate > 0.0), "{has:?}");
        }
    }
}

/// Refuses a request for the lock `c`, serves a waiter of it, and frees it.
#[track_caller]
fn refuse_and_serve(server: &Server) {
    server.curl(&["-X", "POST", "/locks/c?client=x"]).is(200);
    server.curl(&["-X", "POST", "/locks/c?client=y"]).is(409);
    let stream = server.open(&["-X", "POST", "/locks/c?client=z&wait=60s"]);
    server.in_line("c", 1);
    server.curl(&["-X", "DELETE", "/locks/c?client=x"]).is(200);
    stream.reply().is(200);
    server.curl(&["-X", "DELETE", "/locks/c?client=z"]).is(200);
}

/// The dashboard shows each lock and each event once, whether one server or a cluster of three
/// counts them, and the requests to all servers in sum.
#[test]
fn dashboard_is_right_for_one_node_and_for_three() {
    let alone = a_busy_server();
    let mut nodes = Nodes::start();
    let third = nodes.third();
    let three = [&nodes.leader, &nodes.learner, &third];
    // Locks and a waiter by way of each node.
    for (number, name) in ["builds/1", "builds/2", "builds/3", "a", "b"].iter().enumerate() {
        three[number % 3].curl(&["-X", "POST", &format!("/locks/{name}?client=x")]).is(200);
    }
    let waits = third.open(&["-X", "POST", "/locks/a?client=y&wait=600s"]);
    nodes.leader.in_line("a", 1);
    let mut watched = vec![("alone", &alone)];
    watched.extend(three.map(|server| ("three", server)));
    let prometheus = Prometheus::watching(&watched);
    prometheus.result("count(count_over_time(latchfs_locks[1m]) > 2) == 4");
    // Events between two scrapes show in the rates.
    for server in [&alone, &third] {
        refuse_and_serve(server);
    }
    prometheus.result("count(latchfs_grants_total{cluster=\"three\"} == 7) == 3");
    prometheus.result("latchfs_grants_total{cluster=\"alone\"} == 5");
    // A node may have been asked between the last grant and its release.
    prometheus.result("count(latchfs_locks{cluster=\"three\"} == 5) == 3");
    let now = prometheus.api("query", "time()").expect("an answer");
    let at = now["data"]["result"][1].as_str().expect("a time");
    let evaluated = Evaluated { shown: dashboard(), prometheus: &prometheus, at };
    // A dashboard that adds up the reports of all nodes would show this.
    let naive = evaluated.value("sum(latchfs_locks{cluster=\"three\"})");
    assert_eq!(naive.values().copied().collect::<Vec<_>>(), [15.0]);
    evaluated.shows_the_leader("three", three[0]);
    evaluated.shows_the_leader("alone", &alone);
    for (part, labels, number) in [
        ("(latchfs_locks{", "{'cluster':'three'}", 5.0),
        ("(latchfs_waiters{", "{'cluster':'three'}", 1.0),
        ("(latchfs_locks_by_phase{", "{'cluster':'three','phase':'held'}", 5.0),
        ("(latchfs_locks_by_phase{", "{'cluster':'three','phase':'grace'}", 0.0),
        ("(latchfs_locks_by_prefix{", "{'cluster':'three','prefix':'builds/'}", 3.0),
        ("(latchfs_locks_by_prefix{", "{'cluster':'three','prefix':'/'}", 2.0),
        ("(latchfs_locks_by_prefix{", "{'cluster':'three','prefix':'other'}", 0.0),
        ("(latchfs_waiters_by_prefix{", "{'cluster':'three','prefix':'/'}", 1.0),
        ("(latchfs_cluster_nodes{", "{'cluster':'three','role':'voter'}", 3.0),
        ("(latchfs_cluster_has_leader{", "{'cluster':'three'}", 3.0),
        ("(latchfs_locks{", "{'cluster':'alone'}", 1.0),
        ("(latchfs_steals_total{", "{'cluster':'alone'}", 0.0),
    ] {
        evaluated.shows(part, labels, number);
    }
    evaluated.adds_servers_up("three", three);
    waits.cut();
}
