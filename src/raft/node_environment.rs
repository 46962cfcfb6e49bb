//! The environment of a node: the clocks and the random numbers of its machine, and how long its
//! requests may take. A simulation replaces all of it.
//!
//! The addresses of a node: for its peers, and for clients.
//!
//! openraft stores one string for each node. That of a lone node is empty; that of a node with
//! peers has its peer address, the URL of its server, its name and the newest version of the
//! encoding that it knows, separated by spaces.
//!
//! A timeout on openraft's runtime.
//!
//! The name of a cluster, which its operator declares on each node. A node joins only a cluster of
//! the same name.
//!
//! The cluster version: the version of the encoding in which the nodes of a cluster write entries,
//! snapshots and calls.
//!
//! It is part of the replicated state. Each node says in its address the newest version that it
//! knows, and the leader raises the cluster version by an entry when all members know the next one
//! ([`Proposal::Raise`](crate::raft::store::snapshot::Proposal::Raise)). It is never lowered.

use crate::base;
use crate::engine::codec::state_codec::{
    Codec, Decoder, Encoder, Malformed, known_version, oldest_version,
};
use crate::raft::store::data_dir::{DataError, PeerError};
use crate::raft::store::snapshot::Leader;
use crate::raft::write::engine_clock::EngineClock;
use crate::storage::atomic_file::{Durable, replace};
use crate::time;
use crate::time::{Span, Time};
use openraft::RaftTypeConfig;
use openraft::impls::BasicNode;
use openraft::type_config::TypeConfigExt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::{fmt, io};

/// The clocks and the random numbers of a machine.
pub trait NodeEnvironment: Send + Sync + 'static {
    /// Reads the steady clock, which never jumps, and which stands still while the machine sleeps.
    fn steady_now(&self) -> Time;

    /// Reads the boot clock, which continues while the machine sleeps.
    fn boot_now(&self) -> Time;

    /// Returns a random duration between half of `span` and `span`.
    fn jittered(&self, span: Span) -> Span;

    /// Returns the engine time with which a leader, whose engine clock is `clock`, stamps an entry
    /// now.
    fn stamp(&self, _: Leader, clock: EngineClock) -> Time {
        clock.at(self.steady_now())
    }

    /// Returns how long requests may take.
    fn timeouts(&self) -> RequestTimeouts {
        RequestTimeouts::default()
    }
}

/// The timeouts of a client's request, and of the calls to other nodes that the request causes.
#[derive(Debug, Clone, Copy)]
pub struct RequestTimeouts {
    /// How long a client's request may take until it is answered: a user who waits longer assumes
    /// that the program hangs.
    pub answer: Span,
    /// Timeout of one call to the leader: shorter than the deadline of an answer, so that there is
    /// time to call the next leader.
    pub leader_call: Span,
    /// A node without contact to a leader or a quorum for longer than this has lost its quorum: an
    /// election takes less time.
    pub quorum_lost: Span,
    /// Deadline of an answer on a node that has lost its quorum: enough for three heartbeats on a
    /// local network, in case contact is just coming back.
    pub without_quorum: Span,
    /// How long a new leader waits for a quorum to confirm that it leads, before it retries.
    pub barrier: Span,
}

impl Default for RequestTimeouts {
    fn default() -> Self {
        Self {
            answer: Span::from_secs(2),
            leader_call: Span::from_millis(1_500),
            quorum_lost: Span::from_secs(2),
            without_quorum: Span::from_millis(300),
            barrier: Span::from_millis(500),
        }
    }
}

/// The environment of a real machine.
pub(super) struct SystemEnvironment;

impl NodeEnvironment for SystemEnvironment {
    fn steady_now(&self) -> Time {
        time::steady_now()
    }

    fn boot_now(&self) -> Time {
        time::boot_now()
    }

    fn jittered(&self, span: Span) -> Span {
        base::jittered(span)
    }
}

/// The maximum length in bytes of a node's peer address, of its URL and of its name. A host name
/// has at most 253 bytes.
const PART_BYTES_MAX: usize = 300;

/// The addresses and the name of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// `HOST:PORT` of the node for its peers.
    pub(super) address: Arc<str>,
    /// The URL of the node's server for clients.
    pub(super) url: Arc<str>,
    /// The name of the node, for display only.
    pub(super) name: Arc<str>,
    /// The newest version of the encoding that the node knows.
    pub(super) version: u8,
}

impl NodeAddress {
    /// Returns an address of this node made of these parts, or `None` if a part is empty, too long
    /// or contains whitespace, or `address` is not `HOST:PORT`.
    pub(super) fn new(address: &str, url: &str, name: &str) -> Option<Self> {
        let is_word = |text: &&str| {
            let sound = |c: char| !c.is_whitespace() && !c.is_control();
            !text.is_empty() && text.len() <= PART_BYTES_MAX && text.chars().all(sound)
        };
        let sound = [address, url, name].iter().all(is_word) && host_and_port(address).is_some();
        let version = known_version();
        sound.then(|| Self { address: address.into(), url: url.into(), name: name.into(), version })
    }

    /// Parses the string that openraft stores for a node. Returns `None` for a lone node, whose
    /// string is empty.
    pub(super) fn of(node: &BasicNode) -> Option<Self> {
        let mut parts = node.addr.split(' ');
        let (address, url, name) = (parts.next()?, parts.next()?, parts.next()?);
        let version = parts.next()?.parse().ok()?;
        let of = Self::new(address, url, name).filter(|_| parts.next().is_none());
        of.map(|of| Self { version, ..of })
    }

    /// Returns the node as openraft stores it.
    pub(super) fn to_node(&self) -> BasicNode {
        BasicNode { addr: self.to_string() }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.address, self.url, self.name, self.version)
    }
}

impl Codec for NodeAddress {
    fn put(&self, out: &mut Encoder) {
        self.address.put(out);
        self.url.put(out);
        self.name.put(out);
        self.version.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (address, url, name): (Arc<str>, Arc<str>, Arc<str>) =
            (Codec::take(from)?, Codec::take(from)?, Codec::take(from)?);
        let version = u8::take(from)?;
        let of = Self::new(&address, &url, &name).ok_or(Malformed)?;
        Ok(Self { version, ..of })
    }
}

/// Splits `HOST:PORT` into its parts, without the brackets of an IPv6 address.
pub(super) fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port != 0)?;
    // An IPv6 address must be in brackets: otherwise its last group could be the port.
    let is_unclear = bare.len() == host.len() && host.contains(':');
    (!bare.is_empty() && !is_unclear).then_some((bare, port))
}

/// The error of a future that has not completed in time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Elapsed;

/// Returns the output of a future, or an error if it takes longer than `patience`. Unlike
/// openraft's own timeout it also accepts a future that is not `Send`.
pub(super) async fn timeout<C: RaftTypeConfig, F: Future>(
    patience: Span,
    future: F,
) -> Result<F::Output, Elapsed> {
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = C::sleep(patience.as_duration()) => Err(Elapsed),
    }
}

/// The maximum length of a name, as of a label in DNS.
const NAME_BYTES_MAX: usize = 63;

/// The name of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterName(Arc<str>);

impl ClusterName {
    /// Returns the name, or `None` if it is not 1 to 63 ASCII letters, digits, `-`, `_` and `.`.
    pub fn parse(text: &str) -> Option<Self> {
        let is_sound = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
        (fits && text.bytes().all(is_sound)).then(|| Self(text.into()))
    }

    /// Records the name in a data directory. Fails if the directory has another one.
    pub(super) fn keep(&self, dir: &Path) -> Result<(), DataError> {
        let file = dir.join("cluster-name");
        match std::fs::read_to_string(&file) {
            Ok(known) if known.trim_end() == &*self.0 => Ok(()),
            Ok(known) => Err(PeerError::Named {
                dir: dir.to_path_buf(),
                name: known.trim_end().escape_debug().to_string(),
                given: self.to_string(),
            }
            .into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("{self}\n");
                let written = replace(&file, &[text.as_bytes()], Durable::Yes);
                written.map(drop).map_err(|error| DataError::io(&file, error))
            }
            Err(error) => Err(DataError::io(&file, error)),
        }
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns why a node that wants to join a cluster of the name `wanted` is not let into one of the
/// name `own`; `None` if it is.
pub(super) fn refusal(wanted: Option<&ClusterName>, own: Option<&ClusterName>) -> Option<String> {
    match (wanted, own) {
        _ if wanted == own => None,
        (Some(wanted), Some(own)) => {
            Some(format!("its cluster is named '{own}' and not '{wanted}'; see --cluster-name"))
        }
        (Some(wanted), None) => Some(format!(
            "its cluster has no name; start its nodes with --cluster-name {wanted} as well"
        )),
        (None, Some(own)) => {
            Some(format!("its cluster is named '{own}'; join it by --cluster-name {own}"))
        }
        (None, None) => None,
    }
}

/// The highest cluster version that a node has heard of, by an entry, a snapshot or a call. All
/// clones share one number.
#[derive(Debug, Clone)]
pub struct ClusterVersion(Arc<AtomicU8>);

impl ClusterVersion {
    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::SeqCst)
    }

    /// Notes that the cluster has this version, or a newer one.
    pub(crate) fn observe(&self, version: u8) {
        self.0.fetch_max(version.min(known_version()), Ordering::SeqCst);
    }
}

impl Default for ClusterVersion {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(oldest_version())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_address_is_read_back() {
        let station =
            NodeAddress::new("10.0.0.1:7100", "http://10.0.0.1:8080", "box").expect("sound");
        assert_eq!(NodeAddress::of(&station.to_node()), Some(station.clone()));
        let mut bytes = Encoder::new(1);
        station.put(&mut bytes);
        assert_eq!(NodeAddress::take(&mut Decoder::new(1, &bytes)), Ok(station));
        assert_eq!(NodeAddress::of(&BasicNode::default()), None);
        assert_eq!(NodeAddress::of(&BasicNode { addr: "a:1 b c".to_owned() }), None);
        assert_eq!(NodeAddress::of(&BasicNode { addr: "a:1 b c 1 d".to_owned() }), None);
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        assert_eq!(host_and_port("box.local:7100"), Some(("box.local", 7100)));
        assert_eq!(host_and_port("[::1]:7100"), Some(("::1", 7100)));
        for wrong in ["", "box", ":7100", "box:", "box:0", "::1", "box:70000"] {
            assert_eq!(host_and_port(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn each_part_of_an_address_has_a_longest_length() {
        let (most, over) = ("n".repeat(PART_BYTES_MAX), "n".repeat(PART_BYTES_MAX + 1));
        let of = |url: &str, name: &str| NodeAddress::new("box:7100", url, name).is_some();
        assert_eq!([of(&most, &most), of(&over, "n"), of("n", &over)], [true, false, false]);
    }
}

#[cfg(test)]
mod cluster_name_tests {
    use super::*;

    #[test]
    fn names_are_short_words() {
        for sound in ["prod", "a", "eu-1.locks_2", &"x".repeat(NAME_BYTES_MAX)] {
            assert!(ClusterName::parse(sound).is_some(), "{sound}");
        }
        for bad in ["", "two words", "a/b", "ä", "a\n", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert_eq!(ClusterName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_equal_names_join() {
        let (prod, test) = (ClusterName::parse("prod"), ClusterName::parse("test"));
        for (wanted, own, joins) in [
            (&None, &None, true),
            (&prod, &prod, true),
            (&prod, &test, false),
            (&prod, &None, false),
            (&None, &prod, false),
        ] {
            assert_eq!(
                refusal(wanted.as_ref(), own.as_ref()).is_none(),
                joins,
                "{wanted:?} {own:?}"
            );
        }
    }
}
