//! Request counters and durations by endpoint, for the metrics page.

use crate::service::counters::{Histogram, LatencyHistogram};
use crate::time::Span;
use axum::http::StatusCode;
use std::sync::atomic::{AtomicU64, Ordering};

/// The status codes that are counted separately. All other codes are counted under the last entry,
/// 0.
const CODES: [u16; 21] = [
    200, 201, 204, 304, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 415, 422, 429, 431, 500,
    503, 0,
];

/// Upper bounds of the histogram buckets in microseconds, from an answer out of memory to a wait in
/// a queue.
const BOUNDS_US: [u64; 11] =
    [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 2_500_000, 30_000_000];

/// Counts and durations of requests by endpoint.
pub(super) struct RequestCounts(Vec<EndpointCounts>);

struct EndpointCounts {
    codes: [AtomicU64; CODES.len()],
    durations: LatencyHistogram<{ BOUNDS_US.len() }>,
}

/// The requests to one endpoint since the start.
pub(super) struct EndpointRequests {
    /// The number of answers by status code; the code 0 stands for all other codes.
    pub(super) codes: Vec<(u16, u64)>,
    pub(super) durations: Histogram,
}

impl RequestCounts {
    /// Returns counters for `endpoints` endpoints, all at zero.
    pub(super) fn new(endpoints: usize) -> Self {
        let bounds = BOUNDS_US.map(|micros| Span::from_nanos(micros * 1_000));
        let none = || EndpointCounts {
            codes: Default::default(),
            durations: LatencyHistogram::new(bounds),
        };
        Self((0..endpoints).map(|_| none()).collect())
    }

    /// Counts a response of the endpoint with the index `endpoint`, which took so long.
    pub(super) fn count(&self, endpoint: usize, code: StatusCode, took: Span) {
        let code = CODES.iter().position(|known| *known == code.as_u16());
        let counts = &self.0[endpoint];
        counts.codes[code.unwrap_or(CODES.len() - 1)].fetch_add(1, Ordering::Relaxed);
        counts.durations.add(took);
    }

    /// Returns the requests to each endpoint, in their order.
    pub(super) fn by_endpoint(&self) -> impl Iterator<Item = EndpointRequests> {
        self.0.iter().map(|counts| {
            let codes = counts.codes.iter().map(|count| count.load(Ordering::Relaxed));
            EndpointRequests {
                codes: CODES.into_iter().zip(codes).collect(),
                durations: counts.durations.show("", ""),
            }
        })
    }
}
