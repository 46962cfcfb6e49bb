//! Authenticates callers by bearer token, client certificate or Unix user, or admits anyone if the
//! server requires no credentials.
//!
//! Protection of servers from web pages: which `Host` and `Origin` a request may have.
//!
//! A browser can reach servers that its user can reach, on loopback for instance. A page of another
//! site names itself in `Origin` and `Sec-Fetch-Site`. A page whose own name resolves to the
//! address of the server (DNS rebinding) does not, but the name is the `Host` of its requests.
//!
//! The file of bearer tokens, with the name, clients and lock prefixes of each token.
//!
//! A presented token is compared by its digest, with all tokens, in constant time.

use super::grant::{ClientPattern, Credential, Grant, all_or_none};
use super::machine_rights::MachineRights;
use super::server_tls::{
    CertifiedCaller, ClientCertPolicy, NAME_BYTES_MAX, PREFIXES_MAX, TlsError, TlsFiles,
    TokensError,
};
use crate::auth::server_tls::{CertificateRights, validity_of_certificate};
use crate::home::devices::DeviceList;
use crate::net::certificates::RefusedSerials;
use parking_lot::RwLock;
use rustls::ServerConfig;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tokio::sync::watch;

/// Delay of the answer to a request with a wrong token: a client that guesses has few guesses.
pub(crate) const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(250);

/// Paths of the files from which a server reads its credentials.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The file of bearer tokens; `None`: the server accepts no tokens.
    pub tokens: Option<PathBuf>,
    /// The server's certificate, and the CA of client certificates; `None`: no TLS.
    pub tls: Option<TlsFiles>,
    /// The file of the rights of client certificates; `None`: each certificate sees all locks.
    pub rights: Option<PathBuf>,
    /// The file of the rights of this machine's users, which may be missing; `None`: this is not
    /// the daemon of the machine's locks.
    pub machine_rights: Option<PathBuf>,
    /// The list of refused client certificates; `None`: the CA alone decides.
    pub refused: Option<PathBuf>,
    /// Whether only certificates of devices that have joined are admitted.
    pub joins: bool,
    /// Other certificates whose end is told: those for peers, each with its use.
    pub watched: Vec<(&'static str, PathBuf)>,
    /// The host names by which a server that authenticates nobody may be called.
    pub hosts: AllowedHosts,
}

/// Why a credential file can't be used.
#[derive(Debug)]
pub enum CredentialsError {
    /// The token file at this path is unreadable or invalid.
    Tokens(PathBuf, TokensError),
    /// The file of the rights of certificates at this path is unreadable or invalid.
    Rights(PathBuf, TokensError),
    /// The file of the rights of users at this path is unreadable or invalid.
    MachineRights(PathBuf, TokensError),
    /// A certificate or key is unreadable or invalid.
    Tls(TlsError),
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(path, error) => write!(f, "the tokens in {}: {error}", path.display()),
            Self::Rights(path, error) => {
                write!(f, "the rights of certificates in {}: {error}", path.display())
            }
            Self::MachineRights(path, error) => {
                write!(f, "the rights of users in {}: {error}", path.display())
            }
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CredentialsError {}

impl Credentials {
    /// Returns when each certificate expires, in seconds since 1970.
    fn expiries(&self) -> Vec<(&'static str, i64)> {
        let of_clients = self.tls.as_ref().and_then(|files| Some(("CA", files.client_ca.clone()?)));
        let own = self.tls.as_ref().map(|files| ("server", files.cert.clone()));
        let all = own.into_iter().chain(of_clients).chain(self.watched.iter().cloned());
        all.filter_map(|(name, path)| {
            Some((name, validity_of_certificate(&fs::read(path).ok()?)?.1))
        })
        .collect()
    }

    /// Returns what a server with these credentials lacks that accepts connections from other
    /// machines, apart from what the operator has permitted it to lack.
    pub const fn lack(&self, permitted: OpenTo) -> OpenTo {
        OpenTo {
            readers: self.tls.is_none() && !permitted.readers,
            callers: !self.identify() && !permitted.callers,
        }
    }

    /// Whether callers must authenticate, by a token or by a client certificate.
    pub const fn identify(&self) -> bool {
        self.tokens.is_some() || matches!(&self.tls, Some(TlsFiles { client_ca: Some(_), .. }))
    }
}

/// To whom a server on a network is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenTo {
    /// Connections are not encrypted, so others on the network can read them.
    pub readers: bool,
    /// Callers need no credentials.
    pub callers: bool,
}

impl OpenTo {
    /// Whether the server is open to nobody.
    pub const fn is_nobody(self) -> bool {
        !self.readers && !self.callers
    }
}

impl fmt::Display for OpenTo {
    /// Writes the remedy, as the end of a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.callers, self.readers) {
            (true, false) => {
                "say who may ask by --tokens or --client-ca, or leave it open to everybody by \
                 --insecure=no-credentials"
            }
            (false, true) => {
                "encrypt by --tls-cert and --tls-key, or let others on the network read it by \
                 --insecure=no-tls"
            }
            _ => {
                "say who may ask by --tokens or --client-ca, and encrypt by --tls-cert and \
                 --tls-key; or leave it open to everybody by --insecure"
            }
        })
    }
}

/// Why a caller could not be authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthenticationError {
    /// The request carries no credentials.
    Nothing,
    /// The request carries a token that is not in the token file.
    Token,
    /// The server accepts client certificates only, and the connection has none.
    Certificate,
    /// The certificate of the connection is on the list of refused ones.
    Refused,
    /// The certificate of the connection is that of no device, or of one that was removed.
    Removed,
    /// The file of the rights of certificates has no entry for the certificate of the connection.
    Unlisted,
}

/// Authenticates callers: by a bearer token, a client certificate, or the socket's user.
pub struct Authenticator {
    files: Credentials,
    /// The grant of callers without credentials, if the server requires none.
    anyone: Arc<Grant>,
    known: RwLock<LoadedCredentials>,
    /// Counts the times that the credentials were read again.
    reloads: watch::Sender<u64>,
}

/// The token table and TLS configuration that were read last.
#[derive(Clone)]
struct LoadedCredentials {
    tokens: Option<Arc<Tokens>>,
    rights: Option<Arc<CertificateRights>>,
    machine: Option<Arc<MachineRights>>,
    tls: Option<Arc<ServerConfig>>,
    refused: Arc<RefusedSerials>,
    devices: Option<Arc<DeviceList>>,
    /// The names in the server's certificate.
    names: AllowedHosts,
    /// When each certificate expires.
    expiries: Vec<(&'static str, i64)>,
}

impl Authenticator {
    /// Reads and validates the credential files.
    pub fn new(files: Credentials) -> Result<Self, CredentialsError> {
        let known = RwLock::new(LoadedCredentials::load(&files)?);
        let (anyone, reloads) = (Arc::new(Grant::everything()), watch::channel(0).0);
        Ok(Self { files, anyone, known, reloads })
    }

    /// Reads all credential files again. If one is invalid, the credentials that were loaded before
    /// stay in force.
    pub fn reload(&self) -> Result<(), CredentialsError> {
        let known = LoadedCredentials::load(&self.files)?;
        if let Some(tokens) = &known.tokens {
            log::info!("{} tokens were read again", tokens.len());
        }
        if let Some(rights) = &known.rights {
            log::info!("the rights of {} certificates were read again", rights.len());
        }
        if known.machine.is_some() {
            log::info!("the rights of users were read again");
        }
        let mut current = self.known.write();
        let devices = current.devices.take();
        *current = LoadedCredentials { devices, ..known };
        drop(current);
        self.reloads.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Returns the devices that have joined; `None` if the server lets none join.
    pub(crate) fn devices(&self) -> Option<Arc<DeviceList>> {
        self.known.read().devices.clone()
    }

    /// Replaces the list of devices. Open requests of a device that was removed end.
    pub(crate) fn set_devices(&self, devices: DeviceList) {
        self.known.write().devices = Some(Arc::new(devices));
        self.reloads.send_modify(|count| *count += 1);
    }

    /// Returns when each certificate expires that was read last, in seconds since 1970.
    pub(crate) fn expiries(&self) -> Vec<(&'static str, i64)> {
        self.known.read().expiries.clone()
    }

    /// Returns a receiver that is notified when the credentials were read again: each grant that
    /// `grant` has returned may have changed.
    pub fn follow_reloads(&self) -> watch::Receiver<u64> {
        self.reloads.subscribe()
    }

    /// Returns the TLS configuration of new connections; `None`: connections are not encrypted.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.known.read().tls.clone()
    }

    /// Returns the grant of a caller: that of its bearer token, or else that of its certificate or
    /// Unix user. If the server requires no credentials, tokens are ignored, and a caller without a
    /// certificate or Unix user may do everything.
    pub(crate) fn grant(
        &self,
        secret: Option<&[u8]>,
        certified: Option<&CertifiedCaller>,
    ) -> Result<Arc<Grant>, AuthenticationError> {
        if !self.files.identify() {
            let Some(caller) = certified else { return Ok(Arc::clone(&self.anyone)) };
            return Ok(match (&self.known.read().machine, &caller.user) {
                (Some(rights), Some(user)) => rights.widened(&caller.grant, user),
                _ => Arc::clone(&caller.grant),
            });
        }
        let LoadedCredentials { tokens, rights, refused, devices, .. } = self.known.read().clone();
        let is_removed =
            |name: &str, serial| devices.is_some_and(|list| !list.admits(name, serial));
        match (tokens, secret, certified) {
            (Some(tokens), Some(secret), _) => {
                tokens.grant(secret).ok_or(AuthenticationError::Token)
            }
            (_, _, Some(CertifiedCaller { grant, serial: Some(serial), .. }))
                if is_removed(&grant.name, serial) =>
            {
                Err(AuthenticationError::Removed)
            }
            (_, _, Some(CertifiedCaller { serial: Some(serial), .. }))
                if refused.contain(serial) =>
            {
                Err(AuthenticationError::Refused)
            }
            (_, _, Some(CertifiedCaller { grant, serial, .. })) => match rights {
                Some(rights) if serial.is_some() => {
                    rights.grant(&grant.name).ok_or(AuthenticationError::Unlisted)
                }
                _ => Ok(Arc::clone(grant)),
            },
            (Some(_), None, None) => Err(AuthenticationError::Nothing),
            (None, _, None) => Err(AuthenticationError::Certificate),
        }
    }

    /// Returns what the server lacks on a network: see [`Credentials::lack`].
    pub const fn lacks(&self, permitted: OpenTo) -> OpenTo {
        self.files.lack(permitted)
    }

    /// Whether a request with this `Host` may be meant for this server. A server that authenticates
    /// its callers may have any name: a page has no credentials of the user.
    pub(crate) fn admits_host(&self, host: Option<&str>) -> bool {
        let is_in_certificate = || self.known.read().names.admit(host);
        self.files.identify() || self.files.hosts.admit(host) || is_in_certificate()
    }

    /// Whether the server accepts bearer tokens.
    pub fn knows_tokens(&self) -> bool {
        self.known.read().tokens.is_some()
    }
}

/// Reads the file at `path`, if there shall be one.
fn load<T, E>(
    path: Option<&PathBuf>,
    read: fn(&Path) -> Result<T, E>,
    wrong: fn(PathBuf, E) -> CredentialsError,
) -> Result<Option<Arc<T>>, CredentialsError> {
    let Some(path) = path else { return Ok(None) };
    read(path).map(|read| Some(Arc::new(read))).map_err(|error| wrong(path.clone(), error))
}

impl LoadedCredentials {
    fn load(files: &Credentials) -> Result<Self, CredentialsError> {
        use CredentialsError as Wrong;
        let tokens = load(files.tokens.as_ref(), Tokens::read, Wrong::Tokens)?;
        let rights = load(files.rights.as_ref(), CertificateRights::read, Wrong::Rights)?;
        let machine = files.machine_rights.as_ref();
        let machine = load(machine, MachineRights::read, Wrong::MachineRights)?;
        let devices = files.joins.then(Arc::default);
        let is_optional = tokens.is_some() || devices.is_some();
        let certified =
            if is_optional { ClientCertPolicy::Optional } else { ClientCertPolicy::Always };
        let tls = match &files.tls {
            None => None,
            Some(files) => Some(files.load(certified).map_err(CredentialsError::Tls)?),
        };
        let names = match &files.tls {
            None => AllowedHosts::default(),
            Some(files) => AllowedHosts(files.names().map_err(CredentialsError::Tls)?),
        };
        let refused = match &files.refused {
            None => RefusedSerials::default(),
            Some(path) => {
                RefusedSerials::read(path).map_err(|error| CredentialsError::Tls(error.into()))?
            }
        };
        let refused = Arc::new(refused);
        let expiries = files.expiries();
        Ok(Self { tokens, rights, machine, tls, refused, devices, names, expiries })
    }
}

/// The host names by which a server without credentials may be called, beside IP addresses and
/// `localhost`. A request to an IP address can't come from DNS rebinding.
#[derive(Debug, Clone, Default)]
pub struct AllowedHosts(pub Vec<String>);

/// The headers by which a browser describes the page that sends a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BrowserHeaders<'a> {
    /// The authority of the request: `Host`, or `:authority` in HTTP/2.
    pub(crate) host: Option<&'a str>,
    pub(crate) origin: Option<&'a str>,
    /// The header `Sec-Fetch-Site`, which no page can set.
    pub(crate) site: Option<&'a str>,
}

impl AllowedHosts {
    /// Whether a request with this `Host` may be meant for the server. Browsers always send one.
    pub(crate) fn admit(&self, host: Option<&str>) -> bool {
        let Some(name) = host.map(without_port) else { return true };
        let is = |allowed: &str| name.eq_ignore_ascii_case(allowed);
        name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || is("localhost")
            || self.0.iter().any(|allowed| is(allowed))
    }
}

impl BrowserHeaders<'_> {
    /// Whether the request comes from a page of another site. A request that only reads may come
    /// from a link on any page; its answer is shown to the user, and no page can read it.
    pub(crate) fn are_of_another_site(&self, only_reads: bool) -> bool {
        match (self.site, self.origin) {
            (Some("same-origin" | "none"), _) | (None, None) => false,
            (Some(_), origin) => !only_reads || origin.is_some(),
            (None, Some(origin)) => !self.is_own(origin),
        }
    }

    fn is_own(&self, origin: &str) -> bool {
        let authority = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
        authority.zip(self.host).is_some_and(|(one, other)| one.eq_ignore_ascii_case(other))
    }
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// Minimum length of a secret in bytes: a shorter one could be guessed by trying.
const SECRET_BYTES_MIN: usize = 16;

/// Maximum number of tokens, because each request is compared with all of them.
const TOKENS_MAX: usize = 1_000;

/// Permission bits of all users but the owner of the file.
const OTHERS: u32 = 0o077;

/// The digest and grant of each token in the file.
pub(super) struct Tokens(Vec<([u8; 32], Arc<Grant>)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    secret: Option<String>,
    sha256: Option<String>,
    clients: Vec<String>,
    #[serde(default = "all_locks")]
    locks: Vec<String>,
    #[serde(default)]
    steal: bool,
    #[serde(default)]
    cluster: bool,
}

fn all_locks() -> Vec<String> {
    vec![String::new()]
}

impl Tokens {
    /// Reads the token file at `path`, which no user but its owner may be able to access.
    pub(super) fn read(path: &Path) -> Result<Self, TokensError> {
        let mut file = File::open(path).map_err(TokensError::Read)?;
        let mode = file.metadata().map_err(TokensError::Read)?.mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(TokensError::Exposed(mode));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(TokensError::Read)?;
        Self::parse(&text).map_err(TokensError::Wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let whole: TokenFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if whole.token.is_empty() {
            return Err("it has no [[token]], so it would allow no request".to_owned());
        }
        if whole.token.len() > TOKENS_MAX {
            return Err(format!("there are more than {TOKENS_MAX} tokens in it"));
        }
        let mut tokens: Vec<([u8; 32], Arc<Grant>)> = Vec::with_capacity(whole.token.len());
        for entry in whole.token {
            let name = entry.name.clone();
            let (digest, grant) = entry.read().map_err(|why| format!("token '{name}': {why}"))?;
            if tokens.iter().any(|(other, _)| *other == digest) {
                return Err(format!("token '{name}': another has the same secret"));
            }
            tokens.push((digest, Arc::new(grant)));
        }
        Ok(Self(tokens))
    }

    /// Returns the number of tokens.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the grant of the token with this `secret`, if there is one.
    pub(super) fn grant(&self, secret: &[u8]) -> Option<Arc<Grant>> {
        let digest = digest_of(secret);
        let mut found = u32::MAX;
        // Compares the digest of the secret with that of every token, so that the time taken does
        // not reveal whether a token matches, or which.
        for (number, (known, _)) in (0..).zip(&self.0) {
            let same: Choice = known.as_slice().ct_eq(digest.as_slice());
            found.conditional_assign(&number, same);
        }
        self.0.get(found as usize).map(|(_, grant)| Arc::clone(grant))
    }
}

impl TokenEntry {
    fn read(self) -> Result<([u8; 32], Grant), String> {
        let digest = match (&self.secret, &self.sha256) {
            (Some(secret), None) if secret.len() < SECRET_BYTES_MIN => {
                return Err(format!("a secret has at least {SECRET_BYTES_MIN} bytes"));
            }
            (Some(secret), None) => digest_of(secret.as_bytes()),
            (None, Some(hex)) => bytes_of(hex).ok_or("sha256 is 64 digits of hexadecimal")?,
            _ => return Err("it needs either a secret or a sha256".to_owned()),
        };
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Err(format!("a name has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if self.clients.iter().any(String::is_empty) {
            return Err("clients names each, such as \"laptop1:*\"; [] is a right to read".into());
        }
        if self.clients.is_empty() && (self.steal || self.cluster) {
            return Err("with clients = [] it may only read: leave steal and cluster out".into());
        }
        if self.locks.len() > PREFIXES_MAX {
            return Err(format!("locks names at most {PREFIXES_MAX} beginnings of names"));
        }
        let clients = self.clients.iter().map(|text| ClientPattern::parse(text)).collect();
        let Self { name, locks: prefixes, steal, cluster, .. } = self;
        let credential = Credential::Token;
        let steals = all_or_none(steal);
        let grant = Grant { credential, name, clients, prefixes, steals, ..Grant::nothing() };
        Ok((digest, Grant { cluster, ..grant }))
    }
}

fn digest_of(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

fn bytes_of(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_are_hosts() {
        let hosts = AllowedHosts(vec!["box.lan".to_owned()]);
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "[::1]", "box.lan:9"]
        {
            assert!(hosts.admit(Some(host)), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:80", "box.lan.evil", "x", ""] {
            assert!(!hosts.admit(Some(host)), "{host}");
        }
        assert!(hosts.admit(None));
    }

    #[test]
    fn pages_of_other_sites_are_recognized() {
        let headers = |host, origin, site| BrowserHeaders { host: Some(host), origin, site };
        let own = headers("box:80", Some("http://BOX:80"), None);
        assert!(!own.are_of_another_site(false));
        assert!(!headers("a", None, None).are_of_another_site(false), "no browser");
        assert!(
            !headers("proxied", Some("https://b"), Some("same-origin")).are_of_another_site(false)
        );
        for origin in ["http://evil.example", "null", "http://box:81", "file://"] {
            assert!(headers("box:80", Some(origin), None).are_of_another_site(true), "{origin}");
        }
        let link = headers("a", None, Some("cross-site"));
        assert!(!link.are_of_another_site(true) && link.are_of_another_site(false));
        let fetch = headers("a", Some("http://b"), Some("cross-site"));
        assert!(fetch.are_of_another_site(true));
    }
}

#[cfg(test)]
mod token_file_tests {
    use super::*;
    use crate::engine::{ClientId, LockName};

    const ONE: &str = r#"
        [[token]]
        name = "laptop1"
        secret = "correct horse battery"
        clients = ["laptop1", "laptop1:*"]
        locks = ["team/"]

        [[token]]
        name = "admin"
        sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
        clients = ["*"]
        steal = true
    "#;

    #[test]
    fn a_token_is_known_by_its_secret_or_digest() {
        let tokens = Tokens::parse(ONE).expect("well formed");
        let laptop = tokens.grant(b"correct horse battery").expect("known");
        assert_eq!((laptop.name.as_str(), laptop.steals.len()), ("laptop1", 0));
        let client = |text| ClientId::parse(text).expect("valid");
        assert!(laptop.may_speak_as(&client("laptop1:alice")).is_ok());
        assert!(laptop.may_speak_as(&client("laptop2")).is_err());
        assert!(laptop.may_touch(&LockName::parse("team/x").expect("valid")).is_ok());
        assert!(laptop.may_touch(&LockName::parse("other").expect("valid")).is_err());
        assert_eq!(tokens.grant(b"test").map(|grant| grant.name.clone()), Some("admin".into()));
        assert!(tokens.grant(b"").is_none() && tokens.grant(b"correct horse batterz").is_none());
    }

    #[test]
    fn invalid_file_is_explained() {
        let entry = |rest: &str| format!("[[token]]\nname = \"x\"\n{rest}\n");
        for (text, says) in [
            (String::new(), "no [[token]]"),
            ("[[token]".to_owned(), "expected"),
            (entry("secret = \"0123456789abcdef\""), "clients"),
            (entry("secret = \"short\"\nclients = [\"a\"]"), "16 bytes"),
            (entry("sha256 = \"xyz\"\nclients = [\"a\"]"), "hexadecimal"),
            (entry("clients = [\"a\"]"), "either a secret"),
            (entry("secret = \"0123456789abcdef\"\nclients = [\"\"]"), "names each"),
            (entry("secret = \"0123456789abcdef\"\nclients = []\nsteal = true"), "only read"),
            (entry("secret = \"0123456789abcdef\"\nclients = [\"a\"]\nstael = true"), "stael"),
        ] {
            let why = Tokens::parse(&text).err().unwrap_or_default();
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[test]
    fn the_numbers_of_tokens_and_prefixes_are_limited() {
        let parse = |tokens: usize, prefixes: usize| {
            let locks: Vec<_> = (0..prefixes).map(|number| format!("'team{number}/'")).collect();
            let entry = |number: usize| {
                let secret = format!("the secret of number {number}");
                let locks = locks.join(",");
                format!("[[token]]\nname='x'\nsecret='{secret}'\nclients=['a']\nlocks=[{locks}]\n")
            };
            Tokens::parse(&(0..tokens).map(entry).collect::<String>())
        };
        assert!(parse(TOKENS_MAX, 1).is_ok());
        assert!(parse(TOKENS_MAX + 1, 1).is_err_and(|why| why.contains("more than 1000 tokens")));
        assert!(parse(1, PREFIXES_MAX).is_ok());
        assert!(parse(1, PREFIXES_MAX + 1).is_err_and(|why| why.contains("at most 256")));
    }
}
