//! The JSON of `latchfs doctor` is as its schema says.

use crate::doctoring::{kernel_stays, options, place};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::{Guard, Scratch, latchfs, soon};
use testing::{python_tool, run};

const CHECK: &str = "
import json, jsonschema_rs, sys
schema = json.load(open(sys.argv[1]))
strict = jsonschema_rs.validator_for({**schema, '$ref': '#/$defs/strict'})
each = jsonschema_rs.validator_for(schema)
for path in sys.argv[2:]:
    said = json.load(open(path))
    check = each if path.endswith('machine') else strict
    check.validate(said)
    for field in said:
        assert not check.is_valid({name: said[name] for name in said if name != field}), field
    assert said['ok'] == all(finding['ok'] for finding in said['findings'])
    for finding in said['findings']:
        for broken in ({'check': 'Nothing'}, {'says': ''}, {'level': 'bad'}, {'fix': ''},
                       {'ok': not finding['ok']}):
            assert not check.is_valid({**said, 'findings': [{**finding, **broken}]}), broken
        unknown = {**said, 'findings': [{**finding, 'check': 'no-such-finding'}]}
        assert check.is_valid(unknown) == (check is each)
    for fixed in said['fixed']:
        for broken in ({'check': 'no-such-finding'}, {'done': 1}, {'says': ''}):
            assert not check.is_valid({**said, 'fixed': [{**fixed, **broken}]}), broken
    print(len(said['findings']), len(said['fixed']))
";

/// A healthy folder, one whose guard was killed, the same while it is fixed, and this machine.
#[test]
fn findings_follow_their_schema() {
    let _kernel = kernel_stays();
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone", "--client", "m1"]);
    let own = place(&scratch, "m1");
    let own = options(&own);
    let folder = scratch.folder().display().to_string();
    let said = |name: &str, options: &[&str]| {
        let path: PathBuf = scratch.join(name);
        let output = run(latchfs().args(["doctor", "--json"]).args(options));
        fs::write(&path, output.out).expect("written");
        path
    };
    let strict = [&["--strict", folder.as_str()], &own[..]].concat();
    let healthy = said("healthy", &strict);
    let guard = Guard::start(&scratch, "view", &["--client", "m1"]);
    let mut half = File::create(guard.path("half")).expect("free");
    half.write_all(b"half").expect("staged");
    guard.signal(libc::SIGKILL);
    soon("the end of the guard", || fs::metadata(guard.path("old")).err());
    drop(half);
    let killed = said("killed", &strict);
    let fixed = said("fixed", &[&strict[..], &["--fix"]].concat());
    let machine = said("machine", &[]);
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/schema/doctor.json");
    let mut check = Command::new(python_tool("python"));
    let checked =
        run(check.args(["-c", CHECK]).arg(schema).args([healthy, killed, fixed, machine]));
    let checked = checked.ok();
    let lines: Vec<_> = checked.lines().collect();
    // Content without a name is gone with the guard.
    assert_eq!(lines[..3], ["1 0", "2 0", "1 2"], "{checked}");
    assert!(lines[3].ends_with(" 0"), "{checked}");
}
