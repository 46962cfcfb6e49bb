//! The rules of a lock, as a pure value.

pub mod command;
pub mod event;
pub mod lease;
pub mod name;
pub mod refusal;
pub mod term;
pub mod view;

pub use command::{
    Acquire, Annotate, Answer, Command, Firm, LeaseKey, Leave, Line, Move, Op, OpenSession,
    Outcome, Over, Patch, Release, Renew, RequestId, Steal, Tenure, TextPatch, Ticket,
};
pub use event::{End, Event, SessionEnd, What, Why};
pub use lease::{
    Details, Ends, Face, Hold, Lease, Life, Looks, Mode, OpenId, Phase, Process, Reads, SessionId,
    Term, Token,
};
pub use name::{ClientId, LockName, NameError};
pub use refusal::{Conflict, Kind, Limit, Reason, Refusal, Way};
pub use term::{Grace, TermError, Ttl};
pub use view::{Child, Holder, LockView, WaiterView};
