//! Executes the requests that programs write to `.latchfs/ctl`, with the mount as the host of each
//! command.

use crate::auth::permissions::Operation;
use crate::control::lease_options::LeaseOptions;
use crate::control::{ControlHost, ControlRequest, ControlWaitEnd, execute, refusal, why_denied};
use crate::engine::{
    Acquire, ClientId, FileType, LeaseKey, LeaseTerms, Lifetime, LockName, LockView, Op, Outcome,
    Patch, Process, RefusalKind, Token,
};
use crate::fuse::control_files::mount_pages::MountPages;
use crate::fuse::credentials::{Caller, Callers, parent_of};
use crate::fuse::errno::Act;
use crate::fuse::file_attrs::looks_of_new;
use crate::fuse::file_waits::{FileWaitEnd, FileWaits};
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::parent_checks::ParentChecks;
use crate::fuse::process::bindings::ProcessBindings;
use crate::fuse::process::process_handle::{ProcessHandle, kind_of};
use crate::service::{List, ListPage, RequestError, Unavailable};
use crate::time::{Span, Time, Wall};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Executes requests to the control file `.latchfs/ctl` of one mount.
pub(crate) struct CtlCommands {
    nodes: Arc<LockNodes>,
    parents: Arc<ParentChecks>,
    callers: Arc<Callers>,
    bindings: Arc<ProcessBindings>,
    waits: Arc<FileWaits>,
    pages: Arc<MountPages>,
}

/// The mount as the executor of one request, on behalf of the caller who opened `.latchfs/ctl`.
struct CtlHost<'a> {
    ctl: &'a CtlCommands,
    caller: &'a Caller,
    fh: u64,
}

impl CtlCommands {
    /// Returns the executor of requests to `.latchfs/ctl`.
    pub(crate) const fn new(
        nodes: Arc<LockNodes>,
        parents: Arc<ParentChecks>,
        callers: Arc<Callers>,
        bindings: Arc<ProcessBindings>,
        waits: Arc<FileWaits>,
        pages: Arc<MountPages>,
    ) -> Self {
        Self { nodes, parents, callers, bindings, waits, pages }
    }

    /// Executes a request that was written to the open file `fh`, and returns its answer; `None` if
    /// the file was closed while the request waited.
    pub(crate) async fn answer(
        &self,
        caller: &Caller,
        fh: u64,
        request: ControlRequest,
    ) -> Option<Value> {
        execute(&CtlHost { ctl: self, caller, fh }, request).await
    }
}

impl ControlHost for CtlHost<'_> {
    type Process = ProcessHandle;

    fn client(&self) -> &ClientId {
        &self.caller.client
    }

    fn allows(&self, operation: Operation) -> Result<(), String> {
        let grant = self.caller.grant(self.ctl.nodes.attrs.mounter());
        grant.may_begin(operation).map_err(|denial| {
            let why = why_denied(&denial);
            self.ctl.nodes.locks.refusals().denied(self.caller, operation.rule().name, &why);
            why
        })
    }

    fn about(&self) -> Map<String, Value> {
        match self.ctl.pages.server() {
            Value::Object(server) => server,
            _ => Map::new(),
        }
    }

    fn wall(&self, at: Time) -> Wall {
        self.ctl.nodes.locks.service().wall(at)
    }

    fn process(&self, name: &LockName, pid: u32) -> Result<ProcessHandle, Value> {
        self.ctl.bindings.named(self.caller, pid).map_err(|(errno, why)| {
            let (refusals, sentence) =
                (self.ctl.nodes.locks.refusals(), format!("lock '{name}': {why}"));
            refusals.refused(self.caller, Act::Control, Some(name), errno, sentence.clone());
            refusal(kind_of(errno), &sentence)
        })
    }

    fn default_process(&self) -> Option<ProcessHandle> {
        self.ctl.bindings.by_default(self.caller)
    }

    fn detail_of(&self, process: &ProcessHandle) -> Option<Process> {
        Some(process.process)
    }

    fn terms(&self, options: &LeaseOptions, _: Option<&ProcessHandle>) -> LeaseTerms {
        let (ttl, grace, config) = (options.ttl, options.grace, self.ctl.pages.config());
        LeaseTerms::Own(ttl.unwrap_or(config.ttl), grace.unwrap_or(config.grace))
    }

    fn details(&self, options: &LeaseOptions, for_parent: bool) -> Patch {
        let caller = self.caller;
        let parent = parent_of(caller.pid).filter(|_| for_parent);
        let maker = Caller { pid: parent.unwrap_or(caller.pid), ..caller.clone() };
        Patch {
            holder_id: Some(self.ctl.callers.holder_id(&maker)),
            note: options.note.clone(),
            looks: Some(looks_of_new(caller, FileType::File, 0o644)),
            ..Patch::default()
        }
    }

    fn bind(&self, key: LeaseKey, life: Lifetime, process: &ProcessHandle) {
        self.ctl.bindings.bind(key, life, process);
    }

    fn unbind(&self, token: Token) -> Option<LeaseTerms> {
        self.ctl.bindings.unbind_for(token, &self.caller.client)
    }

    fn continued(&self, name: &LockName, token: Token) {
        self.ctl.nodes.inodes().continued(name, token);
    }

    fn failed(&self, name: &LockName, failure: RequestError) {
        let refusals = self.ctl.nodes.locks.refusals();
        refusals.failed(self.caller, Act::Control, Some(name), failure);
    }

    async fn decide(&self, op: Op) -> Result<Outcome, RequestError> {
        let check = self.ctl.parents.check_of(self.caller, &op);
        self.ctl.nodes.locks.decide_checked(op, check).await
    }

    async fn view(&self, name: &LockName) -> Result<LockView, Unavailable> {
        self.ctl.nodes.locks.view_of(name).await
    }

    async fn list(&self, query: List) -> Result<ListPage<LockView>, Unavailable> {
        self.ctl.nodes.locks.list(query).await
    }

    async fn wait(&self, ask: Acquire, patience: Option<Span>) -> ControlWaitEnd {
        let (caller, name) = (self.caller, ask.name.clone());
        let check = self.ctl.parents.check_of_name(caller, &name);
        let by = (self.fh, caller.uid);
        match self.ctl.waits.join(by, patience, ask, check).await {
            Some(FileWaitEnd::Granted(tenure)) => ControlWaitEnd::Granted(tenure),
            Some(FileWaitEnd::Failed(failure)) => ControlWaitEnd::Failed(failure),
            Some(FileWaitEnd::Left(why)) => ControlWaitEnd::Left(why),
            Some(FileWaitEnd::NoRoom(full)) => {
                let sentence = full.to_string();
                self.ctl.nodes.locks.refusals().full(caller, Act::Control, Some(&name), &full);
                ControlWaitEnd::Refused(refusal(RefusalKind::Limit, &sentence))
            }
            None => ControlWaitEnd::Abandoned,
        }
    }
}
