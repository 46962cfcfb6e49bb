//! Tenures that are held for one login session: how others wait for their end, who gives them up,
//! and who owns them after the pid of the session's leader was used again.
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use testing::{Guard, Output, Scratch, latchfs, python, run};

/// The user of the sessions, and another user.
const USER: u32 = 4_001;
const OTHER: u32 = 4_002;

/// A program in a login session of its own, which has changed a file and waits for its end.
struct Session(Child);

impl Session {
    fn of(uid: u32, guard: &Guard) -> Self {
        let program = "import os, sys
os.setsid()
open('held%d' % os.getuid(), 'w').close()
print('held', flush=True)
sys.stdin.read()";
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", &format!("--reuid={uid}"), "/usr/bin/python3", "-c"]);
        command.arg(program).current_dir(&guard.view);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut ready = [0; 5];
        child.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("it holds the lock");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn give_as(uid: u32, guard: &Guard, options: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={uid}"), testing::latchfs_path()]);
    run(command.args(["guard", "give"]).arg(&guard.view).args(options))
}

fn open_to_all(scratch: &Scratch) {
    for dir in [scratch.path(), &scratch.folder()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("ours");
    }
}

/// Another session of the same user, of root and of the user who started the guard takes the lock
/// only if it names the session that holds it.
#[test]
fn another_session_gives_up_only_what_it_names() {
    let scratch = Scratch::with_folder();
    open_to_all(&scratch);
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--owner", "session"]);
    for (holder, giver) in [(0, 0), (USER, USER), (USER, 0)] {
        let session = Session::of(holder, &guard);
        let owner = format!("session {} of user {holder}", session.pid());
        let from = ["--from", &session.pid().to_string()];
        assert!(guard.request("status", &[]).ok().contains(&format!("owner    {owner}\n")));
        for options in [&[][..], &["--from", "1"]] {
            let refused = give_as(giver, &guard, options).exits(75);
            let named = format!("{owner} (python3) holds the lock of this folder since ");
            assert!(refused.contains(&named), "{refused}");
            assert!(refused.contains(&format!("guard give {}", from.join(" "))), "{refused}");
        }
        let name = guard.status()["lock"].as_str().expect("a name").to_owned();
        let record = guard.path(&format!(".latchfs/locks/{name}.lock"));
        let removed =
            python(giver, scratch.path(), &format!("import os; os.remove('{}')", record.display()));
        assert!(removed.fails().contains("PermissionError"));
        for options in [&[][..], &from] {
            let refused = give_as(OTHER, &guard, options).fails();
            assert!(refused.contains("only root"), "{refused}");
        }
        assert_eq!(guard.status()["tenure"]["owner"], owner.as_str());
        give_as(giver, &guard, &from).ok();
        assert_eq!(guard.status()["state"], "reading");
    }
    // A refused change names the holder as well.
    let session = Session::of(USER, &guard);
    python(USER, &guard.view, "open('other', 'w')").fails();
    let why = python(USER, &guard.view, "print(open('.latchfs/why').read())").ok();
    assert!(why.contains(&format!("session {} of user {USER}", session.pid())), "{why}");
}

/// Starts a script in a login session of its own.
fn in_session(guard: &Guard, script: &str) -> Child {
    let mut command = Command::new("setsid");
    command.args(["-w", "sh", "-ec", script]).current_dir(&guard.view);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

fn ends_well(child: Child) {
    let output = child.wait_with_output().expect("our child");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The sessions of one view wait for each other as machines do: no edit is refused.
#[test]
fn sessions_that_wait_lose_no_edit() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let options = ["--owner", "session", "--on-write", "wait=30s", "--yield", "1s"];
    let guard = Guard::start(&scratch, "view", &options);
    fs::write(guard.path("list"), "").expect("the lock is free");
    let edits = |session| format!("for edit in 1 2 3; do echo {session}.$edit >> list; done");
    let sessions: Vec<_> = (0..4).map(|session| in_session(&guard, &edits(session))).collect();
    sessions.into_iter().for_each(ends_well);
    let list = fs::read_to_string(scratch.folder().join("list")).expect("there");
    let mut lines: Vec<_> = list.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 12, "{list}");
    lines.dedup();
    assert_eq!(lines.len(), 12, "{list}");
}

/// `run --guard` waits for the tenure of another session, as it does for that of another machine.
#[test]
fn run_guard_waits_for_the_tenure_of_another_session() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--owner", "session", "--yield", "4s"]);
    let session = Session::of(0, &guard);
    let run_guard = |options: &[&str]| {
        let mut command = latchfs();
        command.args(["run", "--guard"]).arg(&guard.view).args(options);
        run(command.args(["--", "sh", "-c", "echo x >> list"]).current_dir(&guard.view))
    };
    let holds = format!("session {} of user 0 (python3) holds the lock", session.pid());
    let refused = run_guard(&["--try"]).exits(75);
    assert!(refused.contains(&holds), "{refused}");
    assert!(!guard.path("list").exists());
    let waited = run_guard(&["--wait", "60"]);
    assert!(waited.err.contains(&holds), "it says what it waits for: {}", waited.err);
    waited.ok();
    assert_eq!(fs::read_to_string(scratch.folder().join("list")).expect("there"), "x\n");
    assert_eq!(guard.status()["state"], "reading", "it has given the lock back");
}

/// The state and the reason of a refusal are those of the session that reads them.
#[test]
fn an_excluded_session_is_told_who_holds_the_lock_and_what_to_do() {
    let scratch = Scratch::with_folder();
    open_to_all(&scratch);
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--owner", "session"]);
    let session = Session::of(USER, &guard);
    let holds = format!("session {} of user {USER} (python3) holds the lock", session.pid());
    let next = format!("'latchfs run --guard {} --wait 10m -- COMMAND'", guard.view.display());
    let status = guard.request("status", &[]).ok();
    assert!(status.contains(&format!("next     {holds} of this folder since 20")), "{status}");
    assert!(status.contains(&next) && !status.contains("may write"), "{status}");
    let read = |name: &str| format!("print(open('.latchfs/{name}').read())");
    // Each of these programs is a process of the session of this test.
    python(USER, &guard.view, "open('other', 'w')").fails();
    let own = python(USER, &guard.view, &read("why")).ok();
    assert!(own.starts_with(&format!("other was not changed: {holds}")), "{own}");
    assert!(own.contains("wait with 'latchfs guard wait', and try again"), "{own}");
    fs::write(guard.path("other"), "").expect_err("another session holds the lock");
    assert!(guard.why().contains(&next), "root may take the lock: {}", guard.why());
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={USER}"), "setsid", "-w", "python3", "-c"]);
    let others = run(command.arg(read("why")).current_dir(&guard.view)).ok();
    assert!(others.starts_with("session ") && others.contains(": other was not"), "{others}");
    let foreign = python(OTHER, &guard.view, &read("why")).ok();
    assert_eq!(foreign, "\n", "another user reads nothing of it");
}

/// Sessions that get the pid of an ended one, in a pid namespace in which the next pid can be set.
const REUSED: &str = r"
import json, os, subprocess, sys
latchfs, folder, view, state = sys.argv[1:5]
guard = subprocess.Popen([latchfs, 'guard', folder, view, '--owner', 'session', '--stage', state],
                         stdout=subprocess.PIPE, text=True)
assert 'shows' in guard.stdout.readline()
def in_session(uid, wanted, act):
    # Other processes begin meanwhile, and may take the pid.
    for _ in range(1000):
        if wanted:
            with open('/proc/sys/kernel/ns_last_pid', 'w') as last: last.write(str(wanted - 1))
        pid = os.fork()
        if pid == 0:
            if wanted and os.getpid() != wanted: os._exit(77)
            os.setsid(); os.setgid(uid); os.setuid(uid)
            try: os._exit(act())
            except BaseException as error: print(error, file=sys.stderr, flush=True); os._exit(78)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 77: return pid, code
    raise SystemExit('the pid was always taken')
def save():
    try:
        with open(view + '/file%d' % os.getuid(), 'w') as file: file.write('x')
        return 0
    except OSError as error: return error.errno
def give():
    with open(view + '/.latchfs/ctl', 'r+') as ctl:
        ctl.write(json.dumps({'do': 'give'}) + '\n'); ctl.flush(); ctl.seek(0)
        answer = json.loads(ctl.read())
    return 1 if 'error' in answer else 0
os.chmod(folder, 0o777)
pid, code = in_session(4001, None, save)
assert code == 0, code
again = [in_session(uid, pid, act)[1] for uid in (4002, 4001) for act in (save, give)]
print(pid, again, json.load(open(view + '/.latchfs/status'))['tenure']['owner'])
guard.terminate(); guard.wait()
";

#[test]
fn a_reused_pid_of_a_session_leader_owns_no_tenure() {
    let scratch = Scratch::with_folder();
    open_to_all(&scratch);
    scratch.init(&["--alone"]);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "/usr/bin/python3", "-c", REUSED]);
    command.arg(latchfs().get_program()).arg(scratch.folder());
    command.args([scratch.join("view"), scratch.join("state")]);
    let output = run(&mut command).ok();
    let pid = output.split(' ').next().expect("a pid");
    let refused = format!("[{errno}, 1, {errno}, 1]", errno = libc::EROFS);
    assert_eq!(output, format!("{pid} {refused} session {pid} of user 4001\n"));
}
