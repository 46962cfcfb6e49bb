//! Servers with and without credentials (none, tokens, certificates), and connections to them.

use super::local::LocalMount;
use super::{ALL, Who};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testing::{Scratch, Server, run_latchfs};

/// Only callers with access to all locks may see locks whose names contain this text.
pub(super) const HIDDEN: &[u8] = b"hidden-";
/// Every caller may see locks whose names contain this text.
pub(super) const SHOWN: &[u8] = b"team/shown";

const TOKENS: &str = r#"
[[token]]
name = "limited"
secret = "the secret of the limited"
clients = ["a"]
locks = ["team/"]

[[token]]
name = "thief"
secret = "the secret of the thief"
clients = ["a"]
locks = ["team/"]
steal = true

[[token]]
name = "builder"
secret = "the secret of the builder"
clients = ["a"]
locks = ["team/"]
cluster = true

[[token]]
name = "reader"
secret = "the secret of the reader"
clients = ["a"]

[[token]]
name = "keeper"
secret = "the secret of the keeper"
clients = ["*"]
steal = true

[[token]]
name = "everybody"
secret = "the secret of everybody"
clients = ["*"]
steal = true
cluster = true
"#;

/// The server to which a caller connects, by its kind of authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Site {
    /// A server that requires no credentials.
    Open,
    /// A server that requires bearer tokens.
    Tokens,
    /// A server that requires client certificates or bearer tokens.
    Certified,
    /// The HTTP socket of a mount that an unprivileged user has made.
    Mount,
}

/// The servers of the test, one of each kind.
pub(super) struct Sites {
    servers: [(Server, String); 3],
    pub(super) mount: LocalMount,
    /// TLS client configurations: with the certificate of the client `a`, and without one.
    tls: [Arc<ClientConfig>; 2],
    _scratch: Scratch,
}

/// A connection to a server, encrypted or not.
pub(super) trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

impl Sites {
    pub(super) fn start() -> Self {
        let scratch = Scratch::new();
        let path = |name: &str| scratch.path().join(name).display().to_string();
        let (tokens, certs) = (path("tokens.toml"), path("certs"));
        std::fs::write(&tokens, TOKENS).expect("a fresh directory");
        std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).expect("ours");
        for what in [&["ca"][..], &["server", "localhost", "127.0.0.1"], &["client", "a"]] {
            let (code, said) = run_latchfs(&[&["cert", "--dir", &certs], what].concat());
            assert_eq!(code, Some(0), "{said}");
        }
        let cert = |name: &str| format!("{certs}/{name}");
        let start = |options: &[&str]| {
            let mut server = Server::start(&[&["--line-listen", "127.0.0.1:0"], options].concat());
            let said = server.says();
            let line =
                said.strip_prefix("latchfs: line protocol listening on ").expect("an address");
            (server, line.trim_end().to_owned())
        };
        let (server, key, ca) = (cert("server.pem"), cert("server.key"), cert("ca.pem"));
        let tls = ["--tls-cert", &server, "--tls-key", &key, "--client-ca", &ca];
        let servers = [
            start(&[]),
            start(&["--tokens", &tokens]),
            start(&[&["--tokens", &tokens], &tls[..]].concat()),
        ];
        let tls = [Some("a"), None].map(|name| config(scratch.path(), name));
        let mount = LocalMount::start();
        let sites = Self { servers, mount, tls, _scratch: scratch };
        for site in [Site::Open, Site::Tokens, Site::Certified, Site::Mount] {
            sites.fill(site);
        }
        sites
    }

    /// Acquires visible and hidden locks on a server. The hidden locks are acquired first, because
    /// a reader of the event stream stops at the first visible one.
    fn fill(&self, site: Site) {
        let admin = Who { site, ..ALL };
        for (method, name) in [
            ("POST", "hidden-lock"),
            ("POST", "hidden-ended"),
            ("DELETE", "hidden-ended"),
            ("POST", "team/shown-ended"),
            ("DELETE", "team/shown-ended"),
            ("POST", "team/shown"),
        ] {
            let path = format!("/locks/{name}?client=b&ttl=1h");
            let path = if method == "DELETE" { path.replace("&ttl=1h", "") } else { path };
            let (code, body) = self.http(&admin, method, &path, &[], None);
            assert_eq!(code, 200, "{name}: {}", String::from_utf8_lossy(&body));
        }
    }

    fn connect(&self, who: &Who, of_lines: bool) -> Box<dyn Stream> {
        if who.site == Site::Mount {
            return Box::new(self.mount.connect(who.user));
        }
        let (server, line) = &self.servers[who.site as usize];
        let (_, http) = server.url.split_once("://").expect("a scheme");
        let stream = TcpStream::connect(if of_lines { line } else { http }).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        if who.site != Site::Certified {
            return Box::new(stream);
        }
        let has_none = !who.is_known || who.token.is_some();
        let name = ServerName::try_from("localhost").expect("a name");
        let config = Arc::clone(&self.tls[usize::from(has_none)]);
        let client = ClientConnection::new(config, name).expect("configured");
        Box::new(StreamOwned::new(client, stream))
    }

    /// Sends one HTTP request as a caller. Returns the status code and the body, of which a stream
    /// is read up to the bytes `until`.
    pub(super) fn http(
        &self,
        who: &Who,
        method: &str,
        path: &str,
        body: &[u8],
        until: Option<&[u8]>,
    ) -> (u16, Vec<u8>) {
        let mut stream = self.connect(who, false);
        let wants_none = matches!(who.site, Site::Open | Site::Mount);
        let token = if wants_none { None } else { who.token };
        let token =
            token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).expect("it listens");
        let (mut all, mut part) = (Vec::new(), [0; 16 << 10]);
        loop {
            match stream.read(&mut part) {
                Ok(count) if count > 0 => all.extend_from_slice(&part[..count]),
                // A TLS connection that ends without a close_notify has ended as well.
                _ => break,
            }
            let is_there = |end: &[u8]| all.windows(end.len()).any(|window| window == end);
            if until.is_some_and(|end| is_there(end) && all.starts_with(b"HTTP/1.1 200")) {
                break;
            }
        }
        let text = String::from_utf8_lossy(&all);
        let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        let begins = all.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(0);
        (code.unwrap_or_else(|| panic!("{method} {path}: {text}")), all.split_off(begins))
    }

    /// Sends lines of the line protocol as a caller, and returns the reply to the last one, which
    /// is empty if the connection ends.
    pub(super) fn line(&self, who: &Who, lines: &[String]) -> String {
        let (mut stream, mut said) = (self.connect(who, true), Vec::new());
        for line in lines {
            said.clear();
            // The error is ignored: the write fails if the server has closed the connection after
            // the previous line, and then the reply is empty.
            let _ = stream.write_all(format!("{line}\n").as_bytes());
            let mut byte = [0];
            while stream.read(&mut byte).is_ok_and(|count| count == 1) && byte != *b"\n" {
                said.push(byte[0]);
            }
        }
        String::from_utf8(said).expect("text")
    }
}

fn config(scratch: &Path, name: Option<&str>) -> Arc<ClientConfig> {
    let path = |file: String| scratch.join("certs").join(file);
    let cert = |name: &str| {
        let read = CertificateDer::from_pem_file(path(format!("{name}.pem")));
        read.expect("made above")
    };
    let mut roots = RootCertStore::empty();
    roots.add(cert("ca")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_root_certificates(roots);
    Arc::new(match name {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let key = PrivateKeyDer::from_pem_file(path(format!("{name}.key"))).expect("a key");
            builder.with_client_auth_cert(vec![cert(name)], key).expect("they fit")
        }
    })
}
