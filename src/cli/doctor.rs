//! `doctor`: looks at all that a mount needs, and says what to mend and how.

use super::ctl::{Ask, Ctl};
use super::exit::{Done, Exit, Failure};
use super::mount::state_dir;
use super::out::{self, Colour, Look};
use crate::fs::device::{DEVICE, HELPER, is_root};
use crate::fs::mountinfo::{self, Life};
use crate::said::said;
use crate::time::{Span, Wall, boot_now};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Requests that wait longer than this many seconds abort the mount; 0 is never.
const REQUEST_TIMEOUT: &str = "/proc/sys/fs/fuse/default_request_timeout";
/// Where root says what fusermount3 may do.
const FUSE_CONF: &str = "/etc/fuse.conf";
/// The journal of a busy day, twice.
const ROOM_MIN_BYTES: u64 = 64 << 20;
/// 2025-01-01: this program is younger, so a clock that shows less is wrong.
const WALL_SECS_MIN: i64 = 1_735_689_600;

/// `doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {
    /// The state directory to look at, or 'none' [default: those of the mounts, or as for mount]
    #[arg(long, value_name = "DIR")]
    state: Option<OsString>,
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
    /// What to do about it; nothing when all is well.
    mend: Option<String>,
}

impl Finding {
    fn well(check: &'static str, says: impl Into<String>) -> Self {
        Self { check, says: says.into(), mend: None }
    }

    fn wrong(check: &'static str, says: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { check, says: says.into(), mend: Some(mend.into()) }
    }
}

pub(super) fn run(args: &DoctorArgs) -> Done {
    let mut findings = vec![device(), helper(), conf(), timeout(), clocks()];
    let (of_mounts, abouts) = mounts();
    findings.extend(of_mounts);
    findings.extend(states(args.state.as_deref(), &abouts)?);
    findings.push(Finding::well("version", version()));
    let all_well = findings.iter().all(|finding| finding.mend.is_none());
    if args.json {
        out::json(&to_json(&findings))?;
    } else {
        out::write(&to_text(&findings, Look::of_stdout()))?;
    }
    if all_well { Ok(()) } else { Err(Failure::Silent(Exit::Findings)) }
}

fn to_json(findings: &[Finding]) -> Value {
    let list = findings
        .iter()
        .map(|f| json!({"check": f.check, "ok": f.mend.is_none(), "says": f.says, "mend": f.mend}));
    json!({
        "ok": findings.iter().all(|finding| finding.mend.is_none()),
        "findings": list.collect::<Vec<_>>(),
    })
}

fn to_text(findings: &[Finding], look: Look) -> String {
    let lines = findings.iter().map(|finding| {
        let (says, check) = (out::harmless(&finding.says), finding.check);
        match &finding.mend {
            None => format!("{}     {check}: {says}\n", look.paint(Colour::Green, "ok")),
            Some(mend) => {
                let wrong = look.paint(Colour::Red, "wrong");
                format!("{wrong}  {check}: {says}\n       mend: {}\n", out::harmless(mend))
            }
        }
    });
    lines.collect()
}

fn device() -> Finding {
    let check = "device";
    match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(_) => Finding::well(check, format!("{DEVICE} is there and can be opened")),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Finding::wrong(
            check,
            format!("{DEVICE} may not be opened by this user"),
            format!("as root: chmod 666 {DEVICE}"),
        ),
        Err(error) => Finding::wrong(
            check,
            format!("{DEVICE} can't be opened: {}", said(&error)),
            "as root: modprobe fuse; a container needs '--device /dev/fuse'",
        ),
    }
}

fn helper() -> Finding {
    let check = "helper";
    if is_root() {
        return Finding::well(check, format!("{HELPER} is not needed by root"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(HELPER))
        .find_map(|file| Some((std::fs::metadata(&file).ok()?, file)));
    match found {
        None => Finding::wrong(
            check,
            format!("{HELPER} is missing, and without it only root can mount"),
            "as root: apt-get install fuse3",
        ),
        Some((meta, file)) if !is_setuid_root(&meta) => Finding::wrong(
            check,
            format!("{} is not setuid root, so it can't mount", file.display()),
            format!("as root: chown root {0} && chmod u+s {0}", file.display()),
        ),
        Some((_, file)) => Finding::well(check, format!("{} can mount for you", file.display())),
    }
}

fn is_setuid_root(meta: &Metadata) -> bool {
    meta.uid() == 0 && meta.permissions().mode() & 0o4000 != 0
}

/// Not to be allowed is no defect: it only matters to who wants --allow-other.
fn conf() -> Finding {
    let check = "other users";
    let conf = std::fs::read_to_string(FUSE_CONF).unwrap_or_default();
    Finding::well(
        check,
        match () {
            () if is_root() => "a mount by root serves all users".to_owned(),
            () if allows_others(&conf) => format!("{FUSE_CONF} lets you serve them"),
            () => format!("{FUSE_CONF} has no line 'user_allow_other', so you serve only yourself"),
        },
    )
}

fn allows_others(conf: &str) -> bool {
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

/// The seconds after which the kernel aborts a mount whose request has no answer, if it does.
pub(super) fn request_timeout() -> Option<u64> {
    limit_in(&std::fs::read_to_string(REQUEST_TIMEOUT).ok()?)
}

fn limit_in(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&seconds| seconds > 0)
}

fn timeout() -> Finding {
    let check = "request timeout";
    match request_timeout() {
        None => Finding::well(
            check,
            "fs.fuse.default_request_timeout is 0, so waiting may last as long as it takes",
        ),
        Some(seconds) => Finding::wrong(
            check,
            format!(
                "fs.fuse.default_request_timeout is {seconds}: \
                 whoever waits longer for a lock kills the whole mount"
            ),
            "as root: sysctl fs.fuse.default_request_timeout=0",
        ),
    }
}

fn clocks() -> Finding {
    let check = "clocks";
    let (wall, up) = (Wall::now(), Span::from_nanos(boot_now().as_nanos()));
    if wall.secs < WALL_SECS_MIN {
        return Finding::wrong(
            check,
            format!("the wall clock shows {wall}: leases end in time, but their times read wrong"),
            "as root: timedatectl set-ntp true",
        );
    }
    Finding::well(check, format!("the wall clock shows {wall}, the boot clock runs since {up}"))
}

/// What is to be said of each mount, and what those that answer tell about themselves.
fn mounts() -> (Vec<Finding>, Vec<Value>) {
    let check = "mount";
    let mounts = match mountinfo::ours() {
        Ok(mounts) => mounts,
        Err(error) => {
            let says = format!("/proc/self/mountinfo can't be read: {}", said(&error));
            return (vec![Finding::wrong(check, says, "mount /proc")], Vec::new());
        }
    };
    if mounts.is_empty() {
        return (vec![Finding::well(check, "no latchfs is mounted here")], Vec::new());
    }
    let mut abouts = Vec::new();
    let findings = mounts.iter().map(|mount| mount_finding(check, &mount.dir, &mut abouts));
    (findings.collect(), abouts)
}

fn mount_finding(check: &'static str, dir: &Path, abouts: &mut Vec<Value>) -> Finding {
    let shown = dir.display();
    match mountinfo::probe(dir) {
        Life::Live => {
            let about = Ctl::of(dir.into()).about().unwrap_or_default();
            let version = about["version"].as_str().map(str::to_owned);
            abouts.push(about);
            match version {
                Some(other) if other != env!("CARGO_PKG_VERSION") => Finding::wrong(
                    check,
                    format!("{shown} works, but is served by version {other}"),
                    format!("unmount and mount it again to have {}", env!("CARGO_PKG_VERSION")),
                ),
                _ => Finding::well(check, format!("{shown} works")),
            }
        }
        Life::Dead => Finding::wrong(
            check,
            format!("{shown} is stale: its daemon is gone"),
            format!("latchfs umount {shown}, or mount it again"),
        ),
        Life::Silent => Finding::wrong(
            check,
            format!("{shown} does not answer: its daemon is stopped or stuck"),
            format!("continue or end the daemon, or: latchfs umount {shown}"),
        ),
    }
}

/// The state directory that is named, or else those of the mounts, each once, or else the one that
/// a mount would have.
fn states(named: Option<&OsStr>, abouts: &[Value]) -> Done<Vec<Finding>> {
    let told: BTreeSet<&str> = abouts.iter().filter_map(|about| about["state"].as_str()).collect();
    if named.is_some() || told.is_empty() {
        return Ok(state_dir(named)?.iter().map(|state| state_finding(state)).collect());
    }
    let finding = |state: &str| match Path::new(state) {
        dir if dir.is_absolute() => state_finding(dir),
        _ => Finding::well("state", format!("a mount keeps {state}")),
    };
    Ok(told.into_iter().map(finding).collect())
}

fn state_finding(state: &Path) -> Finding {
    let (check, shown) = ("state", state.display());
    let elsewhere = "name another directory by 'latchfs mount --state DIR'";
    // What is not there yet is made at the first mount, in the nearest directory that is there.
    let there: PathBuf = state.ancestors().find(|dir| dir.exists()).unwrap_or(state).into();
    if !there.is_dir() {
        let says = format!("{} is not a directory", there.display());
        return Finding::wrong(check, says, elsewhere);
    }
    if let Err(error) = writable(&there) {
        let says = format!("{} can't be written: {}", there.display(), said(&error));
        return Finding::wrong(check, says, format!("mend its permissions, or {elsewhere}"));
    }
    match room(&there) {
        Err(error) => {
            let says = format!("the room in {} can't be found: {}", there.display(), said(&error));
            return Finding::wrong(check, says, elsewhere);
        }
        Ok(bytes) if bytes < ROOM_MIN_BYTES => {
            let says = format!("{} has only {} MiB of room", there.display(), bytes >> 20);
            return Finding::wrong(check, says, format!("make room, or {elsewhere}"));
        }
        Ok(_) => {}
    }
    Finding::well(
        check,
        match (there == state, user_of(state)) {
            (false, _) => format!("{shown} will be made by the first mount"),
            (true, None) => format!("{shown} is writable and not in use"),
            (true, Some(user)) => format!("{shown} is writable and in use by {user}"),
        },
    )
}

/// The daemon that uses a state directory: it keeps the file `lock` locked.
fn user_of(state: &Path) -> Option<String> {
    let path = state.join("lock");
    let lock = File::open(&path).ok()?;
    if lock.try_lock_shared().is_ok() {
        return None;
    }
    let pid = std::fs::read_to_string(&path).unwrap_or_default();
    Some(format!("process {}", pid.trim()))
}

#[allow(unsafe_code)]
fn writable(dir: &Path) -> io::Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: a valid NUL-terminated string that lives until the call returns.
    match unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The bytes that are free for this user.
#[allow(unsafe_code)]
fn room(dir: &Path) -> io::Result<u64> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a valid NUL-terminated string, and room for the answer.
    if unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: statvfs has succeeded, so it has filled the answer in.
    let found = unsafe { found.assume_init() };
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

fn version() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("latchfs {} on Linux {}", env!("CARGO_PKG_VERSION"), kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_with_their_mend() {
        let findings = [
            Finding::well("device", "/dev/fuse is there"),
            Finding::wrong("mount", "/locks is stale", "latchfs umount /locks"),
        ];
        let expected = "\
ok     device: /dev/fuse is there
wrong  mount: /locks is stale
       mend: latchfs umount /locks
";
        assert_eq!(to_text(&findings, Look::Plain), expected);
        let json = to_json(&findings);
        assert_eq!((&json["ok"], &json["findings"][0]["ok"]), (&json!(false), &json!(true)));
        assert_eq!(json["findings"][1]["mend"], "latchfs umount /locks");
    }

    #[test]
    fn a_limit_of_waiting_is_found() {
        assert_eq!(limit_in("0\n"), None);
        assert_eq!(limit_in("15\n"), Some(15));
    }

    #[test]
    fn fuse_conf_is_read() {
        assert!(allows_others("# comment\n user_allow_other\n"));
        assert!(!allows_others("#user_allow_other\nmount_max = 10\n"));
    }

    #[test]
    fn the_mounts_say_where_their_state_is() {
        let abouts = [
            json!({"state": "/proc/self/stat/one"}),
            json!({"state": "/proc/self/stat/one"}),
            json!({"state": "none: a restart forgets all leases"}),
            json!(null),
        ];
        let found = states(None, &abouts).expect("looked at");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].says.contains("/proc/self/stat") && found[0].mend.is_some());
        assert_eq!(found[1].says, "a mount keeps none: a restart forgets all leases");
        let named = states(Some(OsStr::new("none")), &abouts).expect("none is a name");
        assert_eq!(named, []);
    }

    #[test]
    fn a_state_directory_is_looked_at() {
        let base = std::env::temp_dir();
        let yet = state_finding(&base.join("latchfs-doctor-no-such/state"));
        assert!(yet.says.ends_with("will be made by the first mount"), "{yet:?}");
        let file = state_finding(Path::new("/proc/self/stat/state"));
        assert!(file.says.contains("is not a directory") && file.mend.is_some(), "{file:?}");
    }
}
