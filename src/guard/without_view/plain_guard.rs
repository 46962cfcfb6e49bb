//! Carries out the requests to a guard that has no view.

use super::super::disk::Disk;
use super::super::folder_guard::FolderGuard;
use super::super::folder_lock::FolderLock;
use super::super::guard_request::{ACCEPT_PATIENCE, GuardRequest, refused};
use super::super::tenure::Owner;
use super::super::tenure_events::{NewsCommands, TenureEvent};
use super::super::tenure_news::TenureNews;
use super::super::tenures::{GuardState, Tenures};
use super::super::wish::{Denied, WishOf};
use super::super::write_policy::WritePolicy;
use super::connection::{Connection, TooLong};
use super::event_board::EventBoard;
use super::request_count::{CountedRequest, RequestCount};
use crate::auth::{FolderAct, FolderUser, TenureOf};
use crate::time::{Span, Time, boot_now};
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// How long a client may take for its first request.
const REQUEST_PATIENCE: Span = Span::from_secs(5);
/// How long it may take for the next one.
const NEXT_REQUEST_PATIENCE: Span = Span::from_secs(60);
/// How long `guard take` waits until the lock service knows that changes follow.
const ANNOUNCE_PATIENCE: Span = Span::from_secs(10);
/// How long a guard that has just been started waits for its first request.
const FIRST_REQUEST_PATIENCE: Span = Span::from_secs(30);
/// How long a guard that has given the lock up stays to write a marker that was not written before.
const UNTOLD_PATIENCE: Span = Span::from_secs(60);
/// How often the guard looks meanwhile whether the marker is there, or whether the lock is held or
/// given up whose last client has left.
const STATE_LOOK: Span = Span::from_millis(200);

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

/// Why the guard looks whether it ends.
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
        (guard, lock): (Arc<FolderGuard<D>>, Arc<FolderLock>),
        (folder, owner): (PathBuf, u32),
        commands: NewsCommands,
        wake: Sender<Wake>,
    ) -> io::Result<Arc<Self>> {
        let events = Arc::new(EventBoard::default());
        let (told, shown) = (Arc::clone(&events), folder.display().to_string());
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
                told.publish(&event);
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
        let mut untold_until = None;
        loop {
            match wakes.recv_timeout(patience.as_duration()) {
                Ok(Wake::Signal) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Wake::Answered) | Err(RecvTimeoutError::Timeout) => {}
            }
            patience = FIRST_REQUEST_PATIENCE;
            if self.is_needed() {
                untold_until = None;
                if self.is_changing() {
                    patience = STATE_LOOK;
                }
                continue;
            }
            let until: Time = *untold_until.get_or_insert(boot_now() + UNTOLD_PATIENCE);
            if !self.tenures.has_untold() || until <= boot_now() {
                return;
            }
            patience = STATE_LOOK;
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
            GuardRequest::EndUse { token, gives } => Some(self.end_use(client, (token, gives))),
            GuardRequest::Give { .. } => Some(match self.tenures.uses.check_unused() {
                Ok(()) => self.give(client.peer.uid),
                Err(why) => refused(why),
            }),
            _ => Some(refused(KNOWN)),
        };
        // Before the answer: the client may start the guard again at once.
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
        let (waits, told) = (client.presence().clone(), client.presence().clone());
        let is_wanted = Box::new(move || !waits.is_gone());
        let then = Box::new(move |answer| told.held(answer));
        self.tenures.hold((Owner::Host, wish), patience, is_wanted, then);
        let Some(held) = client.wait_for_lock() else {
            self.tenures.look();
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
        status["untold"] = json!(!self.tenures.is_told());
        status
    }

    /// Begins a use of the lock by a program that must end before the lock is given up.
    fn begin_use(&self, client: &Connection, token: u64) -> Value {
        let (send, begun) = channel();
        let then = move |begun| send.send(begun).unwrap_or_default();
        self.tenures.begin_use((client.peer.pid, token), then);
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
    fn end_use(&self, client: &Connection, (token, gives): (u64, bool)) -> Value {
        let ended = client.lock_use.lock().take();
        if ended.is_some() {
            drop(ended);
            let (send, released) = channel();
            let then = move || send.send(()).unwrap_or_default();
            self.tenures.give_unused((token, gives), then);
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
