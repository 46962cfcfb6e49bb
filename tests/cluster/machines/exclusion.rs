//! Mutual exclusion between two machines, for every way to take a lock.

use testing::latchfs_path;
use testing::net::Net;

/// The ways to take a lock, each of which fails if the lock is held, with the command that releases
/// it.
const FORMS: &[(&str, &str)] = &[
    ("mkdir NAME", "rmdir NAME"),
    ("(set -C; : > NAME)", "rm NAME"),
    ("ln -sT text NAME", "rm NAME"),
    ("touch NAME", "rm NAME"),
    ("(: > own && ln -T own NAME && rm own)", "rm NAME"),
    ("(: > own && mv -nT own NAME && ! test -e own)", "rm NAME"),
    ("latchfs acquire NAME", "latchfs release NAME"),
];

#[test]
fn locks_exclude_across_machines() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let _served = server.serve("");
    let (a, b) = (a.mount(&server.url(), ""), b.mount(&server.url(), ""));
    for (number, (take, give)) in FORMS.iter().enumerate() {
        for (other, (try_it, _)) in FORMS.iter().enumerate() {
            if take.starts_with("ln -s") && try_it.starts_with("touch") {
                // `touch` is not tried on a lock that was made by `ln -s`: it would follow the
                // symlink, and take the lock that the symlink's text names.
                continue;
            }
            let name = format!("l{number}-{other}");
            let say = |script: &str| {
                let program = latchfs_path();
                let script =
                    script.replace("latchfs acquire", &format!("{program} acquire --dir ."));
                let script =
                    script.replace("latchfs release", &format!("{program} release --dir ."));
                script.replace("NAME", &name)
            };
            a.sh(&say(take)).ok();
            let tried = b.sh(&say(try_it));
            assert_ne!(tried.code, 0, "{take} on one, {try_it} on the other: {tried:?}");
            b.sh("rm -f own; ls").ok();
            assert_ne!(b.sh(&say(give)).code, 0, "another machine's");
            a.sh(&say(give)).ok();
            // The other machine hears of the release by a message, which takes a while where many
            // tests run.
            let gone = "n=0; while test -e NAME -o -L NAME; do \
                        n=$((n + 1)); test $n -lt 500 || exit 1; sleep 0.01; done";
            b.sh(&say(gone)).ok();
            b.sh(&say(try_it)).ok();
            let back = FORMS[other].1;
            b.sh(&say(back)).ok();
        }
    }
    assert_eq!(a.sh("ls").ok(), "");
}

/// flock(2), POSIX (fcntl) and OFD locks, exclusive and shared, exclude each other and the creation
/// of names.
#[test]
fn open_files_exclude_across_machines() {
    let mut net = Net::new();
    let (server, a, b) = (net.machine(), net.machine(), net.machine());
    let _served = server.serve("");
    let (a, b) = (a.mount(&server.url(), ""), b.mount(&server.url(), ""));
    let locker = r#"
        import struct
        def fcntl_(kind):
            return lambda f: fcntl.lockf(f, kind | fcntl.LOCK_NB)
        def ofd(kind):
            def lock(f):
                fcntl.fcntl(f, 37, struct.pack('hhqqi', kind, 0, 0, 0, 0))
            return lock
        def flock(kind):
            return lambda f: fcntl.flock(f, kind | fcntl.LOCK_NB)
        forms = {
            'flock_ex': flock(fcntl.LOCK_EX), 'flock_sh': flock(fcntl.LOCK_SH),
            'fcntl_ex': fcntl_(fcntl.LOCK_EX), 'fcntl_sh': fcntl_(fcntl.LOCK_SH),
            'ofd_ex': ofd(fcntl.F_WRLCK), 'ofd_sh': ofd(fcntl.F_RDLCK),
        }
        f = None
        for line in sys.stdin:
            what, *args = line.split()
            if what == 'take':
                f = open(args[1], 'a+')
                print(said(forms[args[0]], f))
            elif what == 'drop':
                f.close()
                print('dropped')
    "#;
    let (mut on_a, mut on_b) = (a.python(locker, &[]), b.python(locker, &[]));
    let forms = ["flock_ex", "flock_sh", "fcntl_ex", "fcntl_sh", "ofd_ex", "ofd_sh"];
    for held in forms {
        for tried in forms {
            on_a.send_line(&format!("take {held} x"));
            on_a.says("OK");
            on_b.send_line(&format!("take {tried} x"));
            let both_share = held.ends_with("sh") && tried.ends_with("sh");
            assert_eq!(on_b.line() == "OK", both_share, "{held} and {tried}");
            assert_ne!(b.sh("mkdir x").code, 0, "held by {held}");
            for program in [&mut on_a, &mut on_b] {
                program.send_line("drop");
                program.says("dropped");
            }
            testing::eventually_in_cluster("free", || (a.sh("ls").ok().is_empty()).then_some(()));
        }
    }
}

/// Waiters on different machines are served in the order of their arrival.
#[test]
fn the_line_is_fair_across_machines() {
    let mut net = Net::new();
    let server = net.machine();
    let _served = server.serve("");
    let mounts: Vec<_> = (0..3).map(|_| net.machine().mount(&server.url(), "")).collect();
    let waiter = "
        f = open('x', 'w')
        fcntl.flock(f, fcntl.LOCK_EX)
        print('mine')
        sys.stdin.readline()
        f.close()
        print('done')
    ";
    let mut line: Vec<_> = vec![mounts[0].python(waiter, &[])];
    line[0].says("mine");
    for place in 1..9 {
        line.push(mounts[place % 3].python(waiter, &[]));
        let status = mounts[0].dir().join(".latchfs/status/x");
        testing::eventually_in_cluster("one more waits", || {
            let status: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&status).ok()?).ok()?;
            (status["waiters"].as_array()?.len() == place).then_some(())
        });
    }
    for place in 0..line.len() {
        assert!(line[place + 1..].iter().all(|later| place > 2 || later.is_silent()));
        line[place].send_line("go");
        line[place].says("done");
        if let Some(next) = line.get(place + 1) {
            next.says("mine");
        }
    }
}
