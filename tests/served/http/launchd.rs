//! The property lists of `contrib/launchd` are well-formed, and have the keys that launchd
//! requires. The tests of the command line parse the commands in them; no test runs them on macOS.

use std::path::Path;
use std::process::Command;

#[test]
fn property_lists_are_well_formed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/launchd");
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("it is there") {
        let path = file.expect("readable").path();
        // Converting the property list to binary and back shows how the parser understood it.
        let script = "plistutil -i \"$0\" -o - -f bin | plistutil -i - -f xml";
        let output = Command::new("sh").args(["-c", script]).arg(&path).output().expect("sh");
        let said = String::from_utf8_lossy(&output.stdout);
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        // The label must equal the file name, so that launchctl finds the service by its label.
        for part in ["<key>ProgramArguments</key>", &format!("<string>{name}</string>")] {
            assert!(said.contains(part), "{part} is not in {path:?}: {said}");
        }
        count += 1;
    }
    assert_eq!(count, 2);
}
