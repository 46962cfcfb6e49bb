//! Programs on several mounts that take one lock in turn with flock(2). Each also holds a lock of
//! its own, which it must never lose.

use std::fs;
use std::path::PathBuf;
use testing::eventually_in_cluster;
use testing::net::{Machine, Mount, Program};

/// A Python program that holds one lock for its whole life. Meanwhile it takes a second lock in
/// turn with the programs of other mounts, and it locks files, renames them and unlocks them.
const PROGRAM: &str = "
    name, counter = sys.argv[1:3]
    held = os.open('held-' + name, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    token = os.getxattr('held-' + name, 'user.latchfs.token')
    print('holds')
    end = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), end.set()), daemon=True).start()
    # A server that does not answer while it restarts.
    away = (errno.ETIMEDOUT, errno.ENOENT)
    def locked(path):
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT)
            except OSError as e:
                assert e.errno in away, e
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                return fd
            except OSError as e:
                os.close(fd)
                assert e.errno in away, e
    def is_free(path):
        try:
            return b'\"phase\": \"free\"' in open('.latchfs/status/' + path, 'rb').read()
        except OSError as e:
            assert e.errno in away, e
            return False
    turns = renames = 0
    while not end.is_set():
        fd = locked('work')
        with open(counter) as f:
            count = int(f.read())
        with open(counter, 'w') as f:
            f.write(str(count + 1))
        os.close(fd)
        turns += 1
        a, b = 'a-%s-%d' % (name, turns), 'b-%s-%d' % (name, turns)
        fd = locked(a)
        try:
            os.rename(a, b)
        except OSError as e:
            assert e.errno in away, e
            os.close(fd)
            continue
        os.close(fd)
        limit = now() + 20_000_000_000
        while not is_free(b):
            assert now() < limit, 'lock %s was unlocked and is still held' % b
        renames += 1
    os.write(held, b'x')
    assert token == os.getxattr('held-' + name, 'user.latchfs.token'), 'the tenure was lost'
    print(turns, renames)
";

/// The programs on the mounts that take one lock in turn, and the file in which they count how
/// often they have taken it.
pub(crate) struct Turns {
    programs: Vec<Program>,
    counter: PathBuf,
}

impl Turns {
    #[track_caller]
    pub(crate) fn begin(mounts: &[Mount], scratch: &Machine) -> Self {
        let counter = scratch.path("counter");
        fs::write(&counter, "0").expect("the scratch directory is ours");
        let path = counter.display().to_string();
        let program = |(at, mount): (usize, &Mount)| {
            let program = mount.python(PROGRAM, &[&at.to_string(), &path]);
            program.says("holds");
            program
        };
        Self { programs: mounts.iter().enumerate().map(program).collect(), counter }
    }

    /// Waits until the programs together have taken the common lock `turns` more times.
    #[track_caller]
    pub(crate) fn await_turns(&self, turns: u64) {
        let count = || fs::read_to_string(&self.counter).ok()?.parse::<u64>().ok();
        let begun = eventually_in_cluster("a count", count);
        eventually_in_cluster("turns", || count().filter(|count| *count >= begun + turns));
    }

    /// Ends the programs. Each must still hold its own lock, and no turn may be missing in the
    /// count: two programs that held the common lock at the same time would have counted the same
    /// number.
    #[track_caller]
    pub(crate) fn end(self) {
        let mut all = 0;
        for mut program in self.programs {
            program.send_line("end");
            let said = program.line();
            let (turns, renames) = said.split_once(' ').expect("two numbers");
            let [turns, renames] = [turns, renames].map(|n| n.parse::<u64>().expect("a number"));
            assert!(renames > 0, "no file was renamed");
            all += turns;
            assert_eq!(program.ended(), 0);
        }
        let counted = fs::read_to_string(&self.counter).expect("it is there");
        assert_eq!(counted, all.to_string(), "two programs had the lock at the same time");
    }
}
