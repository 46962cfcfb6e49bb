//! Opens, reads and writes the files in `.latchfs` of a view.
//!
//! The request of `guard take`, with which a person takes the lock, or takes it along.
//!
//! The rights of a caller to the folder of a view, and the request of `guard give`.
//!
//! The requests of `latchfs run --guard`, by which the guard learns of a program that must end
//! before the lock is given up.

use super::open::writes;
use crate::auth::{Extent, FolderAct, FolderUser, TenureOf};
use crate::engine::Ttl;
use crate::guard::guard_request::{GuardRequest, refused};
use crate::guard::tenure::Owner;
use crate::guard::tenures::sequence::GuardState;
use crate::guard::tenures::wishes::{Denied, WishOf};
use crate::guard::view::folder_view::{FolderView, MayWait};
use crate::guard::view::parts::control_files::{
    CONTROL_DIR, ControlHandle, RequestPart, ViewControlFile, is_control,
};
use crate::guard::view::parts::open_file::{Content, KernelWait, OpenFile, Opening};
use crate::time::{Span, Wall};
use barrier::tenure_id::TenureId;
use common::task::pending;
use kernel::file_system::{Done, Errno, Opened, OpenedFlags, ReadBytes, ReadRequest, Requester};
use kernel::handles::{Full, Pool};
use kernel::machine_facts::own_uid;
use serde_json::Value;
use std::path::Path;

impl FolderView {
    pub(super) fn open_control(
        &self,
        who: Requester,
        ino: u64,
        flags: i32,
    ) -> Option<Done<Opened>> {
        if !is_control(ino) {
            return None;
        }
        let Some(file) = ViewControlFile::of(ino) else { return Some(Err(Errno::EISDIR)) };
        if writes(flags) && file != ViewControlFile::Control {
            return Some(Err(Errno::EACCES));
        }
        if let Some(Err(why)) = file.act().map(|act| self.user(who).check(act)) {
            return Some(Err(self.say_to(who, Errno::EACCES, &why)));
        }
        let share = match self.share(Pool::FolderFiles, who, Path::new(CONTROL_DIR)) {
            Ok(share) => share,
            Err(full) => return Some(Err(full)),
        };
        let fh = self.numbers.next();
        let memory = self.shares.take_always(Pool::Bytes, who.uid, 0);
        let content = Content::Control(self.control.handle(file, who, memory));
        self.files.insert(fh, OpenFile::new(ino, content, None, Opening { who, share }));
        let flags = OpenedFlags::FOPEN_DIRECT_IO | OpenedFlags::FOPEN_NOFLUSH;
        Some(Ok(Opened { fh, flags }))
    }

    pub(in crate::guard::view) async fn read_control(
        &self,
        handle: &ControlHandle,
        asked: ReadRequest,
        who: Requester,
    ) -> Done<ReadBytes> {
        if handle.file == ViewControlFile::Events {
            return self.next_event(handle, who, asked.size).await;
        }
        if handle.file == ViewControlFile::Why {
            // It is not kept: a user whose memory is used up reads here that it is.
            let sees_all = self.user(handle.who).extent(FolderAct::ReadRefusals) == Extent::Yes;
            let text = self.refused.text(self.refused_of(handle.who), sees_all).into_bytes().into();
            return Ok(ReadBytes::window(text, asked.offset, asked.size));
        }
        let waiting = handle.texts.lock().take_waiting();
        if let Some(request) = waiting {
            let answer = self.control_request(handle.who, &request).await;
            Self::keep_answer(handle, &answer);
        }
        let known = handle.texts.lock().text.clone();
        let text = if let Some(text) = known {
            text
        } else {
            self.check_memory(handle)?;
            let text = self.control_text(handle, who).await?;
            let kept = handle.texts.lock().keep(text);
            kept.map_err(|full| self.no_memory(handle, &full))?
        };
        Ok(ReadBytes::window(text, asked.offset, asked.size))
    }

    /// Records that the memory of a user is used up. Returns the errno.
    fn no_memory(&self, handle: &ControlHandle, full: &Full) -> Errno {
        let sentence = format!("{CONTROL_DIR}/{} was not answered: {full}", handle.file.name());
        self.say_to(handle.who, Errno::ENOSPC, &sentence)
    }

    /// Fails if the memory of the user who opened a control file is used up.
    fn check_memory(&self, handle: &ControlHandle) -> Done<()> {
        let room = self.shares.room(Pool::Bytes, handle.who.uid);
        room.map_err(|full| self.no_memory(handle, &full))
    }

    /// Keeps the answer to a request until the program closes the file.
    fn keep_answer(handle: &ControlHandle, answer: &Value) {
        let mut texts = handle.texts.lock();
        if let Err(full) = texts.keep(format!("{answer}\n").into_bytes()) {
            let answer = refused(format!("the answer was not kept: {full}"));
            let _ = texts.keep(format!("{answer}\n").into_bytes());
        }
    }

    /// Waits until `found` returns something. It is called again after each event.
    async fn after_events<T>(
        &self,
        who: Requester,
        mut found: impl FnMut() -> Option<T>,
    ) -> Done<T> {
        if let Err(full) = self.shares.room(Pool::Threads, who.uid) {
            return Err(self.say(who, Path::new(CONTROL_DIR), Errno::ENFILE, &full));
        }
        loop {
            let (wait, event) = KernelWait::new();
            self.interrupts.watch(self.numbers.next(), who.pid, wait.clone());
            self.control.add_wait(wait.clone());
            // An event that came before the wait was added has woken nobody.
            if let Some(found) = found() {
                wait.keep(());
                return Ok(found);
            }
            event.await.ok_or(Errno::EINTR)?;
        }
    }

    /// Returns the next event of a reader, and waits for it.
    async fn next_event(
        &self,
        handle: &ControlHandle,
        who: Requester,
        size: u32,
    ) -> Done<ReadBytes> {
        let may_see_names = self.sees_names(handle.who, FolderAct::FollowEvents);
        let next = || self.control.next_event(handle, may_see_names, size as usize);
        let line = self.after_events(who, next).await?;
        Ok(ReadBytes::from(line))
    }

    async fn control_text(&self, handle: &ControlHandle, who: Requester) -> Done<Vec<u8>> {
        match handle.file {
            ViewControlFile::Status => {
                let status =
                    serde_json::to_string_pretty(&self.status(handle.who)).unwrap_or_default();
                Ok(format!("{status}\n").into_bytes())
            }
            ViewControlFile::Ready => {
                let is_own = |owner| Self::is_of(owner, handle.who);
                let is_held = || self.guard.gate().tenure().filter(|open| is_own(open.owner));
                self.after_events(who, is_held).await?;
                Ok(b"ready\n".to_vec())
            }
            ViewControlFile::Missing => {
                let may_see = self.sees_names(handle.who, FolderAct::ShowMissing);
                let why = self.tenures.not_ready().map(|why| why.text(may_see).to_owned());
                let paths = self.tenures.missing().into_iter().filter(|_| may_see);
                let lines = why.into_iter().chain(paths);
                Ok(lines.map(|line| line + "\n").collect::<String>().into_bytes())
            }
            ViewControlFile::Why | ViewControlFile::Control | ViewControlFile::Events => {
                Ok(Vec::new())
            }
        }
    }

    /// Takes a part of a request. A line makes it complete.
    pub(in crate::guard::view) async fn write_control(
        &self,
        handle: &ControlHandle,
        data: &[u8],
    ) -> Done<u32> {
        let added = handle.texts.lock().add_request(data);
        let complete = added.map_err(|part| match part {
            RequestPart::TooLong => Errno::EFBIG,
            RequestPart::NoMemory(full) => self.no_memory(handle, &full),
        })?;
        if let Some(request) = complete {
            // Beyond its memory, the program would not learn the outcome.
            self.check_memory(handle)?;
            if GuardRequest::parse(&request).is_ok_and(|request| request.may_wait()) {
                handle.texts.lock().wait(request);
                return Ok(data.len() as u32);
            }
            let answer = match self.use_request(handle, &request).await {
                Some(answer) => answer,
                None => self.control_request(handle.who, &request).await,
            };
            Self::keep_answer(handle, &answer);
        }
        Ok(data.len() as u32)
    }
}

impl FolderView {
    /// Carries out a request for the lock. Returns the answer as JSON.
    pub(in crate::guard::view) async fn take_request(
        &self,
        who: Requester,
        patience: Span,
        away: Option<Result<Ttl, String>>,
    ) -> Value {
        let is_away = away.is_some();
        if let Some(length) = away
            && let Err(why) = self.prepare_away(length).await
        {
            return refused(why);
        }
        let owner = self.policy.owner.of(who.uid, who.pid);
        let taken = match self.wait_for_tenure(who, owner, WishOf::Person, patience).await {
            Some(Ok(())) => self.announce_away(who).await,
            Some(Err(why)) => Err(why),
            None => Err("the wait was interrupted".to_owned()),
        };
        match taken {
            Ok(()) => self.status(who),
            Err(why) => {
                if is_away {
                    self.tenures.stay();
                }
                refused(why)
            }
        }
    }

    /// Prepares a tenure that is taken along for so long. Returns a sentence if that can't be.
    async fn prepare_away(&self, length: Result<Ttl, String>) -> Result<(), String> {
        self.tenures.uses.check_unused()?;
        let (length, (promise, prepared)) = (length?, pending());
        self.tenures.prepare_away(length, move |answer| promise.keep(answer));
        let prepared = prepared.await.unwrap_or(Ok(()));
        prepared.map_err(|Denied { sentence }| sentence)
    }

    /// Tells the lock service that changes follow, if the lock was taken along: later it may be out
    /// of reach.
    async fn announce_away(&self, who: Requester) -> Result<(), String> {
        if self.tenures.away_until().is_none() || !self.guard.gate().must_announce() {
            return Ok(());
        }
        let announced = self.announce(who, Path::new("."), MayWait::Long).await;
        announced.map_err(|_| self.refused.last(self.refused_of(who)))
    }
}

/// The current tenure.
#[derive(Debug, Clone, Copy)]
struct OwnedTenure {
    id: TenureId,
    owner: Owner,
    /// Since when programs of the owner may write.
    since: Option<Wall>,
}

/// Returns the tenure of a state; `None` if there is none, or if it is about to end.
const fn owned(state: &GuardState) -> Option<OwnedTenure> {
    match *state {
        GuardState::Arriving(id, owner) => Some(OwnedTenure { id, owner, since: None }),
        GuardState::Holding(id, owner, since) => {
            Some(OwnedTenure { id, owner, since: Some(since) })
        }
        GuardState::Reading | GuardState::Asking | GuardState::Yielding(_) => None,
    }
}

impl FolderView {
    /// Returns a caller with its relation to a tenure of this owner.
    fn user_beside(who: Requester, owner: Option<Owner>) -> FolderUser {
        let tenure = match owner {
            None | Some(Owner::Host) => TenureOf::Nobody,
            Some(owner) if Self::is_of(owner, who) => TenureOf::Caller,
            Some(Owner::Session(session)) if session.uid == who.uid => TenureOf::SameUser,
            Some(_) => TenureOf::Nobody,
        };
        FolderUser { uid: who.uid, guard: own_uid(), tenure }
    }

    /// Returns a caller with its relation to the current tenure.
    pub(in crate::guard::view) fn user(&self, who: Requester) -> FolderUser {
        Self::user_beside(who, owned(&self.tenures.state()).map(|owned| owned.owner))
    }

    /// Gives the lock up: that of another login session only if the caller names the session, by
    /// the pid of its leader.
    pub(in crate::guard::view) async fn give_request(
        &self,
        who: Requester,
        from: Option<u32>,
    ) -> Result<(), String> {
        let current = owned(&self.tenures.state());
        Self::user_beside(who, current.map(|owned| owned.owner)).check(FolderAct::Give)?;
        if let Some(OwnedTenure { owner: owner @ Owner::Session(session), since, .. }) = current
            && !Self::is_of(owner, who)
            && from != Some(session.leader.pid)
        {
            let (holds, pid) = (owner.holds(since), session.leader.pid);
            return Err(format!(
                "{holds}; wait until it gives the lock up, or take the lock from it with 'latchfs \
                 guard give --from {pid}'"
            ));
        }
        self.tenures.uses.check_unused()?;
        let (promise, given) = pending();
        // Another tenure may have begun meanwhile.
        self.tenures.give(current.map(|owned| owned.id), move || promise.keep(()));
        given.await;
        Ok(())
    }

    /// Whether the answer to an act may name all files.
    pub(in crate::guard::view) fn sees_names(&self, who: Requester, act: FolderAct) -> bool {
        self.user(who).sees_names(act, || self.owner_of_folder())
    }
}

impl FolderView {
    /// Carries out a request that begins or ends the use of the lock by the program that has this
    /// file open. Returns the answer as JSON; `None` if it is another request.
    pub(in crate::guard::view) async fn use_request(
        &self,
        handle: &ControlHandle,
        request: &[u8],
    ) -> Option<Value> {
        let done = match GuardRequest::parse(request) {
            Ok(GuardRequest::Use(token)) => self.begin_use(handle, token).await,
            Ok(GuardRequest::EndUse { token, gives }) => self.end_use(handle, token, gives).await,
            _ => return None,
        };
        Some(done.map_or_else(refused, |()| self.status(handle.who)))
    }

    async fn begin_use(&self, handle: &ControlHandle, token: u64) -> Result<(), String> {
        let who = handle.who;
        self.user(who).check(FolderAct::Use)?;
        let is_of = |owner| Self::is_of(owner, who);
        let (promise, begun) = pending();
        if self.guard.gate().tenure().is_some_and(|open| is_of(open.owner)) {
            self.tenures.begin_use(who.pid, token, move |begun| promise.keep(begun));
            *handle.lock_use.lock() = begun.await.flatten();
        }
        let is_begun = handle.lock_use.lock().is_some();
        let over = || "the lock was lost or given up meanwhile; try again".to_owned();
        if is_begun { Ok(()) } else { Err(over()) }
    }

    /// Ends the use. Gives the lock up as well, if a program took it for its use and no other one
    /// uses it any more.
    async fn end_use(&self, handle: &ControlHandle, token: u64, gives: bool) -> Result<(), String> {
        self.user(handle.who).check(FolderAct::EndUse)?;
        let ended = handle.lock_use.lock().take();
        if ended.is_some() {
            drop(ended);
            let (promise, released) = pending();
            self.tenures.give_unused(token, gives, move || promise.keep(()));
            released.await;
        }
        Ok(())
    }
}
