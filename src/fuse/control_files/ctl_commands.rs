//! Executes the requests to the control file, and builds their answers.

use crate::engine::{
    Acquire, FileType, Firm, LeaseKey, LeaseTerms, LockName, Mode, Op, Outcome, Ownership, Patch,
    QueuePolicy, RefusalKind, Release, Renew, Steal, StealReason, Token,
};
use crate::fuse::control_files::ctl_list;
use crate::fuse::control_files::ctl_request::{
    Acquiring, WAITERS_SHOWN_MAX, WrittenRequest, acquiring, wrong,
};
use crate::fuse::control_files::mount_pages::MountPages;
use crate::fuse::control_files::requests::{CtlRequest, why_denied};
use crate::fuse::credentials::{Caller, Callers, parent_of};
use crate::fuse::errno::Act;
use crate::fuse::file_attrs::looks_of_new;
use crate::fuse::file_waits::{FileWaitEnd, FileWaits};
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::parent_checks::ParentChecks;
use crate::fuse::process::bindings::ProcessBindings;
use crate::fuse::process::process_handle::{ProcessHandle, kind_of};
use crate::fuse::write_message::{Options, options_of, short};
use crate::service::RequestError;
use crate::status::status_of;
use crate::time::Span;
use serde_json::{Value, json};
use std::sync::Arc;

/// Does what the control file is asked for.
pub(crate) struct CtlCommands {
    nodes: Arc<LockNodes>,
    parents: Arc<ParentChecks>,
    callers: Arc<Callers>,
    bindings: Arc<ProcessBindings>,
    waits: Arc<FileWaits>,
    pages: Arc<MountPages>,
}

/// The lock of a request, what to ask the engine for, and the process that the lease is bound to.
type BoundOp = (LockName, Op, Option<ProcessHandle>);

impl CtlCommands {
    /// The commands of one mount.
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

    /// Returns the answer to a request that was written to the open file `fh`; `None`: that was
    /// closed while the request waited.
    pub(crate) async fn answer(
        &self,
        caller: &Caller,
        fh: u64,
        request: &WrittenRequest,
    ) -> Option<Value> {
        let Some(what) = CtlRequest::named(&request.what) else {
            let what = short(&request.what);
            let sentence = format!("there is no request '{what}'; see .latchfs/README");
            return Some(wrong(RefusalKind::Invalid, &sentence));
        };
        let grant = caller.grant(self.nodes.attrs.mounter());
        if let Err(denial) = grant.may_begin(what.operation()) {
            return Some(wrong(RefusalKind::Denied, &why_denied(&denial)));
        }
        let answer = match what {
            CtlRequest::About => Ok(self.about()),
            CtlRequest::List => match ctl_list::asked(request) {
                Ok(query) => Ok(ctl_list::answer(&self.nodes.locks, query).await),
                Err(sentence) => Err(sentence),
            },
            CtlRequest::Status => match request.name() {
                Ok(name) => Ok(self.status(&name, usize::MAX, json!({ "ok": true })).await),
                Err(sentence) => Err(sentence),
            },
            CtlRequest::Acquire => match acquiring(request) {
                Ok(ask) => return self.check_and_acquire(caller, fh, ask).await,
                Err(sentence) => Err(sentence),
            },
            CtlRequest::Renew => match self.renewing(caller, request) {
                Ok(bound) => Ok(self.decide_bound(caller, bound).await),
                Err(refused) => Ok(refused),
            },
            CtlRequest::Release => match release_of(caller, request) {
                Ok(bound) => Ok(self.decide_bound(caller, bound).await),
                Err(sentence) => Err(sentence),
            },
            CtlRequest::Steal => match self.steal_of(caller, request) {
                Ok(bound) => Ok(self.decide_bound(caller, bound).await),
                Err(sentence) => Err(sentence),
            },
        };
        Some(answer.unwrap_or_else(|sentence| wrong(RefusalKind::Invalid, &sentence)))
    }

    fn about(&self) -> Value {
        let mut answer = json!({ "ok": true });
        if let (Value::Object(answer), Value::Object(server)) = (&mut answer, self.pages.server()) {
            answer.extend(server);
        }
        answer
    }

    /// Returns the process that a request names, or the answer that refuses it.
    fn process_of(
        &self,
        caller: &Caller,
        options: &Options,
        name: &LockName,
    ) -> Result<Option<ProcessHandle>, Value> {
        let Some(pid) = options.pid else { return Ok(None) };
        self.bindings.named(caller, pid).map(Some).map_err(|(errno, why)| {
            let (refusals, sentence) =
                (self.nodes.locks.refusals(), format!("lock '{name}': {why}"));
            refusals.refused(caller, Act::Control, Some(name), errno, sentence.clone());
            wrong(kind_of(errno), &sentence)
        })
    }

    /// Has the engine decide, and binds the lease to a process.
    async fn decide_bound(&self, caller: &Caller, (name, op, process): BoundOp) -> Value {
        let check = self.parents.check_of(caller, &op);
        let answer = self.nodes.locks.decide_checked(op, check).await;
        if let (Some(process), Ok(Outcome::Granted(tenure) | Outcome::Renewed(tenure))) =
            (&process, &answer)
        {
            let key = key_of(caller, &name, Some(tenure.token));
            self.bindings.bind(key, tenure.life, process);
        }
        if let Ok(Outcome::Renewed(tenure)) = &answer {
            self.nodes.inodes().continued(&name, tenure.token);
        }
        let answer = match answer {
            // Of a shared lock the status shows the first holder, and the caller may be another.
            Ok(
                Outcome::Granted(tenure)
                | Outcome::Renewed(tenure)
                | Outcome::Moved(tenure)
                | Outcome::Stolen(tenure),
            ) => json!({ "ok": true, "token": tenure.token.as_u64() }),
            Ok(_) => json!({ "ok": true }),
            Err(failure) => {
                // A service that did not decide can't show the lock either.
                let has_status = matches!(failure, RequestError::Refused(_));
                let answer = self.failed(caller, &name, failure);
                if !has_status {
                    return answer;
                }
                answer
            }
        };
        self.status(&name, usize::MAX, answer).await
    }

    /// Records that a request failed. Returns the answer that says so.
    fn failed(&self, caller: &Caller, name: &LockName, failure: RequestError) -> Value {
        let answer = wrong(failure.kind(), &failure.to_string());
        self.nodes.locks.refusals().failed(caller, Act::Control, Some(name), failure);
        answer
    }

    /// Adds the status of a lock, with so many waiters at most, to an answer.
    async fn status(&self, name: &LockName, waiters: usize, mut answer: Value) -> Value {
        match self.nodes.locks.view_of(name).await {
            Ok(mut view) => {
                view.waiters.truncate(waiters);
                answer["status"] = status_of(&view, |at| self.nodes.locks.service().wall(at));
                answer
            }
            Err(why) => wrong(RefusalKind::ConsistencyUnavailable, &why.to_string()),
        }
    }

    fn term_of(&self, options: &Options) -> LeaseTerms {
        let (ttl, grace, config) = (options.ttl, options.grace, self.pages.config());
        LeaseTerms::Own(ttl.unwrap_or(config.ttl), grace.unwrap_or(config.grace))
    }

    fn patch_of(&self, caller: &Caller, options: &Options, for_parent: bool) -> Patch {
        let parent = parent_of(caller.pid).filter(|_| for_parent);
        let maker = Caller { pid: parent.unwrap_or(caller.pid), ..caller.clone() };
        Patch {
            holder_id: Some(self.callers.holder_id(&maker)),
            note: options.note.clone(),
            looks: Some(looks_of_new(caller, FileType::File, 0o644)),
            ..Patch::default()
        }
    }

    async fn check_and_acquire(&self, caller: &Caller, fh: u64, ask: Acquiring) -> Option<Value> {
        let process = match self.process_of(caller, &ask.options, &ask.name) {
            Ok(process) => process,
            Err(refused) => return Some(refused),
        };
        self.acquire(caller, fh, ask, process).await
    }

    async fn acquire(
        &self,
        caller: &Caller,
        fh: u64,
        ask: Acquiring,
        process: Option<ProcessHandle>,
    ) -> Option<Value> {
        let view = match self.nodes.locks.view_of(&ask.name).await {
            Ok(view) => view,
            Err(why) => {
                return Some(wrong(RefusalKind::ConsistencyUnavailable, &why.to_string()));
            }
        };
        let Acquiring { name, mut options, reentrant, for_parent, line } = ask;
        let own = view.held_by(&caller.client).filter(|_| reentrant);
        let by_name =
            !reentrant || options.ttl.is_some() || options.grace.is_some() || process.is_some();
        let default = || self.bindings.by_default(caller).filter(|_| own.is_none());
        let process = process.or_else(default);
        let mut patch = match own {
            // A renewal changes only the note, and below the process if the request names one: the
            // other details and the file attributes stay.
            Some(_) => Patch { note: options.note.clone(), ..Patch::default() },
            None => self.patch_of(caller, &options, for_parent),
        };
        if let Some(own) = own {
            options.ttl = options.ttl.or(Some(own.ends.ttl));
            options.grace = options.grace.or(Some(own.ends.grace));
        }
        let mode = options.mode.unwrap_or(Mode::Exclusive);
        patch.process = process.as_ref().map(|handle| Some(handle.process));
        if own.is_some() && process.is_some() && view.mode == mode {
            let (key, firm) = (key_of(caller, &name, None), Firm::Make);
            let term = Some(self.term_of(&options));
            let op = Op::Renew(Renew { key, term, firm, patch, acquires: true });
            return Some(self.decide_bound(caller, (name, op, process)).await);
        }
        let is_own = own.is_some();
        let ask = Acquire {
            name: name.clone(),
            client: caller.client.clone(),
            mode,
            // A loose acquire renews in whatever way the lock is held.
            hold: if by_name && !is_own { Ownership::Exclusive(None) } else { Ownership::Client },
            term: self.term_of(&options),
            line: QueuePolicy::Skip,
            patch,
        };
        match line {
            QueuePolicy::Join(patience) if !is_own => {
                self.wait(caller, fh, patience, ask, process).await
            }
            _ => Some(self.decide_bound(caller, (name, Op::Acquire(ask), process)).await),
        }
    }

    async fn wait(
        &self,
        caller: &Caller,
        fh: u64,
        patience: Option<Span>,
        ask: Acquire,
        process: Option<ProcessHandle>,
    ) -> Option<Value> {
        let name = ask.name.clone();
        let check = self.parents.check_of_name(caller, &name);
        Some(match self.waits.join((fh, caller.uid), patience, ask, check).await? {
            FileWaitEnd::Granted(tenure) => {
                if let Some(process) = &process {
                    let key = key_of(caller, &name, Some(tenure.token));
                    self.bindings.bind(key, tenure.life, process);
                }
                let answer = json!({ "ok": true, "token": tenure.token.as_u64() });
                self.status(&name, WAITERS_SHOWN_MAX, answer).await
            }
            FileWaitEnd::Failed(failure) => self.failed(caller, &name, failure),
            FileWaitEnd::NoRoom(full) => {
                self.nodes.locks.refusals().full(caller, Act::Control, Some(&name), full);
                wrong(RefusalKind::Limit, &full.to_string())
            }
            FileWaitEnd::TimedOut => {
                let patience = patience.unwrap_or_default();
                let sentence = format!(
                    "lock '{name}' was not to be had within {patience}; see 'latchfs status \
                     {name}' for who has it, or wait longer"
                );
                let answer = wrong(RefusalKind::LockConflict, &sentence);
                self.status(&name, WAITERS_SHOWN_MAX, answer).await
            }
        })
    }

    fn renewing(&self, caller: &Caller, request: &WrittenRequest) -> Result<BoundOp, Value> {
        let told = |sentence: String| wrong(RefusalKind::Invalid, &sentence);
        let name = request.name().map_err(told)?;
        let options = options_of(&request.fields).map_err(told)?;
        let process = self.process_of(caller, &options, &name)?;
        // A lease that outlives its process, such as a slot that is done.
        let unbinds = request.fields.get("unbind") == Some(&Value::Bool(true));
        let changes = options.ttl.is_some() || options.grace.is_some();
        let unbound = options.token.filter(|_| unbinds);
        let left = unbound.and_then(|token| self.bindings.unbind_for(token, &caller.client));
        let op = Op::Renew(Renew {
            key: key_of(caller, &name, options.token),
            term: if changes { Some(self.term_of(&options)) } else { left },
            firm: if changes || process.is_some() { Firm::Make } else { Firm::Keep },
            patch: Patch {
                note: options.note.clone(),
                process: match &process {
                    Some(handle) => Some(Some(handle.process)),
                    None => unbinds.then_some(None),
                },
                ..Patch::default()
            },
            acquires: false,
        });
        Ok((name, op, process))
    }

    fn steal_of(&self, caller: &Caller, request: &WrittenRequest) -> Result<BoundOp, String> {
        let (name, options) = (request.name()?, options_of(&request.fields)?);
        let reason = request.text("reason")?.and_then(StealReason::parse);
        let reason = reason
            .ok_or("taking a lock away needs a short 'reason', which its holder will read")?;
        let op = Op::Steal(Steal {
            name: name.clone(),
            client: caller.client.clone(),
            reason,
            term: self.term_of(&options),
            patch: self.patch_of(caller, &options, request.flag("parent")?),
        });
        Ok((name, op, None))
    }
}

fn release_of(caller: &Caller, request: &WrittenRequest) -> Result<BoundOp, String> {
    let (name, options) = (request.name()?, options_of(&request.fields)?);
    let op = Op::Release(Release::of(key_of(caller, &name, options.token)));
    Ok((name, op, None))
}

fn key_of(caller: &Caller, name: &LockName, token: Option<Token>) -> LeaseKey {
    LeaseKey { name: name.clone(), client: caller.client.clone(), token }
}
