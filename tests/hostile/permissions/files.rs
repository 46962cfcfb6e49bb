//! Requests through files of a mount by the holder of a lock, by another user and by root. The
//! permission table decides whether a caller may make the request; among permitted callers, only
//! the holder can change a held lock.

use super::{LIMITED, Who, table};
use testing::{ALICE, BOB, Mount, json, mount};

/// A condition that a request through a file must meet to succeed, besides that the permission
/// table allows the caller to make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// The request succeeds for every caller that the permission table permits.
    Nothing,
    /// The request succeeds only if the lock is free.
    Free,
    /// The request succeeds only for the holder of the lock.
    Held,
    /// The request succeeds only for the holder of the lock and for root, who may write in any
    /// directory and release locks of users of this machine.
    HeldOrRoot,
}

/// Returns a Python expression that makes a request of the permission table on the lock `x`, which
/// Bob holds, and the condition under which the request succeeds if it is permitted.
fn form(request: &str) -> (&'static str, Needs) {
    match request {
        "cat" => ("read('x/status.json')", Needs::Nothing),
        "getxattr" => ("os.getxattr('x', 'user.latchfs.holder')", Needs::Nothing),
        "ls" => ("'x' in os.listdir('.') or 1 / 0", Needs::Nothing),
        "mkdir" => ("os.mkdir('x')", Needs::Free),
        "flock" => ("locked('x/inner')", Needs::HeldOrRoot),
        "touch" => ("os.utime('x')", Needs::Held),
        "setxattr" => ("os.setxattr('x', 'user.latchfs.ttl', b'60s')", Needs::Held),
        "chmod" => ("os.chmod('x', 0o750)", Needs::Held),
        "rmdir" => ("os.rmdir('x')", Needs::HeldOrRoot),
        "mv" => ("os.rename('x', 'y')", Needs::Held),
        _ => panic!("say here how file {request} is made"),
    }
}

/// Bob acquires `x`, the caller makes the request, and Bob releases the locks that are left.
/// Returns the errno of the request, and whether Bob still held `x` under the same token after it.
fn attempt(m: &Mount, user: Option<&str>, form: &str) -> (String, bool) {
    let caller =
        user.map_or("contextlib.nullcontext()".to_owned(), |user| format!("user('{user}')"));
    let said = m.py(&format!(
        r"
        def read(name): return pathlib.Path(name).read_text()
        def locked(name):
            fd = os.open(name, os.O_RDWR | os.O_CREAT)
            try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally: os.close(fd)
        with user(B): os.mkdir('x')
        before = status('x')
        with {caller}: said = no(lambda: {form})
        after = status('x')
        same = (before['holder'], before['token']) == (after.get('holder'), after.get('token'))
        with user(B):
            for name in ['x', 'y']:
                if os.path.isdir(name): os.rmdir(name)
        print(json.dumps([said, same]))
        "
    ));
    let seen = json(&said.ok());
    (seen[0].as_str().expect("a text").to_owned(), seen[1].as_bool().expect("a flag"))
}

#[test]
fn every_request_through_files_is_decided_by_the_table_and_the_holder() {
    let m = mount();
    let of_user = |name, clients, steal| Who { name, clients, steal, locks: "", ..LIMITED };
    let callers = [
        (of_user("holder", &["laptop1:latchfs-b"], false), Some(BOB)),
        (of_user("other user", &["laptop1:latchfs-a"], false), Some(ALICE)),
        (of_user("root", &["laptop1:root"], true), None),
    ];
    let mut count = 0;
    for row in table() {
        for request in row.requests.iter().filter_map(|request| request.strip_prefix("file ")) {
            for (who, user) in &callers {
                let (program, needs) = form(request);
                let (said, same) = attempt(&m, *user, program);
                let is_holder = *user == Some(BOB);
                let may_ask = row.allows(who, who.clients[0], &["x", "y"]);
                let does = match needs {
                    Needs::Nothing => true,
                    Needs::Free => false,
                    Needs::Held => is_holder,
                    Needs::HeldOrRoot => is_holder || user.is_none(),
                };
                let context = format!("file {request} by {}: {said}", who.name);
                assert_eq!(said == "ok", may_ask && does, "{context}");
                let ends = matches!(request, "rmdir" | "mv") && said == "ok";
                assert_eq!(same, !ends, "{context}, the holder keeps what it has");
                // A request that the permission table denies fails with EACCES. Of the requests
                // that the table permits, only flock may fail with EACCES.
                assert!(said != "EACCES" || request == "flock" || !may_ask, "{context}");
                count += 1;
            }
        }
    }
    assert!(count >= 30, "{count}");
}
