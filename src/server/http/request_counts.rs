//! Request counters by endpoint and status code, for the metrics page.

use axum::http::StatusCode;
use std::sync::atomic::{AtomicU64, Ordering};

/// The status codes that are counted separately. All other codes are counted under the last entry,
/// 0.
const CODES: [u16; 21] = [
    200, 201, 204, 304, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 415, 422, 429, 431, 500,
    503, 0,
];

/// Counts of requests by endpoint and status code.
pub(super) struct RequestCounts(Vec<[AtomicU64; CODES.len()]>);

impl RequestCounts {
    /// Returns counters for `endpoints` endpoints, all at zero.
    pub(super) fn new(endpoints: usize) -> Self {
        Self((0..endpoints).map(|_| <[AtomicU64; CODES.len()]>::default()).collect())
    }

    /// Counts a response of the endpoint with the index `endpoint`.
    pub(super) fn count(&self, endpoint: usize, code: StatusCode) {
        let code = CODES.iter().position(|known| *known == code.as_u16());
        let counter = code.unwrap_or(CODES.len() - 1);
        self.0[endpoint][counter].fetch_add(1, Ordering::Relaxed);
    }
    /// Returns the count of each status code, by endpoint; the code 0 stands for all other codes.
    pub(super) fn by_endpoint(&self) -> impl Iterator<Item = impl Iterator<Item = (u16, u64)>> {
        self.0.iter().map(|counters| {
            CODES.into_iter().zip(counters.iter().map(|counter| counter.load(Ordering::Relaxed)))
        })
    }
}
