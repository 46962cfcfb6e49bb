//! Machines that join a server by a code: the way that people go, and each attack on it.

use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned,
};
use serde_json::{Value, json};
use spake2::{Ed25519Group, Identity, Password, Spake2};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::spawn;
use testing::net::Program;
use testing::{LocalUser, Output, Scratch, Server, eventually, latchfs, latchfs_path, run};

/// What a machine is told that has no valid code.
const REFUSED: &str = "the code is wrong, or it was used or revoked, or its 10 minutes are over";

/// A server that machines join, and its data directory.
struct HomeServer {
    server: Server,
    data: PathBuf,
    /// The code of the first invitation.
    code: String,
    _scratch: Scratch,
}

impl HomeServer {
    fn start() -> Self {
        Self::start_by(latchfs())
    }

    fn start_by(command: Command) -> Self {
        let scratch = Scratch::open_to_all();
        let data = scratch.join("data");
        let (server, code) = serve_by(command, &data);
        Self { server, data, code: code.expect("nobody has joined"), _scratch: scratch }
    }

    fn port(&self) -> &str {
        self.server.url.rsplit_once(':').expect("a port").1
    }

    fn host(&self) -> String {
        format!("localhost:{}", self.port())
    }

    /// Runs a command of the server's user.
    fn run(&self, words: &[&str]) -> Output {
        run(latchfs().args(words).env("LATCHFS_DATA", &self.data))
    }

    /// Starts `latchfs invite`, and returns it with the code.
    fn invite(&self, more: &[&str]) -> (Program, String) {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" invite \"$@\" 2>&1", latchfs_path()]).args(more);
        let inviting = Program::start(command.env("LATCHFS_DATA", &self.data));
        let code = code_in(&inviting.line()).expect("a code");
        assert!(inviting.line().contains("the code stays valid without this command"));
        (inviting, code)
    }

    /// Waits until the file of refused requests has a record with these words.
    #[track_caller]
    fn audited(&self, file: &str, words: &[&str]) {
        let path = self.data.join(file);
        eventually("an entry of the audit log", || {
            let text = fs::read_to_string(&path).unwrap_or_default();
            text.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
        });
    }

    #[track_caller]
    fn devices(&self) -> Vec<String> {
        let shown: Value =
            serde_json::from_str(&self.run(&["devices", "--json"]).ok()).expect("JSON");
        let present = shown["devices"].as_array().expect("a list").iter();
        present.map(|device| device["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Sends a request to an internal endpoint by curl, which verifies nothing.
    fn post(&self, options: &[&str], path: &str, body: &Value) -> testing::Reply {
        let body = body.to_string();
        let args = ["-k", "--http1.1", "-X", "POST", "-d", &body, path];
        self.server.curl(&[options, &args].concat())
    }
}

/// Starts a server on a free port of loopback. Returns the code that it shows.
fn serve(data: &Path) -> (Server, Option<String>) {
    serve_by(latchfs(), data)
}

fn serve_by(command: Command, data: &Path) -> (Server, Option<String>) {
    let data = data.display().to_string();
    let mut server = Server::serve(command, "127.0.0.1:0", &["--home", "--data", &data]);
    let socket = server.says();
    assert!(socket.contains("/socket"), "{socket}");
    let code = code_in(&server.says());
    (server, code)
}

fn code_in(line: &str) -> Option<String> {
    let (_, code) = line.trim().rsplit_once(": ").filter(|_| line.contains("type this code"))?;
    Some(code.to_owned())
}

/// Another machine, with a configuration file of its own.
struct Laptop(Scratch);

impl Laptop {
    fn new() -> Self {
        Self(Scratch::new())
    }

    fn config(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = latchfs();
        command.args(words).env("LATCHFS_CONFIG", self.config()).current_dir(self.0.path());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        run(&mut self.command(words))
    }

    /// Runs `latchfs join` with a code on its standard input.
    fn join(&self, host: &str, name: &str, code: &str) -> Output {
        let script = "printf '%s\\n' \"$1\" | \"$0\" join \"$2\" --name \"$3\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, latchfs_path(), code, host, name]);
        run(command.env("LATCHFS_CONFIG", self.config()).env_remove("LATCHFS_SERVER"))
    }

    /// Checks that nothing of a server was written.
    #[track_caller]
    fn has_nothing(&self) {
        let files: Vec<_> = fs::read_dir(self.0.path()).expect("ours").collect();
        assert!(files.is_empty(), "{files:?}");
    }

    /// Returns the options by which curl uses the certificate of this machine.
    fn identity(&self) -> [String; 6] {
        let path = |name: &str| self.0.join(name).display().to_string();
        let own = path("home.pem");
        let ca = path("home-ca.pem");
        ["--cacert".to_owned(), ca, "--cert".to_owned(), own.clone(), "--key".to_owned(), own]
    }
}

/// Returns a code of the same slot with another secret.
fn wrong(code: &str) -> String {
    let (slot, secret) = code.split_once('-').expect("a slot");
    let first = if secret.starts_with('0') { "1" } else { "0" };
    format!("{slot}-{first}{}", &secret[1..])
}

/// A user without any right joins, and edits and copies no file.
#[test]
fn ordinary_user_joins_and_uses_the_locks() {
    let home = HomeServer::start();
    let user = LocalUser::new(4_711);
    let set = format!("export HOME={}", user.home().display());
    let sh = |script: &str| user.sh(&format!("{set}; {script}"));
    let script = format!("echo '{}' | latchfs join {} --name laptop", home.code, home.host());
    let said = sh(&script).ok();
    assert!(said.starts_with(&format!("joined https://{} as 'laptop'", home.host())), "{said}");
    sh("latchfs run photos -- true && latchfs acquire photos").ok();
    let status = sh("latchfs status photos --json").ok();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["holder"], "laptop");
    let own = user.home().join(".config/latchfs");
    let secret = fs::read_to_string(own.join("home.pem")).expect("the key is in it");
    assert!(secret.contains("PRIVATE KEY") && secret.contains("BEGIN CERTIFICATE"));
    let mode = fs::metadata(own.join("home.pem")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The key has never left this machine.
    for file in fs::read_dir(home.data.join("home")).expect("the server's") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("text");
        assert!(!text.contains(secret.lines().nth(1).expect("of the key")), "{text}");
    }
    // The certificate confers no administrative right.
    let denied = sh("latchfs steal photos --reason 'to try'").exits(77);
    assert!(denied.contains("may not take a live lock"), "{denied}");
    sh("latchfs acquire x --client box").exits(77);
    sh("latchfs release photos --any").ok();
    assert_eq!(home.devices(), ["laptop"]);
    home.audited("audit.log", &["join by a code", "laptop", "done"]);
    home.audited("audit.log", &["invite a device", "start"]);
}

/// The other lines of a configuration file stay, and its default profile.
#[test]
fn profile_is_added_to_a_configuration_file() {
    let home = HomeServer::start();
    let laptop = Laptop::new();
    let before = "# mine\nprofile = 'work'\n[profiles.work]\nserver = 'http://work:8080'\n";
    fs::write(laptop.config(), before).expect("a fresh directory");
    let said = laptop.join(&home.host(), "laptop", &home.code).ok();
    assert!(said.contains("with --profile home"), "{said}");
    let text = fs::read_to_string(laptop.config()).expect("it is there");
    assert!(text.starts_with(before), "{text}");
    laptop.run(&["acquire", "x", "--profile", "home"]).ok();
    // The same server may be joined again, under another name here, and another server may not.
    let (_inviting, code) = home.invite(&[]);
    laptop.join(&home.host(), "laptop2", &code).ok();
    assert_eq!(fs::read_to_string(laptop.config()).expect("it is there"), text);
    let config: Value =
        serde_json::from_str(&laptop.run(&["config", "show", "--json", "--profile", "home"]).ok())
            .expect("JSON");
    assert_eq!(config["options"]["client"]["value"], "laptop2");
    let other = HomeServer::start();
    let refused = laptop.join(&other.host(), "laptop", &other.code).exits(64);
    assert!(refused.contains("there is another profile 'home'"), "{refused}");
}

#[test]
fn invitation_for_a_name_is_awaited_listed_and_revoked() {
    let home = HomeServer::start();
    let (inviting, code) = home.invite(&["study"]);
    let listed = home.run(&["invite", "--list"]).ok();
    assert!(listed.contains("study") && !listed.contains(&code[2..]), "{listed}");
    let laptop = Laptop::new();
    let said = laptop.join(&home.host(), "laptop", &code).ok();
    assert!(said.contains("as 'study'"), "{said}");
    assert_eq!(inviting.line(), "'study' has joined");
    assert_eq!(inviting.ended(), 0);
    let taken = home.run(&["invite", "study"]).exits(75);
    assert!(taken.contains("there is a machine 'study' already"), "{taken}");
    let (revoked, code) = home.invite(&[]);
    home.run(&["invite", "--revoke", &code[..1]]).ok();
    assert_eq!(revoked.line(), "latchfs: the invitation was revoked");
    assert_eq!(revoked.ended(), 77);
    let late = Laptop::new();
    assert!(late.join(&home.host(), "late", &code).exits(77).contains(REFUSED));
    late.has_nothing();
    home.run(&["invite", "--revoke", "16"]).exits(64);
}

#[test]
fn wrong_code_ends_its_invitation_and_the_inviter_is_told() {
    let home = HomeServer::start();
    let (inviting, code) = home.invite(&[]);
    let stranger = Laptop::new();
    let why = stranger.join(&home.host(), "stranger", &wrong(&code)).exits(77);
    assert!(why.contains(REFUSED), "{why}");
    stranger.has_nothing();
    let said = inviting.line();
    assert!(said.contains("has tried a wrong code, so this code is void"), "{said}");
    assert_eq!(inviting.ended(), 77);
    let laptop = Laptop::new();
    assert!(laptop.join(&home.host(), "laptop", &code).exits(77).contains(REFUSED), "void");
    // The other invitation is as it was.
    laptop.join(&home.host(), "laptop", &home.code).ok();
    home.audited("refused.log", &["join by a code", "127.0.0.1", "the code is wrong"]);
    laptop.run(&["ls"]).ok();
    let nonsense = stranger.join(&home.host(), "stranger", "no code").exits(64);
    assert!(nonsense.contains("reads like 3-k7mq-2xhd"), "{nonsense}");
}

#[test]
fn used_code_lets_no_second_machine_in() {
    let home = HomeServer::start();
    Laptop::new().join(&home.host(), "laptop", &home.code).ok();
    let second = Laptop::new();
    assert!(second.join(&home.host(), "laptop2", &home.code).exits(77).contains(REFUSED));
    second.has_nothing();
    assert_eq!(home.devices(), ["laptop"]);
    home.audited("refused.log", &["join by a code", "the code is wrong"]);
}

/// The time of a code passes also while the server's machine sleeps.
#[test]
fn expired_code_lets_nobody_in_and_the_inviter_is_told() {
    let (scratch, mut command) = (Scratch::new(), latchfs());
    let clock = scratch.join("clock");
    let file = fs::File::create(&clock).expect("a fresh directory");
    let sleep = |secs: u64| {
        file.write_all_at(&(secs * 1_000_000_000).to_le_bytes(), 0).expect("it is ours");
    };
    sleep(0);
    command.env("LATCHFS_TEST_CLOCK", &clock);
    let home = HomeServer::start_by(command);
    let (inviting, code) = home.invite(&[]);
    sleep(601);
    for code in [&home.code, &code] {
        let laptop = Laptop::new();
        let why = laptop.join(&home.host(), "laptop", code).exits(77);
        assert!(why.contains(REFUSED), "{why}");
        laptop.has_nothing();
    }
    let said = inviting.line();
    assert!(said.contains("the code was not used in time"), "{said}");
    assert_eq!(inviting.ended(), 75);
    assert!(home.devices().is_empty());
    home.audited("refused.log", &["join by a code", "10 minutes are over"]);
}

#[test]
fn of_two_machines_that_join_at_once_one_gets_in() {
    let home = HomeServer::start();
    let joins = ["one", "two"].map(|name| {
        let (host, code) = (home.host(), home.code.clone());
        spawn(move || Laptop::new().join(&host, name, &code).code)
    });
    let mut codes = joins.map(|join| join.join().expect("no panic"));
    codes.sort_unstable();
    assert_eq!(codes, [0, 77]);
    assert_eq!(home.devices().len(), 1);
}

/// Returns the body of a first message with a random secret.
fn hello(slot: u8, name: &str) -> Value {
    let identities = ["latchfs device", "latchfs server"].map(|id| Identity::new(id.as_bytes()));
    let password = Password::new("whatever");
    let (_, message) = Spake2::<Ed25519Group>::start_a_with_rng(
        &password,
        &identities[0],
        &identities[1],
        rand_core::OsRng,
    );
    let key = KeyPair::generate().expect("a key");
    let request = CertificateParams::new(Vec::new()).expect("none");
    let request = request.serialize_request(&key).and_then(|request| request.pem());
    let message = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, message);
    let request = request.expect("a request");
    json!({ "slot": slot, "name": name, "request": request, "message": message })
}

/// A stranger has one guess for each invitation, and learns nothing about slots before it.
#[test]
fn stranger_who_tries_every_slot_stays_outside() {
    let home = HomeServer::start();
    let (inviting, _) = home.invite(&[]);
    let zeros = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    for slot in 1..=16 {
        let begun = home.post(&[], "/devices/v1/join", &hello(slot, "stranger")).is(200);
        assert_eq!(begun["message"].as_str().map(str::len), Some(44), "{begun}");
        let confirm = json!({ "slot": slot, "attempt": begun["attempt"], "confirmation": zeros });
        // A replay of the confirmation is one of an exchange that is over.
        for _ in 0..2 {
            let refused = home.post(&[], "/devices/v1/confirm", &confirm).is(403);
            assert!(refused["detail"].as_str().expect("text").starts_with(REFUSED), "{refused}");
        }
    }
    for wrong in [
        hello(17, "stranger"),
        hello(1, "laptop:root"),
        json!({ "slot": 1, "name": "a", "request": "", "message": zeros }),
        json!({ "slot": 1 }),
    ] {
        let code = home.post(&[], "/devices/v1/join", &wrong).code;
        assert!(code == 400 || code == 409, "{code}: {wrong}");
    }
    let long = json!({ "slot": 1, "name": "x".repeat(9_000) });
    home.post(&[], "/devices/v1/join", &long).is(413);
    assert_eq!(inviting.ended(), 77);
    assert!(home.devices().is_empty());
    home.audited("refused.log", &["join by a code", "the code is wrong"]);
}

#[test]
fn device_neither_invites_nor_removes_and_others_see_nothing() {
    let home = HomeServer::start();
    let laptop = Laptop::new();
    laptop.join(&home.host(), "laptop", &home.code).ok();
    let identity = laptop.identity();
    let identity: Vec<&str> = identity.iter().map(String::as_str).collect();
    for path in ["invitations", "await", "revoke", "devices", "remove", "invite"] {
        let path = format!("/devices/v1/{path}");
        let refused = home.post(&identity, &path, &json!({ "name": "laptop" })).is(403);
        assert_eq!(refused["kind"], "E_DENIED", "{refused}");
        home.post(&[], &path, &json!({})).is(401);
    }
    home.audited("refused.log", &["invite a device", "\"laptop\""]);
    assert_eq!(home.devices(), ["laptop"]);
    // A local user who is neither root nor the server's cannot reach the socket, and may do nothing
    // where the directory lets everybody in.
    let user = LocalUser::new(4_711);
    let invite = format!("latchfs invite --data {}", home.data.display());
    user.sh(&invite).exits(69);
    fs::set_permissions(&home.data, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let refused = user.sh(&invite).exits(77);
    assert!(refused.contains("this socket is not for you"), "{refused}");
    home.audited("refused.log", &["invite a device", "uid 4711"]);
    // A server without --home lets nobody join.
    let plain = Server::start(&[]);
    plain.curl(&["-X", "POST", "-d", "{}", "/devices/v1/join"]).is(404);
}

#[test]
fn removed_device_ends_on_open_connections_and_may_join_again() {
    let home = HomeServer::start();
    let laptop = Laptop::new();
    laptop.join(&home.host(), "laptop", &home.code).ok();
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-i", "-N", "--http1.1", "--max-time", "60"]).args(laptop.identity());
    curl.arg(format!("https://{}/events", home.host()));
    let mut stream = curl.stdout(Stdio::piped()).spawn().expect("curl is there");
    let said = testing::lines(stream.stdout.take().expect("piped"));
    while said.recv().expect("a line") != ": latchfs" {}
    let removed = home.run(&["devices", "remove", "laptop"]).ok();
    assert!(removed.contains("'laptop' is removed"), "{removed}");
    let rest: Vec<String> = said.iter().collect();
    assert!(rest.iter().any(|line| line.contains("revoked")), "{rest:?}");
    let _reaped = stream.wait();
    let refused = laptop.run(&["acquire", "x"]).exits(77);
    assert!(refused.contains("this client certificate is refused"), "{refused}");
    home.audited("refused.log", &["laptop", "is refused"]);
    assert!(home.devices().is_empty());
    home.run(&["devices", "remove", "laptop"]).exits(64);
    // The same machine may join again.
    let (_inviting, code) = home.invite(&[]);
    laptop.join(&home.host(), "laptop", &code).ok();
    laptop.run(&["ls"]).ok();
    home.run(&["devices", "remove", "laptop"]).ok();
    // The name is free, and the old certificate stays refused, also after a restart.
    let again = Laptop::new();
    let (_inviting, code) = home.invite(&[]);
    again.join(&home.host(), "laptop", &code).ok();
    laptop.run(&["ls"]).exits(77);
    let data = home.data.clone();
    drop(home.server);
    let (server, code) = serve(&data);
    assert_eq!(code, None, "a machine has joined already");
    let url = format!("https://localhost:{}", server.url.rsplit_once(':').expect("a port").1);
    again.run(&["ls", "--server", &url]).exits(69);
    let identity = again.identity();
    let ask = |of: &Laptop| {
        let [_, ca, _, cert, _, key] = of.identity();
        of.run(&["ls", "--server", &url, "--ca", &ca, "--cert", &cert, "--key", &key])
    };
    assert_eq!(identity.len(), 6);
    ask(&again).ok();
    ask(&laptop).exits(77);
}

/// A job on the machine of the server and one on a laptop use the same lock.
#[test]
fn commands_at_the_machine_of_the_server_use_its_locks() {
    let home = HomeServer::start();
    let laptop = Laptop::new();
    laptop.join(&home.host(), "laptop", &home.code).ok();
    laptop.run(&["acquire", "backup", "--ttl", "10m"]).ok();
    let busy = home.run(&["run", "backup", "--try", "--", "true"]).exits(75);
    assert!(busy.contains("is held by laptop"), "{busy}");
    let shown = home.run(&["config", "show"]).ok();
    assert!(shown.contains("'latchfs serve --home' of this user"), "{shown}");
    // While the server is down, they do not use other locks.
    let HomeServer { server, data, _scratch, .. } = home;
    drop(server);
    let mut run_job = latchfs();
    run_job.args(["run", "backup", "--try", "--", "true"]).env("LATCHFS_DATA", &data);
    run(&mut run_job).exits(69);
}

/// A thief has the rights of the device, and no others, until it is removed.
#[test]
fn stolen_configuration_is_refused_with_its_device() {
    let home = HomeServer::start();
    let (laptop, thief) = (Laptop::new(), Laptop::new());
    laptop.join(&home.host(), "laptop", &home.code).ok();
    for name in ["config.toml", "home.pem", "home-ca.pem"] {
        fs::copy(laptop.0.join(name), thief.0.join(name)).expect("both are ours");
    }
    laptop.run(&["acquire", "x", "--ttl", "10m"]).ok();
    thief.run(&["steal", "x", "--reason", "to try"]).exits(77);
    thief.run(&["acquire", "y", "--client", "box"]).exits(77);
    home.run(&["devices", "remove", "laptop"]).ok();
    let refused = thief.run(&["acquire", "y"]).exits(77);
    assert!(refused.contains("this client certificate is refused"), "{refused}");
    home.audited("refused.log", &["\"laptop\"", "is refused"]);
}

/// A machine between a device and a server, which ends the TLS of both.
struct Relay {
    port: u16,
}

/// What a relay changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RelayForm {
    /// It passes everything on.
    PassesOn,
    /// It says that its own CA is that of the server.
    OwnCa,
    /// It says that its own CA is that of the server, and makes the last answer itself.
    OwnAnswer,
}

impl Relay {
    /// Starts a relay to `home` with the certificates in `certs`.
    fn start(home: &HomeServer, certs: &Path, form: RelayForm) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let to: u16 = home.port().parse().expect("a port");
        let (own, ca) = (server_config(certs), certs.join("ca.pem"));
        spawn(move || {
            let (stream, _) = listener.accept().expect("a device");
            let session = ServerConnection::new(own).expect("a session");
            let mut device = BufReader::new(StreamOwned::new(session, stream));
            let mut server = BufReader::new(connect(to));
            let ca = fs::read_to_string(ca).expect("a CA");
            while let Some((head, body)) = message(&mut device) {
                let is_last = head.contains("/confirm");
                send(&mut server, &head, &body);
                let Some((mut head, mut body)) = message(&mut server) else { return };
                if form != RelayForm::PassesOn && !is_last {
                    let mut answer: Value = serde_json::from_str(&body).expect("JSON");
                    answer["ca"] = ca.clone().into();
                    body = answer.to_string();
                }
                if form == RelayForm::OwnAnswer && is_last {
                    head = String::from("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n");
                    let certificate = ca.clone();
                    body = json!({
                        "name": "laptop", "confirmation": "AAAA", "certificate": certificate,
                    })
                    .to_string();
                }
                send(&mut device, &head, &body);
            }
        });
        Self { port }
    }

    fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }
}

fn server_config(certs: &Path) -> Arc<ServerConfig> {
    let read = |name: &str| fs::read(certs.join(name)).expect("latchfs cert has made it");
    let chain = CertificateDer::from_pem_slice(&read("server.pem")).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(&read("server.key")).expect("PEM");
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let config = builder.with_no_client_auth().with_single_cert(vec![chain], key);
    Arc::new(config.expect("a certificate and its key"))
}

/// Accepts every server.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn connect(port: u16) -> StreamOwned<ClientConnection, TcpStream> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions").dangerous();
    let config = builder.with_custom_certificate_verifier(Arc::new(Anybody)).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let session = ClientConnection::new(Arc::new(config), name).expect("a session");
    StreamOwned::new(session, TcpStream::connect(("127.0.0.1", port)).expect("it listens"))
}

/// Reads a message of HTTP/1.1: its head without the length, and its body.
fn message<S: std::io::Read>(from: &mut BufReader<S>) -> Option<(String, String)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let lower = line.to_ascii_lowercase();
        match lower.strip_prefix("content-length:") {
            _ if line == "\r\n" => break,
            Some(count) => length = count.trim().parse().expect("a number"),
            None => head += &line,
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8(body).expect("text")))
}

fn send<S: std::io::Read + std::io::Write>(to: &mut BufReader<S>, head: &str, body: &str) {
    let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    // The other side may have gone.
    let _ = to.get_mut().write_all(text.as_bytes()).and_then(|()| to.get_mut().flush());
}

/// Makes a certificate for `localhost`, by the CA with these files or by a new one.
fn certificates(scratch: &Scratch, ca_of: Option<&Path>) -> PathBuf {
    let dir = scratch.join("certs");
    fs::create_dir(&dir).expect("a fresh directory");
    let cert = |words: &[&str]| run(latchfs().args(["cert", "--dir"]).arg(&dir).args(words)).ok();
    match ca_of {
        None => drop(cert(&["ca"])),
        Some(from) => {
            for name in ["ca.pem", "ca.key"] {
                fs::copy(from.join(name), dir.join(name)).expect("it is there");
            }
        }
    }
    cert(&["server", "localhost"]);
    dir
}

/// A relay that even has a certificate of the server's CA has two TLS connections, and so two
/// values of the exporter, where the device and the server have one.
#[test]
fn relay_in_the_middle_is_found_out_by_the_exporter() {
    let (home, scratch, laptop) = (HomeServer::start(), Scratch::new(), Laptop::new());
    let certs = certificates(&scratch, Some(&home.data.join("home")));
    let (inviting, code) = home.invite(&[]);
    let relay = Relay::start(&home, &certs, RelayForm::PassesOn);
    let why = laptop.join(&relay.host(), "laptop", &code).exits(77);
    assert!(why.contains(REFUSED), "{why}");
    laptop.has_nothing();
    assert!(inviting.line().contains("wrong code"));
    assert!(home.devices().is_empty());
    home.audited("refused.log", &["join by a code", "the code is wrong"]);
    // The same relay does no harm to a code that is typed at the server itself.
    laptop.join(&home.host(), "laptop", &home.code).ok();
}

#[test]
fn relay_with_a_ca_of_its_own_lets_nobody_in() {
    for form in [RelayForm::OwnCa, RelayForm::OwnAnswer] {
        let (home, scratch, laptop) = (HomeServer::start(), Scratch::new(), Laptop::new());
        let relay = Relay::start(&home, &certificates(&scratch, None), form);
        let why = laptop.join(&relay.host(), "laptop", &home.code).exits(77);
        let wanted = if form == RelayForm::OwnCa { REFUSED } else { "it does not know the code" };
        assert!(why.contains(wanted), "{why}");
        laptop.has_nothing();
        assert!(home.devices().is_empty());
        home.audited("refused.log", &["join by a code", "the code is wrong"]);
    }
}

/// Another server behind the name of the first one: its certificate is none of the CA that it
/// shows, or it knows no such code.
#[test]
fn hostile_server_behind_the_name_learns_no_code() {
    let (home, hostile, laptop) = (HomeServer::start(), HomeServer::start(), Laptop::new());
    let scratch = Scratch::new();
    let relay = Relay::start(&home, &certificates(&scratch, None), RelayForm::PassesOn);
    let why = laptop.join(&relay.host(), "laptop", &home.code).exits(77);
    assert!(why.contains("has not proved that it is the server of the code"), "{why}");
    let why = laptop.join(&hostile.host(), "laptop", &wrong(&home.code)).exits(77);
    assert!(why.contains(REFUSED), "{why}");
    laptop.has_nothing();
    hostile.audited("refused.log", &["join by a code", "the code is wrong"]);
    // Neither has used up the code.
    laptop.join(&home.host(), "laptop", &home.code).ok();
}

/// The certificate has the names by which the server may be called; an address needs `--name`.
#[test]
fn server_has_its_own_names() {
    let (home, laptop) = (HomeServer::start(), Laptop::new());
    let elsewhere = format!("127.0.0.2:{}", home.port());
    let scratch = Scratch::new();
    let data = scratch.join("data").display().to_string();
    let options = ["--home", "--data", &data, "--name", "127.0.0.2"];
    let mut named = Server::at("127.0.0.2:0", &options);
    named.says();
    let code = code_in(&named.says()).expect("a code");
    let host = named.url.strip_prefix("https://").expect("TLS");
    laptop.join(host, "laptop", &code).ok();
    laptop.run(&["ls"]).ok();
    assert_ne!(Laptop::new().join(&elsewhere, "laptop", &home.code).code, 0, "nobody listens");
}

/// The default server and the name of the machine are those of the certificate, and the folder
/// needs no other right than that of a device.
#[test]
fn folder_gets_its_id_from_the_server_that_the_machine_has_joined() {
    let (home, laptop) = (HomeServer::start(), Laptop::new());
    laptop.join(&home.host(), "laptop", &home.code).ok();
    fs::create_dir(laptop.0.join("notes")).expect("a fresh directory");
    let stage = laptop.0.join("stage").display().to_string();
    let init = ["guard", "init", "notes", "--name", "my notes", "--stage", &stage];
    let said = laptop.run(&init).ok();
    let record = fs::read(laptop.0.join("notes/.latchfs/folder")).expect("a record");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    let id = record["id"].as_str().expect("an id");
    assert!(said.contains(id), "{said}");
    let own = laptop.identity();
    let path = "/locks/folders/my%20notes/previous";
    let known = home.server.curl(&[&own.each_ref().map(String::as_str)[..], &[path]].concat());
    let known = known.is(200);
    assert_eq!(
        (&known["previous"]["handover"], &known["previous"]["client"]),
        (&json!(id), &json!("laptop"))
    );
    assert!(laptop.run(&init).exits(69).contains("is guarded already"));
}

/// A command renews the certificate when less than a third of its time is left, and two commands at
/// once lose neither.
#[test]
fn device_renews_its_certificate_by_itself() {
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    assert!(Path::new(library).exists(), "libfaketime is missing; contrib/test installs it");
    let (home, laptop) = (HomeServer::start(), Laptop::new());
    laptop.join(&home.host(), "laptop", &home.code).ok();
    let own = laptop.0.join("home.pem");
    let before = fs::read(&own).expect("the key");
    let in_days = |days: u32| {
        let mut command = laptop.command(&["ls"]);
        command.env("LD_PRELOAD", library).env("FAKETIME", format!("+{days}d"));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command
    };
    run(&mut in_days(200)).ok();
    assert_eq!(fs::read(&own).expect("the key"), before, "enough is left");
    let (mut one, mut two) = (in_days(300), in_days(300));
    let two = spawn(move || run(&mut two).ok());
    run(&mut one).ok();
    two.join().expect("no panic");
    let after = fs::read(&own).expect("the key");
    assert_ne!(after, before, "the key is another one as well");
    laptop.run(&["acquire", "x"]).ok();
    let shown: Value = serde_json::from_str(&home.run(&["devices", "--json"]).ok()).expect("JSON");
    assert_eq!(shown["devices"][0]["serials"].as_array().map(Vec::len), Some(2), "{shown}");
    home.audited("audit.log", &["renew a certificate", "laptop", "done"]);
    // A machine that was removed can't renew.
    home.run(&["devices", "remove", "laptop"]).ok();
    let refused = run(&mut in_days(300)).exits(77);
    assert!(refused.contains("can't be renewed"), "{refused}");
    assert_eq!(fs::read(&own).expect("the key"), after);
}
