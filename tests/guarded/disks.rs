//! Disks that are full or fail: a small file system on a loop device holds the folder.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::{Guard, Scratch, Server, python, run, shell};

/// A file system of its own for one test, which ends after the guard and the scratch directory.
pub(crate) struct Disk {
    pub(crate) dir: PathBuf,
    /// The places where something is mounted, in the order of their mounts.
    mounts: Vec<PathBuf>,
}

impl Disk {
    /// Makes an ext4 file system of some megabytes, whose image lies in a tmpfs of `room`
    /// megabytes.
    pub(crate) fn new(name: &str, megabytes: u32, room: u32) -> Self {
        Self::with_reserve(name, megabytes, room, 0)
    }

    /// Makes such a file system, of which only root may use the last `reserve` percent.
    pub(crate) fn with_reserve(name: &str, megabytes: u32, room: u32, reserve: u32) -> Self {
        let dir = std::env::temp_dir().join(format!("latchfs-{name}-{}", std::process::id()));
        let (store, disk) = (dir.join("store"), dir.join("disk"));
        fs::create_dir_all(&store).expect("made");
        fs::create_dir_all(&disk).expect("made");
        let mut made = Self { dir: dir.clone(), mounts: vec![store] };
        shell(&dir, &format!("mount -t tmpfs -o size={room}M tmpfs store")).ok();
        let image = format!(
            "truncate -s {megabytes}M store/image
             mkfs.ext4 -q -b 4096 -m {reserve} -O ^has_journal -E nodiscard store/image
             mount -o loop,errors=continue store/image disk"
        );
        shell(&dir, &image).ok();
        made.mounts.push(disk);
        made
    }

    pub(crate) fn scratch(&self) -> Scratch {
        self.scratch_with(&["--alone"])
    }

    pub(crate) fn scratch_with(&self, options: &[&str]) -> Scratch {
        let scratch = Scratch::at(self.dir.join("disk/test"));
        fs::create_dir_all(scratch.folder()).expect("made");
        scratch.init(options);
        scratch
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for mount in self.mounts.iter().rev() {
            let _ = Command::new("umount").arg(mount).status();
        }
        testing::remove_tree(&self.dir);
    }
}

/// The content of a file that is in the folder before a disk fails.
fn old() -> Vec<u8> {
    b"old version\n".repeat(40_000)
}

/// Returns the size of the only lost file, and its description.
fn only_lost(guard: &Guard, scratch: &Scratch) -> (u64, String) {
    let listed = guard.request("lost", &[]).ok();
    let state = fs::read_dir(scratch.join("state")).expect("there").next().expect("one");
    let lost = state.expect("readable").path().join("lost");
    let files: Vec<_> = fs::read_dir(lost).expect("there").flatten().collect();
    let files = files.iter().filter(|file| !file.file_name().to_string_lossy().contains('.'));
    let sizes: Vec<_> = files.map(|file| file.metadata().expect("there").len()).collect();
    assert_eq!(sizes.len(), 1, "{listed}");
    (sizes[0], listed)
}

/// Ways in which a program saves more than the disk holds. Each must fail.
const TOO_MUCH: [(&str, &str); 6] = [
    ("cp", "cp ../../../store/huge data"),
    ("dd", "dd if=/dev/zero of=data bs=1M count=64 conv=fsync status=none"),
    ("a shell", "cat ../../../store/huge > data"),
    ("small writes", "dd if=/dev/zero of=data bs=4k conv=fsync status=none"),
    (
        "a short write",
        "python3 -c \"
import os
f = os.open('data', os.O_WRONLY | os.O_TRUNC)
assert 0 < os.write(f, b'x' * (1 << 26)) < 1 << 26
os.close(f)\"",
    ),
    (
        "fallocate",
        "python3 -c \"
import os
f = os.open('data', os.O_WRONLY | os.O_TRUNC)
os.write(f, b'begun')
os.posix_fallocate(f, 0, 1 << 26)\"",
    ),
];

#[test]
fn a_full_disk_leaves_the_old_version_and_keeps_the_new_one_as_far_as_it_fits() {
    let disk = Disk::new("full", 24, 80);
    shell(&disk.dir, "head -c 40M /dev/urandom > store/huge").ok();
    for (name, script) in TOO_MUCH {
        let scratch = disk.scratch();
        let guard = Guard::start(&scratch, "view", &[]);
        fs::write(guard.path("data"), old()).expect("written");
        let said = shell(&guard.view, script).fails();
        assert!(said.contains("No space left"), "{name}: {said}");
        let real = scratch.folder().join("data");
        assert_eq!(fs::read(&real).expect("there"), old(), "{name}");
        let (size, listed) = only_lost(&guard, &scratch);
        assert!(listed.contains("a write to the file failed"), "{name}: {listed}");
        assert!(size > 0 && (name == "fallocate" || size > 4 << 20), "{name}: {size} bytes");
        // With room again, a save succeeds, and the program sees no error of the past.
        guard.request("lost", &["--drop", "1"]).ok();
        fs::write(guard.path("data"), "new").expect("written");
        assert_eq!(fs::read_to_string(&real).expect("there"), "new", "{name}");
        guard.end();
    }
}

/// A device that has become smaller accepts no writes behind its end, so syncs fail with EIO.
#[test]
fn a_failing_disk_publishes_nothing_that_it_did_not_accept() {
    let disk = Disk::new("failing", 64, 80);
    let scratch = disk.scratch();
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("data"), old()).expect("written");
    shell(&guard.view, "sync data; sync .").ok();
    let resize = |megabytes: u32| {
        let script = "sync -f disk || true; \
                      truncate -s MM store/image; losetup -c $(findmnt -no SOURCE disk)";
        shell(&disk.dir, &script.replace("MM", &format!("{megabytes}M"))).ok();
    };
    resize(12);
    let program = "
import os
f = os.open('data', os.O_WRONLY | os.O_TRUNC)
for _ in range(90): os.write(f, b'new version\\n' * 20000)
errors = []
for what in (os.fsync, os.close):
    try: what(f)
    except OSError as error: errors.append(error.errno)
print(errors)
assert errors and errors[0] == 5, errors
";
    println!("fsync and close: {}", python(0, &guard.view, program).ok());
    let real = scratch.folder().join("data");
    assert_eq!(fs::read(&real).expect("there"), old());
    assert_eq!(fs::read(guard.path("data")).expect("there"), old());
    let (size, listed) = only_lost(&guard, &scratch);
    assert!(listed.contains("a write to the file failed"), "{listed}");
    assert_eq!(size, 90 * 20_000 * 12, "what the program wrote can still be read");
    resize(64);
    guard.request("lost", &["--drop", "1"]).ok();
    let program = "
import os
f = os.open('data', os.O_WRONLY | os.O_TRUNC)
os.write(f, b'new'); os.fsync(f); os.close(f)";
    python(0, &guard.view, program).ok();
    assert_eq!(fs::read_to_string(&real).expect("there"), "new");
    guard.end();
}

/// A limit of the program itself.
#[test]
fn a_file_that_exceeds_the_limit_of_its_program_leaves_the_old_version() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("data"), "old").expect("written");
    let limited = |script: &str| {
        let mut command = Command::new("prlimit");
        command.args(["--fsize=65536", "--core=0", "bash", "-ec", script]);
        run(command.current_dir(&guard.view as &Path))
    };
    // The signal ends the program.
    let output = limited("exec head -c 1000000 /dev/zero > data");
    assert_eq!(output.code, 128 + libc::SIGXFSZ, "{output:?}");
    let real = scratch.folder().join("data");
    testing::soon("a lost file", || {
        Some(guard.request("lost", &[]).ok()).filter(|text| text.contains("a signal ended"))
    });
    assert_eq!(fs::read_to_string(&real).expect("there"), "old");
}

/// A user makes space on a full disk by removing files, although each removal is logged for the
/// other machines, and the first one announced.
#[test]
fn files_are_removed_from_a_full_disk() {
    let disk = Disk::new("removing", 24, 64);
    let elsewhere = Scratch::with_folder();
    let server = Server::of(&elsewhere);
    let scratch = disk.scratch_with(&["--server", &server.url, "--client", "m1"]);
    let guard = Guard::start(&scratch, "view", &["--client", "m1", "--settle", "1h"]);
    let file = |number: u32| guard.path(&format!("a file with a long name {number}"));
    (0..500).for_each(|number| fs::write(file(number), "").expect("ready"));
    guard.request("give", &[]).ok();
    guard.request("take", &[]).ok();
    let to_the_end = "dd if=/dev/zero of=full bs=1M status=none || dd if=/dev/zero of=rest bs=1k \
                status=none || true";
    shell(&scratch.folder(), to_the_end).ok();
    for number in 0..500 {
        fs::remove_file(file(number)).unwrap_or_else(|error| panic!("{number}: {error}"));
    }
    fs::remove_file(scratch.folder().join("full")).expect("space again");
    guard.request("give", &[]).ok();
}
