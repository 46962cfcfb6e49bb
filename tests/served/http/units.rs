//! The units of `contrib/systemd`, tested in a systemd instance that is process 1 of a container.
//! The container has the programs of this machine, none of its state, and no network but loopback.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use testing::{Scratch, eventually, latchfs_path, run_latchfs, signal};

const UNITS: [&str; 6] = [
    "latchfs.service",
    "latchfs-server.service",
    "latchfs-remote.service",
    "latchfs-mount@.service",
    "latchfs-guard@.service",
    "latchfs-machine.service",
];

/// The highest exposure of each unit that `systemd-analyze security` may find, times ten.
const EXPOSURES: [&str; 6] = ["39", "15", "44", "44", "52", "15"];

/// Time limit in seconds for a container, whatever the test does in it.
const LIFE_SECS: &str = "300";

/// A systemd drop-in that sets the server's URL for the unit of a remote mount.
const SERVER: &str = "[Service]\nEnvironment=SERVER=https://127.0.0.1:8443\n";

/// A systemd drop-in that shortens the watchdog of a guard.
const WATCHDOG: &str = "[Service]\nWatchdogSec=3s\n";

/// A container in which systemd runs.
pub(crate) struct Systemd {
    /// The process timeout(1), which runs systemd-nspawn, which runs systemd.
    outermost: Child,
    host: String,
    pub(crate) scratch: Scratch,
    binds: Vec<String>,
}

/// The result of a command that ran in the container.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

impl Output {
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.said);
        self.said
    }
}

impl Systemd {
    #[track_caller]
    fn boot() -> Self {
        Self::boot_with(&[])
    }

    /// Boots a container with directories of this machine in it, as `HERE:THERE`.
    #[track_caller]
    pub(crate) fn boot_with(binds: &[String]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let scratch = Scratch::new();
        let dir = |name: &str| scratch.path().join(name);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let host = format!("latchfs-test-{}-{number}", std::process::id());
        let etc = dir("etc").display().to_string();
        for what in [&["ca"][..], &["server", "127.0.0.1"], &["client", &host]] {
            let (code, said) = run_latchfs(&[&["cert", "--dir", &etc], what].concat());
            assert_eq!(code, Some(0), "{said}");
        }
        let units = units();
        let server = dir("units/latchfs-remote.service.d");
        fs::create_dir_all(&server).expect("ours");
        fs::write(server.join("server.conf"), SERVER).expect("ours");
        let guard = dir("units/latchfs-guard@.service.d");
        fs::create_dir_all(&guard).expect("ours");
        fs::write(guard.join("watchdog.conf"), WATCHDOG).expect("ours");
        for unit in UNITS.into_iter().chain(["latchfs-machine.socket"]) {
            fs::copy(units.join(unit), dir("units").join(unit)).expect("it is there");
        }
        let outermost = Self::launch(scratch.path(), &host, binds);
        let booted = Self { outermost, host, scratch, binds: binds.to_vec() };
        booted.prepare();
        booted
    }

    /// Boots the container again. What is in memory is lost, and the directories stay.
    pub(crate) fn reboot(&mut self) {
        signal(self.outermost.id().cast_signed(), libc::SIGTERM);
        self.outermost.wait().expect("it ends");
        self.outermost = Self::launch(self.scratch.path(), &self.host, &self.binds);
        self.prepare();
    }

    fn launch(scratch: &Path, host: &str, binds: &[String]) -> Child {
        let (dir, units) = (|name: &str| scratch.join(name), units());
        let log = fs::File::create(dir("log")).expect("ours");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", LIFE_SECS, "systemd-nspawn", "--quiet"]);
        // Everything in the container except the programs is in memory.
        command.args(["--directory=/", "--volatile=yes", "--tmpfs=/usr/local:mode=755"]);
        command.args(["--register=no", "--keep-unit", "--private-network", "--link-journal=no"]);
        command.args(["--bind=/dev/fuse", "--console=pipe"]).arg(format!("--machine={host}"));
        command.arg(format!("--bind-ro={}:/usr/local/bin/latchfs", latchfs_path()));
        command.arg(format!("--bind={}:/etc/latchfs", dir("etc").display()));
        let sysusers = units.join("latchfs.sysusers");
        command.arg(format!("--bind-ro={}:/etc/sysusers.d/latchfs.conf", sysusers.display()));
        command.arg(format!("--bind={}:/etc/systemd/system", dir("units").display()));
        command.args(binds.iter().map(|bind| format!("--bind={bind}")));
        command.args(["--boot", "systemd.unit=sysinit.target"]);
        // No units of this machine are enabled.
        command.arg("systemd.condition-first-boot=no");
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("ours")).stdout(log);
        command.spawn().expect("contrib/test installs systemd-container")
    }

    fn prepare(&self) {
        eventually("systemd is up", || {
            let is_up = self.try_run("systemctl is-active sysinit.target")?.code == Some(0);
            is_up.then_some(())
        });
        // As the head of the server's unit says.
        self.run("systemd-sysusers && chmod 711 /etc/latchfs").ok();
        self.run("chown latchfs /etc/latchfs/server.key").ok();
    }

    /// Returns the pid on the host of the container's process 1.
    fn first(&self) -> Option<String> {
        let child = |pid: &str| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            children.split_whitespace().next().map(str::to_owned)
        };
        child(&child(&self.outermost.id().to_string())?)
    }

    fn try_run(&self, script: &str) -> Option<Output> {
        let mut command = Command::new("nsenter");
        command.args(["-m", "-p", "-n", "-u", "-i", "-C", "-t", &self.first()?]);
        // Commands in the container take far less than 60 s, so `timeout` ends only a command that
        // hangs.
        command.args(["timeout", "60", "sh", "-c", script]).stdin(Stdio::null());
        let output = command.output().expect("nsenter is there");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Some(Output { code: output.status.code(), said })
    }

    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Output {
        let log = || fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default();
        self.try_run(script).unwrap_or_else(|| panic!("systemd has ended: {}", log()))
    }

    /// Runs a command as a service of a user, and returns its exit code and what it printed.
    #[track_caller]
    fn run_as_unit(&self, user: &str, command: &str) -> (String, String) {
        let unit = format!(
            "[Service]\nType=oneshot\nUser={user}\nExecStart={command}\n\
             StandardOutput=truncate:/tmp/job\nStandardError=inherit"
        );
        let dir = "/run/systemd/system";
        let written = format!("mkdir -p {dir} && printf '%s\n' '{unit}' > {dir}/job.service");
        self.run(&format!("{written} && systemctl daemon-reload")).ok();
        self.run("systemctl start job");
        let code = self.run("systemctl show -P ExecMainStatus job").ok();
        (code.trim().to_owned(), self.run("cat /tmp/job").ok())
    }

    #[track_caller]
    pub(crate) fn start(&self, unit: &str) {
        let started = self.run(&format!("systemctl start {unit}"));
        assert_eq!(started.code, Some(0), "{}", self.journal(unit));
        assert_eq!(self.run(&format!("systemctl is-active {unit}")).ok().trim(), "active");
    }

    /// Kills the daemon of a unit, and waits until systemd has restarted it.
    #[track_caller]
    fn killed(&self, unit: &str) {
        self.signalled(unit, "KILL");
    }

    /// Sends a signal to the daemon of a unit, and waits until systemd has restarted it.
    #[track_caller]
    fn signalled(&self, unit: &str, signal: &str) {
        self.run(&format!("systemctl kill --kill-whom=main -s {signal} {unit}")).ok();
        eventually(&format!("{unit} is there again"), || {
            let shown =
                self.run(&format!("systemctl show -p NRestarts -p ActiveState {unit}")).ok();
            let is_back = shown.contains("NRestarts=1\n") && shown.contains("=active\n");
            is_back.then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn stops_cleanly(&self, unit: &str) {
        self.run(&format!("systemctl stop {unit}")).ok();
        let properties = "-p ActiveState -p Result -p ExecMainStatus";
        let shown = self.run(&format!("systemctl show {properties} {unit}")).ok();
        let mut lines: Vec<_> = shown.lines().collect();
        lines.sort_unstable();
        let clean = ["ActiveState=inactive", "ExecMainStatus=0", "Result=success"];
        assert_eq!(lines, clean, "{}", self.journal(unit));
    }

    fn journal(&self, unit: &str) -> String {
        self.run(&format!("journalctl --no-pager -u {unit}")).said
    }

    fn is_mounted(&self) -> bool {
        self.run("grep ' /locks fuse.latchfs ' /proc/mounts").code == Some(0)
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        signal(self.outermost.id().cast_signed(), libc::SIGTERM);
        // timeout(1) forwards SIGTERM, which makes systemd power off the container; after 10 s,
        // timeout(1) kills the container.
        let _ = self.outermost.wait();
    }
}

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/systemd")
}

#[test]
fn units_are_exposed_no_more_than_documented() {
    for (unit, most) in UNITS.iter().zip(EXPOSURES) {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--no-pager", "--offline=true"]);
        command.arg(format!("--threshold={most}")).arg(units().join(unit));
        let output = command.output().expect("contrib/test installs systemd");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{unit}: {said}");
        assert!(said.contains("Overall exposure level"), "{unit}: {said}");
    }
}

/// The options of the units are those of `/etc/default/latchfs`, if it is there.
#[track_caller]
fn takes_options_from_a_file(systemd: &Systemd) {
    let options = "LATCHFS_SERVE_OPTIONS='--listen 127.0.0.1:8081 --memory --grant-at-once'
        SERVER=http://127.0.0.1:8081
        LATCHFS_REMOTE_OPTIONS='--client optional'";
    systemd.run(&format!("mkdir -p /etc/default; echo \"{options}\" > /etc/default/latchfs")).ok();
    systemd.start("latchfs-server");
    systemd.start("latchfs-remote");
    systemd.run("mkdir /locks/from-file").ok();
    let listed = systemd.run("latchfs ls --server http://127.0.0.1:8081").ok();
    assert!(listed.contains("optional"), "{listed}");
    systemd.stops_cleanly("latchfs-remote");
    systemd.stops_cleanly("latchfs-server");
    systemd.run("rm /etc/default/latchfs").ok();
}

/// The first command starts the daemon of the machine's locks. A service of a user, a command of
/// the user and one of root mean the same daemon.
#[test]
fn a_socket_unit_starts_the_daemon_of_the_machines_locks() {
    let systemd = Systemd::boot();
    let verified = systemd.run("systemd-analyze verify --man=no latchfs-machine.socket");
    assert_eq!((verified.code, verified.said.as_str()), (Some(0), ""));
    let user = "printf 'alice:x:4711:4711::/home/alice:/bin/sh\n' >> /etc/passwd";
    systemd.run(&format!("chmod 755 /etc/latchfs && {user}")).ok();
    let alice = "setpriv --reuid 4711 --regid 4711 --clear-groups latchfs";
    // Without the socket these are the user's own locks. systemd ends the daemon with the service
    // that has started it, and the lease goes on.
    systemd.run("mkdir -p /home/alice && chmod 700 /home/alice && chown 4711 /home/alice").ok();
    systemd.run_as_unit("alice", "latchfs acquire own --ttl 1h");
    assert!(systemd.run(&format!("{alice} ls")).ok().contains("own"));
    systemd.run(&format!("{alice} release --any own")).ok();
    systemd.run("systemctl start latchfs-machine.socket").ok();
    assert_eq!(systemd.run("systemctl is-active latchfs-machine").said.trim(), "inactive");
    systemd.run("latchfs acquire backup --ttl 1h").ok();
    assert_eq!(systemd.run("systemctl is-active latchfs-machine").ok().trim(), "active");
    systemd.run(&format!("{alice} acquire build --ttl 1h")).ok();
    let (code, said) = systemd.run_as_unit("alice", "latchfs run --try build -- true");
    assert_eq!(code, "75", "{said}");
    let (_, listed) = systemd.run_as_unit("alice", "latchfs run other -- latchfs ls");
    assert!(listed.contains("~alice/build") && !listed.contains("backup"), "{listed}");

    systemd.killed("latchfs-machine");
    let all = systemd.run("latchfs ls").ok();
    assert!(all.contains("backup") && all.contains("~alice/build"), "{all}");
    systemd
        .run(
            "mkdir -p /etc/latchfs && cat > /etc/latchfs/rights.toml << END\n\
        [[rights]]\nuser = \"alice\"\nlocks = [\"backup\"]\nEND",
        )
        .ok();
    systemd.run("systemctl reload latchfs-machine").ok();
    eventually("the rights are read", || {
        let shown = systemd.run(&format!("{alice} status backup"));
        shown.said.contains("held").then_some(())
    });
    systemd.run("systemctl stop latchfs-machine.socket").ok();
    systemd.stops_cleanly("latchfs-machine");
    let refused = systemd.run(&format!("{alice} run build -- true"));
    assert_eq!(refused.code, Some(69), "{}", refused.said);
    assert!(refused.said.contains("have root start it"), "{}", refused.said);
    systemd.start("latchfs-machine");
    assert!(systemd.run("latchfs ls").ok().contains("~alice/build"), "it starts by itself as well");
}

#[test]
fn units_start_serve_restart_and_stop() {
    let systemd = Systemd::boot();
    let all = UNITS.map(|unit| format!("/etc/systemd/system/{unit}")).join(" ");
    let verified = systemd.run(&format!("systemd-analyze verify --man=no {all}"));
    assert_eq!((verified.code, verified.said.as_str()), (Some(0), ""));

    systemd.start("latchfs-server");
    let user = systemd.run("stat -c %U /proc/$(systemctl show -P MainPID latchfs-server)").ok();
    assert_eq!(user.trim(), "latchfs");
    // The server's unit counts as started only when the server listens, so the remote mount reaches
    // it.
    systemd.start("latchfs-remote");
    systemd.run("mkdir /locks/build").ok();
    let held = || systemd.run("cat /locks/build/holder");
    let holder = held().ok();
    assert_eq!(holder.trim(), format!("{}:root", systemd.host));
    systemd.killed("latchfs-server");
    eventually("the mount has its server again", || (held().code == Some(0)).then_some(()));
    assert_eq!(held().ok(), holder, "the server knows all again");
    systemd.killed("latchfs-remote");
    assert_eq!(held().ok(), holder, "and so does the mount");
    systemd.run("systemctl reload latchfs-server").ok();
    eventually("it has read its certificates again", || {
        systemd.journal("latchfs-server").contains("were read again").then_some(())
    });
    systemd.run("systemctl reload latchfs-remote").ok();
    eventually("so has the mount", || {
        let says = "certificates for the server were read again";
        systemd.journal("latchfs-remote").contains(says).then_some(())
    });
    assert_eq!(held().ok(), holder, "it goes on");
    systemd.stops_cleanly("latchfs-remote");
    assert!(!systemd.is_mounted());
    systemd.run("[ -d /var/lib/latchfs-server/log ]").ok();
    systemd.stops_cleanly("latchfs-server");
    takes_options_from_a_file(&systemd);

    systemd.start("latchfs");
    systemd.run("mkdir /locks/build").ok();
    systemd.killed("latchfs");
    assert_eq!(held().ok(), holder, "what was held is held");
    systemd.stops_cleanly("latchfs");
    assert!(!systemd.is_mounted());

    systemd.start("latchfs-mount@srv-locks");
    systemd.run("mkdir /srv/locks/build && cat /srv/locks/build/holder").ok();
    systemd.killed("latchfs-mount@srv-locks");
    assert_eq!(systemd.run("cat /srv/locks/build/holder").ok(), holder, "its state is there");
    systemd.stops_cleanly("latchfs-mount@srv-locks");

    systemd.run("mkdir -p /srv/notes && latchfs guard init /srv/notes --alone").ok();
    systemd.start("latchfs-guard@notes");
    systemd.run("echo 1 >/notes/a && chown 5:5 /notes/a && chmod 4755 /notes/a").ok();
    assert_eq!(systemd.run("stat -c '%u %a' /srv/notes/a").ok(), "5 4755\n");
    systemd.signalled("latchfs-guard@notes", "STOP");
    systemd.run("echo 2 >>/notes/a && cat /srv/notes/a").ok();
    let journal = systemd.journal("latchfs-guard@notes");
    assert!(journal.contains("Watchdog timeout"), "{journal}");
    systemd.stops_cleanly("latchfs-guard@notes");
    let left = systemd.run("grep ' /notes ' /proc/mounts");
    assert_eq!(left.code, Some(1), "{}", left.said);
}

/// Sessions of ssh, cron, su and sudo, and a unit, mean the same daemon. A logout ends no lease,
/// whether the login manager kills what the user has started or not.
#[test]
fn a_logout_ends_no_lease() {
    let binds = ["/etc/pam.d", "/etc/security"].map(|dir| format!("{dir}:{dir}"));
    let systemd = Systemd::boot_with(&binds);
    let setup = r"
        printf '%s\n' 'alice:*:4711:4711::/home/alice:/bin/sh' >> /etc/passwd
        printf '%s\n' 'sshd:*:4712:4712::/run/sshd:/bin/false' >> /etc/passwd
        printf 'alice:*:19000::::::\nroot:*:19000::::::\n' >> /etc/shadow
        mkdir -p /run/sshd /etc/ssh /home/alice/.ssh
        ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/key
        cp /etc/ssh/key.pub /home/alice/.ssh/authorized_keys
        chown -R 4711 /home/alice && chmod -R go= /home/alice
        ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/host
        printf 'crontab:*:4713:\n' >> /etc/group
        echo 'root ALL=(ALL) ALL' > /etc/sudoers && chmod 440 /etc/sudoers
        systemctl start dbus systemd-logind systemd-user-sessions
        # The service manager of the user stays, so that no session waits for it.
        loginctl enable-linger alice
        /usr/sbin/sshd -f /dev/null -h /etc/ssh/host -o UsePAM=yes -o ListenAddress=127.0.0.1";
    systemd.run(setup).ok();
    let ssh = "ssh -i /etc/ssh/key -o StrictHostKeyChecking=no -o LogLevel=ERROR alice@127.0.0.1";
    let of_alice = "-u alice -f idle-end";
    for (kill, daemons) in [("no", "1"), ("yes", "0")] {
        let config = format!("[Login]\\nKillUserProcesses={kill}\\n");
        let restart = format!("systemctl restart systemd-logind; pkill -KILL {of_alice}; true");
        systemd.run(&format!("printf '{config}' > /etc/systemd/logind.conf; {restart}")).ok();
        let held = systemd.run(&format!("{ssh} 'latchfs acquire build --ttl 1h; loginctl | cat'"));
        assert!(held.said.contains("alice"), "it is a session: {held:?}");
        eventually("the end of the session", || {
            let state = "while read id _; do loginctl show-session -P State $id; done";
            let all = systemd.run(&format!("loginctl --no-legend | {state}")).said;
            all.lines().all(|state| state == "closing").then_some(())
        });
        let count = systemd.run(&format!("pgrep -c {of_alice}")).said;
        assert_eq!(count.trim(), daemons, "KillUserProcesses={kill}");
        // A real cron, whose minute is a second.
        let cron =
            "* * * * * alice /usr/local/bin/latchfs run --try build -- true; echo $? > /tmp/cron";
        let start = "rm -f /tmp/cron; faketime -f '+0 x60' cron -f > /dev/null 2>&1 &";
        systemd.run(&format!("mkdir -p /etc/cron.d; echo '{cron}' > /etc/cron.d/job")).ok();
        systemd.run(start).ok();
        eventually("the job of cron", || {
            (systemd.run("cat /tmp/cron").said == "75\n").then_some(())
        });
        systemd.run("kill $(cat /run/crond.pid)").ok();
        // A unit with `User=`, as `systemd-run` makes it.
        let unit = "systemd-run --quiet --wait --pipe -p User=alice sh -c";
        for again in
            [ssh, "su alice -s /bin/sh -c", "sudo -u alice sh -c", "sudo -E -u alice sh -c", unit]
        {
            let script = "timeout 30 latchfs run --try build -- true; echo $?";
            let busy = systemd.run(&format!("{again} '{script}'"));
            assert!(busy.said.starts_with("75\n"), "{again}: {busy:?}");
        }
        systemd.run(&format!("{ssh} latchfs release --any build")).ok();
    }
}
