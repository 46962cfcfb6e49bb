//! Which request goes to which handler.
//!
//! `route_table` lists all endpoints, with the permission that each needs; `router` makes the
//! router of it, and `openapi` the document.

pub(super) mod route_table;
pub(super) mod router;
