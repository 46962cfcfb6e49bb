//! The guard of a folder that has no view: programs change the folder directly, and a Unix socket
//! takes the requests of `latchfs guard`. Lock, sync barrier and markers are those of a view;
//! nothing keeps a program from writing without the lock.
//!
//! The modules in reading order:
//!
//! - `peer` says which user is at the other end of a socket.
//! - `connection` reads the request of a client and writes the answer, both with bounds.
//! - `event_board` wakes the threads that wait for news of the guard.
//! - `request_count` counts the requests that are under way.
//! - `plain_guard` carries out the requests.
//! - `listener` accepts the connections.
//!
//! Carries out the requests to a guard that has no view.
//!
//! The events of a guard without a view, and the threads that wait for them.
//!
//! One client of the socket: it sends requests, each a line of JSON, and gets a line for each.
//!
//! The socket of a guard without a view, in the private directory of its machine.
//!
//! The process at the other end of a Unix socket, as the kernel names it.
//!
//! The number of requests that are under way: a guard without a view ends when nobody needs it.

use crate::auth::{FolderAct, FolderUser, TenureOf};
use crate::base::said;
use crate::guard::disk::operations::Disk;
use crate::guard::folder::folder_guard::FolderGuard;
use crate::guard::guard_request::{ACCEPT_PATIENCE, GuardRequest, REQUEST_BYTES_MAX, refused};
use crate::guard::lock::asking::LockUse;
use crate::guard::lock::folder_lock::FolderLock;
use crate::guard::tenure::Owner;
use crate::guard::tenures::sequence::{GuardState, Tenures};
use crate::guard::tenures::tenure_events::{EventPosition, EventQueue, NewsCommands, TenureEvent};
use crate::guard::tenures::wishes::{Denied, TenureNews, WishOf};
use crate::guard::write_policy::WritePolicy;
use crate::time::{Span, Time, boot_now};
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long a client may take for its first request.
const REQUEST_PATIENCE: Span = Span::from_secs(5);
/// How long a client may take for each further request.
const NEXT_REQUEST_PATIENCE: Span = Span::from_secs(60);
/// How long `guard take` waits until the lock service knows that changes follow.
const ANNOUNCE_PATIENCE: Span = Span::from_secs(10);
/// How long a guard that has just been started waits for its first request.
const FIRST_REQUEST_PATIENCE: Span = Span::from_secs(30);
/// How long a guard that has given the lock up stays to write a marker that was not written before.
const UNMARKED_PATIENCE: Span = Span::from_secs(60);
/// How often a guard without clients checks whether a marker was written, or whether the lock is
/// held or given up.
const STATE_CHECK: Span = Span::from_millis(200);

/// The answer to a request that is no request of this guard.
const KNOWN: &str = "a guard without a view knows take, give, use, accept, wait, events and \
                     status; 'latchfs guard lost' needs a view";

/// The answer to a request about snapshots.
const NO_SNAPSHOTS: &str = "a folder snapshot needs a view, through which the guard keeps programs \
                            waiting while it looks at the files; show the folder with 'latchfs \
                            guard FOLDER VIEW'";

/// The guard of a folder that programs change directly.
pub(crate) struct PlainGuard<D: Disk> {
    tenures: Arc<Tenures<D>>,
    events: Arc<EventBoard>,
    /// The path of the folder, for messages.
    folder: PathBuf,
    /// The uid to whom the folder belongs.
    owner: u32,
    /// The requests that must be answered before the guard ends.
    requests: RequestCount,
    /// Whether a request to give the lock up was carried out since the last tenure began.
    is_given: AtomicBool,
    wake: Sender<Wake>,
}

/// Why the guard checks whether it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A request was answered.
    Answered,
    /// Somebody has ended the process.
    Signal,
}

impl<D: Disk> PlainGuard<D> {
    /// Starts the threads of the guard. `wake` wakes [`Self::serve`].
    pub(crate) fn start(
        guard: Arc<FolderGuard<D>>,
        lock: Arc<FolderLock>,
        folder: PathBuf,
        owner: u32,
        commands: NewsCommands,
        wake: Sender<Wake>,
    ) -> io::Result<Arc<Self>> {
        let events = Arc::new(EventBoard::default());
        let (publisher, shown) = (Arc::clone(&events), folder.display().to_string());
        let on_news = Box::new(move |news: &TenureNews| {
            if let TenureNews::Ended(_, end, _) = news
                && end.is_loss()
            {
                log::error!(
                    "{}: the lock of {shown} is lost, and programs must not write any more",
                    end.clause()
                );
            }
            if let Some(event) = TenureEvent::of(news) {
                commands.run(news, &event);
                publisher.publish(&event);
            }
        });
        let policy = Arc::new(WritePolicy::without_view());
        let tenures = Tenures::start(guard, lock, policy, on_news)?;
        let (requests, is_given) = (RequestCount::default(), AtomicBool::new(false));
        Ok(Arc::new(Self { tenures, events, folder, owner, requests, is_given, wake }))
    }

    /// Waits until nobody needs the guard any more, or until somebody ends it.
    pub(crate) fn serve(&self, wakes: &Receiver<Wake>) {
        let mut patience = FIRST_REQUEST_PATIENCE;
        let mut unmarked_until = None;
        loop {
            match wakes.recv_timeout(patience.as_duration()) {
                Ok(Wake::Signal) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Wake::Answered) | Err(RecvTimeoutError::Timeout) => {}
            }
            patience = FIRST_REQUEST_PATIENCE;
            if self.is_needed() {
                unmarked_until = None;
                if self.is_changing() {
                    patience = STATE_CHECK;
                }
                continue;
            }
            let until: Time = *unmarked_until.get_or_insert(boot_now() + UNMARKED_PATIENCE);
            if !self.tenures.has_unmarked_changes() || until <= boot_now() {
                return;
            }
            patience = STATE_CHECK;
        }
    }

    /// Whether a request is under way, the lock is held, or it was lost and nobody knows that yet.
    fn is_needed(&self) -> bool {
        let is_lost = self.tenures.last_end().is_some_and(|(_, end)| end.is_loss());
        self.requests.now() > 0
            || self.tenures.state() != GuardState::Reading
            || is_lost && !self.is_given.load(Ordering::Acquire)
    }

    /// Whether the state is about to change although no request is under way: a client has ended
    /// its wait. Nobody tells of such a change.
    fn is_changing(&self) -> bool {
        let is_resting =
            matches!(self.tenures.state(), GuardState::Reading | GuardState::Holding(..));
        self.requests.now() == 0 && !is_resting
    }

    /// Gives the lock up, and ends the threads.
    pub(crate) fn stop(&self) {
        self.tenures.stop();
    }

    /// Returns a user. The lock is held for all programs of the machine, so that nobody is the
    /// owner of the tenure.
    fn user(uid: u32) -> FolderUser {
        let guard = rustix::process::geteuid().as_raw();
        FolderUser { uid, guard, tenure: TenureOf::Nobody }
    }

    fn sees_names(&self, uid: u32, act: FolderAct) -> bool {
        Self::user(uid).sees_names(act, || Some(self.owner))
    }

    fn status(&self, uid: u32) -> Value {
        self.tenures.status(&self.folder, self.sees_names(uid, FolderAct::ShowState))
    }

    /// Answers the requests of a client until it has no more.
    pub(super) fn converse(&self, client: &Connection) -> io::Result<()> {
        let mut patience = REQUEST_PATIENCE;
        while let Some(request) = client.request(patience) {
            let request = match request.map(|text| GuardRequest::parse(&text)) {
                Ok(Ok(request)) => request,
                Ok(Err(why)) => return client.answer(&refused(why)),
                Err(TooLong) => return client.answer(&refused("the request is too long")),
            };
            let act = request.act();
            if let Some(Err(why)) = act.map(|act| Self::user(client.peer.uid).check(act)) {
                client.answer(&refused(why))?;
                patience = NEXT_REQUEST_PATIENCE;
                continue;
            }
            if request == GuardRequest::Events {
                return self.follow(client);
            }
            let Some(answer) = self.answer_to(client, request) else { return Ok(()) };
            client.answer(&answer)?;
            patience = NEXT_REQUEST_PATIENCE;
        }
        Ok(())
    }

    /// Carries out a request of a user who may make it. Returns the answer; `None` if the client
    /// has ended its wait.
    fn answer_to(&self, client: &Connection, request: GuardRequest) -> Option<Value> {
        match request {
            GuardRequest::Status => return Some(self.status(client.peer.uid)),
            GuardRequest::Wait => return self.wait(client),
            GuardRequest::Snapshot(_) => return Some(refused(NO_SNAPSHOTS)),
            _ => {}
        }
        let counted = self.requests.one_more();
        let answer = match request {
            GuardRequest::Take { away: Some(_), .. } => Some(refused(
                "a lock is taken along through a view only; show the folder with 'latchfs guard \
                 FOLDER VIEW', and take the lock there",
            )),
            GuardRequest::Take { patience, .. } => self.take(client, WishOf::Person, patience),
            GuardRequest::Accept(Ok(wish)) => self.take(client, wish, ACCEPT_PATIENCE),
            GuardRequest::Accept(Err(why)) => Some(refused(why)),
            GuardRequest::Use(token) => Some(self.begin_use(client, token)),
            GuardRequest::EndUse { token, gives } => Some(self.end_use(client, token, gives)),
            GuardRequest::Give { .. } => Some(match self.tenures.uses.check_unused() {
                Ok(()) => self.give(client.peer.uid),
                Err(why) => refused(why),
            }),
            _ => Some(refused(KNOWN)),
        };
        // The request is no longer counted before its answer is sent: the client may start the
        // guard again at once.
        self.answered(counted);
        answer
    }

    fn answered(&self, counted: CountedRequest) {
        drop(counted);
        // The send fails only if the process is about to end.
        let _ = self.wake.send(Wake::Answered);
    }

    /// Takes the lock, and has the lock service know that changes follow. Returns `None` if the
    /// client has ended the wait.
    fn take(&self, client: &Connection, wish: WishOf, patience: Span) -> Option<Value> {
        let (waits, holder_presence) = (client.presence().clone(), client.presence().clone());
        let is_wanted = Box::new(move || !waits.is_gone());
        let then = Box::new(move |answer| holder_presence.held(answer));
        self.tenures.hold(Owner::Host, wish, patience, is_wanted, then);
        let Some(held) = client.wait_for_lock() else {
            self.tenures.recheck();
            return None;
        };
        if let Err(Denied { sentence }) = held {
            return Some(refused(self.with_names(client.peer.uid, sentence)));
        }
        self.is_given.store(false, Ordering::Release);
        if let Err(Denied { sentence }) = self.announced() {
            self.give_now();
            return Some(refused(sentence));
        }
        Some(self.status(client.peer.uid))
    }

    /// Waits until the lock service knows that changes follow.
    fn announced(&self) -> Result<(), Denied> {
        let (send, announced) = channel();
        let then = Box::new(move |answer| send.send(answer).unwrap_or_default());
        self.tenures.announced(ANNOUNCE_PATIENCE, then);
        let over = || Denied { sentence: "the guard ends".to_owned() };
        announced.recv().unwrap_or_else(|_| Err(over()))
    }

    /// Returns the reason of a refusal with the names of files, if the user may know them.
    fn with_names(&self, uid: u32, sentence: String) -> String {
        let not_ready = self.tenures.not_ready().filter(|why| why.text(false) == sentence);
        match not_ready {
            Some(why) => why.text(self.sees_names(uid, FolderAct::ShowState)).to_owned(),
            None => sentence,
        }
    }

    fn give_now(&self) {
        let (send, given) = channel();
        self.tenures.give(None, move || send.send(()).unwrap_or_default());
        // The receive fails only if the thread of the tenures has ended.
        let _ = given.recv();
    }

    /// Writes the last marker, and gives the lock up.
    fn give(&self, uid: u32) -> Value {
        self.give_now();
        self.is_given.store(true, Ordering::Release);
        let mut status = self.status(uid);
        status["untold"] = json!(!self.tenures.is_marked());
        status
    }

    /// Begins a use of the lock by a program that must end before the lock is given up.
    fn begin_use(&self, client: &Connection, token: u64) -> Value {
        let (send, begun) = channel();
        let then = move |begun| send.send(begun).unwrap_or_default();
        self.tenures.begin_use(client.peer.pid, token, then);
        // The receive fails only if the thread of the tenures has ended.
        match begun.recv().ok().flatten() {
            Some(begun) => {
                *client.lock_use.lock() = Some(begun);
                self.status(client.peer.uid)
            }
            None => refused("the lock was lost or given up meanwhile; try again"),
        }
    }

    /// Ends the use. Gives the lock up as well, if a program took it for its use and no other one
    /// uses it any more.
    fn end_use(&self, client: &Connection, token: u64, gives: bool) -> Value {
        let ended = client.lock_use.lock().take();
        if ended.is_some() {
            drop(ended);
            let (send, released) = channel();
            let then = move || send.send(()).unwrap_or_default();
            self.tenures.give_unused(token, gives, then);
            let _ = released.recv();
            self.is_given.fetch_or(gives, Ordering::AcqRel);
        }
        self.status(client.peer.uid)
    }

    /// Waits until the lock is held and the folder is ready. Returns `None` if the client has ended
    /// the wait.
    fn wait(&self, client: &Connection) -> Option<Value> {
        let mut position = self.events.reader();
        while !self.tenures.may_change() {
            let is_held = matches!(self.tenures.state(), GuardState::Holding(..));
            if is_held && self.announced().is_ok() {
                continue;
            }
            self.events.next(&mut position, false, client.presence())?;
        }
        Some(self.status(client.peer.uid))
    }

    /// Writes the events as they happen.
    fn follow(&self, client: &Connection) -> io::Result<()> {
        let mut position = self.events.reader();
        // The client knows from the first line that it misses no event from now on.
        client.answer(
            &json!({"event": "following", "state": self.status(client.peer.uid)["state"]}),
        )?;
        let may_see = self.sees_names(client.peer.uid, FolderAct::FollowEvents);
        while let Some(line) = self.events.next(&mut position, may_see, client.presence()) {
            client.line(&line)?;
        }
        Ok(())
    }

    /// Wakes the threads that wait for an event, since a client is gone.
    pub(super) fn client_is_gone(&self) {
        self.events.wake();
    }
}

/// The maximum number of bytes of an event that are written at a time.
const PIECE_BYTES: usize = 1 << 16;

/// The events of the guard, for the clients that follow them.
#[derive(Default)]
pub(super) struct EventBoard {
    queue: Mutex<EventQueue>,
    news: Condvar,
}

impl EventBoard {
    /// Adds an event, and wakes the threads that wait.
    pub(super) fn publish(&self, event: &TenureEvent) {
        self.queue.lock().publish(event);
        self.news.notify_all();
    }

    /// Wakes the threads that wait, for example because a client is gone.
    pub(super) fn wake(&self) {
        // The lock is held, so that no thread is between its check of the queue and its wait.
        let _queue = self.queue.lock();
        self.news.notify_all();
    }

    /// Returns the position of a reader who gets the events from now on.
    pub(super) fn reader(&self) -> EventPosition {
        self.queue.lock().reader()
    }

    /// Waits for the next event of a reader. Returns `None` if its client is gone.
    pub(super) fn next(
        &self,
        position: &mut EventPosition,
        may_see_names: bool,
        presence: &Presence,
    ) -> Option<Vec<u8>> {
        let mut queue = self.queue.lock();
        loop {
            if presence.is_gone() {
                return None;
            }
            if let Some(line) = queue.next(position, may_see_names, PIECE_BYTES) {
                return Some(line);
            }
            self.news.wait(&mut queue);
        }
    }
}

/// How long a client may take to read a part of its answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// The messages of the client, and those of the thread of the tenures for it.
#[derive(Default)]
struct Inbox {
    /// The request that was read and not taken yet. The next one is not read before this one is
    /// taken.
    request: Option<Result<Vec<u8>, TooLong>>,
    /// The answer to the wait for the lock.
    held: Option<Result<(), Denied>>,
    /// Whether the client has closed the connection, or this process is about to.
    is_gone: bool,
}

/// A request is too long, or its end did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

/// The part of a connection that other threads use.
#[derive(Clone, Default)]
pub(super) struct Presence(Arc<(Mutex<Inbox>, Condvar)>);

impl Presence {
    /// Whether the client has closed the connection.
    pub(super) fn is_gone(&self) -> bool {
        self.0.0.lock().is_gone
    }

    /// Takes note of the answer to the client's wait for the lock.
    pub(super) fn held(&self, answer: Result<(), Denied>) {
        self.0.0.lock().held = Some(answer);
        self.0.1.notify_all();
    }

    fn leave(&self) {
        self.0.0.lock().is_gone = true;
        self.0.1.notify_all();
    }

    /// Passes a request on, once the one before was taken. Returns whether the client is still
    /// there.
    fn put(&self, request: Result<Vec<u8>, TooLong>) -> bool {
        let mut inbox = self.0.0.lock();
        while inbox.request.is_some() && !inbox.is_gone {
            self.0.1.wait(&mut inbox);
        }
        inbox.request = Some(request);
        self.0.1.notify_all();
        !inbox.is_gone
    }
}

/// A connected client.
pub(super) struct Connection {
    stream: UnixStream,
    presence: Presence,
    /// The client.
    pub(super) peer: Peer,
    /// The use of the lock by the client, which ends with the connection.
    pub(super) lock_use: Mutex<Option<LockUse>>,
}

impl Connection {
    /// Determines which user has connected, and starts the thread that reads its requests.
    /// `on_gone` is called when the client closes the connection.
    pub(super) fn new(
        stream: UnixStream,
        on_gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let peer = peer_of(&stream)?;
        stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
        let (from, presence) = (stream.try_clone()?, Presence::default());
        let reader_presence = presence.clone();
        let read = move || {
            read_requests(&from, &reader_presence);
            reader_presence.leave();
            on_gone();
        };
        std::thread::Builder::new().name("client".to_owned()).spawn(read)?;
        Ok(Self { stream, presence, peer, lock_use: Mutex::default() })
    }

    /// Returns the part of the connection that other threads use.
    pub(super) const fn presence(&self) -> &Presence {
        &self.presence
    }

    /// Waits for the next request. Returns `None` if the client has none for so long, or is gone.
    pub(super) fn request(&self, patience: Span) -> Option<Result<Vec<u8>, TooLong>> {
        let until = boot_now() + patience;
        let (inbox, news) = &*self.presence.0;
        let mut inbox = inbox.lock();
        loop {
            if let Some(request) = inbox.request.take() {
                news.notify_all();
                return Some(request);
            }
            let left = until.since(boot_now());
            if inbox.is_gone || left == Span::ZERO {
                return None;
            }
            let _ = news.wait_for(&mut inbox, left.as_duration());
        }
    }

    /// Waits for the answer to the wait for the lock. Returns `None` if the client is gone.
    pub(super) fn wait_for_lock(&self) -> Option<Result<(), Denied>> {
        let (inbox, news) = &*self.presence.0;
        let mut inbox = inbox.lock();
        loop {
            if inbox.is_gone {
                return None;
            }
            if let Some(held) = inbox.held.take() {
                return Some(held);
            }
            news.wait(&mut inbox);
        }
    }

    /// Writes an answer.
    pub(super) fn answer(&self, answer: &Value) -> io::Result<()> {
        self.line(format!("{answer}\n").as_bytes())
    }

    /// Writes a part of an answer.
    pub(super) fn line(&self, line: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(line)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.presence.leave();
        // Ends the thread that reads. It fails if the client is gone.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Reads requests until the client is gone.
fn read_requests(mut from: &UnixStream, presence: &Presence) {
    let (mut request, mut part) = (Vec::new(), [0; 1_024]);
    loop {
        let length = match from.read(&mut part) {
            Ok(length @ 1..) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return,
        };
        for byte in &part[..length] {
            request.push(*byte);
            if *byte == b'\n' && !presence.put(Ok(std::mem::take(&mut request))) {
                return;
            }
            if request.len() > REQUEST_BYTES_MAX {
                presence.put(Err(TooLong));
                return wait_for_end(from);
            }
        }
    }
}

/// Reads until the client is gone, or this process closes the connection.
fn wait_for_end(mut from: &UnixStream) {
    let mut part = [0; 1_024];
    while matches!(from.read(&mut part), Ok(1..)) {}
}

/// The name of the socket in the directory of the machine.
const SOCKET: &str = "ctl";
/// The maximum number of connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// The pause after a connection could not be accepted.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Returns the path of the socket of a guard whose machine has this directory.
pub(crate) fn socket_path(host_dir: &Path) -> PathBuf {
    host_dir.join(SOCKET)
}

/// The socket, whose file is removed when this value is dropped.
pub(crate) struct RequestSocket {
    path: PathBuf,
}

impl RequestSocket {
    /// Makes the socket, and answers the requests that come to it. The caller has locked the folder
    /// against other guards, so that a socket which is there already is that of a killed one.
    pub(crate) fn serve<D: Disk>(host_dir: &Path, guard: &Arc<PlainGuard<D>>) -> io::Result<Self> {
        let path = socket_path(host_dir);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (listener, guard) = (UnixListener::bind(&path)?, Arc::clone(guard));
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let accept = move || accept_all(&listener, &guard);
        std::thread::Builder::new().name("requests".to_owned()).spawn(accept)?;
        Ok(Self { path })
    }
}

impl Drop for RequestSocket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            log::debug!("{} stays: {}", self.path.display(), said(&error));
        }
    }
}

fn accept_all<D: Disk>(listener: &UnixListener, guard: &Arc<PlainGuard<D>>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                log::warn!("a request can't be accepted: {}", said(&error));
                // Too many files are open. The next connection waits until one is closed.
                std::thread::sleep(FULL_PAUSE);
                continue;
            }
        };
        if let Err(error) = begin(stream, guard, &open) {
            log::debug!("a request was not answered: {}", said(&error));
        }
    }
}

/// Answers a client in a thread of its own.
fn begin<D: Disk>(
    stream: UnixStream,
    guard: &Arc<PlainGuard<D>>,
    open: &Arc<AtomicUsize>,
) -> io::Result<()> {
    let own = Arc::clone(guard);
    let client = Connection::new(stream, move || own.client_is_gone())?;
    if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
        open.fetch_sub(1, Ordering::AcqRel);
        return client.answer(&refused(format!(
            "{CONNECTIONS_MAX} programs are connected to this guard; try again when one has ended"
        )));
    }
    let (guard, counted) = (Arc::clone(guard), Arc::clone(open));
    let converse = move || {
        if let Err(error) = guard.converse(&client) {
            log::debug!("a request was not answered: {}", said(&error));
        }
        drop(client);
        counted.fetch_sub(1, Ordering::AcqRel);
    };
    let spawned = std::thread::Builder::new().name("request".to_owned()).spawn(converse);
    spawned.map(drop).inspect_err(|_| {
        open.fetch_sub(1, Ordering::AcqRel);
    })
}

/// The process that has connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// The effective uid of the process.
    pub(super) uid: u32,
    /// The id of the process.
    pub(super) pid: u32,
}

/// Returns the process that has connected.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (option, into) = (libc::SO_PEERCRED, (&raw mut found).cast());
    // SAFETY: `into` points to `length` bytes that live until the call returns.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, into, &raw mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { uid: found.uid, pid: found.pid.cast_unsigned() })
}

/// Returns the process that has connected.
#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
pub(super) fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let (mut uid, mut gid, mut pid) = (0, 0, 0_i32);
    let mut length = size_of::<i32>() as libc::socklen_t;
    let fd = stream.as_raw_fd();
    // SAFETY: all pointers are valid until the calls return.
    let result = unsafe {
        match libc::getpeereid(fd, &raw mut uid, &raw mut gid) {
            0 => libc::getsockopt(
                fd,
                libc::SOL_LOCAL,
                libc::LOCAL_PEERPID,
                (&raw mut pid).cast(),
                &raw mut length,
            ),
            failed => failed,
        }
    };
    if result == 0 {
        Ok(Peer { uid, pid: pid.cast_unsigned() })
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The number of requests that must be answered before the guard ends.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestCount(Arc<AtomicUsize>);

/// A request that is counted as long as this value lives.
pub(super) struct CountedRequest(RequestCount);

impl RequestCount {
    /// Counts one more request.
    pub(super) fn one_more(&self) -> CountedRequest {
        self.0.fetch_add(1, Ordering::AcqRel);
        CountedRequest(self.clone())
    }

    /// Returns the number of requests that are counted now.
    pub(super) fn now(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const PATIENCE: Span = Span::from_secs(30);

    fn connected() -> (UnixStream, Connection, Receiver<()>) {
        let (client, stream) = UnixStream::pair().expect("a pair");
        let (send, gone) = channel();
        let on_gone = move || send.send(()).unwrap_or_default();
        (client, Connection::new(stream, on_gone).expect("a peer"), gone)
    }

    #[test]
    fn a_request_to_the_socket_has_a_bound() {
        let (client, connection, _gone) = connected();
        (&client).write_all(b"{}\n{\"do\":1}\n").expect("written");
        assert_eq!(connection.request(PATIENCE), Some(Ok(b"{}\n".to_vec())));
        assert_eq!(connection.request(PATIENCE), Some(Ok(b"{\"do\":1}\n".to_vec())));
        assert_eq!(connection.request(Span::from_millis(1)), None, "there is no third");
        (&client).write_all(&[b'x'; REQUEST_BYTES_MAX + 1]).expect("written");
        assert_eq!(connection.request(PATIENCE), Some(Err(TooLong)));
    }

    #[test]
    fn the_end_of_a_client_ends_its_wait() {
        let (client, connection, gone) = connected();
        let presence = connection.presence().clone();
        presence.held(Ok(()));
        assert_eq!(connection.wait_for_lock(), Some(Ok(())));
        assert!(!presence.is_gone());
        drop(client);
        assert_eq!(connection.wait_for_lock(), None);
        gone.recv_timeout(PATIENCE.as_duration()).expect("the end");
        assert!(presence.is_gone());
    }
}

#[cfg(test)]
mod peer_tests {
    use super::*;

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let own = Peer { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() };
        assert_eq!(peer_of(&one).expect("known"), own);
    }
}
