//! Unmodified programs save files and read them again, on a view and on the folder's own file
//! system: the results are the same, and a reader of the folder sees whole versions only.
use crate::recorder::{Recorder, Version, Versions, versions_in};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use testing::{Guard, Scratch, rounds, shell};

/// The properties in which the results of a program agree on two file systems.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Same {
    /// Names, types, permissions, links, sizes and contents.
    All,
    /// Names, types and permissions: the content holds random bytes or times.
    Names,
}
use Same::{All, Names};

/// A program, and commands that save with it: each is run by itself, and the folder holds whole
/// versions after it. The file `data` has many lines. The last field names files of which a reader
/// may see other versions: the program changes them in place, as a database does, or saves them
/// several times in one command.
pub(crate) struct Program(
    pub(crate) &'static str,
    pub(crate) &'static [&'static str],
    Same,
    &'static [&'static str],
);

/// Editors, archivers and compressors.
pub(crate) const EDITORS: &[Program] = &[
    Program(
        "vim",
        &[
            "vim -Nu NONE -es -c 'set writebackup backupcopy=no' -c '%s/line/LINE/' -c wq data",
            "vim -Nu NONE -es -c 'set backup backupcopy=no' -c '$d' -c wq data",
        ],
        All,
        &[".data.sw*"],
    ),
    // Without a new file, vim truncates the open file before it writes.
    Program(
        "vim without a new file",
        &[
            "vim -Nu NONE -es -c 'set backupcopy=yes writebackup' -c '%s/line/Line/' -c wq data",
            "vim -Nu NONE -es -c 'set nowritebackup' -c '$d' -c wq data",
        ],
        All,
        &[".data.sw*"],
    ),
    Program("ex", &["printf '%s\\n' '1,$s/line/ex/' wq | ex -s data"], All, &[".data.sw*"]),
    Program("nano", &["python3 $IN/nano.py"], All, &[]),
    Program(
        "emacs",
        &[
            "emacs -Q --batch data --eval '(progn (goto-char 1) (insert \"first\") \
        (save-buffer))'",
            "emacs -Q --batch data --eval '(progn (setq backup-by-copying t \
        make-backup-files t version-control t) (insert \"more\") (save-buffer))'",
        ],
        All,
        &[".#data"],
    ),
    Program("ed", &["printf '%s\\n' ',s/line/ed/' w q | ed -s data"], All, &[]),
    Program("sed -i", &["sed -i s/line/sed/ data", "sed -i.bak s/sed/gnu/ data"], All, &[]),
    Program(
        "perl -i",
        &["perl -pi -e s/line/perl/ data", "perl -pi.bak -e s/perl/Perl/ data"],
        All,
        &[],
    ),
    Program(
        "awk",
        &["awk '{ print $2 > \"out\" }' data", "gawk -i inplace '{ print $1 }' data"],
        All,
        &[],
    ),
    Program(
        "cp",
        &[
            "cp data copy",
            "cp -p $IN/new copy",
            "cp --remove-destination $IN/new copy",
            "cp -a \
        $IN/tree tree",
            "cp -b data copy",
            "cp --reflink=auto --sparse=always data sparse",
        ],
        All,
        &[],
    ),
    Program(
        "mv",
        &["mv data moved", "mv $IN/moving moved", "mkdir dir && mv moved dir/"],
        All,
        &[],
    ),
    Program(
        "ln",
        &["ln data hard", "ln -s data soft", "ln -f $PWD/hard data || true", "ln -sf hard soft"],
        All,
        &[],
    ),
    Program("append", &["echo more >> data", "echo begun >> fresh"], All, &["data", "fresh"]),
    Program(
        "rsync",
        &["rsync -a $IN/tree/ tree", "rsync -a $IN/new data", "rsync -a --delete tree/ other"],
        All,
        &[],
    ),
    Program("rsync --inplace", &["rsync -a --inplace $IN/new data"], All, &["data"]),
    Program(
        "tar",
        &[
            "tar -cf all.tar -C $IN tree",
            "tar -xf all.tar",
            "tar --mtime=@0 -rf all.tar data",
            "tar -czf all.tgz \
        --mtime=@0 tree",
        ],
        All,
        &["all.tar"],
    ),
    Program(
        "cpio",
        &["(cd $IN && find tree | cpio -o --quiet) > all.cpio", "cpio -id --quiet < all.cpio"],
        All,
        &[],
    ),
    Program(
        "zip",
        &[
            "touch -d 2020-01-01 data && zip -qX all.zip data",
            "(cd $IN && zip -qrX - tree) > tree.zip",
            "unzip -qo tree.zip",
        ],
        All,
        &["zi??????", "all.zip"],
    ),
    Program("ar", &["ar rcD lib.a data", "ar rD lib.a $IN/new"], All, &["st??????", "lib.a"]),
    Program("gzip", &["gzip -nk data", "gunzip -f data.gz"], All, &[]),
    Program("xz", &["xz -0 data", "unxz data.xz"], All, &[]),
    Program("zstd", &["zstd -q --rm data", "zstd -q -d --rm data.zst"], All, &[]),
    Program("bzip2", &["bzip2 data", "bunzip2 data.bz2"], All, &[]),
];

/// Compilers, languages, and other tools.
pub(crate) const TOOLS: &[Program] = &[
    Program(
        "git",
        &[
            "git init -q . && git add data && git -c user.name=a -c user.email=b \
            commit -qm first",
            "git checkout -qb other && echo x > data && git -c user.name=a -c user.email=b commit \
            -qam second",
            "git checkout -q master && git gc -q && git fsck --strict && git status \
            --porcelain",
        ],
        Names,
        &["logs", "config", "index", "gc.pid", "*.lock"],
    ),
    Program(
        "python",
        &[
            "python3 -c \"import json; json.dump(list(range(9999)), \
            open('out.json','w'))\"",
            "python3 -c \"import os; f = open('tmp', 'w'); f.write('x' * 99999); f.flush(); \
            os.fsync(f.fileno()); \
         f.close(); os.replace('tmp', 'data')\"",
            "python3 -c \"import shutil; shutil.copy2('data', 'copy'); \
         shutil.make_archive('made', 'zip', '.', 'data')\"",
            "python3 -m py_compile \
            $IN/module.py && cp -r $IN/__pycache__ .",
        ],
        Names,
        &[],
    ),
    Program(
        "python mmap",
        &["python3 -c \"
import mmap
f = open('data', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:5] = b'LINES'; m.flush(); m.close(); \
            f.close()\""],
        All,
        &["data"],
    ),
    Program(
        "node",
        &["node -e 'const fs=require(\"fs\"); fs.writeFileSync(\"out\", \
            \"x\".repeat(99999)); \
        fs.renameSync(\"out\", \"data\"); fs.copyFileSync(\"data\", \"copy\"); \
            fs.appendFileSync(\"copy\", \"y\")'"],
        All,
        &["copy"],
    ),
    Program(
        "patch",
        &[
            "patch -s data $IN/data.patch",
            "patch -s -R -b data \
            $IN/data.patch",
        ],
        All,
        &[],
    ),
    Program("make", &["make -s -f $IN/makefile"], All, &[]),
    Program(
        "gcc",
        &[
            "gcc -o hello $IN/hello.c && test \"$(./hello)\" = hello",
            "gcc -c \
            $IN/hello.c && ld -r -o both.o hello.o",
        ],
        All,
        &["hello", "both.o", "hello.o"],
    ),
    Program(
        "cargo",
        &[
            "cargo -q new --vcs none hello",
            "cd hello && cargo -q build \
            --offline",
        ],
        Names,
        &["target"],
    ),
    Program("mktemp", &["t=$(mktemp ./t.XXXXXX) && cat data > $t && mv $t final"], All, &["t.*"]),
    Program(
        "dd",
        &[
            "dd if=$IN/new of=data conv=fsync status=none",
            "dd if=data of=part bs=512 \
            count=3 status=none",
        ],
        All,
        &[],
    ),
    Program(
        "dd in place",
        &["dd if=$IN/new of=data bs=100 seek=2 count=1 conv=notrunc \
            status=none"],
        All,
        &["data"],
    ),
    Program("install", &["install -m 640 $IN/new data", "install -D -m 600 data a/b/c"], All, &[]),
    Program("logrotate", &["logrotate -s $OUT/state-$MODE $IN/rotate.conf -f"], All, &[]),
    Program(
        "tee",
        &[
            "cat $IN/new | tee data copy > /dev/null",
            "cat $IN/new | tee -a data > \
            /dev/null",
        ],
        All,
        &["data"],
    ),
    Program(
        "split",
        &[
            "split -b 10000 data part.",
            "cat part.* > whole && cmp whole \
            data",
        ],
        All,
        &[],
    ),
    Program("sort", &["sort -r -o data data"], All, &[]),
    Program(
        "truncate",
        &[
            "truncate -s 100 data",
            "truncate -s 5000 \
            fresh",
        ],
        All,
        &["data", "fresh"],
    ),
    Program("touch", &["touch -d '2001-02-03 04:05:06.7' data", "touch fresh"], All, &[]),
    Program(
        "curl",
        &[
            "curl -s -o data file://$IN/new",
            "curl -s -O \
            file://$IN/new",
        ],
        All,
        &[],
    ),
    Program("wget", &["wget -q -O data $URL/new", "wget -q $URL/new"], All, &[]),
    Program(
        "openssl",
        &[
            "openssl genrsa -out key.pem 1024 2>/dev/null",
            "openssl enc \
            -aes-128-cbc -pass pass:x -pbkdf2 -nosalt -in data -out sealed \
            2>/dev/null",
        ],
        Names,
        &[],
    ),
    Program(
        "gpg",
        &["gpg --batch -q --passphrase x --pinentry-mode loopback --homedir $OUT -o \
            sealed -c data"],
        Names,
        &[],
    ),
    Program(
        "ssh-keygen",
        &[
            "ssh-keygen -q -t ed25519 -N '' -f key",
            "ssh-keygen -q -p -N other \
            -f key",
        ],
        Names,
        &[],
    ),
    Program("sponge", &["sort -r data | sponge data"], All, &[]),
    Program("jq", &["jq -n '[range(9999)]' > out.json", "jq length out.json > count"], All, &[]),
    Program("m4", &["echo 'define(x, y) x' | m4 - data > out"], All, &[]),
    Program(
        "sqlite3",
        &["for mode in delete truncate persist wal; do sqlite3 $mode.db \"pragma \
            journal_mode=$mode; create \
        table t(x); insert into t values(1); begin; insert into t select randomblob(5000) \
        from pragma_function_list; \
        commit; pragma integrity_check\"; done"],
        Names,
        &["*.db*"],
    ),
    Program("find", &["cp -r $IN/tree t; find t -not -type d -delete; find t -delete"], All, &[]),
    Program(
        "chmod",
        &[
            "chmod 600 data",
            "chmod u+s data",
            "chown 1:2 data",
            "setfattr -n \
            user.a -v b data",
        ],
        All,
        &[],
    ),
];

/// Programs that take too long, or need too large packages, for each test run.
const LARGE: &[Program] = &[
    Program(
        "ffmpeg",
        &[
            "ffmpeg -v error -f lavfi -i testsrc=d=2 -y out.mp4",
            "ffmpeg -v error -i out.mp4 -y out.mkv",
        ],
        Names,
        &["out.mp4", "out.mkv"],
    ),
    Program(
        "libreoffice",
        &["soffice -env:UserInstallation=file://$OUT/office-$MODE --headless --convert-to odt \
            --outdir . $IN/new.txt >/dev/null"],
        Names,
        &[".~lock*", "lu*"],
    ),
    Program(
        "keepassxc-cli",
        &[
            "printf 'x\\nx\\n' | keepassxc-cli db-create -q -p base.kdbx",
            "printf 'x\\n' | keepassxc-cli add -q base.kdbx one",
        ],
        Names,
        &[],
    ),
];

/// Types into nano: each key is sent when the screen shows that nano waits for it.
const NANO: &str = r"
import os, pty
pid, fd = pty.fork()
if pid == 0:
    os.environ['TERM'] = 'xterm'
    os.execvp('nano', ['nano', '-I', 'data'])
shown = b''
for wanted, keys in ((b'Exit', b'typed\x0f'), (b'Write', b'\r'), (b'Wrote', b'\x18'), (None, b'')):
    while wanted not in shown if wanted else True:
        try: read = os.read(fd, 9999)
        except OSError: break
        shown += read
    shown = b''
    if wanted: os.write(fd, keys)
assert os.waitpid(pid, 0)[1] == 0
";

/// Makes the input of the programs.
pub(crate) fn make_input(dir: &Path) {
    let script = "
        mkdir -p tree/a/b && for i in 1 2 3; do seq $i 3000 > tree/a/b/$i; done
        ln -s b/1 tree/a/soft && chmod 750 tree/a
        seq -f 'new %g' 4000 > new && cp new new.txt && cp new moving
        seq -f 'line %g' 5000 > data && sed 's/^line 2500$/changed/' data > changed
        diff -u data changed > data.patch || true
        printf '#include <stdio.h>\\nint main(void) { puts(\"hello\"); return 0; }\\n' > hello.c
        printf 'all: one two\\none:\\n\\tseq 3000 > one\\n' > makefile
        printf 'two: one\\n\\tsort one > two\\n' >> makefile
        echo 'x = 1' > module.py
    ";
    shell(dir, script).ok();
    fs::write(dir.join("nano.py"), NANO).expect("written");
}

/// Runs a command of a program in a directory.
pub(crate) fn save(dir: &Path, scratch: &Scratch, mode: &str, url: &str, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-ec", &format!("umask 022\n{script}")]).current_dir(dir).env("MODE", mode);
    command.env("IN", scratch.join("in")).env("OUT", scratch.join("out")).env("URL", url);
    command
        .env("HOME", scratch.join("out"))
        .env("LC_ALL", "C.UTF-8")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    if let Some(home) = std::env::var_os("HOME") {
        let of = |name| std::env::var_os(name);
        let rust = |name: &str| Path::new(&home).join(name).into_os_string();
        command.env("CARGO_HOME", of("CARGO_HOME").unwrap_or_else(|| rust(".cargo")));
        command.env("RUSTUP_HOME", of("RUSTUP_HOME").unwrap_or_else(|| rust(".rustup")));
    }
    command.env_remove("CARGO_TARGET_DIR");
    // The first start of LibreOffice, in the full form, takes longer than all others.
    let limit = Duration::from_secs(rounds(20, 120) as u64);
    testing::run_within(limit, &mut command).ok();
}

/// Describes all files below a directory.
fn describe(dir: &Path, same: Same) -> String {
    // Hidden directories of the guard are no files of the program.
    let format = match same {
        All => "%P %y %m %U:%G %n %s %l\\n",
        Names => "%P %y %m %l\\n",
    };
    let by_type = "\\( -type d -printf '%P %y %m %U:%G\\n' -o -printf";
    let list =
        format!("find . -mindepth 1 -not -path './.latchfs*' {by_type} '{format}' \\) | sort");
    let mut text = shell(dir, &list).ok();
    if same == All {
        let sums = "find . -type f -not -path './.latchfs*' | sort | xargs -r -d '\\n' sha256sum";
        text += &shell(dir, sums).ok();
    } else {
        // Random names of objects and of temporary files.
        text = text
            .lines()
            .map(|line| line.to_owned() + "\n")
            .filter(|line| {
                !["objects/", "/target/", "incremental"].iter().any(|part| line.contains(part))
            })
            .collect();
    }
    text
}

/// Whether other versions of a file may be seen.
fn is_in_place(path: &Path, patterns: &[&str]) -> bool {
    let matches = |pattern: &str, name: &str| {
        globset::Glob::new(pattern).is_ok_and(|pattern| pattern.compile_matcher().is_match(name))
    };
    path.iter().any(|part| patterns.iter().any(|pattern| matches(pattern, &part.to_string_lossy())))
}

/// Returns the files that were seen in a version which no command of the program left. Temporary
/// files, which are gone when their command has ended, are not among `left`.
fn parts(
    seen: &Versions,
    (known, left): (&BTreeSet<Version>, &BTreeSet<PathBuf>),
    in_place: &[&str],
) -> Vec<String> {
    let unknown = |versions: &BTreeSet<Version>| versions.difference(known).count();
    let torn = seen
        .iter()
        .filter(|(path, _)| left.contains(*path))
        .filter(|(path, found)| !is_in_place(path, in_place) && unknown(found) > 0);
    torn.map(|(path, found)| format!("{}: {} of {}", path.display(), unknown(found), found.len()))
        .collect()
}

/// A web server on loopback that serves the input of the programs.
struct WebServer(std::process::Child, String);

impl WebServer {
    fn start(dir: &Path) -> Self {
        use std::io::{BufRead as _, BufReader};
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]).current_dir(dir);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("python is there");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        out.read_line(&mut line).expect("readable");
        let port = line.split_whitespace().nth(5).expect("it says its port").to_owned();
        Self(child, format!("http://127.0.0.1:{port}"))
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs each program once in a plain directory and once in a view, and compares.
fn compare(programs: &[Program]) {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let (input, plain) = (scratch.join("in"), scratch.join("plain"));
    for dir in [&input, &scratch.join("out"), &plain] {
        fs::create_dir(dir).expect("made");
    }
    make_input(&input);
    let web = WebServer::start(&input);
    let guard = Guard::start(&scratch, "view", &[]);
    let mut wrong = Vec::new();
    for Program(name, commands, same, in_place) in programs {
        for dir in [&plain, &guard.view] {
            shell(
                dir,
                "find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +; cp ../in/data \
            data",
            )
            .ok();
        }
        let mut known: BTreeSet<Version> =
            versions_in(&scratch.folder()).into_values().flatten().collect();
        known.extend(versions_in(&input).into_values().flatten());
        let mut left: BTreeSet<_> = versions_in(&scratch.folder()).into_keys().collect();
        let recorder = Recorder::start(&scratch.folder());
        for command in *commands {
            let rotated =
                format!("{}/data {{\n size 1\n rotate 2\n create\n su root root\n}}\n", "DIR");
            for (dir, mode) in [(&plain, "plain"), (&guard.view, "view")] {
                let rotated = rotated.replace("DIR", dir.to_str().expect("text"));
                fs::write(input.join("rotate.conf"), rotated).expect("written");
                fs::write(input.join("moving"), "moving\n".repeat(999)).expect("written");
                save(dir, &scratch, mode, &web.1, command);
            }
            for (path, versions) in versions_in(&scratch.folder()) {
                known.extend(versions);
                left.insert(path);
            }
        }
        recorder.next_round();
        let (seen, _) = recorder.end();
        let (on_ext4, on_view) = (describe(&plain, *same), describe(&guard.view, *same));
        if on_ext4 != on_view {
            wrong.push(format!("{name} differs\n--- ext4\n{on_ext4}--- view\n{on_view}"));
        }
        let in_folder = describe(&scratch.folder(), *same);
        if in_folder != on_view {
            wrong.push(format!(
                "{name}: the folder is another\n--- folder\n{in_folder}--- view\n{on_view}"
            ));
        }
        for part in parts(&seen, (&known, &left), in_place) {
            wrong.push(format!("{name}: a reader of the folder saw parts of {part}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let lost = guard.request("lost", &[]).ok();
    assert!(!lost.lines().any(|line| line.contains("data")), "{lost}");
}

#[test]
fn editors_and_archivers_save_as_on_ext4() {
    compare(EDITORS);
}

#[test]
fn compilers_languages_and_tools_save_as_on_ext4() {
    compare(TOOLS);
}

#[test]
fn large_programs_save_as_on_ext4() {
    if rounds(0, 1) > 0 {
        compare(LARGE);
    }
}
