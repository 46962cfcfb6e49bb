//! The session of a guard whose lock service is in its own process.

use crate::engine::{ClientId, Command, Grace, Op, OpenSession, Outcome, SessionId};
use crate::service::{Locks, Unavailable};

/// Opens a session that lasts as long as this process. It has no grace: the engine is in this
/// process, so a guard that starts after it was killed is the only one that can take the lock.
pub(super) fn open_process_session(
    locks: &Locks,
    client: &ClientId,
) -> Result<SessionId, Unavailable> {
    let (send, answer) = std::sync::mpsc::channel();
    let (client, ttl, grace) = (client.clone(), None, Grace::NONE);
    let op = Op::OpenSession(OpenSession { client, ttl, grace });
    // The engine is in this process, so the answer comes before `submit` returns.
    locks.submit(Command::from(op), move |answer| drop(send.send(answer)));
    match answer.recv() {
        Ok(Ok(Ok(Outcome::SessionOpened(session)))) => Ok(session),
        Ok(Err(why)) => Err(why),
        Ok(Ok(_)) | Err(_) => Err(Unavailable::Closing),
    }
}
