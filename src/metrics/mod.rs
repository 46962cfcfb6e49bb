//! The metrics page for Prometheus. The metrics of every front end (such as a mount or the HTTP
//! server) include the same counters of the engine and of the process.
//!
//! `exposition` has the page and its text formats, with the number of locks by phase and by prefix.

mod exposition;

pub use exposition::{Exposition, Labels, MetricKind, MetricsPage};

use crate::metrics::exposition::Census;
use crate::service::{BackendKind, LockService};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Writes the metrics of a lock service and of this process.
pub struct ServiceMetrics {
    locks: Arc<dyn LockService>,
    census: Mutex<Census>,
}

impl ServiceMetrics {
    /// Returns the metrics of the lock service behind `locks`.
    pub fn new(locks: Arc<dyn LockService>) -> Self {
        Self { locks, census: Mutex::default() }
    }

    /// Returns a page that begins with the metrics of the process and of the lock service. With
    /// many locks this takes some milliseconds, so no thread with other tasks should call it.
    pub fn page(&self) -> MetricsPage {
        let mut page = MetricsPage::default();
        page.family("latchfs_build_info", "The version of the program.", MetricKind::Gauge);
        let mut labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        labels.extend(option_env!("LATCHFS_COMMIT").map(|commit| ("commit", commit.to_owned())));
        page.sample(labels, 1);
        #[cfg(target_os = "linux")]
        add_process(&mut page);
        self.add_gauges(&mut page);
        if self.locks.about().kind == BackendKind::Embedded {
            self.census.lock().add_to(&mut page, &self.locks);
        }
        for count in self.locks.counts() {
            page.family(count.name, count.help, MetricKind::Counter);
            let label = count.label.map(|(name, value)| (name, value.to_owned()));
            page.sample(label.into_iter().collect(), count.value);
        }
        for histogram in self.locks.histograms() {
            page.family(histogram.name, histogram.help, MetricKind::Histogram);
            page.histogram(Vec::new(), &histogram);
        }
        page
    }

    fn add_gauges(&self, page: &mut MetricsPage) {
        let about = self.locks.about();
        let help = "Locks that are held, in grace or waited for.";
        page.gauge("latchfs_locks", help, about.locks as u64);
        page.gauge("latchfs_waiters", "Waiters in all queues.", about.waiters as u64);
        page.gauge("latchfs_sessions", "Open sessions.", about.sessions as u64);
        if about.kind == BackendKind::Embedded {
            let left = self.locks.hold_off().map(|it| it.until.since(self.locks.now()));
            let help = "Seconds until locks are granted after a start without the old leases.";
            page.family("latchfs_hold_off_seconds", help, MetricKind::Gauge);
            page.duration(Vec::new(), left.unwrap_or_default().as_duration());
        }
        if let Some(ids) = self.locks.request_ids() {
            let help = "Requests whose answers are remembered.";
            page.gauge("latchfs_request_ids", help, ids as u64);
        }
        if let Some(names) = self.locks.remembered_names() {
            let help =
                "Names that are remembered beyond a tenure, such as those of guarded folders.";
            page.gauge("latchfs_remembered_names", help, names as u64);
        }
    }
}

impl fmt::Debug for ServiceMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceMetrics").finish_non_exhaustive()
    }
}

/// Adds the processor time, memory, descriptors and start time of this process, under the
/// names that all Prometheus clients use, as far as the system tells them.
#[cfg(target_os = "linux")]
fn add_process(page: &mut MetricsPage) {
    use procfs::process::{LimitValue, Process};
    use std::time::Duration;

    let Ok(process) = Process::myself() else { return };
    if let Ok(stat) = process.stat() {
        let per_second = procfs::ticks_per_second().max(1);
        let lasting = |ticks: u64| Duration::from_millis(ticks.saturating_mul(1_000) / per_second);
        let help = "User and system processor time.";
        page.family("process_cpu_seconds_total", help, MetricKind::Counter);
        page.duration(Vec::new(), lasting(stat.utime + stat.stime));
        let resident = stat.rss.saturating_mul(procfs::page_size());
        page.gauge("process_resident_memory_bytes", "Resident memory.", resident);
        page.gauge("process_virtual_memory_bytes", "Virtual memory.", stat.vsize);
        if let Ok(boot) = procfs::boot_time_secs() {
            let help = "When the process began, as Unix time.";
            page.family("process_start_time_seconds", help, MetricKind::Gauge);
            page.duration(Vec::new(), Duration::from_secs(boot) + lasting(stat.starttime));
        }
    }
    if let Ok(open) = process.fd_count() {
        page.gauge("process_open_fds", "Open file descriptors.", open as u64);
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(max) = limits.max_open_files.soft_limit
    {
        page.gauge("process_max_fds", "The maximum number of open file descriptors.", max);
    }
}
