//! The metrics page and the formats of its text: `OpenMetrics`, and the older text format of
//! Prometheus.
//!
//! The number of locks and waiters by phase and by prefix, counted when the metrics are read.
//!
//! The prefix of a lock is the first part of its name. Clients choose the names, so the number of
//! prefixes that have a label of their own is limited for the life of the process.

use crate::engine::{LockCount, LockName, Phase};
use crate::service::LockService;
use crate::service::counters::Histogram;
use crate::time::{Span, Time, boot_now};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The labels of a sample, with their values.
pub type Labels = Vec<(&'static str, String)>;

/// A page of metrics, written from top to bottom.
#[derive(Debug, Clone, Default)]
pub struct MetricsPage {
    families: Vec<Family>,
}

/// A metric with its samples.
#[derive(Debug, Clone)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    samples: Vec<(Labels, Sample)>,
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A count of events since the start. Its name ends in `_total`.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// Durations in seconds.
    Histogram,
}

#[derive(Debug, Clone)]
enum Sample {
    Whole(u64),
    Seconds(f64),
    Durations(Histogram),
}

/// The text format of a metrics page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// The `OpenMetrics` text format, version 1.0.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    PrometheusText,
}

impl Exposition {
    /// Returns the format that a client prefers by its header `Accept`. As in other programs that
    /// Prometheus reads, this is the older format unless the client accepts `OpenMetrics`.
    pub fn accepted(accept: &str) -> Self {
        let quality = |range: &str| {
            let parameter =
                |name| range.split(';').skip(1).find_map(|it| it.trim().strip_prefix(name));
            let quality = parameter("q=").map_or(Ok(1.0), str::parse::<f64>).unwrap_or(0.0);
            let is_known =
                matches!(parameter("version="), None | Some("0.0.1" | "0.0.4" | "1.0.0"));
            if is_known { quality } else { 0.0 }
        };
        let best = |kinds: &[&str]| {
            let of_kind = accept.split(',').map(str::trim).filter(|range| {
                let kind = range.split(';').next().unwrap_or_default().trim();
                kinds.iter().any(|known| kind.eq_ignore_ascii_case(known))
            });
            of_kind.map(quality).fold(0.0, f64::max)
        };
        let open = best(&["application/openmetrics-text"]);
        let is_best = open > 0.0 && open >= best(&["text/plain", "text/*", "*/*"]);
        if is_best { Self::OpenMetrics } else { Self::PrometheusText }
    }

    /// Returns the media type of the text.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::PrometheusText => prometheus_text::CONTENT_TYPE,
        }
    }
}

impl MetricsPage {
    /// Begins a metric, unless the last one has this name. Calls that add samples of the metric
    /// must follow.
    pub fn family(&mut self, name: &'static str, help: &'static str, kind: MetricKind) {
        if self.families.last().is_none_or(|last| last.name != name) {
            self.families.push(Family { name, help, kind, samples: Vec::new() });
        }
    }

    /// Adds one sample of the current metric, with its labels.
    pub fn sample(&mut self, labels: Labels, value: u64) {
        self.add(labels, Sample::Whole(value));
    }

    /// Adds a duration, in seconds, as a sample of the current metric.
    pub fn duration(&mut self, labels: Labels, value: Duration) {
        self.add(labels, Sample::Seconds(value.as_secs_f64()));
    }

    /// Adds a histogram to the current metric.
    pub fn histogram(&mut self, labels: Labels, durations: &Histogram) {
        self.add(labels, Sample::Durations(durations.clone()));
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.family(name, help, MetricKind::Gauge);
        self.sample(Vec::new(), value);
    }

    /// Adds a counter without labels.
    pub fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.family(name, help, MetricKind::Counter);
        self.sample(Vec::new(), value);
    }

    fn add(&mut self, labels: Labels, sample: Sample) {
        if let Some(family) = self.families.last_mut() {
            family.samples.push((labels, sample));
        }
    }

    /// Returns the text of the whole page. A metric without samples is left out.
    pub fn text(self, format: Exposition) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        let written = match format {
            Exposition::OpenMetrics => text::encode(&mut text, &registry),
            Exposition::PrometheusText => prometheus_text::encode(&mut text, &registry),
        };
        // Writing to a string does not fail, and every sample has the type of its metric.
        debug_assert_eq!(written, Ok(()));
        text
    }
}

impl Collector for MetricsPage {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let filled = self.families.iter().filter(|family| !family.samples.is_empty());
        for Family { name, help, kind, samples } in filled {
            // The encoder adds `_total` to a counter's name, and the unit to the name of a metric
            // that has one.
            let name = name.strip_suffix("_total").unwrap_or(name);
            let in_seconds = name.strip_suffix("_seconds").map(|name| (name, Unit::Seconds));
            let unit = in_seconds.or(name.strip_suffix("_bytes").map(|name| (name, Unit::Bytes)));
            let (name, unit) = unit.map_or((name, None), |(name, unit)| (name, Some(unit)));
            let kind = match kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (labels, sample) in samples {
                sample.encode(kind, metric.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl Sample {
    fn encode(&self, kind: MetricType, mut metric: MetricEncoder) -> fmt::Result {
        match (self, kind) {
            (Self::Whole(value), MetricType::Counter) => {
                metric.encode_counter::<NoLabelSet, _, u64>(value, None)
            }
            (Self::Seconds(value), MetricType::Counter) => {
                metric.encode_counter::<NoLabelSet, _, u64>(value, None)
            }
            // The encoder refuses a gauge above the signed numbers; no gauge comes near.
            (Self::Whole(value), _) => metric.encode_gauge(&(*value).min(i64::MAX as u64)),
            (Self::Seconds(value), _) => metric.encode_gauge(value),
            (Self::Durations(durations), _) => {
                let mut below = 0;
                let counts = durations
                    .at_most
                    .iter()
                    .map(|(bound, count)| (bound.as_duration().as_secs_f64(), *count));
                let counts = counts.chain([(f64::INFINITY, durations.count)]);
                // The encoder sums the buckets up itself.
                let each = counts.map(|(bound, count)| {
                    let own = count.saturating_sub(below);
                    below = count;
                    (bound, own)
                });
                let buckets: Vec<_> = each.collect();
                let sum = durations.sum.as_duration().as_secs_f64();
                metric.encode_histogram::<NoLabelSet>(sum, durations.count, &buckets, None)
            }
        }
    }
}

/// The number of prefixes with a label of their own; all others share one label.
const PREFIXES_MAX: usize = 20;

/// The number of locks that are counted under the mutex of the engine at a time.
const SLICE: usize = 1_000;

/// The share of the time that counting may take: one part in so many.
const REST: u64 = 10;

/// The label of names with a single part. No part of a name is empty.
const WITHOUT_PREFIX: &str = "/";

/// The label of all prefixes beyond the first [`PREFIXES_MAX`]. The label of a prefix ends in a
/// slash, so that no prefix has this one.
const OTHERS: &str = "other";

/// The last count of the locks, and the prefixes that have a label.
#[derive(Debug, Default)]
pub(super) struct Census {
    counted: LockCounts,
    /// When the next count may begin.
    stale_at: Time,
}

/// The number of locks and waiters by phase and by prefix.
#[derive(Debug, Default)]
struct LockCounts {
    /// The number of locks by phase: free, held and in grace.
    phases: [u64; 3],
    /// The locks and waiters of names without a prefix, and below those of prefixes without a
    /// label.
    single: PrefixCount,
    others: PrefixCount,
    prefixes: Vec<(String, PrefixCount)>,
    /// The number of prefixes, at the beginning of the list, that had a label before.
    known: usize,
    /// The prefix of the last lock: all locks with one prefix follow each other.
    run: Option<(String, PrefixCount)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PrefixCount {
    locks: u64,
    holders: u64,
    waiters: u64,
}

impl Census {
    /// Counts the locks, unless that was done a moment ago, and adds the result to `page`.
    pub(super) fn add_to(&mut self, page: &mut MetricsPage, locks: &Arc<dyn LockService>) {
        let begun = boot_now();
        if begun >= self.stale_at {
            self.counted = self.counted.recount(locks);
            let ended = boot_now();
            let took = ended.since(begun).as_nanos();
            self.stale_at = ended + Span::from_nanos(took.saturating_mul(REST));
        }
        self.counted.add_to(page);
    }
}

impl LockCounts {
    /// Counts all locks. The prefixes that have a label keep it.
    fn recount(&self, locks: &Arc<dyn LockService>) -> Self {
        let known =
            self.prefixes.iter().map(|(prefix, _)| (prefix.clone(), PrefixCount::default()));
        let mut counts = Self { prefixes: known.collect(), ..Self::default() };
        counts.known = counts.prefixes.len();
        let mut after = None;
        while let Some(last) = locks.walk(after.as_ref(), SLICE, &mut |name, count| {
            counts.add(name, count);
        }) {
            after = Some(last);
        }
        counts.end_run();
        counts
    }

    fn add(&mut self, name: &LockName, lock: LockCount) {
        self.phases[lock.phase as usize] += 1;
        let count = match name.as_str().split_once('/') {
            None => &mut self.single,
            Some((prefix, _)) => {
                if self.run.as_ref().is_none_or(|(run, _)| run != prefix) {
                    self.end_run();
                }
                &mut self.run.get_or_insert_with(|| (prefix.to_owned(), PrefixCount::default())).1
            }
        };
        let (holders, waiters) = (lock.holders as u64, lock.waiters as u64);
        count.add(PrefixCount { locks: 1, holders, waiters });
    }

    /// Enters the count of the last prefix. If more prefixes are new than labels are left, those
    /// with the most locks get one.
    fn end_run(&mut self) {
        let Some((mut prefix, mut count)) = self.run.take() else { return };
        if let Some((_, own)) = self.prefixes.iter_mut().find(|(known, _)| *known == prefix) {
            return *own = count;
        }
        if self.prefixes.len() < PREFIXES_MAX {
            return self.prefixes.push((prefix, count));
        }
        let new = self.prefixes[self.known..].iter_mut();
        if let Some(least) = new.min_by_key(|(_, count)| count.locks)
            && least.1.locks < count.locks
        {
            std::mem::swap(&mut least.0, &mut prefix);
            std::mem::swap(&mut least.1, &mut count);
        }
        self.others.add(count);
    }

    fn add_to(&self, page: &mut MetricsPage) {
        let help = "Locks by phase. A free lock is listed while requests wait for it.";
        page.family("latchfs_locks_by_phase", help, MetricKind::Gauge);
        for phase in [Phase::Free, Phase::Held, Phase::Grace] {
            let label = vec![("phase", phase.as_str().to_owned())];
            page.sample(label, self.phases[phase as usize]);
        }
        let named = self.prefixes.iter().map(|(prefix, count)| (format!("{prefix}/"), *count));
        let rest = [(WITHOUT_PREFIX.to_owned(), self.single), (OTHERS.to_owned(), self.others)];
        let all: Vec<_> = named.chain(rest).collect();
        let help = "Locks by the first part of their names.";
        page.family("latchfs_locks_by_prefix", help, MetricKind::Gauge);
        for (prefix, count) in &all {
            page.sample(vec![("prefix", prefix.clone())], count.locks);
        }
        let help = "Holders by the first part of the names of their locks: of each seat one.";
        page.family("latchfs_holders_by_prefix", help, MetricKind::Gauge);
        for (prefix, count) in &all {
            page.sample(vec![("prefix", prefix.clone())], count.holders);
        }
        let help = "Waiters by the first part of the names of their locks.";
        page.family("latchfs_waiters_by_prefix", help, MetricKind::Gauge);
        for (prefix, count) in all {
            page.sample(vec![("prefix", prefix)], count.waiters);
        }
    }
}

impl PrefixCount {
    const fn add(&mut self, other: Self) {
        self.locks += other.locks;
        self.holders += other.holders;
        self.waiters += other.waiters;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn open_metrics_is_for_clients_that_ask_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
            version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for accept in [
            prometheus,
            "application/openmetrics-text",
            "text/plain;q=0.2, Application/OpenMetrics-Text; version=1.0.0; q=0.3",
        ] {
            assert_eq!(Exposition::accepted(accept), Exposition::OpenMetrics, "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/plain",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.1,text/plain;version=0.0.4",
            "application/openmetrics-text;q=x",
        ] {
            assert_eq!(Exposition::accepted(accept), Exposition::PrometheusText, "{accept}");
        }
    }

    #[test]
    fn both_formats_have_the_names_that_the_page_was_given() {
        let mut page = MetricsPage::default();
        page.family("a_total", "Nothing counts.", MetricKind::Counter);
        page.family("b_total", "Counted.", MetricKind::Counter);
        page.sample(vec![("name", "x\"\\\n".to_owned())], 7);
        page.family("c_bytes", "Size.", MetricKind::Gauge);
        page.sample(Vec::new(), u64::MAX);
        page.family("d_seconds", "Time.", MetricKind::Histogram);
        let (at_most, sum) = (vec![(Span::from_millis(1), 2)], Span::from_millis(1_500));
        page.histogram(Vec::new(), &Histogram { name: "", help: "", at_most, count: 3, sum });
        let open = page.clone().text(Exposition::OpenMetrics);
        assert_eq!(
            open,
            "# HELP b Counted.\n# TYPE b counter\nb_total{name=\"x\\\"\\\\\\n\"} 7\n\
             # HELP c_bytes Size.\n# TYPE c_bytes gauge\n# UNIT c_bytes bytes\n\
             c_bytes 9223372036854775807\n\
             # HELP d_seconds Time.\n# TYPE d_seconds histogram\n# UNIT d_seconds seconds\n\
             d_seconds_sum 1.5\nd_seconds_count 3\n\
             d_seconds_bucket{le=\"0.001\"} 2\nd_seconds_bucket{le=\"+Inf\"} 3\n# EOF\n"
        );
        let older = page.text(Exposition::PrometheusText);
        assert!(older.contains("# TYPE b_total counter\nb_total{"), "{older}");
        assert!(!older.contains("# UNIT") && !older.contains("# EOF"), "{older}");
    }
}

#[cfg(test)]
mod census_tests {
    use super::*;

    /// Counts one lock for each name of a list in order.
    fn count(before: &LockCounts, names: &[String]) -> LockCounts {
        let known =
            before.prefixes.iter().map(|(prefix, _)| (prefix.clone(), PrefixCount::default()));
        let mut counts = LockCounts { prefixes: known.collect(), ..LockCounts::default() };
        counts.known = counts.prefixes.len();
        for name in names {
            let lock = LockCount { phase: Phase::Held, holders: 1, waiters: 2 };
            counts.add(&LockName::parse(name).expect("valid"), lock);
        }
        counts.end_run();
        counts
    }

    fn prefixes(counts: &LockCounts) -> Vec<&str> {
        counts.prefixes.iter().map(|(prefix, _)| prefix.as_str()).collect()
    }

    #[test]
    fn the_number_of_prefixes_with_a_label_is_limited() {
        // Two prefixes more than there are labels; the last two have more locks than the others.
        let mut names: Vec<_> = (0..PREFIXES_MAX).map(|n| format!("a{n:02}/x")).collect();
        names.insert(0, "a".to_owned());
        names.extend(["b/x", "b/y", "c/x", "c/y", "c/z"].map(str::to_owned));
        let first = count(&LockCounts::default(), &names);
        assert_eq!(first.prefixes.len(), PREFIXES_MAX);
        assert!(prefixes(&first).contains(&"b") && prefixes(&first).contains(&"c"));
        let (others, single) = (first.others, first.single);
        assert_eq!((others.locks, others.waiters, single.locks, single.waiters), (2, 4, 1, 2));
        // Later no label goes to another prefix, however many locks it has.
        let more = names.iter().cloned().chain((0..100).map(|n| format!("d/{n:03}")));
        let more: Vec<_> = more.collect();
        let second = count(&first, &more);
        assert_eq!(prefixes(&second), prefixes(&first));
        assert_eq!(second.others.locks, 102);
        // A prefix without locks keeps its label.
        let third = count(&second, &[]);
        assert_eq!(prefixes(&third), prefixes(&first));
        let mut page = MetricsPage::default();
        third.add_to(&mut page);
        let text = page.text(Exposition::PrometheusText);
        assert!(text.contains("latchfs_locks_by_prefix{prefix=\"c/\"} 0\n"), "{text}");
    }
}
