//! The control file `.latchfs/ctl`: requests and answers as JSON, for the command line. One write
//! is one request, and a read returns the answers that were not read yet.

use crate::control::{ControlRequest, parse, refusal};
use crate::engine::RefusalKind;
use crate::fuse::control_files::ctl_commands::CtlCommands;
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::kernel::pending::Pending;
use crate::fuse::kernel::task::spawn;
use crate::fuse::kernel::user_shares::Pool;
use crate::fuse::kernel::values::{Errno, ReadBytes, ReadRequest};
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::OpenFiles;
use crate::fuse::open_files::open_file::OpenFile;
use crate::fuse::open_files::waiting_reads::WaitingReads;
use serde_json::Value;
use std::sync::Arc;

/// The control file `.latchfs/ctl` of one mount.
pub(crate) struct CtlFile {
    nodes: Arc<LockNodes>,
    opens: Arc<OpenFiles>,
    reads: Arc<WaitingReads>,
    commands: CtlCommands,
}

/// The result of a read of `.latchfs/ctl`: the bytes, or a future of them if no answer is ready
/// yet.
type ReadAnswer = Result<ReadBytes, Pending<Result<ReadBytes, Errno>>>;

impl CtlFile {
    /// Returns the control file `.latchfs/ctl` of one mount, whose requests `commands` executes.
    pub(crate) fn new(
        nodes: Arc<LockNodes>,
        opens: Arc<OpenFiles>,
        reads: Arc<WaitingReads>,
        commands: CtlCommands,
    ) -> Arc<Self> {
        Arc::new(Self { nodes, opens, reads, commands })
    }

    /// Returns the answers that were not read yet. If there are none but a request is still waiting
    /// for a lock, waits for its answer.
    pub(crate) async fn read(
        &self,
        caller: &Caller,
        open: &OpenFile,
        asked: ReadRequest,
    ) -> Result<ReadBytes, Errno> {
        match self.read_now(caller, open, asked)? {
            Ok(bytes) => Ok(bytes),
            Err(later) => later.await.unwrap_or(Err(Errno::EIO)),
        }
    }

    fn read_now(
        &self,
        caller: &Caller,
        open: &OpenFile,
        asked: ReadRequest,
    ) -> Result<ReadAnswer, Errno> {
        let mut state = open.state();
        if !state.answers.is_empty() || state.pending == 0 {
            return Ok(Ok(state.answers.take(asked.size).into()));
        }
        if let Err(full) = self.opens.shares().room(Pool::Threads, caller.uid) {
            drop(state);
            return Err(self.nodes.locks.refusals().full(caller, Act::Read, None, &full));
        }
        Ok(Err(self.reads.hold(asked.fh, state, asked.size, caller.pid)))
    }

    /// Executes the request in `data`. When the write returns, its answer can be read, unless the
    /// request waits for a lock: then the next read waits for the answer.
    pub(crate) async fn write(
        self: &Arc<Self>,
        caller: &Caller,
        fh: u64,
        open: &Arc<OpenFile>,
        data: &[u8],
    ) -> Result<u32, Errno> {
        // The limit on unread bytes is checked before the request runs: beyond it, the answer could
        // not be stored, and the program would not learn the outcome.
        if let Err(full) = self.opens.shares().room(Pool::Bytes, open.uid) {
            return Err(self.nodes.locks.refusals().full(caller, Act::Control, None, &full));
        }
        match parse(data) {
            Ok(request) if request.waits() => self.begin_to_wait(caller, fh, open, request),
            Ok(request) => {
                if let Some(answer) = self.commands.answer(caller, fh, request).await {
                    self.keep(caller, open, answer);
                }
            }
            Err(sentence) => self.keep(caller, open, refusal(RefusalKind::Invalid, &sentence)),
        }
        Ok(data.len() as u32)
    }

    /// Executes, in a task of its own, a request that may wait in the queue of a lock.
    fn begin_to_wait(
        self: &Arc<Self>,
        caller: &Caller,
        fh: u64,
        open: &Arc<OpenFile>,
        request: ControlRequest,
    ) {
        open.state().pending += 1;
        let (own, caller, open) = (Arc::clone(self), caller.clone(), Arc::clone(open));
        spawn(async move {
            if let Some(answer) = own.commands.answer(&caller, fh, request).await {
                own.keep(&caller, &open, answer);
                end_reads(&open);
            }
        });
    }

    /// Stores the answer to a request until the program reads it from `.latchfs/ctl`.
    fn keep(&self, caller: &Caller, open: &OpenFile, mut answer: Value) {
        // The field `you` names the caller, so that a program finds itself among holders and
        // waiters.
        answer["you"] = caller.client.as_str().into();
        let mut state = open.state();
        let shares = self.opens.shares();
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
}

/// Completes the waiting reads of a control file after a request has got its answer.
fn end_reads(open: &OpenFile) {
    let mut state = open.state();
    state.pending -= 1;
    let held = std::mem::take(&mut state.held);
    let told = held.into_iter().map(|held| (held.promise, state.answers.take(held.size)));
    let told: Vec<_> = told.collect();
    drop(state);
    for (promise, bytes) in told {
        promise.keep(Ok(bytes.into()));
    }
}
