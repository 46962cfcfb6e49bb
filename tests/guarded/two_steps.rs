//! Names on a storage that several machines share: directories, links, devices, renames and
//! removals go through the stage of their tenure, so that none of them lands after its end.
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testing::{Guard, Scratch, Server, Stopped, no_other_stops, pause, rounds, run, shell};

/// Changes names again and again, each kind of change in turn, until one fails.
fn change_names(dir: &Path) -> io::Error {
    let at = |name: &str| dir.join(name);
    let change = |number: u64| -> io::Result<()> {
        let fresh = |kind: &str| at(&format!("{kind}{number}"));
        fs::create_dir(fresh("dir"))?;
        symlink(number.to_string(), fresh("symlink"))?;
        fs::hard_link(at("file"), fresh("link"))?;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            fresh("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )?;
        File::options().append(true).create_new(true).open(fresh("new").with_extension("log"))?;
        fs::rename(fresh("symlink"), at("renamed"))?;
        fs::remove_file(fresh("link"))?;
        fs::remove_file(fresh("fifo"))?;
        fs::remove_file(fresh("new").with_extension("log"))?;
        // An error of the close would be ignored.
        let mut saved = File::create(fresh("saved"))?;
        saved.write_all(b"whole")?;
        saved.sync_all()?;
        drop(saved);
        fs::remove_file(fresh("saved"))?;
        fs::rename(fresh("dir"), at(&format!("moved{number}")))?;
        fs::remove_dir(at(&format!("moved{number}")))
    };
    (0..).map(change).find_map(Result::err).expect("the tenure ends")
}

/// Returns all names of a directory but the guard's own, each with its inode and its number of
/// names. It starts no program: that would close its copies of the files of a stopped guard.
fn names_in(dir: &Path) -> Vec<String> {
    let mut names = vec![];
    let mut dirs = vec![dir.to_owned()];
    while let Some(at) = dirs.pop() {
        for entry in fs::read_dir(&at).expect("there") {
            let path = entry.expect("readable").path();
            if path.ends_with(".latchfs") {
                continue;
            }
            let found = fs::symlink_metadata(&path).expect("there");
            let (inode, links) = (found.ino(), found.nlink());
            names.push(format!("{} {inode} {links}", path.display()));
            if found.is_dir() {
                dirs.push(path);
            }
        }
    }
    names.sort();
    names
}

/// The guard is stopped at a random moment of a change of names: often between its check and the
/// system call that changes the folder.
#[test]
fn no_name_is_made_or_removed_after_the_end_of_a_tenure() {
    let _alone = no_other_stops();
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let [first, second] = ["m1", "m2"].map(|client| {
        Guard::start(&scratch, client, &["--client", client, "--shared-storage", "--ttl", "2s"])
    });
    let mut random = File::open("/dev/urandom").expect("there");
    fs::write(scratch.folder().join("file"), "content").expect("written");
    for round in 0..rounds(3, 100) {
        first.request("take", &[]).ok();
        let mut byte = [0];
        random.read_exact(&mut byte).expect("readable");
        let view = first.view.clone();
        let changes = std::thread::spawn(move || change_names(&view));
        pause(Duration::from_micros(20_000 + u64::from(byte[0]) * 37));
        let stopped = Stopped::of(&first);
        second.take_here();
        // The files that the fence has left, and a change of the new tenure.
        fs::create_dir(second.path("of m2")).expect("held");
        let before = names_in(&scratch.folder());
        drop(stopped);
        let refused = changes.join().expect("no panic");
        let wanted = [Some(libc::ESTALE), Some(libc::EROFS)];
        assert!(wanted.contains(&refused.raw_os_error()), "round {round}: {refused}");
        assert_eq!(names_in(&scratch.folder()), before, "round {round}");
        assert!(before.iter().any(|name| name.contains("/file ")), "round {round}: {before:?}");
        shell(&second.view, "rm -rf dir* moved* symlink* link* fifo* new* saved* renamed of*").ok();
        second.request_here("{\"do\": \"give\"}");
    }
    assert_eq!(names_in(&scratch.folder()).len(), 1, "nothing is left but one file");
}

/// A file that is made in a stage gets the group, the mode and the ACL that it would get at its
/// place.
#[test]
fn names_inherit_what_their_directory_passes_on() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let guard = Guard::start(&scratch, "view", &["--client", "m1", "--shared-storage"]);
    let prepare = "mkdir plain setgid acl; chmod 777 plain; chmod 2777 setgid; \
                   chgrp 4005 setgid; chmod 777 acl; setfacl -d -m u:4009:rwx,g::r-x,o::--- acl";
    let make = "umask 027; for d in plain setgid acl; do mkdir $d/dir; mkfifo $d/fifo; \
                ln -s x $d/symlink; echo 1 > $d/file; ln $d/file $d/link; \
                echo 1 >> $d/in.log; mkdir $d/dir/below; done";
    let tell = "getfacl -R -n plain setgid acl; stat -c '%n %F %a %u %g %h' */* */*/*";
    let own = scratch.join("own");
    fs::create_dir(&own).expect("made");
    for dir in [scratch.folder(), own.clone()] {
        shell(&dir, prepare).ok();
    }
    let as_user = |dir: &Path| {
        let user = ["--reuid=4001", "--regid=4001", "--clear-groups", "sh", "-c", make];
        run(Command::new("setpriv").args(user).current_dir(dir)).ok();
        shell(dir, tell).ok()
    };
    let natively = as_user(&own);
    assert!(natively.contains("user:4009:rwx"), "{natively}");
    assert_eq!(as_user(&guard.view), natively);
    assert_eq!(shell(&scratch.folder(), tell).ok(), natively);
    let exists = shell(&guard.view, "mkdir plain/dir").fails();
    assert!(exists.contains("File exists"), "{exists}");
    let nowhere = shell(&guard.view, "rm plain/nowhere").fails();
    assert!(nowhere.contains("No such file"), "{nowhere}");
    let full = shell(&guard.view, "rmdir plain/dir").fails();
    assert!(full.contains("not empty"), "{full}");
    let no_dir = shell(&guard.view, "rmdir plain/file").fails();
    assert!(no_dir.contains("Not a directory"), "{no_dir}");
    shell(&guard.view, "rmdir plain/dir/below plain/dir").ok();
    assert!(!scratch.folder().join("plain/dir").exists());
    guard.request("give", &[]).ok();
    guard.end();
}

/// No rename that exchanges two names can go through a stage.
#[test]
fn an_exchange_of_names_is_refused_on_shared_storage() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let guard = Guard::start(&scratch, "view", &["--client", "m1", "--shared-storage"]);
    shell(&guard.view, "echo 1 > a; echo 2 > b").ok();
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    let cwd = rustix::fs::CWD;
    let exchanged = rustix::fs::renameat_with(cwd, guard.path("a"), cwd, guard.path("b"), flags);
    assert_eq!(exchanged, Err(rustix::io::Errno::INVAL));
    assert_eq!(fs::read_to_string(guard.path("a")).expect("there"), "1\n");
    guard.end();
}
