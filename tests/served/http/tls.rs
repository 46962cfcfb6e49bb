//! TLS with certificates made by `latchfs cert`: HTTP/1.1 and HTTP/2, client certificates, and
//! reloading.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use testing::{Scratch, Server, eventually, run_latchfs};

pub(crate) struct Certs {
    scratch: Scratch,
}

impl Certs {
    pub(crate) fn make() -> Self {
        let certs = Self { scratch: Scratch::new() };
        for what in [&["ca"][..], &["server", "localhost", "127.0.0.1"], &["client", "laptop1"]] {
            let dir = certs.dir();
            let (code, said) = run_latchfs(&[&["cert", "--dir", &dir], what].concat());
            assert_eq!(code, Some(0), "{said}");
        }
        certs
    }

    fn dir(&self) -> String {
        self.scratch.path().join("certs").display().to_string()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir())
    }

    pub(crate) fn serve(&self, more: &[&str]) -> Server {
        let (cert, key) = (self.path("server.pem"), self.path("server.key"));
        Server::start(&[&["--tls-cert", cert.as_str(), "--tls-key", key.as_str()], more].concat())
    }
}

#[test]
fn both_http_versions_work_over_tls() {
    let certs = Certs::make();
    let server = certs.serve(&[]);
    let ca = certs.path("ca.pem");
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    let one = server.curl(&["--cacert", &ca, "--http1.1", "-X", "POST", "/lock?client=a"]);
    assert_eq!(one.is(200)["holder"], "a");
    let two = server.curl(&["--cacert", &ca, "--http2", "/lock"]);
    assert_eq!(two.is(200)["holder"], "a");
    assert!(two.is_http_2(), "{two:?}");
    // A client without the CA certificate rejects the server, and a client without TLS gets no
    // response.
    let url = format!("{}/lock", server.url);
    let strict = Command::new("curl").args(["-sS", &url]).output().expect("curl");
    assert!(!strict.status.success());
    let plain = Command::new("curl").args(["-sS", &url.replace("https:", "http:")]).output();
    assert!(!plain.expect("curl").status.success());
    server.curl(&["--cacert", &ca, "/healthz"]).is(200);
}

/// A mistake in the files of tokens, rights, certificates and keys is found before a cluster begins
/// and before a socket is bound: the data directory is not even made, and a second try may differ.
#[test]
fn files_are_read_before_anything_is_begun() {
    let certs = Certs::make();
    let (cert, key) = (certs.path("server.pem"), certs.path("server.key"));
    let (ca, broken, data) = (certs.path("ca.pem"), certs.path("broken"), certs.path("data"));
    fs::write(&broken, "no PEM and no TOML: [").expect("it is new");
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o600)).expect("it is ours");
    // An address that is taken: if it were bound first, the message would be about it.
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let taken = listener.local_addr().expect("bound").to_string();
    let missing = certs.path("missing");
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    for wrong in [
        &["--tokens", &missing][..],
        &["--tokens", &broken],
        &["--tls-cert", &broken, "--tls-key", &key],
        &["--tls-cert", &cert, "--tls-key", &missing],
        &[&tls[..], &["--client-ca", &broken]].concat(),
        &[&tls[..], &["--client-ca", &ca, "--certificate-rights", &broken]].concat(),
        &[&tls[..], &["--client-ca", &ca, "--refuse-serials", &missing]].concat(),
    ] {
        let node = ["serve", "--listen", &taken, "--line-listen", &taken, "--data", &data];
        let (code, said) = run_latchfs(&[&node[..], wrong].concat());
        assert!(matches!(code, Some(64 | 69)), "{wrong:?}: {said}");
        let file = wrong.iter().find(|word| said.contains(**word));
        assert!(file.is_some() && !said.contains("listen on"), "{wrong:?}: {said}");
        assert!(!fs::exists(&data).expect("readable"), "{wrong:?}: {said}");
    }
    let open = ["--listen", "127.0.0.1:0", "--line-listen", "0.0.0.0:0", "--data", &data];
    let (code, said) = run_latchfs(&[&["serve"][..], &open].concat());
    assert_eq!(code, Some(64), "{said}");
    assert!(!fs::exists(&data).expect("readable"), "{said}");
}

#[test]
fn client_certificate_limits_the_client_names() {
    let certs = Certs::make();
    let ca = certs.path("ca.pem");
    let server = certs.serve(&["--client-ca", &ca]);
    let (cert, key) = (certs.path("laptop1.pem"), certs.path("laptop1.key"));
    let known = ["--cacert", &ca, "--cert", &cert, "--key", &key, "-X", "POST"];
    let ask = |path: &str| server.curl(&[&known[..], &[path]].concat());
    assert_eq!(ask("/locks/a").is(200)["holder"], "laptop1");
    ask("/locks/b?client=laptop1:alice").is(200);
    ask("/locks/c?client=laptop2").is(403);
    ask("/locks/a/steal?client=laptop1&reason=x").is(403);
    let url = format!("{}/lock", server.url);
    let unknown = Command::new("curl").args(["-sS", "--cacert", &ca, &url]).output();
    assert!(!unknown.expect("curl").status.success(), "no certificate, no connection");
    let other = Certs::make();
    let (cert, key) = (other.path("laptop1.pem"), other.path("laptop1.key"));
    let arguments = ["-sS", "--cacert", &ca, "--cert", &cert, "--key", &key, &url];
    let foreign = Command::new("curl").args(arguments).output();
    assert!(!foreign.expect("curl").status.success(), "another authority's certificate");
}

/// SIGHUP makes the server reload its certificates: new connections get the new certificate, and
/// existing ones continue.
#[test]
fn certificates_are_reloaded() {
    let (certs, newer) = (Certs::make(), Certs::make());
    let server = certs.serve(&[]);
    let ca = |certs: &Certs| certs.path("ca.pem");
    let trusts = |certs: &Certs| {
        let url = format!("{}/healthz", server.url);
        let asked = Command::new("curl").args(["-sS", "--cacert", &ca(certs), &url]).output();
        asked.expect("curl is there").status.success()
    };
    let mut old = server.events(&["--cacert", &ca(&certs), "/events"]);
    assert!(trusts(&certs) && !trusts(&newer));
    // A server keeps its old certificate if the new file is invalid.
    fs::write(certs.path("server.pem"), "no certificate").expect("it is ours");
    server.signal(libc::SIGHUP);
    eventually("it says so", || server.log().contains("all stays as it was").then_some(()));
    assert!(trusts(&certs));
    for file in ["server.pem", "server.key"] {
        fs::copy(newer.path(file), certs.path(file)).expect("it is ours");
    }
    server.signal(libc::SIGHUP);
    eventually("the new certificate", || trusts(&newer).then_some(()));
    assert!(!trusts(&certs), "the old one is not shown any more");
    server.curl(&["--cacert", &ca(&newer), "-X", "POST", "/locks/seen?client=x"]).is(200);
    assert_eq!(old.until("granted").data["name"], "seen", "the old connection goes on");
}

#[test]
fn keys_are_private_and_files_are_not_overwritten() {
    let certs = Certs::make();
    for name in ["ca.key", "server.key", "laptop1.key"] {
        let mode = fs::metadata(certs.path(name)).expect("it was made").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let dir = certs.dir();
    let (code, said) = run_latchfs(&["cert", "--dir", &dir, "ca"]);
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("is there already"), "{said}");
    let (code, said) = run_latchfs(&["cert", "--dir", &dir, "client", "../x"]);
    assert_eq!(code, Some(64), "{said}");
    let empty = Scratch::new();
    let dir = empty.path().display().to_string();
    let (code, said) = run_latchfs(&["cert", "--dir", &dir, "server", "x"]);
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("latchfs cert ca"), "{said}");
}

#[test]
fn plain_http_to_a_port_that_expects_tls_is_told_so() {
    let certs = Certs::make();
    let server = certs.serve(&[]);
    let url = server.url.replace("https://", "http://");
    let (code, said) = run_latchfs(&["status", "build", "--server", &url]);
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("write https:// in its URL"), "{said}");
}
