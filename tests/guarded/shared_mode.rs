//! Many machines that change a folder on one storage at a time: `--mode shared`.
use crate::relay::Relay;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use testing::{
    Guard, Scratch, Server, Stopped, close, latchfs, no_other_stops, rounds, run, shell, soon,
};

/// A folder on a storage that machines share, and its server.
fn shared_folder() -> (Scratch, Server) {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    (scratch, server)
}

fn guard(scratch: &Scratch, client: &str, mode: &str) -> Guard {
    let options = ["--client", client, "--shared-storage", "--ttl", "2s", "--mode", mode];
    Guard::start(scratch, client, &options)
}

/// Returns the tokens of the stages, in order.
fn stages(scratch: &Scratch) -> Vec<u64> {
    let mut states = fs::read_dir(scratch.join("state")).expect("there");
    let state = states.next().expect("one").expect("readable").path();
    let names = fs::read_dir(state.join("stage")).expect("there");
    let token = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("readable").file_name().into_string().expect("text");
        name.rsplit('-').next().and_then(|token| token.parse().ok()).expect("a token")
    };
    let mut tokens: Vec<_> = names.map(token).collect();
    tokens.sort_unstable();
    tokens
}

/// Two machines have files open at the same time; a third one that joins them removes the stage of
/// a tenure that has ended, and spares the others.
#[test]
fn many_machines_write_and_a_fence_spares_live_stages() {
    let _alone = no_other_stops();
    let (scratch, _server) = shared_folder();
    let [m1, m2, m3] = ["m1", "m2", "m3"].map(|client| guard(&scratch, client, "shared"));
    m1.take_here();
    m2.take_here();
    assert_eq!(m1.status()["mode"], "shared");
    let mut half = File::create(m1.path("of m1")).expect("held");
    half.write_all(b"first half, ").expect("held");
    let mut late = File::create(m2.path("of m2")).expect("held");
    late.write_all(b"half of m2").expect("held");
    let ended = m2.token();
    let stopped = Stopped::of(&m2);
    // The lease of m2 ends; m3 begins beside m1.
    soon("the lease of m2 has ended", || {
        m3.request_here("{\"do\": \"give\"}");
        m3.take_here();
        (!stages(&scratch).contains(&ended)).then_some(())
    });
    assert_eq!(stages(&scratch), [m1.token(), m3.token()]);
    half.write_all(b"second half").expect("held");
    close(half).expect("held");
    let mut of_m3 = File::create(m3.path("of m3")).expect("held");
    of_m3.write_all(b"whole").expect("held");
    close(of_m3).expect("held");
    drop(stopped);
    let stale = late.write_all(b", the rest").expect_err("the tenure is over");
    assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
    drop(late);
    // This process has a file of another view open. If both have the same inode number, the guard
    // takes it for the closed one, which then appears with its release, right after the close.
    let has = |name: &str, text: &str| {
        let path = scratch.folder().join(name);
        soon(name, || (fs::read_to_string(&path).ok()? == text).then_some(()));
    };
    has("of m1", "first half, second half");
    has("of m3", "whole");
    assert!(!scratch.folder().join("of m2").exists());
    soon("the half is kept", || m2.request("lost", &[]).ok().contains("of m2").then_some(()));
    // It begins anew beside the others.
    m2.take_here();
    fs::write(m2.path("of m2"), "whole").expect("the lock is shared");
    assert_eq!(stages(&scratch).len(), 3);
}

/// A tenure that was granted later, or is granted at the same time, is never fenced: the programs
/// of many machines save all the time, while guards take and give the lock.
#[test]
fn no_save_is_refused_while_machines_come_and_go() {
    let (scratch, _server) = shared_folder();
    let guards = ["m1", "m2", "m3", "m4"].map(|client| guard(&scratch, client, "shared"));
    let turns = rounds(40, 1_000);
    std::thread::scope(|scope| {
        for guard in &guards {
            scope.spawn(move || {
                let dir =
                    guard.path(guard.view.file_name().expect("named").to_str().expect("text"));
                for turn in 0..turns {
                    guard.take_here();
                    fs::create_dir_all(&dir).expect("held");
                    let path = dir.join("file");
                    fs::write(&path, turn.to_string()).expect("held");
                    fs::rename(&path, dir.join("renamed")).expect("held");
                    fs::hard_link(dir.join("renamed"), &path).expect("held");
                    fs::remove_file(&path).expect("held");
                    guard.request_here("{\"do\": \"give\"}");
                }
            });
        }
    });
    for guard in &guards {
        let dir = scratch.folder().join(guard.view.file_name().expect("named"));
        let text = fs::read_to_string(dir.join("renamed")).expect("there");
        assert_eq!(text, (turns - 1).to_string());
        assert_eq!(guard.request("lost", &["--json"]).ok().matches("\"path\"").count(), 0);
    }
}

/// A steal between the grant and the answer that tells which other tenures are live: the gate never
/// opens, and the guard asks for the lock anew. `lose` has the name of the lock, and steals it.
fn stolen_right_after_the_grant(lose: impl FnOnce(&Relay, &Guard, &str, &(dyn Fn() + Sync))) {
    let (scratch, server) = shared_folder();
    let relay = Relay::start(&server.url);
    let options = ["--client", "m1", "--shared-storage", "--ttl", "20s", "--mode", "shared"];
    let m1 = Guard::start(&scratch, "m1", &[&options[..], &["--server", &relay.url]].concat());
    let lock = m1.status()["lock"].as_str().expect("a name").to_owned();
    let (url, lock_name) = (server.url.clone(), lock.clone());
    let as_m2 = move |word: &str, options: &[&str]| {
        let mut command = latchfs();
        command.args([word, &lock_name, "--server", &url, "--client", "m2"]).args(options);
        run(&mut command).ok();
    };
    let steal = || as_m2("steal", &["--reason", "a test"]);
    std::thread::scope(|scope| {
        // The grant is made, and the guard does not know of it yet.
        relay.keep_answers(&lock);
        let taken = scope.spawn(|| m1.take_here());
        relay.wait_for_kept_answer();
        lose(&relay, &m1, &lock, &steal);
        soon("the guard asks anew", || {
            let status = m1.status();
            assert_eq!(status["tenure"], Value::Null, "the gate has opened: {status}");
            (status["holder"] == "m2").then_some(())
        });
        assert!(!taken.is_finished());
        relay.pass_answers();
        as_m2("release", &[]);
        taken.join().expect("no panic");
    });
    fs::write(m1.path("a"), "1").expect("held");
    assert_eq!(stages(&scratch), [m1.token()]);
}

/// The answer is from before the steal, and arrives after the guard has heard of the steal.
#[test]
fn a_steal_before_the_answer_to_who_is_live_is_heeded() {
    stolen_right_after_the_grant(|relay, m1, lock, steal| {
        relay.keep_requests(lock);
        relay.pass_answers();
        relay.wait_for_kept_request();
        relay.keep_answers(lock);
        relay.pass_requests();
        relay.wait_for_kept_answer();
        std::thread::scope(|scope| {
            // The command ends a second after the steal.
            let stolen = scope.spawn(steal);
            soon("the guard has heard of the steal", || {
                (m1.status()["state"] == "reading" || stolen.is_finished()).then_some(())
            });
            relay.pass_answers();
        });
    });
}

/// The guard hears nothing of the steal, and the answer does not name its tenure.
#[test]
fn a_tenure_that_is_not_among_the_live_ones_does_not_begin() {
    stolen_right_after_the_grant(|relay, _, lock, steal| {
        relay.keep_requests(lock);
        relay.pass_answers();
        relay.wait_for_kept_request();
        relay.keep_answers("GET /door/v1/events");
        steal();
        relay.pass_requests();
    });
}

/// A file that an ended tenure changed in place keeps its inode as long as machines share the lock,
/// since another one may have it open too. The next machine that is alone gives it a new one.
#[test]
fn a_file_changed_in_place_is_parted_when_a_machine_is_alone() {
    let (scratch, _server) = shared_folder();
    let [m1, m2, m3] = ["m1", "m2", "m3"].map(|client| guard(&scratch, client, "shared"));
    fs::write(m1.path("in.log"), "00000000").expect("the lock is free");
    let open = |guard: &Guard| {
        File::options().write(true).open(guard.path("in.log")).expect("the lock is shared")
    };
    let (of_m1, of_m2) = (open(&m1), open(&m2));
    of_m1.write_at(b"11", 0).expect("held");
    of_m2.write_at(b"22", 2).expect("held");
    let real = scratch.folder().join("in.log");
    let inode = fs::metadata(&real).expect("there").ino();
    let ended = m1.token();
    m1.kill();
    let mut stages_left = Vec::new();
    soon("the tenure of m1 has ended", || {
        m3.request("give", &[]).ok();
        m3.take_here();
        stages_left = stages(&scratch);
        let states = fs::read_dir(scratch.join("state")).expect("there").next();
        let dir = states.expect("one").expect("readable").path().join("stage");
        let of_m1 = fs::read_dir(dir).expect("there").map(|it| it.expect("readable").path());
        let of_m1 =
            of_m1.into_iter().find(|path| path.to_string_lossy().ends_with(&format!("-{ended}")));
        (!of_m1.expect("it stays").join("files").exists()).then_some(())
    });
    // Writes of m2 from now on must reach the file.
    of_m2.write_at(b"22", 4).expect("held");
    assert_eq!(fs::read(&real).expect("there"), b"11222200");
    assert_eq!(fs::metadata(&real).expect("there").ino(), inode);
    assert!(stages_left.contains(&ended));
    drop((of_m1, of_m2));
    let alone = guard(&scratch, "m4", "exclusive");
    alone.take_here();
    assert_eq!(stages(&scratch), [alone.token()]);
    assert_ne!(fs::metadata(&real).expect("there").ino(), inode);
    assert_eq!(fs::read(&real).expect("there"), b"11222200");
}

/// Copies that a sync tool carries have one writer at a time.
#[test]
fn the_shared_mode_needs_a_shared_storage() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let refused = |options: &[&str]| {
        let paths = [scratch.folder(), scratch.join("view")];
        let state = scratch.join("state");
        let mut command = latchfs();
        command.arg("guard").args(&paths).arg("--stage").arg(state);
        run(command.args(["--mode", "shared"]).args(options)).fails()
    };
    let sentence = refused(&[]);
    assert!(sentence.contains("share one storage"), "{sentence}");
    let (shared, _server) = shared_folder();
    let (folder, view) = (shared.folder(), shared.join("view"));
    let mut command = latchfs();
    command.arg("guard").args([folder, view]);
    command.args(["--shared-storage", "--mode", "shared", "--owner", "session"]);
    let sentence = run(&mut command).fails();
    assert!(sentence.contains("leave --owner out"), "{sentence}");
    assert!(shell(scratch.path(), "ls").ok().contains("folder"));
}
