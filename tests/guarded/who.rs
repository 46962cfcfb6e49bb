//! `latchfs who`: who holds the lock of the guarded folder in which a file lies.

use crate::arriving::Machines;
use crate::harness::latchfs;
use crate::support::run;
use std::fs;
use std::path::Path;

/// A file is looked up in a view of either machine, and in the folder itself, whose guard is asked
/// for by the server that the folder names.
#[test]
fn who_names_the_holder_of_a_folder() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &[]));
    let who =
        |file: &Path, options: &[&str]| run(latchfs().arg("who").arg(file).args(options)).ok();
    fs::write(one.path("a"), "of m1").expect("free");
    let said = who(&one.path("a"), &[]);
    assert!(
        said.contains(": held by this machine, m1 since ") && said.contains("; token "),
        "{said}"
    );
    assert!(said.starts_with("guarded folder ") && said.contains("'latchfs guard give'"), "{said}");
    // The other machine does not want the lock, so its guard has not heard of the holder.
    let said = who(&two.path("b"), &[]);
    assert!(said.contains(": held by m1 since "), "{said}");
    let json: serde_json::Value =
        serde_json::from_str(&who(&two.path("b"), &["--json"])).expect("JSON");
    assert_eq!((&json["status"]["holder"], &json["lock"]), (&"m1".into(), &json["guard"]["lock"]));
    // No guard without a view runs, so the server is asked.
    let said = who(&machines.second.folder(), &[]);
    assert!(said.contains(": held by m1 since ") && said.contains("token "), "{said}");
}
