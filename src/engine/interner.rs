//! Interns client and process ids while decoding, so that equal strings share one allocation.

use super::command::{Command, Op};
use super::details::Patch;
use super::lease::Lease;
use super::name::ClientId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The client and holder ids decoded so far. Each is stored once, so that a million locks of one
/// client share one copy of the client's name.
#[derive(Debug, Default)]
pub struct Interner {
    clients: BTreeSet<ClientId>,
    holder_ids: BTreeSet<Arc<str>>,
}

impl Interner {
    /// Returns the interned copy of `client`.
    fn client(&mut self, client: &ClientId) -> ClientId {
        if let Some(known) = self.clients.get(client) {
            return known.clone();
        }
        self.clients.insert(client.clone());
        client.clone()
    }

    fn holder_id(&mut self, id: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.holder_ids.get(id) {
            return Arc::clone(known);
        }
        self.holder_ids.insert(Arc::clone(id));
        Arc::clone(id)
    }

    /// Replaces the client and holder ids in a decoded acquire by their interned copies. Leaves
    /// other commands as they are.
    pub fn share(&mut self, command: &mut Command) {
        if let Op::Acquire(ask) = &mut command.op {
            ask.client = self.client(&ask.client);
            let id = ask.patch.holder_id.take();
            ask.patch.holder_id = id.map(|id| self.holder_id(&id));
        }
    }

    pub(super) fn share_lease(&mut self, lease: &mut Lease) {
        lease.holder = self.client(&lease.holder);
        if let Some(id) = lease.details.holder_id().map(|id| self.holder_id(id)) {
            let patch = Patch { holder_id: Some(id), ..Patch::default() };
            patch.apply(&mut lease.details);
        }
    }
}
