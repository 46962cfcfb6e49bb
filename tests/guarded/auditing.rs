//! The audit logs of a guard and of a server: what they record, and how a change of one is found.

use crate::arriving::{Machines, begin_take, not_ready};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::latchfs;
use testing::{Output, python_tool, run};

/// Checks lines against the schema, and their digests as the schema describes them.
const CHECK: &str = "
import hashlib, json, jsonschema_rs, sys
schema = json.load(open(sys.argv[1]))
check = jsonschema_rs.validator_for(schema)
def canonical(it):
    return json.dumps(it, sort_keys=True, separators=(',', ':'), ensure_ascii=False)
count = 0
for path in sys.argv[2:]:
    before = hashlib.sha256(b'').hexdigest()
    for line in open(path):
        entry = json.loads(line)
        check.validate(entry)
        for field in schema['required']:
            assert not check.is_valid({k: v for k, v in entry.items() if k != field}), field
        for broken in ({'event_id': 0}, {'operation': ''}, {'prev_hash': 'x'}, {'target': 7}):
            assert not check.is_valid({**entry, **broken}), broken
        assert line == canonical(entry) + '\\n', line
        own = entry.pop('record_hash')
        assert hashlib.sha256(canonical(entry).encode()).hexdigest() == own, line
        assert entry['prev_hash'] == before, line
        before = own
        count += 1
print(count)
";

fn verify(place: &Path) -> Output {
    run(latchfs().args(["audit", "verify"]).arg(place))
}

/// Returns the operations that a log records, in their order.
fn operations(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let operation = |line: &str| {
        let entry: serde_json::Value = serde_json::from_str(line).expect("JSON");
        entry["operation"].as_str().expect("a name").to_owned()
    };
    text.lines().map(operation).collect()
}

/// Returns the directory of a machine in the state directory of its folder.
pub(crate) fn host_dir(scratch: &testing::Scratch, client: &str) -> PathBuf {
    let mut ids = fs::read_dir(scratch.join("state")).expect("a state directory");
    ids.find_map(|id| {
        let dir = id.expect("readable").path().join(client);
        dir.is_dir().then_some(dir)
    })
    .expect("a directory of this machine")
}

/// A machine vanishes with unmarked changes, and a person goes on without it: both are audited, and
/// so is the steal by the server. The guard is killed between, and its log goes on.
#[test]
fn audit_logs_chain_what_happened_and_a_change_is_found() {
    let machines = Machines::new();
    let one = machines.start(1, &[]);
    let two = machines.start(2, &[]);
    fs::write(one.path("a"), "of m1").expect("ready");
    one.kill();
    let taking = begin_take(&two);
    not_ready(&two, "m1");
    two.request("accept", &["--reason", "m1 is gone"]).ok();
    assert!(taking.join().expect("taken").contains("holding"));
    let dir = host_dir(&machines.second, "m2");
    let log = dir.join("audit.log");
    assert_eq!(operations(&log), ["acquire after expiry", "accept"]);
    let text = fs::read_to_string(&log).expect("there");
    assert!(text.contains("m1 is gone") && text.contains("the lease of m1 (token "), "{text}");
    let checked = verify(&two.view).ok();
    assert!(checked.contains("2 lines are as they were written"), "{checked}");

    // The server's own log of a steal.
    let name = two.status()["lock"].as_str().expect("a name").to_owned();
    let mut steal = latchfs();
    steal.args(["steal", &name, "--server", &machines.server.url, "--client", "m3"]);
    run(steal.args(["--reason", "a test"])).ok();
    let server = machines.first.join("server/audit.log");
    assert!(operations(&server).contains(&"steal".to_owned()));
    verify(&server).ok();

    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/schema/audit-line.json");
    let mut check = Command::new(python_tool("python"));
    check.args(["-c", CHECK]).arg(schema).args([&log, &server]);
    let lines = operations(&log).len() + operations(&server).len();
    assert_eq!(run(&mut check).ok().trim(), lines.to_string());

    // A killed guard leaves a whole log, and one whose tail is cut while no guard runs is found,
    // also after the next one has written to it.
    two.kill();
    let text = fs::read_to_string(&log).expect("there");
    verify(&dir).ok();
    let first = text.find('\n').expect("two lines") + 1;
    fs::write(&log, &text[..first]).expect("written");
    let found = verify(&dir);
    assert_eq!(found.code, 1, "{}", found.out);
    assert!(found.out.contains("wrong  line 1 of audit.log is the last one"), "{}", found.out);
    fs::write(&log, text.replace("m1 is gone", "m1 was gone")).expect("written");
    assert!(verify(&dir).out.contains("wrong  line 2 of audit.log was changed"));
    fs::write(&log, &text).expect("written");
    verify(&dir).ok();
}
