//! Tests of file operations with an engine in memory, without a mount: each test checks the results
//! that a program sees.

use crate::engine::{Answer, ClientId, Command, LockName, Op, Rules};
use crate::fuse::inodes::TOP;
use crate::fuse::lock_fs::LockFs;
use crate::fuse::mount_config::{ClientScope, HoldBy, MountConfig, ReadContent, Users};
use crate::fuse::posix_locks::file_locks;
use crate::service::local::Local;
use crate::service::test_backends::{forward_status_to_engine, forward_to_engine};
use crate::service::{CacheableView, Call, LockService, Retry, Unavailable};
use common::task::block_on;
use common::task::spawn;
use kernel::file_system::Done;
use kernel::file_system::Errno;
use kernel::file_system::FileSystem;
use kernel::file_system::LockFound;
use kernel::file_system::LockRequest;
use kernel::file_system::NameIn;
use kernel::file_system::NewMode;
use kernel::file_system::NodeAttr;
use kernel::file_system::NodeEntry;
use kernel::file_system::NodeType;
use kernel::file_system::Opened;
use kernel::file_system::OpenedFlags;
use kernel::file_system::PollEvents;
use kernel::file_system::ReadRequest;
use kernel::file_system::RenameFlags;
use kernel::file_system::Requester;
use kernel::file_system::SetAttrs;
use kernel::file_system::TimeOrNow;
use kernel::file_system::Unsupported;
use kernel::file_system::WriteRequest;
use kernel::notifications::Invalidator;
use kernel::notifications::PollWaker;
use kernel::notifications::Stale;
use serde_json::Value;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, UNIX_EPOCH};

/// The users of the tests. Their pid is 0, like that of callers from a foreign pid namespace, so
/// that no test depends on the processes of this machine.
const ALICE: Requester = Requester { uid: 4_000_001, gid: 4_000_001, pid: 0 };
const BOB: Requester = Requester { uid: 4_000_002, gid: 4_000_002, pid: 0 };
const ROOT: Requester = Requester { uid: 0, gid: 0, pid: 0 };

/// Returns a user whose process is this one.
fn here(who: Requester) -> Requester {
    Requester { pid: std::process::id(), ..who }
}
/// The mode of new files.
const MODE: NewMode = NewMode { mode: 0o777, umask: 0o022 };

/// The timeout of tests: no answer takes so long, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
/// The last byte of a whole-file lock by flock or fcntl.
const TO_END: u64 = i64::MAX as u64;

/// The file system of locks, called directly without a mount.
struct Rig(Arc<LockFs>);

/// The file system's lock service, whose engine keeps its state in memory.
fn service() -> Arc<dyn LockService> {
    Arc::new(Local::in_memory(Rules::default()).expect("it starts"))
}

fn config() -> MountConfig {
    MountConfig {
        dir: "/nowhere".into(),
        client: ClientId::parse("host").expect("valid"),
        owner: ClientScope::User,
        ttl: engine::values::lease::TTL_DEFAULT,
        grace: engine::values::lease::GRACE_DEFAULT,
        content: ReadContent::Status,
        users: Users::All,
        hold: HoldBy::Renewal,
        nonempty: false,
        share: crate::shares::SharePercent::default(),
    }
}

fn in_dir(parent: u64, name: &str) -> NameIn<'_> {
    NameIn { parent, name: OsStr::new(name) }
}

fn at(name: &str) -> NameIn<'_> {
    in_dir(TOP, name)
}

/// Returns the errno of an operation that must fail.
fn errno<T: std::fmt::Debug>(done: Done<T>) -> i32 {
    done.expect_err("it fails").code()
}

impl Rig {
    fn new() -> Self {
        Self::on(&service())
    }

    fn on(service: &Arc<dyn LockService>) -> Self {
        Self(LockFs::new(service, &config(), false))
    }

    fn mkdir(&self, who: Requester, name: &str) -> Done<NodeEntry> {
        block_on(self.0.mkdir(who, at(name), MODE))
    }

    fn rmdir(&self, who: Requester, name: &str) -> Done<()> {
        block_on(self.0.rmdir(who, at(name)))
    }

    fn lookup(&self, who: Requester, name: &str) -> Done<NodeEntry> {
        block_on(self.0.lookup(who, at(name)))
    }

    fn lookup_in(&self, who: Requester, parent: u64, name: &str) -> Done<NodeEntry> {
        block_on(self.0.lookup(who, in_dir(parent, name)))
    }

    /// Looks up a path, name by name, and returns the inode number of its last name.
    fn walk(&self, who: Requester, path: &str) -> u64 {
        path.split('/').fold(TOP, |parent, name| {
            self.lookup_in(who, parent, name).expect("it is there").attr.ino.0
        })
    }

    fn create(&self, who: Requester, name: &str, flags: i32) -> Done<(NodeEntry, Opened)> {
        block_on(self.0.create(
            who,
            at(name),
            NewMode { mode: 0o666, ..MODE },
            flags | libc::O_CREAT,
        ))
    }

    /// Creates and opens the file of a free lock. Returns its inode number and file handle.
    fn created(&self, who: Requester, name: &str) -> OpenedFile {
        let (entry, opened) = self.create(who, name, libc::O_RDWR).expect("it is free");
        OpenedFile { ino: entry.attr.ino.0, fh: opened.fh }
    }

    /// Opens the file with this inode number once more.
    fn opened(&self, who: Requester, ino: u64, flags: i32) -> OpenedFile {
        OpenedFile { ino, fh: self.open(who, ino, flags).expect("it opens").fh }
    }

    fn open(&self, who: Requester, ino: u64, flags: i32) -> Done<Opened> {
        block_on(self.0.open(who, ino, flags))
    }

    fn read_at(&self, who: Requester, fh: u64, offset: u64, flags: i32) -> Done<String> {
        let asked = ReadRequest { fh, offset, size: 1 << 16, flags };
        let bytes = block_on(self.0.read(who, asked))?;
        Ok(String::from_utf8(bytes.as_slice().to_vec()).expect("UTF-8"))
    }

    fn read(&self, who: Requester, fh: u64) -> Done<String> {
        self.read_at(who, fh, 0, 0)
    }

    /// Returns the output of `cat PATH`.
    fn cat(&self, who: Requester, path: &str) -> Done<String> {
        let fh = self.open(who, self.walk(who, path), libc::O_RDONLY)?.fh;
        let read = self.read(who, fh);
        self.0.release(0, fh);
        read
    }

    fn write(&self, who: Requester, fh: u64, text: &str) -> Done<u32> {
        let asked = WriteRequest { fh, offset: 0, from_cache: false };
        block_on(self.0.write(who, asked, text.as_bytes()))
    }

    /// Sends a request to the control file `.latchfs/ctl`, and returns its answer.
    fn ctl(&self, who: Requester, request: &str) -> Value {
        let ino = self.walk(who, ".latchfs/ctl");
        let fh = self.open(who, ino, libc::O_RDWR).expect("it opens").fh;
        assert_eq!(self.write(who, fh, request), Ok(request.len() as u32));
        let answer = self.read(who, fh).expect("there is an answer");
        serde_json::from_str(&answer).expect("JSON")
    }

    fn stat(&self, ino: u64) -> Done<NodeAttr> {
        block_on(self.0.getattr(ALICE, ino, None))
    }

    fn setattr(&self, who: Requester, ino: u64, wanted: &SetAttrs) -> Done<NodeAttr> {
        block_on(self.0.setattr(who, ino, wanted))
    }

    fn xattr(&self, ino: u64, name: &str) -> Done<String> {
        let value = block_on(self.0.getxattr(ALICE, ino, OsStr::new(name)))?;
        Ok(String::from_utf8(value).expect("UTF-8"))
    }

    fn set_xattr(&self, who: Requester, ino: u64, name: &str, value: &str) -> Done<()> {
        block_on(self.0.setxattr(who, ino, OsStr::new(name), value.as_bytes(), 0))
    }

    fn rename(&self, who: Requester, from: &str, to: &str, flags: RenameFlags) -> Done<()> {
        block_on(self.0.rename(who, at(from), at(to), flags))
    }

    fn link(&self, who: Requester, ino: u64, to: &str) -> Done<NodeEntry> {
        block_on(self.0.link(who, ino, at(to)))
    }

    /// Returns the names of all entries in a directory.
    fn names_in(&self, ino: u64) -> Vec<String> {
        let fh = self.0.opendir(ALICE, ino).expect("it opens").fh;
        let mut names = Vec::new();
        loop {
            let index = names.len() as u64;
            let page = block_on(self.0.readdir(ALICE, ino, fh, index, index == 0));
            let page = page.expect("it is read");
            let from = (index - page.first) as usize;
            let more = page.entries.iter().skip(from).map(|entry| entry.name.display().to_string());
            names.extend(more);
            if names.len() as u64 == index {
                self.0.releasedir(fh);
                return names;
            }
        }
    }

    /// Takes a lock on a file without waiting.
    fn lock(&self, who: Requester, asked: LockRequest) -> Done<()> {
        block_on(self.0.setlk(who, asked, false))
    }

    /// Starts a request for a lock on a file that may wait. Returns the receiver of its result.
    fn begin_lock(&self, who: Requester, asked: LockRequest) -> Receiver<Done<()>> {
        let (fs, (send, end)) = (Arc::clone(&self.0), channel());
        spawn(async move {
            let done = fs.setlk(who, asked, true).await;
            send.send(done).ok();
        });
        end
    }

    /// Starts a read that may wait. Returns the receiver of its result.
    fn begin_read(&self, who: Requester, fh: u64) -> Receiver<Done<Vec<u8>>> {
        let (fs, (send, end)) = (Arc::clone(&self.0), channel());
        spawn(async move {
            let asked = ReadRequest { fh, offset: 0, size: 1 << 16, flags: 0 };
            let read = fs.read(who, asked).await.map(|bytes| bytes.as_slice().to_vec());
            send.send(read).ok();
        });
        end
    }
}

/// The inode number and the file handle of an open file.
#[derive(Clone, Copy)]
struct OpenedFile {
    ino: u64,
    fh: u64,
}

/// Returns a flock request for an open file, which is its own lock owner.
fn whole(OpenedFile { ino, fh }: OpenedFile, kind: i32) -> LockRequest {
    LockRequest { ino, fh, owner: fh, start: 0, end: TO_END, kind, pid: 0 }
}

/// Returns an fcntl request of the process `owner` for a lock on one byte.
fn byte(OpenedFile { ino, fh }: OpenedFile, owner: u64, byte: u64, kind: i32) -> LockRequest {
    LockRequest { ino, fh, owner, start: byte, end: byte, kind, pid: owner as u32 }
}

/// Returns the attributes of a utimensat that sets the modification time.
fn touch_at(secs: u64) -> SetAttrs {
    let time = TimeOrNow::SpecificTime(UNIX_EPOCH + Duration::from_secs(secs));
    SetAttrs { times: (None, Some(time)), ..SetAttrs::default() }
}

#[test]
fn mkdir_takes_a_lock_that_is_shown_as_a_directory_of_its_maker() {
    let rig = Rig::new();
    let attr = rig.mkdir(ALICE, "build").expect("it is free").attr;
    assert_eq!((attr.kind, attr.perm, attr.uid), (NodeType::Directory, 0o755, ALICE.uid));
    assert_eq!(rig.stat(attr.ino.0).expect("it is there").attr, attr);
}

#[test]
fn mkdir_of_a_held_lock_says_that_it_exists() {
    let rig = Rig::new();
    rig.mkdir(ALICE, "build").expect("it is free");
    assert_eq!(errno(rig.mkdir(BOB, "build")), libc::EEXIST);
    assert_eq!(errno(rig.mkdir(ALICE, "build")), libc::EEXIST, "the holder as well");
}

#[test]
fn mkdir_of_an_invalid_name_fails() {
    let rig = Rig::new();
    assert_eq!(errno(rig.mkdir(ALICE, "a\nb")), libc::EINVAL);
    assert_eq!(errno(rig.mkdir(ALICE, &"x".repeat(256))), libc::ENAMETOOLONG);
}

#[test]
fn nothing_can_be_made_in_the_control_directory() {
    let rig = Rig::new();
    assert_eq!(errno(rig.mkdir(ALICE, ".latchfs")), libc::EPERM);
    let top = rig.walk(ALICE, ".latchfs");
    assert_eq!(errno(block_on(rig.0.mkdir(ALICE, in_dir(top, "x"), MODE))), libc::EPERM);
}

#[test]
fn rmdir_frees_the_lock_for_others() {
    let rig = Rig::new();
    rig.mkdir(ALICE, "build").expect("it is free");
    assert_eq!(errno(rig.rmdir(BOB, "build")), libc::EPERM);
    assert_eq!(rig.rmdir(ALICE, "build"), Ok(()));
    assert_eq!(errno(rig.rmdir(ALICE, "build")), libc::ENOENT);
    assert_eq!(rig.mkdir(BOB, "build").expect("it is free").attr.uid, BOB.uid);
}

#[test]
fn root_may_release_the_lock_of_a_local_user() {
    let rig = Rig::new();
    rig.mkdir(ALICE, "build").expect("it is free");
    assert_eq!(rig.rmdir(ROOT, "build"), Ok(()));
    assert_eq!(errno(rig.lookup(ALICE, "build")), libc::ENOENT);
}

#[test]
fn rmdir_with_locks_below_says_that_it_is_not_empty() {
    let rig = Rig::new();
    let team = rig.mkdir(ALICE, "team").expect("it is free").attr.ino.0;
    block_on(rig.0.mkdir(ALICE, in_dir(team, "x"), MODE)).expect("it is free");
    assert_eq!(errno(rig.rmdir(ALICE, "team")), libc::ENOTEMPTY);
}

#[test]
fn lookup_finds_what_was_made_and_nothing_else() {
    let rig = Rig::new();
    assert_eq!(errno(rig.lookup(ALICE, "build")), libc::ENOENT);
    assert_eq!(errno(rig.lookup(ALICE, "a\nb")), libc::ENOENT, "no name, so not there");
    assert_eq!(errno(rig.lookup(ALICE, &"x".repeat(256))), libc::ENAMETOOLONG);
    let made = rig.mkdir(ALICE, "build").expect("it is free").attr.ino;
    assert_eq!(rig.lookup(BOB, "build").expect("it is held").attr.ino, made);
    assert_eq!(errno(rig.lookup_in(ALICE, 999, "build")), libc::ESTALE);
}

#[test]
fn a_free_name_with_locks_below_is_a_directory_without_a_holder() {
    let rig = Rig::new();
    assert_eq!(rig.ctl(ALICE, r#"{"do":"acquire","name":"team/x"}"#)["ok"], true);
    let team = rig.lookup(BOB, "team").expect("the way to a lock").attr;
    assert_eq!((team.kind, team.uid), (NodeType::Directory, 0));
    assert_eq!(errno(rig.setattr(BOB, team.ino.0, &touch_at(7))), libc::EPERM);
    assert_eq!(rig.names_in(team.ino.0), ["x"]);
}

#[test]
fn everybody_may_make_locks_in_the_mount_point_as_in_tmp() {
    let top = Rig::new().stat(TOP).expect("it is there");
    assert_eq!((top.attr.kind, top.attr.perm), (NodeType::Directory, 0o1777));
    assert!(!top.ttl.is_zero(), "it never changes");
}

#[test]
fn an_inode_that_the_kernel_has_forgotten_is_stale() {
    let rig = Rig::new();
    let OpenedFile { ino, fh } = rig.created(ALICE, "a");
    rig.0.release(ino, fh);
    assert_eq!(block_on(rig.0.unlink(ALICE, at("a"))), Ok(()));
    rig.0.forget(ino, 1);
    assert_eq!(errno(rig.stat(ino)), libc::ESTALE);
    assert_eq!(errno(rig.open(ALICE, ino, libc::O_RDONLY)), libc::ESTALE);
}

#[test]
fn a_symlink_keeps_its_text() {
    let rig = Rig::new();
    let made = block_on(rig.0.symlink(ALICE, at("lock"), OsStr::new("host:123")));
    let attr = made.expect("it is free").attr;
    assert_eq!((attr.kind, attr.perm, attr.size), (NodeType::Symlink, 0o777, 8));
    let text = block_on(rig.0.readlink(BOB, attr.ino.0)).expect("it is a symlink");
    assert_eq!(text.as_slice(), b"host:123");
    let second = block_on(rig.0.symlink(BOB, at("lock"), OsStr::new("other")));
    assert_eq!(errno(second), libc::EEXIST);
    assert_eq!(errno(block_on(rig.0.readlink(BOB, TOP))), libc::EINVAL);
}

#[test]
fn symlink_of_another_user_must_not_lead_out_where_the_kernel_follows_symlinks() {
    let rig = Rig(LockFs::new(&service(), &config(), true));
    let made = block_on(rig.0.symlink(ALICE, at("out"), OsStr::new("/etc/passwd")));
    let ino = made.expect("it is free").attr.ino.0;
    assert_eq!(errno(block_on(rig.0.readlink(BOB, ino))), libc::EACCES);
    assert!(block_on(rig.0.readlink(ALICE, ino)).is_ok(), "its maker may");
}

#[test]
fn create_takes_a_free_lock_and_opens_it() {
    let rig = Rig::new();
    let (entry, opened) = rig.create(ALICE, "job", libc::O_RDWR).expect("it is free");
    let attr = entry.attr;
    assert_eq!((attr.kind, attr.perm, attr.uid), (NodeType::RegularFile, 0o644, ALICE.uid));
    assert_eq!(opened.flags, OpenedFlags::FOPEN_DIRECT_IO);
    assert!(rig.xattr(attr.ino.0, "user.latchfs.token").is_ok(), "it is held");
}

#[test]
fn create_new_fails_where_create_opens_anothers_lock() {
    let rig = Rig::new();
    let OpenedFile { ino, .. } = rig.created(ALICE, "job");
    let new = rig.create(BOB, "job", libc::O_WRONLY | libc::O_EXCL);
    assert_eq!(errno(new.map(|(_, opened)| opened.fh)), libc::EEXIST);
    let (entry, _) = rig.create(BOB, "job", libc::O_WRONLY).expect("opening never fails");
    assert_eq!((entry.attr.ino.0, entry.attr.uid), (ino, ALICE.uid), "as it is");
}

#[test]
fn create_of_a_name_that_became_a_directory_is_stale() {
    let rig = Rig::new();
    rig.mkdir(ALICE, "build").expect("it is free");
    let created = rig.create(BOB, "build", libc::O_WRONLY);
    assert_eq!(errno(created.map(|(_, opened)| opened.fh)), libc::ESTALE);
}

#[test]
fn a_program_reads_back_what_it_wrote() {
    let rig = Rig::new();
    let OpenedFile { fh, .. } = rig.created(ALICE, "job");
    assert_eq!(rig.write(ALICE, fh, "host:123"), Ok(8));
    assert_eq!(rig.read(ALICE, fh).as_deref(), Ok("host:123"));
    assert_eq!(rig.read_at(ALICE, fh, 5, 0).as_deref(), Ok("123"), "from where it is");
    assert_eq!(rig.cat(BOB, ".latchfs/content/job").as_deref(), Ok("host:123"));
}

#[test]
fn a_reader_gets_the_status() {
    let rig = Rig::new();
    rig.created(ALICE, "job");
    let status: Value =
        serde_json::from_str(&rig.cat(BOB, "job").expect("it is read")).expect("JSON");
    assert_eq!((&status["name"], &status["phase"]), (&"job".into(), &"held".into()));
    assert_eq!(status["holder"], rig.ctl(ALICE, r#"{"do":"status","name":"x"}"#)["you"]);
}

#[test]
fn a_write_by_a_non_holder_is_busy_and_changes_nothing() {
    let rig = Rig::new();
    let OpenedFile { ino, fh: own } = rig.created(ALICE, "job");
    rig.write(ALICE, own, "mine").expect("its holder may");
    let other = rig.open(BOB, ino, libc::O_WRONLY).expect("opening never fails").fh;
    assert_eq!(errno(rig.write(BOB, other, "60s")), libc::EBUSY);
    assert_eq!(rig.cat(BOB, ".latchfs/content/job").as_deref(), Ok("mine"));
    let why = rig.cat(BOB, ".latchfs/why").expect("it is read");
    assert!(why.contains("\"write\"") && why.contains("EBUSY"), "{why}");
}

#[test]
fn a_write_that_is_too_long_or_invalid_is_refused() {
    let rig = Rig::new();
    let OpenedFile { fh, .. } = rig.created(ALICE, "job");
    assert_eq!(errno(rig.write(ALICE, fh, &"x".repeat(1 << 20))), libc::EFBIG);
    assert_eq!(errno(rig.write(ALICE, fh, r#"{"ttl":"soon"}"#)), libc::EINVAL);
    assert_eq!(errno(rig.write(ALICE, 999, "60s")), libc::EBADF);
}

#[test]
fn writing_a_duration_renews_with_that_ttl() {
    let rig = Rig::new();
    let OpenedFile { ino, fh } = rig.created(ALICE, "job");
    assert_eq!(rig.write(ALICE, fh, "90s\n"), Ok(4));
    assert_eq!(rig.xattr(ino, "user.latchfs.ttl").as_deref(), Ok("90000ms"));
    assert_eq!(errno(rig.write(ALICE, fh, "pid=1")), libc::EPERM, "not by a foreign namespace");
}

#[test]
fn truncating_open_clears_the_content_of_an_own_lock() {
    let rig = Rig::new();
    let OpenedFile { ino, fh } = rig.created(here(ALICE), "job");
    rig.write(ALICE, fh, "mine").expect("its holder may");
    let flags = libc::O_WRONLY | libc::O_TRUNC;
    rig.open(BOB, ino, flags).expect("opening never fails");
    assert_eq!(rig.cat(BOB, ".latchfs/content/job").as_deref(), Ok("mine"), "not another's");
    rig.open(ALICE, ino, flags).expect("it opens");
    assert_eq!(rig.cat(BOB, ".latchfs/content/job").as_deref(), Ok("mine"), "an unknown process");
    rig.open(here(ALICE), ino, flags).expect("it opens");
    assert_eq!(rig.cat(BOB, ".latchfs/content/job").as_deref(), Ok(""));
}

#[test]
fn closing_reports_that_nothing_was_renewed() {
    let rig = Rig::new();
    let OpenedFile { ino, fh: own } = rig.created(ALICE, "job");
    let other = rig.open(BOB, ino, libc::O_WRONLY).expect("opening never fails").fh;
    assert_eq!(errno(block_on(rig.0.flush(BOB, ino, other, 1))), libc::EBUSY);
    assert_eq!(block_on(rig.0.flush(ALICE, ino, own, 2)), Ok(()));
    let reader = rig.open(BOB, ino, libc::O_RDONLY).expect("it opens").fh;
    assert_eq!(block_on(rig.0.flush(BOB, ino, reader, 1)), Ok(()), "it did not try");
}

#[test]
fn chmod_is_for_the_holder() {
    let rig = Rig::new();
    let ino = rig.mkdir(ALICE, "build").expect("it is free").attr.ino.0;
    let wanted = SetAttrs { mode: Some(0o700), ..SetAttrs::default() };
    assert_eq!(rig.setattr(ALICE, ino, &wanted).expect("it may").attr.perm, 0o700);
    let wanted = SetAttrs { mode: Some(0o777), ..SetAttrs::default() };
    assert_eq!(errno(rig.setattr(BOB, ino, &wanted)), libc::EPERM);
    assert_eq!(rig.stat(ino).expect("it is there").attr.perm, 0o700);
}

#[test]
fn only_root_may_chown_to_another_user() {
    let rig = Rig::new();
    let ino = rig.mkdir(ALICE, "build").expect("it is free").attr.ino.0;
    let to = |uid| SetAttrs { owner: (Some(uid), None), ..SetAttrs::default() };
    assert_eq!(errno(rig.setattr(ALICE, ino, &to(BOB.uid))), libc::EPERM);
    assert_eq!(rig.setattr(ALICE, ino, &to(ALICE.uid)).expect("its own").attr.uid, ALICE.uid);
}

#[test]
fn touch_renews_for_the_holder_and_is_busy_for_others() {
    let rig = Rig::new();
    let OpenedFile { ino, .. } = rig.created(ALICE, "job");
    let attr = rig.setattr(ALICE, ino, &touch_at(1_000)).expect("its holder may").attr;
    assert_eq!(attr.mtime, UNIX_EPOCH + Duration::from_secs(1_000));
    assert_eq!(errno(rig.setattr(BOB, ino, &touch_at(2_000))), libc::EBUSY);
    assert_eq!(rig.stat(ino).expect("it is there").attr.mtime, attr.mtime);
}

#[test]
fn truncating_anothers_lock_does_nothing_and_never_fails() {
    let rig = Rig::new();
    let OpenedFile { ino, fh } = rig.created(here(ALICE), "job");
    rig.write(ALICE, fh, "mine").expect("its holder may");
    let cut = SetAttrs { size: Some(1), ..SetAttrs::default() };
    assert_eq!(rig.setattr(BOB, ino, &cut).map(|attr| attr.attr.uid), Ok(ALICE.uid));
    assert_eq!(rig.cat(BOB, ".latchfs/content/job").as_deref(), Ok("mine"));
    assert!(rig.setattr(here(ALICE), ino, &cut).is_ok());
    assert_eq!(rig.cat(BOB, ".latchfs/content/job").as_deref(), Ok("m"));
    let far = SetAttrs { size: Some(1 << 40), ..SetAttrs::default() };
    assert_eq!(errno(rig.setattr(ALICE, ino, &far)), libc::EFBIG);
}

#[test]
fn unlink_frees_a_file_lock() {
    let rig = Rig::new();
    rig.created(ALICE, "job");
    assert_eq!(errno(block_on(rig.0.unlink(BOB, at("job")))), libc::EPERM);
    assert_eq!(block_on(rig.0.unlink(ALICE, at("job"))), Ok(()));
    assert_eq!(errno(block_on(rig.0.unlink(ALICE, at("job")))), libc::ENOENT);
}

#[test]
fn rename_carries_the_lease_and_the_inode_over() {
    let rig = Rig::new();
    let OpenedFile { ino, .. } = rig.created(ALICE, "a");
    assert_eq!(rig.rename(ALICE, "a", "b", RenameFlags::empty()), Ok(()));
    assert_eq!(errno(rig.lookup(ALICE, "a")), libc::ENOENT);
    assert_eq!(rig.lookup(ALICE, "b").expect("it is there").attr.ino.0, ino);
    assert_eq!(errno(rig.rename(ALICE, "a", "c", RenameFlags::empty())), libc::ENOENT);
}

#[test]
fn rename_onto_anothers_lock_fails() {
    let rig = Rig::new();
    rig.created(ALICE, "a");
    rig.created(BOB, "b");
    assert_eq!(errno(rig.rename(ALICE, "a", "b", RenameFlags::empty())), libc::EBUSY);
    let new = RenameFlags::RENAME_NOREPLACE;
    assert_eq!(errno(rig.rename(ALICE, "a", "b", new)), libc::EEXIST);
    let swap = RenameFlags::RENAME_EXCHANGE;
    assert_eq!(errno(rig.rename(ALICE, "a", "b", swap)), libc::EINVAL);
    assert_eq!(errno(rig.rename(BOB, "a", "c", RenameFlags::empty())), libc::EPERM);
}

#[test]
fn rename_of_a_directory_with_locks_below_fails() {
    let rig = Rig::new();
    let team = rig.mkdir(ALICE, "team").expect("it is free").attr.ino.0;
    block_on(rig.0.mkdir(ALICE, in_dir(team, "x"), MODE)).expect("it is free");
    assert_eq!(errno(rig.rename(ALICE, "team", "t", RenameFlags::empty())), libc::ENOTEMPTY);
}

#[test]
fn link_gives_one_inode_two_names() {
    let rig = Rig::new();
    let OpenedFile { ino, fh } = rig.created(ALICE, "unique");
    rig.write(ALICE, fh, "host:1").expect("its holder may");
    let attr = rig.link(ALICE, ino, "lock").expect("it is free").attr;
    assert_eq!((attr.ino.0, attr.nlink, attr.size), (ino, 2, 6));
    assert_eq!(errno(rig.link(ALICE, ino, "lock")), libc::EEXIST);
    assert_eq!(block_on(rig.0.unlink(ALICE, at("unique"))), Ok(()));
    assert_eq!(rig.stat(ino).expect("it has a name still").attr.nlink, 1);
}

#[test]
fn link_is_for_the_holder_of_a_file() {
    let rig = Rig::new();
    let OpenedFile { ino, .. } = rig.created(ALICE, "unique");
    assert_eq!(errno(rig.link(BOB, ino, "lock")), libc::EPERM);
    let dir = rig.mkdir(ALICE, "build").expect("it is free").attr.ino.0;
    assert_eq!(errno(rig.link(ALICE, dir, "other")), libc::EPERM);
    assert_eq!(errno(rig.link(ALICE, TOP, "other")), libc::EPERM);
}

#[test]
fn extended_attributes_are_facts_about_the_lock() {
    let rig = Rig::new();
    let OpenedFile { ino, .. } = rig.created(ALICE, "job");
    assert_eq!(rig.xattr(ino, "user.latchfs.phase").as_deref(), Ok("held"));
    assert_eq!(rig.xattr(ino, "user.latchfs.waiters").as_deref(), Ok("0"));
    assert_eq!(errno(rig.xattr(ino, "user.latchfs.note")), libc::ENODATA, "it has none");
    assert_eq!(errno(rig.xattr(ino, "user.mime_type")), libc::ENODATA);
    assert_eq!(errno(rig.xattr(ino, "system.posix_acl_access")), libc::ENOTSUP);
    let names = block_on(rig.0.listxattr(ALICE, ino)).expect("they are listed");
    assert!(names.starts_with(b"user.latchfs.token\0user.latchfs.holder\0"), "{names:?}");
}

#[test]
fn a_note_and_a_ttl_can_be_set() {
    let rig = Rig::new();
    let OpenedFile { ino, .. } = rig.created(ALICE, "job");
    assert_eq!(rig.set_xattr(ALICE, ino, "user.latchfs.note", "back at 5"), Ok(()));
    assert_eq!(rig.xattr(ino, "user.latchfs.note").as_deref(), Ok("back at 5"));
    assert_eq!(rig.set_xattr(ALICE, ino, "user.latchfs.ttl", "2m"), Ok(()));
    assert_eq!(rig.xattr(ino, "user.latchfs.ttl").as_deref(), Ok("120000ms"));
    assert_eq!(errno(rig.set_xattr(BOB, ino, "user.latchfs.ttl", "2m")), libc::EBUSY);
    assert_eq!(errno(rig.set_xattr(ALICE, ino, "user.latchfs.ttl", "soon")), libc::EINVAL);
    assert_eq!(errno(rig.set_xattr(ALICE, ino, "user.latchfs.token", "1")), libc::EPERM);
    assert_eq!(errno(rig.set_xattr(ALICE, ino, "user.other", "1")), libc::ENOTSUP);
    assert_eq!(
        errno(block_on(rig.0.removexattr(ALICE, TOP, OsStr::new("user.latchfs.note")))),
        libc::EPERM
    );
}

#[test]
fn a_directory_lists_all_locks_in_order_and_not_the_control_files() {
    let rig = Rig::new();
    let names: Vec<_> = (0..600).map(|number| format!("job{number:03}")).collect();
    for name in names.iter().rev() {
        rig.mkdir(ALICE, name).expect("it is free");
    }
    assert_eq!(rig.names_in(TOP), names);
    let control = rig.walk(ALICE, ".latchfs");
    let listed = rig.names_in(control);
    assert_eq!(listed, ["README", "why", "server", "metrics", "ctl", "status", "content", "wait"]);
    let unopened = block_on(rig.0.readdir(ALICE, TOP, 999, 0, true));
    assert_eq!(errno(unopened), libc::EBADF);
}

#[test]
fn directory_mode_restricts_creating_locks_below() {
    let rig = Rig::new();
    let team = rig.mkdir(ALICE, "team").expect("it is free").attr.ino.0;
    let make = |who, name| block_on(rig.0.mkdir(who, in_dir(team, name), MODE));
    assert_eq!(errno(make(BOB, "b")), libc::EACCES);
    assert!(make(ALICE, "a").is_ok() && make(ROOT, "r").is_ok());
    let wanted = SetAttrs { mode: Some(0o777), ..SetAttrs::default() };
    assert!(rig.setattr(ALICE, team, &wanted).is_ok());
    assert!(make(BOB, "b").is_ok());
}

#[test]
fn flock_excludes_another_open_file_until_it_unlocks() {
    let rig = Rig::new();
    let first = rig.created(ALICE, "job");
    let second = rig.opened(BOB, first.ino, libc::O_RDWR);
    assert_eq!(rig.lock(ALICE, whole(first, libc::F_WRLCK)), Ok(()));
    assert_eq!(errno(rig.lock(BOB, whole(second, libc::F_WRLCK))), libc::EAGAIN);
    assert_eq!(rig.lock(ALICE, whole(first, libc::F_UNLCK)), Ok(()));
    assert_eq!(rig.lock(BOB, whole(second, libc::F_WRLCK)), Ok(()));
}

#[test]
fn flock_waits_for_the_lock_and_gets_it() {
    let rig = Rig::new();
    let first = rig.created(ALICE, "job");
    let second = rig.opened(BOB, first.ino, libc::O_RDWR);
    assert_eq!(rig.lock(ALICE, whole(first, libc::F_WRLCK)), Ok(()));
    let end = rig.begin_lock(BOB, whole(second, libc::F_WRLCK));
    assert!(end.try_recv().is_err(), "it waits");
    rig.0.release(first.ino, first.fh);
    assert_eq!(end.recv_timeout(PATIENCE), Ok(Ok(())), "closing gives it back");
    assert_eq!(rig.write(BOB, second.fh, "mine"), Ok(4), "its file speaks for the lock");
}

#[test]
fn readers_share_a_lock() {
    let rig = Rig::new();
    let first = rig.created(ALICE, "job");
    let second = rig.opened(BOB, first.ino, libc::O_RDONLY);
    assert_eq!(rig.lock(ALICE, whole(first, libc::F_RDLCK)), Ok(()));
    assert_eq!(rig.lock(BOB, whole(second, libc::F_RDLCK)), Ok(()));
    assert_eq!(errno(rig.lock(BOB, whole(second, libc::F_WRLCK))), libc::EAGAIN);
}

#[test]
fn a_waiter_that_gives_up_gets_eagain() {
    let rig = Rig::new();
    let first = rig.created(ALICE, "job");
    let second = rig.opened(BOB, first.ino, libc::O_RDWR);
    assert_eq!(rig.lock(ALICE, whole(first, libc::F_WRLCK)), Ok(()));
    let end = rig.begin_lock(BOB, whole(second, libc::F_WRLCK));
    let given_up = block_on(rig.0.ioctl(BOB, second.ino, second.fh, file_locks::GIVE_UP));
    assert_eq!(given_up, Ok(Vec::new()));
    assert_eq!(end.recv_timeout(PATIENCE), Ok(Err(Errno::EAGAIN)));
}

#[test]
fn an_ioctl_returns_the_token_of_an_open_file() {
    let rig = Rig::new();
    let file = rig.created(ALICE, "job");
    let token = || block_on(rig.0.ioctl(ALICE, file.ino, file.fh, file_locks::TOKEN));
    assert_eq!(errno(token()), libc::ESTALE, "it is not locked");
    assert_eq!(rig.lock(ALICE, whole(file, libc::F_WRLCK)), Ok(()));
    let stored_token =
        u64::from_ne_bytes(token().expect("it is locked").try_into().expect("8 bytes"));
    let shown = rig.xattr(file.ino, "user.latchfs.token").expect("it is held");
    assert_eq!(stored_token.to_string(), shown);
    assert_eq!(errno(block_on(rig.0.ioctl(ALICE, file.ino, file.fh, 7))), libc::ENOTTY);
}

#[test]
fn byte_ranges_are_locked_separately_and_getlk_reports_their_holder() {
    let rig = Rig::new();
    let file = rig.created(ALICE, "job");
    assert_eq!(rig.lock(ALICE, byte(file, 11, 1, libc::F_WRLCK)), Ok(()));
    assert_eq!(rig.lock(ALICE, byte(file, 12, 2, libc::F_WRLCK)), Ok(()));
    assert_eq!(errno(rig.lock(ALICE, byte(file, 12, 1, libc::F_WRLCK))), libc::EAGAIN);
    let get = |asked| block_on(rig.0.getlk(ALICE, asked));
    let found = LockFound { start: 1, end: 1, kind: libc::F_WRLCK, pid: 11 };
    assert_eq!(get(byte(file, 12, 1, libc::F_WRLCK)), Ok(found));
    let free = get(byte(file, 12, 3, libc::F_WRLCK)).expect("it is asked");
    assert_eq!(free.kind, libc::F_UNLCK);
}

#[test]
fn waiting_in_a_cycle_is_a_deadlock() {
    let rig = Rig::new();
    let file = rig.created(ALICE, "job");
    assert_eq!(rig.lock(ALICE, byte(file, 11, 1, libc::F_WRLCK)), Ok(()));
    assert_eq!(rig.lock(ALICE, byte(file, 12, 2, libc::F_WRLCK)), Ok(()));
    let first = rig.begin_lock(ALICE, byte(file, 11, 2, libc::F_WRLCK));
    assert!(first.try_recv().is_err(), "it waits");
    let second = rig.begin_lock(ALICE, byte(file, 12, 1, libc::F_WRLCK));
    assert_eq!(second.recv_timeout(PATIENCE), Ok(Err(Errno::EDEADLK)));
    assert_eq!(rig.lock(ALICE, byte(file, 12, 2, libc::F_UNLCK)), Ok(()));
    assert_eq!(first.recv_timeout(PATIENCE), Ok(Ok(())));
}

#[test]
fn another_program_of_the_same_user_can_not_remove_what_an_open_file_locked() {
    let rig = Rig::new();
    let file = rig.created(ALICE, "job");
    block_on(rig.0.unlink(ALICE, at("job"))).expect("it is its own");
    assert_eq!(rig.lock(ALICE, whole(file, libc::F_WRLCK)), Ok(()));
    assert_eq!(errno(block_on(rig.0.unlink(ALICE, at("job")))), libc::EBUSY);
}

#[test]
fn control_files_can_not_be_locked() {
    let rig = Rig::new();
    let ino = rig.walk(ALICE, ".latchfs/README");
    let fh = rig.open(ALICE, ino, libc::O_RDONLY).expect("it opens").fh;
    assert_eq!(errno(rig.lock(ALICE, whole(OpenedFile { ino, fh }, libc::F_RDLCK))), libc::EINVAL);
}

#[test]
fn control_files_are_opened_according_to_their_kind() {
    let rig = Rig::new();
    let readme = rig.walk(ALICE, ".latchfs/README");
    assert_eq!(errno(rig.open(ALICE, readme, libc::O_WRONLY)), libc::EACCES);
    assert_eq!(rig.stat(readme).expect("it is there").attr.perm, 0o444);
    assert_eq!(errno(rig.open(ALICE, rig.walk(ALICE, ".latchfs"), libc::O_RDONLY)), libc::EISDIR);
    assert_eq!(errno(rig.open(ALICE, TOP, libc::O_RDONLY)), libc::EISDIR);
    assert_eq!(errno(rig.lookup_in(ALICE, readme, "x")), libc::ENOTDIR);
    assert!(rig.cat(ALICE, ".latchfs/README").expect("it is read").contains("mkdir"));
    assert!(rig.cat(ALICE, ".latchfs/metrics").expect("it is read").contains("latchfs_open_files"));
}

#[test]
fn a_held_directory_has_facts_and_they_go_with_it() {
    let rig = Rig::new();
    let build = rig.mkdir(ALICE, "build").expect("it is free").attr.ino.0;
    let holder = rig.cat(BOB, "build/holder").expect("it is read");
    assert_eq!(rig.xattr(build, "user.latchfs.holder").map(|holder| holder + "\n"), Ok(holder));
    assert_eq!(errno(block_on(rig.0.unlink(ALICE, in_dir(build, "holder")))), libc::EPERM);
    assert_eq!(errno(rig.lookup_in(ALICE, build, "other")), libc::ENOENT);
    assert_eq!(rig.rmdir(ALICE, "build"), Ok(()), "facts are no locks below");
}

#[test]
fn the_control_file_answers_in_json() {
    let rig = Rig::new();
    let answer = rig.ctl(ALICE, r#"{"do":"acquire","name":"job","ttl":"60s"}"#);
    assert_eq!((&answer["ok"], &answer["status"]["phase"]), (&true.into(), &"held".into()));
    let refused = rig.ctl(BOB, r#"{"do":"acquire","name":"job"}"#);
    assert_eq!((&refused["ok"], &refused["kind"]), (&false.into(), &"E_LOCK_CONFLICT".into()));
    assert_eq!(rig.ctl(BOB, "nonsense")["kind"], "E_INVALID");
    assert_eq!(rig.ctl(BOB, r#"{"do":"dance"}"#)["ok"], false);
    let stolen = rig.ctl(BOB, r#"{"do":"steal","name":"job","reason":"why not"}"#);
    assert_eq!(stolen["kind"], "E_DENIED", "only root and the mounter");
    let list = rig.ctl(BOB, r#"{"do":"list"}"#);
    assert_eq!(list["locks"].as_array().map(Vec::len), Some(1));
    assert_eq!(rig.ctl(ALICE, r#"{"do":"release","name":"job"}"#)["ok"], true);
}

#[test]
fn a_waiting_request_is_answered_when_the_lock_is_granted() {
    let rig = Rig::new();
    rig.mkdir(ALICE, "job").expect("it is free");
    let ino = rig.walk(BOB, ".latchfs/ctl");
    let fh = rig.open(BOB, ino, libc::O_RDWR).expect("it opens").fh;
    let request = r#"{"do":"acquire","name":"job","wait":true}"#;
    assert_eq!(rig.write(BOB, fh, request), Ok(request.len() as u32), "the write is done");
    let answer = rig.begin_read(BOB, fh);
    assert!(answer.try_recv().is_err(), "the read waits");
    assert_eq!(rig.rmdir(ALICE, "job"), Ok(()));
    let answer = answer.recv_timeout(PATIENCE).expect("it ends").expect("there is an answer");
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!((&answer["ok"], &answer["status"]["holder"]), (&true.into(), &answer["you"]));
}

#[test]
fn a_read_of_a_wait_file_returns_when_the_lock_is_granted() {
    let rig = Rig::new();
    rig.mkdir(ALICE, "job").expect("it is free");
    let ino = rig.walk(BOB, ".latchfs/wait/job");
    let fh = rig.open(BOB, ino, libc::O_RDONLY).expect("it opens").fh;
    assert_eq!(errno(rig.read_at(BOB, fh, 0, libc::O_NONBLOCK)), libc::EAGAIN);
    let read = rig.begin_read(BOB, fh);
    assert!(read.try_recv().is_err(), "it waits");
    assert_eq!(rig.rmdir(ALICE, "job"), Ok(()));
    let status = read.recv_timeout(PATIENCE).expect("it ends").expect("the lock is there");
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    assert_eq!(status["phase"], "held");
    assert_eq!(errno(rig.mkdir(ALICE, "job")), libc::EEXIST, "it is the reader's");
}

/// The test runs on a thread of its own with a timeout: a deadlock would occur if an event were
/// handled while the mutex is held.
#[test]
fn a_lease_that_is_bound_to_a_process_can_be_released() {
    let (rig, (send, done)) = (Rig::new(), channel());
    let own = Requester { pid: std::process::id(), ..ROOT };
    std::thread::spawn(move || {
        let acquire = format!(r#"{{"do":"acquire","name":"job","pid":{}}}"#, own.pid);
        let bound = rig.ctl(own, &acquire)["ok"].clone();
        let pages = rig.cat(own, ".latchfs/server");
        let released = rig.ctl(own, r#"{"do":"release","name":"job"}"#)["ok"].clone();
        send.send((bound, released, pages, rig.cat(own, ".latchfs/server"))).ok();
    });
    let (bound, released, before, after) = done.recv_timeout(PATIENCE).expect("it returns");
    assert_eq!((bound, released), (true.into(), true.into()));
    let bound_in = |page: Done<String>| -> Value {
        let page: Value = serde_json::from_str(&page.expect("it is read")).expect("JSON");
        page["bound_to_processes"].clone()
    };
    assert_eq!((bound_in(before), bound_in(after)), (1.into(), 0.into()));
}

#[test]
fn closing_a_file_in_wait_leaves_the_queue() {
    let rig = Rig::new();
    let dir = rig.mkdir(ALICE, "job").expect("it is free").attr.ino.0;
    let ino = rig.walk(BOB, ".latchfs/wait/job");
    let fh = rig.open(BOB, ino, libc::O_RDONLY).expect("it opens").fh;
    let read = rig.begin_read(BOB, fh);
    assert_eq!(rig.xattr(dir, "user.latchfs.waiters").as_deref(), Ok("1"));
    rig.0.release(ino, fh);
    assert_eq!(rig.xattr(dir, "user.latchfs.waiters").as_deref(), Ok("0"));
    drop(read);
}

#[test]
fn events_are_read_as_they_happen() {
    let rig = Rig::new();
    let ino = rig.walk(BOB, ".latchfs/events");
    let opened = rig.open(BOB, ino, libc::O_RDONLY).expect("it opens");
    assert!(opened.flags.contains(OpenedFlags::FOPEN_NONSEEKABLE));
    assert_eq!(errno(rig.read_at(BOB, opened.fh, 0, libc::O_NONBLOCK)), libc::EAGAIN);
    let read = rig.begin_read(BOB, opened.fh);
    assert!(read.try_recv().is_err(), "nothing has happened");
    rig.mkdir(ALICE, "job").expect("it is free");
    let line = read.recv_timeout(PATIENCE).expect("it ends").expect("there is an event");
    let line = String::from_utf8(line).expect("UTF-8");
    assert!(line.contains("granted") && line.contains("\"job\""), "{line}");
}

#[test]
fn poll_reports_a_change_until_the_file_is_read() {
    let rig = Rig::new();
    let OpenedFile { ino, fh: own } = rig.created(ALICE, "job");
    let fh = rig.open(BOB, ino, libc::O_RDONLY).expect("it opens").fh;
    let wanted = PollEvents::POLLIN | PollEvents::POLLPRI;
    let (send, woken) = channel();
    let waker = PollWaker::new(move || {
        send.send(()).ok();
        Ok(())
    });
    assert_eq!(block_on(rig.0.poll(fh, wanted, Some(waker))), Some(PollEvents::POLLIN));
    assert!(woken.try_recv().is_err(), "nothing has changed");
    rig.0.release(ino, own);
    block_on(rig.0.unlink(ALICE, at("job"))).expect("it is its own");
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(()));
    assert_eq!(block_on(rig.0.poll(fh, wanted, None)), Some(wanted));
    rig.read(BOB, fh).expect("it is read");
    assert_eq!(block_on(rig.0.poll(fh, wanted, None)), Some(PollEvents::POLLIN));
    assert_eq!(block_on(rig.0.poll(999, wanted, None)), Some(PollEvents::POLLERR));
}

#[test]
fn why_shows_only_the_readers_own_last_refusal() {
    let rig = Rig::new();
    rig.mkdir(ALICE, "build").expect("it is free");
    assert_eq!(errno(rig.rmdir(BOB, "build")), libc::EPERM);
    let why: Value =
        serde_json::from_str(&rig.cat(BOB, ".latchfs/why").expect("it is read")).expect("JSON");
    assert_eq!((&why["operation"], &why["errno"]), (&"rmdir".into(), &"EPERM".into()));
    let nothing = rig.cat(ALICE, ".latchfs/why").expect("it is read");
    assert!(nothing.contains("no request was refused"), "{nothing}");
}

#[test]
fn unsupported_operations_fail_with_the_documented_errno() {
    let rig = Rig::new();
    let codes = [
        (Unsupported::Mknod, libc::EPERM),
        (Unsupported::Fallocate, libc::ENOTSUP),
        (Unsupported::Lseek, libc::EINVAL),
        (Unsupported::CopyFileRange, libc::EXDEV),
    ];
    for (operation, code) in codes {
        assert_eq!(rig.0.unsupported(operation).code(), code, "{operation:?}");
    }
    let stats = rig.0.statfs();
    assert_eq!((stats.files, stats.files_free, stats.name_bytes), (1 << 20, 1 << 20, 255));
    rig.mkdir(ALICE, "build").expect("it is free");
    assert_eq!(rig.0.statfs().files_free, (1 << 20) - 1);
}

#[test]
fn one_user_can_not_open_more_than_its_share() {
    let rig = Rig::new();
    for _ in 0..512 {
        rig.0.opendir(ALICE, TOP).expect("its share");
    }
    assert_eq!(errno(rig.0.opendir(ALICE, TOP)), libc::ENOSPC);
    assert!(rig.0.opendir(BOB, TOP).is_ok(), "others have theirs");
}

/// An engine in this process answers so fast that caching gains nothing, so the kernel caches
/// nothing.
#[test]
fn the_kernel_caches_nothing_with_an_engine_in_this_process() {
    let rig = Rig::new();
    let (invalidator, stale): (_, Receiver<Stale>) = Invalidator::for_test();
    rig.0.attached(invalidator);
    rig.mkdir(ALICE, "build").expect("it is free");
    let entry = rig.lookup(BOB, "build").expect("it is held");
    assert!(entry.entry_ttl.is_zero() && entry.attr_ttl.is_zero());
    assert_eq!(errno(rig.lookup(BOB, "other")), libc::ENOENT);
    assert_eq!(rig.rmdir(ALICE, "build"), Ok(()));
    assert!(stale.try_recv().is_err());
}

#[test]
fn the_locks_of_open_files_are_free_when_the_mount_is_gone() {
    let service = service();
    let (gone, stays) = (Rig::on(&service), Rig::on(&service));
    let file = gone.created(ALICE, "job");
    block_on(gone.0.unlink(ALICE, at("job"))).expect("it is its own");
    assert_eq!(gone.lock(ALICE, whole(file, libc::F_WRLCK)), Ok(()));
    assert_eq!(errno(stays.mkdir(BOB, "job")), libc::EEXIST);
    gone.0.ended();
    assert!(stays.mkdir(BOB, "job").is_ok());
}

/// A lock service that shows no lock from the grant of the lock `lock` on, until a test ends that.
struct SilentAfterGrant {
    engine: Local,
    is_silent: AtomicBool,
}

impl LockService for SilentAfterGrant {
    fn submit(&self, command: Command, retry: Retry) -> Call<Answer> {
        let grants = matches!(&command.op, Op::Acquire(ask) if ask.name.as_str() == "lock");
        let call = self.engine.submit(command, retry);
        self.is_silent.fetch_or(grants, Ordering::SeqCst);
        call
    }

    fn view(&self, name: &LockName, retry: Retry) -> Call<CacheableView> {
        if self.is_silent.load(Ordering::SeqCst) {
            return Call::answered(Err(Unavailable::Closing));
        }
        self.engine.view(name, retry)
    }

    forward_to_engine!();
}

forward_status_to_engine!(SilentAfterGrant);

/// In an earlier version the lock stayed held, although the program had got the answer that it was
/// not.
#[test]
fn a_link_that_fails_after_its_grant_leaves_no_lease() {
    let engine = Local::in_memory(Rules::default()).expect("it starts");
    let service = Arc::new(SilentAfterGrant { engine, is_silent: AtomicBool::new(false) });
    let rig = Rig::on(&(Arc::clone(&service) as Arc<dyn LockService>));
    let OpenedFile { ino, .. } = rig.created(ALICE, "file");
    assert!(rig.link(ALICE, ino, "lock").is_err(), "it can't look at the lock");
    assert!(service.is_silent.swap(false, Ordering::SeqCst), "the lock was granted");
    assert_eq!(errno(rig.lookup(BOB, "lock")), libc::ENOENT);
    rig.mkdir(BOB, "lock").expect("it is free");
}
