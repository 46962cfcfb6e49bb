//! The `ls` command: lists the locks that are held, in grace or waited for, with their holders.

use super::exit::CliResult;
use super::output::{self, TerminalStyle};
use super::status_table::table;
use super::target::TargetArgs;
use serde_json::Value;

/// The interval of `ls --watch` in milliseconds: times are displayed in seconds.
const EVERY_MS: libc::c_int = 1_000;
/// The escape sequences that move the cursor to the top left and clear the screen from there.
const REDRAW: &str = "\x1b[H\x1b[J";

/// The arguments of `latchfs ls`.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Only locks whose names begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    target: TargetArgs,
    /// Print a JSON array of statuses
    #[arg(long)]
    json: bool,
    /// Keep running and show changes, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Stale read: the state of the first node that answers, however old, without asking the leader
    #[arg(long, conflicts_with = "watch")]
    stale: bool,
}

pub(super) fn run(args: &ListArgs) -> CliResult {
    let look = TerminalStyle::of_stdout();
    if args.stale {
        let known = args.target.stale()?.list(&args.prefix)?;
        if args.json {
            return output::json(&Value::Array(known.it));
        }
        known.warn();
        return output::write(&table(&known.it, look));
    }
    let ctl = args.target.ask()?;
    let mut before = None;
    loop {
        let locks = ctl.list(&args.prefix)?;
        let facts: Vec<Value> = locks.iter().map(without_time).collect();
        let changed = before.as_ref() != Some(&facts);
        match look {
            // `ls --watch` on a terminal redraws the table each second, so that the displayed times
            // count down. Elsewhere it prints a table only after a change.
            TerminalStyle::Terminal if args.watch && !args.json => {
                output::write(&format!("{REDRAW}{}", table(&locks, look)))?;
            }
            _ if args.json && changed => output::json(&Value::Array(locks))?,
            _ if changed => {
                let gap = if before.is_some() { "\n" } else { "" };
                output::write(&format!("{gap}{}", table(&locks, look)))?;
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

/// Returns a lock's status without the fields that change merely because time passes.
fn without_time(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(fields) = status.as_object_mut() {
        fields.remove("expires_in_ms");
        let waiters = fields.get_mut("waiters").and_then(Value::as_array_mut);
        for waiter in waiters.into_iter().flatten().filter_map(Value::as_object_mut) {
            waiter.remove("waited_ms");
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
            json!({"name": "a", "token": 1, "expires_in_ms": left, "waiters": waiters})
        };
        assert_eq!(without_time(&status(5)), without_time(&status(4)));
        assert_ne!(without_time(&status(5)), without_time(&json!({"name": "a", "token": 2})));
    }
}
