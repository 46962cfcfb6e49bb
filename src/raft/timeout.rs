//! A timeout on openraft's runtime.

use crate::time::Span;
use openraft::RaftTypeConfig;
use openraft::type_config::TypeConfigExt;
use std::future::Future;

/// The time is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Elapsed;

/// Returns the output of a future, unless `patience` is over before. Other than openraft's own
/// timeout it also takes a future that stays on one thread.
pub(super) async fn timeout<C: RaftTypeConfig, F: Future>(
    patience: Span,
    future: F,
) -> Result<F::Output, Elapsed> {
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = C::sleep(patience.as_duration()) => Err(Elapsed),
    }
}
