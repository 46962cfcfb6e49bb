//! The header by which calls and answers between nodes tell the name of the sender's cluster.

use crate::raft::cluster_name::ClusterName;
use hyper::header::{HeaderMap, HeaderValue};

const NAME_HEADER: &str = "latchfs-cluster";

/// Returns the name in the headers of a call or an answer.
pub(super) fn named_in(headers: &HeaderMap) -> Option<ClusterName> {
    ClusterName::parse(headers.get(NAME_HEADER)?.to_str().ok()?)
}

/// Puts the name, if there is one, into the headers of a call or an answer.
pub(super) fn put_name(headers: &mut HeaderMap, name: Option<&ClusterName>) {
    // A name has only characters that a header may have.
    if let Some(value) = name.and_then(|name| HeaderValue::from_str(&name.to_string()).ok()) {
        headers.insert(NAME_HEADER, value);
    }
}
