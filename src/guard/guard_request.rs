//! The requests of `latchfs guard` to a guard that runs, as JSON: the same for the file `ctl` of a
//! view and for the socket of a guard without a view.
//!
//! The state of a guard as `latchfs guard status` shows it.

use super::tenure::TenureClock;
use super::write_policy::WhenAsked;
use crate::auth::FolderAct;
use crate::engine::Ttl;
use crate::guard::disk::operations::Disk;
use crate::guard::lock::folder_lock::FolderLock;
use crate::guard::tenures::sequence::{GuardState, Tenures};
use crate::guard::tenures::wishes::WishOf;
use crate::time::{Span, Time};
use barrier::folder_path::FolderPath;
use barrier::marker::MARKER_TEXT_BYTES_MAX;
use serde_json::{Value, json};
use std::path::Path;

/// The maximum number of bytes of a request to the guard.
pub(crate) const REQUEST_BYTES_MAX: usize = 4_096;
/// The longest wait of a `take`, in milliseconds: a day.
const TAKE_WAIT_MS_MAX: u64 = 24 * 3_600 * 1_000;
/// The longest wait for programs that have files open for writing, in milliseconds: an hour.
const QUIET_MS_MAX: u64 = 3_600_000;
/// The wait for such programs if a request names none, in milliseconds.
const QUIET_MS_DEFAULT: u64 = 10_000;
/// How long `guard accept` waits for the lock, and until the folder was compared.
pub(crate) const ACCEPT_PATIENCE: Span = Span::from_secs(60);

/// A request to a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GuardRequest {
    /// Show the state of the guard.
    Status,
    /// List a page of the lost files: those with the highest numbers.
    Lost {
        /// The number below which all lost files on the page are.
        before: u64,
    },
    /// Put the lost file with this number into the folder.
    Restore(u64),
    /// Remove the lost file with this number.
    Drop(u64),
    /// Take the lock.
    Take {
        /// How long the request waits for the lock.
        patience: Span,
        /// For how long the lock is taken along, or why it can't be for so long.
        away: Option<Result<Ttl, String>>,
    },
    /// Take the lock, and go on without what has not arrived; or why the request is none.
    Accept(Result<WishOf, String>),
    /// Give the lock up.
    Give {
        /// The login session from which the lock is taken, by the pid of its leader.
        from: Option<u32>,
    },
    /// Answer when the lock is held and the folder is ready; in a view, a read of the file `ready`
    /// does this.
    Wait,
    /// Answer with the events as they happen; in a view, a read of the file `events` does this.
    Events,
    /// A program uses the lock in the tenure with this token, and must end before the lock is given
    /// up. The use ends with the connection.
    Use(u64),
    /// The use of the lock by this connection ends.
    EndUse {
        /// The token of the tenure.
        token: u64,
        /// Whether the lock is given up once no other program uses it.
        gives: bool,
    },
    /// A request about folder snapshots.
    Snapshot(SnapshotRequest),
    /// A request that no guard knows.
    Unknown,
}

/// A request about folder snapshots. Texts are the names of snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SnapshotRequest {
    /// Take a snapshot.
    Take {
        /// How long the request waits until no program has a file open for writing; `None` if it
        /// does not wait.
        quiet: Option<Span>,
    },
    /// List the complete snapshots.
    List,
    /// Show one snapshot.
    Show(String),
    /// Compare one snapshot with its manifest.
    Verify(String),
    /// Remove one snapshot.
    Remove(String),
}

/// Returns the request about snapshots.
fn snapshot_request(asked: &Value) -> Option<SnapshotRequest> {
    let id = || asked["id"].as_str().unwrap_or_default().to_owned();
    Some(match asked["snapshot"].as_str()? {
        "take" => {
            let quiet = asked["quiet_ms"].as_u64().unwrap_or(QUIET_MS_DEFAULT).min(QUIET_MS_MAX);
            let waits = asked["best_effort"] != true;
            SnapshotRequest::Take { quiet: waits.then(|| Span::from_millis(quiet)) }
        }
        "list" => SnapshotRequest::List,
        "show" => SnapshotRequest::Show(id()),
        "verify" => SnapshotRequest::Verify(id()),
        "remove" => SnapshotRequest::Remove(id()),
        _ => return None,
    })
}

/// Returns the answer to a request that is refused.
pub(crate) fn refused(why: impl Into<String>) -> Value {
    json!({"error": why.into()})
}

impl GuardRequest {
    /// Parses a request.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let Ok(asked) = serde_json::from_slice::<Value>(text) else {
            return Err("the request is no JSON".to_owned());
        };
        let [number, token] = ["number", "token"].map(|name| asked[name].as_u64().unwrap_or(0));
        Ok(match asked["do"].as_str() {
            Some("status") => Self::Status,
            Some("lost") => Self::Lost { before: asked["before"].as_u64().unwrap_or(u64::MAX) },
            Some("restore") => Self::Restore(number),
            Some("drop") => Self::Drop(number),
            Some("take") => {
                let patience = asked["wait_ms"].as_u64().unwrap_or(0).min(TAKE_WAIT_MS_MAX);
                let length = &asked["for_ms"];
                let away = (!length.is_null()).then(|| away_for(length));
                Self::Take { patience: Span::from_millis(patience), away }
            }
            Some("accept") => Self::Accept(acceptance(&asked)),
            Some("give") => {
                Self::Give { from: asked["from"].as_u64().and_then(|pid| u32::try_from(pid).ok()) }
            }
            Some("wait") => Self::Wait,
            Some("events") => Self::Events,
            Some("snapshot") => snapshot_request(&asked).map_or(Self::Unknown, Self::Snapshot),
            Some("use") => Self::Use(token),
            Some("end_use") => Self::EndUse { token, gives: asked["give"] == true },
            _ => Self::Unknown,
        })
    }

    /// Returns the act for which the user needs a permission; `None` if the request is none.
    pub(crate) const fn act(&self) -> Option<FolderAct> {
        Some(match self {
            Self::Status => FolderAct::ShowState,
            Self::Lost { .. } => FolderAct::ListLost,
            Self::Restore(_) => FolderAct::RestoreLost,
            Self::Drop(_) => FolderAct::DropLost,
            Self::Take { away: None, .. } => FolderAct::Take,
            Self::Take { away: Some(_), .. } => FolderAct::TakeAlong,
            Self::Accept(_) => FolderAct::Accept,
            Self::Give { .. } => FolderAct::Give,
            Self::Wait => FolderAct::WaitReady,
            Self::Events => FolderAct::FollowEvents,
            Self::Use(_) => FolderAct::Use,
            Self::EndUse { .. } => FolderAct::EndUse,
            Self::Snapshot(SnapshotRequest::Take { .. }) => FolderAct::TakeSnapshot,
            Self::Snapshot(SnapshotRequest::List) => FolderAct::ListSnapshots,
            Self::Snapshot(SnapshotRequest::Show(_)) => FolderAct::ShowSnapshot,
            Self::Snapshot(SnapshotRequest::Verify(_)) => FolderAct::VerifySnapshot,
            Self::Snapshot(SnapshotRequest::Remove(_)) => FolderAct::RemoveSnapshot,
            Self::Unknown => return None,
        })
    }

    /// Whether the request may wait for the lock, or for the disk.
    pub(crate) const fn may_wait(&self) -> bool {
        matches!(
            self,
            Self::Take { .. }
                | Self::Accept(_)
                | Self::Snapshot(_)
                | Self::Lost { .. }
                | Self::Restore(_)
                | Self::Drop(_)
        )
    }
}

/// Returns the time for which a request takes the lock along.
fn away_for(length: &Value) -> Result<Ttl, String> {
    let length = Span::from_millis(length.as_u64().unwrap_or(u64::MAX / 1_000_000));
    Ttl::new(length).map_err(|why| why.to_string())
}

/// Returns the wish of a request to go on without what has not arrived.
fn acceptance(asked: &Value) -> Result<WishOf, String> {
    if let Some(copy) = asked["from"].as_str() {
        let (Some([path]), true) = (asked["paths"].as_array().map(Vec::as_slice), !copy.is_empty())
        else {
            return Err("name one file whose content is put back".to_owned());
        };
        let parse = |text: &str| FolderPath::parse(text).map_err(|error| error.to_string());
        let path = parse(path.as_str().unwrap_or_default())?;
        return Ok(WishOf::PutBack { path, copy: parse(copy)? });
    }
    let reason = asked["reason"].as_str().unwrap_or_default().to_owned();
    if reason.is_empty() || reason.len() > MARKER_TEXT_BYTES_MAX {
        return Err(format!("name a reason of at most {MARKER_TEXT_BYTES_MAX} bytes"));
    }
    let paths = asked["paths"].as_array().into_iter().flatten();
    let path = |path: &Value| FolderPath::parse(path.as_str().unwrap_or_default());
    let paths = paths.map(path).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    Ok(WishOf::Acceptance { paths, reason })
}

/// Returns until when the lock service certainly keeps the lock, in milliseconds of the boot clock;
/// 0 if it is not held, and `None` if it is held for as long as the guard runs.
fn surely_until_ms(until: Time) -> Option<u64> {
    (until != Time::NEVER).then(|| until.as_nanos() / 1_000_000)
}

impl FolderLock {
    /// Returns what is wrong with the connection to the server, if anything is.
    pub(crate) fn connection_error(&self) -> Option<String> {
        let connection = self.locks.connection()?;
        let error = connection.error?;
        Some(format!(
            "the server {} does not answer ({error}); see whether it runs and can be reached",
            connection.server
        ))
    }

    /// Returns the servers that decide about the lock, as a list of URLs; `None` if an engine in
    /// this process does.
    pub(crate) fn server(&self) -> Option<String> {
        Some(self.locks.connection()?.server.to_string())
    }
}

impl<D: Disk> Tenures<D> {
    /// Returns the state of the guard as JSON, for a user who may or may
    /// not see the names of files.
    pub(crate) fn status(&self, folder: &Path, may_see: bool) -> Value {
        let mut notes = self.guard.barrier().map(|barrier| barrier.notes()).unwrap_or_default();
        if !may_see && !notes.is_empty() {
            notes = vec![format!("{} notes name files, for the owner of the folder", notes.len())];
        }
        let (state, tenure) = match self.state() {
            GuardState::Reading => ("reading", Value::Null),
            GuardState::Asking => ("asking", Value::Null),
            GuardState::Arriving(tenure, owner) => {
                ("arriving", json!({"token": tenure.token.as_u64(), "owner": owner.to_string()}))
            }
            GuardState::Yielding(tenure) => ("yielding", json!({"token": tenure.token.as_u64()})),
            GuardState::Holding(tenure, owner, _) if !self.may_change() => {
                ("arriving", json!({"token": tenure.token.as_u64(), "owner": owner.to_string()}))
            }
            GuardState::Holding(tenure, owner, since) => (
                "holding",
                json!({"token": tenure.token.as_u64(), "owner": owner.to_string(),
                    "since": since.to_string()}),
            ),
        };
        let next = match (state, self.other_holder()) {
            ("reading", Some(holder)) if let Some(until) = self.other_away() => format!(
                "{holder} holds the lock, and is away until {}; wait with 'latchfs guard take'",
                until.to_minute()
            ),
            ("reading", Some(holder)) => {
                format!("{holder} holds the lock; wait with 'latchfs guard take'")
            }
            ("reading", None) if !self.policy.sees_changes => self.next_without_view(),
            ("reading", None) => "a change takes the lock, or run 'latchfs guard take'".to_owned(),
            ("arriving", _) => {
                "wait until the sync tool is done, with 'latchfs guard wait'; if it can't bring \
                 the rest, go on with the folder as it stands by 'latchfs guard accept --reason \
                 WHY'"
                    .to_owned()
            }
            ("yielding", _) => "the last marker is being written".to_owned(),
            ("holding", _) => self.next_while_holding(),
            _ => "the lock service has been asked; wait with 'latchfs guard wait'".to_owned(),
        };
        let last = self
            .last_end()
            .map(|(tenure, end)| json!({"token": tenure.token.as_u64(), "how": end.clause()}));
        json!({
            "folder": folder.display().to_string(),
            "client": self.lock().client().as_str(),
            "state_dir": self.lock().state_dir().map(|dir| dir.display().to_string()),
            "lock": self.lock().name().to_string(),
            "state": state,
            "tenure": tenure,
            "mode": if self.lock().is_shared() { "shared" } else { "exclusive" },
            "holder": self.other_holder(),
            "holder_away_until": self.other_away().map(|until| until.to_string()),
            "away_until": self.away_until().map(|until| until.to_string()),
            "wanted_by": self.wanted_by(),
            "last_tenure": last,
            "waiting": self.waiting(),
            "not_ready": self.not_ready().map(|why| why.text(may_see).to_owned()),
            "notes": notes,
            "ignored": self.guard.barrier().map(|barrier| barrier.coverage_json(may_see)),
            "trouble": self.lock().connection_error(),
            "server": self.lock().server(),
            "ttl_ms": self.lock().ttl().as_millis(),
            "surely_until_ms": surely_until_ms(self.lock().surely_until()),
            "used_by": self.uses.pids(),
            "must_end": self.uses.must_end(),
            "staged_bytes": self.guard.space_used().0,
            "lost_bytes": self.guard.space_used().1,
            "pid": std::process::id(),
            "next": next,
        })
    }

    /// Returns the next step of a person, if no program takes the lock by a change.
    fn next_without_view(&self) -> String {
        match self.last_end() {
            Some((_, end)) if end.is_loss() => format!(
                "{}: programs must not write; 'latchfs guard take' takes the lock again, and then \
                 tells the other machines what was changed here",
                end.clause()
            ),
            _ => "run 'latchfs guard take' before you change the folder".to_owned(),
        }
    }

    fn next_while_holding(&self) -> String {
        if let Some(until) = self.away_until() {
            let until = until.to_minute();
            return format!("programs may write until {until}, also without the lock service");
        }
        match (self.wanted_by(), self.policy.when_asked) {
            (None, _) => "programs may write; 'latchfs guard give' gives the lock up".to_owned(),
            (Some(client), WhenAsked::Keep) => {
                format!("{client} waits for the lock; 'latchfs guard give' hands it over")
            }
            (Some(client), WhenAsked::Yield { .. }) => {
                format!("{client} waits for the lock, and gets it once nothing changes any more")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lock_is_told_from_one_that_never_ends() {
        assert_eq!(surely_until_ms(Time::ZERO), Some(0));
        assert_eq!(surely_until_ms(Time::from_secs(2)), Some(2_000));
        assert_eq!(surely_until_ms(Time::NEVER), None);
    }

    #[test]
    fn a_request_is_parsed_and_the_longest_wait_is_a_day() {
        let parse = |text: &str| GuardRequest::parse(text.as_bytes());
        assert_eq!(parse("x"), Err("the request is no JSON".to_owned()));
        assert_eq!(parse("{}"), Ok(GuardRequest::Unknown));
        assert_eq!(parse("{\"do\":\"give\"}"), Ok(GuardRequest::Give { from: None }));
        let given = parse("{\"do\":\"give\",\"from\":4711}");
        assert_eq!(given, Ok(GuardRequest::Give { from: Some(4_711) }));
        assert_eq!(parse("{\"do\":\"use\",\"token\":7}"), Ok(GuardRequest::Use(7)));
        let kept = parse("{\"do\":\"end_use\",\"token\":7,\"give\":false}");
        assert_eq!(kept, Ok(GuardRequest::EndUse { token: 7, gives: false }));
        let given = parse("{\"do\":\"end_use\",\"token\":7,\"give\":true}");
        assert_eq!(given, Ok(GuardRequest::EndUse { token: 7, gives: true }));
        let day = Span::from_secs(24 * 3_600);
        let long = parse(&format!("{{\"do\":\"take\",\"wait_ms\":{}}}", u64::MAX));
        assert_eq!(long, Ok(GuardRequest::Take { patience: day, away: None }));
        let longest = Span::from_millis(QUIET_MS_MAX);
        let waits =
            format!("{{\"do\":\"snapshot\",\"snapshot\":\"take\",\"quiet_ms\":{}}}", u64::MAX);
        let waits = parse(&waits);
        let quiet = Some(longest);
        assert_eq!(waits, Ok(GuardRequest::Snapshot(SnapshotRequest::Take { quiet })));
        let taken = parse("{\"do\":\"snapshot\",\"snapshot\":\"take\",\"best_effort\":true}");
        assert_eq!(taken, Ok(GuardRequest::Snapshot(SnapshotRequest::Take { quiet: None })));
        assert_eq!(parse("{}").expect("JSON").act(), None);
        let Ok(GuardRequest::Accept(Err(why))) = parse("{\"do\":\"accept\"}") else {
            panic!("an acceptance needs a reason");
        };
        assert!(why.contains("name a reason"), "{why}");
    }
}
