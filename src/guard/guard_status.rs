//! The state of a guard as `latchfs guard status` shows it.

use super::disk::Disk;
use super::folder_lock::FolderLock;
use super::tenure::TenureClock;
use super::tenures::{GuardState, Tenures};
use super::write_policy::WhenAsked;
use crate::time::Time;
use serde_json::{Value, json};
use std::path::Path;

/// Returns until when the lock service certainly keeps the lock, in milliseconds of the boot clock;
/// `None` if it is not held, or for as long as the guard runs.
fn surely_until_ms(until: Time) -> Option<u64> {
    let is_bounded = until != Time::ZERO && until != Time::NEVER;
    is_bounded.then(|| until.as_nanos() / 1_000_000)
}

impl FolderLock {
    /// Returns what is wrong with the connection to the server, if anything is.
    pub(crate) fn trouble(&self) -> Option<String> {
        let connection = self.locks.connection()?;
        let trouble = connection.trouble?;
        Some(format!(
            "the server {} does not answer ({trouble}); see whether it runs and can be reached",
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
                "wait with 'latchfs guard wait', or go on with the folder as it stands by 'latchfs \
                 guard accept --reason WHY'"
                    .to_owned()
            }
            ("yielding", _) => "the last marker is being written".to_owned(),
            ("holding", _) => self.next_while_holding(),
            _ => "the lock service has been asked".to_owned(),
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
            "trouble": self.lock().trouble(),
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
