//! Network connections: listening, accepting, dialling, TLS. Authorization and protocols belong to
//! the layers above.

pub(crate) mod connections;
pub(crate) mod certificates;
