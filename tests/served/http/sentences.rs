//! The program's error messages: each says what failed, why, and what to do next.

use testing::{Scratch, Server, run_latchfs};

/// Runs the program, and checks its exit code. Returns its output, which must not contain numbers
/// of OS errors.
#[track_caller]
fn said(code: i32, arguments: &[&str]) -> String {
    let (ended, said) = run_latchfs(arguments);
    assert_eq!(ended, Some(code), "{said}");
    assert!(!said.contains("os error"), "{said}");
    said
}

#[test]
fn invalid_address_is_explained() {
    for (address, next) in [
        ("nonsense", "write it like 127.0.0.1:8080"),
        ("localhost:8080", "write 127.0.0.1:8080"),
        (":8080", "write 127.0.0.1:8080 for this machine alone"),
    ] {
        let served = said(64, &["serve", "--memory", "--grant-at-once", "--listen", address]);
        assert!(served.contains("IP:PORT") && served.contains(next), "{served}");
        let mounted = said(64, &["mount", "/nowhere", "--listen", address]);
        assert!(mounted.contains("IP:PORT") && mounted.contains(next), "{mounted}");
    }
}

#[test]
fn address_in_use_is_explained() {
    let server = Server::start(&[]);
    let address = server.url.strip_prefix("http://").expect("no TLS");
    let taken = said(69, &["serve", "--memory", "--grant-at-once", "--listen", address]);
    let expected = format!("can't listen on {address}: address already in use; name another");
    assert!(taken.contains(&expected), "{taken}");
}

#[test]
fn unreachable_server_is_explained() {
    let gone = {
        let mut server = Server::start(&[]);
        server.signal(libc::SIGTERM);
        assert_eq!(server.wait(), Some(0));
        server.url.clone()
    };
    let refused = said(69, &["ls", "--server", &gone]);
    assert!(refused.contains("can't be used: connection refused; see whether"), "{refused}");
}

#[test]
fn missing_files_are_explained() {
    let scratch = Scratch::new();
    let none = scratch.path().join("none").display().to_string();
    let tokens = said(69, &["serve", "--memory", "--grant-at-once", "--tokens", &none]);
    assert!(tokens.contains("it can't be read: no such file or directory"), "{tokens}");
    let tls = ["--tls-cert", &none, "--tls-key", &none];
    let tls = said(69, &[&["serve", "--memory", "--grant-at-once"][..], &tls].concat());
    assert!(tls.contains(&format!("{none}: it can't be read: no such file")), "{tls}");
    let token = said(69, &["ls", "--server", "http://127.0.0.1:1", "--token-file", &none]);
    let wanted = format!("{none} can't be read: no such file or directory; the command line names");
    assert!(token.contains(&wanted), "{token}");
}

#[test]
fn invalid_lock_name_is_explained() {
    let server = Server::start(&[]);
    for (name, next) in [
        ("a//b", "write one slash between parts"),
        ("../a", "write it whole"),
        (".latchfs/x", "let it begin otherwise"),
        (&"x".repeat(256), "choose a shorter one"),
    ] {
        let wrong = said(64, &["acquire", name, "--server", &server.url]);
        assert!(wrong.contains(" is not the name of a lock: ") && wrong.contains(next), "{wrong}");
    }
}

/// A conflict over HTTP says how to wait and how to renew over HTTP; a command at the same server
/// says how to do so by commands.
#[test]
fn a_conflict_names_the_next_step_of_its_interface() {
    let server = Server::start(&[]);
    let post = |query: &str| server.curl(&["-X", "POST", &format!("/locks/{query}")]);
    post("build?client=a").is(200);
    let detail = |query: &str| post(query).is(409)["detail"].as_str().unwrap_or("").to_owned();
    let other = detail("build?client=b");
    assert!(other.ends_with("; wait in the queue with 'wait=10m', or try again later"), "{other}");
    let own = detail("build?client=a");
    assert!(own.contains("wait=10m") && own.contains("'reentrant=true'"), "{own}");
    assert!(!other.contains("latchfs ") && !own.contains("latchfs "), "{other} {own}");
    let command = said(75, &["acquire", "build", "--server", &server.url]);
    assert!(command.contains("wait with 'latchfs run' or 'latchfs wait'"), "{command}");
}
