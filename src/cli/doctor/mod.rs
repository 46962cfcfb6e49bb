//! `doctor`: looks at all that a mount or a server needs, and says what to mend and how.

mod nodes;
mod machine;
mod servers;
mod mounts;
mod state_dirs;

use super::exit::{CliError, CliResult, Exit};
use super::output::{self, Colour, TerminalStyle};
use super::server_options::ServerKeyArgs;
pub(super) use machine::request_timeout;
use serde_json::{Value, json};
use std::ffi::OsString;

/// `doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {
    /// The state directory to look at, or 'none' [default: those of the mounts, or as for mount]
    #[arg(long, value_name = "DIR")]
    state: Option<OsString>,
    /// The server to look at, with its cluster; what mounts need is seen to only if there are some
    #[arg(long, value_name = "URL", env = "LATCHFS_SERVER", hide_env_values = true)]
    server: Option<String>,
    #[command(flatten)]
    key: ServerKeyArgs,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// What was found of one thing.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// What was looked at.
    check: &'static str,
    /// What was found.
    says: String,
    /// Whether it is as it should be.
    level: Level,
    /// What to do about it; nothing when all is well.
    mend: Option<String>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// As it should be.
    Well,
    /// Not as one would expect, and nothing depends on it.
    Odd,
    /// To be mended.
    Wrong,
}

impl Level {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Odd => "odd",
            Self::Wrong => "wrong",
        }
    }

    const fn colour(self) -> Colour {
        match self {
            Self::Well => Colour::Green,
            Self::Odd => Colour::Yellow,
            Self::Wrong => Colour::Red,
        }
    }
}

impl Finding {
    fn well(check: &'static str, says: impl Into<String>) -> Self {
        Self { check, says: says.into(), level: Level::Well, mend: None }
    }

    fn odd(check: &'static str, says: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { level: Level::Odd, mend: Some(mend.into()), ..Self::well(check, says) }
    }

    fn wrong(check: &'static str, says: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { level: Level::Wrong, ..Self::odd(check, says, mend) }
    }

    fn is_wrong(&self) -> bool {
        self.level == Level::Wrong
    }
}

pub(super) fn run(args: &DoctorArgs) -> CliResult {
    let (of_mounts, abouts) = mounts::mounts();
    let mut findings = Vec::new();
    // A container that asks a server needs no device.
    let asks_only = args.server.is_some() && abouts.is_empty();
    let mounts = cfg!(target_os = "linux") && !asks_only;
    if mounts {
        findings.extend([machine::device(), machine::helper(), machine::conf()]);
        findings.push(machine::timeout());
    }
    findings.push(machine::clocks());
    if let Some(url) = &args.server {
        let urls = super::server_options::urls(url);
        for url in &urls {
            findings.extend(servers::named(url, &args.key)?);
        }
        findings.extend(nodes::of_nodes(&urls, &args.key)?);
    }
    findings.extend(of_mounts);
    if mounts || args.state.is_some() {
        findings.extend(state_dirs::states(args.state.as_deref(), &abouts)?);
    }
    findings.push(Finding::well("version", machine::version()));
    if args.json {
        output::json(&to_json(&findings))?;
    } else {
        output::write(&to_text(&findings, TerminalStyle::of_stdout()))?;
    }
    let is_wrong = findings.iter().any(Finding::is_wrong);
    if is_wrong { Err(CliError::Silent(Exit::Findings)) } else { Ok(()) }
}

fn to_json(findings: &[Finding]) -> Value {
    let list = findings.iter().map(|finding| {
        json!({
            "check": finding.check,
            "ok": !finding.is_wrong(),
            "level": finding.level.as_str(),
            "says": finding.says,
            "mend": finding.mend,
        })
    });
    json!({
        "ok": !findings.iter().any(Finding::is_wrong),
        "findings": list.collect::<Vec<_>>(),
    })
}

fn to_text(findings: &[Finding], look: TerminalStyle) -> String {
    let lines = findings.iter().map(|finding| {
        let (says, check) = (output::harmless(&finding.says), finding.check);
        let level = finding.level.as_str();
        let gap = &"       "[level.len()..];
        let level = look.paint(finding.level.colour(), level);
        let mend = finding.mend.as_ref();
        let mend = mend.map(|mend| format!("       mend: {}\n", output::harmless(mend)));
        format!("{level}{gap}{check}: {says}\n{}", mend.unwrap_or_default())
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_with_their_mend() {
        let findings = [
            Finding::well("device", "/dev/fuse is there"),
            Finding::odd("server clock", "it is 3s ahead", "timedatectl"),
            Finding::wrong("mount", "/locks is stale", "latchfs umount /locks"),
        ];
        let expected = "\
ok     device: /dev/fuse is there
odd    server clock: it is 3s ahead
       mend: timedatectl
wrong  mount: /locks is stale
       mend: latchfs umount /locks
";
        assert_eq!(to_text(&findings, TerminalStyle::Plain), expected);
        let json = to_json(&findings);
        assert_eq!((&json["ok"], &json["findings"][0]["ok"]), (&json!(false), &json!(true)));
        assert_eq!(json["findings"][2]["mend"], "latchfs umount /locks");
        let odd = to_json(&findings[..2]);
        assert_eq!((&odd["ok"], &odd["findings"][1]["level"]), (&json!(true), &json!("odd")));
    }
}
