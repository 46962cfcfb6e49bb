//! Opens, reads and writes the files in `.latchfs` of a view.

use super::super::guard_request::{GuardRequest, refused};
use super::control_files::{CONTROL_DIR, ControlFile, ControlHandle, RequestPart, is_control};
use super::folder_view::FolderView;
use super::kernel_wait::KernelWait;
use super::open::writes;
use super::open_file::{Content, OpenFile};
use crate::auth::{Extent, FolderAct};
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::file_system::{
    Errno, Opened, OpenedFlags, ReadBytes, ReadRequest, Requester,
};
use crate::fuse::kernel::handles::{Full, Pool};
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
        let Some(file) = ControlFile::of(ino) else { return Some(Err(Errno::EISDIR)) };
        if writes(flags) && file != ControlFile::Control {
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
        self.files.insert(fh, OpenFile::new(ino, content, None, (who, share)));
        let flags = OpenedFlags::FOPEN_DIRECT_IO | OpenedFlags::FOPEN_NOFLUSH;
        Some(Ok(Opened::by_requests(fh, flags)))
    }

    pub(super) async fn read_control(
        &self,
        handle: &ControlHandle,
        asked: ReadRequest,
        who: Requester,
    ) -> Done<ReadBytes> {
        if handle.file == ControlFile::Events {
            return self.next_event(handle, who, asked.size).await;
        }
        if handle.file == ControlFile::Why {
            // It is not kept: a user whose memory is used up reads here that it is.
            let sees_all = self.user(handle.who).extent(FolderAct::ReadRefusals) == Extent::Yes;
            let text = self.refused.text(handle.who.uid, sees_all).into_bytes().into();
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
        let wanted = (self.sees_names(handle.who, FolderAct::FollowEvents), size as usize);
        let line = self.after_events(who, || self.control.next_event(handle, wanted)).await?;
        Ok(ReadBytes::from(line))
    }

    async fn control_text(&self, handle: &ControlHandle, who: Requester) -> Done<Vec<u8>> {
        match handle.file {
            ControlFile::Status => {
                let status =
                    serde_json::to_string_pretty(&self.status(handle.who)).unwrap_or_default();
                Ok(format!("{status}\n").into_bytes())
            }
            ControlFile::Ready => {
                let is_own = |owner| Self::is_of(owner, handle.who);
                let is_held = || self.guard.gate().tenure().filter(|open| is_own(open.owner));
                self.after_events(who, is_held).await?;
                Ok(b"ready\n".to_vec())
            }
            ControlFile::Missing => {
                let may_see = self.sees_names(handle.who, FolderAct::ShowMissing);
                let why = self.tenures.not_ready().map(|why| why.text(may_see).to_owned());
                let paths = self.tenures.missing().into_iter().filter(|_| may_see);
                let lines = why.into_iter().chain(paths);
                Ok(lines.map(|line| line + "\n").collect::<String>().into_bytes())
            }
            ControlFile::Why | ControlFile::Control | ControlFile::Events => Ok(Vec::new()),
        }
    }

    /// Takes a part of a request. A line makes it complete.
    pub(super) async fn write_control(&self, handle: &ControlHandle, data: &[u8]) -> Done<u32> {
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
