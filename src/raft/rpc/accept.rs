//! The RPC server: accepts connections from other nodes, and reads and answers their calls.
//!
//! The budget of connections that have not proved yet that a node opened them. It is apart from the
//! places of nodes, and a new connection is never refused: beyond the budget, the oldest one ends.
//!
//! A handshake takes one or two round trips, so that of a node is over long before a flood has
//! filled the budget after it.

use super::messages::{
    Envelope, RpcError, RpcRequest, RpcResponse, call_bytes_max, call_memory, decode_envelope,
    encode_answer,
};
use super::mutual_tls::{PeerCertificate, PeerTls};
use crate::base::said;
use crate::engine::codec::state_codec::{DecodeError, oldest_version};
use crate::net::connections::accept_until;
use crate::raft::node_environment::{ClusterName, refusal};
use crate::raft::rpc::mutual_tls::{named_in, put_name};
use crate::raft::store::snapshot::NodeId;
use crate::shares::{Identity, SharedQueue, SharedTable};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::future::{Future, pending};
use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

/// The highest number of simultaneous connections of nodes: enough for seven nodes with five each,
/// and for more that are still closing. Connections before the end of their handshake don't count.
const CONNECTIONS_MAX: usize = 256;
/// The highest number of simultaneous connections from one address.
const CONNECTIONS_OF_ONE_MAX: usize = CONNECTIONS_MAX / 2;
/// Timeout of a TLS handshake, which takes one or two round trips.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(60);

/// The maximum size of a connection's read buffer in bytes. It holds the part of a call that
/// arrives before its body is read.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// The memory in KiB for all calls that are read or handled at the same time, except snapshots:
/// room for one of the longest, or hundreds of ordinary ones. Other calls wait.
const CALLS_KIB_MAX: usize = 32 << 10;
/// How long a call waits for the memory that it needs before it is refused.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);
/// How long reading a call may take, plus a second per this many bytes of its length: nodes may be
/// connected by a slow link. [`FRAME_PATIENCE`] ends the calls of a node that is gone.
const BODY_PATIENCE: Duration = Duration::from_secs(2);
pub(in crate::raft) const BYTES_A_SECOND_MIN: u64 = 16 << 10;
/// How long no part of a call may arrive before the call is refused.
const FRAME_PATIENCE: Duration = Duration::from_secs(5);

/// A handler of calls from other nodes.
pub(in crate::raft) trait RpcHandler: Send + Sync + 'static {
    /// Returns the name of the cluster, if it has one.
    fn cluster_name(&self) -> Option<&ClusterName>;
    /// Whether the node with this certificate may make a call in the name that the call gives.
    fn admits(&self, envelope: &Envelope, certificate: &PeerCertificate) -> bool;
    /// Records that a connection or a call from this address was refused.
    fn refused(&self, address: IpAddr, why: &str);
    /// Handles the end of a connection on which the node `leader` has sent entries.
    fn leader_closed(self: Arc<Self>, leader: NodeId) -> impl Future<Output = ()> + Send;
    /// Handles a call, and returns its response.
    fn answer(
        self: Arc<Self>,
        envelope: Envelope,
    ) -> impl Future<Output = Result<RpcResponse, RpcError>> + Send;
}

/// Limits the memory of calls. A call holds a permit until it has been answered.
struct CallMemory {
    /// The free memory in KiB, one permit each.
    calls: Arc<Semaphore>,
    /// The right to read a snapshot, of which there is a single permit: one snapshot is read at a
    /// time.
    snapshots: Arc<Semaphore>,
}

impl CallMemory {
    fn new() -> Self {
        let (calls, snapshots) = (Semaphore::new(CALLS_KIB_MAX), Semaphore::new(1));
        Self { calls: Arc::new(calls), snapshots: Arc::new(snapshots) }
    }

    /// Waits for the memory that a call `name` of `bytes` bytes needs. Returns `None` if it does
    /// not become free in time.
    async fn take(&self, name: &str, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let (of, count) = match name {
            "snapshot" => (&self.snapshots, 1),
            _ => (&self.calls, kib(call_memory(name, bytes))),
        };
        let taken = timeout(ROOM_PATIENCE, Arc::clone(of).acquire_many_owned(count)).await;
        taken.ok()?.ok()
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}

/// Accepts connections for ever, and serves each in a task of its own.
pub(in crate::raft) async fn accept(
    listener: TcpListener,
    tls: PeerTls,
    who: Arc<impl RpcHandler>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            return log::error!("the peer port can't accept connections: {}", said(&error));
        }
    };
    let memory = Arc::new(CallMemory::new());
    let handshakes = Arc::new(Handshakes::default());
    let places = peer_places();
    accept_until(&listener, "a node", pending(), |(stream, address)| {
        let (tls, who, memory) = (tls.clone(), Arc::clone(&who), Arc::clone(&memory));
        let (from, places) = (Identity::of_address(address.ip()), places.clone());
        let handshake = handshakes.begin(&from);
        tokio::spawn(async move {
            let shaken = shake_hands(stream, &tls, handshake).await;
            let (stream, certificate) = match shaken {
                Ok(shaken) => shaken,
                Err(why) => return why.iter().for_each(|why| who.refused(address.ip(), why)),
            };
            match places.take(&from, 1) {
                Ok(place) => {
                    let caller = PeerCaller::new(address.ip(), certificate);
                    speak(stream, &caller, Arc::clone(&who), memory).await;
                    drop(place);
                    if let Some(leader) = caller.leader.get() {
                        who.leader_closed(*leader).await;
                    }
                }
                Err(full) => log::warn!("rejected a peer connection: {full}"),
            }
        });
    })
    .await;
}

/// Returns the table of the connections after the handshake.
fn peer_places() -> SharedTable {
    SharedTable::new("peer connections", CONNECTIONS_MAX, CONNECTIONS_OF_ONE_MAX)
}

/// Performs the handshake with a node. If it fails, returns the reason for which the peer is
/// refused, or `None` if it was only too slow.
async fn shake_hands(
    stream: TcpStream,
    tls: &PeerTls,
    mut handshake: Handshake,
) -> Result<(TlsStream<TcpStream>, PeerCertificate), Option<String>> {
    // Without TCP_NODELAY answers are only slower, so an error is ignored.
    let _ = stream.set_nodelay(true);
    let accepting = async {
        // Another node that checks whether this one still listens sends nothing.
        if stream.peek(&mut [0]).await? == 0 {
            return Ok(None);
        }
        tls.accepts().accept(stream).await.map(Some)
    };
    let shaken = tokio::select! {
        shaken = timeout(HANDSHAKE_PATIENCE, accepting) => shaken,
        () = handshake.crowded_out() => {
            log::debug!("a handshake was ended for newer ones");
            return Err(None);
        }
    };
    let stream = match shaken {
        Ok(Ok(Some(stream))) => stream,
        Ok(Ok(None)) => return Err(None),
        Ok(Err(error)) => return Err(Some(said(&error))),
        Err(_) => {
            log::debug!("a handshake took too long");
            return Err(None);
        }
    };
    match tls.check(stream.get_ref().1.peer_certificates()) {
        Ok(certificate) => Ok((stream, certificate)),
        Err(why) => Err(Some(why.to_owned())),
    }
}

/// The node at the other end of a connection.
struct PeerCaller {
    address: IpAddr,
    certificate: PeerCertificate,
    /// The id of the node, once it has sent entries as only a leader does.
    leader: OnceLock<NodeId>,
}

impl PeerCaller {
    fn new(address: IpAddr, certificate: PeerCertificate) -> Arc<Self> {
        Arc::new(Self { address, certificate, leader: OnceLock::new() })
    }
}

async fn speak<S>(
    stream: S,
    caller: &Arc<PeerCaller>,
    who: Arc<impl RpcHandler>,
    memory: Arc<CallMemory>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request| {
        let (who, memory, caller) = (Arc::clone(&who), Arc::clone(&memory), Arc::clone(caller));
        async move {
            if caller.certificate.is_refused() {
                let why = "the certificate is on the list of refused ones";
                who.refused(caller.address, why);
                return Err(why);
            }
            let named = who.cluster_name().cloned();
            let mut response = answer(request, &caller, who, &memory).await;
            put_name(response.headers_mut(), named.as_ref());
            Ok(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        log::debug!("a connection of a node ended: {error}");
    }
}

async fn answer(
    request: Request<Incoming>,
    caller: &PeerCaller,
    who: Arc<impl RpcHandler>,
    memory: &CallMemory,
) -> Response<Full<Bytes>> {
    let name = request.uri().path().strip_prefix("/raft/v1/").unwrap_or_default().to_owned();
    let bytes_max = call_bytes_max(&name).filter(|_| request.method() == Method::POST);
    let Some(bytes_max) = bytes_max else {
        let mut response = Response::new(Full::new(Bytes::from_static(
            b"nodes speak with each other here; see the server for locks\n",
        )));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let wanted = named_in(request.headers());
    // An answer has the version of its call.
    let mut version = oldest_version();
    let answer = match read(&name, request.into_body(), bytes_max, memory).await {
        // `_memory` is the memory permit of the call. It is kept until the call has been answered.
        Ok((envelope, _)) if !who.admits(&envelope, &caller.certificate) => {
            let why = format!("its certificate is not that of node {}", envelope.from);
            who.refused(caller.address, &why);
            Err(RpcError::Refused("the certificate is that of another node".into()))
        }
        Ok((envelope, _memory)) => {
            version = envelope.version;
            // A node that has no cluster yet wants to join one of its name.
            let is_new = envelope.cluster.is_none();
            let strange = is_new.then(|| refusal(wanted.as_ref(), who.cluster_name())).flatten();
            if let Some(why) = strange {
                return answered(version, &Err(RpcError::Refused(why.into())));
            }
            if let RpcRequest::Append(_) = envelope.call {
                caller.leader.get_or_init(|| envelope.from);
            }
            who.answer(envelope).await
        }
        Err(why) => Err(why),
    };
    answered(version, &answer)
}

fn answered(version: u8, answer: &Result<RpcResponse, RpcError>) -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from(encode_answer(version, answer))))
}

/// Reads a call. Checks its length and acquires its memory before it reads the body.
async fn read(
    name: &str,
    mut body: Incoming,
    bytes_max: usize,
    memory: &CallMemory,
) -> Result<(Envelope, OwnedSemaphorePermit), RpcError> {
    // Nodes always send the content length of a call.
    let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let length = length.filter(|length| *length <= bytes_max).ok_or(RpcError::Malformed)?;
    let Some(mut taken) = memory.take(name, length).await else {
        return Err(RpcError::Refused("too many calls are being read".into()));
    };
    let reading = async {
        let mut bytes = Vec::new();
        let no_memory = |_| RpcError::Refused("this node has not enough memory for it".into());
        bytes.try_reserve_exact(length).map_err(no_memory)?;
        let next = async |body: &mut Incoming| match timeout(FRAME_PATIENCE, body.frame()).await {
            Ok(frame) => frame.transpose().map_err(|_| RpcError::Malformed),
            Err(_) => Err(RpcError::Malformed),
        };
        while let Some(frame) = next(&mut body).await? {
            bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
        }
        Ok(bytes)
    };
    let patience = BODY_PATIENCE + Duration::from_secs(length as u64 / BYTES_A_SECOND_MIN);
    let bytes = timeout(patience, reading).await.map_err(|_| RpcError::Malformed)??;
    let envelope = decode_envelope(name, &bytes).map_err(not_decoded)?;
    drop(bytes);
    // Releases the part of the reserved memory that the decoded call does not need.
    let left = taken.num_permits().saturating_sub(kib(envelope.call.weight()) as usize);
    if name != "snapshot" {
        drop(taken.split(left));
    }
    Ok((envelope, taken))
}

/// Returns the error for a call that can't be decoded.
fn not_decoded(error: DecodeError) -> RpcError {
    match error {
        DecodeError::Version(unknown) => {
            RpcError::Refused(format!("the call has {unknown}; upgrade the older node").into())
        }
        DecodeError::Malformed => RpcError::Malformed,
    }
}

/// Maximum number of handshakes at a time, at some 20 KiB each.
const HANDSHAKES_MAX: usize = 256;
/// Maximum number of handshakes of one address.
const HANDSHAKES_OF_ONE_MAX: usize = HANDSHAKES_MAX / 2;

/// The connections whose handshake is not over. A new one beyond the limits ends an older one: the
/// entry that it replaces is dropped.
#[derive(Debug)]
pub(super) struct Handshakes(Mutex<SharedQueue<oneshot::Sender<()>>>);

/// A handshake that counts against the budget until this is dropped.
pub(super) struct Handshake {
    all: Arc<Handshakes>,
    lasts: oneshot::Receiver<()>,
}

impl Default for Handshakes {
    fn default() -> Self {
        let queue = SharedQueue::new("handshakes", HANDSHAKES_MAX, HANDSHAKES_OF_ONE_MAX);
        Self(Mutex::new(queue))
    }
}

impl Handshakes {
    /// Counts a new handshake, and ends the oldest one of its address, or of the address with the
    /// most, if there are too many.
    pub(super) fn begin(self: &Arc<Self>, from: &Identity) -> Handshake {
        let (lasting, lasts) = oneshot::channel();
        self.0.lock().push(from, lasting);
        Handshake { all: Arc::clone(self), lasts }
    }
}

impl Handshake {
    /// Waits until this handshake has to make room for a newer one.
    pub(super) async fn crowded_out(&mut self) {
        // The sender never sends, so the result is always an error.
        let _ = (&mut self.lasts).await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.lasts.close();
        self.all.0.lock().remove(oneshot::Sender::is_closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::rpc::messages::{RpcRequest, encode_envelope};
    use std::net::Ipv4Addr;

    #[test]
    fn a_call_of_another_version_is_refused_by_a_sentence_that_names_both() {
        let call = Envelope { version: 1, cluster: None, from: 1, to: 2, call: RpcRequest::Read };
        let mut bytes = encode_envelope(&call);
        bytes[0] = 9;
        let refused = decode_envelope("read", &bytes).map_err(not_decoded).map(drop);
        assert_eq!(
            refused.expect_err("another version").to_string(),
            "the call has version 9, and this latchfs knows version 1; upgrade the older node"
        );
    }

    #[test]
    fn one_address_leaves_half_of_the_peer_connections_to_others() {
        let places = peer_places();
        let [one, other, third] =
            [1, 2, 3].map(|host| Identity::of_address(Ipv4Addr::new(10, 0, 0, host).into()));
        let own = places.take(&one, CONNECTIONS_OF_ONE_MAX).expect("its share");
        assert!(places.take(&one, 1).is_err());
        let rest = places.take(&other, CONNECTIONS_MAX - CONNECTIONS_OF_ONE_MAX).expect("the rest");
        assert!(places.take(&third, 1).is_err());
        drop((own, rest));
        assert!(places.take(&third, 1).is_ok());
    }
}

#[cfg(test)]
mod handshakes_tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(number: u16) -> Identity {
        let [high, low] = number.to_be_bytes();
        Identity::of_address(Ipv4Addr::new(10, 0, high, low).into())
    }

    fn has_ended(handshake: &mut Handshake) -> bool {
        handshake.lasts.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn a_flood_of_one_address_ends_its_own_handshakes() {
        let all = Arc::new(Handshakes::default());
        let mut victim = all.begin(&address(2));
        let mut flood: Vec<_> = (0..1_000).map(|_| all.begin(&address(1))).collect();
        let lasting = flood.iter_mut().filter_map(|one| (!has_ended(one)).then_some(())).count();
        assert_eq!(lasting, HANDSHAKES_OF_ONE_MAX);
        assert!(!has_ended(&mut victim));
        // A node connects from the address of the flood.
        let mut node = all.begin(&address(1));
        let later: Vec<_> = (1..HANDSHAKES_OF_ONE_MAX).map(|_| all.begin(&address(1))).collect();
        assert!(!has_ended(&mut node), "many have come after it");
        drop((later, node, victim, flood));
        assert_eq!(all.0.lock().count(), 0);
    }

    #[test]
    fn a_flood_of_many_addresses_ends_the_oldest_handshakes() {
        let all = Arc::new(Handshakes::default());
        let mut flood: Vec<_> = (0..1_000).map(|number| all.begin(&address(number))).collect();
        let lasting = flood.iter_mut().filter_map(|one| (!has_ended(one)).then_some(())).count();
        assert_eq!(lasting, HANDSHAKES_MAX);
        let mut node = all.begin(&address(5_000));
        assert!(!has_ended(&mut node), "the newest one lasts");
        let twice = all.begin(&address(5_001));
        drop((twice, node, flood));
        assert_eq!(all.0.lock().count(), 0);
    }
}
