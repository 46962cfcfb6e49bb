//! The file of bearer tokens of a server, which a test changes as a fault.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The only bearer token that the server accepts while it has no fault.
pub(crate) const SECRET: &str = "the secret of all";

/// Writes the server's token file, with `secret` as the only bearer token.
pub(crate) fn allow(tokens: &Path, secret: &str) {
    let rights = "clients = [\"*\"]\ncluster = true";
    let text = format!("[[token]]\nname = \"all\"\nsecret = \"{secret}\"\n{rights}\n");
    private(tokens, &text);
}

pub(crate) fn private(path: &Path, text: &str) {
    fs::write(path, text).expect("ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("ours");
}
