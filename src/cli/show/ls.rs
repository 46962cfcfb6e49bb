//! The `ls` command: lists the locks that are held, in grace or waited for, with their holders.

use crate::cli::connect::mount_client::LockClient;
use crate::cli::connect::target::TargetArgs;
use crate::cli::exit::CliResult;
use crate::cli::lock::lock_commands::PrefixArg;
use crate::cli::output;
use crate::cli::output::{Colour, TerminalStyle};
use crate::cli::status_table::terminal_size;
use crate::cli::status_table::{Status, is_finished_slot, table};
use crate::control::ControlRequest;
use crate::engine::LockName;
use crate::status::forget_waiting_time;
use serde_json::Value;

/// The interval of `ls --watch` in milliseconds: times are displayed in seconds.
const EVERY_MS: libc::c_int = 1_000;
/// The escape sequences that move the cursor to the top left and clear the screen from there.
const REDRAW: &str = "\x1b[H\x1b[J";

/// The arguments of `latchfs ls`.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // each is an option of its own
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    names: PrefixArg,
    #[command(flatten)]
    target: TargetArgs,
    /// Print a JSON array of statuses
    #[arg(long)]
    json: bool,
    /// Keep running and show changes, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Also list the finished slots of 'run --slot', apart
    #[arg(long)]
    slots: bool,
    /// Stale read: the state of the first node that answers, however old, without asking the leader
    #[arg(long, conflicts_with = "watch")]
    stale: bool,
}

pub(in crate::cli) fn run(args: &ListArgs) -> CliResult {
    let style = TerminalStyle::of_stdout();
    if args.stale {
        let known = args.target.stale()?.list(&args.names.prefix)?;
        if args.json {
            return output::json(&Value::Array(known.it));
        }
        known.warn();
        let not_granting = known.it.first().and_then(|lock| Status(lock).not_granting());
        return output::write(&args.shown(&known.it, not_granting, style));
    }
    let ctl = args.target.lock_client()?;
    let mut before = None;
    loop {
        let locks = ctl.list(&args.names.prefix)?;
        let mut facts: Vec<Value> = locks.iter().map(without_time).collect();
        let not_granting = if args.json { None } else { args.not_granting(&locks, &*ctl) };
        facts.extend(not_granting.clone().map(Value::from));
        let changed = before.as_ref() != Some(&facts);
        if locks.is_empty() && changed && !args.json && !args.names.prefix.is_empty() {
            output::say(&format!(
                "no lock is held or waited for whose name begins with '{}'",
                args.names.prefix
            ));
        }
        match style {
            // `ls --watch` on a terminal redraws the table each second, so that the displayed times
            // count down. Elsewhere it prints a table only after a change.
            TerminalStyle::Terminal if args.watch && !args.json => {
                output::write(&format!("{REDRAW}{}", args.shown(&locks, not_granting, style)))?;
            }
            _ if args.json && changed => output::json(&Value::Array(locks))?,
            _ if changed => {
                let gap = if before.is_some() { "\n" } else { "" };
                output::write(&format!("{gap}{}", args.shown(&locks, not_granting, style)))?;
            }
            _ => {}
        }
        if !args.watch {
            return Ok(());
        }
        before = Some(facts);
        output::pause(EVERY_MS)?;
    }
}

impl ListArgs {
    /// Returns until when nothing is granted, and why, as the status of a listed lock says, or that
    /// of any name where none is listed.
    fn not_granting(&self, locks: &[Value], ctl: &dyn LockClient) -> Option<String> {
        if let Some(first) = locks.first() {
            return Status(first).not_granting();
        }
        let name = match self.names.prefix.trim_matches('/') {
            "" => "lock",
            name => name,
        };
        // If the credentials may not see this name, they see no locks at all, so the error needs no
        // report.
        let name = LockName::parse(name).ok()?;
        let status = ctl.status(&ControlRequest::Status(name)).ok()?;
        Status(&status).not_granting()
    }

    /// Formats the table of locks, and the remark below it. Slots whose work is done stand apart,
    /// or are only counted.
    fn shown(&self, locks: &[Value], remark: Option<String>, style: TerminalStyle) -> String {
        let width = terminal_size().map(|(columns, _)| columns);
        let (slots, locks): (Vec<_>, Vec<_>) =
            locks.iter().partition(|lock| is_finished_slot(Status(lock)));
        let mut lines = table(&locks, style, width);
        match slots.len() {
            0 => {}
            count if self.slots => {
                lines.push(format!("\nfinished slots ({count}):"));
                lines.extend(table(&slots, style, width));
            }
            count => lines.push(style.paint(
                Colour::Faint,
                &format!("finished slots: {count}; 'latchfs ls --slots' lists them"),
            )),
        }
        lines.extend(remark);
        lines.join("\n") + "\n"
    }
}

/// Returns a lock's status without the fields that change merely because time passes.
fn without_time(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(fields) = status.as_object_mut() {
        fields.remove("expires_in_ms");
        fields.remove("held_ms");
        if let Some(hold_off) = fields.get_mut("hold_off").and_then(Value::as_object_mut) {
            hold_off.remove("left_ms");
        }
        let waiters = fields.get_mut("waiters").and_then(Value::as_array_mut);
        for waiter in waiters.into_iter().flatten().filter_map(Value::as_object_mut) {
            forget_waiting_time(waiter);
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn time_alone_is_no_change() {
        let status = |left| {
            let waiters = json!([{"client": "b", "waited_ms": 10 - left}]);
            json!({"name": "a", "token": 1, "expires_in_ms": left, "held_ms": 10 - left,
                "waiters": waiters})
        };
        assert_eq!(without_time(&status(5)), without_time(&status(4)));
        assert_ne!(without_time(&status(5)), without_time(&json!({"name": "a", "token": 2})));
    }
}
