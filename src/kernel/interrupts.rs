//! Interrupts programs that wait in a system call, for a lock or for data, when a signal arrives:
//! one thread per mount polls the waiters for pending signals.
//!
//! The thread starts with the first waiter, and sleeps while there is none. It checks each waiter
//! every 20 ms, or less often if a user has so many waiters that checking them would cost more than
//! 2 % of a processor. The interval is per user, so the waiters of one user do not delay those of
//! another.
//!
//! Facts about the threads that make requests, from `/proc/TID/status`. Reading this file never
//! waits, not even for a program that is about to execute another one.
//!
//! Detects from `/proc/TID/status` whether a thread that waits in an operation has a signal to
//! handle.
//!
//! FUSE has an INTERRUPT message for this purpose, but fuser answers the first one with ENOSYS,
//! after which the kernel sends no more: a waiter could not even be killed. So the status of each
//! waiting thread is polled. A signal is deliverable when it is pending and neither blocked nor
//! ignored. Only then may the wait fail with EINTR: the kernel turns EINTR of a lock request into
//! ERESTARTSYS (512), which a thread without a deliverable signal would see as its errno.
//!
//! Detects whether the freezer of a control group (cgroup) is about to freeze a thread, as before a
//! suspend.
//!
//! A thread that waits for a reply of FUSE can't be frozen, and would keep its whole cgroup from
//! being frozen. The freezer wakes such a thread like a signal, but no file in `/proc` shows that.

use crate::LOG;
use crate::file_system::Requester;
use crate::handles::{Pool, Share, Shares};
use crate::mountinfo;
use engine::time::{Span, Time, boot_now, thread_work};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The shortest interval between two checks of a waiter for signals. A person who presses Ctrl-C
/// does not notice such a delay.
const PERIOD_MIN: Duration = Duration::from_millis(20);
/// The longest interval between two checks of a waiter for signals, however many waiters there are.
const PERIOD_MAX: Duration = Duration::from_millis(800);
/// After a check, the thread sleeps this many times as long as the check took. The checks of one
/// user's waiters thus take less than 2 % of a processor.
const REST_PER_WORK: u32 = 55;
/// How long the queue place of an interrupted waiter is kept after its thread was last seen
/// running. A restarted system call repeats its request within a millisecond; a signal handler of a
/// shell takes a few.
const PLACE_KEPT: Span = Span::from_millis(200);
/// How long a lock that was granted to an interrupted waiter is kept for it after its thread was
/// last seen running: long enough for a second check, because a thread that repeats its request
/// sleeps until the request is read. Until then other clients find a lock that nobody uses.
const GRANT_KEPT: Span = Span::from_millis(30);
/// The interval between two checks of a waiter for the freezer of its cgroup. Such a check costs
/// more than one for signals, and a suspend waits for 20 s.
const FREEZER_PERIOD: Span = Span::from_millis(200);
/// How long the queue place of an interrupted waiter is kept at most, even if its thread runs all
/// that time. On a loaded machine such a thread may still be returning to its system call; beyond
/// this limit it is taken to be doing something else.
const PLACE_KEPT_MAX: Span = Span::from_secs(5);

/// The user id under which waiters in another pid namespace are counted, since the status of their
/// threads can't be read.
const UNKNOWN_USER: u32 = u32::MAX;

/// A waiting request, with the operations that the interrupt watcher needs. The module that answers
/// the request implements them.
pub trait InterruptibleWait: Send {
    /// Returns the current state of the waiting request.
    fn status(&self) -> WaitStatus;
    /// Called when the waiting thread has got a signal: fails the system call with EINTR unless it
    /// was answered already.
    fn interrupt(&self);
    /// Called when an interrupted waiter has not repeated its request in time: gives up its queue
    /// place.
    fn expire(&self) {}
}

/// The state of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStatus {
    /// The program waits for the answer to its request.
    Asks,
    /// A signal has interrupted the program, and its queue place is kept.
    Parked,
    /// A signal has interrupted the program, and the lock was granted to its kept queue place. The
    /// program holds the lock without knowing it yet.
    Unclaimed,
    /// The program has got its answer, and no longer waits.
    Over,
}

/// The interrupt watcher of one mount: its thread and the waiters that it checks.
pub struct InterruptWatcher {
    inner: Arc<WatcherShared>,
    shares: Shares,
}

#[derive(Default)]
struct WatcherShared {
    posts: Mutex<WatchedUsers>,
    called: Condvar,
}

#[derive(Default)]
struct WatchedUsers {
    /// The waiters of each user. A user whose last waiter is gone is removed by the next check of
    /// that user's waiters.
    users: HashMap<u32, UserWaits>,
    started: bool,
    stopped: bool,
}

/// The waiting requests of one user, by the unique number of each wait.
struct UserWaits {
    waiters: HashMap<u64, WatchedWait>,
    /// The time of the next check of this user's waiters.
    due: Time,
}

struct WatchedWait {
    waiter: Box<dyn InterruptibleWait>,
    _share: Share,
    watched: Option<WatchedThread>,
    /// Whether the last check saw a signal that is pending for the whole process. Another thread of
    /// the process may take it, so a second check must confirm it.
    doubtful: bool,
    /// Whether the last check found the thread's cgroups to be frozen or about to be, and the time
    /// of the next check.
    freezing: (bool, Time),
    /// For an interrupted waiter: when it was interrupted, and when its thread was last seen
    /// running.
    parked: Option<(Time, Time)>,
}

impl InterruptWatcher {
    /// Returns a watcher without waiters. Each waiter counts against the per-user limits `shares`.
    pub fn new(shares: Shares) -> Self {
        Self { inner: Arc::default(), shares }
    }

    /// Starts to watch a wait of thread `tid`. `number` identifies the wait; a wait that is already
    /// watched under the same number is replaced.
    pub fn watch(&self, number: u64, tid: u32, waiter: impl InterruptibleWait + 'static) {
        let watched = WatchedThread::new(tid);
        if watched.is_none() {
            log::debug!(
                target: LOG,
                "thread {tid} waits in another pid namespace, and can't be interrupted"
            );
        }
        let uid = watched.as_ref().and_then(WatchedThread::user).unwrap_or(UNKNOWN_USER);
        let share = self.shares.take_always(Pool::Threads, uid, 1);
        let waiter = Box::new(waiter);
        let freezing = (false, boot_now() + FREEZER_PERIOD);
        let (doubtful, parked) = (false, None);
        let post = WatchedWait { waiter, _share: share, watched, doubtful, freezing, parked };
        let mut posts = self.inner.posts.lock();
        // The watching thread is woken only for a user's first waiter. The user's other waiters are
        // checked with it, at the latest after [`PERIOD_MAX`]; a wake-up per wait would cost more
        // than most waits take.
        let is_new = !posts.users.contains_key(&uid);
        let user = posts.users.entry(uid).or_insert_with(UserWaits::new);
        user.waiters.insert(number, post);
        if !posts.started {
            posts.started = true;
            let inner = Arc::clone(&self.inner);
            let thread = std::thread::Builder::new().name("interrupts".to_owned());
            if let Err(error) = thread.spawn(move || inner.poll_waiters()) {
                posts.started = false;
                log::error!(
                    target: LOG,
                    "the interrupt thread can't be started ({error}): waiting programs \
                    can't be interrupted"
                );
            }
        }
        drop(posts);
        if is_new {
            self.inner.called.notify_one();
        }
    }
}

impl Drop for InterruptWatcher {
    fn drop(&mut self) {
        self.inner.posts.lock().stopped = true;
        self.inner.called.notify_one();
    }
}

impl UserWaits {
    fn new() -> Self {
        Self { waiters: HashMap::new(), due: boot_now() + Span::from(PERIOD_MIN) }
    }
}

impl WatcherShared {
    fn poll_waiters(&self) {
        // The cost of a check is measured as processor time of this thread. On a loaded machine the
        // thread also waits for a processor, which is no reason to check less often.
        let mut worked = thread_work();
        while let Some((uid, mut waiters)) = self.next_round() {
            waiters.retain(|_, post| post.check());
            // The measured time includes the wake-up of this thread, which at times takes longer
            // than the checks themselves.
            let before = std::mem::replace(&mut worked, thread_work());
            let period = worked.saturating_sub(before) * REST_PER_WORK;
            self.end_round(uid, waiters, period.clamp(PERIOD_MIN, PERIOD_MAX));
        }
    }

    /// Sleeps until the waiters of some user are due for a check, and takes them out. Returns
    /// `None` when the watcher has been dropped.
    fn next_round(&self) -> Option<(u32, HashMap<u64, WatchedWait>)> {
        let mut posts = self.posts.lock();
        loop {
            if posts.stopped {
                return None;
            }
            let now = boot_now();
            match posts.users.iter_mut().min_by_key(|(_, user)| user.due) {
                Some((uid, user)) if user.due <= now => {
                    return Some((*uid, std::mem::take(&mut user.waiters)));
                }
                Some((_, user)) => {
                    let sleep = user.due.since(now).as_duration();
                    self.called.wait_for(&mut posts, sleep);
                }
                None => self.called.wait(&mut posts),
            }
        }
    }

    /// Puts back the waiters of a user that still wait, to be checked again after `period`.
    fn end_round(&self, uid: u32, looked_at: HashMap<u64, WatchedWait>, period: Duration) {
        let mut posts = self.posts.lock();
        let Some(user) = posts.users.get_mut(&uid) else { return };
        for (number, post) in looked_at {
            // A new wait with the same number may have been added while the waiters were checked.
            // In that case the new wait stays, and the checked one is dropped.
            user.waiters.entry(number).or_insert(post);
        }
        user.due = boot_now() + Span::from(period);
        if user.waiters.is_empty() {
            posts.users.remove(&uid);
        }
    }
}

impl WatchedWait {
    /// Checks the waiter once. Returns false if the waiter needs no further checks.
    fn check(&mut self) -> bool {
        let waiting = self.waiter.status();
        if waiting == WaitStatus::Over {
            return false;
        }
        let sight = self.sight();
        if waiting == WaitStatus::Asks {
            if self.is_signalled(sight) {
                self.parked = Some((boot_now(), boot_now()));
                self.waiter.interrupt();
            }
            return true;
        }
        let now = boot_now();
        let (parked_at, rests_since) = self.parked.get_or_insert((now, now));
        if is_on_its_way(sight) {
            *rests_since = now;
        }
        let keeps = keeps(waiting, sight, now.since(*parked_at), now.since(*rests_since));
        if !keeps {
            self.waiter.expire();
        }
        keeps
    }

    /// Returns the current state of the thread.
    fn sight(&mut self) -> ThreadSignals {
        let Some(watched) = &self.watched else { return ThreadSignals::Quiet };
        let sight = watched.signals();
        let now = boot_now();
        if sight != ThreadSignals::Quiet || !self.freezing.0 && now < self.freezing.1 {
            return sight;
        }
        self.freezing = (watched.is_freezing(), now + FREEZER_PERIOD);
        if self.freezing.0 { ThreadSignals::Freezing } else { sight }
    }

    /// Whether the status of the thread shows that the thread has a signal to handle.
    fn is_signalled(&mut self, sight: ThreadSignals) -> bool {
        match sight {
            ThreadSignals::Signalled | ThreadSignals::Gone => true,
            // The first check may have come before the freezer has woken the thread.
            ThreadSignals::PerhapsSignalled | ThreadSignals::Freezing => {
                std::mem::replace(&mut self.doubtful, true)
            }
            ThreadSignals::Quiet | ThreadSignals::Running | ThreadSignals::Stopped => {
                self.doubtful = false;
                false
            }
        }
    }
}

/// Whether an interrupted thread may be about to repeat its request: it has not taken its signal
/// yet, or it runs.
fn is_on_its_way(sight: ThreadSignals) -> bool {
    matches!(
        sight,
        ThreadSignals::Running | ThreadSignals::Signalled | ThreadSignals::PerhapsSignalled
    )
}

/// Whether the queue place of an interrupted waiter is still kept. The waiter was interrupted the
/// time `parked` ago, and its thread was last seen running the time `rests` ago.
fn keeps(waiting: WaitStatus, sight: ThreadSignals, parked: Span, rests: Span) -> bool {
    match (waiting, sight) {
        (_, ThreadSignals::Gone) => false,
        // The lock was granted to the interrupted waiter, which does not know it yet. Other clients
        // wait for the lock, so the grant is kept for a short time only, even if the thread is
        // stopped, and given back once the thread sleeps in another call.
        (WaitStatus::Unclaimed, _) => rests < GRANT_KEPT && parked < PLACE_KEPT,
        (_, ThreadSignals::Stopped | ThreadSignals::Freezing) => true,
        _ => rests < PLACE_KEPT && parked < PLACE_KEPT_MAX,
    }
}

/// Returns the text of `/proc/TID/status`; `None` if the thread has ended. A program chooses its
/// own name, which may hold any bytes.
pub fn status_text(tid: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{tid}/status")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the supplementary groups of the thread `tid`; none if it has ended.
pub fn groups_of(tid: u32) -> Vec<u32> {
    let status = status_text(tid).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

/// Whether a program may leave a file of this group set-group-id: it belongs to the group, or to
/// root.
pub fn may_keep_set_gid(who: Requester, group: u32) -> bool {
    who.uid == 0 || who.gid == group || groups_of(who.pid).contains(&group)
}

/// The status file of a waiting thread, kept open: another read of it costs half of opening and
/// reading it again.
#[derive(Debug)]
pub(crate) struct WatchedThread {
    tid: u32,
    status: File,
}

/// The state of a watched thread, as one read of its status shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadSignals {
    /// The thread sleeps and has no deliverable signal.
    Quiet,
    /// The thread runs or is runnable, so it does not wait, and has no deliverable signal.
    Running,
    /// A signal is pending for this thread, and no other thread can take it.
    Signalled,
    /// A signal is pending for the whole process. Another of its threads may take the signal, so it
    /// counts only if the next check sees one again.
    PerhapsSignalled,
    /// The thread sleeps, and the freezer of a cgroup wants to freeze it, or has frozen it.
    Freezing,
    /// The thread is stopped. It repeats its request when it is continued.
    Stopped,
    /// The watched thread has ended.
    Gone,
}

/// The number of bytes of a status file that are read at first. That is the whole file, except for
/// a thread with very many groups.
const STATUS_BYTES: usize = 2_048;
/// The maximum size of a status file. A process has at most 65,536 groups, each of which takes up
/// to 11 bytes.
const STATUS_BYTES_MAX: usize = 1 << 20;

impl WatchedThread {
    /// Opens the status file of the thread `tid`. Returns `None` if the thread lives in another pid
    /// namespace, or has ended.
    pub(crate) fn new(tid: u32) -> Option<Self> {
        let status = File::open(format!("/proc/{tid}/status")).ok()?;
        (tid != 0).then_some(Self { tid, status })
    }

    /// Returns the file-system user id of the thread, under which it accesses files.
    pub(crate) fn user(&self) -> Option<u32> {
        self.read(|text| {
            let ids = text.split(|byte| *byte == b'\n').find_map(|l| l.strip_prefix(b"Uid:"))?;
            // The line `Uid:` holds the real, effective, saved and file-system user id.
            let id = ids.split(|byte| *byte == b'\t').nth(4)?;
            number(id, 10)?.try_into().ok()
        })
    }

    /// Whether the freezer of a cgroup wants to freeze the thread, or has frozen it.
    pub(crate) fn is_freezing(&self) -> bool {
        is_freezing(self.tid)
    }

    /// Reads the current state of the watched thread.
    pub(crate) fn signals(&self) -> ThreadSignals {
        self.read(read_status).unwrap_or(ThreadSignals::Gone)
    }

    /// Returns the result of `parse` for the text of the status file; `None` if the thread has
    /// ended.
    fn read<T>(&self, parse: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let mut bytes = [0; STATUS_BYTES];
        let length = self.status.read_at(&mut bytes, 0).ok()?;
        let parsed = parse(&bytes[..length]);
        if parsed.is_some() || length < STATUS_BYTES {
            return parsed;
        }
        let mut bytes = vec![0; STATUS_BYTES_MAX];
        let length = self.status.read_at(&mut bytes, 0).ok()?;
        parse(&bytes[..length])
    }
}

/// Parses the text of a thread's status file; returns `None` if a line is missing, as for a thread
/// that is ending.
fn read_status(text: &[u8]) -> Option<ThreadSignals> {
    let (mut state, mut threads) = (0, 1);
    let (mut pending, mut shared, mut blocked) = (0, 0, 0);
    for line in text.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        match &line[..colon] {
            b"State" => state = *value.first()?,
            b"Threads" => threads = number(value, 10)?,
            b"SigPnd" => pending = number(value, 16)?,
            b"ShdPnd" => shared = number(value, 16)?,
            b"SigBlk" => blocked = number(value, 16)?,
            b"SigIgn" => {
                let deaf = blocked | number(value, 16)?;
                return Some(sight(state, threads, pending & !deaf, shared & !deaf));
            }
            _ => {}
        }
    }
    None
}

fn sight(state: u8, threads: u64, pending: u64, shared: u64) -> ThreadSignals {
    // A pending SIGKILL always counts, because it ends every thread of the process.
    let kills = (pending | shared) & (1 << (libc::SIGKILL - 1)) != 0;
    match (state, pending, shared) {
        (b'Z' | b'X' | b'x', ..) => ThreadSignals::Gone,
        (_, 1.., _) => ThreadSignals::Signalled,
        (_, _, 1..) if kills || threads == 1 => ThreadSignals::Signalled,
        (_, _, 1..) => ThreadSignals::PerhapsSignalled,
        (b'T' | b't', ..) => ThreadSignals::Stopped,
        (b'R', ..) => ThreadSignals::Running,
        _ => ThreadSignals::Quiet,
    }
}

fn number(text: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, radix).ok()
}

/// The directories at which the hierarchies with freezers are mounted.
#[derive(Debug, Default)]
struct Hierarchies {
    unified: Option<PathBuf>,
    /// The hierarchy of version 1 with the controller `freezer`.
    freezer: Option<PathBuf>,
}

static HIERARCHIES: LazyLock<Hierarchies> = LazyLock::new(|| {
    let mounts = mountinfo::read().unwrap_or_default();
    let first = |wanted: fn(&mountinfo::MountPoint) -> bool| {
        mounts.iter().find(|mount| wanted(mount)).map(|mount| mount.dir.clone())
    };
    Hierarchies {
        unified: first(|mount| mount.kind == "cgroup2"),
        freezer: first(|mount| mount.kind == "cgroup" && mount.dir.ends_with("freezer")),
    }
});

/// Whether a cgroup of the thread `tid` is frozen or about to be.
pub(super) fn is_freezing(tid: u32) -> bool {
    let cgroups = fs::read_to_string(format!("/proc/{tid}/cgroup")).unwrap_or_default();
    cgroups.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return false };
        match (controllers, &*HIERARCHIES) {
            ("", Hierarchies { unified: Some(root), .. }) => freezes(root, path),
            ("freezer", Hierarchies { freezer: Some(root), .. }) => {
                says(&inside(root, path).join("freezer.state"), |state| state != "THAWED")
            }
            _ => false,
        }
    })
}

/// Whether the cgroup `path` of the unified hierarchy, or one above it, is to be frozen.
fn freezes(root: &Path, path: &str) -> bool {
    let dir = inside(root, path);
    let to_root = dir.ancestors().take_while(|above| above.starts_with(root));
    to_root.into_iter().any(|dir| says(&dir.join("cgroup.freeze"), |state| state == "1"))
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn says(file: &Path, wanted: impl Fn(&str) -> bool) -> bool {
    fs::read_to_string(file).is_ok_and(|state| wanted(state.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// A test waiter that reports the calls it receives, and returns the given states in turn.
    struct ReportedWait(Sender<&'static str>, Mutex<Vec<WaitStatus>>);

    impl InterruptibleWait for ReportedWait {
        fn status(&self) -> WaitStatus {
            let mut left = self.1.lock();
            if left.len() > 1 { left.remove(0) } else { left[0] }
        }

        fn interrupt(&self) {
            let _ = self.0.send("interrupted");
        }

        fn expire(&self) {
            let _ = self.0.send("expired");
        }
    }

    /// The queue place of an interrupted waiter is given up if the waiter's thread sleeps in
    /// another call, but not if the thread is runnable and has only waited for a processor.
    #[test]
    fn place_is_kept_while_its_thread_may_return() {
        let millis = Span::from_millis;
        let parked =
            |sight, parked, rests| keeps(WaitStatus::Parked, sight, millis(parked), millis(rests));
        assert!(
            parked(ThreadSignals::Quiet, 3_000, 199) && !parked(ThreadSignals::Quiet, 3_000, 200)
        );
        assert!(
            parked(ThreadSignals::Running, 4_999, 0) && !parked(ThreadSignals::Running, 5_000, 0)
        );
        assert!(parked(ThreadSignals::Stopped, 3_600_000, 3_600_000));
        assert!(!parked(ThreadSignals::Gone, 0, 0));
        let unclaimed = |sight, parked, rests| {
            keeps(WaitStatus::Unclaimed, sight, millis(parked), millis(rests))
        };
        assert!(unclaimed(ThreadSignals::Running, 199, 0));
        assert!(!unclaimed(ThreadSignals::Running, 200, 0));
        for sight in [ThreadSignals::Quiet, ThreadSignals::Stopped] {
            assert!(unclaimed(sight, 29, 29) && !unclaimed(sight, 30, 30));
        }
        assert!(parked(ThreadSignals::Freezing, 3_600_000, 3_600_000));
        for sight in
            [ThreadSignals::Running, ThreadSignals::Signalled, ThreadSignals::PerhapsSignalled]
        {
            assert!(is_on_its_way(sight));
        }
        assert!(
            ![ThreadSignals::Quiet, ThreadSignals::Stopped, ThreadSignals::Gone]
                .into_iter()
                .any(is_on_its_way)
        );
    }

    /// A process that has ended is treated like one with a signal; the queue place of an
    /// interrupted waiter is kept for a moment; a waiter that was answered is not checked any more.
    #[test]
    fn each_waiter_is_treated_according_to_its_status() {
        let mut gone = std::process::Command::new("true").spawn().expect("true is there");
        let (send, reported) = channel();
        let interrupts = InterruptWatcher::new(Shares::default());
        let waiter =
            |waiting: &[WaitStatus]| ReportedWait(send.clone(), Mutex::new(waiting.to_vec()));
        interrupts.watch(1, gone.id(), waiter(&[WaitStatus::Asks, WaitStatus::Parked]));
        gone.wait().expect("it ends");
        assert_eq!(reported.recv(), Ok("interrupted"));
        assert_eq!(reported.recv(), Ok("expired"));
        let own = std::process::id();
        interrupts.watch(2, own, waiter(&[WaitStatus::Asks, WaitStatus::Unclaimed]));
        assert_eq!(reported.recv(), Ok("expired"));
        interrupts.watch(3, own, waiter(&[WaitStatus::Asks, WaitStatus::Over]));
        while !interrupts.inner.posts.lock().users.is_empty() {
            std::thread::yield_now();
        }
        assert!(reported.try_recv().is_err());
    }
}

#[cfg(test)]
mod caller_status_tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_hides_nothing() {
        let named = std::thread::spawn(|| {
            rustix::thread::set_name(c"\xff\xfe").expect("renamed");
            status_text(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
        });
        let status = named.join().expect("ended").expect("it is read");
        assert!(status.contains("\nGroups:"), "{status}");
    }

    #[test]
    fn only_members_and_root_leave_a_file_set_group_id() {
        let who = |uid, gid| Requester { uid, gid, pid: u32::MAX - 1 };
        assert!(may_keep_set_gid(who(0, 0), 7) && may_keep_set_gid(who(5, 7), 7));
        assert!(!may_keep_set_gid(who(5, 6), 7));
    }
}

#[cfg(test)]
mod pending_signals_tests {
    use super::*;

    fn status(
        state: &str,
        threads: u32,
        pending: u64,
        shared: u64,
        deaf: [u64; 2],
    ) -> Option<ThreadSignals> {
        let [blocked, ignored] = deaf;
        let text = format!(
            "Name:\tx: y\nState:\t{state}\nPid:\t7\nThreads:\t{threads}\nSigQ:\t0/9\n\
             SigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n\
             SigIgn:\t{ignored:016x}\nSigCgt:\t0\n"
        );
        read_status(text.as_bytes())
    }

    #[test]
    fn a_signal_counts_unless_blocked_or_ignored() {
        let (int, term) = (1 << (libc::SIGINT - 1), 1 << (libc::SIGTERM - 1));
        assert_eq!(status("D (disk sleep)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Quiet));
        assert_eq!(status("D (disk sleep)", 1, 0, int, [0, 0]), Some(ThreadSignals::Signalled));
        assert_eq!(status("D (disk sleep)", 1, int, 0, [0, 0]), Some(ThreadSignals::Signalled));
        assert_eq!(status("D (disk sleep)", 1, 0, int, [int, 0]), Some(ThreadSignals::Quiet));
        assert_eq!(status("D (disk sleep)", 1, 0, int, [0, int]), Some(ThreadSignals::Quiet));
        assert_eq!(
            status("D (disk sleep)", 1, 0, int | term, [int, 0]),
            Some(ThreadSignals::Signalled)
        );
    }

    #[test]
    fn a_process_wide_signal_is_ambiguous_with_several_threads() {
        let (int, kill) = (1 << (libc::SIGINT - 1), 1 << (libc::SIGKILL - 1));
        assert_eq!(
            status("D (disk sleep)", 2, 0, int, [0, 0]),
            Some(ThreadSignals::PerhapsSignalled)
        );
        assert_eq!(status("D (disk sleep)", 2, 0, kill, [0, 0]), Some(ThreadSignals::Signalled));
    }

    #[test]
    fn stopped_and_dead_threads_are_distinguished() {
        assert_eq!(status("R (running)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Running));
        assert_eq!(status("S (sleeping)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Quiet));
        assert_eq!(status("T (stopped)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Stopped));
        assert_eq!(status("Z (zombie)", 1, 0, 0, [0, 0]), Some(ThreadSignals::Gone));
        assert_eq!(read_status(b"Name:\tx\nState:\tR (running)\n"), None);
    }

    #[test]
    fn own_thread_is_running_and_tid_zero_is_rejected() {
        let own = fs::read_link("/proc/thread-self").expect("a link");
        let tid = own.file_name().and_then(|tid| tid.to_str()?.parse().ok()).expect("a number");
        assert_eq!(
            WatchedThread::new(tid).expect("this thread has a status").signals(),
            ThreadSignals::Running
        );
        assert!(WatchedThread::new(0).is_none());
        let status = fs::metadata("/proc/thread-self/status").expect("this thread has one");
        let user = std::os::unix::fs::MetadataExt::uid(&status);
        assert_eq!(WatchedThread::new(tid).and_then(|thread| thread.user()), Some(user));
    }
}
