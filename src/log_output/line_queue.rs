//! The queue of log lines, and the thread that writes them. No caller waits for the log: when
//! nobody reads it, lines beyond the bound of the queue are dropped and counted.
//!
//! Limits how many lines of each kind the log has in a second, and counts the others. The place in
//! the source that logs a record is its kind, so there are as many kinds as places. At most half of
//! the lines of a kind name the same client, or none, so that a flood of one client leaves room for
//! the others.

use super::line_format::{LineStyle, format_line};
use crate::shares::{Identity, SharedTable, TableShare};
use crate::time::{Span, Time, Wall, steady_now};
use env_logger::fmt::style::Style;
use log::kv::{Key, Value};
use log::{Level, Record};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{io, ptr, thread};

/// Maximum size of the lines that wait for the thread.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// How long the thread waits after a write that a non-blocking standard error did not take.
const WRITE_PAUSE: Duration = Duration::from_millis(20);

/// A queue with its thread. Cheap to clone.
#[derive(Clone)]
pub(super) struct LineQueue(Arc<QueueShared>);

struct QueueShared {
    style: LineStyle,
    limits: Mutex<LineLimits>,
    state: Mutex<LineQueueState>,
    /// Notified when the queue is no longer empty, or when the thread must look at the limits.
    added: Condvar,
    /// Notified when the thread has written lines.
    written: Condvar,
}

#[derive(Default)]
struct LineQueueState {
    lines: Vec<u8>,
    /// The number of lines in the queue.
    count: u64,
    /// The number of lines that are neither written nor in the queue.
    dropped: u64,
    /// Whether the thread is writing lines that it has taken.
    writes: bool,
    /// Whether a caller waits for the end of all lines.
    is_end: bool,
}

impl LineQueue {
    /// Starts a queue whose lines go to `out`.
    pub(super) fn start(out: Box<dyn Write + Send>, style: LineStyle) -> io::Result<Self> {
        let queue = Self(Arc::new(QueueShared {
            style,
            limits: Mutex::default(),
            state: Mutex::default(),
            added: Condvar::new(),
            written: Condvar::new(),
        }));
        let shared = Arc::clone(&queue.0);
        let (is_masked, masked) = channel();
        let run = move || {
            block_signals();
            // The send fails only if the caller has panicked.
            let _ = is_masked.send(());
            shared.run(out);
        };
        thread::Builder::new().name("log".to_owned()).spawn(run)?;
        masked.recv().map_err(io::Error::other)?;
        Ok(queue)
    }

    /// Whether a record gets a line; it gets none if there are too many lines of its kind.
    pub(super) fn admits(&self, record: &Record<'_>, now: Time) -> bool {
        let mut limits = self.0.limits.lock();
        let was_full = limits.next_due().is_some();
        let is_admitted = limits.admit(record, now);
        drop(limits);
        if !is_admitted && !was_full {
            // The thread learns when to report the number of suppressed lines. It has either not
            // looked at the limits yet, or waits already, since it keeps the mutex in between.
            drop(self.0.state.lock());
            self.0.added.notify_one();
        }
        is_admitted
    }

    /// Waits until all lines are written, or `patience` is over.
    pub(super) fn finish(&self, patience: Duration) {
        let mut state = self.0.state.lock();
        state.is_end = true;
        self.0.added.notify_one();
        let waits = |state: &mut LineQueueState| state.is_end || state.writes;
        self.0.written.wait_while_for(&mut state, waits, patience);
    }
}

/// Each write is one line, which is added unless too many wait. It never fails.
impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    /// Does nothing: nobody waits for the thread.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Blocks all signals in this thread, which starts before the daemon blocks those that end it: the
/// system would end the process by a signal that a thread does not block.
#[allow(unsafe_code)]
fn block_signals() {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that it is given; pthread_sigmask reads the set and
    // writes no old one.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut());
    }
}

impl QueueShared {
    fn push(&self, line: &[u8]) {
        let mut state = self.state.lock();
        if state.lines.len() + line.len() > QUEUE_BYTES_MAX {
            state.dropped += 1;
            return;
        }
        let was_empty = state.lines.is_empty();
        state.lines.extend_from_slice(line);
        state.count += 1;
        drop(state);
        if was_empty {
            self.added.notify_one();
        }
    }

    /// Writes lines for as long as the process lives.
    fn run(&self, mut out: Box<dyn Write + Send>) {
        // Whether the last write has failed, perhaps in the middle of a line.
        let mut is_torn = false;
        loop {
            self.wait();
            let mut state = self.state.lock();
            let mut lines = if is_torn { vec![b'\n'] } else { Vec::new() };
            lines.append(&mut state.lines);
            let count = std::mem::take(&mut state.count);
            let dropped = std::mem::take(&mut state.dropped);
            state.writes = true;
            // Who waits for the end since the lines were taken waits for the sums as well.
            let is_end = std::mem::take(&mut state.is_end);
            drop(state);
            lines.extend(self.sums(is_end));
            if dropped > 0 {
                let lost = "log lines were lost, since standard error was not read";
                lines.extend(self.count_line(Level::Warn, lost, &[("lost", dropped.into())]));
            }
            is_torn = write_patiently(&mut *out, &lines).is_err();
            let mut state = self.state.lock();
            state.writes = false;
            if is_torn {
                state.dropped += dropped + count;
            }
            drop(state);
            self.written.notify_all();
        }
    }

    /// Waits until there are lines to write, or numbers of suppressed lines, or a caller waits for
    /// the end of all lines.
    fn wait(&self) {
        let mut state = self.state.lock();
        while state.lines.is_empty() && !state.is_end {
            let due = self.limits.lock().next_due();
            match due.map(|due| due.since(steady_now())) {
                Some(Span::ZERO) => break,
                Some(left) => drop(self.added.wait_for(&mut state, left.as_duration())),
                None => self.added.wait(&mut state),
            }
        }
    }

    /// Returns the lines with the numbers of suppressed lines that are due. They do not go through
    /// the queue, which may be full.
    fn sums(&self, is_end: bool) -> Vec<u8> {
        let due = self.limits.lock().take_due(steady_now(), is_end);
        let line = |suppressed: SuppressedLines| {
            let fields = [
                ("suppressed", Value::from(suppressed.count)),
                ("like", Value::from(&*suppressed.message)),
            ];
            self.count_line(suppressed.level, "more lines of one kind", &fields)
        };
        due.into_iter().flat_map(line).collect()
    }

    fn count_line(&self, level: Level, message: &str, fields: &[(&str, Value<'_>)]) -> Vec<u8> {
        let mut record = Record::builder();
        let fields = &fields;
        record.level(level).target("latchfs::log").key_values(fields);
        let (at, color) = (Wall::now(), Style::new());
        format_line(&record.args(format_args!("{message}")).build(), at, self.style, color)
    }
}

/// Writes all bytes, and waits where the other end of a pipe or terminal has made it non-blocking
/// for all who share it.
fn write_patiently(out: &mut dyn Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(WRITE_PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Maximum number of lines of one kind in a second.
const LINES_MAX: usize = 100;

/// Maximum number of lines of one kind in a second that name the same client, or none.
const CLIENT_LINES_MAX: usize = LINES_MAX / 2;

/// The time in which lines are counted.
const WINDOW: Span = Span::from_secs(1);

/// The place that logs a record: its file and its line.
type LogPlace = (&'static str, u32);

/// The lines of each kind in its current second.
#[derive(Default)]
pub(super) struct LineLimits(HashMap<LogPlace, KindCount>);

struct KindCount {
    begun: Time,
    /// The written lines, by the client that they name; those without one have an empty name.
    lines: SharedTable,
    written: Vec<TableShare>,
    suppressed: Option<SuppressedLines>,
}

/// Lines of one kind that are left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SuppressedLines {
    pub(super) level: Level,
    pub(super) count: u64,
    /// The message of the first of these lines.
    pub(super) message: String,
}

impl KindCount {
    fn new(begun: Time) -> Self {
        let lines = SharedTable::new("lines", LINES_MAX, CLIENT_LINES_MAX);
        Self { begun, lines, written: Vec::new(), suppressed: None }
    }

    /// Whether one more line about a client is within the limits. If so, it is counted.
    fn has_room_for(&mut self, client: &str) -> bool {
        let line = self.lines.take(&Identity::Credential(client.into()), 1);
        line.map(|line| self.written.push(line)).is_ok()
    }
}

impl LineLimits {
    /// Whether a record gets a line; otherwise it is counted as suppressed.
    pub(super) fn admit(&mut self, record: &Record<'_>, now: Time) -> bool {
        let place = (record.file_static().unwrap_or_default(), record.line().unwrap_or_default());
        let kind = self.0.entry(place).or_insert_with(|| KindCount::new(now));
        if now.since(kind.begun) >= WINDOW && kind.suppressed.is_none() {
            *kind = KindCount::new(now);
        }
        let client = record.key_values().get(Key::from("client"));
        let client = client.as_ref().and_then(Value::to_borrowed_str).unwrap_or_default();
        if kind.has_room_for(client) {
            return true;
        }
        let message = || record.args().to_string().chars().take(200).collect();
        let (level, count) = (record.level(), 0);
        kind.suppressed
            .get_or_insert_with(|| SuppressedLines { level, count, message: message() })
            .count += 1;
        false
    }

    /// Returns the earliest time at which the number of suppressed lines of a kind is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        let full = self.0.values().filter(|kind| kind.suppressed.is_some());
        full.map(|kind| kind.begun + WINDOW).min()
    }

    /// Returns the suppressed lines whose second is over; of all kinds, if the log ends.
    pub(super) fn take_due(&mut self, now: Time, is_end: bool) -> Vec<SuppressedLines> {
        let over = self.0.values_mut().filter(|kind| is_end || now.since(kind.begun) >= WINDOW);
        let due = over.filter_map(|kind| {
            let suppressed = kind.suppressed.take()?;
            *kind = KindCount::new(now);
            Some(suppressed)
        });
        due.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, logger};
    use super::*;
    use log::{LevelFilter, Log as _};
    use std::sync::mpsc::{Receiver, Sender};

    /// A reader that takes nothing until the test permits it.
    struct Blocked {
        begins: Receiver<()>,
        is_open: bool,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.is_open = self.is_open || self.begins.recv().is_ok();
            self.taken.send(bytes.to_vec()).expect("the test reads");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A caller never waits for a reader that has stopped, the memory has a bound, and each line is
    /// either written or counted.
    #[test]
    fn queue_that_nobody_reads_is_bounded_and_counts_its_losses() {
        let ((begin, begins), (taken, written)) = (channel(), channel());
        let out = Box::new(Blocked { begins, is_open: false, taken });
        let queue = LineQueue::start(out, LineStyle::Plain).expect("a thread");
        let line = "x".repeat(1_023) + "\n";
        for _ in 0..5_000 {
            queue.0.push(line.as_bytes());
            assert!(queue.0.state.lock().lines.len() <= QUEUE_BYTES_MAX);
        }
        // The sum of suppressed lines does not need room in the queue.
        let mut builder = env_logger::Builder::new();
        builder.filter_level(LevelFilter::Info);
        let logger = logger(builder, LineStyle::Plain, Some(&queue), Limits::OfKind);
        let refused = || {
            let mut record = Record::builder();
            record.level(Level::Info).file_static(Some("a.rs")).line(Some(1));
            logger.log(&record.args(format_args!("request refused")).build());
        };
        (0..1_000).for_each(|_| refused());
        queue.finish(Duration::from_millis(1));
        begin.send(()).expect("the thread waits");
        queue.finish(Duration::from_secs(60));
        queue.0.push(b"last\n");
        queue.finish(Duration::from_secs(60));
        let all = String::from_utf8(written.try_iter().flatten().collect()).expect("text");
        let is_line = |line: &&str| line.starts_with('x') || line.ends_with("request refused");
        let lines = all.lines().filter(is_line).count() as u64;
        let sum = |field: &str| -> u64 {
            let number =
                |line: &str| line.split_once(field)?.1.split(' ').next()?.parse::<u64>().ok();
            all.lines().filter_map(number).sum()
        };
        let (lost, suppressed) = (sum(" lost="), sum(" suppressed="));
        assert!(lost >= 2_900 && suppressed >= 800, "the queue was full: {lost}, {suppressed}");
        assert_eq!(lines + lost + suppressed, 6_000);
        assert!(all.ends_with("last\n"));
    }

    /// A disk that is full in the middle of a line, and then has space again.
    struct FullOnce {
        written: usize,
        taken: Sender<Vec<u8>>,
    }

    impl Write for FullOnce {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written += 1;
            match self.written {
                1 => Err(io::ErrorKind::WouldBlock.into()),
                3 => Err(io::ErrorKind::StorageFull.into()),
                _ => {
                    let count = bytes.len().min(if self.written == 2 { 5 } else { usize::MAX });
                    self.taken.send(bytes[..count].to_vec()).expect("the test reads");
                    Ok(count)
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// No line is continued by another one, and a write is repeated that only had to wait.
    #[test]
    fn line_that_was_torn_is_ended_before_the_next_one() {
        let (taken, written) = channel();
        let out = Box::new(FullOnce { written: 0, taken });
        let queue = LineQueue::start(out, LineStyle::Plain).expect("a thread");
        for line in [b"first line\n", b"other line\n"] {
            queue.0.push(line);
            queue.finish(Duration::from_secs(60));
        }
        let all = String::from_utf8(written.try_iter().flatten().collect()).expect("text");
        let (whole, loss): (Vec<_>, Vec<_>) = all.lines().partition(|line| !line.contains("lost"));
        assert_eq!(whole, ["first", "other line"], "{all}");
        assert!(matches!(*loss, [loss] if loss.ends_with(" lost=1")), "{all}");
    }
}

#[cfg(test)]
mod line_limits_tests {
    use super::*;
    use log::kv::ToValue as _;

    fn admit_of(limits: &mut LineLimits, client: Option<&str>, line: u32, now: Time) -> bool {
        let fields: &[(&str, Value<'_>)] = &[("lock", "x".into()), ("client", client.to_value())];
        let mut record = Record::builder();
        record.file_static(Some("a.rs")).line(Some(line)).level(Level::Info).key_values(&fields);
        limits.admit(&record.args(format_args!("request refused")).build(), now)
    }

    fn admit(limits: &mut LineLimits, line: u32, now: Time) -> bool {
        admit_of(limits, None, line, now)
    }

    /// A client that floods the log has half of the lines; the others have the rest, and those that
    /// come in time are all there.
    #[test]
    fn flood_of_one_client_leaves_half_of_the_lines_to_others() {
        let (mut limits, now) = (LineLimits::default(), Time::ZERO);
        let flood = (0..10_000).filter(|_| admit_of(&mut limits, Some("loud"), 1, now)).count();
        let quiet = |n: u32| format!("quiet{n}");
        let others = (0..1_000).filter(|n| admit_of(&mut limits, Some(&quiet(*n)), 1, now)).count();
        assert_eq!((flood, others), (50, 50));
        assert_eq!(
            limits.0[&("a.rs", 1)].lines.identities(),
            51,
            "names beyond the limit take no memory"
        );
        let due = limits.take_due(now + WINDOW, false);
        assert_eq!(due.iter().map(|due| due.count).sum::<u64>(), 11_000 - 100);
    }

    /// A client that is refused 10,000 times a second has 50 lines a second, and no refusal is
    /// missing in the sum.
    #[test]
    fn flood_of_one_kind_has_few_lines_a_second_and_an_exact_count() {
        let (mut limits, mut written, mut suppressed) = (LineLimits::default(), 0, 0);
        for n in 0..100_000_u64 {
            let now = Time::ZERO + Span::from_millis(n / 10);
            for due in limits.take_due(now, false) {
                assert_eq!((due.level, &*due.message), (Level::Info, "request refused"));
                suppressed += due.count;
            }
            written += u64::from(admit(&mut limits, 1, now));
            // Lines of another kind are not suppressed.
            if n % 1_000 == 0 {
                assert!(admit(&mut limits, 2, now));
            }
        }
        let rest = limits.take_due(Time::ZERO + Span::from_secs(10), true);
        suppressed += rest.iter().map(|due| due.count).sum::<u64>();
        assert_eq!(written, 10 * CLIENT_LINES_MAX as u64);
        assert_eq!(written + suppressed, 100_000);
        assert_eq!(limits.next_due(), None);
        assert_eq!(limits.0.len(), 2);
    }

    #[test]
    fn slow_lines_are_never_suppressed() {
        let mut limits = LineLimits::default();
        for n in 0..1_000 {
            assert!(admit(&mut limits, 1, Time::ZERO + Span::from_millis(20 * n)));
        }
        assert_eq!(limits.next_due(), None);
    }
}
