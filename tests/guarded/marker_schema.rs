//! Markers and checkpoints are as their JSON schema says.

use crate::arriving::{Machines, markers};
use std::fs;
use std::path::Path;
use std::process::Command;
use testing::{python_tool, run};

const CHECK: &str = "
import json, jsonschema_rs, sys
check = jsonschema_rs.validator_for(json.load(open(sys.argv[1])))
for path in sys.argv[2:]:
    marker = json.load(open(path))
    check.validate(marker)
    for field in marker:
        if field not in ('whole',):
            less = {name: marker[name] for name in marker if name != field}
            assert not check.is_valid(less), field
    for broken in ({'token': -1}, {'token': '1'}, {'previous': {'name': '../x'}},
                   {'changes': [{'path': '/etc/passwd', 'type': 'gone'}]},
                   {'changes': [{'path': 'a/../b', 'type': 'gone'}]},
                   {'changes': [{'path': 'a', 'type': 'file'}]}):
        assert not check.is_valid({**marker, **broken}), broken
print(len(sys.argv) - 2)
";

#[test]
fn markers_and_checkpoints_follow_their_schema() {
    let machines = Machines::new();
    let one = machines.start(1, &[]);
    fs::write(one.path("a"), "of m1").expect("free");
    fs::remove_file(one.path("old")).expect("ready");
    one.request("give", &[]).ok();
    one.request("take", &[]).ok();
    fs::write(one.path("b"), "of m1").expect("ready");
    one.kill();
    let two = machines.start(2, &[]);
    machines.carry_all();
    two.request("accept", &["--reason", "m1 is gone"]).ok();
    two.request("give", &[]).ok();
    let mut all = markers(&machines.first);
    all.extend(markers(&machines.second));
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/schema/marker.json");
    let checked =
        run(Command::new(python_tool("python")).args(["-c", CHECK]).arg(schema).args(&all)).ok();
    assert_eq!(checked.trim(), all.len().to_string());
    assert!(all.len() >= 4, "{all:?}");
}
