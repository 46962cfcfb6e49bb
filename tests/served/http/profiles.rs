//! Connection options from the environment and from the configuration file, the servers to which
//! credentials are sent, and the exit code when a server refuses them.

use crate::http::tls::Certs;
use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Command;
use std::thread::{JoinHandle, spawn};
use testing::{Output, Scratch, Server, latchfs, latchfs_path, run};

const SECRET: &str = "the secret of ci, and long enough";
const OTHER: &str = "another secret, of another server";

/// Runs commands with a configuration file and variables of their own, outside of all mounts.
struct User {
    scratch: Scratch,
    variables: Vec<(&'static str, String)>,
}

impl User {
    fn new() -> Self {
        let user = Self { scratch: Scratch::new(), variables: Vec::new() };
        user.write("token", SECRET);
        user.write("other-token", OTHER);
        user
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.scratch.path().join(name);
        fs::write(&path, text).expect("a fresh directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    /// Writes the configuration file.
    fn configure(mut self, text: &str) -> Self {
        let path = self.write("config.toml", text);
        self.variables.push(("LATCHFS_CONFIG", path));
        self
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Exports the token of another server.
    fn with_token_variable(self) -> Self {
        let path = self.path("other-token");
        self.with("LATCHFS_TOKEN_FILE", &path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = latchfs();
        command.args(args).current_dir(self.scratch.path()).env_remove("LATCHFS_DIR");
        command.env("LATCHFS_CONFIG", "none");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        run(&mut self.command(args))
    }

    /// Returns who holds a lock, as the server at the end of the options says.
    fn holder(&self, name: &str) -> Value {
        let status: Value =
            serde_json::from_str(&self.run(&["status", name, "--json"]).ok()).expect("JSON");
        status["holder"].clone()
    }
}

/// Serves with a bearer token for the client `ci`.
fn guarded(scratch: &Scratch) -> Server {
    let path = scratch.path().join("tokens.toml");
    let text = format!("[[token]]\nname = 'ci'\nsecret = '{SECRET}'\nclients = ['ci']\n");
    fs::write(&path, text).expect("a fresh directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    Server::start(&["--tokens", &path.display().to_string()])
}

/// A server that records the first request and refuses it.
struct Recorder {
    url: String,
    heard: JoinHandle<String>,
}

impl Recorder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let heard = spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).expect("a request");
            let refusal = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
            // The client may have ended already.
            let _ = stream.write_all(refusal);
            String::from_utf8_lossy(&bytes[..count]).to_lowercase()
        });
        Self { url, heard }
    }

    /// Asserts that the first request had no credentials.
    fn heard_no_token(self) {
        let heard = self.heard.join().expect("it records");
        assert!(heard.contains("host: "), "{heard}");
        assert!(!heard.contains("authorization"), "{heard}");
    }
}

#[test]
fn name_in_the_certificate_is_the_default_client() {
    let certs = Certs::make();
    let (ca, cert, key) =
        (certs.path("ca.pem"), certs.path("laptop1.pem"), certs.path("laptop1.key"));
    let server = certs.serve(&["--client-ca", &ca]);
    let options = ["--server", &server.url, "--ca", &ca, "--cert", &cert, "--key", &key];
    User::new().run(&[&["acquire", "a"][..], &options].concat()).ok();
    let user = User::new()
        .with("LATCHFS_SERVER", &server.url)
        .with("LATCHFS_CA", &ca)
        .with("LATCHFS_CERT", &cert)
        .with("LATCHFS_KEY", &key);
    user.run(&["acquire", "b"]).ok();
    assert_eq!((user.holder("a"), user.holder("b")), ("laptop1".into(), "laptop1".into()));
    let text = format!(
        "[profiles.default]\nserver = '{}'\nca = '{ca}'\ncert = '{cert}'\nkey = '{key}'\n",
        server.url
    );
    let user = User::new().configure(&text);
    user.run(&["acquire", "c"]).ok();
    assert_eq!(user.holder("c"), "laptop1");
    let user = user.with("LATCHFS_CLIENT", "laptop1:night");
    user.run(&["run", "d", "--", "sh", "-c", "latchfs=$0; $latchfs who d", latchfs_path()]).ok();
    let wrong = User::new().with("LATCHFS_CERT", &cert).run(&["ls", "--server", &server.url]);
    assert!(wrong.exits(64).contains("without its key; name it by --key FILE"));
}

#[test]
fn https_server_is_verified_by_the_machine_unless_a_ca_is_named() {
    let certs = Certs::make();
    let server = certs.serve(&[]);
    let user = User::new().with("LATCHFS_SERVER", &server.url);
    let unknown = user.run(&["ls"]).exits(69);
    assert!(unknown.contains("name the CA that signed it by --ca FILE"), "{unknown}");
    let user = user.with("SSL_CERT_FILE", &certs.path("ca.pem"));
    user.run(&["ls"]).ok();
    let other = Certs::make();
    user.run(&["ls", "--ca", &other.path("ca.pem")]).exits(69);
}

/// With a wrong token, no command says that the server does not answer.
#[test]
fn refused_credentials_exit_with_77() {
    let scratch = Scratch::new();
    let server = guarded(&scratch);
    let user = User::new();
    let away = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
    let both = format!("http://{away},{}", server.url);
    let (wrong, backup) = (user.path("other-token"), user.path("backup"));
    for command in [
        &["cluster", "status"][..],
        &["ls", "--stale"],
        &["status", "x", "--stale"],
        &["ls"],
        &["acquire", "x"],
        &["mount", "locks"],
    ] {
        let said = user.run(&[command, &["--server", &both, "--token-file", &wrong]].concat());
        assert_eq!(said.code, 77, "{command:?}: {said:?}");
    }
    for token in [&["--token-file", &wrong][..], &[]] {
        for command in [
            &["ls"][..],
            &["ls", "--stale"],
            &["status", "x"],
            &["acquire", "x"],
            &["wait", "x"],
            &["release", "x", "--token", "1"],
            &["steal", "x", "--reason", "r"],
            &["run", "x", "-c", "true"],
            &["hold", "x"],
            &["events"],
            &["who", "x"],
            &["cluster", "status"],
            &["cluster", "reset", "--all", "--reason", "r"],
            &["cluster", "backup", &backup],
            &["mount", "locks"],
            &["guard", "init", "."],
        ] {
            let said = user.run(&[command, &["--server", &server.url], token].concat());
            assert_eq!(said.code, 77, "{command:?}: {said:?}");
            assert!(!said.err.contains("can be reached"), "{command:?}: {said:?}");
        }
    }
}

/// So does a lock to which the credentials give no access.
#[test]
fn locks_without_access_exit_with_77() {
    let (scratch, user) = (Scratch::new(), User::new());
    let (tokens, mine) = (scratch.path().join("tokens.toml"), scratch.path().join("token"));
    let text = format!(
        "[[token]]\nname = 'ci'\nsecret = '{SECRET}'\nclients = ['ci']\nlocks = ['team/']\n"
    );
    for (path, text) in [(&tokens, text.as_str()), (&mine, SECRET)] {
        fs::write(path, text).expect("a fresh directory");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }
    let server = Server::start(&["--tokens", &tokens.display().to_string()]);
    let mine = mine.display().to_string();
    for command in [
        &["acquire", "x"][..],
        &["status", "x"],
        &["who", "x"],
        &["wait", "x"],
        &["hold", "x"],
        &["run", "x", "-c", "true"],
        &["run", "--try", "x", "-c", "true"],
        &["release", "x"],
        &["renew", "x"],
        &["ls", "x"],
    ] {
        let said = user.run(&[command, &["--server", &server.url, "--token-file", &mine]].concat());
        assert_eq!(said.code, 77, "{command:?}: {said:?}");
    }
}

#[test]
fn refused_client_certificates_exit_with_77() {
    let (certs, foreign) = (Certs::make(), Certs::make());
    let ca = certs.path("ca.pem");
    let server = certs.serve(&["--client-ca", &ca]);
    let user = User::new().with("LATCHFS_SERVER", &server.url).with("LATCHFS_CA", &ca);
    let (cert, key) = (foreign.path("laptop1.pem"), foreign.path("laptop1.key"));
    for command in [&["ls"][..], &["acquire", "x"], &["cluster", "status"], &["ls", "--stale"]] {
        for identity in [&[][..], &["--cert", &cert, "--key", &key]] {
            let said = user.run(&[command, identity].concat()).exits(77);
            assert!(said.contains("--cert and --key"), "{command:?}: {said}");
        }
    }
}

#[test]
fn variables_come_before_the_file_and_the_option_before_variables() {
    let scratch = Scratch::new();
    let (server, other) = (guarded(&scratch), Server::start(&[]));
    let text = format!(
        "profile = 'open'\n[profiles.open]\nserver = '{}'\nclient = 'me'\n\
         [profiles.ci]\nserver = '{}'\ntoken-file = 'token'\nclient = 'ci'\n",
        other.url, server.url
    );
    let user = User::new().configure(&text);
    user.run(&["acquire", "x"]).ok();
    assert_eq!(user.holder("x"), "me");
    user.run(&["acquire", "y", "--profile", "ci"]).ok();
    let user = user.with("LATCHFS_PROFILE", "ci");
    assert_eq!(user.holder("y"), "ci");
    // The variable with the token comes before that of the file, and leads to a refusal.
    let user = user.with_token_variable();
    user.run(&["ls"]).exits(77);
    user.run(&["ls", "--profile", "ci"]).ok();
    let user = user.with("LATCHFS_SERVER", &other.url);
    user.run(&["ls"]).ok();
    let unknown = user.run(&["ls", "--profile", "x"]).exits(64);
    assert!(unknown.contains("the profiles are ci, open"), "{unknown}");
    let apart = user.run(&["ls", "--profile", "ci", "--server", &other.url]).exits(64);
    assert!(apart.contains("profile 'ci' is for"), "{apart}");
    let alone = user.run(&["cluster", "status", "--profile", "ci"]).exits(75);
    assert!(alone.contains("no node of a cluster"), "{alone}");
    user.run(&["ls", "--profile", "ci", "--dir", "/"]).exits(64);
}

/// The token of one server never reaches another one, also not through the environment of a command
/// that `run` starts.
#[test]
fn credentials_are_sent_to_their_own_servers_only() {
    let recorder = Recorder::start();
    let text = "[profiles.default]\nserver = 'http://127.0.0.1:1'\ntoken-file = 'token'\n";
    let user = User::new().configure(text).with("LATCHFS_SERVER", &recorder.url);
    user.run(&["ls"]).exits(77);
    recorder.heard_no_token();

    let recorder = Recorder::start();
    let text = format!("[profiles.work]\nserver = '{}'\n", recorder.url);
    let user = User::new().configure(&text);
    let user = user.with_token_variable();
    user.run(&["ls", "--profile", "work"]).exits(77);
    recorder.heard_no_token();

    let server = Server::start(&[]);
    let text = format!("[profiles.work]\nserver = '{}'\n", server.url);
    let user = User::new().configure(&text);
    let user = user.with_token_variable();
    let said = user.run(&["run", "x", "--profile", "work", "--", "env"]).ok();
    assert!(said.contains("LATCHFS_PROFILE=work\n"), "{said}");
    assert!(said.contains(&format!("LATCHFS_SERVER={}\n", server.url)), "{said}");
    assert!(!said.contains("LATCHFS_TOKEN_FILE"), "{said}");
}

/// A mount finds its server and its client in the configuration, and says so.
#[test]
fn mount_uses_the_configured_server() {
    let scratch = Scratch::new();
    let server = guarded(&scratch);
    let text = format!(
        "[profiles.default]\nserver = '{}'\ntoken-file = 'token'\nclient = 'ci'\n",
        server.url
    );
    let user = User::new().configure(&text);
    let mounted = user.run(&["mount", "locks", "--background"]);
    let said = mounted.err.clone() + &mounted.ok();
    let _unmount = Unmount(user.scratch.path().join("locks"));
    assert!(
        said.contains(&format!("mounting the locks of {}, which profile 'default'", server.url))
    );
    assert!(said.contains("(client ci,"), "{said}");
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = latchfs().arg("umount").arg(&self.0).output();
    }
}

#[test]
fn config_show_names_the_source_of_each_value_and_no_secret() {
    let user = User::new().configure(
        "[profiles.default]\nserver = 'https://a:1'\ntoken-file = 'token'\nclient = 'ci'\n",
    );
    let user = user.with("LATCHFS_CA", "/ca.pem");
    let said = user.run(&["config", "show"]).ok();
    let config = user.path("config.toml");
    for part in [
        "https://a:1 ".to_owned(),
        format!("profile 'default' in {config}"),
        "/ca.pem".to_owned(),
        "LATCHFS_CA".to_owned(),
        format!("files read: {config}"),
        "profiles: default".to_owned(),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    assert!(!said.contains(SECRET), "{said}");
    let json: Value =
        serde_json::from_str(&user.run(&["config", "show", "--json"]).ok()).expect("JSON");
    assert_eq!(json["options"]["client"]["value"], "ci");
    assert_eq!(json["options"]["token-file"]["value"], user.path("token"));
    let root = run(User::new().command(&["ls", "--profile", "x"]).env("LATCHFS_CONFIG", ""));
    let advice = root.exits(64);
    assert!(advice.contains("[profiles.x] in /etc/latchfs/config.toml"), "{advice}");
    let none = User::new().run(&["config", "show"]).ok();
    assert!(none.contains("no server is configured"), "{none}");
    // A mount comes first.
    let user = user.with("LATCHFS_DIR", "/locks");
    let said = user.run(&["config", "show"]).ok();
    let row = said.lines().next().expect("a row").split_whitespace().collect::<Vec<_>>();
    assert_eq!(row, ["mount", "/locks", "LATCHFS_DIR"]);
    assert!(said.contains("commands about locks use the mount"), "{said}");
    let said = user.run(&["config", "show", "--profile", "default"]).ok();
    assert!(!said.contains("mount"), "{said}");
}

/// The file of a user does not decide where root sends its credentials, and a file that others can
/// write does not decide it for anyone.
#[test]
fn untrusted_configuration_files_are_not_used() {
    let user = User::new();
    let own = user.scratch.path().join(".config/latchfs/config.toml");
    fs::create_dir_all(own.parent().expect("it has one")).expect("a fresh directory");
    fs::write(&own, "[profiles.default]\nserver = 'http://user'\n").expect("a fresh directory");
    let show = |user: &User| {
        let mut command = user.command(&["config", "show"]);
        command.env_remove("LATCHFS_CONFIG").env_remove("XDG_CONFIG_HOME");
        command.env("HOME", user.scratch.path());
        command
    };
    let root = run(&mut show(&user)).ok();
    assert!(!root.contains("http://user"), "{root}");
    let nobody = 65_534;
    fs::set_permissions(user.scratch.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let as_nobody = || {
        let mut command = show(&user);
        std::os::unix::process::CommandExt::uid(&mut command, nobody);
        run(&mut command)
    };
    assert!(as_nobody().ok().contains("http://user"), "root may configure others");
    // HOME is that of another user.
    let dir = own.parent().expect("it has one");
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("root may");
    assert!(as_nobody().ok().contains("no server is configured"));
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("root may");
    chown(&own, Some(1_234), None).expect("root may");
    assert!(as_nobody().exits(64).contains("it belongs to another user"));
    chown(&own, Some(nobody), None).expect("root may");
    as_nobody().ok();
    // The user's own file is not passed over silently.
    fs::set_permissions(&own, fs::Permissions::from_mode(0o000)).expect("root may");
    assert!(as_nobody().exits(64).contains("can't be used: permission denied"));
    fs::set_permissions(&own, fs::Permissions::from_mode(0o666)).expect("root may");
    assert!(as_nobody().exits(64).contains("others than its owner may write it (mode 666)"));
}
