//! Network connections. Authorization and protocols belong to the layers above.
//!
//! `connections` listens, accepts and dials, and `certificates` reads certificates and knows those
//! that are refused.

pub(crate) mod connections;
pub(crate) mod certificates;
