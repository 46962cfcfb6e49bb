//! What this process says about a hold-off of its engine: one log line when it begins to serve,
//! one when locks are granted, and a part of the text that says where the state is.

use crate::engine::{Engine, Event, EventKind, HoldOff};
use crate::time::{Time, Wall};

/// Logs that the engine grants nothing yet, if it has a hold-off. `wall` converts an engine time to
/// wall-clock time.
pub(crate) fn log_begin(engine: &Engine, wall: impl Fn(Time) -> Wall) {
    let Some(hold_off) = engine.hold_off() else { return };
    let (cause, until) = (hold_off.cause.as_str(), wall(hold_off.until).to_string());
    let reason = hold_off.cause.to_string();
    log::info!(until = &*until, cause, reason = &*reason; "nothing is granted yet");
}

/// Logs that locks are granted, if one of the events says so.
pub(crate) fn log_end(events: &[Event]) {
    for event in events {
        let EventKind::HoldOffEnded { by } = &event.what else { continue };
        let (client, reason) = (by.as_ref().map(|by| by.by.as_str()), by.as_ref());
        let reason = reason.map_or("its time is over", |by| by.reason.as_str());
        log::info!(by = client, reason; "locks are granted");
    }
}

/// Adds to the text `place`, which says where the state is, that nothing is granted yet.
pub(crate) fn shown_place(
    place: &str,
    hold_off: Option<HoldOff>,
    wall: impl Fn(Time) -> Wall,
) -> String {
    match hold_off {
        Some(hold_off) => format!("{place}; {}", hold_off.sentence(wall(hold_off.until))),
        None => place.to_owned(),
    }
}
