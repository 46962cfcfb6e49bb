//! The `hold` command: holds a lock until Ctrl-C, for work that a person does.

use super::argument_types::{span, ttl};
use super::children::{Signals, is_end, wake};
use super::exit::{CliError, CliResult, Exit};
use super::held_lock::HoldTerms;
use super::lock_names::NameArg;
use super::output;
use super::target::{CommandTarget, TargetArgs};
use crate::engine::Ttl;
use crate::time::{Span, boot_now};
use serde_json::Value;
use std::sync::Arc;

/// The arguments of `latchfs hold`.
#[derive(Debug, clap::Args)]
pub(super) struct HoldArgs {
    #[command(flatten)]
    name: NameArg,
    #[command(flatten)]
    target: TargetArgs,
    /// Wait in the queue for at most this long: 10m, 1h30m, or seconds [default: for ever]
    #[arg(long, visible_alias = "timeout", value_name = "DURATION", value_parser = span,
        conflicts_with = "try_only")]
    wait: Option<Span>,
    /// Do not wait: exit with 75 if another has the lock
    #[arg(long = "try")]
    try_only: bool,
    /// Hold it together with others that ask for the same
    #[arg(long)]
    shared: bool,
    /// How long the lock stays held when this machine dies [default: the mount's]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    ttl: Option<Ttl>,
    /// Note shown to clients that find the lock held
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

pub(super) fn run(args: &HoldArgs) -> CliResult {
    // The signals are taken before the first thread is started, which inherits the mask.
    let signals = Signals::take().map_err(|error| CliError::system("signals", &error))?;
    let CommandTarget { ask, place, name } = args.target.asking(&args.name.name)?;
    let terms = HoldTerms {
        shared: args.shared,
        ttl: args.ttl.map(|ttl| format!("{}ms", ttl.span().as_millis())),
        note: args.note.clone(),
        wait: if args.try_only { Value::Null } else { HoldTerms::waiting(args.wait) },
    };
    let (held, tenure) =
        signals.end_or(|| ask.close(), || terms.acquire(Arc::clone(&ask), place.dir(), &name))?;
    let token = held.token;
    let begun = output::line(&format!("holding {name}: token {token}; Ctrl-C releases it"));
    if begun.is_err() {
        held.release()?;
        return begun;
    }
    let known = tenure.follow(wake);
    loop {
        let left = known.sure().since(boot_now());
        if left == Span::ZERO {
            return Err(CliError::Said(
                Exit::Lost,
                format!(
                    "lock '{name}' was lost (token {token}), so stop the work that it guards; see \
                     'latchfs status {name}' for its holder"
                ),
            ));
        }
        if signals.next(left.min(known.period()).as_duration()).is_some_and(is_end) {
            held.release()?;
            held.ctl.close();
            return output::line(&format!("released {name}"));
        }
    }
}
