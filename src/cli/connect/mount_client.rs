//! [`LockClient`], by which commands send their requests, and its implementation for mounts, which
//! writes each request as a JSON object to `.latchfs/ctl` and reads the answer as another. The
//! implementation for servers is in `remote_client`.

use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output;
use crate::control::ControlRequest;
use crate::engine::{LockName, RefusalKind};
use crate::service::List;
use crate::time::Span;
use kernel::mountinfo;
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// How long a request to a mount is unanswered before the command says so. A running daemon answers
/// in microseconds.
const HINT_AFTER: Span = Span::from_secs(1);
/// How much longer the command waits after the hint. A daemon that has not answered by then is
/// probably suspended.
const MORE_PATIENCE: Span = Span::from_secs(9);
/// The maximum number of locks in one answer to a list request.
pub(in crate::cli) const PAGE: usize = 1_000;

/// The interface by which commands send requests to a mount or a server.
pub(in crate::cli) trait LockClient: Send + Sync {
    /// Sends a request, and returns the answer. A refusal becomes an error with its message.
    fn request(&self, request: &ControlRequest) -> CliResult<Value>;

    /// Sends a request that may wait in a queue, and returns the answer, however long it takes.
    fn wait(&self, request: &ControlRequest) -> CliResult<Value>;

    /// Sends a request like [`Self::request`] beside one that waits: fails if it would need a new
    /// connection, or if the answer does not come soon.
    fn request_connected(&self, request: &ControlRequest) -> CliResult<Value> {
        self.request(request)
    }

    /// Shuts the client down before the process exits. If the client holds a lease that must end
    /// with this process, releases the lease.
    fn close(&self) {}

    /// Returns the description that the daemon gives of itself.
    fn about(&self) -> CliResult<Value> {
        self.request(&ControlRequest::About)
    }

    /// Sends a request, and returns the lock's status in its answer.
    fn status(&self, request: &ControlRequest) -> CliResult<Value> {
        self.request(request).map(own_status)
    }

    /// Returns the statuses of all locks whose names begin with `prefix`.
    fn list(&self, prefix: &str) -> CliResult<Vec<Value>> {
        let mut all = Vec::new();
        let mut query = List { prefix: prefix.to_owned(), after: None, limit: PAGE };
        loop {
            let mut answer = self.request(&ControlRequest::List(query.clone()))?;
            let you = answer["you"].take();
            if let Some(locks) = answer["locks"].as_array_mut() {
                for status in locks.iter_mut() {
                    show_place(status, &you);
                }
                all.append(locks);
            }
            let Some(next) = answer["next"].as_str() else { return Ok(all) };
            query.after = Some(listed_name(next)?);
        }
    }
}

/// Parses the name of a lock in an answer.
pub(in crate::cli) fn listed_name(name: &str) -> CliResult<LockName> {
    LockName::parse(name).map_err(|error| {
        CliError::unavailable(format!("the answer names a lock that can't be one: {error}"))
    })
}

/// Returns the lock's status in an answer as the caller should see it: with the caller's own lease
/// and queue place.
pub(in crate::cli) fn own_status(mut answer: Value) -> Value {
    let mut status = answer["status"].take();
    show_own(&mut status, &answer["token"]);
    show_place(&mut status, &answer["you"]);
    status
}

/// Changes the status of a lock with several holders so that its fields describe the holder with
/// the token `token`, rather than the first holder: a client that has just acquired the lock
/// expects its own token.
pub(in crate::cli) fn show_own(status: &mut Value, token: &Value) {
    let Some(holders) = status["holders"].as_array() else { return };
    let Some(own) = holders.iter().find(|holder| holder["token"] == *token).cloned() else {
        return;
    };
    status["holder"] = own["client"].clone();
    let Some(status) = status.as_object_mut() else { return };
    for field in ["token", "expires_in_ms", "holder_id", "seat", "begins_in_ms"] {
        match own.get(field) {
            Some(value) => status.insert(field.to_owned(), value.clone()),
            None => status.remove(field),
        };
    }
}

/// Adds the field `place` to a status: the caller's place in the queue, counted from 1.
pub(super) fn show_place(status: &mut Value, you: &Value) {
    let Some(waiters) = status["waiters"].as_array() else { return };
    if let Some(ahead) = waiters.iter().position(|waiter| waiter["client"] == *you) {
        status["place"] = (ahead + 1).into();
    }
}

/// The control file `.latchfs/ctl` of a mount.
#[derive(Debug, Clone)]
pub(in crate::cli) struct ControlFileClient {
    dir: PathBuf,
    /// Whether a request has timed out: later ones of the command do not wait again.
    silent: Arc<AtomicBool>,
    /// Whether a request of [`LockClient::request_connected`] has no answer yet.
    is_asking: Arc<AtomicBool>,
}

impl ControlFileClient {
    /// Returns the control file of the mount at `dir`.
    pub(in crate::cli) fn of(dir: PathBuf) -> Self {
        Self { dir, silent: Arc::default(), is_asking: Arc::default() }
    }

    /// Sends a request. It is written and its answer is read on a separate thread, because a
    /// suspended daemon would block the caller for ever.
    fn send(&self, request: &ControlRequest) -> CliResult<Receiver<io::Result<Vec<u8>>>> {
        let (send, answer) = mpsc::channel();
        let (path, request) = (self.dir.join(".latchfs/ctl"), request.to_json().to_string());
        let is_asking = Arc::clone(&self.is_asking);
        let asked = thread::Builder::new().name("ask".into()).spawn(move || {
            let _ = send.send(exchange(&path, &request));
            is_asking.store(false, Ordering::Relaxed);
        });
        asked.map_err(|error| CliError::system("no thread can be made", &error))?;
        Ok(answer)
    }

    fn read(&self, answer: io::Result<Vec<u8>>) -> CliResult<Value> {
        let answer = answer.map_err(|error| no_answer(&self.dir, &error))?;
        serde_json::from_slice(&answer).map_err(|_| {
            CliError::unavailable(format!(
                "the daemon of {} sent a response that this version can't read; \
                 see whether both are of the same version",
                self.dir.display()
            ))
        })
    }
}

impl LockClient for ControlFileClient {
    fn wait(&self, request: &ControlRequest) -> CliResult<Value> {
        // A program can't end while a daemon that was stopped has its request, so this waits until
        // the daemon goes on, beyond any limit of the wait.
        let path = self.dir.join(".latchfs/ctl");
        let answer = exchange(&path, &request.to_json().to_string());
        understand(self.read(answer)?)
    }

    fn request_connected(&self, request: &ControlRequest) -> CliResult<Value> {
        let dir = self.dir.display();
        let silent = format!(
            "the daemon of {dir} has not answered for {HINT_AFTER}, as if it were stopped; this \
             waits until it goes on"
        );
        // One thread at most waits for a daemon that was stopped.
        if self.is_asking.swap(true, Ordering::Relaxed) {
            return Err(CliError::unavailable(silent));
        }
        let answer = self.send(request)?;
        if let Ok(answer) = answer.recv_timeout(HINT_AFTER.as_duration()) {
            self.silent.store(false, Ordering::Relaxed);
            return understand(self.read(answer)?);
        }
        if !self.silent.swap(true, Ordering::Relaxed) {
            output::progress(&silent);
        }
        Err(CliError::unavailable(silent))
    }

    fn request(&self, request: &ControlRequest) -> CliResult<Value> {
        let answer = self.send(request)?;
        let dir = self.dir.display();
        let is_silent = self.silent.load(Ordering::Relaxed);
        let left = if is_silent { Span::ZERO } else { MORE_PATIENCE };
        let answered = answer.recv_timeout(HINT_AFTER.as_duration()).or_else(|_| {
            if left > Span::ZERO {
                output::progress(&format!(
                    "the daemon of {dir} has not answered for {HINT_AFTER}, as if it were stopped; \
                     this waits for {left} more"
                ));
            }
            answer.recv_timeout(left.as_duration())
        });
        let Ok(answer) = answered else {
            self.silent.store(true, Ordering::Relaxed);
            return Err(CliError::unavailable(format!(
                "the daemon of {dir} does not answer, so the outcome is unknown; \
                 see whether it is stopped, or start it again"
            )));
        };
        understand(self.read(answer)?)
    }
}

/// Writes a request to the control file, and reads its answer.
fn exchange(path: &Path, request: &str) -> io::Result<Vec<u8>> {
    let mut ctl = OpenOptions::new().read(true).write(true).open(path)?;
    let written = ctl.write(request.as_bytes())?;
    if written != request.len() {
        return Err(ErrorKind::WriteZero.into());
    }
    let mut answer = Vec::new();
    ctl.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Returns the answer if it reports success, or else the failure that it reports.
pub(super) fn understand(answer: Value) -> CliResult<Value> {
    if answer["ok"] == Value::Bool(true) {
        return Ok(answer);
    }
    let kind = RefusalKind::ALL.into_iter().find(|kind| answer["kind"] == kind.as_str());
    let exit = kind.map_or(Exit::Unavailable, Exit::of);
    let sentence = answer["message"].as_str().unwrap_or("the daemon refused, and did not say why");
    Err(CliError::Said(exit, sentence.to_owned()))
}

/// Returns the error for a failed request to the control file of the mount at `dir`, with an
/// explanation.
pub(in crate::cli) fn no_answer(dir: &Path, error: &io::Error) -> CliError {
    let shown = dir.display();
    match error.raw_os_error() {
        _ if mountinfo::is_dead(error) => CliError::unavailable(format!(
            "the daemon of {shown} is gone; start it again by 'latchfs mount {shown}', \
             or clean up by 'latchfs umount {shown}'"
        )),
        Some(libc::EACCES) => CliError::Said(
            Exit::Denied,
            format!(
                "{shown} serves only the user who mounted it; \
                 let that user mount it with --allow-other"
            ),
        ),
        Some(libc::ENOENT) => CliError::unavailable(format!(
            "{shown} has no .latchfs/ctl; see whether a latchfs of this version is mounted there"
        )),
        _ => CliError::system(&format!("{shown}/.latchfs/ctl can't be used"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refusal_has_its_exit_code_and_sentence() {
        let refused = understand(
            json!({"ok": false, "kind": "E_LOCK_CONFLICT", "message": "lock 'x' is held by y"}),
        );
        let Err(CliError::Said(exit, sentence)) = refused else { panic!("refused") };
        assert_eq!((exit, sentence.as_str()), (Exit::Conflict, "lock 'x' is held by y"));
        assert!(matches!(understand(json!({})), Err(CliError::Said(Exit::Unavailable, _))));
        assert!(understand(json!({"ok": true})).is_ok());
    }

    #[test]
    fn control_file_errors_are_explained() {
        let failure_of =
            |code| match no_answer(Path::new("/l"), &io::Error::from_raw_os_error(code)) {
                CliError::Said(exit, sentence) => (exit, sentence),
                other => panic!("{other:?} says nothing"),
            };
        assert!(failure_of(libc::ENOTCONN).1.contains("is gone"));
        assert_eq!(failure_of(libc::EACCES).0, Exit::Denied);
        assert_eq!(failure_of(libc::EIO).0, Exit::Unavailable);
    }

    #[test]
    fn shared_holder_sees_its_own_token() {
        let holders = json!([
            {"client": "a", "token": 4, "expires_in_ms": 100, "holder_id": "a:7:70"},
            {"client": "b", "token": 5, "expires_in_ms": 200, "holder_id": "b:8:80"},
        ]);
        let mut status =
            json!({"holder": "a", "token": 4, "expires_in_ms": 100, "holder_id": "a:7:70"});
        let alone = status.clone();
        show_own(&mut status, &json!(4));
        assert_eq!(status, alone);
        status["holders"] = holders;
        show_own(&mut status, &json!(5));
        let shown = (&status["holder"], &status["token"], &status["expires_in_ms"]);
        assert_eq!(shown, (&json!("b"), &json!(5), &json!(200)));
        assert_eq!(status["holder_id"], "b:8:80");
    }

    #[test]
    fn waiter_sees_its_own_place() {
        let mut status = json!({"waiters": [{"client": "a"}, {"client": "b"}, {"client": "b"}]});
        let before = status.clone();
        show_place(&mut status, &json!("c"));
        assert_eq!(status, before);
        show_place(&mut status, &json!("b"));
        assert_eq!(status["place"], 2);
        let mut free = json!({"phase": "free"});
        show_place(&mut free, &json!("b"));
        assert_eq!(free, json!({"phase": "free"}));
    }

    /// A client whose list of locks has three pages of one lock each.
    struct Pages;

    impl LockClient for Pages {
        fn wait(&self, request: &ControlRequest) -> CliResult<Value> {
            self.request(request)
        }

        fn request(&self, request: &ControlRequest) -> CliResult<Value> {
            Ok(match request.to_json()["after"].as_str() {
                None => json!({"ok": true, "locks": [{"name": "a"}], "next": "a"}),
                Some("a") => json!({"ok": true, "locks": [{"name": "b"}], "next": "b"}),
                Some(_) => json!({"ok": true, "locks": [{"name": "c"}], "next": null}),
            })
        }
    }

    #[test]
    fn a_list_is_read_to_its_end() {
        let names = Pages.list("").expect("answered");
        assert_eq!(names, [json!({"name": "a"}), json!({"name": "b"}), json!({"name": "c"})]);
    }
}
