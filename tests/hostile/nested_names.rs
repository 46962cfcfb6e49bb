//! Locks that other users or clients make below a held lock, through every interface: they do not
//! keep the holder from releasing its lock.

use futures_util::FutureExt as _;
use latchfs::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use latchfs::engine::{
    Acquire, Answer, ClientId, Lease, LeaseTerms, LockName, Op, QueuePolicy, Rules,
};
use latchfs::service::batch::batch_messages::{
    BatchItem, ItemReply, RequestBatch, decode_response, encode_batch,
};
use latchfs::service::local::Local;
use latchfs::service::{LockService, ParentCheck, Retry, Unavailable};
use latchfs::time::steady_now;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use testing::*;

/// The time within which another user of the attacked mount, the victim, must get an answer.
const VICTIM_LIMIT: Duration = Duration::from_secs(1);

/// A mount of root that serves all users, with an HTTP socket that they can reach.
struct Mounted {
    server: Server,
    dir: PathBuf,
    scratch: Scratch,
}

impl Mounted {
    fn start() -> Self {
        users();
        let scratch = Scratch::open_to_all();
        let dir = scratch.join("locks");
        let server = Server::mounted(&dir);
        Self { server, dir, scratch }
    }

    /// Runs a script in the mount as `user`, with the single supplementary group `group`.
    #[track_caller]
    fn sh_as(&self, user: &str, group: &str, script: &str) -> Output {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.args([format!("--groups={group}"), "sh".to_owned()]).args(["-c", script]);
        run(command.current_dir(&self.dir))
    }

    /// Returns a shell command that sends a request to the HTTP socket of the mount.
    fn curl(&self, request: &str) -> String {
        let (method, path) = request.split_once(' ').expect("two words");
        let target = self.server.target(path);
        let quoted: Vec<_> = target.iter().map(|word| format!("'{word}'")).collect();
        format!("curl -sS --max-time 20 -X {method} {}", quoted.join(" "))
    }

    #[track_caller]
    fn alice(&self, request: &str) -> String {
        self.sh_as(ALICE, ALICE, &self.curl(request)).ok()
    }

    /// Checks that Bob's script, which releases his lock, succeeds within a second after the
    /// attempt `tried`.
    #[track_caller]
    fn bob_is_served(&self, script: &str, tried: &str) {
        let begun = steady_now();
        let done = self.sh_as(BOB, BOB, script);
        assert_eq!(done.code, 0, "'{script}' of the holder after '{tried}': {done:?}");
        let waited = steady_now().since(begun).as_duration();
        assert!(waited < VICTIM_LIMIT, "{tried}: the holder waited {waited:?}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = latchfs().arg("umount").arg(&self.dir).output();
    }
}

/// Returns an encoded batch with a single command, by which Alice acquires `name`.
fn batch(name: &str, line: QueuePolicy) -> Vec<u8> {
    let ask = Acquire {
        line,
        ..Acquire::new(
            LockName::parse(name).expect("valid"),
            ClientId::parse(&format!("box:{ALICE}")).expect("valid"),
            LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
        )
    };
    let asks = vec![BatchItem::Submit(Op::Acquire(ask).into())];
    encode_batch(&RequestBatch::new(0, asks))
}

/// The HTTP socket of a mount identifies the calling local user as the mount does. If the
/// permission bits of a held directory forbid a user to create names below it, they also forbid
/// every HTTP request that would acquire such a name.
#[test]
fn name_below_anothers_lock_is_refused_at_the_socket() {
    let m = Mounted::start();
    m.alice("POST /locks/mine");
    let requests = [
        "POST /locks/backup%2Fx",
        "PUT /locks/backup%2Fx",
        "POST /locks/backup%2Fx?reentrant=true",
        "POST /locks/backup%2Fx?wait=10s",
        "POST /locks/backup%2Fx%2Fy%2Fz",
    ];
    for request in requests {
        m.sh_as(BOB, BOB, "mkdir backup").ok();
        let said = m.alice(request);
        m.bob_is_served("rm -rf backup && [ ! -e backup ]", request);
        assert!(said.contains("lets nobody else make locks there"), "{request}: {said}");
    }
    for line in [QueuePolicy::Skip, QueuePolicy::Join(None)] {
        m.sh_as(BOB, BOB, "mkdir backup").ok();
        let (body, response) = (m.scratch.join("body"), m.scratch.join("response"));
        fs::write(&body, batch("backup/x", line)).expect("ours");
        let send = m.curl("POST /door/v1/ask");
        let script = format!("{send} --data-binary @{}", body.display());
        let done = m.sh_as(ALICE, ALICE, &format!("{script} > {}", response.display()));
        m.bob_is_served("rm -rf backup && [ ! -e backup ]", "a batch");
        done.ok();
        let response = fs::read(&response).expect("it was written");
        let reply = decode_response(&response).expect("an answer").replies.pop();
        let Some(ItemReply::Unavailable(Unavailable::Denied { why })) = reply else {
            panic!("{line:?}: {reply:?}");
        };
        assert!(why.contains("lets nobody else make locks there"), "{why}");
    }
    // Alice is still allowed to acquire a new name below `crew` and to release her own lock over
    // HTTP.
    assert!(m.alice("POST /locks/crew%2Fx").contains("\"token\""));
    assert!(m.alice("DELETE /locks/mine").contains("true"));
}

/// The permission bits of a held directory say whether its holder, the members of its group and
/// others may make names below it. A client that already holds a name below it may renew that lock.
#[test]
fn permission_bits_hold_at_the_socket() {
    let m = Mounted::start();
    let asks = |group: &str, name: &str| {
        let request = m.curl(&format!("POST /locks/{name}"));
        let said = m.sh_as(ALICE, group, &request).ok();
        assert!(said.contains("\"token\"") || said.contains("E_DENIED"), "{said}");
        said.contains("\"token\"")
    };
    assert!(m.alice("POST /locks/team%2Fold").contains("\"token\""), "nobody holds team");
    let root = |script: &str| m.sh_as("root", "root", script).ok();
    root("mkdir -m 755 own");
    assert!(!asks(ALICE, "own%2Fa"));
    root("chmod 777 own");
    assert!(asks(ALICE, "own%2Fa"));
    // Bob's group may make names below `crew`, so Alice may only when it is one of her
    // supplementary groups.
    root(&format!("mkdir -m 775 crew && chgrp {BOB} crew"));
    assert!(!asks(ALICE, "crew%2Fa"));
    assert!(asks(BOB, "crew%2Fa"));
    // Alice's primary group may make names below `hers`, whatever her supplementary groups are.
    root(&format!("mkdir -m 775 hers && chgrp {ALICE} hers"));
    assert!(asks(BOB, "hers%2Fa"));
    // Alice can renew a lock that she holds, even if another client holds the lock above it by now.
    m.server.curl(&["-X", "POST", "/locks/team?client=box:root"]).is(200);
    assert!(asks(ALICE, "team%2Fold?reentrant=true"));
    assert!(!asks(ALICE, "team%2Fnew"));
}

/// A caller without a known user (a client over HTTP, another machine) can make a name below a held
/// lock. That does not hinder the holder: `rmdir` releases the lock and leaves the name. The
/// holder's own names below the lock do block `rmdir`, as in other file systems.
#[test]
fn holder_removes_its_lock_above_names_of_others() {
    let m = Mounted::start();
    let other = |method: &str, name: &str| {
        m.server.curl(&["-X", method, &format!("/locks/{name}?client=ci")]).is(200)
    };
    m.sh_as(BOB, BOB, "mkdir backup && mkdir backup/own").ok();
    other("POST", "backup%2Fx");
    other("POST", "backup%2Fdeep%2Fy");
    let refused = m.sh_as(BOB, BOB, "rmdir backup").fails();
    assert!(refused.contains("not empty"), "{refused}");
    m.sh_as(BOB, BOB, "rmdir backup/own").ok();
    m.bob_is_served("rmdir backup", "names by HTTP");
    let holder = |name: &str| m.server.curl(&[&format!("/locks/{name}")]).is(200)["holder"].clone();
    assert_eq!(holder("backup"), "");
    assert_eq!((holder("backup%2Fx"), holder("backup%2Fdeep%2Fy")), ("ci".into(), "ci".into()));
    // `backup` is still shown, as the directory of the locks below it, and belongs to nobody.
    assert_eq!(m.sh_as(BOB, BOB, "ls backup; rmdir backup 2>&1 || :").ok().lines().count(), 3);
    m.sh_as(ALICE, ALICE, "mkdir backup/z && rmdir backup/z").ok();
    other("DELETE", "backup%2Fx");
    other("DELETE", "backup%2Fdeep%2Fy");
    m.sh_as(BOB, BOB, "mkdir backup").ok();
    other("POST", "backup%2Fx");
    // Root can release a lock that a local user holds.
    m.sh_as("root", "root", "rmdir backup").ok();
    assert_eq!(holder("backup%2Fx"), "ci");
    other("DELETE", "backup%2Fx");
    assert_eq!(m.sh_as(BOB, BOB, "ls").ok(), "");
}

/// Two machines mount the locks of one server. Root of one machine has no rights on a lock of the
/// other machine, and a name that an HTTP client makes below a lock does not keep its holder from
/// releasing it.
#[test]
fn names_below_a_lock_of_another_machine() {
    let server = Server::start(&[]);
    let at = |client: &str| {
        let setup = Setup::new().no_state().only(&format!("--client {client}"));
        setup.with(&format!("--server {}", server.url)).start()
    };
    let (holder, other) = (at("laptop1"), at("laptop2"));
    let frees = |script: &str| {
        let begun = steady_now();
        holder.sh_as(BOB, script).ok();
        let waited = steady_now().since(begun).as_duration();
        assert!(waited < VICTIM_LIMIT, "{script}: the holder waited {waited:?}");
    };
    for form in ["mkdir backup/x", ": > backup/x", "latchfs acquire backup/x"] {
        holder.sh_as(BOB, "mkdir backup").ok();
        let tried = [other.sh(form), other.sh_as(ALICE, form), holder.sh_as(ALICE, form)];
        frees("rm -rf backup && [ ! -e backup ]");
        for tried in tried {
            let refused = tried.fails();
            let says = ["Permission denied", "lets nobody else make locks there"];
            assert!(says.iter().any(|says| refused.contains(says)), "{form}: {refused}");
        }
    }
    holder.sh_as(BOB, "mkdir -m 777 backup").ok();
    other.sh_as(ALICE, "mkdir backup/x").ok();
    server.curl(&["-X", "POST", "/locks/backup%2Fy?client=ci"]).is(200);
    frees("rmdir backup");
    assert_eq!(holder.status("backup/x")["holder"], format!("laptop2:{ALICE}"));
    assert_eq!(holder.status("backup/y")["holder"], "ci");
    other.sh_as(ALICE, "rmdir backup/x").ok();
}

/// Alice acquires and releases `backup/x` in a loop, while Bob makes and removes `backup`. Alice is
/// never granted the name while Bob holds the lock above it, and each of Bob's removals takes less
/// than a second.
const RACE: &str = r#"
    rounds, tries = int(os.environ['ROUNDS']), 0
    def ask(fd, **request):
        os.write(fd, json.dumps(request).encode())
        answer = b''
        while part := os.read(fd, 65536): answer += part
        return json.loads(answer)
    parent_ends, child_ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(child_ends)
        os.set_blocking(parent_ends, False)
        had = denied = 0
        with user(A):
            fd = os.open('.latchfs/ctl', os.O_RDWR)
            while no(os.read, parent_ends, 1) == 'EAGAIN':
                got = ask(fd, do='acquire', name='backup/x')
                if got['ok']:
                    had, token, above = had + 1, got['token'], status('backup')
                    if above['holder'] and above['token'] < token:
                        print('made below', above, token, flush=True)
                        os._exit(3)
                    eq(ask(fd, do='release', name='backup/x', token=token)['ok'], True)
                else:
                    eq(got['kind'], 'E_DENIED')
                    denied += 1
        os._exit(0 if had > 0 and denied > 0 else 4)
    try:
        os.close(parent_ends)
        with user(B):
            while rounds > 0 and tries < 1_000_000:
                tries += 1
                # She has it just now, so that `backup` is there as a directory.
                if no(os.mkdir, 'backup') == 'EEXIST': continue
                rounds -= 1
                status('backup/x')
                begun = time.monotonic()
                os.rmdir('backup')
                took = time.monotonic() - begun
                assert took < 1, took
        eq(rounds, 0)
    finally:
        os.close(child_ends)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    eq(code, 0)
"#;

#[track_caller]
fn race(m: &Mount, rounds: u32) {
    users();
    let program = format!("{PRELUDE}\n{}", dedent(RACE));
    let mut command = Command::new("python3");
    run(m.within(command.env("ROUNDS", rounds.to_string()).args(["-c", &program]))).ok();
}

#[test]
fn lock_above_is_respected_from_the_moment_it_is_taken() {
    race(&mount(), 2_000);
}

#[test]
fn lock_above_is_respected_from_the_moment_it_is_taken_at_a_server() {
    race(&Setup::new().behind(Behind::Server).start(), 300);
}

/// Acquires `backup/x` for Alice by `ask`, which first checks whether she may make a name below
/// `backup`. During that check Bob acquires `backup`. Returns whether Alice's token is lower than
/// Bob's, that is, whether she got her lock before Bob held the one above it.
fn is_older(
    ask: impl FnOnce(&Arc<dyn LockService>, Op, Option<ParentCheck>) -> Result<Answer, Unavailable>,
) -> bool {
    let locks: Arc<dyn LockService> =
        Arc::new(Local::in_memory(Rules::default()).expect("started"));
    let acquire = |name: &str, client: &str| {
        Op::Acquire(Acquire::new(
            LockName::parse(name).expect("valid"),
            ClientId::parse(client).expect("valid"),
            LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
        ))
    };
    let (hers, his) = (acquire("backup/x", "alice"), acquire("backup", "bob"));
    let (others, (send, bobs)) = (locks.clone(), channel());
    let check = ParentCheck::of(&hers, |_| {
        move |_: &LockName, _: &ClientId, _: &[Lease]| {
            let (others, his, send) = (others.clone(), his.clone(), send.clone());
            let (granted, is_in) = channel();
            thread::spawn(move || {
                let _ = send.send(token(others.submit(his.into(), Retry::Never).wait()));
                let _ = granted.send(());
            });
            // If the engine makes the check and the grant in one step, it can't answer Bob's
            // request before the step is over, so this wait times out.
            let _ = is_in.recv_timeout(Duration::from_millis(200));
            Ok(())
        }
    });
    let alices = token(ask(&locks, hers, check));
    alices < bobs.recv_timeout(VICTIM_LIMIT).expect("granted")
}

fn token(answer: Result<Answer, Unavailable>) -> u64 {
    let outcome = answer.expect("decided").expect("granted");
    outcome.tenure().expect("a tenure").token.as_u64()
}

/// The engine checks the lock above a name and grants the name in one step, so no other client can
/// acquire the lock above in between. If it were done in two steps, Bob's request would be executed
/// between them.
#[test]
fn condition_and_grant_are_one_step() {
    assert!(is_older(|locks, op, check| locks.clone().submit_checked(op.into(), check).wait()));
    assert!(!is_older(|locks, op, check| {
        let check = check.expect("it lies below another");
        let allowed = locks.check_parent(&check).now_or_never().expect("answered at once");
        allowed.expect("nobody holds the lock above");
        locks.submit(op.into(), Retry::Never).wait()
    }));
}
