//! `latchfs who`: who holds the lock of the guarded folder in which a file lies.

use crate::arriving::Machines;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use testing::run;
use testing::{Scratch, Server, latchfs};

/// A file is looked up in a view of either machine, and in the folder itself. The server that the
/// folder names is asked if the guard does not know the holder, or if no guard runs.
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
    assert!(said.contains(": held by m1, taken "), "{said}");
    let json: serde_json::Value =
        serde_json::from_str(&who(&two.path("b"), &["--json"])).expect("JSON");
    assert_eq!((&json["status"]["holder"], &json["lock"]), (&"m1".into(), &json["guard"]["lock"]));
    // The guard of a folder's view is found, although only the guard knows where its state is.
    let said = who(&machines.first.folder().join("a"), &[]);
    assert!(said.contains(": held by this machine, m1 since "), "{said}");
    let said = who(&machines.second.folder(), &[]);
    assert!(said.contains(": held by m1, taken ") && said.contains("token "), "{said}");
    drop(two);
    let said = who(&machines.second.folder(), &[]);
    assert!(said.contains(": held by m1, taken ") && said.contains("token "), "{said}");
}

/// Anyone who can write to a folder can name another server there. That server gets no credentials,
/// unless `LATCHFS_SERVER` names it too.
#[test]
fn the_server_that_a_folder_names_gets_no_credentials() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let record = scratch.folder().join(".latchfs/folder");
    let text = fs::read_to_string(&record).expect("made by init");
    assert!(text.contains(&server.url), "{text}");
    fs::write(&record, text.replace(&server.url, &url)).expect("ours");
    let token = scratch.join("token");
    fs::write(&token, "a-secret-token").expect("ours");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("ours");
    let (send, received) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut part = vec![0; 65_536];
            let length = (&stream).read(&mut part).unwrap_or(0);
            let denied = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
            let _ = (&stream).write_all(denied.as_bytes());
            if send.send(String::from_utf8_lossy(&part[..length]).into_owned()).is_err() {
                return;
            }
        }
    });
    let who = |trusted: &str| {
        let mut command = latchfs();
        command.arg("who").arg(scratch.folder()).env("LATCHFS_TOKEN_FILE", &token);
        run(command.env("LATCHFS_SERVER", trusted)).fails()
    };
    let said = who(&server.url);
    let requests: String = received.try_iter().collect();
    assert!(requests.contains("HTTP/1.1") && !requests.contains("a-secret-token"), "{requests}");
    assert!(said.contains(&format!("set LATCHFS_SERVER={url} if you trust it")), "{said}");
    who(&url);
    let requests: String = received.try_iter().collect();
    assert!(requests.contains("a-secret-token"), "{requests}");
}
