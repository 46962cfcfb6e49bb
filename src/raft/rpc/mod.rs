//! Calls between the nodes of a cluster: `mutual_tls` (the certificates of both), `messages`,
//! `accept` (the server) and `rpc_client`.
//!
//! One call is one request of HTTP/1.1 on a connection that is kept. Each says which cluster it is
//! of, who calls and whom: a node that has another's address must not be taken for it.

pub(super) mod mutual_tls;
pub(super) mod messages;
pub(super) mod accept;
pub(super) mod rpc_client;
