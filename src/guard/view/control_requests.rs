//! Opens, reads and writes the files in `.latchfs` of a view.

use super::super::guard_request::{GuardRequest, REQUEST_BYTES_MAX};
use super::control_files::{CONTROL_DIR, ControlFile, ControlHandle, is_control};
use super::folder_view::FolderView;
use super::kernel_wait::KernelWait;
use super::open::writes;
use super::open_file::{Content, OpenFile};
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::user_shares::Pool;
use crate::fuse::kernel::values::{Errno, Opened, OpenedFlags, ReadBytes, ReadRequest, Requester};
use crate::holder_id::session_of;
use std::path::Path;
use std::sync::Arc;

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
        let share = match self.share(Pool::FolderFiles, who, Path::new(CONTROL_DIR)) {
            Ok(share) => share,
            Err(full) => return Some(Err(full)),
        };
        let fh = self.numbers.next();
        let content = Content::Control(self.control.handle(file, who));
        self.files.insert(fh, OpenFile::new(ino, content, None, share));
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
        let waiting = handle.waiting.lock().take();
        if let Some(request) = waiting {
            let answer = self.control_request(handle.who, &request).await;
            *handle.text.lock() = Some(format!("{answer}\n").into_bytes().into());
        }
        let known = handle.text.lock().clone();
        let text = if let Some(text) = known {
            text
        } else {
            let text: Arc<[u8]> = self.control_text(handle, who).await?.into();
            *handle.text.lock() = Some(Arc::clone(&text));
            text
        };
        Ok(ReadBytes::window(text, asked.offset, asked.size))
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
        let wanted = (self.may_see_names(handle.who.uid), size as usize);
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
            ControlFile::Why => Ok(self.refused.text(handle.who.uid).into_bytes()),
            ControlFile::Ready => {
                let owner = self.policy.owner.of(handle.who.uid, || session_of(handle.who.pid));
                let is_held = || self.guard.gate().tenure().filter(|open| open.owner == owner);
                self.after_events(who, is_held).await?;
                Ok(b"ready\n".to_vec())
            }
            ControlFile::Missing => {
                let may_see = self.may_see_names(handle.who.uid);
                let why = self.tenures.not_ready().map(|why| why.text(may_see).to_owned());
                let paths = self.tenures.missing().into_iter().filter(|_| may_see);
                let lines = why.into_iter().chain(paths);
                Ok(lines.map(|line| line + "\n").collect::<String>().into_bytes())
            }
            ControlFile::Control | ControlFile::Events => Ok(Vec::new()),
        }
    }

    /// Takes a part of a request. A line makes it complete.
    pub(super) async fn write_control(&self, handle: &ControlHandle, data: &[u8]) -> Done<u32> {
        let complete = {
            let mut request = handle.request.lock();
            if request.len() + data.len() > REQUEST_BYTES_MAX {
                return Err(Errno::EFBIG);
            }
            request.extend_from_slice(data);
            data.ends_with(b"\n").then(|| std::mem::take(&mut *request))
        };
        if let Some(request) = complete {
            if GuardRequest::parse(&request).is_ok_and(|request| request.may_wait()) {
                *handle.text.lock() = None;
                *handle.waiting.lock() = Some(request);
                return Ok(data.len() as u32);
            }
            let answer = match self.use_request(handle, &request).await {
                Some(answer) => answer,
                None => self.control_request(handle.who, &request).await,
            };
            *handle.text.lock() = Some(format!("{answer}\n").into_bytes().into());
        }
        Ok(data.len() as u32)
    }
}
