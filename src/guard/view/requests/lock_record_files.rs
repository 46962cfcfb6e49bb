//! The lock record in `.latchfs/locks`: a program takes the folder's lock by making it, renews the
//! tenure by writing it, steals an expired lock by renaming another record onto it, and gives the
//! lock up by removing it. The engine decides all of that, as it does for `latchfs guard`.

use crate::auth::FolderAct;
use crate::engine::{Phase, Token};
use crate::guard::audit_log::AuditedAct;
use crate::guard::lock::lock_record::{HolderProof, RECORD_TEXT_BYTES_MAX};
use crate::guard::lock::lock_records::RecordedTenure;
use crate::guard::tenures::sequence::GuardState;
use crate::guard::tenures::wishes::WishOf;
use crate::guard::view::folder_view::FolderView;
use crate::guard::view::parts::control_files::{CONTROL_DIR, DIR_INO};
use crate::guard::view::parts::open_file::{Content, OpenFile, Opening};
use crate::guard::view::parts::processes::process_if_running;
use crate::guard::view::parts::record_nodes::{
    LOCKS_DIR, LOCKS_INO, PreparedRecord, RecordFile, RecordHandle,
};
use crate::holder_id::{Maker, ProcessStart};
use crate::time::Span;
use common::task::pending;
use kernel::file_system::{
    DirPage, Errno, NodeEntry, Opened, OpenedFlags, ReadBytes, ReadRequest, RenameFlags, Requester,
};
use kernel::file_system::{Done, NameIn};
use kernel::handles::Pool;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

/// The sentence for a text that is no record.
const NO_RECORD: &str = "what was written is no lock record: JSON of at most 4,096 bytes with the \
                         14 fields of its schema, see contrib/schema/lock-record.json";

/// The sentence for a program that makes a record which is there.
const RECORD_EXISTS: &str = "it is there: the lock is held, or its lease has expired; read it to \
                             see by whom and until when (E_LOCK_CONFLICT)";

/// Returns the process of a request, if it is known.
fn writer_of(who: Requester) -> Option<ProcessStart> {
    process_if_running(who.pid).and_then(ProcessStart::running)
}

impl RecordHandle {
    /// Fails if something was written that is no record.
    pub(in crate::guard::view) fn check_whole(&self) -> Done<()> {
        if self.written.lock().is_empty() { Ok(()) } else { Err(Errno::from_i32(libc::EINVAL)) }
    }

    /// Adds a part of a record. Returns the text once it is a record.
    fn add(&self, offset: u64, data: &[u8]) -> Done<Option<(Arc<[u8]>, HolderProof)>> {
        let mut written = self.written.lock();
        if offset == 0 {
            written.clear();
        }
        if written.len() as u64 != offset && !written.is_empty() {
            return Err(Errno::from_i32(libc::EINVAL));
        }
        if written.len() + data.len() > RECORD_TEXT_BYTES_MAX {
            written.clear();
            return Err(Errno::EFBIG);
        }
        written.extend_from_slice(data);
        let Some(proof) = HolderProof::parse(&written) else { return Ok(None) };
        Ok(Some((std::mem::take(&mut *written).into(), proof)))
    }
}

impl FolderView {
    /// Returns the entry of a name in `.latchfs/locks`, or of that directory; `None` for others.
    pub(in crate::guard::view) async fn look_up_record(
        &self,
        who: Requester,
        at: NameIn<'_>,
    ) -> Option<Done<NodeEntry>> {
        let entry = |ino| Ok(NodeEntry::uncached(self.control.attr(ino)));
        if at.parent == DIR_INO && at.name == LOCKS_DIR {
            return Some(entry(LOCKS_INO));
        }
        if at.parent != LOCKS_INO {
            return None;
        }
        let is_there = match RecordFile::named(at.name, &self.records.file_name()) {
            Some(RecordFile::Record) => {
                let is_there = self.recorded().await.is_some();
                if is_there {
                    let path = Path::new(CONTROL_DIR).join(LOCKS_DIR).join(at.name);
                    self.refused
                        .met(self.refused_of(who), format!("{}: {RECORD_EXISTS}", path.display()));
                }
                is_there
            }
            Some(RecordFile::Prepared) => self.record_use.prepared.lock().is_some(),
            None => false,
        };
        let file = RecordFile::named(at.name, &self.records.file_name()).filter(|_| is_there);
        Some(file.map_or(Err(Errno::ENOENT), |file| entry(file.ino())))
    }

    pub(in crate::guard::view) async fn list_records(&self) -> Done<DirPage> {
        let is_prepared = self.record_use.prepared.lock().is_some();
        let record = self.recorded().await.map(|_| RecordFile::Record);
        let files = record.into_iter().chain(is_prepared.then_some(RecordFile::Prepared));
        let name = self.records.file_name();
        let entries = Arc::new(files.map(|file| file.entry(&name)).collect());
        Ok(DirPage { entries, first: 0 })
    }

    /// Returns the tenure of which there is a record.
    async fn recorded(&self) -> Option<RecordedTenure> {
        let (promise, seen) = pending();
        self.records.request(move |seen| promise.keep(seen));
        seen.await.flatten()
    }

    /// Returns the token of the tenure in which this guard holds the lock, ready or not.
    fn own_token(&self) -> Option<Token> {
        match self.tenures.state() {
            GuardState::Holding(tenure, ..)
            | GuardState::Arriving(tenure, _)
            | GuardState::Yielding(tenure) => Some(tenure.token),
            GuardState::Reading | GuardState::Asking => None,
        }
    }

    /// Records why an operation on the record is refused. Returns the errno.
    fn refuse_record(&self, who: Requester, number: i32, why: &str) -> Errno {
        let path = Path::new(CONTROL_DIR).join(LOCKS_DIR).join(self.records.file_name());
        self.say_to(who, Errno::from_i32(number), &format!("{}: {why}", path.display()))
    }

    /// Refuses a change by a program whose last renewal by the record has failed. Other programs of
    /// the machine write on, as long as the guard holds the lock.
    pub(in crate::guard::view) fn check_renewed(
        &self,
        who: Requester,
        path: &Path,
        errno: Errno,
    ) -> Done<()> {
        let pid = || process_if_running(who.pid).unwrap_or(0);
        if !self.record_use.is_stopped(self.own_token(), pid) {
            return Ok(());
        }
        let why = "this program could not renew the tenure by its record, and must not write until \
                   it can (E_LOCK_EXPIRED)";
        Err(self.say(who, path, errno, why))
    }

    /// Checks whether a user may do something by a record.
    fn check_record(&self, who: Requester, act: FolderAct) -> Done<()> {
        let checked = self.user(who).check(act);
        checked.map(drop).map_err(|why| self.refuse_record(who, libc::EPERM, &why))
    }

    /// Requests the lock as `guard take` does. Returns the token once it is held, also if not
    /// everything has arrived; or a sentence that says why not, and whether another client holds
    /// the lock.
    async fn take_by_record(&self, who: Requester) -> Result<Token, (String, bool)> {
        let owner = self.policy.owner.of(who.uid, who.pid);
        let taken = self.wait_for_tenure(who, owner, WishOf::Person, Span::ZERO).await;
        if let Some(token) = self.own_token() {
            return Ok(token);
        }
        let why = match taken {
            Some(Err(why)) => why,
            Some(Ok(())) => "the lock was lost at once".to_owned(),
            None => "the wait was interrupted".to_owned(),
        };
        Err((why, self.tenures.other_holder().is_some()))
    }

    pub(in crate::guard::view) async fn create_record(
        &self,
        who: Requester,
        at: NameIn<'_>,
        flags: i32,
    ) -> Done<(NodeEntry, Opened)> {
        let Some(file) = RecordFile::named(at.name, &self.records.file_name()) else {
            let why = "a view has the record of its own lock alone; use this name";
            return Err(self.refuse_record(who, libc::EPERM, why));
        };
        self.check_record(who, file.act_of_maker())?;
        match file {
            RecordFile::Prepared => self.prepare(who)?,
            RecordFile::Record if flags & libc::O_EXCL == 0 => {
                let why = "the lock is free, and two programs that make the record without O_EXCL \
                           would both take it; open it with O_CREAT and O_EXCL";
                return Err(self.refuse_record(who, libc::EPERM, why));
            }
            RecordFile::Record => {
                if self.own_token().is_some() || self.recorded().await.is_some() {
                    return Err(self.refuse_record(who, libc::EEXIST, RECORD_EXISTS));
                }
                self.take_by_record(who).await.map_err(|(why, is_held)| {
                    let number = if is_held { libc::EEXIST } else { libc::ETIMEDOUT };
                    self.refuse_record(who, number, &why)
                })?;
            }
        }
        let opened = self.opened_record(who, file, file == RecordFile::Record)?;
        Ok((NodeEntry::uncached(self.control.attr(file.ino())), opened))
    }

    pub(in crate::guard::view) fn open_record(
        &self,
        who: Requester,
        ino: u64,
    ) -> Option<Done<Opened>> {
        let file = RecordFile::of(ino)?;
        let may_read = self.check_record(who, FolderAct::ReadRecord);
        Some(may_read.and_then(|()| self.opened_record(who, file, false)))
    }

    fn opened_record(&self, who: Requester, file: RecordFile, begins: bool) -> Done<Opened> {
        let share = self.share(Pool::FolderFiles, who, Path::new(CONTROL_DIR))?;
        let handle = RecordHandle {
            file,
            who,
            text: Mutex::default(),
            written: Mutex::default(),
            tenure: self.own_token(),
            begins: Mutex::new(begins),
        };
        let fh = self.numbers.next();
        let content = Content::Record(handle);
        self.files.insert(fh, OpenFile::new(file.ino(), content, None, Opening { who, share }));
        Ok(Opened { fh, flags: OpenedFlags::FOPEN_DIRECT_IO })
    }

    pub(in crate::guard::view) async fn read_record(
        &self,
        handle: &RecordHandle,
        asked: ReadRequest,
    ) -> Done<ReadBytes> {
        if asked.offset == 0 || handle.text.lock().is_none() {
            let text: Arc<[u8]> = match handle.file {
                RecordFile::Record => {
                    let seen = self.recorded().await.ok_or(Errno::ESTALE)?;
                    seen.record.to_text().into_bytes().into()
                }
                RecordFile::Prepared => {
                    let prepared = self.record_use.prepared.lock();
                    let record = prepared.as_ref().and_then(|one| one.record.as_ref());
                    record.map(|(text, _)| Arc::clone(text)).unwrap_or_default()
                }
            };
            *handle.text.lock() = Some(text);
        }
        let text = handle.text.lock().clone().unwrap_or_default();
        Ok(ReadBytes::window(text, asked.offset, asked.size))
    }

    /// Takes a part of a record. The part that makes it complete begins or renews the tenure.
    pub(in crate::guard::view) async fn write_record(
        &self,
        who: Requester,
        handle: &RecordHandle,
        offset: u64,
        data: &[u8],
    ) -> Done<u32> {
        self.check_record(handle.who, handle.file.act_of_writer())?;
        if handle.file == RecordFile::Prepared {
            self.prepare(who)?;
        }
        let whole = handle.add(offset, data).inspect_err(|_| {
            self.refuse_record(who, libc::EINVAL, NO_RECORD);
        })?;
        let Some((text, proof)) = whole else { return Ok(data.len() as u32) };
        match handle.file {
            RecordFile::Prepared => {
                if let Some(prepared) = &mut *self.record_use.prepared.lock() {
                    prepared.record = Some((text, proof));
                }
            }
            RecordFile::Record => self.renew_by_record(who, handle, &proof).await?,
        }
        Ok(data.len() as u32)
    }

    async fn renew_by_record(
        &self,
        who: Requester,
        handle: &RecordHandle,
        proof: &HolderProof,
    ) -> Done<()> {
        let own = self.own_token();
        if handle.tenure.is_some() && own != handle.tenure {
            let why = "it was opened in a tenure that is over; open it again (E_FENCING_MISMATCH)";
            return Err(self.refuse_record(who, libc::ESTALE, why));
        }
        let Some(token) = own.filter(|_| handle.tenure.is_some()) else {
            let why = "this machine did not hold the lock when the record was opened; make the \
                       record to acquire it (E_LOCK_NOT_HELD)";
            return Err(self.refuse_record(who, libc::EPERM, why));
        };
        let begins = std::mem::take(&mut *handle.begins.lock());
        let is_holder = begins
            || self
                .recorded()
                .await
                .is_some_and(|seen| seen.token == token && seen.proof.as_ref() == Some(proof));
        if !is_holder {
            let why = "another program has acquired the lock: its record has another holder_nonce \
                       or session_id (E_LOCK_NOT_HELD)";
            return Err(self.refuse_record(who, libc::EPERM, why));
        }
        self.claim(who, token, proof).await
    }

    /// Tells the lock service which program holds the lock, and renews the lease.
    async fn claim(&self, who: Requester, token: Token, proof: &HolderProof) -> Done<()> {
        let (promise, renewed) = pending();
        let process = process_if_running(who.pid).unwrap_or(0);
        let client = self.records.client();
        let holder_id = format!("{client}:{}:{}", who.uid, Maker::running(process));
        let then = move |answer| promise.keep(answer);
        self.record_use.claim(token, process);
        self.records.renew(token, proof, holder_id.into(), then);
        let renewed = renewed.await.unwrap_or_else(|| Err("the guard ends".to_owned()));
        self.record_use.renewed(token, process, renewed.is_ok());
        renewed.map_err(|why| {
            let why = format!("the tenure was not renewed, so stop all writes: {why}");
            self.refuse_record(who, libc::ESTALE, &why)
        })
    }

    /// Begins to prepare a record for a steal. One program at a time may do so: with a file that
    /// both write, each would take the other's record for its own.
    fn prepare(&self, who: Requester) -> Done<()> {
        let writer = writer_of(who);
        let mut prepared = self.record_use.prepared.lock();
        if prepared.as_ref().is_some_and(|one| one.is_kept_from(writer)) {
            drop(prepared);
            let why = "another program of this machine prepares a steal; try again when it is done";
            return Err(self.refuse_record(who, libc::EBUSY, why));
        }
        match &mut *prepared {
            Some(one) if one.writer == writer => one.is_refused = false,
            other => *other = Some(PreparedRecord { record: None, writer, is_refused: false }),
        }
        Ok(())
    }

    /// Removes the record, which gives the lock up, or the prepared one.
    pub(in crate::guard::view) async fn remove_record(
        &self,
        who: Requester,
        at: NameIn<'_>,
    ) -> Done<()> {
        let file = RecordFile::named(at.name, &self.records.file_name()).ok_or(Errno::ENOENT)?;
        if file == RecordFile::Prepared {
            self.check_record(who, FolderAct::Steal)?;
            return self.record_use.prepared.lock().take().map(drop).ok_or(Errno::ENOENT);
        }
        self.check_record(who, FolderAct::Give)?;
        let Some(token) = self.own_token() else {
            let seen = self.recorded().await.ok_or(Errno::ENOENT)?;
            let own = self.tenures.last_end().map(|(tenure, _)| tenure.token);
            if seen.phase != Phase::Held && own == Some(seen.token) {
                self.records.remove(seen.token);
                return Ok(());
            }
            let why = "another machine holds the lock, and only its holder can release it; an \
                       administrator can steal it by 'latchfs steal' (E_LOCK_NOT_HELD)";
            return Err(self.refuse_record(who, libc::EPERM, why));
        };
        let process = process_if_running(who.pid);
        if let Some(holder) = self.record_use.holder_of(token).filter(|it| Some(*it) != process) {
            let why = format!(
                "process {holder} has acquired the lock by its record and still runs; 'latchfs \
                 guard give' gives the lock up all the same (E_LOCK_NOT_HELD)"
            );
            return Err(self.refuse_record(who, libc::EPERM, &why));
        }
        if let Err(why) = self.tenures.uses.check_unused() {
            return Err(self.refuse_record(who, libc::EBUSY, &why));
        }
        let given = self.give_request(who, None).await;
        given.map_err(|why| self.refuse_record(who, libc::EPERM, &why))
    }

    /// Returns the name of a prepared record whose process has ended.
    pub(in crate::guard::view) fn leftover_record(&self) -> Option<String> {
        let name = RecordFile::Prepared.name(&self.records.file_name());
        self.record_use.has_leftover().then_some(name)
    }

    /// Renames the prepared record onto the record: a steal of a lock whose lease, skew and grace
    /// are over.
    pub(in crate::guard::view) async fn rename_record(
        &self,
        who: Requester,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> Done<()> {
        let name = self.records.file_name();
        let files = [from, to].map(|at| RecordFile::named(at.name, &name));
        if files != [Some(RecordFile::Prepared), Some(RecordFile::Record)] || flags.bits() != 0 {
            let why = "only the record that ends with '.tmp' is renamed, onto the other";
            return Err(self.refuse_record(who, libc::EPERM, why));
        }
        self.check_record(who, FolderAct::Steal)?;
        let proof = match &*self.record_use.prepared.lock() {
            None => return Err(Errno::ENOENT),
            Some(one) => one.record.as_ref().map(|(_, proof)| proof.clone()),
        };
        let Some(proof) = proof else {
            return Err(self.refuse_record(who, libc::EINVAL, NO_RECORD));
        };
        let stolen = self.steal_by_record(who, &proof).await;
        let mut prepared = self.record_use.prepared.lock();
        if stolen.is_ok() {
            *prepared = None;
        } else if let Some(one) = &mut *prepared {
            // The loser's file is in nobody's way.
            one.is_refused = true;
        }
        stolen
    }

    async fn steal_by_record(&self, who: Requester, proof: &HolderProof) -> Done<()> {
        if self.own_token().is_some() {
            let why = "this machine holds the lock, and its lease is not over (E_LOCK_CONFLICT)";
            return Err(self.refuse_record(who, libc::EBUSY, why));
        }
        let seen = self.recorded().await;
        if let Some(why) = self.records.refuses_steal() {
            return Err(self.refuse_record(who, libc::ETIME, &why));
        }
        if seen.as_ref().is_some_and(|seen| seen.phase != Phase::Free) {
            let why = "the lock can be stolen 3 s after its lease has expired, and not before: \
                       lease_expires_at, max_clock_skew_ms and steal_grace_ms (E_LOCK_CONFLICT)";
            return Err(self.refuse_record(who, libc::EBUSY, why));
        }
        let token = self.take_by_record(who).await.map_err(|(why, is_held)| {
            let number = if is_held { libc::EBUSY } else { libc::ETIMEDOUT };
            self.refuse_record(who, number, &why)
        })?;
        self.claim(who, token, proof).await?;
        if let Some(seen) = seen {
            self.audit_steal(who, &seen);
        }
        Ok(())
    }

    /// Records that a program has stolen an expired lock by its record.
    fn audit_steal(&self, who: Requester, before: &RecordedTenure) {
        let Some(tenure) = self.tenures.current_or_last() else { return };
        let (uid, holder, token) = (who.uid, &before.record.holder, before.token.as_u64());
        let why =
            format!("uid {uid} took the expired lock of {holder} (token {token}) by a record");
        self.tenures.audit(AuditedAct::Steal, tenure, &why);
    }
}
