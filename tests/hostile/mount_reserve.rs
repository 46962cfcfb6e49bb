//! A local user who uses up all that root's mount lets one user have of its file descriptors. The
//! mount still works: its journal is compacted, listings delay nobody, and a signal ends the wait
//! of any user.

use crate::mount_floods::{Attacker, WATCHED_OF_USER, bound, is_waiting, limited, victim};
use crate::patience::prompt;
use latchfs::engine::values::lease::GRACE_DEFAULT;
use latchfs::engine::{Acquire, ClientId, LeaseTerms, LockName, Op, Ttl};
use latchfs::service::batch::batch_messages::{
    ASKS_MAX, BatchItem, ItemReply, RequestBatch, Submission, decode_response, encode_batch,
};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use testing::{ALICE, BOB, Setup, eventually, json, users};

/// A Python program that takes everything that costs the daemon a file descriptor, as often as the
/// limits per user allow: locks bound to processes, waiting threads, open control files and open
/// directories.
const TAKE_ALL: &str = r#"
    import threading
    threading.stack_size(256 << 10)
    def take(what):
        count = 0
        while count < 1_500 and no(what, count) == 'ok': count += 1
        return count
    def bind(n):
        fd = exclusive(f'{os.getuid()}-{n}')
        try: os.write(fd, b'pid=%d' % os.getpid())
        finally: os.close(fd)
    kept, said = [], []
    def open_ctl(n): kept.append(os.open('.latchfs/ctl', os.O_RDWR))
    def open_dir(n):
        kept.append(os.scandir('.'))
        next(kept[-1], None)
    def wait():
        fd = os.open('held', os.O_RDONLY)
        there.release()
        said.append(no(fcntl.flock, fd, fcntl.LOCK_EX))
    there = threading.Semaphore(0)
    took = [take(bind)]
    for n in range(700): threading.Thread(target=wait, daemon=True).start()
    for n in range(700): there.acquire()
    while len(said) < 700 - WATCHED: time.sleep(0.01)
    took.append(700 - len(said))
    subprocess.run(['prlimit', '--pid', str(os.getpid()), '--nofile=4096:'], check=True)
    took += [take(open_ctl), take(open_dir)]
    print('took', *took, flush=True)
    time.sleep(60)
"#;

/// Returns the numbers in the names of the snapshot files `snapshot.NUMBER` in the state directory.
/// Each compaction of the journal writes a snapshot with a new number.
fn snapshots(state: &Path) -> Vec<u64> {
    let files = fs::read_dir(state).expect("it is there").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.strip_prefix("snapshot.")?.parse().ok()).collect()
}

/// In an earlier version one user could take all descriptors of the daemon: the journal could not
/// be compacted any more, and once it was full, every change by any user failed. In this test two
/// users have taken as many descriptors as their limits allow, while root's changes fill the
/// journal, and the journal is still compacted.
#[test]
fn journal_is_compacted_while_users_hold_all_their_descriptors() {
    let m = limited();
    m.sh("(set -C; : > held); echo 10m > held").ok();
    let program = TAKE_ALL.replace("WATCHED", &WATCHED_OF_USER.to_string());
    let attackers = [ALICE, BOB].map(|user| (user, Attacker::start(&m, user, &program)));
    for (user, attacker) in &attackers {
        let took = attacker.until(&m, "took");
        let took: Vec<usize> = took.split(' ').map(|n| n.parse().expect("a number")).collect();
        assert_eq!(took[..2], [WATCHED_OF_USER; 2], "{user}");
        assert!(took[2] > 500 && took[3] == 512, "{user}: {took:?}");
    }
    let before = snapshots(&m.state());
    m.py(r"
        fd = exclusive('long')
        for n in range(2_400):
            eq(no(os.pwrite, fd, b'%4096d' % n, 0), 'ok')
        os.close(fd)
        ")
        .ok();
    eventually("the journal is compacted", || {
        let now = snapshots(&m.state());
        (now.len() == 1 && now != before).then_some(())
    });
    assert!(!m.log().contains("cut back"), "{}", m.log());
    victim(&m);
    // The content of the lock `long`, which was written last, is still there after the compaction
    // of the journal.
    assert!(m.sh("cat .latchfs/content/long").ok().trim_start().starts_with("2399"));
}

/// In an earlier version 1,000 `pid=` bindings of one user took all descriptors by which the daemon
/// watches processes, and a signal could not interrupt the wait of any user.
#[test]
fn bindings_of_one_user_leave_waits_of_others_killable() {
    let m = limited();
    m.sh_as(BOB, "(set -C; : > held); echo 10m > held").ok();
    let attacker = Attacker::start(
        &m,
        ALICE,
        r"
        said = []
        for n in range(1_000):
            fd = exclusive(f'bound-{n}')
            said.append(no(os.write, fd, b'pid=%d' % os.getpid()))
            os.close(fd)
        print('bound', said.count('ok'), flush=True)
        time.sleep(60)
        ",
    );
    assert_eq!(attacker.until(&m, "bound"), WATCHED_OF_USER.to_string());
    assert_eq!(bound(&m), WATCHED_OF_USER);
    let programs = ["flock held true", "cat .latchfs/wait/held", "cat .latchfs/events"];
    for (user, program) in programs.iter().flat_map(|program| [("root", program), (BOB, program)]) {
        let mut waiter = as_user(user, &format!("exec {program}"));
        let mut waiter = m.within(waiter.stdout(Stdio::null())).spawn().expect("sh is there");
        eventually("it waits", || is_waiting(waiter.id()).then_some(()));
        prompt(&format!("the end of {program} of {user}"), || {
            waiter.kill().expect("it runs");
            waiter.wait().expect("it ends");
        });
    }
    let mut waiters = String::new();
    eventually("nobody waits", || {
        waiters = json(&m.sh("cat .latchfs/status/%2Fheld").ok())["waiters"].to_string();
        (waiters == "[]").then_some(())
    });
}

fn as_user(user: &str, script: &str) -> Command {
    users();
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}")]);
    command.args(["--clear-groups", "sh", "-c", script]);
    command
}

/// In an earlier version one listing of 300,000 locks delayed root's `touch` by 0.8 s. Here four
/// processes list as many locks at the same time, twice each, and none of root's changes takes a
/// second.
#[test]
fn listings_of_300_000_locks_delay_nobody() {
    const LOCKS: usize = 300_000;
    let scratch = testing::Scratch::open_to_all();
    let socket = scratch.join("http.sock");
    let listen = format!("--state none --grant-at-once --listen unix:{}", socket.display());
    let m = Setup::new().no_state().with(&listen).start();
    make_locks(&socket, LOCKS);
    let attackers = [(); 4].map(|()| {
        let program = r"
            for n in range(2):
                print('listed', sum(1 for entry in os.scandir('many')), flush=True)
            time.sleep(60)
        ";
        Attacker::start(&m, ALICE, program)
    });
    for attacker in attackers.iter().flat_map(|attacker| [attacker; 2]) {
        assert_eq!(attacker.until(&m, "listed"), LOCKS.to_string());
    }
}

/// Acquires `count` locks below `many` by batches, which are HTTP requests of many commands each,
/// sent to the socket of a mount.
fn make_locks(socket: &Path, count: usize) {
    let client = ClientId::parse("laptop1:root").expect("a client");
    let lock = |number: usize| {
        let acquire = Acquire::new(
            LockName::parse(&format!("many/{number}")).expect("a name"),
            client.clone(),
            LeaseTerms::Own(Ttl::parse("10m").expect("a ttl"), GRACE_DEFAULT),
        );
        BatchItem::Submit(Submission::from(Op::Acquire(acquire)))
    };
    let mut stream = eventually("the socket is there", || UnixStream::connect(socket).ok());
    for first in (0..count).step_by(ASKS_MAX) {
        let asks: Vec<_> = (first..count.min(first + ASKS_MAX)).map(lock).collect();
        let expected = asks.len();
        let batch = encode_batch(&RequestBatch::new(0, asks));
        let head = format!(
            "POST /door/v1/ask HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            batch.len()
        );
        stream.write_all(&[head.as_bytes(), &batch].concat()).expect("it listens");
        let replies = decode_response(&answer(&mut stream)).expect("an answer");
        let granted = |reply: &&ItemReply| matches!(reply, ItemReply::Answered(Ok(_)));
        let granted = replies.replies.iter().filter(granted).count();
        assert_eq!(granted, expected, "{:?}", replies.replies.first());
    }
}

/// Returns the body of the next answer on a connection.
fn answer(stream: &mut UnixStream) -> Vec<u8> {
    let (mut said, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        if let Some(end) = said.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&said[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.expect(&head).parse().expect("a number");
            if said.len() >= end + 4 + length {
                assert!(head.starts_with("http/1.1 200"), "{}", String::from_utf8_lossy(&said));
                return said.split_off(end + 4);
            }
        }
        let count = stream.read(&mut part).expect("it answers");
        assert!(count > 0, "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&part[..count]);
    }
}
