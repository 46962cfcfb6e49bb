//! The progress of a wait, on standard error: a line when the wait begins, and one whenever the
//! place in the queue, the holder or its note changes.
//!
//! A thread reads the lock's status while the request waits. A request that is granted at once
//! costs no read.

use super::exit::CliResult;
use super::mount_client::LockClient;
use super::output;
use super::status_table::{Status, held_by};
use crate::engine::LockName;
use crate::time::{Span, Time, boot_now};
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};
use std::sync::Arc;
use std::thread;

/// How long a request waits before the first read of the status.
const FIRST_LOOK: Span = Span::from_millis(100);
/// The interval between two reads of the status after a change. It doubles with each read that
/// finds none.
const LOOK: Span = Span::from_secs(1);
/// The longest such interval, at the head of the queue.
const SLOW_LOOK: Span = Span::from_secs(4);
/// The shortest interval of a waiter is this times its place: a status lists the whole queue, so
/// the reads of a long queue would cost the server the square of its length.
const LOOK_PER_PLACE: Span = Span::from_millis(50);

/// The end of a wait, for the thread that tells its progress.
#[derive(Default)]
struct WaitOver {
    is_over: Mutex<bool>,
    ended: Condvar,
}

/// What the queue of a lock shows of one waiter.
#[derive(Default)]
struct QueueWatch {
    /// When the waiter joined the queue, on the boot clock; by it the waiter is told from others of
    /// the same client.
    joined: Option<Time>,
    told: String,
}

/// Sends a request to acquire the lock `name`, and returns the answer. If the request waits in the
/// queue, tells the progress on standard error, unless the command line has `--quiet`.
pub(super) fn wait(
    client: &Arc<dyn LockClient>,
    name: &LockName,
    request: &Value,
) -> CliResult<Value> {
    if request["wait"].is_null() {
        return client.ask(request);
    }
    if output::is_quiet() {
        return client.wait(request);
    }
    let over = Arc::new(WaitOver::default());
    let (watched, asked, lock) = (Arc::clone(&over), Arc::clone(client), name.clone());
    let tell = move || watched.tell(&*asked, &lock);
    // Without the thread the wait is the same, and silent.
    let _ = thread::Builder::new().name("progress".into()).spawn(tell);
    let answer = client.wait(request);
    *over.is_over.lock() = true;
    over.ended.notify_all();
    answer
}

impl WaitOver {
    fn tell(&self, client: &dyn LockClient, name: &LockName) {
        let mut watch = QueueWatch::default();
        let mut pause = FIRST_LOOK;
        while !self.ends_within(pause) {
            // Twice as long, unless there is news.
            pause = Span::from_nanos(pause.as_nanos() * 2).min(SLOW_LOOK);
            let asked = json!({"do": "status", "name": name.as_str()});
            let Ok(mut answer) = client.ask_connected(&asked) else { continue };
            let (status, you) = (answer["status"].take(), answer["you"].take());
            let Some((line, place)) = watch.news(&status, &you) else { continue };
            let next = if line.is_some() { LOOK } else { pause };
            pause = next.max(Span::from_nanos(LOOK_PER_PLACE.as_nanos() * place));
            // The line is written with the mutex held, so that none comes after the end.
            let is_over = self.is_over.lock();
            if let Some(line) = line.filter(|_| !*is_over) {
                output::progress(&format!("waiting for lock '{name}', {line}"));
            }
        }
    }

    fn ends_within(&self, span: Span) -> bool {
        let mut is_over = self.is_over.lock();
        if !*is_over {
            self.ended.wait_for(&mut is_over, span.as_duration());
        }
        *is_over
    }
}

impl QueueWatch {
    /// Returns the place of this waiter in the queue, with a line that tells it if the line differs
    /// from the one before; `None` if the waiter is not in the queue.
    fn news(&mut self, status: &Value, you: &Value) -> Option<(Option<String>, u64)> {
        let (place, joined) = self.own_place(status, you)?;
        self.joined = self.joined.or(Some(joined));
        let line = format!("place {place}: it is {}", held_by(Status(status)));
        let news = (line != self.told).then(|| line.clone());
        self.told = line;
        Some((news, place))
    }

    /// Returns the place of this waiter, counted from 1, and when it has joined the queue. Of
    /// several waiters of its client, the first look takes the last one.
    fn own_place(&self, status: &Value, you: &Value) -> Option<(u64, Time)> {
        let now = boot_now();
        let own = (1..).zip(status["waiters"].as_array()?).filter_map(|(place, waiter)| {
            let waited = Span::from_millis(waiter["waited_ms"].as_u64()?);
            (waiter["client"] == *you).then(|| (place, now - waited))
        });
        match self.joined {
            None => own.last(),
            Some(joined) => own.min_by_key(|(_, at)| at.since(joined).max(joined.since(*at))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(waiters: &[(&str, u64)], note: &str) -> Value {
        let waiters: Vec<_> = waiters
            .iter()
            .map(|(client, waited)| json!({"client": client, "waited_ms": waited}))
            .collect();
        json!({"name": "x", "phase": "held", "holder": "h", "note": note, "waiters": waiters})
    }

    #[test]
    fn a_line_is_told_once_for_each_change() {
        let (mut watch, you) = (QueueWatch::default(), json!("me"));
        let mut line = |status| watch.news(&status, &you).map(|(line, _)| line.unwrap_or_default());
        let first = line(queue(&[("me", 900_000), ("a", 800_000), ("me", 0)], ""));
        assert_eq!(first.as_deref(), Some("place 3: it is held by h"));
        // Another waiter joins behind, and the other one of this client stays in front.
        let queued = [("me", 900_000), ("a", 800_000), ("me", 1), ("b", 0)];
        assert_eq!(line(queue(&queued, "")).as_deref(), Some(""));
        let nearer = line(queue(&[("me", 900_100), ("me", 100)], "")).expect("it waits");
        assert_eq!(nearer, "place 2: it is held by h");
        let noted = line(queue(&[("me", 900_100), ("me", 100)], "soon")).expect("it waits");
        assert_eq!(noted, "place 2: it is held by h (note: soon)");
        assert_eq!(line(json!({"phase": "free"})), None);
    }
}
