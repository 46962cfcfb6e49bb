//! A timeout on openraft's runtime.

use crate::time::Span;
use openraft::RaftTypeConfig;
use openraft::type_config::TypeConfigExt;
use std::future::Future;

/// The error of a future that has not completed in time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Elapsed;

/// Returns the output of a future, or an error if it takes longer than `patience`. Unlike
/// openraft's own timeout it also accepts a future that is not `Send`.
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
