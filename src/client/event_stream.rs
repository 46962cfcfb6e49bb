//! The thread that reads the server's event stream and publishes its events to local readers.

use super::shared_state::ClientState;
use crate::base::jittered;
use crate::client::http_transport::{FrameStream, StreamPosition, TransportError};
use crate::client::session_keep_alive::SessionKeepAlive;
use crate::engine::EventKind;
use crate::service::batch::batch_messages::{Frame, Stamp, StreamStart, take_frame};
use crate::time::Time;
use crate::time::{Span, boot_now};
use std::sync::Arc;

/// The silence after which a server counts as unreachable: it sends a heartbeat every 500 ms.
const SILENCE: Span = Span::from_millis(1_600);
/// How long the server may take to answer the request that opens the event stream.
const PATIENCE: Span = Span::from_secs(2);
/// The first pause after the event stream has failed; it doubles with each failure, up to
/// [`PAUSE_MAX`].
const PAUSE_MIN: Span = Span::from_millis(20);
/// The longest pause before the event stream is opened again.
const PAUSE_MAX: Span = Span::from_millis(500);

/// The highest event number that is accepted. A server that numbers a million events a second from
/// 0 on reaches it after 100,000 years; beyond it, the numbers could wrap around.
const EVENT_NUMBER_MAX: u64 = 1 << 62;

pub(super) fn start(
    hub: &Arc<ClientState>,
    keeper: &Arc<SessionKeepAlive>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let (hub, keeper) = (Arc::clone(hub), Arc::clone(keeper));
    let thread = std::thread::Builder::new().name("events".to_owned());
    thread.spawn(move || {
        let (mut place, mut pause) = (StreamPosition::default(), PAUSE_MIN);
        while !hub.is_stopped() {
            let asked_at = boot_now();
            let followed = hub.server.follow(&place, PATIENCE);
            let error = match followed {
                Ok(mut stream) => {
                    let error = follow(&hub, &keeper, &mut *stream, &mut place, asked_at);
                    pause = PAUSE_MIN;
                    error
                }
                Err(error) => error,
            };
            if hub.is_stopped() {
                return;
            }
            hub.record_error("no events", &error);
            hub.events_work(false);
            hub.pause(jittered(pause));
            pause = (pause + pause).min(PAUSE_MAX);
        }
    })
}

/// Reads the event stream until it fails, and returns the error.
fn follow(
    hub: &ClientState,
    keeper: &SessionKeepAlive,
    stream: &mut dyn FrameStream,
    place: &mut StreamPosition,
    asked_at: Time,
) -> TransportError {
    let mut bytes = Vec::new();
    loop {
        match take_frame(&mut bytes) {
            Ok(Some(frame)) => {
                if let Err(error) = is_ours(hub, &frame) {
                    return error;
                }
                if !has_possible_numbers(&frame, hub.feed.next()) {
                    return TransportError::Foreign("its events have no valid numbers".to_owned());
                }
                handle_frame(hub, keeper, frame, place, asked_at);
            }
            Ok(None) => {
                if let Err(error) = stream.read(&mut bytes, SILENCE) {
                    return error;
                }
                if hub.is_stopped() {
                    return TransportError::Silent("the end".to_owned());
                }
            }
            Err(error) => return TransportError::Foreign(error.to_string()),
        }
    }
}

/// Whether the event numbers of a frame are possible, if the next event gets the local number
/// `next_here`.
fn has_possible_numbers(frame: &Frame, next_here: u64) -> bool {
    match frame {
        Frame::Begin(_, start) => start.next <= EVENT_NUMBER_MAX,
        Frame::Events(lost, events, _) => {
            let newest = events.last().map_or(0, |(number, _)| *number);
            newest <= EVENT_NUMBER_MAX && next_here.saturating_add(*lost) <= EVENT_NUMBER_MAX
        }
        Frame::Beat(..) => true,
    }
}

/// Fails if the server of the event stream has another engine than the one that the client uses.
fn is_ours(hub: &ClientState, frame: &Frame) -> Result<(), TransportError> {
    let (Frame::Begin(stamp, _) | Frame::Beat(stamp, _)) = frame else { return Ok(()) };
    let engine = hub.engine();
    if engine == 0 || engine == stamp.engine {
        return Ok(());
    }
    let error = TransportError::Elsewhere("it belongs to another cluster".to_owned());
    if hub.server.is_several() {
        hub.server.pass_over(&error);
    } else {
        hub.engine_gone(engine);
    }
    Err(error)
}

fn handle_frame(
    hub: &ClientState,
    keeper: &SessionKeepAlive,
    frame: Frame,
    place: &mut StreamPosition,
    asked_at: Time,
) {
    match frame {
        Frame::Begin(stamp, start) => begin(hub, &stamp, start, place, asked_at),
        Frame::Beat(_, at) => place.place = at.or(place.place),
        Frame::Events(lost, mut events, at) => {
            if lost > 0 {
                hub.skip(Some(lost));
            }
            let Some((newest, _)) = events.last() else { return };
            place.place = at;
            place.next = newest + 1;
            events.retain(|(_, event)| match &event.what {
                // The client gives up its session before it publishes the event that the session
                // has ended. A reader of this event asks for the current session, and must not get
                // the one that has ended.
                EventKind::SessionOver { session, .. } => {
                    let is_news = hub.session_over(*session);
                    keeper.call();
                    is_news
                }
                EventKind::Ended { token, .. } => {
                    hub.forget(*token);
                    true
                }
                _ => true,
            });
            let mut here: Vec<_> = events.into_iter().map(|(_, event)| event).collect();
            let count = here.len() as u64;
            let wakers = {
                let mut numbers = hub.numbers.lock();
                let wakers = hub.feed.publish(&mut here);
                let next_here = hub.feed.next();
                numbers.came(place.next, next_here - count, next_here);
                wakers
            };
            wakers.wake();
        }
    }
}

fn begin(
    hub: &ClientState,
    stamp: &Stamp,
    start: StreamStart,
    place: &mut StreamPosition,
    asked_at: Time,
) {
    hub.observe_stamp(asked_at, stamp);
    let next = start.next;
    if place.start == 0 {
        // This is the first event stream: the local event log takes over the server's numbers, and
        // differs from them only after a restart of the server. No reader has to be woken.
        drop(hub.feed.skip(next));
    } else if !start.continues {
        // Events may have been missed while the stream was interrupted: the server has restarted,
        // or this node of the cluster has no record any more of the last event that arrived.
        hub.skip(None);
    }
    let engine = stamp.engine;
    *place = StreamPosition { start: stamp.start, next, place: start.place, engine };
    hub.numbers.lock().begin(stamp.start, next, hub.feed.next());
    hub.events_work(true);
    // Wakes the callers that wait for the connection to the server, so that they check the
    // connection's state again.
    hub.feed.wakers().wake();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Event, LockName, Token};

    #[test]
    fn event_numbers_never_wrap() {
        let event = |number| {
            let name = LockName::parse("a").expect("valid");
            let what = EventKind::Annotated { name, token: Token::named(1) };
            (number, Event { at: Time::ZERO, what })
        };
        let possible = |lost, number, next_here| {
            has_possible_numbers(&Frame::Events(lost, vec![event(number)], None), next_here)
        };
        assert!(possible(5, 1_000_000, 7) && possible(0, EVENT_NUMBER_MAX, 7));
        assert!(!possible(0, u64::MAX, 7) && !possible(u64::MAX, 8, 7));
        assert!(!possible(2, 8, EVENT_NUMBER_MAX - 1));
        assert!(!has_possible_numbers(&Frame::Events(u64::MAX, Vec::new(), None), 0));
    }
}
