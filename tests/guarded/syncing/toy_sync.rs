//! A sync tool for tests, which knows nothing of locks and markers. It copies each changed path to
//! the other folders after a random delay of its own, so that paths arrive in any order.
//!
//! For each path of a folder it knows a version vector, as Syncthing does. A version that follows
//! the local one replaces it, and of two concurrent versions the older one becomes a conflict copy.
//! A machine passes on what it receives, so that each version is delivered more than once.

use crate::syncing::random::Random;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// The interval between two looks of the running tool. It is longer than a tick of the kernel's
/// clock for times of files: a file that has the same times at two looks does not change.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// One of so many versions is sent to a machine a second time.
const SENT_TWICE: usize = 4;
/// How many of its last steps the tool prints when a test fails.
const STEPS_SHOWN: usize = 300;

/// How long the tool takes for a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delays {
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
}

/// For each machine, the number of its changes that a version of a path contains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct VersionVector(Vec<u64>);

impl VersionVector {
    /// Returns the order of two versions, or nothing for concurrent ones.
    fn order(&self, other: &Self) -> Option<Ordering> {
        let pairs = || self.0.iter().zip(&other.0);
        match (pairs().any(|(a, b)| a > b), pairs().any(|(a, b)| a < b)) {
            (false, false) => Some(Ordering::Equal),
            (true, false) => Some(Ordering::Greater),
            (false, true) => Some(Ordering::Less),
            (true, true) => None,
        }
    }

    fn merged(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| *a.max(b)).collect())
    }

    fn changed_by(&self, machine: usize) -> Self {
        let mut next = self.clone();
        next.0[machine] += 1;
        next
    }
}

/// A version of a path. A deleted path has no content.
#[derive(Debug, Clone)]
struct Version {
    vector: VersionVector,
    content: Option<Arc<[u8]>>,
    mode: u32,
    modified: SystemTime,
}

impl Version {
    fn gone(vector: VersionVector) -> Self {
        Self { vector, content: None, mode: 0, modified: SystemTime::UNIX_EPOCH }
    }

    /// Whether this version stays and the other one becomes a conflict copy. All machines decide
    /// the same: content wins over a deletion, and the newer content over the older one.
    fn wins_over(&self, other: &Self) -> bool {
        let rank = |version: &Self| (version.content.is_some(), version.modified);
        (rank(self), &self.content) > (rank(other), &other.content)
    }
}

/// The attributes by which the tool tells whether a file changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stat {
    fn of(attributes: &Metadata) -> Self {
        let modified = (attributes.mtime(), attributes.mtime_nsec());
        Self { inode: attributes.ino(), size: attributes.size(), modified }
    }

    pub(crate) fn at(path: &Path) -> Option<Self> {
        let attributes = fs::symlink_metadata(path).ok()?;
        attributes.is_file().then(|| Self::of(&attributes))
    }
}

/// A path as a machine knows it.
struct Entry {
    version: Version,
    stat: Option<Stat>,
}

/// A folder, and what its machine knows of it.
struct Replica {
    folder: PathBuf,
    index: BTreeMap<PathBuf, Entry>,
    /// Files that differ from the index, as the last look saw them.
    differing: BTreeMap<PathBuf, Stat>,
    is_stopped: bool,
}

impl Replica {
    /// Whether a path is in the folder as it is in the index.
    fn is_as_known(&self, path: &Path) -> bool {
        let known = self.index.get(path).and_then(|entry| entry.stat);
        Stat::at(&self.folder.join(path)) == known
    }

    fn content(&self, path: &Path) -> Option<&Arc<[u8]>> {
        self.index.get(path)?.version.content.as_ref()
    }

    fn enter(&mut self, path: &Path, version: Version, stat: Option<Stat>) {
        self.index.insert(path.to_owned(), Entry { version, stat });
    }

    /// Writes a version beside its path, and renames it to the path, unless a program has changed
    /// the path meanwhile.
    fn place(&self, path: &Path, version: &Version) -> io::Result<Option<Stat>> {
        let real = self.folder.join(path);
        let Some(content) = &version.content else {
            return match fs::remove_file(&real) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(None),
            };
        };
        let dir = real.parent().expect("it lies in the folder");
        fs::create_dir_all(dir)?;
        let name = path.file_name().expect("a file").to_string_lossy();
        let temporary = dir.join(format!(".syncthing.{name}.tmp"));
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        file.set_permissions(Permissions::from_mode(version.mode))?;
        file.set_modified(version.modified)?;
        let stat = Stat::of(&file.metadata()?);
        if !self.is_as_known(path) {
            fs::remove_file(&temporary)?;
            return Err(io::Error::other("changed meanwhile"));
        }
        fs::rename(&temporary, &real)?;
        Ok(Some(stat))
    }

    /// Renames a file that has lost a conflict to the name of a conflict copy.
    fn set_aside(&self, path: &Path, machine: usize) -> io::Result<PathBuf> {
        let real = self.folder.join(path);
        let mut second = fs::symlink_metadata(&real)?.mtime();
        let copy = loop {
            let copy = conflict_name(path, second, machine);
            if !self.folder.join(&copy).exists() && !self.index.contains_key(&copy) {
                break copy;
            }
            second += 1;
        };
        fs::rename(real, self.folder.join(&copy))?;
        Ok(copy)
    }
}

/// Returns the name of a conflict copy, as Syncthing makes it.
fn conflict_name(path: &Path, second: i64, machine: usize) -> PathBuf {
    let at = time::OffsetDateTime::from_unix_timestamp(second).expect("a time of our age");
    let date = format!("{:04}{:02}{:02}", at.year(), u8::from(at.month()), at.day());
    let time = format!("{:02}{:02}{:02}", at.hour(), at.minute(), at.second());
    let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, end) = (text(path.file_stem()), text(path.extension()));
    let dot = if end.is_empty() { "" } else { "." };
    path.with_file_name(format!("{stem}.sync-conflict-{date}-{time}-MACHIN{machine}{dot}{end}"))
}

/// Whether a path is a conflict copy.
pub(crate) fn is_conflict_copy(path: &Path) -> bool {
    path.to_string_lossy().contains(".sync-conflict-")
}

/// Whether a name belongs to a sync tool and not to its user.
fn is_of_a_sync_tool(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    // Unison leaves such a file behind if the file that it copies is gone before it is whole.
    let is_of_unison = name.starts_with(".unison.") && name.ends_with(".unison.tmp");
    let is_of_syncthing = name.starts_with(".syncthing.") && name.ends_with(".tmp");
    is_of_unison || is_of_syncthing || name.starts_with(".stfolder")
}

/// Returns the regular files of a folder, without those of a sync tool.
pub(crate) fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut waiting = vec![folder.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if is_of_a_sync_tool(&entry.file_name()) {
                continue;
            }
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path().strip_prefix(folder).expect("below it").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// A version on its way to a machine.
#[derive(Clone)]
struct Delivery {
    due: Duration,
    from: usize,
    to: usize,
    path: PathBuf,
    version: Version,
}

/// The tool without its thread: a caller names the time, so that a seed repeats all that it does.
struct Carrier {
    replicas: Vec<Replica>,
    deliveries: Vec<Delivery>,
    /// Versions that have lost a conflict against the version of their receiver. They are judged
    /// again when that one changes.
    losers: Vec<Delivery>,
    delays: Delays,
    random: Random,
    now: Duration,
    steps: Vec<String>,
}

impl Carrier {
    fn new(folders: &[PathBuf], seed: u64, delays: Delays) -> Self {
        let replica = |folder: &PathBuf| Replica {
            folder: folder.clone(),
            index: BTreeMap::new(),
            differing: BTreeMap::new(),
            is_stopped: false,
        };
        Self {
            replicas: folders.iter().map(replica).collect(),
            deliveries: vec![],
            losers: vec![],
            delays,
            random: Random::new(seed),
            now: Duration::ZERO,
            steps: vec![],
        }
    }

    /// Notes a step for a test that fails.
    fn note(&mut self, what: &str, machine: usize, path: &Path) {
        let now = self.now.as_millis();
        self.steps.push(format!("{now:>8} ms  machine {machine}: {what} {}", path.display()));
    }

    /// Looks for changes in all folders, and delivers what is due.
    fn step(&mut self, now: Duration) {
        self.now = now;
        for machine in 0..self.replicas.len() {
            if !self.replicas[machine].is_stopped {
                self.look_for_changes(machine);
            }
        }
        while let Some(delivery) = self.next_due() {
            // An error means that a program changes the path now.
            if self.deliver(&delivery).is_err() {
                self.note("postponed", delivery.to, &delivery.path);
                self.deliveries.push(Delivery { due: now + POLL_EVERY, ..delivery });
            }
        }
    }

    fn next_due(&mut self) -> Option<Delivery> {
        let is_due = |delivery: &Delivery| {
            let is_stopped = |machine: usize| self.replicas[machine].is_stopped;
            delivery.due <= self.now && !is_stopped(delivery.from) && !is_stopped(delivery.to)
        };
        let due = self.deliveries.iter().enumerate().filter(|(_, delivery)| is_due(delivery));
        let (at, _) = due.min_by_key(|(_, delivery)| delivery.due)?;
        Some(self.deliveries.remove(at))
    }

    fn look_for_changes(&mut self, machine: usize) {
        let replica = &mut self.replicas[machine];
        let mut changed = vec![];
        let mut differing = BTreeMap::new();
        let found = files_in(&replica.folder);
        for path in &found {
            let real = replica.folder.join(path);
            let Some(stat) = Stat::at(&real) else { continue };
            if replica.index.get(path).and_then(|entry| entry.stat) == Some(stat) {
                continue;
            }
            differing.insert(path.clone(), stat);
            if replica.differing.get(path) != Some(&stat) {
                continue;
            }
            let (Ok(content), Ok(attributes)) = (fs::read(&real), fs::metadata(&real)) else {
                continue;
            };
            if Stat::of(&attributes) == stat {
                changed.push((path.clone(), Some((Arc::from(content), attributes, stat))));
            }
        }
        replica.differing = differing;
        let is_gone = |(path, entry): (&PathBuf, &Entry)| {
            let is_here = || fs::symlink_metadata(replica.folder.join(path)).is_ok();
            (entry.stat.is_some() && found.binary_search(path).is_err() && !is_here())
                .then(|| (path.clone(), None))
        };
        changed.extend(replica.index.iter().filter_map(is_gone));
        for (path, file) in changed {
            self.changed(machine, &path, file);
        }
    }

    /// Enters a change that a program made.
    fn changed(&mut self, machine: usize, path: &Path, file: Option<(Arc<[u8]>, Metadata, Stat)>) {
        let none = VersionVector(vec![0; self.replicas.len()]);
        let replica = &mut self.replicas[machine];
        if let (Some((content, _, stat)), Some(entry)) = (&file, replica.index.get_mut(path))
            && entry.version.content.as_ref() == Some(content)
        {
            entry.stat = Some(*stat);
            return;
        }
        let before = replica.index.get(path).map_or(none, |entry| entry.version.vector.clone());
        let vector = before.changed_by(machine);
        let (version, stat) = match file {
            Some((content, attributes, stat)) => {
                let modified = attributes.modified().expect("it has one");
                let mode = attributes.mode() & 0o7777;
                (Version { vector, content: Some(content), mode, modified }, Some(stat))
            }
            None => (Version::gone(vector), None),
        };
        let what = if version.content.is_some() { "found" } else { "found the end of" };
        replica.enter(path, version, stat);
        self.note(what, machine, path);
        self.send(machine, path);
    }

    /// Sends a machine's new version of a path to all others.
    fn send(&mut self, from: usize, path: &Path) {
        let is_judged_again = |loser: &mut Delivery| loser.to == from && loser.path == path;
        self.deliveries.extend(self.losers.extract_if(.., is_judged_again));
        let version = self.replicas[from].index[path].version.clone();
        let Delays { shortest, longest } = self.delays;
        let is_gone = version.content.is_none();
        for to in (0..self.replicas.len()).filter(|to| *to != from) {
            let times = if self.random.one_in(SENT_TWICE) { 2 } else { 1 };
            for _ in 0..times {
                // Deletions come late.
                let delay = self.random.between(shortest, longest * if is_gone { 2 } else { 1 });
                let (path, version) = (path.to_owned(), version.clone());
                self.deliveries.push(Delivery { due: self.now + delay, from, to, path, version });
            }
        }
    }

    fn deliver(&mut self, delivery: &Delivery) -> io::Result<()> {
        let Delivery { to, path, version, .. } = delivery;
        let replica = &self.replicas[*to];
        if !replica.is_as_known(path) {
            return Err(io::Error::other("a change that the tool does not know yet"));
        }
        let unknown = || Version::gone(VersionVector(vec![0; self.replicas.len()]));
        let local = replica.index.get(path).map_or_else(unknown, |entry| entry.version.clone());
        match version.vector.order(&local.vector) {
            Some(Ordering::Greater) => self.replace(*to, path, version, &local),
            Some(Ordering::Equal | Ordering::Less) => {
                self.note("needs no more", *to, path);
                Ok(())
            }
            None if version.content != local.content && local.wins_over(version) => {
                // The other machine comes to the same result, and sends the merged version.
                self.note("keeps its own version of", *to, path);
                self.losers.push(delivery.clone());
                Ok(())
            }
            None => self.take_over(*to, path, version, &local),
        }
    }

    /// Replaces a version by one that follows it.
    fn replace(
        &mut self,
        to: usize,
        path: &Path,
        version: &Version,
        local: &Version,
    ) -> io::Result<()> {
        if version.content == local.content {
            let stat = self.replicas[to].index.get(path).and_then(|entry| entry.stat);
            self.replicas[to].enter(path, version.clone(), stat);
            self.note("had the content of", to, path);
            self.send(to, path);
            return Ok(());
        }
        if let Some(other) = self.exchange_partner(to, path, version) {
            return self.exchange(to, path, version, other);
        }
        self.place(to, path, version.clone())
    }

    /// Takes a version over that has won against a concurrent one.
    fn take_over(
        &mut self,
        to: usize,
        path: &Path,
        version: &Version,
        local: &Version,
    ) -> io::Result<()> {
        let mut vector = version.vector.merged(&local.vector);
        if version.content != local.content {
            // Otherwise another machine could make this vector of the same versions, and choose
            // another one of them.
            vector = vector.changed_by(to);
        }
        let modified = version.modified.max(local.modified);
        let merged = Version { vector, modified, ..version.clone() };
        if version.content == local.content || local.content.is_none() || is_conflict_copy(path) {
            return self.replace(to, path, &merged, local);
        }
        let copy = self.replicas[to].set_aside(path, to)?;
        self.note("made a conflict copy", to, &copy);
        if let Some(entry) = self.replicas[to].index.get_mut(path) {
            (entry.stat, entry.version.content) = (None, None);
        }
        self.place(to, path, merged)
    }

    fn place(&mut self, to: usize, path: &Path, version: Version) -> io::Result<()> {
        let stat = self.replicas[to].place(path, &version)?;
        let what = if stat.is_some() { "received" } else { "removed" };
        self.replicas[to].enter(path, version, stat);
        self.note(what, to, path);
        self.send(to, path);
        Ok(())
    }

    /// Returns the place of a delivery after which another path of this machine has the content
    /// that `path` has now, while that path has the content that `path` is to get: two files that
    /// have swapped their names, or a file that was renamed.
    fn exchange_partner(&self, to: usize, path: &Path, version: &Version) -> Option<usize> {
        let replica = &self.replicas[to];
        let wanted = version.content.as_ref().filter(|content| !content.is_empty())?;
        let is_partner = |other: &Delivery| {
            let is_next = replica.index.get(&other.path).is_some_and(|entry| {
                other.version.vector.order(&entry.version.vector) == Some(Ordering::Greater)
            });
            other.to == to
                && other.path != path
                && is_next
                && replica.content(&other.path) == Some(wanted)
                && other.version.content.as_ref() == replica.content(path)
                && replica.is_as_known(&other.path)
        };
        self.deliveries.iter().position(is_partner)
    }

    /// Delivers two versions at once by an exchange of the names of two local files.
    fn exchange(
        &mut self,
        to: usize,
        path: &Path,
        version: &Version,
        other: usize,
    ) -> io::Result<()> {
        let other = self.deliveries.remove(other);
        let replica = &mut self.replicas[to];
        let (here, there) = (replica.folder.join(path), replica.folder.join(&other.path));
        if replica.content(path).is_some() {
            renameat_with(CWD, &here, CWD, &there, RenameFlags::EXCHANGE)?;
        } else {
            renameat_with(CWD, &there, CWD, &here, RenameFlags::NOREPLACE)?;
        }
        replica.enter(path, version.clone(), Stat::at(&here));
        replica.enter(&other.path, other.version.clone(), Stat::at(&there));
        self.note("swapped names with", to, path);
        self.send(to, path);
        self.send(to, &other.path);
        Ok(())
    }
}

/// The running tool. It ends when it is dropped; if a test fails, it prints its last steps.
pub(crate) struct ToySync {
    carrier: Arc<Mutex<Carrier>>,
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ToySync {
    pub(crate) fn start(folders: &[PathBuf], seed: u64, delays: Delays) -> Self {
        println!("toy sync tool: seed {seed}, {delays:?}");
        let carrier = Arc::new(Mutex::new(Carrier::new(folders, seed, delays)));
        let (end, ended) = mpsc::channel();
        let running = Arc::clone(&carrier);
        let thread = std::thread::spawn(move || {
            let began = latchfs::time::boot_now();
            while ended.recv_timeout(POLL_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                let now = latchfs::time::boot_now().since(began);
                lock(&running).step(Duration::from_millis(now.as_millis()));
            }
        });
        Self { carrier, end: Some(end), thread: Some(thread) }
    }

    /// Stops the tool on a machine: nothing is carried to it or from it.
    pub(crate) fn stop(&self, machine: usize) {
        lock(&self.carrier).replicas[machine].is_stopped = true;
    }

    pub(crate) fn resume(&self, machine: usize) {
        lock(&self.carrier).replicas[machine].is_stopped = false;
    }
}

fn lock(carrier: &Mutex<Carrier>) -> MutexGuard<'_, Carrier> {
    carrier.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ToySync {
    fn drop(&mut self) {
        drop(self.end.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if std::thread::panicking() || ended.is_some_and(|result| result.is_err()) {
            let carrier = lock(&self.carrier);
            let skipped = carrier.steps.len().saturating_sub(STEPS_SHOWN);
            eprintln!("the last steps of the toy sync tool:");
            for step in &carrier.steps[skipped..] {
                eprintln!("{step}");
            }
        }
    }
}
