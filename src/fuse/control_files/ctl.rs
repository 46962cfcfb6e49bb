//! The control file `.latchfs/ctl`: requests and answers as JSON, for the command line. One write
//! is one request, and a read returns the answers that were not read yet.
//!
//! Executes the requests that programs write to `.latchfs/ctl`, with the mount as the host of each
//! command.

use crate::auth::permissions::Operation;
use crate::control::control_request::LeaseOptions;
use crate::control::{
    ControlHost, ControlRequest, ControlWaitEnd, execute, parse, refusal, why_denied,
};
use crate::engine::{
    Acquire, ClientId, FileType, LeaseKey, LeaseTerms, Lifetime, LockName, LockView, Op, Outcome,
    Patch, Process, RefusalKind, Token,
};
use crate::fuse::control_files::mount_pages;
use crate::fuse::credentials::{Caller, parent_of};
use crate::fuse::file_attrs::attrs_of_new;
use crate::fuse::file_waits::FileWaitEnd;
use crate::fuse::mount_parts::Mount;
use crate::fuse::open_files::OpenFile;
use crate::fuse::process::lease_users::{ProcessHandle, kind_of};
use crate::fuse::refusals::Act;
use crate::service::{List, ListPage, ListedNames, RequestError, Retry, Unavailable};
use crate::time::{Span, Time, Wall};
use common::task::{Pending, spawn};
use kernel::file_system::{Errno, ReadBytes, ReadRequest};
use kernel::handles::Pool;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The result of a read of `.latchfs/ctl`: the bytes, or a future of them if no answer is ready
/// yet.
type ReadAnswer = Result<ReadBytes, Pending<Result<ReadBytes, Errno>>>;

/// Returns the answers that were not read yet. If there are none but a request is still waiting
/// for a lock, waits for its answer.
pub(crate) async fn read(
    mount: &Mount,
    caller: &Caller,
    open: &OpenFile,
    asked: ReadRequest,
) -> Result<ReadBytes, Errno> {
    match read_now(mount, caller, open, asked)? {
        Ok(bytes) => Ok(bytes),
        Err(later) => later.await.unwrap_or(Err(Errno::EIO)),
    }
}

fn read_now(
    mount: &Mount,
    caller: &Caller,
    open: &OpenFile,
    asked: ReadRequest,
) -> Result<ReadAnswer, Errno> {
    let mut state = open.state();
    if !state.answers.is_empty() || state.pending == 0 {
        return Ok(Ok(state.answers.take(asked.size).into()));
    }
    if let Err(full) = mount.opens.shares().room(Pool::Threads, caller.uid) {
        drop(state);
        return Err(mount.nodes.refusals.full(caller, Act::Read, None, &full));
    }
    Ok(Err(mount.reads.hold(asked.fh, state, asked.size, caller.pid)))
}

/// Executes the request in `data`. When the write returns, its answer can be read, unless the
/// request waits for a lock: then the next read waits for the answer.
pub(crate) async fn write(
    mount: &Arc<Mount>,
    caller: &Caller,
    fh: u64,
    open: &Arc<OpenFile>,
    data: &[u8],
) -> Result<u32, Errno> {
    // The limit on unread bytes is checked before the request runs: beyond it, the answer could
    // not be stored, and the program would not learn the outcome.
    if let Err(full) = mount.opens.shares().room(Pool::Bytes, open.uid) {
        return Err(mount.nodes.refusals.full(caller, Act::Control, None, &full));
    }
    match parse(data) {
        Ok(request) if request.waits() => begin_to_wait(mount, caller, fh, open, request),
        Ok(request) => {
            if let Some(answer) = answer(mount, caller, fh, request).await {
                keep(mount, caller, open, answer);
            }
        }
        Err(sentence) => keep(mount, caller, open, refusal(RefusalKind::Invalid, &sentence)),
    }
    Ok(data.len() as u32)
}

/// Executes, in a task of its own, a request that may wait in the queue of a lock.
fn begin_to_wait(
    mount: &Arc<Mount>,
    caller: &Caller,
    fh: u64,
    open: &Arc<OpenFile>,
    request: ControlRequest,
) {
    open.state().pending += 1;
    let (own, caller, open) = (Arc::clone(mount), caller.clone(), Arc::clone(open));
    spawn(async move {
        if let Some(answer) = answer(&own, &caller, fh, request).await {
            keep(&own, &caller, &open, answer);
            end_reads(&open);
        }
    });
}

/// Stores the answer to a request until the program reads it from `.latchfs/ctl`.
fn keep(mount: &Mount, caller: &Caller, open: &OpenFile, mut answer: Value) {
    // The field `you` names the caller, so that a program finds itself among holders and
    // waiters.
    answer["you"] = caller.client.as_str().into();
    let mut state = open.state();
    let shares = mount.opens.shares();
    if let Err(full) = state.answers.add(shares, open.uid, &format!("{answer}\n")) {
        // Beyond the limit on unread bytes, the answer to a list becomes a refusal. The outcome
        // of any other request is always stored, but without the lock's status, which can be
        // queried again.
        if answer.get("locks").is_some() {
            answer = refusal(RefusalKind::Limit, &full.to_string());
        } else if let Value::Object(fields) = &mut answer {
            fields.remove("status");
        }
        state.answers.add_always(shares, open.uid, &format!("{answer}\n"));
    }
}

/// Completes the waiting reads of a control file after a request has got its answer.
fn end_reads(open: &OpenFile) {
    let mut state = open.state();
    state.pending -= 1;
    let held = std::mem::take(&mut state.held);
    let completed = held.into_iter().map(|held| (held.promise, state.answers.take(held.size)));
    let completed: Vec<_> = completed.collect();
    drop(state);
    for (promise, bytes) in completed {
        promise.keep(Ok(bytes.into()));
    }
}

/// The mount as the executor of one request, on behalf of the caller who opened `.latchfs/ctl`.
struct CtlHost<'a> {
    mount: &'a Mount,
    caller: &'a Caller,
    fh: u64,
}

/// Executes a request that was written to the open file `fh`, and returns its answer; `None` if
/// the file was closed while the request waited.
pub(crate) async fn answer(
    mount: &Mount,
    caller: &Caller,
    fh: u64,
    request: ControlRequest,
) -> Option<Value> {
    execute(&CtlHost { mount, caller, fh }, request).await
}

impl ControlHost for CtlHost<'_> {
    type Process = ProcessHandle;

    fn client(&self) -> &ClientId {
        &self.caller.client
    }

    fn allows(&self, operation: Operation) -> Result<(), String> {
        let grant = self.caller.grant(self.mount.nodes.attrs.mounter());
        grant.may_begin(operation).map_err(|denial| {
            let why = why_denied(&denial);
            self.mount.nodes.refusals.denied(self.caller, operation.rule().name, &why);
            why
        })
    }

    fn about(&self) -> Map<String, Value> {
        match mount_pages::server(self.mount) {
            Value::Object(server) => server,
            _ => Map::new(),
        }
    }

    fn wall(&self, at: Time) -> Wall {
        self.mount.nodes.service.wall(at)
    }

    fn process(&self, name: &LockName, pid: u32) -> Result<ProcessHandle, Value> {
        self.mount.bindings.named(self.caller, pid).map_err(|(errno, why)| {
            let (refusals, sentence) =
                (&self.mount.nodes.refusals, format!("lock '{name}': {why}"));
            refusals.refused(self.caller, Act::Control, Some(name), errno, sentence.clone());
            refusal(kind_of(errno), &sentence)
        })
    }

    fn default_process(&self) -> Option<ProcessHandle> {
        self.mount.bindings.by_default(self.caller)
    }

    fn detail_of(&self, process: &ProcessHandle) -> Option<Process> {
        Some(process.process)
    }

    fn terms(&self, options: &LeaseOptions, _: Option<&ProcessHandle>) -> LeaseTerms {
        let (ttl, grace, config) = (options.ttl, options.grace, &self.mount.config);
        LeaseTerms::Own(ttl.unwrap_or(config.ttl), grace.unwrap_or(config.grace))
    }

    fn details(&self, options: &LeaseOptions, for_parent: bool) -> Patch {
        let caller = self.caller;
        let parent = parent_of(caller.pid).filter(|_| for_parent);
        let maker = Caller { pid: parent.unwrap_or(caller.pid), ..caller.clone() };
        Patch {
            holder_id: Some(self.mount.callers.holder_id(&maker)),
            note: options.note.clone(),
            attrs: Some(attrs_of_new(caller, FileType::File, 0o644)),
            ..Patch::default()
        }
    }

    fn bind(&self, key: LeaseKey, life: Lifetime, process: &ProcessHandle) {
        self.mount.bindings.bind(key, life, process);
    }

    fn unbind(&self, token: Token) -> Option<LeaseTerms> {
        self.mount.bindings.unbind_for(token, &self.caller.client)
    }

    fn continued(&self, name: &LockName, token: Token) {
        self.mount.nodes.inodes().continued(name, token);
    }

    fn failed(&self, name: &LockName, failure: RequestError) {
        let refusals = &self.mount.nodes.refusals;
        refusals.failed(self.caller, Act::Control, Some(name), failure);
    }

    async fn decide(&self, op: Op) -> Result<Outcome, RequestError> {
        let check = self.mount.parents.check_of(self.caller, &op);
        self.mount.nodes.service.clone().submit_checked(op.into(), check).outcome().await
    }

    async fn view(&self, name: &LockName) -> Result<LockView, Unavailable> {
        self.mount.nodes.service.view(name, Retry::Never).await.map(|seen| seen.view)
    }

    async fn list(&self, query: List) -> Result<ListPage<LockView>, Unavailable> {
        self.mount.nodes.service.list(ListedNames::InUse, query).await
    }

    async fn wait(&self, ask: Acquire, patience: Option<Span>) -> ControlWaitEnd {
        let (caller, name) = (self.caller, ask.name.clone());
        let check = self.mount.parents.check_of_name(caller, &name);
        match self.mount.waits.join(self.fh, caller.uid, patience, ask, check).await {
            Some(FileWaitEnd::Granted(tenure)) => ControlWaitEnd::Granted(tenure),
            Some(FileWaitEnd::Failed(failure)) => ControlWaitEnd::Failed(failure),
            Some(FileWaitEnd::Left(why)) => ControlWaitEnd::Left(why),
            Some(FileWaitEnd::NoRoom(full)) => {
                let sentence = full.to_string();
                self.mount.nodes.refusals.full(caller, Act::Control, Some(&name), &full);
                ControlWaitEnd::Refused(refusal(RefusalKind::Limit, &sentence))
            }
            None => ControlWaitEnd::Abandoned,
        }
    }
}
