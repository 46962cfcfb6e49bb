//! Tools that the tests of flock, fcntl and OFD locks share: Python processes that execute
//! commands.

use std::process::Command;
use testing::*;

/// Runs a Python program in the mount point, after the prelude of the harness and [`TOOLS`].
#[track_caller]
pub(crate) fn locks_py(m: &Mount, program: &str) -> Output {
    users();
    let program = dedent(program);
    let module = m.scratch().join("locking.py");
    std::fs::write(&module, format!("{PRELUDE}\n{TOOLS}")).expect("the directory is ours");
    let program = format!("from locking import *\n{program}");
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", m.scratch()).env("DAEMON", m.pid().to_string());
    run_within(LIMIT, m.within(command.args(["-B", "-c", &program])))
}

/// Timeout of a program that runs thousands of rounds on a busy machine.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(240);

/// Python code with tools. A `Peer` is a process that runs as a given user and executes the code
/// that the test sends to it.
const TOOLS: &str = r#"
import atexit, platform, select, struct, threading, traceback

EX, SH, NB, UN = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB, fcntl.LOCK_UN
R, W, U = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK

def setlk(fd, kind, start=0, length=0, wait=False, ofd=False):
    command = (fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK) if ofd else \
        (fcntl.F_SETLKW if wait else fcntl.F_SETLK)
    fcntl.fcntl(fd, command, struct.pack('hhqqi4x', kind, 0, start, length, 0))

def getlk(fd, kind, start=0, length=0, ofd=False):
    "None, or (kind, start, length, pid) of the first lock in the way."
    asked = struct.pack('hhqqi4x', kind, 0, start, length, 0)
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK if ofd else fcntl.F_GETLK, asked)
    kind, _, start, length, pid = struct.unpack('hhqqi4x', answer)
    return None if kind == U else (kind, start, length, pid)

def lock(fd, form, wait=False):
    kind, mode = form.split('_')
    if kind == 'flock':
        fcntl.flock(fd, (EX if mode == 'ex' else SH) | (0 if wait else NB))
    else:
        setlk(fd, W if mode == 'ex' else R, wait=wait, ofd=kind == 'ofd')

def unlock(fd, form):
    if form.startswith('flock'): fcntl.flock(fd, UN)
    else: setlk(fd, U, ofd=form.startswith('ofd'))

held = {}

def opened(name):
    fd = held.get(name)
    if fd is None: held[name] = fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    return fd

def take(form, name, wait=False):
    if form == 'mkdir': os.mkdir(name)
    elif form == 'symlink': os.symlink('text', name)
    elif form == 'excl': held[name] = exclusive(name)
    elif form == 'ln':
        own = f'own-{os.getpid()}'
        os.close(exclusive(own))
        try: os.link(own, name)
        finally: os.unlink(own)
    else: lock(opened(name), form, wait)

def tries(form, name):
    "What a try says, and leaves nothing behind if it is refused."
    before = name in held
    said = no(take, form, name)
    if said != 'ok' and not before and name in held: drop(name)
    return said

def drop(name):
    os.close(held.pop(name))

def until(look, limit=10):
    "Looks again and again; the bound is for loaded machines."
    ends = time.monotonic() + limit
    while True:
        seen = look()
        if seen: return seen
        assert time.monotonic() < ends, 'never seen'
        time.sleep(0.005)

FLOCK, FCNTL = {'x86_64': ('73', '72')}.get(platform.machine(), ('32', '25'))

def waits(pid):
    "Whether a thread sleeps in flock(2) or fcntl(2)."
    return pathlib.Path(f'/proc/{pid}/syscall').read_text().split()[0] in (FLOCK, FCNTL)

def line(name):
    return len(status(name).get('waiters', []))

def daemon_work():
    "The processor time of the daemon until now, in seconds."
    fields = pathlib.Path(f'/proc/{os.environ["DAEMON"]}/stat').read_text().rsplit(')')[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')

def user_now(name):
    entry = pwd.getpwnam(name)
    os.setgroups([])
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)

class Peer:
    "Obeys one expression or statement after the other, and says what came of it."
    all = []

    def __init__(self, who=None, before=None):
        ours, theirs = os.pipe(), os.pipe()
        self.to, self.of = theirs[1], os.fdopen(ours[0], 'r')
        self.pid = os.fork()
        if self.pid == 0:
            for peer in Peer.all: peer.forget()
            os.close(ours[0]); os.close(theirs[1])
            try:
                if who: user_now(who)
                if before: before()
                obey(os.fdopen(theirs[0], 'r'), ours[1])
            finally: os._exit(0)
        os.close(ours[1]); os.close(theirs[0])
        Peer.all.append(self)

    def forget(self):
        try: os.close(self.to)
        except OSError: pass
        self.of.close()

    def start(self, code):
        os.write(self.to, (json.dumps(code) + '\n').encode())

    def silent(self):
        return not select.select([self.of], [], [], 0)[0]

    def answer(self, limit=20):
        "What it came to; None if the process has ended."
        assert select.select([self.of], [], [], limit)[0], 'no answer'
        text = self.of.readline()
        if not text: return None
        kind, value = json.loads(text)
        assert kind == 'ok', value
        return value

    def __call__(self, code):
        self.start(code)
        return self.answer()

    def signal(self, number):
        os.kill(self.pid, number)

    def ended(self, limit=10):
        "The exit code, or the negative signal."
        pid = self.pid
        status = until(lambda: (lambda p, s: (s,) if p else None)(*os.waitpid(pid, os.WNOHANG)),
                       limit)[0]
        self.pid = None
        return os.waitstatus_to_exitcode(status)

    def end(self):
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            self.ended()
        self.forget()
        if self in Peer.all: Peer.all.remove(self)

def obey(orders, out):
    names = {**globals(), **vars(sys.modules['__main__'])}
    for order in orders:
        code = json.loads(order)
        try:
            try: value = eval(code, names)
            except SyntaxError:
                exec(code, names)
                value = None
            said = ['ok', value]
        except BaseException:
            said = ['failed', traceback.format_exc()]
        os.write(out, (json.dumps(said) + '\n').encode())

@atexit.register
def end_all():
    for peer in list(Peer.all):
        with contextlib.suppress(OSError, AssertionError): peer.end()
"#;
