//! The bodies of requests and answers.
//!
//! `parameters` are the names and formats of what a request may say, and `options` parses them.
//! `response` builds answers and charges them to the caller until they are sent, `problem` says why
//! a request was refused, and `schema` describes all of them for the `OpenAPI` document.

pub(super) mod response;
pub(super) mod parameters;
pub(super) mod problem;
pub(super) mod options;
pub(super) mod schema;
