//! Tests of the instances of Syncthing that the turns use.

use super::{SyncTool as _, Syncthing};
use crate::syncing::course::{folders_of, machines, wait_until_same};
use serde_json::{Value, json};
use std::fs;
use testing::soon;

#[test]
fn instances_keep_to_loopback_and_have_the_values_of_new_folders() {
    let machines = machines(2);
    let folders = folders_of(&machines);
    fs::write(folders[0].join("a"), "content").expect("written");
    let tool = Syncthing::start(&folders, machines[0].path());
    wait_until_same(&folders);
    assert_eq!(fs::read_to_string(folders[1].join("a")).expect("there"), "content");
    for instance in &tool.instances {
        let config = instance.expect("GET", "/rest/config", &Value::Null);
        let config: Value = serde_json::from_str(&config).expect("JSON");
        let folder = &config["folders"][0];
        assert_eq!(folder["maxConflicts"], 10);
        assert_eq!(
            (&folder["autoNormalize"], &folder["fsWatcherEnabled"]),
            (&json!(true), &json!(true))
        );
        let options = &config["options"];
        for name in ["globalAnnounceEnabled", "localAnnounceEnabled", "relaysEnabled", "natEnabled"]
        {
            assert_eq!(options[name], false, "{name}");
        }
        assert_eq!(options["urAccepted"], -1);
        assert_eq!(
            options["listenAddresses"],
            json!([format!("tcp://127.0.0.1:{}", instance.port)])
        );
        let listening = listening_beyond_loopback(instance.child.as_ref().expect("it runs").id());
        assert_eq!(listening, Vec::<String>::new());
    }
}

/// Returns the local addresses outside loopback at which a process has TCP or UDP sockets.
fn listening_beyond_loopback(pid: u32) -> Vec<String> {
    let sockets = fs::read_dir(format!("/proc/{pid}/fd")).expect("ours").flatten();
    let sockets: Vec<_> = sockets
        .filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned()))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    assert!(!sockets.is_empty());
    let loopback =
        ["0100007F:", "00000000000000000000000001000000:", "0000000000000000FFFF00000100007F:"];
    let mut found = vec![];
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let table = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let is_ours = fields.get(9).is_some_and(|inode| sockets.iter().any(|one| one == inode));
            if is_ours && !loopback.iter().any(|address| fields[1].starts_with(address)) {
                found.push(fields[1].to_owned());
            }
        }
    }
    found
}

#[test]
fn an_instance_that_was_killed_while_receiving_goes_on() {
    let machines = machines(2);
    let folders = folders_of(&machines);
    fs::write(folders[0].join("small"), "content").expect("written");
    let mut tool = Syncthing::start(&folders, machines[0].path());
    wait_until_same(&folders);
    tool.slow_down(1);
    let content: Vec<_> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(at) >> 9) as u8).collect();
    fs::write(folders[0].join("large"), &content).expect("written");
    tool.changed(0);
    assert!(tool.kill_while_receiving(1, "large"));
    assert!(!folders[1].join("large").exists());
    wait_until_same(&folders);
    assert!(fs::read(folders[1].join("large")).expect("there") == content);
}

#[test]
fn an_instance_that_is_stopped_receives_nothing() {
    let machines = machines(3);
    let folders = folders_of(&machines);
    fs::write(folders[0].join("a"), "x").expect("written");
    let mut tool = Syncthing::start(&folders, machines[0].path());
    wait_until_same(&folders);
    tool.stop(1);
    fs::write(folders[0].join("a"), "changed").expect("written");
    tool.changed(0);
    let read = |machine: usize| fs::read_to_string(folders[machine].join("a"));
    // For a moment no file may have the name.
    soon("the change on the third machine", || {
        read(2).is_ok_and(|text| text == "changed").then_some(())
    });
    let read = |machine| read(machine).expect("there");
    assert_eq!(read(1), "x");
    tool.resume(1);
    wait_until_same(&folders);
    assert_eq!(read(1), "changed");
}
