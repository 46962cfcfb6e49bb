//! The invitations of a server and the devices that have joined it: what the requests of
//! `handlers::devices` share.
//!
//! Invitations are in memory, so that a restart ends them. The devices are remembered by the engine
//! before a device is told that it has joined, or its remover that it is gone. Each node admits the
//! devices that its own engine remembers, and looks again when one of their names has an event.

use super::bodies::problem::{HandlerResult, Problem};
use super::ca::{node_secrets, sign_device};
use crate::auth::Authenticator;
use crate::engine::{
    Acquire, ClientId, Event, EventKind, Forget, Grace, Handover, LeaseKey, LeaseTerms, LockName,
    LockView, Op, Outcome, Ownership, Reason, RefusalKind, Release, Ttl,
};
use crate::home::devices::{
    DEVICES_MAX, Device, DeviceError, DeviceList, IssuedCertificate, is_device_name,
};
use crate::home::invitations::{
    ConfirmedDevice, INVITATION_SPAN, InvitationKind, InvitationStage, Invitations, JoinHello,
};
use crate::home::messages::{InviteResponse, NodeSecrets};
use crate::net::certificates::CertSerial;
use crate::service::backend_status::Member;
use crate::service::{
    List, ListedNames, LockService, RequestError, Retry, Unavailable, scoped_views,
};
use crate::time::{Span, Time, Wall, boot_now};
use axum::http::StatusCode;
use common::task::block_on;
use parking_lot::Mutex;
use rand_core::OsRng;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

/// The port that a machine joins unless it is told another one.
const PORT: u16 = 8443;

/// For how long nobody else changes a device that a node changes and then dies.
const CHANGE_SPAN: Span = Span::from_secs(5);

/// The shortest time between two looks at the events of all locks.
const EVENTS_PAUSE: Duration = Duration::from_secs(1);

/// The number of events that are read at once.
const EVENTS_BATCH: usize = 1_000;

/// The longest time after which a waiting request looks at the clock: tokio's timers stand still
/// while the machine sleeps.
pub(super) const CLOCK_CHECK: Duration = Duration::from_secs(5);

/// The beginning of the names by which the engine remembers devices. Each has the serials of its
/// certificates as its handover.
const DEVICE_PREFIX: &str = ".latchfs/devices/";

pub(super) struct Home {
    dir: PathBuf,
    /// The certificate of the CA (PEM).
    ca: String,
    /// What another machine is told to join.
    host: String,
    locks: Arc<dyn LockService>,
    gate: Arc<Authenticator>,
    pub(super) invitations: Mutex<Invitations>,
    /// Notified when an invitation has ended, or is used.
    pub(super) changed: watch::Sender<()>,
    /// Locked while the devices that the engine remembers become those that are admitted.
    refreshing: tokio::sync::Mutex<()>,
}

/// What a machine gets that has joined.
pub(super) enum JoinedMachine {
    /// A device, with its certificate and the URLs of all nodes.
    Device(IssuedCertificate, Vec<String>),
    Node(NodeSecrets),
}

/// Returns the problem of a device that can't have its name, or for which there is no room.
pub(super) fn refused_name(error: &DeviceError) -> Problem {
    Problem::plain(StatusCode::CONFLICT, error.to_string())
}

impl Home {
    /// Opens the directory of a certificate authority, and admits the devices that the engine
    /// remembers.
    pub(super) fn open(
        dir: &Path,
        port: Option<u16>,
        locks: Arc<dyn LockService>,
        gate: Arc<Authenticator>,
    ) -> io::Result<Self> {
        let ca = fs::read_to_string(dir.join("ca.pem"))?;
        let host = own_name();
        let host = match port {
            None | Some(PORT) => host,
            Some(port) => format!("{host}:{port}"),
        };
        let (dir, invitations) = (dir.to_owned(), Mutex::default());
        let (changed, refreshing) = (watch::channel(()).0, tokio::sync::Mutex::default());
        let home = Self { dir, ca, host, locks, gate, invitations, changed, refreshing };
        let known = block_on(home.known_devices());
        home.gate.set_devices(known.map_err(|why| io::Error::other(why.to_string()))?);
        Ok(home)
    }

    /// Returns the certificate of the CA (PEM).
    pub(super) fn ca(&self) -> &str {
        &self.ca
    }

    /// Returns the devices that have joined.
    pub(super) fn devices(&self) -> Arc<DeviceList> {
        self.gate.devices().unwrap_or_default()
    }

    /// Checks whether a device may join under this name. The name of the server is that of its own
    /// users.
    pub(super) fn check_name(&self, name: &str) -> Result<(), DeviceError> {
        self.devices().check(name)?;
        let is_own = name.eq_ignore_ascii_case(&own_name());
        if is_own { Err(DeviceError::Taken(name.to_owned())) } else { Ok(()) }
    }

    /// Opens an invitation. `None`: there are as many as there may be.
    pub(super) fn invite(
        &self,
        now: Time,
        kind: InvitationKind,
        name: Option<String>,
    ) -> Option<InviteResponse> {
        let (id, code) = self.invitations.lock().invite(now, kind, name, &mut OsRng)?;
        let (slot, lasts_ms) = (code.slot, INVITATION_SPAN.as_millis());
        let (code, host) = (code.to_string(), self.host.clone());
        Some(InviteResponse { slot, id, kind, code, host, lasts_ms })
    }

    /// Answers the first message of a device.
    pub(super) fn begin(&self, now: Time, hello: JoinHello) -> HandlerResult<(u64, Vec<u8>)> {
        if !is_device_name(&hello.name) {
            return Err(refused_name(&DeviceError::Name));
        }
        let begun = self.invitations.lock().begin(now, hello, &mut OsRng);
        begun.map_err(|_| Problem::invalid("this is no message of a machine that joins"))
    }

    /// Registers a machine that has confirmed the code of a slot, and ends its invitation.
    pub(super) async fn register(
        self: Arc<Self>,
        slot: u8,
        device: ConfirmedDevice,
    ) -> HandlerResult<JoinedMachine> {
        self.changed.send_replace(());
        let joined = match device.kind {
            InvitationKind::Device => self.add(&device).await,
            InvitationKind::Node => self.add_node(slot, &device).await.map(JoinedMachine::Node),
        };
        self.invitations.lock().finish(slot, &device, joined.is_ok());
        self.changed.send_replace(());
        joined
    }

    async fn add(&self, device: &ConfirmedDevice) -> HandlerResult<JoinedMachine> {
        let name = &device.name;
        self.check_name(name).map_err(|error| refused_name(&error))?;
        let issued = self.sign(name, &device.request)?;
        let joins = |known: Option<Device>| match known {
            None => Ok(Device::new(&issued, Wall::now())),
            Some(_) => Err(refused_name(&DeviceError::Taken(name.clone()))),
        };
        let urls = self.nodes().await?.iter().map(|node| node.url.to_string()).collect();
        self.change(name, true, joins).await?;
        Ok(JoinedMachine::Device(issued, urls))
    }

    /// Waits until a person has allowed a node, and returns what it gets.
    async fn add_node(&self, slot: u8, device: &ConfirmedDevice) -> HandlerResult<NodeSecrets> {
        let mut changed = self.changed.subscribe();
        loop {
            let state = self.invitations.lock().state(boot_now(), slot, device.invitation);
            let left = match state {
                Ok((left, InvitationStage::Asks(_))) => left,
                Ok((_, InvitationStage::Joins)) => break,
                Ok((_, InvitationStage::Open)) | Err(_) => {
                    let why = "nobody has allowed this machine to be a node; run 'latchfs invite \
                               --node' again";
                    return Err(Problem::of(RefusalKind::Denied, why));
                }
            };
            // Whichever ends the wait: the loop looks at the invitation again.
            tokio::select! {
                _ = changed.changed() => {}
                () = sleep(left.max(Span::from_millis(1)).as_duration().min(CLOCK_CHECK)) => {}
            }
        }
        let seeds = self.nodes().await?.iter().map(|node| node.address.to_string()).collect();
        node_secrets(&self.dir, seeds)
            .map_err(|error| Problem::plain(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
    }

    /// Returns all nodes of the server.
    async fn nodes(&self) -> HandlerResult<Vec<Member>> {
        let no_cluster = || Problem::invalid("this server has no log that others could share");
        let admin = self.locks.cluster_admin().ok_or_else(no_cluster)?;
        let nodes = admin.report(false).await?.nodes;
        Ok(nodes.into_iter().map(|node| node.member).collect())
    }

    /// Signs a new certificate for a device that has shown its present one.
    pub(super) async fn renew(
        &self,
        name: &str,
        asked_by: &CertSerial,
        request: &str,
    ) -> HandlerResult<IssuedCertificate> {
        let issued = self.sign(name, request)?;
        let renews = |known: Option<Device>| match known {
            Some(device) => device.renewed(asked_by, &issued).ok_or_else(|| unknown_device(name)),
            None => Err(unknown_device(name)),
        };
        self.change(name, false, renews).await?;
        Ok(issued)
    }

    /// Removes a device: its requests end, and it can make no others.
    pub(super) async fn remove(&self, name: &str) -> HandlerResult<()> {
        let own = name_of_device(name).ok_or_else(|| unknown_device(name))?;
        if !self.devices().has(name) {
            return Err(unknown_device(name));
        }
        self.decide(Op::Forget(Forget { name: own, by: server_client()? })).await?;
        self.refresh().await
    }

    /// Replaces a device by what `decide` makes of the present one, while no other node does so.
    async fn change(
        &self,
        name: &str,
        joins: bool,
        decide: impl FnOnce(Option<Device>) -> HandlerResult<Device>,
    ) -> HandlerResult<()> {
        let own = name_of_device(name).ok_or_else(|| refused_name(&DeviceError::Name))?;
        let ttl = Ttl::new(CHANGE_SPAN).map_err(|error| Problem::invalid(error.to_string()))?;
        let (client, term) = (server_client()?, LeaseTerms::Own(ttl, Grace::NONE));
        let hold = Ownership::Exclusive(None);
        let acquire = Acquire::new(own.clone(), client.clone(), term);
        let acquire = Acquire { hold, remember: joins, ..acquire };
        let Outcome::Granted(tenure) = self.decide(Op::Acquire(acquire)).await? else {
            return Err(busy_device());
        };
        let last = tenure.previous.as_ref().and_then(|previous| previous.last.as_ref());
        let known = last.and_then(|last| Device::parse(&last.handover.text));
        let decided = decide(known);
        let handover =
            decided.as_ref().ok().map(|device| Handover { text: device.text().into(), counter: 1 });
        let key = LeaseKey { name: own, client, token: Some(tenure.token) };
        let released = self.decide(Op::Release(Release { handover, ..Release::of(key) })).await;
        decided?;
        released?;
        self.refresh().await
    }

    async fn decide(&self, op: Op) -> HandlerResult<Outcome> {
        let answer = self.locks.submit(op.into(), Retry::Never).await?;
        answer.map_err(|refusal| match &*refusal.reason {
            Reason::Conflict(_) => busy_device(),
            _ => RequestError::Refused(refusal).into(),
        })
    }

    fn sign(&self, name: &str, request: &str) -> HandlerResult<IssuedCertificate> {
        sign_device(&self.dir, name, request)
            .map_err(|error| Problem::plain(StatusCode::BAD_REQUEST, error.to_string()))
    }

    /// Returns the devices that the engine of this node remembers.
    async fn known_devices(&self) -> Result<DeviceList, Unavailable> {
        let (prefix, limit) = (DEVICE_PREFIX.to_owned(), 2 * DEVICES_MAX);
        let query = List { prefix: prefix.clone(), after: None, limit };
        let known =
            scoped_views::known_list(&*self.locks, ListedNames::Remembered, vec![prefix], query)
                .await?;
        let handover = |view: &LockView| {
            let name = view.name.as_str().strip_prefix(DEVICE_PREFIX)?.to_owned();
            let last = view.previous.as_ref()?.last.as_ref()?;
            Some((name, Arc::clone(&last.handover.text)))
        };
        Ok(DeviceList::of(known.it.items.iter().filter_map(handover)))
    }

    /// Admits the devices that the engine of this node remembers now. An answer to a command comes
    /// once this engine has applied it.
    async fn refresh(&self) -> HandlerResult<()> {
        // One at a time: an older list never replaces a newer one.
        let _refreshing = self.refreshing.lock().await;
        self.gate.set_devices(self.known_devices().await?);
        Ok(())
    }

    /// Admits the devices that the engine of this node remembers from now on, in an endless loop:
    /// other nodes change them as well.
    pub(super) async fn follow(&self) {
        let (wake, mut watch) = (Arc::new(Notify::new()), self.locks.subscribe(None));
        let waker = Arc::clone(&wake);
        watch.wake_by(Arc::new(move || waker.notify_one()));
        // A device may have changed since the start of the server.
        let mut is_changed = true;
        loop {
            loop {
                let each = |_, event: &Event| is_changed |= is_of_device(event);
                let visit = watch.visit(EVENTS_BATCH, each);
                is_changed |= visit.has_gap;
                if !visit.more {
                    break;
                }
            }
            if is_changed {
                is_changed = self.refresh().await.is_err();
            }
            sleep(EVENTS_PAUSE).await;
            wake.notified().await;
        }
    }
}

/// Whether an event may come from a change of a device.
fn is_of_device(event: &Event) -> bool {
    match &event.what {
        EventKind::Ended { name, .. } | EventKind::Annotated { name, .. } => name.is_own(),
        _ => false,
    }
}

/// Returns the name by which the engine remembers a device; `None` if no device is named so.
fn name_of_device(name: &str) -> Option<LockName> {
    is_device_name(name).then(|| LockName::parse_own(&format!("{DEVICE_PREFIX}{name}")).ok())?
}

fn server_client() -> HandlerResult<ClientId> {
    ClientId::parse("latchfs").map_err(|error| Problem::invalid(error.to_string()))
}

fn busy_device() -> Problem {
    let why = "another request changes this device just now; try again";
    Problem::plain(StatusCode::SERVICE_UNAVAILABLE, why)
}

fn unknown_device(name: &str) -> Problem {
    let why = format!("there is no device '{name}'; 'latchfs devices' shows all");
    Problem::plain(StatusCode::NOT_FOUND, why)
}

/// Returns the host name of this machine.
fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
