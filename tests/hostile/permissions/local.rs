//! A mount that an unprivileged user has made, with an HTTP socket: the kernel identifies its
//! callers as users of this machine.

use super::Who;
use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;
use testing::{ALICE, Scratch, Server, latchfs_path, run, users};

/// A mount by Alice, an unprivileged user, that serves all users, and its HTTP socket. It is in a
/// mount namespace of its own, in which Alice may open the FUSE device.
pub(super) struct LocalMount {
    server: Server,
    scratch: Scratch,
}

impl LocalMount {
    pub(super) fn start() -> Self {
        users();
        let scratch = Scratch::open_to_all();
        // The program is copied, because other users may not enter the build directory.
        fs::copy(latchfs_path(), scratch.join("latchfs")).expect("there is room");
        let script = format!(
            "mknod fuse c 10 229 && chmod 666 fuse && mount --bind $PWD/fuse /dev/fuse || exit 99
             echo user_allow_other > fuse.conf && mount --bind fuse.conf /etc/fuse.conf || exit 98
             exec setpriv --reuid={ALICE} --regid={ALICE} --clear-groups ./latchfs mount locks \
                 --allow-other --client box --state none --grant-at-once --foreground \
                 --listen unix:$PWD/http.sock"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.current_dir(scratch.path()).env_remove("LATCHFS_DIR");
        let server = Server::spawn(&mut command, Scratch::new());
        Self { server, scratch }
    }

    /// Connects to the HTTP socket of the mount as a user, or as root if `user` is `None`.
    pub(super) fn connect(&self, user: Option<&str>) -> UnixStream {
        let (path, ids) = (self.scratch.join("http.sock"), user.map(ids_of));
        // A thread of its own connects, because the kernel records the credentials of the
        // connecting thread, and only this thread changes its user.
        let connecting = thread::spawn(move || {
            ids.into_iter().for_each(become_user);
            UnixStream::connect(path).expect("it listens")
        });
        let stream = connecting.join().expect("it connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        stream
    }

    /// Sends a request to `.latchfs/ctl` of the mount as a user, and returns the answer.
    pub(super) fn ctl(&self, who: &Who, ask: &str) -> String {
        let script = format!(
            "cd {} && exec 3<>.latchfs/ctl; printf '%s' '{ask}' >&3; IFS= read -r line <&3; \
             printf '%s' \"$line\"",
            self.scratch.join("locks").display()
        );
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.server.pid().to_string()]);
        if let Some(user) = who.user {
            let own = [format!("--reuid={user}"), format!("--regid={user}")];
            command.arg("setpriv").args(own).arg("--clear-groups");
        }
        run(command.args(["sh", "-c", &script])).ok()
    }
}

/// Returns the user id and the group id of a user.
fn ids_of(user: &str) -> [u32; 2] {
    ["-u", "-g"].map(|which| {
        let number = run(Command::new("id").args([which, user])).ok();
        number.trim().parse().expect("a number")
    })
}

/// Changes the user and the group of the calling thread only.
#[allow(unsafe_code)]
fn become_user([uid, gid]: [u32; 2]) {
    // SAFETY: the system calls take only numbers. They are made directly, because the wrappers of
    // libc would change the user of all threads.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
    }
}
