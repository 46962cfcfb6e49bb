//! The events of a guard, as programs read them, and the commands that are run at some of them.
//!
//! The last events of a guard, for readers that follow them.

use crate::guard::tenures::wishes::TenureNews;
use crate::time::Wall;
use barrier::folder_path::FolderPath;
use barrier::tenure_id::TenureId;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// The maximum number of files that one event names. The rest is counted.
const EVENT_FILES_MAX: usize = 10;
/// The maximum length of a path in an event, in characters: the kernel passes at most 128 KiB to
/// the command of `--on-lost`.
const EVENT_PATH_CHARS_MAX: usize = 512;

/// Commands that are run when a tenure begins or is lost.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewsCommands {
    /// The command after the loss of the lock, as `--on-lost` names it.
    pub(crate) lost: Option<String>,
    /// The command when the folder is ready, as `--on-ready` names it.
    pub(crate) ready: Option<String>,
}

/// An event of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TenureEvent {
    /// The event for users who may see the names of all files.
    pub(crate) full: Value,
    /// The event for other users: it names no files, since they may not know them.
    pub(crate) public: Value,
}

/// Returns a path as an event shows it.
fn shown(path: &str) -> String {
    path.chars().take(EVENT_PATH_CHARS_MAX).collect()
}

/// Returns an event without the paths in it.
fn without_paths(event: &Value) -> Value {
    let mut public = event.clone();
    if let Some(fields) = public.as_object_mut() {
        fields.remove("path");
        let mut count = fields.remove("more").and_then(|more| more.as_u64()).unwrap_or(0);
        for field in ["put_aside", "not_kept"] {
            if let Some(files) = fields.get(field).and_then(Value::as_array) {
                count += files.len() as u64;
                fields.remove(field);
                fields.insert("put_aside".to_owned(), count.into());
            }
        }
    }
    public
}

/// Returns the event of files that were changed past the view.
fn overwritten(tenure: TenureId, paths: &[FolderPath]) -> TenureEvent {
    log::warn!("{} files were changed past the view while this machine held the lock", paths.len());
    let (at, token, count) = (Wall::now().to_string(), tenure.token.as_u64(), paths.len());
    let event = json!({"at": at, "event": "overwritten", "token": token, "count": count});
    let named = paths.iter().take(EVENT_FILES_MAX).map(|path| shown(&path.to_string()));
    let mut full = event.clone();
    full["paths"] = named.collect::<Vec<_>>().into();
    TenureEvent { full, public: event }
}

impl TenureEvent {
    /// Returns an event that may name files in the fields `path`, `put_aside` and `not_kept`.
    pub(crate) fn new(full: Value) -> Self {
        let public = without_paths(&full);
        Self { full, public }
    }

    /// Returns the event that reports these news; `None` if programs are not notified of them.
    pub(crate) fn of(news: &TenureNews) -> Option<Self> {
        let at = Wall::now().to_string();
        Some(Self::new(match news {
            TenureNews::Began(tenure, kept) => {
                json!({"at": at, "event": "held", "token": tenure.token.as_u64(),
                    "put_aside": kept})
            }
            TenureNews::Closed(..) | TenureNews::Opens(_) => return None,
            TenureNews::NotReady(tenure, why) => {
                let event = |may_see| {
                    let (token, why) = (tenure.token.as_u64(), why.text(may_see));
                    json!({"at": at, "event": "arriving", "token": token, "why": why})
                };
                return Some(Self { full: event(true), public: event(false) });
            }
            TenureNews::Ended(tenure, end, aside) => {
                log::info!("tenure {} has ended: {}", tenure.token.as_u64(), end.clause());
                let event = if end.is_loss() { "lost" } else { "given" };
                let kept = aside.kept.iter().take(EVENT_FILES_MAX);
                let kept: Vec<_> =
                    kept.map(|(n, path)| json!({"number": n, "path": shown(path)})).collect();
                let failed = aside.failed.iter().take(EVENT_FILES_MAX);
                let failed: Vec<_> = failed.map(|path| shown(path)).collect();
                let all = aside.kept.len() + aside.failed.len();
                json!({"at": at, "event": event, "token": tenure.token.as_u64(),
                    "why": end.clause(), "more": all - kept.len() - failed.len(),
                    "put_aside": kept, "not_kept": failed})
            }
            TenureNews::Wanted(client) => {
                json!({"at": at, "event": "wanted", "client": client})
            }
            TenureNews::Overdue(tenure) => {
                json!({"at": at, "event": "overdue", "token": tenure.token.as_u64()})
            }
            TenureNews::Overwritten(tenure, paths) => return Some(overwritten(*tenure, paths)),
            TenureNews::Late(tenure) => {
                json!({"at": at, "event": "late", "token": tenure.token.as_u64()})
            }
        }))
    }
}

impl NewsCommands {
    /// Runs the command for news, if there is one, with their event.
    pub(crate) fn run(&self, news: &TenureNews, event: &TenureEvent) {
        match news {
            TenureNews::Ended(_, end, _) if end.is_loss() => {
                run_at_news(self.lost.as_deref(), &event.full);
            }
            TenureNews::Began(..) => run_at_news(self.ready.as_deref(), &event.full),
            _ => {}
        }
    }
}

/// Runs a command with the event in its environment.
fn run_at_news(command: Option<&str>, event: &Value) {
    let Some(command) = command else { return };
    let mut shell = std::process::Command::new("/bin/sh");
    shell.arg("-c").arg(command).env("LATCHFS_EVENT", event.to_string());
    match shell.stdin(std::process::Stdio::null()).spawn() {
        Ok(mut child) => {
            let wait = move || drop(child.wait());
            if let Err(error) = std::thread::Builder::new().name("on-news".into()).spawn(wait) {
                log::warn!("'{command}' is not waited for: {error}");
            }
        }
        Err(error) => log::error!("'{command}' can't be started: {error}"),
    }
}

/// The maximum number of events that a reader may be behind.
const EVENTS_MAX: usize = 1_024;

/// The position of a reader of the events.
#[derive(Debug, Default)]
pub(crate) struct EventPosition {
    /// The number of the next event.
    next: u64,
    /// The rest of an event that did not fit the last read.
    rest: Vec<u8>,
}

/// An event as a line of JSON.
struct EventLine {
    /// The line for users who may know the names of all files.
    full: Vec<u8>,
    /// The line for other users.
    public: Vec<u8>,
}

/// The last events.
#[derive(Default)]
pub(crate) struct EventQueue {
    lines: VecDeque<EventLine>,
    /// The number of the first event in `lines`.
    first: u64,
}

/// Returns the line for a reader that was too slow for `count` events.
fn missed(count: u64) -> Value {
    json!({ "event": "missed", "count": count })
}

impl EventQueue {
    /// Returns the position of a new reader, who gets the events from now on.
    pub(crate) fn reader(&self) -> EventPosition {
        EventPosition { next: self.first + self.lines.len() as u64, rest: Vec::new() }
    }

    /// Adds an event.
    pub(crate) fn publish(&mut self, event: &TenureEvent) {
        let line = |event: &Value| format!("{event}\n").into_bytes();
        self.lines.push_back(EventLine { full: line(&event.full), public: line(&event.public) });
        if self.lines.len() > EVENTS_MAX {
            self.lines.pop_front();
            self.first += 1;
        }
    }

    /// Returns at most `size` bytes of the next event of a reader, if there is one. If events were
    /// dropped before the reader took them, it gets their number first.
    pub(crate) fn next(
        &self,
        position: &mut EventPosition,
        may_see_names: bool,
        size: usize,
    ) -> Option<Vec<u8>> {
        if position.rest.is_empty() {
            if position.next < self.first {
                let dropped = self.first - std::mem::replace(&mut position.next, self.first);
                position.rest = format!("{}\n", missed(dropped)).into_bytes();
            } else {
                let at = usize::try_from(position.next - self.first).ok()?;
                let line = self.lines.get(at)?;
                position.rest = if may_see_names { line.full.clone() } else { line.public.clone() };
                position.next += 1;
            }
        }
        let length = size.min(position.rest.len());
        let rest = position.rest.split_off(length);
        Some(std::mem::replace(&mut position.rest, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(queue: &mut EventQueue, event: &Value) {
        queue.publish(&TenureEvent::new(event.clone()));
    }

    #[test]
    fn a_slow_reader_of_events_learns_the_number_of_missed_ones() {
        let mut queue = EventQueue::default();
        publish(&mut queue, &json!("before the open"));
        let mut slow = queue.reader();
        assert_eq!(queue.next(&mut slow, true, 4_096), None);
        (0..=EVENTS_MAX + 1).for_each(|number| publish(&mut queue, &json!(number)));
        let mut next = || {
            let line = queue.next(&mut slow, true, 4_096);
            line.map(|line| String::from_utf8(line).expect("text"))
        };
        assert_eq!(next(), Some("{\"event\":\"missed\",\"count\":2}\n".to_owned()));
        for number in 2..=EVENTS_MAX + 1 {
            assert_eq!(next(), Some(format!("{number}\n")));
        }
        assert_eq!(next(), None);
    }

    #[test]
    fn an_event_is_read_in_parts_and_names_no_files_to_other_users() {
        let mut queue = EventQueue::default();
        let mut reader = queue.reader();
        let event = json!({"event": "lost", "more": 1, "put_aside": [{"path": "p"}],
            "not_kept": ["q"]});
        publish(&mut queue, &event);
        publish(&mut queue, &json!({"event": "foreign", "path": "p"}));
        publish(&mut queue, &event);
        let mut read = |trust| {
            let mut line = Vec::new();
            while !line.ends_with(b"\n") {
                line.extend(queue.next(&mut reader, trust, 3).expect("an event"));
            }
            String::from_utf8(line).expect("text")
        };
        assert_eq!(read(false), "{\"event\":\"lost\",\"put_aside\":3}\n");
        assert_eq!(read(false), "{\"event\":\"foreign\"}\n");
        assert_eq!(read(true), format!("{event}\n"));
    }
}
