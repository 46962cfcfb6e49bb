//! The audit log of a server: who did what, and which requests were refused, also in a flood.

use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;
use testing::{ALICE, BOB, Scratch, Server, Setup, eventually, latchfs, run_latchfs, signal};

const TOKENS: &str = r#"
[[token]]
name = "eve"
secret = "the secret of the attacker"
clients = ["eve", "eve:*"]

[[token]]
name = "admin"
secret = "the secret of the admin"
clients = ["*"]
steal = true
"#;

const EVE: &str = "Authorization: Bearer the secret of the attacker";
const ADMIN: &str = "Authorization: Bearer the secret of the admin";
const GUESS: &str = "Authorization: Bearer a guess of some length";

/// Starts a server that keeps its state in `scratch`, with these options.
fn start(scratch: &Scratch, options: &[&str]) -> Server {
    let data = scratch.path().join("state").display().to_string();
    Server::listen(&[&["--data", &data], options].concat())
}

fn start_with_tokens(scratch: &Scratch) -> Server {
    let tokens = scratch.path().join("tokens.toml");
    fs::write(&tokens, TOKENS).expect("our directory");
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).expect("it is ours");
    start(scratch, &["--tokens", &tokens.display().to_string()])
}

/// Returns the records of a file in the state directory.
fn records(scratch: &Scratch, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(scratch.path().join("state").join(file)).unwrap_or_default();
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Waits for a record of a refusal that has these parts.
#[track_caller]
fn refused(scratch: &Scratch, by: &str, last: &str, reason: &str) {
    eventually(&format!("a record of a refusal: {last}, {reason}"), || {
        let all = records(scratch, "refused.log");
        let found = all.iter().find(|record| {
            let has = |key: &str, part: &str| {
                record[key].as_str().is_some_and(|text| text.contains(part))
            };
            has("actor", by) && has("last", last) && has("reason", reason)
        })?;
        assert_eq!(
            (&found["operation"], &found["address"]),
            (&"refuse".into(), &"127.0.0.1".into())
        );
        Some(())
    });
}

/// In an earlier version the audit log had steals only, and no refusal at all.
#[test]
fn flood_of_refusals_leaves_a_small_file_with_right_counts() {
    const REQUESTS: usize = 10_000;
    const AT_ONCE: usize = 100;
    let scratch = Scratch::new();
    let server = start_with_tokens(&scratch);
    let address = server.url.strip_prefix("http://").expect("plain HTTP");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let request = format!(
        "POST /locks/x/steal?reason=why HTTP/1.1\r\nhost: {address}\r\n{EVE}\r\n\
         content-length: 0\r\n\r\n"
    );
    let began = latchfs::time::boot_now();
    let mut answers = Vec::new();
    for _ in 0..REQUESTS / AT_ONCE {
        stream.write_all(request.repeat(AT_ONCE).as_bytes()).expect("it reads");
        answers.clear();
        let mut part = [0; 1 << 13];
        let denied = b"HTTP/1.1 403 ";
        while answers.windows(denied.len()).filter(|part| part == denied).count() < AT_ONCE {
            let count = stream.read(&mut part).expect("it answers");
            assert!(count > 0, "it goes on");
            answers.extend_from_slice(&part[..count]);
        }
    }
    let all = eventually("all are counted", || {
        let all = records(&scratch, "refused.log");
        let count: u64 = all.iter().filter_map(|record| record["count"].as_u64()).sum();
        (count == REQUESTS as u64).then_some(all)
    });
    let seconds = latchfs::time::boot_now().since(began).as_millis() / 1_000;
    assert!(all.len() as u64 <= seconds + 1, "{} records in {seconds} s", all.len());
    for record in &all {
        assert_eq!((&record["actor"], &record["credential"]), (&"eve".into(), &"token".into()));
        assert_eq!(record["last"], "steal a lock");
    }
    let length = fs::metadata(scratch.path().join("state/refused.log")).expect("a file").len();
    assert!(length < 4 << 10, "{length} bytes");
    assert!(records(&scratch, "audit.log").is_empty(), "the acts are not among them");
    let lines = server.log().matches("requests by eve (token) from 127.0.0.1 were refused").count();
    assert_eq!(lines, all.len(), "the ordinary log has a line for each");
    server.curl(&["-H", ADMIN, "-X", "POST", "/locks/x?client=a"]).is(200);
}

#[test]
fn administrative_acts_name_the_credential_and_the_address() {
    let scratch = Scratch::new();
    let server = start_with_tokens(&scratch);
    let post = |who: &str, path: &str| server.curl(&["-H", who, "-X", "POST", path]).is(200);
    post(EVE, "/locks/x?ttl=1h");
    post(ADMIN, "/locks/x/steal?client=a&reason=why");
    post(EVE, "/locks/y?ttl=1h");
    server.curl(&["-H", ADMIN, "-X", "DELETE", "/locks?client=eve"]).is(200);
    post(ADMIN, "/reset?of=eve&client=a&reason=why");
    let mut backup = Command::new("curl");
    backup.args(["-sf", "-o", "/dev/null", "-H", ADMIN]);
    assert!(backup.arg(format!("{}/backup", server.url)).status().expect("curl").success());
    server.signal(libc::SIGHUP);
    let acts = eventually("all acts", || {
        let all = records(&scratch, "audit.log");
        all.iter().any(|record| record["actor"] == "SIGHUP").then_some(all)
    });
    let mut own = acts.iter().filter(|record| record["actor"] == "admin");
    for (act, key, target) in [
        ("steal a lock", "name", "x"),
        ("end all of a client", "client", "eve"),
        ("reset locks", "client", "eve"),
        ("back up all locks", "outcome", "done"),
    ] {
        let record = own.next().unwrap_or_else(|| panic!("{act}: {acts:?}"));
        assert_eq!((&record["operation"], &record[key]), (&act.into(), &target.into()));
        assert_eq!(record["credential"], "token");
        assert_eq!(record["address"], "127.0.0.1");
    }
    assert!(own.next().is_none(), "{acts:?}");
    assert!(acts.iter().any(|record| record["operation"] == "steal" && record["reason"] == "why"));
}

/// In an earlier version any client could push the acts of administrators out of the audit log.
#[test]
fn requests_that_end_nothing_of_others_are_not_in_the_audit_log() {
    let scratch = Scratch::new();
    let server = start_with_tokens(&scratch);
    let end_all = |who: &str, client: &str| {
        let path = format!("/locks?client={client}");
        server.curl(&["-H", who, "-X", "DELETE", &path]).is(200)
    };
    for _ in 0..3 {
        end_all(EVE, "eve");
        end_all(EVE, "eve:x");
        server.curl(&["-H", EVE, "-X", "POST", "/locks/x?ttl=1h&client=eve:x"]).is(200);
        assert_eq!(end_all(EVE, "eve:x")["holds"], 1);
        end_all(ADMIN, "eve");
    }
    let all = records(&scratch, "audit.log");
    assert!(all.is_empty(), "{all:?}");
    server.curl(&["-H", EVE, "-X", "POST", "/locks/x?ttl=1h"]).is(200);
    end_all(ADMIN, "eve");
    let all = records(&scratch, "audit.log");
    assert_eq!((all.len(), &all[0]["operation"]), (1, &"end all of a client".into()), "{all:?}");
}

#[test]
fn every_kind_of_refusal_is_recorded() {
    let scratch = Scratch::new();
    let server = start_with_tokens(&scratch);
    server.curl(&["-H", GUESS, "/locks/x"]).is(401);
    refused(&scratch, "nobody", "show a lock", "this token is unknown");
    server.curl(&["/locks"]).is(401);
    refused(&scratch, "nobody", "list locks", "send a header");
    server.curl(&["-H", EVE, "-X", "POST", "/locks/x?client=ann"]).is(403);
    refused(&scratch, "eve", "acquire a lock", "may not act as 'ann'");
    server.curl(&["-H", EVE, "-H", "Origin: http://evil.example", "/locks"]).is(403);
    refused(&scratch, "nobody", "list locks", "cross-site");
    drop(server);
    let scratch = Scratch::new();
    let server = start(&scratch, &[]);
    server.curl(&["-H", "Host: evil.example", "/locks"]).is(403);
    refused(&scratch, "nobody", "list locks", "another name");
}

/// Commands with `--server` and lines reach the same records as requests of the API.
#[test]
fn batches_and_lines_are_recorded() {
    let scratch = Scratch::new();
    let tokens = scratch.path().join("tokens.toml").display().to_string();
    write(&tokens, TOKENS);
    let mut server = start(&scratch, &["--tokens", &tokens, "--line-listen", "127.0.0.1:0"]);
    let said = server.says();
    let address = said.trim().rsplit_once(' ').expect("an address").1;
    let mut stream = TcpStream::connect(address).expect("it listens");
    let lines = "AUTH,the secret of the attacker\nLOCK,x,ann\nAUTH,a guess of some length\n";
    stream.write_all(lines.as_bytes()).expect("it reads");
    refused(&scratch, "eve", "acquire a lock", "may not act as 'ann'");
    refused(&scratch, "nobody", "show a credential", "this token is unknown");
    server.curl(&["-H", EVE, "-X", "POST", "/locks/x?ttl=1h"]).is(200);
    let key = |name: &str, secret: &str| {
        let path = scratch.path().join(name).display().to_string();
        write(&path, secret);
        path
    };
    let steal = |key: &str, client: &str| {
        let steal = ["steal", "x", "--reason", "why", "--server", &server.url];
        run_latchfs(&[&steal[..], &["--token-file", key, "--client", client]].concat())
    };
    let (code, said) = steal(&key("eve", "the secret of the attacker"), "eve");
    assert_ne!(code, Some(0), "{said}");
    refused(&scratch, "eve", "steal a lock", "take a live lock");
    let (code, said) = steal(&key("admin", "the secret of the admin"), "a");
    assert_eq!(code, Some(0), "{said}");
    let all = records(&scratch, "audit.log");
    let act = all.iter().find(|record| record["operation"] == "steal a lock").expect("a record");
    assert_eq!((&act["actor"], &act["name"]), (&"admin".into(), &"x".into()), "{all:?}");
    assert!(all.iter().any(|record| record["operation"] == "steal"), "{all:?}");
}

/// Makes a CA with certificates for a server, a client and a node in `dir`.
fn certificates(dir: &str) {
    for what in [
        &["ca"][..],
        &["server", "127.0.0.1"],
        &["client", "eve"],
        &["client", "ann"],
        &["peer", "127.0.0.1"],
    ] {
        let (code, said) = run_latchfs(&[&["cert", "--dir", dir], what].concat());
        assert_eq!(code, Some(0), "{said}");
    }
}

/// The files of a server that reads each of them at its start, and a client for it.
struct Files<'a> {
    scratch: &'a Scratch,
    url: String,
}

impl Files<'_> {
    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    /// Returns the status of a request by the certificate `name` of the directory `dir`, which
    /// also verifies the server; `None` if there is no connection.
    fn status(&self, dir: &str, name: &str, path: &str, more: &[&str]) -> Option<u16> {
        let file = |ending: &str| self.path(&format!("{dir}/{name}.{ending}"));
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20"]);
        curl.args(["--cacert", &self.path(&format!("{dir}/ca.pem"))]);
        if !name.is_empty() {
            curl.args(["--cert", &file("pem"), "--key", &file("key")]);
        }
        let url =
            if path.starts_with("https:") { path.to_owned() } else { self.url.clone() + path };
        let output = curl.args(more).arg(url).output().expect("curl is there");
        String::from_utf8_lossy(&output.stdout).parse().ok().filter(|status| *status > 0)
    }

    /// Copies all files of `from` to the directory that the server reads.
    fn copy(&self, from: &str) {
        fs::create_dir_all(self.path("used")).expect("our directory");
        for file in fs::read_dir(self.path(from)).expect("it is there") {
            let file = file.expect("a file");
            let to = self.scratch.path().join("used").join(file.file_name());
            fs::copy(file.path(), to).expect("ours");
        }
    }
}

fn write(path: &str, text: &str) {
    fs::write(path, text).expect("our directory");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is ours");
}

/// Writes the text files of a generation: tokens, rights and refused serial numbers.
fn texts(dir: &str, secret: &str, prefix: &str, serials: &str) {
    let token = format!("[[token]]\nname = \"t\"\nsecret = \"{secret}\"\nclients = [\"t\"]\n");
    write(&format!("{dir}/tokens.toml"), &token);
    let entry =
        |name: &str| format!("[[certificate]]\nname = \"{name}\"\nlocks = [\"{prefix}\"]\n");
    write(&format!("{dir}/rights.toml"), &(entry("eve") + &entry("ann")));
    write(&format!("{dir}/serials"), serials);
}

fn serial(path: &str) -> String {
    let output = Command::new("openssl").args(["x509", "-noout", "-serial", "-in", path]).output();
    String::from_utf8(output.expect("openssl is there").stdout).expect("text")
}

/// Starts a node that reads each kind of file.
fn start_node(files: &Files<'_>) -> Server {
    let data = files.path("state");
    // A new cluster begins without peers.
    drop(Server::listen(&["--data", &data]));
    let used = |name: &str| files.path(&format!("used/{name}"));
    let options = [
        ("--tls-cert", "server.pem"),
        ("--tls-key", "server.key"),
        ("--client-ca", "ca.pem"),
        ("--tokens", "tokens.toml"),
        ("--certificate-rights", "rights.toml"),
        ("--refuse-serials", "serials"),
        ("--peer-cert", "127.0.0.1.pem"),
        ("--peer-key", "127.0.0.1.key"),
        ("--peer-ca", "ca.pem"),
    ];
    let own = ["--data", &data, "--peer-listen", "127.0.0.1:0"].map(str::to_owned);
    let options = options.into_iter().flat_map(|(option, file)| [option.to_owned(), used(file)]);
    let all: Vec<String> = own.into_iter().chain(options).collect();
    Server::listen(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the URL of a node's port for peers.
fn peer_url(server: &str) -> String {
    let mut curl = Command::new("curl");
    curl.args(["-sk", "-H", "Authorization: Bearer the first secret of t"]);
    let nodes = curl.arg(format!("{server}/cluster")).output().expect("curl is there");
    let nodes: Value = serde_json::from_slice(&nodes.stdout).expect("JSON");
    format!("https://{}/x", nodes["nodes"][0]["address"].as_str().expect("an address"))
}

/// In an earlier version each client certificate saw all locks.
#[test]
fn sighup_reads_every_file_again() {
    let scratch = Scratch::new();
    let mut files = Files { scratch: &scratch, url: String::new() };
    for (dir, secret, prefix) in
        [("old", "the first secret of t", "old/"), ("new", "the other secret of t", "new/")]
    {
        let dir = files.path(dir);
        certificates(&dir);
        let refused =
            if prefix == "new/" { serial(&format!("{dir}/ann.pem")) } else { String::new() };
        texts(&dir, secret, prefix, &refused);
    }
    files.copy("old");
    let server = start_node(&files);
    files.url.clone_from(&server.url);
    let peers = peer_url(&server.url);
    let is_served = |dir: &str, secret: &str| {
        let bearer = format!("Authorization: Bearer {secret}");
        let lock = |dir: &str| format!("/locks/{dir}/x");
        let other = if dir == "old" { "new" } else { "old" };
        let own = (
            files.status(dir, "eve", &lock(dir), &[]),
            files.status(dir, "eve", &lock(other), &[]),
            files.status(dir, "ann", &lock(dir), &[]),
            files.status(dir, "", &lock(dir), &["-H", &bearer]),
            files.status(dir, "127.0.0.1", &peers, &[]),
        );
        let ann = if dir == "old" { 200 } else { 401 };
        assert_eq!(own, (Some(200), Some(403), Some(ann), Some(200), Some(404)), "{dir}");
        // These trust any server.
        assert_eq!(files.status(other, "eve", &lock(dir), &["-k"]), None);
        assert_eq!(files.status(other, "127.0.0.1", &peers, &["-k"]), None);
    };
    is_served("old", "the first secret of t");
    refused(&scratch, "eve", "show a lock", "no access");
    let reload = |says: &str| {
        let before = server.log().matches(says).count();
        server.signal(libc::SIGHUP);
        eventually(says, || (server.log().matches(says).count() > before).then_some(()));
    };
    for file in ["tokens.toml", "server.pem", "server.key", "rights.toml", "serials", "ca.pem"] {
        write(&files.path(&format!("used/{file}")), "[[nonsense");
        reload("all stays as it was");
        files.copy("old");
    }
    for file in ["127.0.0.1.pem", "127.0.0.1.key"] {
        write(&files.path(&format!("used/{file}")), "[[nonsense");
        reload("the certificates for peers stay as they were");
        files.copy("old");
    }
    is_served("old", "the first secret of t");
    files.copy("new");
    reload("tokens and certificates were read again");
    // The peers' files are read after the others.
    eventually("the end of the reload", || {
        let all = records(&scratch, "audit.log");
        let last = all.iter().rfind(|record| record["actor"] == "SIGHUP")?;
        (last["outcome"] == "tokens and certificates were read again").then_some(())
    });
    is_served("new", "the other secret of t");
    refused(&scratch, "ann", "show a lock", "refused");
    // The certificates of the former CA are foreign now.
    refused(&scratch, "nobody", "show a credential", "certificate");
    refused(&scratch, "a peer", "call as a node", "certificate");
}

/// In an earlier version a mount of a server ended at SIGHUP, and had to be restarted for another
/// token.
#[test]
fn sighup_gives_a_mount_another_token() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let (tokens, own, dir) = (path("tokens.toml"), path("token"), path("locks"));
    let secret = |secret: &str| {
        write(
            &tokens,
            &format!(
                "[[token]]\nname = \"t\"\nsecret = \"{secret}\"\nclients = [\"t\", \"t:*\"]\n"
            ),
        );
    };
    secret("the first secret of t");
    write(&own, "the first secret of t\n");
    let server = Server::listen(&["--memory", "--grant-at-once", "--tokens", &tokens]);
    let log = fs::File::create(path("mount.log")).expect("our directory");
    let mut mount = latchfs();
    mount.args(["mount", "locks", "--foreground", "--client", "t", "--server", &server.url]);
    mount.args(["--token-file", "token", "--ttl", "2s"]).current_dir(scratch.path());
    mount.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut mount = mount.spawn().expect("the program is there");
    let log = || fs::read_to_string(path("mount.log")).unwrap_or_default();
    let is_mounted = || fs::exists(format!("{dir}/.latchfs")).unwrap_or(false).then_some(());
    eventually("it is mounted", is_mounted);
    fs::create_dir(format!("{dir}/a")).expect("it is free");
    let hang_up = |says: &str| {
        signal(mount.id().cast_signed(), libc::SIGHUP);
        eventually(says, || log().contains(says).then_some(()));
    };
    secret("the other secret of t");
    server.signal(libc::SIGHUP);
    eventually("a reload", || server.log().contains("were read again").then_some(()));
    fs::remove_file(&own).expect("it is ours");
    hang_up("the token and the certificates stay as they were");
    write(&own, "the other secret of t\n");
    hang_up("the token and the certificates for the server were read again");
    eventually("the mount is served", || {
        let made = fs::create_dir(format!("{dir}/b"));
        made.is_ok().then_some(())
    });
    signal(mount.id().cast_signed(), libc::SIGTERM);
    assert!(mount.wait().expect("it ends").success(), "{}", log());
}

/// In an earlier version no file had the requests that a mount denies to local users.
#[test]
fn what_a_mount_denies_to_local_users_is_recorded_by_uid() {
    const REQUESTS: u64 = 3_000;
    let m = Setup::new().start();
    m.sh_as(ALICE, "mkdir -m 755 team").ok();
    let uid = m.sh(&format!("id -u {BOB}")).ok().trim().to_owned();
    let begun = latchfs::time::boot_now();
    let attack = format!(
        r#"
        with user('{BOB}'):
            for n in range({REQUESTS}):
                eq(no(os.mkdir, f'team/n{{n}}'), 'EACCES')
            eq(no(os.rmdir, 'team'), 'EPERM')
            ctl = os.open('.latchfs/ctl', os.O_RDWR)
            os.write(ctl, json.dumps(dict(do='steal', name='team', reason='because')).encode())
            eq(json.loads(os.read(ctl, 65536))['kind'], 'E_DENIED')
            os.close(ctl)
        "#
    );
    m.py(&attack).ok();
    let all = eventually("all are counted", || {
        let text = fs::read_to_string(m.state().join("refused.log")).unwrap_or_default();
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        let all: Vec<Value> =
            whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let count: u64 = all.iter().filter_map(|record| record["count"].as_u64()).sum();
        assert!(
            count <= REQUESTS + 1,
            "the lock of another client is no matter of rights: {all:?}"
        );
        (count == REQUESTS + 1).then_some(all)
    });
    let seconds = latchfs::time::boot_now().since(begun).as_millis() / 1_000;
    assert!(all.len() as u64 <= seconds + 1, "{} records in {seconds} s", all.len());
    for record in &all {
        assert_eq!(
            (&record["operation"], &record["credential"]),
            (&"refuse".into(), &"user".into())
        );
        assert_eq!(record["actor"], format!("uid {uid}"));
        assert_eq!(record["address"], m.dir().display().to_string());
    }
    assert_eq!(all.last().expect("records")["last"], "steal a lock");
    m.sh_as(ALICE, "mkdir team/own").ok();
}
