//! Which request goes to which handler.
//!
//! `route_table` lists all endpoints, with the permission that each needs; it also
//! makes the `OpenAPI` document of them. `router` makes the router.

pub(super) mod route_table;
pub(super) mod router;
