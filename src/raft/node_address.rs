//! The addresses of a node: for its peers, and for clients.
//!
//! openraft stores one string for each node. That of a lone node is empty; that of a node with
//! peers has its peer address, the URL of its server, its name and the newest version of the
//! encoding that it knows, separated by spaces.

use crate::engine::codec::{Codec, Decoder, Encoder, Malformed, known_version};
use openraft::impls::BasicNode;
use std::fmt;
use std::sync::Arc;

/// The maximum length in bytes of a node's peer address, of its URL and of its name. A host name
/// has at most 253 bytes.
const PART_BYTES_MAX: usize = 300;

/// The addresses and the name of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeAddress {
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
