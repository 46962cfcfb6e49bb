//! The `mount` command: opens the engine or connects to a server, mounts, and shuts both down in
//! order.
//!
//! Refuses mount points in folders that a sync tool carries.

use crate::auth::{Grant, LocalUser, PeerUser};
use crate::base::said;
use crate::cli::argument_types::{
    DurationArg, ListenArg, absolute, default_grace, default_ttl, host, listen_at,
};
use crate::cli::at_login::{AtLoginArgs, LoginService};
use crate::cli::background;
use crate::cli::connect::credential_options;
use crate::cli::connect::credential_options::{ServerCredentials, ServerKeyArgs, Sourced};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::log_options::LogLocksArgs;
use crate::cli::serve::access_options::AccessArgs;
use crate::cli::serve::storage_options::{MountStorageArgs, StorageChoice, warn};
use crate::cli::serve::{serve_command, storage_options};
use crate::cli::signals::Hangup;
use crate::cli::{output, signals};
use crate::client::{Remote, Terms};
use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use crate::engine::{ClientId, Grace, Ttl};
use crate::fuse::lock_fs;
use crate::fuse::lock_fs::{
    ClientScope, HoldBy, MountConfig, MountError, Mounted, ReadContent, Unmounted, Users,
};
use crate::guard::folder::state_place::synced_by;
use crate::raft::Stop;
use crate::server::http::{HttpConfig, HttpServer, Listen};
use crate::service::LockService;
use clap::ValueEnum;
use kernel::device::Gone;
use kernel::machine_facts::{is_root, own_uid};
use kernel::mountinfo;
use serde_json::Value;
use std::io;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, mpsc};

/// The arguments of `latchfs mount`.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // each is a flag that somebody types
pub(in crate::cli) struct MountArgs {
    /// Where to mount; made if it is not there. Several share one engine: the same locks
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// The client that the mount's users belong to; once for all DIRs, or once for each [env:
    /// `LATCHFS_CLIENT`, with a server] [default: the name in the client certificate, or else the
    /// host's name]
    #[arg(long = "client", value_name = "CLIENT", value_parser = ClientId::parse)]
    clients: Vec<ClientId>,
    /// How callers are told apart
    #[arg(long, value_enum, default_value = "user")]
    owner: OwnerArg,
    /// How long a lease lasts unrenewed, unless a program says otherwise
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(TTL_DEFAULT),
        value_parser = default_ttl)]
    ttl: DurationArg<Ttl>,
    /// How long after that only its holder may take it back
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(GRACE_DEFAULT),
        value_parser = default_grace)]
    grace: DurationArg<Grace>,
    /// Output of 'cat NAME': the status as JSON, or the text that was written
    #[arg(long, value_enum, default_value = "status")]
    content: ContentArg,
    /// How a lease that was made by file is kept alive
    #[arg(long, value_enum, default_value = "renewal")]
    hold: HoldArg,
    /// Serve all users [default: as root]
    #[arg(long, overrides_with = "no_allow_other")]
    allow_other: bool,
    /// Serve only the user who mounts [default: as anybody but root]
    #[arg(long, overrides_with = "allow_other")]
    no_allow_other: bool,
    /// Serve HTTP as well: unix:PATH, for this machine's users, or an address, by --tokens
    #[arg(long, value_name = "ADDRESS", conflicts_with = "server", value_parser = listen_at)]
    listen: Option<ListenArg>,
    /// Let the server at this URL decide, or the nodes of a cluster (URL,URL), not an engine here
    /// [env: `LATCHFS_SERVER`] [default: that of the configuration file; both unless --listen,
    /// --state or --data asks for an engine here]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    #[command(flatten)]
    key: ServerKeyArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    keep: MountStorageArgs,
    /// Mount on a directory with entries, which are hidden; it is not sealed either, so programs
    /// can make files in it while nothing is mounted, and lock nothing by them
    #[arg(long)]
    nonempty: bool,
    /// Mount inside a folder that a sync tool carries, where other machines make files of the locks
    #[arg(long)]
    inside_synced_folder: bool,
    /// Stay until Ctrl-C or SIGTERM, then unmount; this is the default
    #[arg(long, conflicts_with = "background")]
    foreground: bool,
    /// Return as soon as the mount can be used
    #[arg(long)]
    pub(in crate::cli) background: bool,
    #[command(flatten)]
    login: AtLoginArgs,
    #[command(flatten)]
    pub(in crate::cli) log_locks: LogLocksArgs,
    /// Report on standard output when the mount is ready, to the process that started it
    #[arg(long, hide = true)]
    pub(in crate::cli) detached: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OwnerArg {
    /// All users of this host are one client
    Host,
    /// Each user is a client
    User,
    /// Each login session of a user is a client, so two terminals are two clients
    Session,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ContentArg {
    /// A read of a lock returns its status as JSON
    Status,
    /// A read of a lock returns the text that was written to it
    Note,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum HoldArg {
    /// A lease lasts for its ttl after each renewal
    Renewal,
    /// A lease lasts until the leader of the login session that made it ends
    Session,
}

/// The events for which the main thread of the mount's daemon waits.
enum MountEvent {
    /// A signal has requested the end of the daemon.
    End,
    /// One of the mounts has ended.
    Gone,
    /// SIGHUP has requested that tokens and certificates are read again.
    Reload,
    /// The engine has failed for good.
    Failed(Stop),
}

pub(in crate::cli) fn run(args: &MountArgs) -> CliResult {
    let dirs = args.dirs.iter().map(|dir| absolute(dir)).collect::<CliResult<_>>()?;
    let service = LoginService::new("mount", dirs, Value::Null);
    if args.login.no_at_login {
        return service.remove();
    }
    let kept = args.keep.kept(args.ttl.0, args.grace.0)?;
    let server = server_url(args)?;
    let clients = clients(args, server.as_deref())?;
    // A mount of a server's locks stores no state, so the warning that no state is stored does not
    // apply to it.
    let warning = kept.warning().filter(|_| server.is_none());
    if args.login.at_login {
        warn(warning);
        return service.install::<MountArgs>();
    }
    if args.background && !args.detached {
        warn(warning);
        return background::start(kept.dir());
    }
    if args.detached {
        background::take_name();
    } else {
        warn(warning);
    }
    let done = serve(args, clients, &kept, server.as_deref());
    if let (true, Err(CliError::Said(_, sentence))) = (args.detached, &done) {
        // In a daemon in the background, the error goes to standard output, which the parent
        // process prints for the user. `main` also writes the error to the daemon's log.
        output::line(sentence)?;
    }
    done
}

/// Returns the URL of the server whose locks are mounted: the one that `--server` or `--profile`
/// names, or else the one in the environment or in the configuration file.
fn server_url(args: &MountArgs) -> CliResult<Option<String>> {
    if args.server.is_some() {
        return Ok(args.server.clone());
    }
    let Some(Sourced { value: url, source }) = args.key.default_server()? else { return Ok(None) };
    let engine_here = args.listen.is_some() || args.keep.is_said();
    if engine_here && args.key.profile_argument().is_some() {
        return Err(CliError::usage(
            "--listen, --state and --data are for an engine in this process, and --profile names a \
             server; leave either out",
        ));
    }
    // The message about the source is left out in a background daemon, because its parent
    // process has printed the same message already.
    if !args.detached {
        output::say(&if engine_here {
            format!(
                "the server {url} ({source}) is ignored: --listen, --state and --data are for an \
                 engine in this process; pass --server URL to mount the locks of a server"
            )
        } else {
            format!("mounting the locks of {url}, which {source} names")
        });
    }
    Ok((!engine_here).then_some(url))
}

fn serve(
    args: &MountArgs,
    clients: Vec<ClientId>,
    kept: &StorageChoice,
    server: Option<&str>,
) -> CliResult {
    let (send, news) = mpsc::channel();
    let sender = |news: fn() -> MountEvent| {
        let send = send.clone();
        // The send fails only if the main thread has ended, and then it waits for no more events.
        move || drop(send.send(news()))
    };
    let http = listening(args, &clients)?;
    let gate = http.as_ref().map(serve_command::authenticator).transpose()?;
    // A mount in a terminal ends with it, unless the mount has a server of its own.
    let reloads = args.listen.is_some() || server.is_some() && !io::stdin().is_terminal();
    let hangup =
        if reloads { Hangup::Calls(Box::new(sender(|| MountEvent::Reload))) } else { Hangup::Ends };
    signals::on_end(hangup, sender(|| MountEvent::End))
        .map_err(|error| CliError::system("signals can't be waited for", &error))?;
    for dir in &args.dirs {
        lock_fs::check(dir, args.nonempty).map_err(|error| refused(&error))?;
        if let Some(warning) = check(dir, args.inside_synced_folder)? {
            print_message(args, &warning)?;
        }
    }
    if let Some(url) = server {
        return serve_remote(args, &clients, url, &send, &news);
    }
    #[cfg(target_os = "linux")]
    if let Some(ended) = kept.dir().and_then(crate::cli::mount::daemon_process::end_detached_daemon)
    {
        print_message(args, &ended)?;
    }
    let decider = kept.open()?;
    let failed = send.clone();
    decider.on_failure(move |why| drop(failed.send(MountEvent::Failed(why))));
    let locks = decider.locks();
    let each = clients.into_iter().map(|client| (client, locks.clone()));
    let log = args.log_locks.start(&locks, args.detached)?;
    let ended = mount_all(args, each).and_then(|mounts| {
        let server = http
            .zip(gate)
            .map(|(config, gate)| serve_command::start(locks.clone(), &config, gate))
            .transpose()?;
        let reload = || {
            if let Some(server) = &server {
                serve_command::reload(server, || Ok(()));
            }
        };
        let ended = until_the_end(args, &mounts, &reload, &send, &news);
        server.into_iter().for_each(HttpServer::drain);
        ended.and(unmount_all(&mounts))
    });
    drop(log);
    ended.and(decider.close())
}

/// Serves mounts of a server's locks. Each mount has a session of its own, so that the loss of a
/// session affects one mount only.
fn serve_remote(
    args: &MountArgs,
    clients: &[ClientId],
    url: &str,
    send: &Sender<MountEvent>,
    news: &Receiver<MountEvent>,
) -> CliResult {
    let credentials = args.key.credentials(url)?;
    let access = credentials.read()?;
    let (ttl, grace) = (args.ttl.0, args.grace.0);
    let connect = |client: &ClientId| {
        let terms = Terms { client: client.clone(), ttl, grace };
        credential_options::connect(&access, Some(terms))
    };
    let backends: Vec<Arc<Remote>> = clients.iter().map(connect).collect::<CliResult<_>>()?;
    let locks = backends.iter().map(|backend| Arc::clone(backend) as Arc<dyn LockService>);
    let served = mount_all(args, clients.iter().cloned().zip(locks)).and_then(|mounts| {
        until_the_end(args, &mounts, &|| renew_keys(&credentials, &backends), send, news)?;
        unmount_all(&mounts)
    });
    for backend in &backends {
        backend.close();
    }
    served
}

/// Reads the token and the certificates for the server again, and prints the result.
fn renew_keys(credentials: &ServerCredentials, backends: &[Arc<Remote>]) {
    let renewed = match credentials.read() {
        Ok(access) => {
            let mut each = backends.iter().map(|backend| backend.renew_keys(&access));
            each.try_for_each(|renewed| renewed.map_err(|error| error.to_string()))
        }
        Err(CliError::Said(_, why)) => Err(why),
        Err(CliError::Silent(_) | CliError::Pipe) => Err("they can't be read".to_owned()),
    };
    match renewed {
        Ok(()) => output::say("the token and the certificates for the server were read again"),
        Err(why) => {
            output::say(&format!("the token and the certificates stay as they were: {why}"));
        }
    }
}

/// Returns the configuration of the HTTP server beside the mounts; `None` without `--listen`. The
/// server never lets a user of this machine do more than the mounts let that user do.
fn listening(args: &MountArgs, clients: &[ClientId]) -> CliResult<Option<HttpConfig>> {
    let Some(ListenArg { tcp, socket }) = args.listen.clone() else { return Ok(None) };
    let at_socket = |path| {
        let each = args.dirs.iter().zip(clients);
        let mounts: Vec<_> =
            each.map(|(dir, client)| config(args, dir.clone(), client.clone())).collect();
        let hosts = clients.to_vec();
        Listen::Unix(path, Arc::new(move |peer| grant_of_peer(&mounts, &hosts, peer)))
    };
    let listen = tcp.map(Listen::Tcp).into_iter().chain(socket.map(at_socket)).collect();
    let config = args.access.config(listen, args.ttl.0, args.grace.0)?;
    if let (Some(address), false) = (tcp, config.credentials.identify()) {
        return Err(CliError::usage(format!(
            "every user of this machine could release everybody's locks by {address}; say who may \
             ask by --tokens or --client-ca, or name a Unix socket by --listen unix:PATH, where a \
             user may do what it may do by the mount"
        )));
    }
    Ok(Some(config))
}

/// Returns the permissions of a user of this machine who connects to the Unix socket of `--listen`;
/// `None` if no mount serves that user. A user who may steal live locks may ignore the permission
/// bits of locks.
fn grant_of_peer(mounts: &[MountConfig], hosts: &[ClientId], peer: &PeerUser) -> Option<Grant> {
    let mut grant = lock_fs::grant_of_user(mounts, peer.uid)?;
    if !grant.may_steal_all() {
        let (uid, groups) = (peer.uid, peer.groups.clone());
        grant.user = Some(Arc::new(LocalUser { uid, groups, hosts: hosts.to_vec() }));
    }
    Some(grant)
}

/// Mounts all directories. If one of them can't be mounted, those that were mounted before it are
/// unmounted again.
fn mount_all(
    args: &MountArgs,
    each: impl Iterator<Item = (ClientId, Arc<dyn LockService>)>,
) -> CliResult<Vec<Mounted>> {
    let mut mounts = Vec::new();
    for (dir, (client, locks)) in args.dirs.iter().zip(each) {
        let config = config(args, dir.clone(), client);
        let mounted = lock_fs::mount(&locks, &config).map_err(|error| refused(&error))?;
        if mounted.made_dir() {
            print_message(args, &format!("made the directory {}", mounted.dir().display()))?;
        }
        let (dir, client) = (mounted.dir().to_string_lossy(), config.client.as_str());
        let (ttl, grace) = (config.ttl.span(), config.grace.span());
        let said = format!("latchfs: mounted {dir} (client {client}, ttl {ttl}, grace {grace})");
        if args.detached {
            output::line(&said)?;
        } else {
            output::announce(&said)?;
        }
        log::info!(dir = &*dir, client; "mounted");
        mounts.push(mounted);
    }
    Ok(mounts)
}

/// Prints a message. The standard error of a daemon in the background is its log, so there the
/// message goes to standard output, from which the parent process reads.
fn print_message(args: &MountArgs, said: &str) -> CliResult {
    if args.detached {
        return output::line(&format!("latchfs: {said}"));
    }
    output::say(said);
    Ok(())
}

/// Waits until a signal requests the end, all mounts have ended, or the engine has failed.
fn until_the_end(
    args: &MountArgs,
    mounts: &[Mounted],
    reload: &dyn Fn(),
    send: &Sender<MountEvent>,
    news: &Receiver<MountEvent>,
) -> CliResult {
    for mounted in mounts {
        let send = send.clone();
        mounted.on_end(move || drop(send.send(MountEvent::Gone)));
    }
    if args.detached {
        background::ready()?;
    }
    background::notify_manager();
    let mut left = mounts.len();
    while left > 0 {
        match news.recv() {
            Ok(MountEvent::Gone) => left -= 1,
            Ok(MountEvent::Reload) => reload(),
            Ok(MountEvent::Failed(why)) => return Err(storage_options::failed(&why)),
            Ok(MountEvent::End) | Err(_) => break,
        }
    }
    Ok(())
}

/// Unmounts all directories, even if one fails, and returns the first failure.
fn unmount_all(mounts: &[Mounted]) -> CliResult {
    let mut failed = Ok(());
    for mounted in mounts {
        let dir = mounted.dir().display();
        match mounted.unmount() {
            Ok(Unmounted::Now(Gone::Detached)) => {
                log::warn!("{dir} was busy; programs that have files open there get errors now");
            }
            Ok(Unmounted::Now(Gone::Clean) | Unmounted::Before) => {
                log::info!(dir = &*mounted.dir().to_string_lossy(); "unmounted");
            }
            Err(error) => {
                failed = failed.and(Err(CliError::unavailable(format!(
                    "{dir} can't be unmounted: {}; try 'latchfs umount {dir}'",
                    said(&error)
                ))));
            }
        }
    }
    failed
}

fn config(args: &MountArgs, dir: PathBuf, client: ClientId) -> MountConfig {
    MountConfig {
        dir,
        client,
        owner: match args.owner {
            OwnerArg::Host => ClientScope::Host,
            OwnerArg::User => ClientScope::User,
            OwnerArg::Session => ClientScope::Session,
        },
        ttl: args.ttl.0,
        grace: args.grace.0,
        content: match args.content {
            ContentArg::Status => ReadContent::Status,
            ContentArg::Note => ReadContent::Note,
        },
        hold: match args.hold {
            HoldArg::Renewal => HoldBy::Renewal,
            HoldArg::Session => HoldBy::Session,
        },
        nonempty: args.nonempty,
        share: args.access.share(),
        users: match () {
            () if args.allow_other => Users::All,
            () if args.no_allow_other => Users::Mounter,
            () if is_root() => Users::All,
            () => Users::Mounter,
        },
    }
}

/// Returns the client of each mount, one for each DIR argument.
fn clients(args: &MountArgs, server: Option<&str>) -> CliResult<Vec<ClientId>> {
    let (dirs, clients) = (args.dirs.len(), args.clients.len());
    match args.clients.as_slice() {
        [] => {
            let credentials = server.map(|url| args.key.credentials(url)).transpose()?;
            let client = credentials.and_then(|found| found.client);
            Ok(vec![client.map_or_else(host, |client| Ok(client.value))?; dirs])
        }
        [one] => Ok(vec![one.clone(); dirs]),
        each if clients == dirs => Ok(each.to_vec()),
        _ => Err(CliError::usage(format!(
            "{clients} times --client for {dirs} directories; give one for all, or one for each"
        ))),
    }
}

pub(in crate::cli) fn refused(error: &MountError) -> CliError {
    let exit = match error {
        MountError::DeviceDenied | MountError::AllowOther => Exit::Denied,
        _ => Exit::Unavailable,
    };
    CliError::Said(exit, error.to_string())
}

/// Refuses a mount point that a sync tool would carry to other machines, unless that is wanted.
/// Returns a warning instead for a system service of root: its path is fixed, and nobody would see
/// why it is gone after the next boot.
pub(in crate::cli) fn check(dir: &Path, is_wanted: bool) -> CliResult<Option<String>> {
    let real = mountinfo::resolve(dir)
        .map_err(|error| CliError::system(&format!("{} can't be found", dir.display()), &error))?;
    let Some(mark) = synced_by(&real, own_uid()).filter(|_| !is_wanted) else {
        return Ok(None);
    };
    let says = format!(
        "{} lies in a folder of a sync tool: {mark}. There it becomes files, and what happens to \
         them comes back as operations here; mount outside of that folder, for example at \
         ~/locks, or pass --inside-synced-folder",
        real.display()
    );
    if is_root() && std::env::var_os("NOTIFY_SOCKET").is_some() {
        return Ok(Some(says));
    }
    Err(CliError::usage(says))
}
