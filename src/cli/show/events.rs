//! The `events` command: prints lock events, one per line, until Ctrl-C or until the reader of its
//! output has closed the pipe.

use crate::cli::connect::mount_client::no_answer;
use crate::cli::connect::target::TargetArgs;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::lock::lock_commands::PrefixArg;
use crate::cli::output;
use crate::cli::output::harmless;
use crate::cli::status_table::Status;
use crate::client::http_transport::TransportError;
use crate::status::lost;
use crate::time::Span;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// The maximum number of events taken from a server's event stream at once.
const EVENTS_MAX: usize = 256;
/// The size of the buffer for one read of a mount's event stream.
const BUFFER_BYTES: usize = 64 << 10;

/// The arguments of `latchfs events`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct EventsArgs {
    #[command(flatten)]
    names: PrefixArg,
    #[command(flatten)]
    target: TargetArgs,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Begin with event N, if it is kept still, and not now
    #[arg(long, value_name = "N")]
    since: Option<u64>,
}

/// An event as a line of JSON, or why there are no more.
type ReceivedLine = Result<String, TransportError>;

/// The events of a mount or a server.
pub(in crate::cli) enum EventSource {
    /// The event stream of the mount at `dir`, and the line that was not read to its end.
    Mount { stream: File, dir: PathBuf, unfinished: Vec<u8> },
    /// The events of a server as a thread receives them, and the one that was waited for.
    Server { lines: Receiver<ReceivedLine>, next: Option<ReceivedLine> },
}

pub(in crate::cli) fn run(args: &EventsArgs) -> CliResult {
    let mut source = EventSource::open(&args.target, args.since)?;
    let prefix = args.target.full_prefix(&args.names.prefix)?;
    loop {
        let lines = source.take()?;
        if lines.is_empty() {
            source.wait()?;
        }
        let shown = lines.iter().filter_map(|line| rendered(line, args, &prefix));
        let text = shown.fold(String::new(), |text, line| text + &line + "\n");
        if !text.is_empty() {
            output::write(&text)?;
        }
    }
}

impl EventSource {
    /// Opens the events of the mount or server that a command uses: from event `since` on, or from
    /// now on.
    pub(in crate::cli) fn open(target: &TargetArgs, since: Option<u64>) -> CliResult<Self> {
        if let Some(direct) = target.direct()? {
            let (mut events, (send, lines)) = (direct.events(since)?, sync_channel(EVENTS_MAX));
            let read = move || {
                loop {
                    let line = events.next_event();
                    let line = line.map(|line| line.unwrap_or_else(|| lost(0).to_string()));
                    let is_end = line.is_err();
                    if send.send(line).is_err() || is_end {
                        return;
                    }
                }
            };
            let thread = thread::Builder::new().name("events".to_owned()).spawn(read);
            thread.map_err(|error| CliError::system("no thread can be made", &error))?;
            return Ok(Self::Server { lines, next: None });
        }
        let dir = target.mount()?;
        let since = since.map_or_else(String::new, |since| format!("@{since}"));
        let path = dir.join(format!(".latchfs/events{since}"));
        let stream = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let stream = stream.map_err(|error| no_answer(&dir, &error))?;
        Ok(Self::Mount { stream, dir, unfinished: Vec::new() })
    }

    /// Returns events that have happened since the last call, each as a line of JSON; none if there
    /// are no more for now.
    pub(in crate::cli) fn take(&mut self) -> CliResult<Vec<String>> {
        match self {
            Self::Server { lines, next } => {
                let mut received = Vec::new();
                while received.len() < EVENTS_MAX {
                    match next.take().map_or_else(|| lines.try_recv(), Ok) {
                        Ok(Ok(line)) => received.push(line),
                        Ok(Err(error)) if received.is_empty() => return Err(ended(&error)),
                        end @ Ok(Err(_)) => {
                            *next = end.ok();
                            break;
                        }
                        Err(_) => break,
                    }
                }
                Ok(received)
            }
            Self::Mount { stream, dir, unfinished } => {
                read(stream, dir, unfinished)?;
                let last = unfinished.iter().rposition(|byte| *byte == b'\n');
                let rest = unfinished.split_off(last.map_or(0, |last| last + 1));
                let lines = std::mem::replace(unfinished, rest);
                Ok(String::from_utf8_lossy(&lines).lines().map(str::to_owned).collect())
            }
        }
    }

    /// Waits until there may be more events. Fails if the reader of standard output has closed the
    /// pipe.
    fn wait(&mut self) -> CliResult {
        match self {
            Self::Mount { stream, .. } => wait(stream),
            Self::Server { lines, next } => {
                // The thread sends why it ends before it does.
                *next = lines.recv().ok();
                Ok(())
            }
        }
    }
}

/// Returns the error for the events of a server that have ended.
fn ended(error: &TransportError) -> CliError {
    let exit = match error {
        TransportError::Denied(_) => Exit::Denied,
        _ => Exit::Unavailable,
    };
    CliError::Said(exit, format!("the events have ended: {error}"))
}

/// Waits until the event stream of a mount has data. Fails if the reader of standard output has
/// closed the pipe.
#[allow(unsafe_code)]
fn wait(stream: &File) -> CliResult {
    let mut files = [
        libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 },
    ];
    // SAFETY: the array has two valid pollfds that live until the call returns. Poll fails only if
    // a signal interrupts it; the caller's non-blocking read then finds no data, and the caller
    // waits again.
    unsafe { libc::poll(files.as_mut_ptr(), 2, -1) };
    if files[1].revents & libc::POLLERR != 0 { Err(CliError::Pipe) } else { Ok(()) }
}

fn read(stream: &mut File, dir: &Path, unfinished: &mut Vec<u8>) -> CliResult {
    let mut buffer = vec![0; BUFFER_BYTES];
    match stream.read(&mut buffer) {
        Ok(0) => Err(CliError::unavailable(format!("the events of {} have ended", dir.display()))),
        Ok(count) => {
            unfinished.extend_from_slice(&buffer[..count]);
            Ok(())
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(())
        }
        Err(error) => Err(no_answer(dir, &error)),
    }
}

/// Returns the text to print for a line of the event stream; `None` if there is nothing to print.
fn rendered(line: &str, args: &EventsArgs, prefix: &str) -> Option<String> {
    let event: Value = serde_json::from_str(line).ok()?;
    concerns(&event, prefix).then(|| if args.json { line.to_owned() } else { sentence(&event) })
}

/// Whether an event is about a lock whose name begins with `prefix`. A `lost` event always matches.
fn concerns(event: &Value, prefix: &str) -> bool {
    let begins = |field: &str| event[field].as_str().is_some_and(|name| name.starts_with(prefix));
    prefix.is_empty() || event["event"] == "lost" || begins("name") || begins("to")
}

/// Formats an event as an English sentence.
fn sentence(event: &Value) -> String {
    let of = Status(event);
    let span = |field| of.number(field).map(|ms| Span::from_millis(ms.unsigned_abs()).to_string());
    let (holder, client) = (of.text("holder"), of.text("client"));
    let held = span("held_ms").map_or_else(String::new, |held| format!(", held for {held}"));
    let what = match event["event"].as_str().unwrap_or_default() {
        "granted" => {
            let token = of.number("token").unwrap_or_default();
            let shared = match of.text("mode").as_str() {
                "shared" => ", shared",
                "seats" => ", one of the seats",
                _ => "",
            };
            let waited = span("waited_ms").map(|waited| format!(", waited {waited}"));
            format!("granted to {holder}, token {token}{shared}{}", waited.unwrap_or_default())
        }
        "renewed" => format!("renewed by {holder}"),
        "annotated" => "annotated by its holder".to_owned(),
        "expired" => format!("expired; in grace for {holder}"),
        "released" => format!("released by {holder}{held}"),
        "lapsed" => format!("lapsed, not renewed by {holder}{held}"),
        "moved" => format!("moved to {} by {holder}{held}", of.text("to")),
        "replaced" => format!("replaced by another hold of {holder}{held}"),
        "stolen" => {
            format!("stolen from {holder} by {}: {}{held}", of.text("by"), of.text("reason"))
        }
        "joined" => format!("{client} waits"),
        "left" => format!("{client} left the queue ({})", of.text("why").replace('_', " ")),
        "hold_off_ended" => {
            let by = of.text("by");
            let by = if by.is_empty() { by } else { format!(" (by {by}: {})", of.text("reason")) };
            return format!("{}  locks are granted from now on{by}", of.text("at"));
        }
        "session_opened" => format!("{client} opened it"),
        "session_kept" => "kept alive".to_owned(),
        "session_over" => format!("{client} is done with it ({})", of.text("why")),
        "lost" => {
            return match of.number("count").unwrap_or_default() {
                0 => "events may be missing here: nobody knows how many".to_owned(),
                count => {
                    format!("{count} events are missing here: they came faster than they were read")
                }
            };
        }
        _ => return harmless(&event.to_string()),
    };
    let of_what = match of.number("session") {
        Some(session) => format!("session {session}"),
        None => of.text("name"),
    };
    format!("{}  {of_what}  {what}", of.text("at"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(fields: &Value) -> String {
        let mut event = json!({"n": 1, "at": "T", "name": "build", "holder": "a", "token": 7});
        for (key, value) in fields.as_object().into_iter().flatten() {
            event[key] = value.clone();
        }
        sentence(&event)
    }

    #[test]
    fn events_are_sentences() {
        let waited = json!({"event": "granted", "mode": "shared", "waited_ms": 1_500});
        assert_eq!(said(&waited), "T  build  granted to a, token 7, shared, waited 1.5s");
        let alone = json!({"event": "granted", "mode": "exclusive"});
        assert_eq!(said(&alone), "T  build  granted to a, token 7");
        assert_eq!(said(&json!({"event": "renewed"})), "T  build  renewed by a");
        assert_eq!(said(&json!({"event": "expired"})), "T  build  expired; in grace for a");
        let released = json!({"event": "released", "held_ms": 2_000});
        assert_eq!(said(&released), "T  build  released by a, held for 2s");
        let stolen = json!({"event": "stolen", "by": "b", "reason": "dead\u{1b}", "held_ms": 1});
        assert_eq!(said(&stolen), "T  build  stolen from a by b: dead , held for 1ms");
        let left = json!({"event": "left", "client": "c", "why": "timed_out"});
        assert_eq!(said(&left), "T  build  c left the queue (timed out)");
        let ended = json!({"event": "hold_off_ended", "by": "b", "reason": "off", "at": "T"});
        assert_eq!(sentence(&ended), "T  locks are granted from now on (by b: off)");
        let session = json!({"event": "session_opened", "session": 5, "client": "c", "at": "T"});
        assert_eq!(sentence(&session), "T  session 5  c opened it");
        assert!(
            sentence(&json!({"event": "lost", "count": 9})).starts_with("9 events are missing")
        );
        assert!(
            sentence(&json!({"event": "lost", "count": 0})).starts_with("events may be missing")
        );
    }

    #[test]
    fn prefix_selects_events_by_lock_name() {
        let event = |name: &str| json!({"event": "granted", "name": name});
        assert!(concerns(&event("team/a"), "team/") && concerns(&event("x"), ""));
        assert!(!concerns(&event("x"), "team/"));
        assert!(concerns(&json!({"event": "moved", "name": "x", "to": "team/a"}), "team/"));
        assert!(!concerns(&json!({"event": "session_kept", "session": 5}), "team/"));
        assert!(concerns(&json!({"event": "lost", "count": 1}), "team/"));
    }
}
