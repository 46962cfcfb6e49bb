//! Authentication and authorization, the same for every front end: each request is checked against
//! the grant of its caller.
//!
//! Where to look: `connection_limits` bounds the connections and requests of each peer;
//! `permissions` is the table of the rights that each operation needs; `grant` holds the rights
//! that credentials confer; `parent_lock` decides which local users may create a name below a held
//! lock; `folder_rights` is the table of the rights to a guarded folder; `server_tls`, `token_file`
//! and `certificate_rights` read credentials, and `authentication` maps the credentials of a caller
//! to its grant; `browser_checks` tells pages of other sites; `engine_shares` limits what one
//! credential may take of the locks, queues and sessions.

pub mod permissions;
mod grant;
mod parent_lock;
mod folder_rights;
pub(crate) mod server_tls;
pub(crate) mod connection_limits;
mod token_file;
mod certificate_rights;
mod engine_shares;
pub(crate) mod browser_checks;
mod authentication;

pub(crate) use authentication::WRONG_TOKEN_DELAY;
pub use authentication::{
    AuthenticationError, Authenticator, Credentials, CredentialsError, OpenTo,
};
pub use browser_checks::AllowedHosts;
pub use engine_shares::{EngineShares, PendingCommand};
pub(crate) use folder_rights::{Extent, FolderAct, FolderRule, FolderUser, TenureOf};
pub use grant::{
    ClientPattern, Credential, Denial, Grant, UnnamedOwner, Visibility, unnamed_owners,
};
pub use parent_lock::{LocalUser, depends_on_groups};
pub use server_tls::{TlsError, TlsFiles, grant_of, name_in_certificate};
pub use token_file::TokensError;
