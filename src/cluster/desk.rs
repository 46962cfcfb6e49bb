//! Where requests wait for the next entry, and where the edges leave them: nobody who asks is
//! held up.
//!
//! Who looks at a lock sees what was asked of it before, also when the answer to that is still on
//! its way: a look stands in the same line, behind what concerns it. It makes no entry.

use super::clock::Carried;
use super::kind::Commands;
use crate::engine::{Answer, Command, LockName, Op};
use crate::locks::{Then, Unavailable};
use crate::time::{Span, Time, steady_now};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// Requests of one entry: more than come in the time of one sync from a thousand clients, and few
/// enough that their answers are not late because of each other.
pub(super) const REQUESTS_MAX: usize = 512;
/// No answer takes longer, or it is none: a person who waits longer thinks that it hangs.
pub(super) const ANSWER_DEADLINE: Span = Span::from_secs(2);

/// A request.
struct Asked {
    what: What,
    /// Until when somebody waits, on the steady clock.
    until: Time,
}

/// What is asked, and where the answer goes.
#[allow(clippy::large_enum_variant)] // Nearly all of them are the large one.
enum What {
    Decide(Command, Then<Result<Answer, Unavailable>>),
    Look(Look),
}

/// Looks at the engine, when all that was asked before is carried out.
pub(super) type Look = Then<Result<(), Unavailable>>;

/// What waits for the next entry, and what is in the one on its way.
#[derive(Default)]
pub(super) struct Desk {
    line: Mutex<Line>,
    bell: Notify,
}

#[derive(Default)]
struct Line {
    asked: VecDeque<Asked>,
    flying: Option<Arc<Commands>>,
    /// Why nothing is taken any more.
    closed: Option<Unavailable>,
}

/// What is to be done next.
pub(super) enum Next {
    /// These.
    Batch(Batch),
    /// Nothing, at the moment.
    Nothing,
    /// Nothing, and nothing will come.
    Closed,
}

/// What makes one entry, and who waits for it.
pub(super) struct Batch {
    pub(super) commands: Arc<Commands>,
    pub(super) waiting: Waiting,
}

/// Where the answers to an entry go.
#[derive(Default)]
pub(super) struct Waiting {
    /// One for each command, in their order.
    thens: Vec<Then<Result<Answer, Unavailable>>>,
    looks: Vec<Look>,
}

impl Desk {
    /// Takes a command, or says at once why not.
    pub(super) fn ask(&self, command: Command, then: Then<Result<Answer, Unavailable>>) {
        self.take(What::Decide(command, then));
    }

    /// Takes a look, or says at once why not.
    pub(super) fn look(&self, look: Look) {
        self.take(What::Look(look));
    }

    fn take(&self, what: What) {
        let until = steady_now() + ANSWER_DEADLINE;
        let mut line = self.line.lock();
        if let Some(why) = line.closed.clone() {
            drop(line);
            return what.refuse(why);
        }
        line.asked.push_back(Asked { what, until });
        let first = line.asked.len() == 1;
        drop(line);
        if first {
            self.bell.notify_one();
        }
    }

    /// What is to be done next, the oldest first, at the time that `clock` shows now.
    pub(super) fn next(&self, clock: Carried) -> Next {
        let mut line = self.line.lock();
        let count = line.asked.len().min(REQUESTS_MAX);
        if count == 0 {
            return if line.closed.is_some() { Next::Closed } else { Next::Nothing };
        }
        let (mut commands, mut waiting) = (Vec::with_capacity(count), Waiting::default());
        for asked in line.asked.drain(..count) {
            match asked.what {
                What::Decide(command, then) => {
                    commands.push(command);
                    waiting.thens.push(then);
                }
                What::Look(look) => waiting.looks.push(look),
            }
        }
        // Not before the last of them was asked: nobody's lease may count from earlier.
        let now = clock.at(steady_now());
        let commands = Arc::new(Commands { now, commands });
        line.flying = Some(Arc::clone(&commands));
        Next::Batch(Batch { commands, waiting })
    }

    /// What was on its way has been carried out.
    pub(super) fn landed(&self) {
        self.line.lock().flying = None;
    }

    /// Whether something is on its way that concerns a lock, or any lock.
    pub(super) fn is_busy_with(&self, name: Option<&LockName>) -> bool {
        let line = self.line.lock();
        let concerns = |command: &Command| name.is_none_or(|name| concerns(&command.op, name));
        let flying = line.flying.iter().flat_map(|flying| &flying.commands);
        let waiting = line.asked.iter().filter_map(|asked| match &asked.what {
            What::Decide(command, _) => Some(command),
            What::Look(_) => None,
        });
        flying.chain(waiting).any(concerns)
    }

    /// Returns when something may have come.
    pub(super) async fn rings(&self) {
        self.bell.notified().await;
    }

    /// Why nothing is taken any more.
    pub(super) fn closed(&self) -> Option<Unavailable> {
        self.line.lock().closed.clone()
    }

    /// Takes nothing any more; what was taken is still done.
    pub(super) fn close(&self, why: Unavailable) {
        self.line.lock().closed.get_or_insert(why);
        self.bell.notify_one();
    }

    /// Takes nothing any more, and answers what was taken by `why`.
    pub(super) fn fail(&self, why: &Unavailable) {
        let asked = {
            let mut line = self.line.lock();
            line.closed = Some(why.clone());
            std::mem::take(&mut line.asked)
        };
        for asked in asked {
            asked.what.refuse(why.clone());
        }
    }

    /// Answers those for whom nobody waits any more.
    pub(super) fn expire(&self, now: Time, why: &Unavailable) {
        let late: Vec<_> = {
            let mut line = self.line.lock();
            let late = line.asked.partition_point(|asked| asked.until <= now);
            line.asked.drain(..late).collect()
        };
        for asked in late {
            asked.what.refuse(why.clone());
        }
    }
}

/// Whether a command may change what is seen of a lock.
fn concerns(op: &Op, name: &LockName) -> bool {
    match op {
        // Time passes whether anybody says so or not, and whoever looks asks what is due.
        Op::Settle | Op::OpenSession(_) | Op::KeepAlive(_) => false,
        Op::Acquire(ask) => ask.name == *name,
        Op::Renew(ask) => ask.key.name == *name,
        Op::Annotate(ask) => ask.key.name == *name,
        Op::Release(ask) => ask.key.name == *name,
        Op::Leave(ask) => ask.name == *name,
        Op::Move(ask) => ask.from.name == *name || ask.to == *name,
        Op::Steal(ask) => ask.name == *name,
        // Whatever hangs on it, or whatever there is.
        Op::EndSession(_) | Op::Reset(_) => true,
    }
}

impl What {
    fn refuse(self, why: Unavailable) {
        match self {
            Self::Decide(_, then) => then(Err(why)),
            Self::Look(look) => look(Err(why)),
        }
    }
}

impl Waiting {
    /// Gives each command its answer, and then everybody a look.
    pub(super) fn answer(self, answers: Vec<Answer>) {
        debug_assert_eq!(self.thens.len(), answers.len(), "each command has an answer");
        for (then, answer) in self.thens.into_iter().zip(answers) {
            then(Ok(answer));
        }
        for look in self.looks {
            look(Ok(()));
        }
    }

    /// Tells all why there is no answer.
    pub(super) fn refuse(self, why: &Unavailable) {
        for then in self.thens {
            then(Err(why.clone()));
        }
        for look in self.looks {
            look(Err(why.clone()));
        }
    }
}
