//! The sentences of refusals: each with the subject, the reason and the next step. The next step
//! depends on the interface by which the reader asks for locks.

use super::hold_off::HoldOff;
use super::lease::Ends;
use super::limits::TEXT_BYTES_MAX;
use super::name::LockName;
use super::refusal::{Conflict, Limit, Reason, Refusal, ShareOf, Way};
use crate::time::Time;
use std::fmt;

/// How the reader of a refusal asks for locks, and so which next steps the sentence names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interface {
    /// By commands and files.
    Commands,
    /// By HTTP requests.
    Http,
}

/// A refusal as its sentence reads for a caller of the HTTP API.
struct ForHttp<'a>(&'a Refusal);

impl fmt::Display for ForHttp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.say(Interface::Http, f)
    }
}

/// Writes one sentence with the subject, the reason and the next step.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.say(Interface::Commands, f)
    }
}

impl Refusal {
    /// Returns the sentence of the refusal for a caller of the HTTP API.
    pub fn for_http(&self) -> String {
        ForHttp(self).to_string()
    }

    fn say(&self, by: Interface, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.reason {
            Reason::Conflict(conflict) => conflict.say(self.at, by, f),
            Reason::HoldOff { name, hold_off, .. } => by.say_hold_off(name, *hold_off, self.at, f),
            Reason::NotHeld { name, client, holder: None } => {
                write!(f, "lock '{name}' is free, so {client} has nothing to renew or release; ")?;
                by.say_acquire(name, f)
            }
            Reason::NotHeld { name, client, holder: Some(holder) } => {
                write!(f, "lock '{name}' is held by {holder}, not by {client}; ")?;
                write!(f, "only its holder can renew or release it")
            }
            Reason::Expired { name, token } => {
                write!(f, "the tenure of lock '{name}' with token {token} is over; ")?;
                write!(f, "stop the work that it guarded, and acquire the lock anew")
            }
            Reason::StaleToken { name, named, current } => {
                write!(f, "token {named} of lock '{name}' is not the current one ({current}); ")?;
                write!(f, "stop the work that it guarded: another tenure has begun")
            }
            Reason::AcquiredAgain { name, token, current } => {
                write!(
                    f,
                    "lock '{name}' was acquired again under token {token} after the acquire "
                )?;
                write!(f, "that this release names, and stays held; name acquisition {current} ")?;
                write!(f, "to end it")
            }
            Reason::NoSession(id) => {
                write!(f, "session {id} is over, and its leases are lost; open a new one")
            }
            Reason::NotInLine(name) => {
                write!(
                    f,
                    "there is no such waiter in the queue of lock '{name}'; request the lock "
                )?;
                write!(f, "anew, under a new request key if there was one")
            }
            Reason::LateCopy(id) => {
                write!(f, "this copy of a request of session {id} came late: a later request ")?;
                write!(f, "was carried out before it; look at the lock, and ask anew")
            }
            Reason::SameName(name) => write!(f, "lock '{name}' has this name already"),
            Reason::Limit(limit) => write!(f, "{limit}"),
            Reason::TooLong { max } => {
                write!(
                    f,
                    "a ttl and its grace may be {max} together here, since this server keeps "
                )?;
                write!(f, "no state; ask for less, or start it with a longer --max-ttl")
            }
            Reason::Oversized(part) => f.write_str(&part.excess()),
            Reason::NotRemembered(_)
            | Reason::HandoverNeedsToken(_)
            | Reason::OldHandover { .. } => self.reason.say_handover(f),
            Reason::NeedsClusterVersion { requires, version } => {
                write!(f, "the request needs cluster version {requires}, and the cluster has ")?;
                write!(f, "version {version}; upgrade all nodes, then ask again")
            }
            Reason::KeyReused(key) => {
                write!(f, "request key '{key}' was used before for another request; ")?;
                write!(f, "choose a new key for each request, and repeat only the same request")
            }
            Reason::TextTooLong(name) => {
                write!(f, "the text of lock '{name}' would be longer than ")?;
                write!(f, "{TEXT_BYTES_MAX} bytes; keep it short")
            }
        }
    }
}

impl Reason {
    /// Writes the sentence for a refused handover.
    fn say_handover(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotRemembered(name) => {
                write!(f, "lock '{name}' has no handover, since its name is not remembered; ")?;
                write!(f, "acquire it with 'remember'")
            }
            Reason::HandoverNeedsToken(name) => {
                write!(f, "a handover of lock '{name}' names the token of its tenure; ")?;
                write!(f, "add the token that the grant told")
            }
            Reason::OldHandover { name, named, current } => {
                write!(f, "handover {named} of lock '{name}' comes after handover {current} of ")?;
                write!(f, "the same tenure, and is not set; number them upwards")
            }
            _ => Ok(()),
        }
    }
}

impl Conflict {
    fn say(&self, at: Time, by: Interface, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, holder, ends, waiting, .. } = self;
        match self.way {
            Way::Held => {
                write!(f, "lock '{name}' is held by {holder} ")?;
                ends.say_left(at, f)?;
                write!(f, " ({waiting} waiting); {}", by.wait())
            }
            Way::Grace => {
                let left = ends.grace_until.since(at);
                write!(f, "lock '{name}': grace period active: only {holder} may take it back ")?;
                write!(f, "for {left} more; try again then")
            }
            Way::Own if ends.expires_at <= at => {
                let left = ends.grace_until.since(at);
                write!(
                    f,
                    "lock '{name}': grace period active: your own user, {holder}, may take "
                )?;
                write!(f, "its lease back for {left} more; if the lease is yours, ")?;
                by.say_renewal(name, f)?;
                write!(f, "; another program of yours waits until then")
            }
            Way::Own => {
                write!(f, "lock '{name}' is held by your own user, {holder}, ")?;
                ends.say_left(at, f)?;
                write!(f, " ({waiting} waiting), for another program or open file; ")?;
                write!(f, "{}; or if the lease is yours, ", by.wait())?;
                by.say_renewal(name, f)
            }
            Way::Behind => {
                write!(f, "lock '{name}' is shared by {holder}, and {waiting} wait before you; ")?;
                match by {
                    Interface::Commands => {
                        write!(f, "wait in the queue with 'latchfs run --shared'")
                    }
                    Interface::Http => f.write_str(by.wait()),
                }
            }
            Way::StealGrace { until } => {
                write!(f, "lock '{name}' was taken over by {holder}, and nobody may use it for ")?;
                write!(f, "{} more; try again then", until.since(at))
            }
        }
    }
}

impl Interface {
    /// Returns the advice how to wait for a lock.
    const fn wait(self) -> &'static str {
        match self {
            Self::Commands => "wait with 'latchfs run' or 'latchfs wait'",
            Self::Http => "wait in the queue with 'wait=10m', or try again later",
        }
    }

    /// Writes the advice how to acquire a lock.
    fn say_acquire(self, name: &LockName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commands => write!(f, "acquire it with 'mkdir' or 'latchfs acquire {name}'"),
            Self::Http => write!(f, "acquire it first"),
        }
    }

    /// Writes that a lock is not granted before the end of a hold-off.
    fn say_hold_off(
        self,
        name: &LockName,
        HoldOff { until, cause }: HoldOff,
        at: Time,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let left = until.since(at);
        write!(f, "lock '{name}': nothing is granted for {left} more, because {cause}, and a ")?;
        write!(f, "client may still rely on a lease from before; {}; if no such ", self.wait())?;
        write!(f, "client is left, an administrator may end this with ")?;
        f.write_str(match self {
            Self::Commands => "'latchfs cluster grant-now --reason WHY'",
            Self::Http => "POST /grant-now?reason=WHY",
        })
    }

    /// Writes the advice how the holder of a lease goes on with it.
    fn say_renewal(self, name: &LockName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commands => write!(f, "renew it with 'latchfs acquire {name} --reentrant'"),
            Self::Http => write!(f, "renew it by its token, or with 'reentrant=true'"),
        }
    }
}

impl Ends {
    fn say_left(&self, at: Time, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.expires_at == Time::NEVER {
            return write!(f, "until it lets go");
        }
        write!(f, "for {} more", self.left(at))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locks(max) => write!(f, "{max} locks are held, which is the limit; release some"),
            Self::Waiters(max) => {
                write!(f, "{max} wait for this lock, which is the limit; try again later")
            }
            Self::AllWaiters(max) => {
                write!(f, "{max} wait in all queues, which is the limit; try again later")
            }
            Self::Holders(max) => {
                write!(f, "{max} share this lock, which is the limit; try again later")
            }
            Self::Sessions(max) => {
                write!(f, "{max} sessions are open, which is the limit; end some")
            }
            Self::QueuedRequests(max) => {
                write!(
                    f,
                    "too many queued requests have an id, of which {max} can be remembered; "
                )?;
                write!(f, "leave a queue, or try again later")
            }
            Self::Remembered(max) => {
                write!(f, "{max} names are remembered, which is the limit; ")?;
                write!(f, "have some forgotten with DELETE /locks/NAME/previous")
            }
            Self::Tokens => write!(f, "all tokens below 2^53 are used up; start a new state"),
            Self::Share(of, max) => {
                let (items, next) = match of {
                    ShareOf::Locks => ("locks", "release some"),
                    ShareOf::Waiters => ("places in queues", "leave some"),
                    ShareOf::Queue => ("places in the queue of this lock", "leave some"),
                    ShareOf::Holders => ("holds of this shared lock", "release some"),
                    ShareOf::Sessions => ("open sessions", "end some"),
                    ShareOf::Remembered => ("remembered names", "have some forgotten"),
                };
                write!(f, "you have {max} {items}, which is your share; {next}, ")?;
                write!(f, "or have --share raised where latchfs runs")
            }
        }
    }
}
