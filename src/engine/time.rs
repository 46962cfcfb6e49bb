//! Engine time, wall-clock time and durations. Only this module reads the kernel's clocks.
//!
//! Durations are measured on the boot clock (`CLOCK_BOOTTIME`), which advances while a laptop
//! sleeps: a client on a sleeping machine does not renew its leases. Cluster nodes also read the
//! steady clock, which stands still meanwhile. No lease depends on the wall clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

const NANOS_PER_SEC: u64 = 1_000_000_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// A point in time: nanoseconds since an epoch that the source of the time defines, such as the
/// engine or the boot clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

/// A duration in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Time {
    /// The time 0, which is the epoch.
    pub const ZERO: Self = Self(0);

    /// A time later than every deadline. It stands for the expiry of a lease that does not expire
    /// by itself.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the point `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the point `secs` seconds after the epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * NANOS_PER_SEC)
    }

    /// Returns the nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, or [`Span::ZERO`] if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// A duration of zero.
    pub const ZERO: Self = Self(0);

    /// Returns a duration of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns a duration of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * NANOS_PER_MS)
    }

    /// Returns a duration of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * NANOS_PER_SEC)
    }

    /// Returns the duration in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the duration in whole milliseconds, rounded up, so that a client that waits this
    /// long has waited long enough.
    pub const fn as_millis(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MS)
    }

    /// Returns the duration as a [`Duration`] of std.
    pub const fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add<Span> for Time {
    type Output = Self;
    /// Returns the latest possible time if the sum overflows, so that a lease with a distant
    /// deadline does not wrap around and end at once.
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Time {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// Writes a duration in units: `24s`, `1m30s`, `2h`, `350ms`. Rounds up: to milliseconds below a
/// second, to tenths of a second below ten seconds, to seconds above.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.as_millis();
        if millis < 1_000 {
            return write!(f, "{millis}ms");
        }
        let tenths = millis.div_ceil(100);
        if tenths < 100 && !tenths.is_multiple_of(10) {
            return write!(f, "{}.{}s", tenths / 10, tenths % 10);
        }
        let secs = millis.div_ceil(1_000);
        let (hours, minutes, seconds) = (secs / 3_600, secs / 60 % 60, secs % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if seconds > 0 || secs == 0 {
            write!(f, "{seconds}s")?;
        }
        Ok(())
    }
}

/// Writes the seconds since the epoch as the test scripts in `tests/stories` do: `t=30s`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, millis) = (self.0 / NANOS_PER_SEC, self.0 / NANOS_PER_MS % 1_000);
        if millis == 0 { write!(f, "t={secs}s") } else { write!(f, "t={secs}.{millis:03}s") }
    }
}

/// The kernel's clock that advances while the machine sleeps.
#[cfg(target_os = "linux")]
const BOOT_CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
/// On macOS the monotonic clock advances during sleep; the one that stops is `UPTIME_RAW`.
#[cfg(not(target_os = "linux"))]
const BOOT_CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Returns the boot clock: the time since boot, including sleep.
pub fn boot_now() -> Time {
    let now = read(BOOT_CLOCK);
    if now.saturating_sub(WALL_SEEN.load(Ordering::Relaxed)) > WALL_TRUSTED.0 {
        update_wall_offset(now);
    }
    Time(now)
}

/// Returns how far the boot clock is ahead of the monotonic clock, which stands still while the
/// machine sleeps, when the boot clock shows `boot`. NTP changes the rate of both alike.
pub fn slept_at(boot: Time) -> Span {
    // Read later than the boot clock: a pause in between makes the difference smaller.
    Span(boot.0.saturating_sub(read(libc::CLOCK_MONOTONIC)))
}

/// The kernel's clock that stands still while the machine sleeps, and whose rate NTP does not
/// change: chrony may slew the other clocks by 8 %.
#[cfg(target_os = "linux")]
const STEADY_CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_RAW;
#[cfg(not(target_os = "linux"))]
const STEADY_CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Returns the steady clock, which never jumps and, on Linux, stands still while the machine
/// sleeps. The leader of a cluster derives engine time from it, so that clients which could not
/// reach the leader because its machine slept lose no lease.
pub fn steady_now() -> Time {
    Time(read(STEADY_CLOCK))
}

/// Returns the kernel's boot id, which tells the epoch of the boot clock from that of other boots;
/// 0 if the kernel has none.
pub fn this_boot() -> u128 {
    static BOOT: OnceLock<u128> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = boot_id();
        let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&hex, 16).unwrap_or_default()
    })
}

#[cfg(target_os = "linux")]
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Reads the boot id on macOS.
#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
fn boot_id() -> String {
    let (name, mut bytes) = (c"kern.bootsessionuuid", [0_u8; 64]);
    let (mut length, into) = (bytes.len(), bytes.as_mut_ptr().cast());
    // SAFETY: the name ends with a zero byte; at most `length` bytes are written to `bytes`.
    let result = unsafe {
        libc::sysctlbyname(name.as_ptr(), into, &raw mut length, std::ptr::null_mut(), 0)
    };
    let known = bytes.get(..length).filter(|_| result == 0).unwrap_or_default();
    String::from_utf8_lossy(known).into_owned()
}

/// Returns the CPU time of the calling thread, which does not depend on the load of the machine.
pub fn thread_work() -> Duration {
    Duration::from_nanos(read(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// Reads one of the kernel's clocks, in nanoseconds.
#[allow(unsafe_code)]
fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to, and these clocks exist since Linux 2.6.39.
    let result = unsafe { libc::clock_gettime(clock, &raw mut now) };
    assert_eq!(result, 0, "the kernel has this clock");
    let nanos = now.tv_sec as u64 * NANOS_PER_SEC + now.tv_nsec as u64;
    nanos.saturating_add(shift(clock))
}

/// How far a test has moved the clocks that count a sleep, in nanoseconds: the file that
/// `LATCHFS_TEST_CLOCK` names holds the number. Release builds have no such file.
#[cfg(debug_assertions)]
fn shift(clock: libc::clockid_t) -> u64 {
    use std::os::unix::fs::FileExt as _;
    static FILE: OnceLock<Option<std::fs::File>> = OnceLock::new();
    if clock != BOOT_CLOCK && clock != libc::CLOCK_REALTIME {
        return 0;
    }
    let open = || std::fs::File::open(std::env::var_os("LATCHFS_TEST_CLOCK")?).ok();
    let mut nanos = [0; 8];
    match FILE.get_or_init(open).as_ref().map(|file| file.read_exact_at(&mut nanos, 0)) {
        Some(Ok(())) => u64::from_le_bytes(nanos),
        _ => 0,
    }
}

#[cfg(not(debug_assertions))]
const fn shift(_clock: libc::clockid_t) -> u64 {
    0
}

/// A wall-clock time: seconds and nanoseconds since 1970. No lease depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Wall {
    /// Seconds since 1970; negative before that.
    pub secs: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

/// How far the wall clock was ahead of the boot clock at the last reading, in nanoseconds.
static WALL_AHEAD: AtomicI64 = AtomicI64::new(0);

/// The boot time of the last reading of the wall clock; 0 before the first one.
static WALL_SEEN: AtomicU64 = AtomicU64::new(0);

/// How long a reading of the wall clock stays valid. Code that shows a time has read the boot clock
/// just before, so a step of the wall clock is noticed after this long.
const WALL_TRUSTED: Span = Span::from_millis(10);

/// A change of the offset up to this is drift or reading noise and is ignored; a larger one is a
/// step of the wall clock, and is adopted.
const WALL_STEP_NANOS: i64 = (NANOS_PER_SEC / 4) as i64;

/// Updates the offset between the clocks, given that the boot clock shows `boot` nanoseconds.
///
/// The offset stays the same until the wall clock is set. If a file's times varied by the
/// nanoseconds between two clock readings, `tar` would report that the file changed.
fn update_wall_offset(boot: u64) {
    let ahead = (read(libc::CLOCK_REALTIME) as i64).wrapping_sub(boot as i64);
    if (ahead - WALL_AHEAD.load(Ordering::Relaxed)).abs() > WALL_STEP_NANOS {
        WALL_AHEAD.store(ahead, Ordering::Relaxed);
    }
    WALL_SEEN.store(boot, Ordering::Relaxed);
}

impl Wall {
    /// Returns the current wall-clock time.
    pub fn now() -> Self {
        Self::from_nanos(read(libc::CLOCK_REALTIME) as i64)
    }

    /// Returns the wall-clock time for the boot time `boot`. Each reading of the boot clock by
    /// `boot_now` keeps the offset between the clocks up to date.
    pub fn at_boot_time(boot: Time) -> Self {
        Self::from_nanos((boot.0 as i64).saturating_add(WALL_AHEAD.load(Ordering::Relaxed)))
    }

    /// Returns how many milliseconds `self` is later than `other`; negative if it is earlier.
    pub fn millis_ahead_of(self, other: Self) -> i64 {
        let millis = |wall: Self| {
            wall.secs.saturating_mul(1_000).saturating_add(i64::from(wall.nanos / 1_000_000))
        };
        millis(self).saturating_sub(millis(other))
    }

    /// Returns the time to the minute, as sentences name it: `2024-01-15 10:30 UTC`.
    pub fn to_minute(self) -> String {
        let text = self.to_string();
        match text.rsplit_once(':').and_then(|(minute, _)| minute.split_once('T')) {
            Some((day, minute)) => format!("{day} {minute} UTC"),
            None => text,
        }
    }

    const fn from_nanos(nanos: i64) -> Self {
        let per_sec = NANOS_PER_SEC as i64;
        Self { secs: nanos.div_euclid(per_sec), nanos: nanos.rem_euclid(per_sec) as u32 }
    }
}

/// Writes RFC 3339 in UTC, with milliseconds: `2024-01-15T10:30:00.000Z`.
impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, secs) = (self.secs.div_euclid(86_400), self.secs.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
        let millis = i64::from(self.nanos / 1_000_000);
        if !(0..=9_999).contains(&year) {
            let date = format_args!("{year:04}-{month:02}-{day:02}");
            return write!(f, "{date}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z");
        }
        // The text is written digit by digit: each status contains several times, and `write!` is
        // slower.
        let mut shown = *b"0000-00-00T00:00:00.000Z";
        let places = [
            (4, year),
            (7, month),
            (10, day),
            (13, hour),
            (16, minute),
            (19, second),
            (23, millis),
        ];
        for (end, mut number) in places {
            let mut place = end;
            while number > 0 {
                place -= 1;
                shown[place] = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
        f.write_str(std::str::from_utf8(&shown).expect("digits are text"))
    }
}

/// Returns the calendar date of a day counted from 1970-01-01 (Hinnant's `civil_from_days`).
const fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468; // count from 0000-03-01, so that leap days end a year
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_shown_in_units() {
        let said = |millis| Span::from_millis(millis).to_string();
        assert_eq!(said(0), "0ms");
        assert_eq!(said(350), "350ms");
        assert_eq!(said(1_000), "1s");
        assert_eq!(said(1_500), "1.5s");
        assert_eq!(said(1_501), "1.6s");
        assert_eq!(said(1_999), "2s");
        assert_eq!(said(23_100), "24s");
        assert_eq!(said(90_000), "1m30s");
        assert_eq!(said(7_200_000), "2h");
    }

    #[test]
    fn wall_times_are_rfc_3339() {
        let shown = |secs| Wall { secs, nanos: 0 }.to_string();
        assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(1_705_314_600), "2024-01-15T10:30:00.000Z");
        let minute = Wall { secs: 1_705_314_659, nanos: 0 }.to_minute();
        assert_eq!(minute, "2024-01-15 10:30 UTC");
        assert_eq!(shown(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(shown(-1), "1969-12-31T23:59:59.000Z");
        assert_eq!(shown(253_402_300_799), "9999-12-31T23:59:59.000Z");
        assert_eq!(shown(253_402_300_800), "10000-01-01T00:00:00.000Z");
        assert_eq!(Wall { secs: 0, nanos: 7_999_999 }.to_string(), "1970-01-01T00:00:00.007Z");
        // Of four centuries, three end without a leap day.
        for (secs, day) in [
            (4_107_456_000, "2100-02-28"),
            (4_107_542_400, "2100-03-01"),
            (7_263_129_600, "2200-02-28"),
            (10_445_673_600, "2301-01-05"),
            (13_574_476_800, "2400-02-28"),
            (13_574_563_200, "2400-02-29"),
            (13_574_649_600, "2400-03-01"),
        ] {
            assert_eq!(shown(secs), format!("{day}T00:00:00.000Z"));
        }
    }

    #[test]
    fn times_are_shown_in_seconds_and_converted() {
        assert_eq!(Time::from_secs(30).to_string(), "t=30s");
        assert_eq!(Time::from_nanos(61_005_000_000).to_string(), "t=61.005s");
        let half = Duration::from_millis(500);
        assert_eq!(
            (Span::from(half), Span::from_millis(500).as_duration()),
            (Span(500_000_000), half)
        );
        let (early, late) = (Wall { secs: 1, nanos: 0 }, Wall { secs: 2, nanos: 5_999_999 });
        assert_eq!((late.millis_ahead_of(early), early.millis_ahead_of(late)), (1_005, -1_005));
    }

    /// The clocks of this module are those of std and of the kernel.
    #[test]
    fn clocks_show_the_time() {
        let system = std::time::UNIX_EPOCH.elapsed().expect("after 1970");
        let system = Wall::from_nanos(system.as_nanos() as i64);
        let (boot, steady) = (boot_now(), steady_now());
        for wall in [Wall::now(), Wall::at_boot_time(boot)] {
            assert!((-1_000..60_000).contains(&wall.millis_ahead_of(system)), "{wall} {system}");
        }
        assert!(boot_now() >= boot && steady_now() >= steady && steady > Time::from_nanos(1));
        // A machine that has slept for an hour.
        let later = Time(read(libc::CLOCK_MONOTONIC)) + Span::from_secs(3_600);
        assert!((3_500..=3_600).contains(&(slept_at(later).0 / NANOS_PER_SEC)));
        let worked = thread_work();
        while thread_work() == worked {}
        assert!(thread_work() > worked && worked < Duration::from_secs(3_600));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn boot_has_the_id_of_the_kernel() {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
        assert_eq!(format!("{:032x}", this_boot()), id.trim().replace('-', ""));
    }

    /// Runs itself again with the clock of a test, which a process reads once.
    #[test]
    fn test_moves_the_clocks_that_count_a_sleep() {
        let hours = Span::from_secs(36_000);
        let system = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as i64;
        if std::env::var_os("LATCHFS_TEST_CLOCK").is_some() {
            let slept = slept_at(boot_now()).0 / NANOS_PER_SEC;
            assert!((35_000..36_000 + 86_400 * 365).contains(&slept), "{slept}");
            let ahead = Wall::now().millis_ahead_of(Wall::from_nanos(system));
            assert!((35_999_000..36_060_000).contains(&ahead), "{ahead}");
            return;
        }
        let file = std::env::temp_dir().join(format!("latchfs-clock-{}", std::process::id()));
        std::fs::write(&file, hours.as_nanos().to_le_bytes()).expect("writable");
        let mut again = std::process::Command::new(std::env::current_exe().expect("a test"));
        let name = "time::tests::test_moves_the_clocks_that_count_a_sleep";
        let ended = again.args(["--exact", name]).env("LATCHFS_TEST_CLOCK", &file).output();
        std::fs::remove_file(file).expect("it is there");
        let ended = ended.expect("it starts");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    }

    #[test]
    fn converted_file_times_are_stable() {
        let boot = boot_now();
        assert_eq!(Wall::at_boot_time(boot), Wall::at_boot_time(boot));
    }
}
