//! Processor time, memory and descriptors of this process, under the names that all Prometheus
//! clients use.

use super::exposition::{MetricKind, MetricsPage};
use procfs::process::{LimitValue, Process};
use std::time::Duration;

/// Adds the processor time, memory, descriptors and start time of this process, as far as the
/// system tells them.
pub(super) fn add_to(page: &mut MetricsPage) {
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
