//! `doctor --server`: the step at which a connection to a server fails, and the advice for it.

use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::thread;
use testing::{Scratch, Server, latchfs_path, run, run_latchfs};

/// Returns doctor's findings about the servers at `url`: level, text and advice of each.
#[track_caller]
fn doctor(url: &str, more: &[&str]) -> Vec<(String, String, String)> {
    let (code, said) = run_latchfs(&[&["doctor", "--json", "--server", url], more].concat());
    let found: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    // `doctor` also examines the mounts of tests that run at the same time, so its exit code is
    // compared with `ok` in its own output, which covers all findings.
    assert_eq!(code, Some(i32::from(found["ok"] == false)), "{said}");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let findings = found["findings"].as_array().expect("a list").iter();
    let ours = findings.filter(|finding| text(finding, "says").contains(url));
    ours.map(|one| (text(one, "level"), text(one, "says"), text(one, "fix"))).collect()
}

/// Checks that doctor has one finding, which is an error, contains `says`, and gives advice that
/// contains `fix`.
#[track_caller]
fn stuck(url: &str, more: &[&str], says: &str, fix: &str) {
    let found = doctor(url, more);
    let [(level, said, fixed)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(level, "wrong", "{said}");
    assert!(said.contains(says), "{said}");
    assert!(fixed.contains(fix), "{fixed}");
}

#[test]
fn healthy_server_has_no_problem() {
    let server = Server::start(&[]);
    let found = doctor(&server.url, &[]);
    let [well, round_trip, clock] = &found[..] else { panic!("{found:?}") };
    assert!(
        well.1.ends_with("accepts these credentials and speaks this protocol version"),
        "{well:?}"
    );
    assert!(round_trip.1.contains(" answers within ") && round_trip.1.ends_with("ms"), "{found:?}");
    assert!(clock.1.contains("wall clock") && clock.0 == "ok", "{clock:?}");
    assert_eq!(well.0, "ok");
    let (_, text) = run_latchfs(&["doctor", "--server", &server.url]);
    assert!(
        text.contains(&format!("ok     server: {} accepts these credentials", server.url)),
        "{text}"
    );
}

#[test]
fn unreachable_server_is_explained() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    stuck(&url, &[], "can't be reached: connection refused", "latchfs serve");
    stuck("ftp://box", &[], "is neither http nor https", "http://HOST:PORT");
}

/// Another program listens at the server's address: it answers with a page, or not at all.
#[test]
fn server_of_another_program_is_explained() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let page = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    let web = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("doctor comes");
        let asked = stream.read(&mut [0; 4_096]).expect("it asks");
        assert!(asked > 0);
        stream.write_all(page).expect("it listens");
    });
    stuck(&url, &[], "is not a latchfs server of this protocol", "same version at both ends");
    web.join().expect("it was asked");
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    stuck(&url, &[], "does not answer: no answer in time", "https server");
    let url = url.replace("http:", "https:");
    let certs = Certs::make();
    stuck(&url, &["--ca", &certs.ca()], "no TLS within 2s", "--ca");
}

struct Certs(Scratch);

impl Certs {
    fn make() -> Self {
        let certs = Self(Scratch::new());
        for what in [&["ca"][..], &["server", "127.0.0.1"], &["client", "laptop1"]] {
            let (code, said) = run_latchfs(&[&["cert", "--dir", &certs.path("")], what].concat());
            assert_eq!(code, Some(0), "{said}");
        }
        certs
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join("certs").join(name).display().to_string()
    }

    fn ca(&self) -> String {
        self.path("ca.pem")
    }
}

#[test]
fn missing_credentials_are_explained() {
    let (certs, other) = (Certs::make(), Certs::make());
    let tokens = certs.path("tokens.toml");
    let entry = "[[token]]\nname = \"a\"\nsecret = \"the secret of a laptop\"\nclients = [\"*\"]\n";
    fs::write(&tokens, entry).expect("ours");
    fs::write(certs.path("token"), "the secret of a laptop\n").expect("ours");
    for file in [&tokens, &certs.path("token")] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("ours");
    }
    let (cert, key) = (certs.path("server.pem"), certs.path("server.key"));
    let tls = ["--tls-cert", cert.as_str(), "--tls-key", key.as_str()];
    let server = Server::start(&[&tls[..], &["--tokens", &tokens]].concat());
    let url = &server.url;
    stuck(url, &[], "is not trusted", "--ca");
    stuck(url, &["--ca", &other.ca()], "is not trusted", "--ca");
    stuck(url, &["--ca", &certs.ca()], "rejects these credentials: send a header", "--token-file");
    let plain = url.replace("https:", "http:");
    stuck(&plain, &[], "does not answer", "https server");
    let found = doctor(url, &["--ca", &certs.ca(), "--token-file", &certs.path("token")]);
    assert_eq!((found.len(), found[0].0.as_str()), (3, "ok"), "{found:?}");
    let later = Command::new("faketime")
        .args(["-f", "+800d", latchfs_path(), "doctor", "--server", url])
        .args(["--ca", &certs.ca(), "--token-file", &certs.path("token")])
        .output()
        .expect("contrib/test installs faketime");
    let said = String::from_utf8_lossy(&later.stdout);
    let expires = format!("wrong  certificate: the server certificate of {url} expires at ");
    assert!(said.contains(&expires) && !said.contains("CA certificate"), "{said}");
    // The server requires client certificates instead of bearer tokens.
    let server = Server::start(&[&tls[..], &["--client-ca", &certs.ca()]].concat());
    let url = &server.url;
    stuck(url, &["--ca", &certs.ca()], "rejects these credentials: ", "--cert FILE");
    let (cert, key) = (certs.path("laptop1.pem"), certs.path("laptop1.key"));
    let shows = ["--ca", &certs.ca(), "--cert", &cert, "--key", &key];
    assert_eq!(doctor(url, &shows)[0].0, "ok");
}

/// The server tells its page and `/metrics` when a certificate of its own ends.
#[test]
fn server_with_a_certificate_of_ten_days_warns() {
    let scratch = Scratch::new();
    let file = |name: &str| scratch.path().join(name).display().to_string();
    let (cert, key) = (file("own.pem"), file("own.key"));
    let mut made = Command::new("openssl");
    made.args("req -x509 -nodes -days 10 -newkey ec -pkeyopt ec_paramgen_curve:P-256".split(' '));
    made.args(["-subj", "/CN=own", "-addext", "subjectAltName=IP:127.0.0.1"]);
    run(made.args(["-keyout", &key, "-out", &cert])).ok();
    let server = Server::start(&["--tls-cert", &cert, "--tls-key", &key]);
    let get = |path: &str| {
        let url = format!("{}{path}", server.url);
        run(Command::new("curl").args(["-sS", "--cacert", &cert, &url])).ok()
    };
    let me: Value = serde_json::from_str(&get("/me")).expect("JSON");
    let warning = me["warning"].as_str().unwrap_or_default();
    assert!(warning.starts_with("the server certificate expires at "), "{me}");
    let sample = format!(
        "latchfs_certificate_expiry_timestamp_seconds{{certificate=\"server\"}} {}",
        me["certificates"]["server"]
    );
    assert!(get("/metrics").contains(&sample), "{sample}");
}
