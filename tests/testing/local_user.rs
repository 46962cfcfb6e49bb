//! Users of a machine on which nothing is set up: no mount of latchfs, no server, no FUSE.

use crate::command::{Output, latchfs_path, run, signal, soon};
use crate::scratch::Scratch;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Makes the mount namespace of a command: the user database of the test, no mount of latchfs, and
/// no FUSE. The program lies where all users may execute it.
const SETUP: &str = r#"
for dir in $(grep -F ' - fuse.latchfs ' /proc/self/mountinfo | cut -d ' ' -f 5); do
    umount -l -c "$dir"
done
mount --bind "$2" "$1/latchfs" || exit 99
# A machine with a daemon of its own has its own files.
for pair in etc:/etc run:/run lib:/var/lib passwd:/etc/passwd; do
    [ ! -e "$1/${pair%%:*}" ] || mount --bind "$1/${pair%%:*}" "${pair#*:}" || exit 99
done
[ ! -e /dev/fuse ] || mount --bind /dev/null /dev/fuse
cd "$1" && shift 2 && exec "$@"
"#;

/// A user with an own home. Its daemon is ended with this value.
pub struct LocalUser {
    scratch: Scratch,
    uid: u32,
}

impl LocalUser {
    /// Makes the home of a user, who is `tester` in the user database.
    pub fn new(uid: u32) -> Self {
        let scratch = Scratch::open_to_all();
        let user = Self { scratch, uid };
        let (home, root) = (user.home(), user.scratch.join("root"));
        fs::write(
            user.scratch.join("passwd"),
            format!(
                "root:*:0:0::{}:/bin/sh\ntester:*:{uid}:{uid}::{}:/bin/sh\n",
                root.display(),
                home.display()
            ),
        )
        .expect("a fresh directory");
        fs::write(user.scratch.join("latchfs"), "").expect("a fresh directory");
        for (dir, owner) in [(&home, uid), (&root, 0)] {
            fs::create_dir(dir).expect("a fresh directory");
            chown(dir, Some(owner), Some(owner)).expect("tests run as root");
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("ours");
        }
        user
    }

    /// Returns the home of the user.
    pub fn home(&self) -> PathBuf {
        self.scratch.join("home")
    }

    /// Returns the directory of the user's own locks, which the first command makes.
    pub fn own(&self) -> PathBuf {
        let all = self.home().join(".local/state/latchfs/own");
        let mut machines = fs::read_dir(all).expect("a command has made it");
        machines.next().expect("one machine").expect("readable").path()
    }

    /// Returns a command of root on this user's machine, without an environment.
    pub fn by_root(&self, words: &[&str]) -> Command {
        let path = std::env::var("PATH").expect("there is one");
        let mut command = Command::new("unshare");
        command.env_clear().env("PATH", format!("{}:{path}", self.scratch.path().display()));
        command.args(["--mount", "--propagation", "private", "sh", "-c", SETUP, "sh"]);
        command.arg(self.scratch.path()).arg(latchfs_path()).args(words);
        command
    }

    /// Returns a command of the user.
    pub fn command(&self, words: &[&str]) -> Command {
        let uid = self.uid.to_string();
        let user = ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"];
        self.by_root(&[&user, words].concat())
    }

    /// Runs `latchfs` as the user.
    #[track_caller]
    pub fn latchfs(&self, words: &[&str]) -> Output {
        run(&mut self.command(&[&["latchfs"], words].concat()))
    }

    /// Runs a script as the user.
    #[track_caller]
    pub fn sh(&self, script: &str) -> Output {
        run(&mut self.command(&["sh", "-c", script]))
    }

    /// Returns the daemons that run for the users of this machine.
    pub fn daemons(&self) -> Vec<i32> {
        let here = format!("{}/", self.scratch.path().display());
        let is_daemon = |pid: &i32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("--idle-end") && line.contains(&here)
        };
        let processes = fs::read_dir("/proc").expect("mounted").flatten();
        let pid = |name: std::ffi::OsString| name.to_str()?.parse().ok();
        processes.filter_map(|entry| pid(entry.file_name())).filter(is_daemon).collect()
    }

    /// Returns the only daemon.
    #[track_caller]
    pub fn daemon(&self) -> i32 {
        let daemons = self.daemons();
        assert_eq!(daemons.len(), 1, "{daemons:?}");
        daemons[0]
    }

    /// Kills all daemons.
    pub fn kill_daemons(&self) {
        for pid in self.daemons() {
            signal(pid, libc::SIGKILL);
        }
        soon("their end", || self.daemons().is_empty().then_some(()));
    }
}

impl Drop for LocalUser {
    fn drop(&mut self) {
        for pid in self.daemons() {
            signal(pid, libc::SIGKILL);
        }
    }
}

/// A process of another user that listens at a socket, as if it were the daemon. It ends with this
/// value.
pub struct Squatter(Child);

impl Squatter {
    /// Binds the socket as root, and listens at it as the user `uid`.
    pub fn listen(socket: &Path, uid: u32) -> Self {
        let script = "import os, signal, socket, sys
listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1])
uid = int(sys.argv[2]); os.setresuid(uid, uid, uid)
listener.listen(); print(flush=True); signal.pause()";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(socket).arg(uid.to_string()).stdout(Stdio::piped());
        let mut squatter = Self(python.spawn().expect("it starts"));
        let mut said = squatter.0.stdout.take().expect("piped");
        said.read_exact(&mut [0]).expect("it listens");
        squatter
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
