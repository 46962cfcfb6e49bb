//! RPC between the nodes of a cluster: `mutual_tls` (authentication), `messages`, `handshakes`
//! (their budget), `accept` (the server) and `rpc_client`.
//!
//! One call is one HTTP/1.1 request on a persistent connection. Each call names the cluster, the
//! calling node and the called node, so that a node which has taken over the address of another is
//! not mistaken for it.

pub(super) mod mutual_tls;
pub(super) mod messages;
pub(super) mod accept;
pub(super) mod network;
pub(super) mod peer_config;
