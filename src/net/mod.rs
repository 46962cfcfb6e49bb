//! Network connections: listening, accepting, dialling, TLS. Authorization and protocols belong to
//! the layers above.

pub(crate) mod listen;
pub(crate) mod accept_loop;
pub(crate) mod pem_files;
pub(crate) mod refused_serials;
pub(crate) mod http_connection;
