//! Runs all checks of `doctor`, and reports their findings.

use super::finding::Finding;
use super::strict::{self, StrictArgs};
use super::{machine, mounts, servers};
use crate::cli::doctor::strict::FixedFinding;

use crate::cli::connect::config_file::urls;
use crate::cli::connect::credential_options::ServerKeyArgs;
use crate::cli::connect::target::home_server;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output::{self, TerminalStyle};
use serde_json::{Value, json};
use std::ffi::OsString;

/// The arguments of `latchfs doctor`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct DoctorArgs {
    /// The state directory to look at, or 'none' [default: those of the mounts, or as for mount]
    #[arg(long, value_name = "DIR")]
    state: Option<OsString>,
    /// The server to look at, with its cluster; what mounts need is seen to only if there are some
    /// [env: `LATCHFS_SERVER`] [default: that of the configuration file]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    #[command(flatten)]
    key: ServerKeyArgs,
    #[command(flatten)]
    strict: StrictArgs,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(args: &DoctorArgs) -> CliResult {
    let (findings, fixed) = if args.strict.strict {
        let named = args.key.named_server(args.server.as_ref())?;
        strict::findings(&args.strict, named.as_deref(), &args.key)?
    } else {
        (all(args)?, Vec::new())
    };
    if args.json {
        output::json(&to_json(&findings, &fixed))?;
    } else {
        for finding in &fixed {
            output::say(&finding.sentence());
        }
        output::write(&to_text(&findings, TerminalStyle::of_stdout()))?;
    }
    let is_wrong = findings.iter().any(Finding::is_wrong);
    if is_wrong { Err(CliError::Silent(Exit::Findings)) } else { Ok(()) }
}

/// Returns the findings about this machine, its mounts, and the named server.
fn all(args: &DoctorArgs) -> CliResult<Vec<Finding>> {
    let (of_mounts, abouts) = mounts::mounts();
    let server = match &args.server {
        None => args.key.default_server()?.map(|server| server.value).or_else(home_server),
        named => named.clone(),
    };
    let mut findings = Vec::new();
    // A machine that only queries a server, such as a container, needs no FUSE device.
    let asks_only = server.is_some() && abouts.is_empty();
    let mounts = cfg!(target_os = "linux") && !asks_only;
    if mounts {
        findings.extend([machine::device(), machine::helper(), machine::conf()]);
        findings.push(machine::timeout());
    }
    findings.push(machine::clocks());
    if let Some(url) = &server {
        let urls = urls(url);
        for url in &urls {
            findings.extend(servers::named(url, &args.key)?);
        }
        findings.extend(servers::of_nodes(&urls, &args.key)?);
    }
    findings.extend(of_mounts);
    if mounts || args.state.is_some() {
        findings.extend(mounts::states(args.state.as_deref(), &abouts)?);
    }
    findings.push(Finding::well("version", machine::version()));
    Ok(findings)
}

fn to_json(findings: &[Finding], fixed: &[FixedFinding]) -> Value {
    let list = findings.iter().map(|finding| {
        json!({
            "check": finding.check,
            "ok": !finding.is_wrong(),
            "level": finding.level.as_str(),
            "says": finding.says,
            "fix": finding.fix,
        })
    });
    let fixed =
        fixed.iter().map(|it| json!({"check": it.check, "done": it.is_done, "says": it.says}));
    json!({
        "ok": !findings.iter().any(Finding::is_wrong),
        "findings": list.collect::<Vec<_>>(),
        "fixed": fixed.collect::<Vec<_>>(),
    })
}

fn to_text(findings: &[Finding], style: TerminalStyle) -> String {
    let lines = findings.iter().map(|finding| {
        let (says, check) = (output::harmless(&finding.says), finding.check);
        let level = finding.level.as_str();
        let gap = &"       "[level.len()..];
        let level = style.paint(finding.level.colour(), level);
        let fix = finding.fix.as_ref();
        let fix = fix.map(|fix| format!("       fix: {}\n", output::harmless(fix)));
        format!("{level}{gap}{check}: {says}\n{}", fix.unwrap_or_default())
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_printed_with_their_fixes() {
        let findings = [
            Finding::well("device", "/dev/fuse is there"),
            Finding::odd("server clock", "it is 3s ahead", "timedatectl"),
            Finding::wrong("mount", "/locks is stale", "latchfs umount /locks"),
        ];
        let expected = "\
ok     device: /dev/fuse is there
odd    server clock: it is 3s ahead
       fix: timedatectl
wrong  mount: /locks is stale
       fix: latchfs umount /locks
";
        assert_eq!(to_text(&findings, TerminalStyle::Plain), expected);
        let json = to_json(&findings, &[]);
        assert_eq!((&json["ok"], &json["findings"][0]["ok"]), (&json!(false), &json!(true)));
        assert_eq!(json["findings"][2]["fix"], "latchfs umount /locks");
        let odd = to_json(&findings[..2], &[]);
        assert_eq!((&odd["ok"], &odd["findings"][1]["level"]), (&json!(true), &json!("odd")));
    }
}
