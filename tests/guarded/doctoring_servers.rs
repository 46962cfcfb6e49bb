//! The server of a guarded folder, as `latchfs doctor --strict` finds it: one that does not answer,
//! one that refuses this machine, and one that only the guard knows.

use crate::changed_servers::kill;
use crate::doctoring::{finds, is_healthy, kernel_stays, options, place, token};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use testing::run;
use testing::{Guard, Scratch, Server, latchfs, soon};

/// A mount on a server, which is unmounted when this value is dropped.
struct Mount(PathBuf);

impl Mount {
    fn on(server: &Server, scratch: &Scratch, name: &str) -> Self {
        let dir = scratch.join(name);
        let mut mount = latchfs();
        mount.arg("mount").arg(&dir).args(["--server", &server.url, "--background"]);
        run(&mut mount).ok();
        Self(dir)
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = latchfs().args(["umount", "--unseal"]).arg(&self.0).status();
    }
}

/// server-unreachable: the server is stopped, or ends.
#[test]
fn servers_that_do_not_answer_are_found() {
    let _kernel = kernel_stays();
    let scratch = Scratch::with_folder();
    let mut server = Server::of(&scratch);
    let (url, data) = (server.url.clone(), scratch.join("server").display().to_string());
    scratch.init(&["--server", &url, "--client", "m1"]);
    let own = place(&scratch, "m1");
    let own = options(&own);
    let guard = Guard::start(&scratch, "view", &["--client", "m1", "--ttl", "1h"]);
    guard.request("take", &[]).ok();
    let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
    let held = token(&url, &lock);
    server.signal(libc::SIGSTOP);
    let says = finds(&guard.view, &[], &["server-unreachable"]);
    assert!(says[0].contains("does not answer") && says[0].contains(&url), "{says:?}");
    server.signal(libc::SIGCONT);
    is_healthy(&guard.view, &[]);
    kill(&server);
    let says = finds(&guard.view, &[], &["server-unreachable"]);
    assert!(says[0].contains("nobody can say who holds the lock"), "{says:?}");
    finds(&scratch.folder(), &own, &["server-unreachable"]);
    // One of several servers is enough.
    let address = url.trim_start_matches("http://").to_owned();
    server = Server::at(&address, &["--data", &data]);
    is_healthy(&guard.view, &[]);
    let both = format!("http://127.0.0.1:1,{url}");
    is_healthy(&guard.view, &["--server", &both]);
    assert_eq!(token(&server.url, &lock), held, "doctor frees no lock");
}

/// server-unreachable: the server wants credentials that doctor does not have.
#[test]
fn servers_that_refuse_this_machine_are_found() {
    let _kernel = kernel_stays();
    let scratch = Scratch::with_folder();
    let tokens = scratch.join("tokens");
    let of_m1 = "[[token]]\nname = \"m1\"\nsecret = \"the secret of m1\"\nclients = [\"m1\"]\n\
                 locks = [\"folder-\"]\n";
    fs::write(&tokens, of_m1).expect("written");
    run(Command::new("chmod").arg("600").arg(&tokens)).ok();
    let (data, tokens) = (scratch.join("server"), tokens.display().to_string());
    let data = data.display().to_string();
    let server = Server::at("127.0.0.1:0", &["--data", &data, "--tokens", &tokens]);
    let secret = scratch.join("secret");
    fs::write(&secret, "the secret of m1").expect("written");
    run(Command::new("chmod").arg("600").arg(&secret)).ok();
    let secret = secret.display().to_string();
    scratch.init(&["--server", &server.url, "--client", "m1", "--token-file", &secret]);
    let own = place(&scratch, "m1");
    let own = options(&own);
    let says = finds(&scratch.folder(), &own, &["server-unreachable"]);
    assert!(says[0].contains("refuses this machine"), "{says:?}");
    let token = [&own[..], &["--token-file", &secret]].concat();
    is_healthy(&scratch.folder(), &[&token[..], &["--server", &server.url]].concat());
    // `run --guard` starts the guard with the credentials that it was given.
    let mut job = latchfs();
    job.args(["run", "--guard"]).arg(scratch.folder()).args(&token);
    job.env("LATCHFS_SERVER", &server.url);
    run(job.args(["--", "true"])).ok();
    // Only the folder names the server: the token is sent to no server that nobody vouches for.
    let doctor = run(latchfs().args(["doctor", "--strict"]).arg(scratch.folder()).args(&token));
    assert!(doctor.exits(64).contains("to which your credentials would be sent"));
    let options = ["--client", "m1", "--token-file", &secret];
    let mut guard = latchfs();
    guard.arg("guard").arg(scratch.folder()).arg(scratch.join("view")).args(options);
    assert!(run(&mut guard).exits(64).contains("to which your credentials would be sent"));
    // A named CA makes no difference: a public one signs a certificate for any server.
    let record = scratch.folder().join(".latchfs/folder");
    let text = fs::read_to_string(&record).expect("the record of the folder");
    let text = text.replace(&server.url, "https://127.0.0.1:1");
    fs::write(&record, text).expect("a peer may write it");
    let certs = scratch.join("certs");
    run(latchfs().args(["cert", "ca", "--dir"]).arg(&certs)).ok();
    let mut doctor = latchfs();
    doctor.args(["doctor", "--strict"]).arg(scratch.folder()).args(&token);
    doctor.arg("--ca").arg(certs.join("ca.pem"));
    assert!(run(&mut doctor).exits(64).contains("to which your credentials would be sent"));
}

/// A guard that was started with `--dir MOUNT` uses another server than the folder's record names:
/// doctor asks the one that the guard uses, or used when it was killed.
#[test]
fn guards_on_a_mount_are_examined() {
    let _kernel = kernel_stays();
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    let data = scratch.join("server").display().to_string();
    scratch.init(&["--server", &server.url, "--client", "m1"]);
    kill(&server);
    let own = place(&scratch, "m1");
    let own = options(&own);
    finds(&scratch.folder(), &own, &["server-unreachable"]);
    let moved = Server::at("127.0.0.1:0", &["--data", &data]);
    assert_ne!(moved.url, server.url);
    let mount = Mount::on(&moved, &scratch, "locks");
    let mount = mount.path();
    is_healthy(&scratch.folder(), &[&own[..], &["--dir", &mount]].concat());
    let on_mount = ["--client", "m1", "--ttl", "1h", "--dir", &mount];
    let guard = Guard::start(&scratch, "view", &on_mount);
    guard.request("take", &[]).ok();
    let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
    let held = token(&moved.url, &lock);
    is_healthy(&guard.view, &[]);
    is_healthy(&scratch.folder(), &own);
    guard.signal(libc::SIGKILL);
    soon("the end of the guard", || fs::metadata(guard.path("a")).err());
    finds(&scratch.folder(), &own, &["view-missing", "stage-leftover"]);
    finds(&scratch.folder(), &[&own[..], &["--fix"]].concat(), &[]);
    assert_eq!(token(&moved.url, &lock), held, "doctor frees no lock");
    drop(guard);
    // A guard without a view.
    let mut take = latchfs();
    take.args(["guard", "take"]).arg(scratch.folder()).args(own).args(["--dir", &mount]);
    run(&mut take).ok();
    is_healthy(&scratch.folder(), &own);
    let mut give = latchfs();
    run(give.args(["guard", "give"]).arg(scratch.folder()).args(own)).ok();
}
