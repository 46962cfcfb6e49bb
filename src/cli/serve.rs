//! `serve`: the engine and the HTTP server, and the end of both. `mount --listen` begins the
//! same server beside its mounts.

use super::background;
use super::exit::{CliError, CliResult, Exit};
use super::mount::{DurationArg, absolute, warn};
use super::output;
use super::peer_options::PeerArgs;
use super::print_permissions;
use super::signals::{self, Hangup};
use super::storage_options::{self, StorageArgs};
use crate::auth::{Credentials, TlsFiles};
use crate::engine::lease_terms::{GRACE_DEFAULT, TTL_DEFAULT};
use crate::engine::{Grace, Ttl};
use crate::raft::Stop;
use crate::server::http::{HttpConfig, HttpServer, HttpStartError, Listen};
use crate::server::line::{self, LineConfig, LineServer};
use crate::service::Locks;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc;

/// The seed's port, for those who are on this machine.
const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8_080);

/// `serve`.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value_t = LISTEN_DEFAULT, value_parser = address)]
    listen: SocketAddr,
    /// Where to take lines such as LOCK,name,client as well
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    line_listen: Option<SocketAddr>,
    #[command(flatten)]
    access: AccessArgs,
    /// How long a lease lasts unrenewed, unless a client says otherwise
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(TTL_DEFAULT),
        value_parser = |text: &str| Ttl::parse(text).map(DurationArg))]
    ttl: DurationArg<Ttl>,
    /// How long after that only its holder may take it back
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(GRACE_DEFAULT),
        value_parser = |text: &str| Grace::parse(text).map(DurationArg))]
    grace: DurationArg<Grace>,
    #[command(flatten)]
    keep: StorageArgs,
    #[command(flatten)]
    peers: PeerArgs,
    /// Print who may do what, by which credentials, and end
    #[arg(long)]
    print_permissions: bool,
}

/// Who may ask, and how connections are encrypted.
#[derive(Debug, clap::Args)]
pub(super) struct AccessArgs {
    /// Bearer tokens and what each may do, in TOML; read again at SIGHUP
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Encrypt by this certificate, in PEM; read again at SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let clients show certificates that this one has signed
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// Be open to a network without tokens or without TLS
    #[arg(long)]
    insecure: bool,
}

impl AccessArgs {
    /// What the server needs to know; of a daemon that may change its directory.
    pub(super) fn config(
        &self,
        listen: Listen,
        (ttl, grace): (Ttl, Grace),
    ) -> CliResult<HttpConfig> {
        let whole = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let tls = match (whole(&self.tls_cert)?, whole(&self.tls_key)?) {
            (Some(cert), Some(key)) => {
                Some(TlsFiles { cert, key, client_ca: whole(&self.client_ca)? })
            }
            _ => None,
        };
        let credentials = Credentials { tokens: whole(&self.tokens)?, tls };
        Ok(HttpConfig { listen, ttl, grace, credentials, insecure: self.insecure })
    }
}

/// The address that `--listen` names.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let next = match text.rsplit_once(':') {
            _ if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() => {
                let ip = text.trim_matches(['[', ']']);
                let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
                format!("write {ip}:8080, with a port")
            }
            None if text.parse::<u16>().is_ok() => open_to(text),
            Some(("" | "*", port)) if port.parse::<u16>().is_ok() => open_to(port),
            Some(("localhost", port)) if port.parse::<u16>().is_ok() => {
                format!("write 127.0.0.1:{port}")
            }
            Some((host, port)) if port.parse::<u16>().is_ok() && !host.contains(':') => {
                format!("a name such as '{host}' is not looked up; write the IP address")
            }
            _ => "write it like 127.0.0.1:8080 or [::1]:8080".to_owned(),
        };
        format!("it is no IP:PORT; {next}")
    })
}

/// Who names only a port has to say for whom.
fn open_to(port: &str) -> String {
    format!("write 127.0.0.1:{port} for this machine alone, 0.0.0.0:{port} for others as well")
}

/// Events that the main thread of the server waits for.
enum ServeEvent {
    /// A signal says that it is to end.
    End,
    /// Tokens and certificates are to be read again.
    Reload,
    /// The engine can't go on.
    Failed(Stop),
}

pub(super) fn run(args: &ServeArgs) -> CliResult {
    if args.print_permissions {
        return output::write(&print_permissions::table());
    }
    let kept = args.keep.kept(args.ttl.0, args.grace.0)?;
    let config = args.access.config(Listen::Tcp(args.listen), (args.ttl.0, args.grace.0))?;
    let scheme = if config.credentials.tls.is_some() { "https" } else { "http" };
    let peering = args.peers.peering(&kept, (scheme, args.listen))?;
    warn(kept.warning());
    let (send, news) = mpsc::channel();
    let tell = |news: fn() -> ServeEvent| {
        let send = send.clone();
        // A failure to send means that nobody needs to know any more.
        move || drop(send.send(news()))
    };
    signals::on_end(Hangup::Calls(Box::new(tell(|| ServeEvent::Reload))), tell(|| ServeEvent::End))
        .map_err(|error| CliError::system("signals can't be waited for", &error))?;
    let decider = kept.open_with_peers(peering)?;
    decider.on_failure(move |why| drop(send.send(ServeEvent::Failed(why))));
    let served = start(decider.locks(), &config).and_then(|server| {
        let line = match args.line_listen {
            Some(listen) => Some(start_line(decider.locks(), listen, &config, &server)?),
            None => None,
        };
        background::notify_manager();
        let ended = loop {
            match news.recv() {
                Ok(ServeEvent::Reload) => reload(&server),
                Ok(ServeEvent::Failed(why)) => break Err(storage_options::failed(&why)),
                Ok(ServeEvent::End) | Err(_) => break Ok(()),
            }
        };
        line.iter().for_each(LineServer::drain);
        server.drain();
        line.into_iter().for_each(LineServer::close);
        ended
    });
    let closed = decider.close();
    served.and(closed)
}

/// Reads tokens and certificates again, and says it when something is wrong with them.
pub(super) fn reload(server: &HttpServer) {
    match server.reload() {
        Ok(()) => output::say("tokens and certificates were read again"),
        Err(error) => output::say(&format!("all stays as it was: {error}")),
    }
}

/// Begins a server, and says where it listens.
pub(super) fn start(locks: Locks, config: &HttpConfig) -> CliResult<HttpServer> {
    let server = HttpServer::start(locks, config).map_err(|error| refused(&error))?;
    let (ttl, grace) = (config.ttl.span(), config.grace.span());
    let scheme = match (&config.listen, &config.credentials.tls) {
        (Listen::Unix(..), _) => "unix:",
        (Listen::Tcp(_), Some(_)) => "https://",
        (Listen::Tcp(_), None) => "http://",
    };
    let address = server.address();
    output::line(&format!("latchfs: listening on {scheme}{address} (ttl {ttl}, grace {grace})"))?;
    Ok(server)
}

/// Begins to serve lines beside a server, and says where.
fn start_line(
    locks: Locks,
    listen: SocketAddr,
    config: &HttpConfig,
    server: &HttpServer,
) -> CliResult<LineServer> {
    let HttpConfig { ttl, grace, insecure, .. } = *config;
    let config = LineConfig { listen, ttl, grace, gate: server.gate(), insecure };
    let line = LineServer::start(locks, config).map_err(|error| {
        let exit = match error {
            line::LineStartError::Open(_) => Exit::Usage,
            line::LineStartError::Listen(..) | line::LineStartError::System(_) => Exit::Unavailable,
        };
        CliError::Said(exit, error.to_string())
    })?;
    server.add_metrics(line.metrics());
    output::line(&format!("latchfs: taking lines on {}", line.address()))?;
    Ok(line)
}

fn refused(error: &HttpStartError) -> CliError {
    let exit = match error {
        HttpStartError::Open(_) => Exit::Usage,
        HttpStartError::Listen(..) | HttpStartError::System(_) | HttpStartError::Credentials(_) => {
            Exit::Unavailable
        }
    };
    CliError::Said(exit, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_and_a_port() {
        for good in ["127.0.0.1:8080", "[::1]:0", "0.0.0.0:65535"] {
            assert_eq!(address(good).map(|address| address.to_string()), Ok(good.to_owned()));
        }
        for (wrong, next) in [
            ("localhost:8080", "write 127.0.0.1:8080"),
            (":8080", "write 127.0.0.1:8080 for this machine alone, 0.0.0.0:8080"),
            ("8080", "write 127.0.0.1:8080 for"),
            ("*:80", "0.0.0.0:80 for others"),
            ("10.0.0.1", "write 10.0.0.1:8080"),
            ("::1", "write [::1]:8080"),
            ("[::1]", "write [::1]:8080"),
            ("box.local:8080", "'box.local' is not looked up"),
            ("nonsense", "like 127.0.0.1:8080 or [::1]:8080"),
            ("127.0.0.1:99999", "like 127.0.0.1:8080"),
            ("", "like 127.0.0.1:8080"),
        ] {
            let said = address(wrong).expect_err(wrong);
            assert!(said.starts_with("it is no IP:PORT; ") && said.contains(next), "{said}");
        }
    }
}
