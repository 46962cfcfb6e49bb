//! Writes metrics in Prometheus's text format. The metrics of every front end (such as a mount or
//! the HTTP server) include the same counters of the engine.

use crate::service::Locks;
use crate::service::counters::Histogram;
use crate::time::Span;
use std::fmt::Write;

/// A page of metrics in text format, written from top to bottom.
#[derive(Debug, Default)]
pub struct MetricsPage {
    text: String,
    family: String,
}

impl MetricsPage {
    /// Returns a page that begins with the counters, gauges and histograms of the engine behind
    /// `locks`.
    pub fn of(locks: &Locks) -> Self {
        let mut page = Self::default();
        page.family("latchfs_build_info", "The program, as labels.", "gauge");
        page.line(&format!("version=\"{}\"", env!("CARGO_PKG_VERSION")), 1);
        let about = locks.about();
        for (name, help, value) in [
            ("latchfs_locks", "Locks that are held, in grace or waited for.", about.locks),
            ("latchfs_waiters", "Waiters in all queues.", about.waiters),
            ("latchfs_sessions", "Open sessions.", about.sessions),
        ] {
            page.family(name, help, "gauge");
            page.line("", value as u64);
        }
        if let Some(ids) = locks.request_ids() {
            page.family("latchfs_request_ids", "Requests whose answers are remembered.", "gauge");
            page.line("", ids as u64);
        }
        for (name, value) in locks.counts() {
            // Some counters are stored under a name with labels, such as
            // `refusals_total{kind="other"}`.
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let whole = if name.starts_with("latchfs_") { "" } else { "latchfs_" };
            let name = format!("{whole}{name}");
            if page.family != name {
                page.family(&name, "Events since the start.", "counter");
            }
            page.line(labels.trim_end_matches('}'), value);
        }
        for histogram in locks.histograms() {
            page.histogram(&histogram);
        }
        page
    }

    /// Begins a metric with its HELP and TYPE lines. Calls that add values of the metric must
    /// follow.
    pub fn family(&mut self, name: &str, help: &str, kind: &str) {
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        name.clone_into(&mut self.family);
    }

    /// Adds one value of the current metric, with its labels, such as `code="200"`.
    pub fn line(&mut self, labels: &str, value: u64) {
        let name = &self.family;
        let _ = match labels {
            "" => writeln!(self.text, "{name} {value}"),
            _ => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    /// Adds a duration as one value of the current metric, in seconds.
    pub fn span(&mut self, labels: &str, value: Span) {
        let name = &self.family;
        let (secs, micros) = (value.as_nanos() / 1_000_000_000, value.as_nanos() / 1_000);
        let value = format_args!("{secs}.{:06}", micros % 1_000_000);
        let _ = match labels {
            "" => writeln!(self.text, "{name} {value}"),
            _ => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    fn histogram(&mut self, histogram: &Histogram) {
        let name = format!("latchfs_{}", histogram.name);
        self.family(&name, histogram.help, "histogram");
        for (bound, count) in &histogram.at_most {
            let (secs, micros) = (bound.as_nanos() / 1_000_000_000, bound.as_nanos() / 1_000);
            let (millis, rest) = (micros / 1_000 % 1_000, micros % 1_000);
            // A bucket bound is written in seconds, with three decimals if it is a whole number of
            // milliseconds and with up to six if not.
            let rest = if rest == 0 { String::new() } else { format!("{rest:03}") };
            let rest = rest.trim_end_matches('0');
            let _ = writeln!(self.text, "{name}_bucket{{le=\"{secs}.{millis:03}{rest}\"}} {count}");
        }
        let (count, nanos) = (histogram.count, histogram.sum.as_nanos());
        let (secs, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        let _ = writeln!(self.text, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(self.text, "{name}_sum {secs}.{rest:09}\n{name}_count {count}");
    }

    /// Returns the text of the whole metrics page.
    pub fn text(self) -> String {
        self.text
    }
}
