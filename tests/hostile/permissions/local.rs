//! A mount that a user has made, with a socket beside it: its callers are users of this machine, as
//! the kernel names them.

use super::Who;
use crate::mounted_harness::{self as mounted, ALICE, run, users};
use crate::server_harness::{self as servers, LATCHFS, Server};
use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Alice's mount, which serves all users, and its socket. It lies in a mount namespace of its own,
/// where she may open the device.
pub(super) struct LocalMount {
    server: Server,
    scratch: mounted::Scratch,
}

impl LocalMount {
    pub(super) fn start() -> Self {
        users();
        let scratch = mounted::Scratch::new();
        // Users may not enter where it was built.
        fs::copy(LATCHFS, scratch.path("latchfs")).expect("there is room");
        let script = format!(
            "mknod fuse c 10 229 && chmod 666 fuse && mount --bind $PWD/fuse /dev/fuse || exit 99
             echo user_allow_other > fuse.conf && mount --bind fuse.conf /etc/fuse.conf || exit 98
             exec setpriv --reuid={ALICE} --regid={ALICE} --clear-groups ./latchfs mount locks \
                 --allow-other --client box --state none --grant-at-once --foreground \
                 --listen unix:$PWD/http.sock"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.current_dir(scratch.path("")).env_remove("LATCHFS_DIR");
        let server = Server::spawn(&mut command, servers::Scratch::new());
        Self { server, scratch }
    }

    /// A connection of a user to the socket.
    pub(super) fn connect(&self, user: Option<&str>) -> UnixStream {
        let (path, ids) = (self.scratch.path("http.sock"), user.map(ids_of));
        // The kernel keeps who connected. Only this thread becomes that user.
        let connecting = thread::spawn(move || {
            ids.into_iter().for_each(become_user);
            UnixStream::connect(path).expect("it listens")
        });
        let stream = connecting.join().expect("it connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        stream
    }

    /// Returns the answer that a user reads of `.latchfs/ctl` after a request.
    pub(super) fn ctl(&self, who: &Who, ask: &str) -> String {
        let script = format!(
            "cd {} && exec 3<>.latchfs/ctl; printf '%s' '{ask}' >&3; IFS= read -r line <&3; \
             printf '%s' \"$line\"",
            self.scratch.path("locks").display()
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

/// The numbers of a user and its group.
fn ids_of(user: &str) -> [u32; 2] {
    ["-u", "-g"].map(|which| {
        let number = run(Command::new("id").args([which, user])).ok();
        number.trim().parse().expect("a number")
    })
}

/// Makes the calling thread, and no other, one of that user.
#[allow(unsafe_code)]
fn become_user([uid, gid]: [u32; 2]) {
    // SAFETY: the calls take numbers only. Those of libc would change all threads.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
    }
}
