//! The bodies of the requests by which a machine joins, and by which the server's user invites and
//! removes devices, and of their answers: JSON.

use super::invitations::InvitationKind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The paths of the requests.
pub(crate) const JOIN: &str = "/devices/v1/join";
pub(crate) const CONFIRM: &str = "/devices/v1/confirm";
pub(crate) const RENEW: &str = "/devices/v1/renew";
pub(crate) const INVITE: &str = "/devices/v1/invite";
pub(crate) const INVITATIONS: &str = "/devices/v1/invitations";
pub(crate) const AWAIT: &str = "/devices/v1/await";
pub(crate) const ALLOW: &str = "/devices/v1/allow";
pub(crate) const REVOKE: &str = "/devices/v1/revoke";
pub(crate) const DEVICES: &str = "/devices/v1/devices";
pub(crate) const REMOVE: &str = "/devices/v1/remove";

/// Maximum length of a body: a certificate request of a long key, and what belongs to it.
pub(crate) const BODY_BYTES_MAX: usize = 8 << 10;

/// The first message of a device.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JoinRequest {
    pub(crate) slot: u8,
    pub(crate) name: String,
    /// The certificate request (PEM).
    pub(crate) request: String,
    #[serde(with = "base64_text")]
    pub(crate) message: Vec<u8>,
}

/// The answer to the first message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JoinResponse {
    pub(crate) attempt: u64,
    #[serde(with = "base64_text")]
    pub(crate) message: Vec<u8>,
    /// The certificate of the server's CA (PEM).
    pub(crate) ca: String,
}

/// The proof of a device that it knows the code.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfirmRequest {
    pub(crate) slot: u8,
    pub(crate) attempt: u64,
    #[serde(with = "base64_text")]
    pub(crate) confirmation: Vec<u8>,
}

/// The proof of the server, and what the machine gets: a device its certificate, a node what all
/// nodes share.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ConfirmResponse {
    /// The name that the device has now.
    pub(crate) name: String,
    #[serde(with = "base64_text")]
    pub(crate) confirmation: Vec<u8>,
    /// The certificate (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<String>,
    /// The URLs of all nodes, for a device.
    #[serde(default)]
    pub(crate) servers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<NodeSecrets>,
}

/// What all nodes of a server share. Only the two ends of a connection whose value the confirmation
/// of the node covers can read it.
#[derive(Serialize, Deserialize)]
pub(crate) struct NodeSecrets {
    /// The key of the CA (PEM).
    pub(crate) ca_key: String,
    /// The secret by which nodes know each other (PEM).
    pub(crate) peers: String,
    /// Where the nodes find each other.
    pub(crate) seeds: Vec<String>,
}

impl fmt::Debug for NodeSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSecrets").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

/// A request for an invitation or for a certificate, or for the removal of a device.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HomeRequest {
    /// The name of the device.
    pub(crate) name: Option<String>,
    /// The kind of an invitation.
    pub(crate) kind: InvitationKind,
    /// Whether a person allows a node.
    pub(crate) allow: bool,
    pub(crate) slot: Option<u8>,
    /// The id of the invitation.
    pub(crate) id: Option<u64>,
    /// The certificate request (PEM).
    pub(crate) request: Option<String>,
}

/// A new invitation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct InviteResponse {
    pub(crate) slot: u8,
    pub(crate) id: u64,
    pub(crate) kind: InvitationKind,
    pub(crate) code: String,
    /// What the other machine is told to join: a host name, with the port if it is unusual.
    pub(crate) host: String,
    /// For how many milliseconds the code can be used.
    pub(crate) lasts_ms: u64,
}

/// Bytes as a text in base64.
mod base64_text {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        BASE64_STANDARD.decode(text).map_err(Error::custom)
    }
}
