//! Sync tools that make two folders the same each time they are run: Unison and rclone bisync.

use crate::syncing::sync_tool::SyncTool;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use testing::run;

/// How long after a run the next one begins: long enough for a machine that waits for its files to
/// give up.
const PAUSE: Duration = Duration::from_millis(500);

/// A sync tool for two folders.
trait Pair: Send {
    /// Makes both folders the same.
    fn run(&mut self);

    /// Does what a person does after a run that has failed. Nobody changes the folders meanwhile;
    /// `newest` was changed last.
    fn recover(&mut self, newest: usize);
}

/// Unison. Files that were changed on both sides are left alone (`-batch`).
struct Unison {
    folders: [PathBuf; 2],
    archives: PathBuf,
}

impl Pair for Unison {
    fn run(&mut self) {
        let mut unison = Command::new("unison");
        unison.args(["-batch", "-silent", "-times", "-confirmbigdel=false"]);
        // Otherwise it takes a file that was changed while it looked at it for one that it knows.
        unison.arg("-fastcheck=false").args(&self.folders);
        let code = run(unison.env("UNISON", &self.archives)).code;
        // 1 and 2: files were left out, since they were changed meanwhile.
        assert!(matches!(code, 0..=2), "Unison ended with {code}");
    }

    fn recover(&mut self, _newest: usize) {}
}

/// rclone bisync. It stops for good when a file is changed while it runs.
struct Rclone {
    folders: [PathBuf; 2],
    records: PathBuf,
    config: PathBuf,
    has_failed: bool,
}

impl Rclone {
    fn bisync(&mut self, option: &[&str]) {
        let mut rclone = Command::new("rclone");
        rclone.arg("bisync").args(option).args(&self.folders).arg("--workdir").arg(&self.records);
        self.has_failed = run(rclone.arg("--config").arg(&self.config)).code != 0;
    }
}

impl Pair for Rclone {
    fn run(&mut self) {
        if !self.has_failed {
            self.bisync(&["--force"]);
        }
    }

    fn recover(&mut self, newest: usize) {
        if self.has_failed {
            let mut rclone = Command::new("rclone");
            rclone.arg("sync").arg(&self.folders[newest]).arg(&self.folders[1 - newest]);
            run(rclone.arg("--config").arg(&self.config)).ok();
            self.bisync(&["--resync"]);
        }
    }
}

/// A tool that is run again and again, until the value is dropped.
pub(crate) struct PairTool {
    tool: Arc<Mutex<dyn Pair>>,
    /// The runs end when it is dropped.
    going_on: Option<Sender<()>>,
    runs: Option<JoinHandle<()>>,
}

fn locked(tool: &Mutex<dyn Pair>) -> MutexGuard<'_, dyn Pair + 'static> {
    tool.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PairTool {
    /// Runs `tool` once, and then again after each pause.
    fn start(tool: Arc<Mutex<dyn Pair>>) -> Self {
        locked(&tool).run();
        let (going_on, end) = mpsc::channel::<()>();
        let shared = Arc::clone(&tool);
        let runs = thread::spawn(move || {
            while end.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                locked(&shared).run();
            }
        });
        Self { tool, going_on: Some(going_on), runs: Some(runs) }
    }

    /// Starts Unison, whose records are below `home`.
    pub(crate) fn unison(folders: &[PathBuf], home: &Path) -> Self {
        Self::start(Arc::new(Mutex::new(Unison {
            folders: two(folders),
            archives: home.join("unison"),
        })))
    }

    /// Starts rclone bisync, whose records are below `home`.
    pub(crate) fn rclone(folders: &[PathBuf], home: &Path) -> Self {
        let (records, config) = (home.join("bisync"), home.join("rclone.conf"));
        fs::create_dir_all(&records).expect("made");
        fs::write(&config, "").expect("written");
        let mut tool = Rclone { folders: two(folders), records, config, has_failed: false };
        tool.bisync(&["--resync"]);
        Self::start(Arc::new(Mutex::new(tool)))
    }
}

fn two(folders: &[PathBuf]) -> [PathBuf; 2] {
    folders.to_vec().try_into().expect("two folders")
}

impl Drop for PairTool {
    fn drop(&mut self) {
        self.going_on = None;
        let has_failed = self.runs.take().is_some_and(|runs| runs.join().is_err());
        assert!(!has_failed || thread::panicking(), "the tool has failed");
    }
}

impl SyncTool for PairTool {
    fn stop(&mut self, _machine: usize) {
        unreachable!("two machines are never offline");
    }

    fn resume(&mut self, _machine: usize) {
        unreachable!("two machines are never offline");
    }

    fn changed(&mut self, machine: usize) {
        locked(&self.tool).recover(machine);
    }

    fn slow_down(&mut self, _machine: usize) -> bool {
        false
    }

    fn kill_while_receiving(&mut self, _machine: usize, _name: &str) -> bool {
        false
    }
}
