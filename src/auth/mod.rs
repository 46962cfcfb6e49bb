//! Authentication and authorization, the same for every front end: each request is checked against
//! the grant of its caller.
//!
//! Where to look: `grant` holds the rights that credentials confer, and `permissions` is the table
//! of the rights that each operation needs, also to a guarded folder. `server_tls` and
//! `authentication` read certificates and tokens, and map the credentials of a caller to its grant;
//! `machine_rights` does for users at the socket of the machine's daemon.
//! `engine_shares` decides what one credential may take of the locks, queues and sessions, and
//! `connection_limits` bounds the connections and requests of each peer.

pub mod permissions;
mod grant;
pub(crate) mod server_tls;
pub(crate) mod connection_limits;
mod engine_shares;
mod machine_rights;
pub(crate) mod authentication;

pub use crate::auth::authentication::AllowedHosts;
pub(crate) use crate::auth::permissions::{Extent, FolderAct, FolderRule, FolderUser, TenureOf};
pub use crate::auth::permissions::{LocalUser, PeerUser, depends_on_groups};
pub use crate::auth::server_tls::TokensError;
pub(crate) use authentication::WRONG_TOKEN_DELAY;
pub use authentication::{
    AuthenticationError, Authenticator, Credentials, CredentialsError, OpenTo,
};
pub use engine_shares::EngineShares;
pub use grant::{
    ClientPattern, Credential, Denial, Grant, UnnamedOwner, Visibility, unnamed_owners,
};
pub(crate) use server_tls::{EXPIRY_NOTICE_SECS, validity_of_certificate};
pub use server_tls::{TlsError, TlsFiles, grant_of, name_in_certificate};
