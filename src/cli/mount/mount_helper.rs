//! `mount -t latchfs` and lines of `/etc/fstab`: mount(8) calls a type's helper, `mount.latchfs`,
//! which is this program under another name.
//!
//! ```text
//! mount.latchfs SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTION,...] [-t TYPE]
//! ```
//!
//! SPEC is the URL of a server (or several, separated by commas), or `latchfs` or `none` for locks
//! of this machine. The options are those of `latchfs mount` without the hyphens, and those that
//! mount(8) has for all types.

use crate::cli::exit::Exit;
use crate::cli::output;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The exit codes of mount(8).
const MOUNT_USAGE: u8 = 1;
const MOUNT_SYSTEM: u8 = 2;
const MOUNT_FAILED: u8 = 32;

/// The options that say nothing to a file system, or what holds for each latchfs: its mounts have
/// no devices, no set-user-id programs, and no times of access.
const FOR_MOUNT: [&str; 25] = [
    "defaults",
    "rw",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nodev",
    "nosuid",
    "exec",
    "noexec",
    "async",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nolazytime",
];

/// Returns the exit code of the helper if this process was called by its name.
pub(in crate::cli) fn run_by_name() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let name = words.next()?;
    let name = Path::new(&name).file_name().and_then(OsStr::to_str)?;
    if !matches!(name, "mount.latchfs" | "mount.fuse.latchfs") {
        return None;
    }
    let code = match translated(&words.collect::<Vec<_>>()) {
        Ok(None) => 0,
        Ok(Some(arguments)) => mount(&arguments),
        Err(why) => {
            output::say(&why);
            MOUNT_USAGE
        }
    };
    Some(code.into())
}

/// Runs `latchfs mount`, and returns the exit code for mount(8).
fn mount(arguments: &[OsString]) -> u8 {
    let mounted = Command::new("/proc/self/exe").arg0("latchfs").args(arguments).status();
    match mounted.map(|status| status.code()) {
        Ok(Some(0)) => 0,
        Ok(Some(code)) if code == i32::from(Exit::Usage.code()) => MOUNT_USAGE,
        Ok(_) => MOUNT_FAILED,
        Err(error) => {
            output::say(&format!("latchfs can't be started: {error}"));
            MOUNT_SYSTEM
        }
    }
}

/// Returns the arguments of latchfs for those of the helper; `None` if nothing is to be mounted.
fn translated(words: &[OsString]) -> Result<Option<Vec<OsString>>, String> {
    let mut places = Vec::new();
    let mut arguments = Vec::new();
    let mut mounts = true;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_str().ok_or("an argument is not UTF-8")?;
        match text {
            "-o" => {
                let list = words.next().and_then(|list| list.to_str());
                options(list.ok_or("-o needs a list of options in UTF-8")?, &mut arguments)?;
            }
            "-t" => drop(words.next()),
            "-N" => return Err("latchfs mounts in no other namespace; leave -N out".to_owned()),
            _ if text.starts_with('-') && text.len() > 1 => {
                for flag in text[1..].chars() {
                    match flag {
                        's' | 'n' => {}
                        'f' => mounts = false,
                        'v' => arguments.push("-v".into()),
                        _ => return Err(format!("-{flag} is no option of mount.latchfs")),
                    }
                }
            }
            _ => places.push(text),
        }
    }
    // mount(8) passes the whole path of DIR.
    let [spec, dir] = places[..] else {
        return Err(
            "it takes SPEC DIR, as mount(8) gives them: 'mount -t latchfs latchfs /locks', \
                    or the URL of a server for 'latchfs'"
                .to_owned(),
        );
    };
    let mut all: Vec<OsString> = vec!["mount".into(), "--background".into()];
    match spec {
        "latchfs" | "none" => {}
        _ if spec.contains("://") => all.extend(["--server".into(), spec.into()]),
        _ => {
            return Err(format!(
                "'{spec}' is no server; write its URL, or 'latchfs' for locks of this machine"
            ));
        }
    }
    all.append(&mut arguments);
    all.push(dir.into());
    Ok(mounts.then_some(all))
}

/// Adds the arguments for options as fstab has them: `allow_other,state=/var/lib/latchfs`.
fn options(list: &str, arguments: &mut Vec<OsString>) -> Result<(), String> {
    for option in list.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
        if FOR_MOUNT.contains(&name) || name.starts_with("x-") || name == "comment" {
            continue;
        }
        if matches!(
            name,
            "" | "ro" | "dev" | "suid" | "bind" | "remount" | "foreground" | "background" | "help"
        ) {
            return Err(format!("a mount of latchfs can't be '{name}'; leave that option out"));
        }
        arguments.push(format!("--{}", name.replace('_', "-")).into());
        arguments.extend(value.map(OsString::from));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Option<Vec<OsString>>, String> {
        translated(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_line_of_fstab_becomes_the_command_that_mounts() {
        for (words, wanted) in [
            (
                &["latchfs", "/locks", "-o", "rw,nofail,allow_other,state=/var/lib/l"][..],
                "mount --background --allow-other --state /var/lib/l /locks",
            ),
            (
                &[
                    "https://a:1,https://b:1",
                    "/l",
                    "-sv",
                    "-o",
                    "_netdev,x-systemd.requires=n,ca=/c",
                ],
                "mount --background --server https://a:1,https://b:1 -v --ca /c /l",
            ),
            (&["none", "-dir", "-t", "latchfs"], ""),
        ] {
            let joined = of(words).map(|all| all.expect("it mounts").join(OsStr::new(" ")));
            assert_eq!(joined.unwrap_or_default(), wanted, "{words:?}");
        }
        assert_eq!(of(&["latchfs", "/locks", "-f"]), Ok(None));
        for words in [
            &["/locks"][..],
            &["/dev/sda1", "/locks"],
            &["latchfs", "/locks", "-o", "ro"],
            &["latchfs", "/locks", "-N", "7"],
            &["latchfs", "/locks", "more"],
        ] {
            assert!(of(words).is_err(), "{words:?}");
        }
    }
}
