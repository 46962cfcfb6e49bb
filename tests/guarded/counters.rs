//! Counters that several machines on one storage increment, while their guards are stopped for
//! longer than their leases last: no acknowledged increment is lost.
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testing::{Guard, Scratch, Server, no_other_stops, pause, rounds};

const CLIENTS: usize = 5;

fn number_in(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("half a number: {text:?}")))
}

/// Increments a counter, and returns its new value once that is acknowledged.
type Increment = fn(&Path) -> io::Result<u64>;

fn by_whole_save(dir: &Path) -> io::Result<u64> {
    let next = number_in(&dir.join("whole"))? + 1;
    let mut file = File::create(dir.join("whole"))?;
    write!(file, "{next:08}")?;
    file.sync_all().map(|()| next)
}

fn in_place(dir: &Path) -> io::Result<u64> {
    let mut file = File::options().read(true).write(true).open(dir.join("count.log"))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let next = text.trim().parse::<u64>().map_err(io::Error::other)? + 1;
    file.rewind()?;
    write!(file, "{next:08}")?;
    file.sync_all().map(|()| next)
}

fn by_rename(dir: &Path) -> io::Result<u64> {
    let next = number_in(&dir.join("renamed"))? + 1;
    let temporary = dir.join("renamed.new");
    let mut file = File::create(&temporary)?;
    write!(file, "{next:08}")?;
    file.sync_all()?;
    drop(file);
    fs::rename(temporary, dir.join("renamed")).map(|()| next)
}

/// Returns the greatest name in a directory of numbers.
fn greatest_name(dir: &Path) -> io::Result<u64> {
    let numbers = fs::read_dir(dir)?.map(|entry| {
        let name = entry?.file_name();
        name.to_string_lossy().parse::<u64>().map_err(io::Error::other)
    });
    numbers.collect::<io::Result<Vec<_>>>().map(|all| all.into_iter().max().unwrap_or(0))
}

/// Makes the next name, and removes the one before.
fn by_new_name(dir: &Path) -> io::Result<u64> {
    let names = dir.join("names");
    let next = greatest_name(&names)? + 1;
    symlink("content", names.join(next.to_string()))?;
    fs::remove_file(names.join((next - 1).to_string())).map(|()| next)
}

const WAYS: [(&str, Increment); 4] = [
    ("whole", by_whole_save),
    ("count.log", in_place),
    ("renamed", by_rename),
    ("names", by_new_name),
];

/// The clients that got each value of each counter as an answer. A value that two got is a lost
/// increment.
#[derive(Default)]
struct Acknowledged(Mutex<BTreeMap<(&'static str, u64), u32>>);

impl Acknowledged {
    fn add(&self, counter: &'static str, value: u64) {
        *self.0.lock().expect("no panic").entry((counter, value)).or_default() += 1;
    }

    /// Returns the number of acknowledged increments.
    fn total(&self) -> usize {
        self.0.lock().expect("no panic").values().sum::<u32>() as usize
    }

    /// Returns the number of acknowledged increments, and how many of them were lost.
    fn count(&self, dir: &Path) -> (u32, u32) {
        let values = self.0.lock().expect("no panic");
        let total: u32 = values.values().sum();
        let mut lost = total - values.len() as u32;
        for (counter, _) in WAYS {
            let newest = values.keys().filter(|(name, _)| *name == counter).map(|(_, n)| *n).max();
            let found = match counter {
                "names" => greatest_name(&dir.join(counter)).expect("numbers"),
                _ => number_in(&dir.join(counter)).expect("whole"),
            };
            lost += u32::from(found < newest.unwrap_or(0));
        }
        (total, lost)
    }
}

fn make_counters(dir: &Path) {
    fs::create_dir_all(dir).expect("made");
    for (counter, _) in &WAYS[..3] {
        fs::write(dir.join(counter), "00000000").expect("written");
    }
    fs::create_dir(dir.join("names")).expect("made");
    symlink("content", dir.join("names/0")).expect("made");
}

/// Sends a request to a guard without starting a program.
fn request(view: &Path, text: &str) -> io::Result<String> {
    let path = view.join(".latchfs/ctl");
    let mut ctl = File::options().read(true).write(true).open(path)?;
    ctl.write_all(text.as_bytes())?;
    ctl.rewind()?;
    let mut answer = String::new();
    ctl.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn no_acknowledged_increment_is_lost() {
    let _alone = no_other_stops();
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    make_counters(&scratch.folder());
    let client = |number: usize| format!("m{number}");
    let guards: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = client(number);
            let options = ["--client", &client, "--shared-storage", "--ttl", "2s"];
            Guard::start(&scratch, &client, &options)
        })
        .collect();
    let (acknowledged, tenures) = (Acknowledged::default(), AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for guard in &guards {
            let view = guard.view.clone();
            let (acknowledged, tenures, is_over) = (&acknowledged, &tenures, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let taken = request(&view, "{\"do\": \"take\", \"wait_ms\": 8000}\n");
                    if !taken.is_ok_and(|answer| answer.contains("\"holding\"")) {
                        continue;
                    }
                    tenures.fetch_add(1, Ordering::Relaxed);
                    for _ in 0..3 {
                        for (counter, increment) in WAYS {
                            if let Ok(value) = increment(&view) {
                                acknowledged.add(counter, value);
                            }
                        }
                    }
                    let _ = request(&view, "{\"do\": \"give\"}\n");
                }
            });
        }
        let (wanted, pauses_min, pauses_max) =
            (rounds(300, 100_000), rounds(4, 100), rounds(60, 2_000));
        let mut pauses = 0;
        while pauses < pauses_min || acknowledged.total() < wanted && pauses < pauses_max {
            // Each pause is longer than the lease, and hits each client in turn.
            let guard = &guards[pauses % CLIENTS];
            pauses += 1;
            guard.signal(libc::SIGSTOP);
            pause(Duration::from_secs(5));
            guard.signal(libc::SIGCONT);
        }
        is_over.store(true, Ordering::Relaxed);
        println!("{pauses} pauses");
    });
    let (all, lost) = acknowledged.count(&scratch.folder());
    let tenures = tenures.into_inner();
    println!("{all} increments acknowledged in {tenures} tenures, {lost} lost");
    assert_eq!(lost, 0, "of {all}");
    let wanted = (rounds(50, 500) as u64, rounds(300, 100_000) as u32);
    assert!(tenures >= wanted.0 && all >= wanted.1, "{tenures} tenures, {all} increments");
}

/// The same counters without a guard: increments are lost.
#[test]
fn without_a_guard_increments_are_lost() {
    let scratch = Scratch::with_folder();
    make_counters(&scratch.folder());
    let acknowledged = Acknowledged::default();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..200 {
                    for (counter, increment) in WAYS {
                        if let Ok(value) = increment(&scratch.folder()) {
                            acknowledged.add(counter, value);
                        }
                    }
                }
            });
        }
    });
    let (all, lost) = acknowledged.count(&scratch.folder());
    println!("{all} increments without a guard, {lost} lost");
    assert!(lost > all / 100, "{lost} of {all}");
}
