//! Open files and directories whose name is gone, on a view and on the folder's own file system.
use std::fs;
use testing::{Guard, Scratch, python};

/// Opens a directory, works in it, and removes it by rmdir or by a rename of another one.
const REMOVED_DIRECTORY: &str = "
import os, stat
for how in ('rmdir', 'rename'):
    os.mkdir('old'); os.mkdir('other')
    directory, path = os.open('old', os.O_RDONLY), os.open('old', os.O_PATH)
    start = os.open('.', os.O_RDONLY)
    os.chdir('old')
    if how == 'rmdir': os.rmdir('../old')
    else: os.rename('../other', '../old')
    for found in os.fstat(directory), os.fstat(path), os.stat('.'):
        print(how, stat.filemode(found.st_mode), found.st_nlink)
    try: os.mkdir('inside')
    except OSError as error: print(how, error.errno)
    os.chdir(start)
    if how == 'rmdir': os.mkdir('old')
    os.mkdir('old/inside')
    print(how, os.listdir('old'), os.stat('old').st_ino != os.fstat(directory).st_ino)
    os.rmdir('old/inside'); os.rmdir('old')
    if how == 'rmdir': os.rmdir('other')
    for fd in directory, path, start: os.close(fd)
";

#[test]
fn a_removed_directory_keeps_its_attributes_while_it_is_open() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let plain = scratch.join("plain");
    fs::create_dir(&plain).expect("made");
    let guard = Guard::start(&scratch, "view", &[]);
    let on_ext4 = python(0, &plain, REMOVED_DIRECTORY).ok();
    assert!(on_ext4.contains("rename drwxr-xr-x 0"), "{on_ext4}");
    assert_eq!(python(0, &guard.view, REMOVED_DIRECTORY).ok(), on_ext4);
}
