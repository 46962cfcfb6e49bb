//! Connections: listening, accepting with limits, dialling, TLS. Who may connect and what is said is
//! the business of the layers above.

pub(crate) mod listen;
pub(crate) mod accept;
pub(crate) mod pem_files;
pub(crate) mod http_connection;
