//! Guarantees G5 and G11 of `contrib/doc/guarantees.md`: the holder of a lock on an isolated
//! machine learns of the loss before another client is granted the lock.

use std::collections::BTreeMap;
use testing::net::Net;

/// The number of mounts that are isolated together, and the number of rounds: 200 losses in total.
const MOUNTS: usize = 20;
const ROUNDS: usize = 10;

const HOLDERS: &str = "
    def hold(number, dir):
        f = open(dir + '/x%d' % number, 'w')
        fcntl.flock(f, fcntl.LOCK_EX)
        print('mine', number)
        while True:
            answer = said(os.write, f.fileno(), b'\\n')
            if answer == 'ESTALE':
                break
            time.sleep(0.01)
        print('lost', number, now())
    threads = [threading.Thread(target=hold, args=each) for each in enumerate(sys.argv[1:])]
    [t.start() for t in threads]
    [t.join() for t in threads]
";

const WAITERS: &str = "
    def wait(number):
        f = open('x%d' % number, 'w')
        fcntl.flock(f, fcntl.LOCK_EX)
        print('mine', number, now())
        f.close()
    threads = [threading.Thread(target=wait, args=(n,)) for n in range(int(sys.argv[1]))]
    [t.start() for t in threads]
    print('begun')
    [t.join() for t in threads]
";

#[test]
fn the_loss_is_seen_before_the_next_grant() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let _served = server.serve("");
    let dirs: Vec<_> = (0..MOUNTS).map(|n| format!("locks{n}")).collect();
    let dirs: Vec<_> = dirs.iter().map(String::as_str).collect();
    let a = a.mount_all(&server.url(), &dirs, "--ttl 1s --grace 1s");
    let b = b.mount(&server.url(), "");
    let paths: Vec<_> = a.dirs().iter().map(|dir| dir.display().to_string()).collect();
    let paths: Vec<_> = paths.iter().map(String::as_str).collect();
    let mut leads = Vec::new();
    for round in 0..ROUNDS {
        let holders = a.python(HOLDERS, &paths);
        (0..MOUNTS).for_each(|_| assert!(holders.line().starts_with("mine ")));
        let waiters = b.python(WAITERS, &[&MOUNTS.to_string()]);
        waiters.says("begun");
        testing::eventually_in_cluster("all wait", || {
            let page = std::fs::read_to_string(b.dir().join(".latchfs/status/x0")).ok()?;
            page.contains("machine3").then_some(())
        });
        a.machine.cable(false);
        let lost = times(&holders, "lost");
        let granted = times(&waiters, "mine");
        for (number, lost) in &lost {
            let granted = granted[number];
            assert!(
                *lost < granted,
                "round {round}, lock {number}: lost {lost}, granted {granted}"
            );
            leads.push((granted - lost) / 1_000_000);
        }
        assert_eq!((holders.ended(), waiters.ended()), (0, 0));
        a.machine.cable(true);
        a.is("connected");
        for dir in a.dirs() {
            testing::eventually_in_cluster("connected", || {
                let page = std::fs::read_to_string(dir.join(".latchfs/server")).ok()?;
                page.contains("\"connected\"").then_some(())
            });
        }
    }
    leads.sort_unstable();
    assert_eq!(leads.len(), MOUNTS * ROUNDS);
    println!(
        "seen before the next grant by {} ms at least, {} ms in the median",
        leads[0],
        leads[leads.len() / 2]
    );
}

/// Reads one line `WORD MOUNT TIME` for each mount from the program, where WORD is `word`. Returns
/// the times by the numbers of the mounts.
fn times(program: &testing::net::Program, word: &str) -> BTreeMap<usize, u64> {
    let line = |_| {
        let line = program.line();
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some(word), "{line}");
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        (number() as usize, number())
    };
    (0..MOUNTS).map(line).collect()
}
