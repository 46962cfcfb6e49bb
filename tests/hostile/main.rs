//! Attacks on the running program by a hostile client, local user, server or web page. Each test
//! checks the result of the attack, and that a victim, another client or user of the attacked
//! program, gets the right answer within a second.

// Python and other programs are written as `r#"..."#`, even those that contain no quotes, so
// clippy's lint against needless hashes is off.
#![allow(clippy::needless_raw_string_hashes)]

mod mount_port;
mod peers;
mod permissions;

mod audit;
mod bounds;
mod floods;
mod links;
mod hostile_server;
mod line_port;
mod mount_floods;
mod mount_reserve;
mod nested_names;
mod patience;
mod request_id_floods;
mod request_ids;
mod revocation;
mod shares;
mod web_page;
