//! `serve`: the engine and the HTTP server, and the end of both. `mount --listen` begins the
//! same server beside its mounts.

use super::background;
use super::exit::{Done, Exit, Failure};
use super::mount::{Shown, open, state_dir, warn};
use super::out;
use super::signals;
use crate::engine::term::{GRACE_DEFAULT, TTL_DEFAULT};
use crate::engine::{Grace, Ttl};
use crate::http::{HttpConfig, Server, StartError};
use crate::locks::{Door, Locks};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};

/// The seed's port, for those who are on this machine.
const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8_080);

/// `serve`.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value_t = LISTEN_DEFAULT)]
    listen: SocketAddr,
    /// How long a lease lasts unrenewed, unless a client says otherwise
    #[arg(long, value_name = "DURATION", default_value_t = Shown(TTL_DEFAULT),
        value_parser = |text: &str| Ttl::parse(text).map(Shown))]
    ttl: Shown<Ttl>,
    /// How long after that only its holder may take it back
    #[arg(long, value_name = "DURATION", default_value_t = Shown(GRACE_DEFAULT),
        value_parser = |text: &str| Grace::parse(text).map(Shown))]
    grace: Shown<Grace>,
    /// Where to keep what a restart needs, or 'none' [default: /var/lib/latchfs as root, else
    /// latchfs in the XDG state directory]
    #[arg(long, value_name = "DIR")]
    state: Option<OsString>,
}

pub(super) fn run(args: &ServeArgs) -> Done {
    let state = state_dir(args.state.as_deref())?;
    warn(state.as_deref());
    let (send, end) = mpsc::channel();
    let on_signal = move || {
        // A failure to send means that nobody needs to know any more.
        let _ = send.send(());
    };
    signals::on_end(on_signal)
        .map_err(|error| Failure::system("signals can't be waited for", &error))?;
    let local = Arc::new(open(state.as_deref())?);
    let door: Arc<dyn Door> = Arc::clone(&local) as _;
    let config = HttpConfig { listen: args.listen, ttl: args.ttl.0, grace: args.grace.0 };
    let served = start(Locks::new(door), &config).and_then(|server| {
        background::notify_manager();
        // An error means that the thread of the signals is gone, and nothing would end it.
        let _ = end.recv();
        server.drain();
        Ok(())
    });
    let closed = local.close().map_err(|error| Failure::unavailable(error.to_string()));
    served.and(closed)
}

/// Begins a server, and says where it listens.
pub(super) fn start(locks: Locks, config: &HttpConfig) -> Done<Server> {
    let server = Server::start(locks, config).map_err(|error| refused(&error))?;
    let (ttl, grace) = (config.ttl.span(), config.grace.span());
    let address = server.address();
    out::line(&format!("latchfs: listening on http://{address} (ttl {ttl}, grace {grace})"))?;
    Ok(server)
}

fn refused(error: &StartError) -> Failure {
    Failure::Said(Exit::Unavailable, error.to_string())
}
