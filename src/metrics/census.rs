//! The number of locks and waiters by phase and by prefix, counted when the metrics are read.
//!
//! The prefix of a lock is the first part of its name. Clients choose the names, so the number of
//! prefixes that have a label of their own is limited for the life of the process.

use super::exposition::{MetricKind, MetricsPage};
use crate::engine::{LockName, Phase};
use crate::service::Locks;
use crate::time::{Span, Time, boot_now};

/// The number of prefixes with a label of their own; all others share one label.
const PREFIXES_MAX: usize = 20;

/// The number of locks that are counted under the mutex of the engine at a time.
const SLICE: usize = 1_000;

/// The share of the time that counting may take: one part in so many.
const REST: u64 = 10;

/// The label of names with a single part. No part of a name is empty.
const WITHOUT_PREFIX: &str = "/";

/// The label of all prefixes beyond the first [`PREFIXES_MAX`]. The others end in a slash.
const OTHERS: &str = "other";

/// The last count of the locks, and the prefixes that have a label.
#[derive(Debug, Default)]
pub(super) struct Census {
    counted: Counts,
    /// When the next count may begin.
    stale_at: Time,
}

/// The number of locks and waiters by phase and by prefix.
#[derive(Debug, Default)]
struct Counts {
    /// Free, held, in grace.
    phases: [u64; 3],
    /// Those of names without a prefix, and of prefixes without a label.
    single: Count,
    others: Count,
    prefixes: Vec<(String, Count)>,
    /// The number of prefixes, at the beginning of the list, that had a label before.
    known: usize,
    /// The prefix of the last lock: all locks with one prefix follow each other.
    run: Option<(String, Count)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    locks: u64,
    waiters: u64,
}

impl Census {
    /// Counts the locks, unless that was done a moment ago, and adds the result to `page`.
    pub(super) fn add_to(&mut self, page: &mut MetricsPage, locks: &Locks) {
        let begun = boot_now();
        if begun >= self.stale_at {
            self.counted = self.counted.again(locks);
            let ended = boot_now();
            let took = ended.since(begun).as_nanos();
            self.stale_at = ended + Span::from_nanos(took.saturating_mul(REST));
        }
        self.counted.add_to(page);
    }
}

impl Counts {
    /// Counts all locks. The prefixes that have a label keep it.
    fn again(&self, locks: &Locks) -> Self {
        let known = self.prefixes.iter().map(|(prefix, _)| (prefix.clone(), Count::default()));
        let mut counts = Self { prefixes: known.collect(), ..Self::default() };
        counts.known = counts.prefixes.len();
        let mut after = None;
        while let Some(last) = locks.walk(after.as_ref(), SLICE, &mut |name, phase, waiters| {
            counts.add(name, phase, waiters as u64);
        }) {
            after = Some(last);
        }
        counts.end_run();
        counts
    }

    fn add(&mut self, name: &LockName, phase: Phase, waiters: u64) {
        self.phases[phase as usize] += 1;
        let count = match name.as_str().split_once('/') {
            None => &mut self.single,
            Some((prefix, _)) => {
                if self.run.as_ref().is_none_or(|(run, _)| run != prefix) {
                    self.end_run();
                }
                &mut self.run.get_or_insert_with(|| (prefix.to_owned(), Count::default())).1
            }
        };
        count.add(Count { locks: 1, waiters });
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
        let help = "Waiters by the first part of the names of their locks.";
        page.family("latchfs_waiters_by_prefix", help, MetricKind::Gauge);
        for (prefix, count) in all {
            page.sample(vec![("prefix", prefix)], count.waiters);
        }
    }
}

impl Count {
    const fn add(&mut self, other: Self) {
        self.locks += other.locks;
        self.waiters += other.waiters;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts one lock for each name of a list in order.
    fn count(before: &Counts, names: &[String]) -> Counts {
        let known = before.prefixes.iter().map(|(prefix, _)| (prefix.clone(), Count::default()));
        let mut counts = Counts { prefixes: known.collect(), ..Counts::default() };
        counts.known = counts.prefixes.len();
        for name in names {
            counts.add(&LockName::parse(name).expect("valid"), Phase::Held, 2);
        }
        counts.end_run();
        counts
    }

    fn prefixes(counts: &Counts) -> Vec<&str> {
        counts.prefixes.iter().map(|(prefix, _)| prefix.as_str()).collect()
    }

    #[test]
    fn the_number_of_prefixes_with_a_label_is_limited() {
        // Two prefixes more than there are labels; the last two have more locks than the others.
        let mut names: Vec<_> = (0..PREFIXES_MAX).map(|n| format!("a{n:02}/x")).collect();
        names.insert(0, "a".to_owned());
        names.extend(["b/x", "b/y", "c/x", "c/y", "c/z"].map(str::to_owned));
        let first = count(&Counts::default(), &names);
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
        let text = page.text(crate::metrics::Exposition::PrometheusText);
        assert!(text.contains("latchfs_locks_by_prefix{prefix=\"c/\"} 0\n"), "{text}");
    }
}
