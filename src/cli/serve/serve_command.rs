//! The `serve` command: starts the engine with its HTTP and line servers, and shuts them down in
//! order. `mount --listen` starts the same HTTP server beside its mounts.
//!
//! Start of the HTTP server of `serve` and of `mount --listen`, and its reload at SIGHUP.

use super::access_options::AccessArgs;
use super::storage_options;
use super::storage_options::{LocalBackend, ServerRole, ServerStorageArgs, StorageChoice};
use crate::auth::permissions::Operation;
use crate::auth::{Authenticator, Grant, PeerUser};
use crate::cli::argument_types::{
    DurationArg, ListenArg, address, default_grace, default_ttl, home_in, host, listen_at,
    socket_in, span, variable,
};
use crate::cli::at_login::{AtLoginArgs, LoginService, has_manager};
use crate::cli::background;
use crate::cli::connect::machine_locks;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::log_options::LogLocksArgs;
use crate::cli::serve::access_options;
use crate::cli::serve::invite_command::{self, instructions};
use crate::cli::serve::storage_options::{PeerArgs, warn};
use crate::cli::signals::Hangup;
use crate::cli::{output, signals};
use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use crate::engine::{Grace, Ttl};
use crate::raft::{PeerError, Peering, Stop};
use crate::server::http::{HttpConfig, HttpServer, HttpStartError, Listen, ca};
use crate::server::line;
use crate::server::line::{LineConfig, LineServer};
use crate::service::{AdminAction, AuditEntry, LockService};
use crate::shares::LimitName;
use crate::time::Span;
use rustix::process::geteuid;
use serde_json::Value;
use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, mpsc};
use std::thread;

/// The default address of the HTTP server, which only this machine can reach.
const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// The default address of a server that other machines join.
const LISTEN_HOME: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8443);

/// The arguments of `latchfs serve`.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // each is a flag that somebody types
pub(in crate::cli) struct ServeArgs {
    /// Where to listen: IP:PORT, unix:PATH, or both with a comma between. At a Unix socket root and
    /// the user of the server may do everything without credentials, also reset locks
    /// [default: 127.0.0.1:8080] [with --home: 0.0.0.0:8443]
    #[arg(long, value_name = "ADDRESS", value_parser = listen_at)]
    listen: Option<ListenArg>,
    /// Let other machines join by a code: see 'latchfs invite'. The server makes a certificate
    /// authority of its own in its data directory, and encrypts
    #[arg(long, conflicts_with_all = ["memory", "state", "tokens", "tls_cert", "client_ca",
        "certificate_rights", "insecure", "peer_listen", "line_listen", "machine"])]
    home: bool,
    /// Be the daemon of this machine's locks, as root: commands of all users that name no place use
    /// it, each for names of its own and for those that /etc/latchfs/rights.toml gives
    #[arg(long,
        conflicts_with_all = ["listen", "line_listen", "peer_listen", "tokens", "tls_cert"])]
    machine: bool,
    /// Where to take lines such as LOCK,name,client as well
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    line_listen: Option<SocketAddr>,
    /// Addresses of followers of the line protocol that others may register for them
    #[arg(long, value_name = "IP", requires = "line_listen", value_delimiter = ',')]
    allow_follower: Vec<IpAddr>,
    #[command(flatten)]
    access: AccessArgs,
    /// Lower a limit: connections, locks, sessions, waiters, or queue (waiters of one lock)
    #[arg(long, value_name = "NAME=N", value_delimiter = ',',
        value_parser = LimitName::parse_limit)]
    limit: Vec<(LimitName, usize)>,
    /// How long a lease lasts unrenewed, unless a client says otherwise
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(TTL_DEFAULT),
        value_parser = default_ttl)]
    ttl: DurationArg<Ttl>,
    /// How long after that only its holder may take it back
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(GRACE_DEFAULT),
        value_parser = default_grace)]
    grace: DurationArg<Grace>,
    #[command(flatten)]
    keep: ServerStorageArgs,
    #[command(flatten)]
    peers: PeerArgs,
    #[command(flatten)]
    login: AtLoginArgs,
    /// When a node leaves or is removed, end the holds and waits of the client of its name
    #[arg(long, requires = "peer_listen")]
    release_on_node_removal: bool,
    #[command(flatten)]
    pub(in crate::cli) log_locks: LogLocksArgs,
    /// End when nothing is held or waited for, and nobody has asked for so long
    #[arg(long, value_name = "DURATION", value_parser = span, conflicts_with = "peer_listen")]
    idle_end: Option<Span>,
    /// Be the daemon of a user's own locks, and report to the command that starts it
    #[arg(long, hide = true)]
    detached: bool,
    /// Print the table of permissions, and exit
    #[arg(long)]
    print_permissions: bool,
}

/// The events for which the main thread of the server waits.
enum ServeEvent {
    /// The engine has started, or failed to.
    Opened(CliResult<LocalBackend>),
    /// A signal has requested the end of the server.
    End,
    /// SIGHUP has requested that tokens and certificates are reloaded.
    Reload,
    /// The engine has failed for good.
    Failed(Stop),
}

pub(in crate::cli) fn run(args: &ServeArgs) -> CliResult {
    if args.print_permissions {
        return output::write(&access_options::table());
    }
    if args.machine {
        machine_locks::make_dir()?;
    }
    let kept = args.keep.kept(args.ttl.0, args.grace.0, args.role())?;
    if args.starts_at_login(&kept)? {
        return Ok(());
    }
    let listen = args.listen(&kept);
    let mut config = args.access.config(args.sockets(&listen), args.ttl.0, args.grace.0)?;
    config.credentials.machine_rights = args.machine.then(|| machine_locks::RIGHTS.into());
    let home = args.add_home(&kept, &listen, &mut config)?;
    config.release_on_node_removal = args.release_on_node_removal;
    config.limits = args.limit.iter().copied().collect();
    let scheme = if config.credentials.tls.is_some() { "https" } else { "http" };
    let peers = home.as_ref().unwrap_or(&args.peers);
    let peering =
        peers.peering(&kept, scheme, listen.tcp, args.access.refuse_serials.as_deref())?;
    if let Some(files) = peering.as_ref().and_then(|peering| peering.tls.clone()) {
        config.credentials.watched = vec![("peer", files.cert), ("peer CA", files.ca)];
    }
    // All files are read before anything is bound or begun.
    let gate = authenticator(&config)?;
    let line = args.line_config(&config, &gate)?;
    warn(kept.warning());
    let container_warning = kept.container_warning();
    let (send, news) = mpsc::channel();
    let sender = |news: fn() -> ServeEvent| {
        let send = send.clone();
        // If the send fails, the main thread has ended and waits for no more events.
        move || drop(send.send(news()))
    };
    signals::on_end(
        Hangup::Calls(Box::new(sender(|| ServeEvent::Reload))),
        sender(|| ServeEvent::End),
    )
    .map_err(|error| CliError::system("signals can't be waited for", &error))?;
    let Some(decider) = open(kept, peering, &send, &news)? else {
        log::info!("server stopped before it had begun");
        return Ok(());
    };
    if let Some(home) = &config.home {
        ca::home_has_begun(home).map_err(|error| CliError::unavailable(error.to_string()))?;
    }
    if let Some(warning) = container_warning {
        output::warn(&warning);
    }
    let end = send.clone();
    decider.on_failure(move |why| drop(send.send(ServeEvent::Failed(why))));
    let served = args.log_locks.start(&decider.locks(), false).and_then(|_log| {
        let server = start(decider.locks(), &config, gate)?;
        let line = line.map(|line| start_line(decider.locks(), line, &server)).transpose()?;
        announce_home(&server)?;
        args.tell_ready(&server)?;
        if let Some(after) = args.idle_end {
            let watched = server.on_idle(after, move || drop(end.send(ServeEvent::End)));
            watched.map_err(|error| CliError::system("a thread can't be started", &error))?;
        }
        let ended = loop {
            match news.recv() {
                Ok(ServeEvent::Opened(_)) => {}
                Ok(ServeEvent::Reload) => reload(&server, || decider.reload()),
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
    log::info!("server stopped");
    served.and(closed)
}

/// Starts the engine in a thread of its own, since a node may wait for others as long as they are
/// away. Returns `None` if a signal ends the server before.
fn open(
    storage: StorageChoice,
    peering: Option<Peering>,
    send: &Sender<ServeEvent>,
    news: &Receiver<ServeEvent>,
) -> CliResult<Option<LocalBackend>> {
    let opened = send.clone();
    let open = move || drop(opened.send(ServeEvent::Opened(storage.open_with_peers(peering))));
    let thread = thread::Builder::new().name("open".to_owned()).spawn(open);
    thread.map_err(|error| CliError::system("the engine can't be started", &error))?;
    let mut reload = None;
    loop {
        match news.recv() {
            Ok(ServeEvent::Opened(opened)) => {
                // A reload that was requested meanwhile is done once the server runs.
                if let Some(reload) = reload {
                    // The receiver is `news`, so the send does not fail.
                    let _ = send.send(reload);
                }
                return opened.map(Some);
            }
            Ok(ServeEvent::End) | Err(_) => return Ok(None),
            Ok(other) => reload = Some(other),
        }
    }
}

impl ServeArgs {
    /// Has the service manager start the server, if that is wanted: with `--home`, in a terminal,
    /// because the server must go on without it.
    fn starts_at_login(&self, kept: &StorageChoice) -> CliResult<bool> {
        let AtLoginArgs { at_login, no_at_login } = self.login;
        let (true, Some(data)) = (self.home, kept.dir()) else {
            let refused = "--at-login is for --home; contrib/systemd has units for other servers";
            return if at_login { Err(CliError::usage(refused)) } else { Ok(false) };
        };
        let service = LoginService::new("serve", Vec::new(), Value::Null);
        if no_at_login {
            return service.remove().map(|()| false);
        }
        if !at_login && (!has_manager() || !io::stdout().is_terminal()) {
            return Ok(false);
        }
        service.install::<Self>()?;
        output::line("latchfs: 'latchfs serve --home --no-at-login' ends this server")?;
        invite_command::print_invitation(data)?;
        Ok(true)
    }

    /// Tells the log, a service manager, and the command that has started this daemon, that the
    /// server can be used.
    fn tell_ready(&self, server: &HttpServer) -> CliResult {
        let version = env!("CARGO_PKG_VERSION");
        let address = server.addresses().first().map(String::as_str);
        let socket = server.addresses().get(1).map(String::as_str);
        log::info!(address, socket, version; "server started");
        background::notify_manager();
        if self.detached { background::ready() } else { Ok(()) }
    }

    /// Returns whose locks the server keeps.
    const fn role(&self) -> ServerRole {
        match (self.machine, self.detached) {
            (true, _) => ServerRole::Machine,
            (false, true) => ServerRole::OwnLocks,
            (false, false) => ServerRole::Server,
        }
    }

    /// Returns the addresses of the sockets. A server that machines join also listens at a Unix
    /// socket in its data directory, by which its user invites them.
    fn listen(&self, kept: &StorageChoice) -> ListenArg {
        let tcp = Some(if self.home { LISTEN_HOME } else { LISTEN_DEFAULT });
        let listen = self.listen.clone().unwrap_or(ListenArg { tcp, socket: None });
        let own = kept.dir().filter(|_| self.home).map(socket_in);
        ListenArg { socket: own.or(listen.socket), ..listen }
    }

    /// Makes the certificates of a server that machines join, and has the server use them. Returns
    /// the options by which it listens for other nodes.
    fn add_home(
        &self,
        kept: &StorageChoice,
        listen: &ListenArg,
        config: &mut HttpConfig,
    ) -> CliResult<Option<PeerArgs>> {
        let (true, Some(data)) = (self.home, kept.dir()) else { return Ok(None) };
        let failed = |error: ca::CaError| CliError::unavailable(error.to_string());
        let dir = home_in(data);
        let tls = ca::make_home(&dir, &self.access.own_names()).map_err(failed)?;
        config.credentials.tls = Some(tls);
        config.credentials.joins = true;
        let seeds = ca::seeds(&dir).map_err(failed)?;
        let host = self.access.node_host();
        let peers = listen.tcp.map(|tcp| self.peers.at_home(tcp, host, seeds, &dir));
        config.home = Some(dir);
        Ok(peers)
    }

    /// Returns the sockets on which the server listens.
    fn sockets(&self, listen: &ListenArg) -> Vec<Listen> {
        if self.machine {
            let at_socket = |peer: &PeerUser| {
                // A host without a usable name has no client ids for its users.
                let host = host().ok()?;
                Grant::on_machine(peer, geteuid().as_raw(), &host)
            };
            return vec![Listen::Unix(machine_locks::SOCKET.into(), Arc::new(at_socket))];
        }
        // Nobody else has anything to do with a user's own locks.
        let requires_credentials = self.detached || self.home || self.access.identifies();
        let at_socket = move |peer: &PeerUser| {
            Grant::at_socket(peer.uid, geteuid().as_raw(), requires_credentials)
        };
        let ListenArg { tcp, socket } = listen.clone();
        let socket = socket.map(|path| Listen::Unix(path, Arc::new(at_socket)));
        tcp.map(Listen::Tcp).into_iter().chain(socket).collect()
    }

    /// Returns the configuration of the line server; `None` without `--line-listen`.
    fn line_config(
        &self,
        config: &HttpConfig,
        gate: &Arc<Authenticator>,
    ) -> CliResult<Option<LineConfig>> {
        let Some(listen) = self.line_listen else { return Ok(None) };
        let HttpConfig { ttl, grace, insecure, share, limits, .. } = *config;
        let (gate, follow_addresses) = (Arc::clone(gate), self.allow_follower.clone());
        let config =
            LineConfig { listen, ttl, grace, gate, insecure, share, limits, follow_addresses };
        config.check().map_err(|error| refused_line(&error))?;
        Ok(Some(config))
    }
}

fn refused_line(error: &line::LineStartError) -> CliError {
    let exit = match error {
        line::LineStartError::Open(..) => Exit::Usage,
        line::LineStartError::Listen(..) | line::LineStartError::System(_) => Exit::Unavailable,
    };
    CliError::Said(exit, error.to_string())
}

/// Starts the server of the line protocol beside the HTTP server, and prints its address.
fn start_line(
    locks: Arc<dyn LockService>,
    config: LineConfig,
    server: &HttpServer,
) -> CliResult<LineServer> {
    let line = LineServer::start(locks, config).map_err(|error| refused_line(&error))?;
    server.add_metrics(line.metrics());
    output::announce(&format!("latchfs: line protocol listening on {}", line.address()))?;
    let address = line.address().to_string();
    log::info!(address = &*address; "line server started");
    Ok(line)
}

/// Makes the server read its tokens and certificates again, also those for peers, and prints the
/// result on standard error.
pub(in crate::cli) fn reload(server: &HttpServer, peers: impl FnOnce() -> Result<(), PeerError>) {
    let mut outcome = match server.reload() {
        Ok(()) => "tokens and certificates were read again".to_owned(),
        Err(error) => format!("all stays as it was: {error}"),
    };
    output::say(&outcome);
    if let Err(error) = peers() {
        let more = format!("the certificates for peers stay as they were: {error}");
        output::say(&more);
        outcome = format!("{outcome}; {more}");
    }
    server.audit(&AuditEntry::Act(AdminAction {
        what: "read credentials again",
        target: None,
        by: "SIGHUP",
        credential: "signal",
        address: "this machine",
        outcome: &outcome,
    }));
}

/// Reads all credential files of a server.
pub(in crate::cli) fn authenticator(config: &HttpConfig) -> CliResult<Arc<Authenticator>> {
    config.authenticator().map_err(|error| refused(&error))
}

/// Starts the HTTP server, and prints the addresses on which it listens.
pub(in crate::cli) fn start(
    locks: Arc<dyn LockService>,
    config: &HttpConfig,
    gate: Arc<Authenticator>,
) -> CliResult<HttpServer> {
    let server = HttpServer::start(locks, config, gate).map_err(|error| refused(&error))?;
    let (ttl, grace) = (config.ttl.span(), config.grace.span());
    for (listen, address) in config.listen.iter().zip(server.addresses()) {
        let scheme = match (listen, &config.credentials.tls) {
            (Listen::Unix(..), _) => "unix:",
            (Listen::Tcp(_), Some(_)) => "https://",
            (Listen::Tcp(_), None) => "http://",
        };
        output::announce(&format!(
            "latchfs: listening on {scheme}{address} (ttl {ttl}, grace {grace})"
        ))?;
    }
    Ok(server)
}

/// Tells how another machine joins. The code of the first invitation is not written into a log.
fn announce_home(server: &HttpServer) -> CliResult {
    let may_show = variable("JOURNAL_STREAM").is_none();
    let invited = server.first_invitation(may_show);
    if let Some((Some(_), _)) = &invited {
        server.audit(&AuditEntry::Act(AdminAction {
            what: Operation::Invite.rule().name,
            target: None,
            by: "start",
            credential: "none",
            address: "this machine",
            outcome: "done",
        }));
    }
    match invited {
        None => Ok(()),
        Some((Some(invited), _)) => {
            output::announce(&format!("latchfs: {}", instructions(&invited)))
        }
        Some((None, joined)) => output::announce(&format!(
            "latchfs: {joined} of other machines joined; 'latchfs invite' lets another one join"
        )),
    }
}

fn refused(error: &HttpStartError) -> CliError {
    let exit = match error {
        HttpStartError::Open(..) => Exit::Usage,
        HttpStartError::Listen(..) | HttpStartError::System(_) | HttpStartError::Credentials(_) => {
            Exit::Unavailable
        }
    };
    CliError::Said(exit, error.to_string())
}
