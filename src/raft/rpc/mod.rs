//! RPC between the nodes of a cluster.
//!
//! One call is one HTTP/1.1 request on a persistent connection. Each call names the cluster, the
//! calling node and the called node, so that a node which has taken over the address of another is
//! not mistaken for it.
//!
//! `messages` are the calls and their encoding, `mutual_tls` authenticates both sides. `accept` is
//! the server, with a budget for connections that have not proved who they are; `network` is the
//! client, as openraft uses it. `peer_config` has the addresses and credentials of a node, and what
//! it knows of the others.

pub(super) mod mutual_tls;
pub(super) mod messages;
mod message_codec;
pub(super) mod accept;
pub(super) mod network;
pub(super) mod peer_config;
