//! Downloads one long answer of a server, and reports the progress.

use super::http_transport::{Http, broken, runtime, silent, understood};
use super::transport::TransportError;
use crate::time::Span;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Body;
use tokio::time::timeout;

/// How long the server may take to begin its answer, for which it encodes its whole state, and how
/// long to send each part.
const PATIENCE: Span = Span::from_secs(60);

/// Downloads `path` from the server, `max` bytes at most. Calls `come` after each part of the body,
/// with the number of bytes received so far, and with the total if it is known.
pub fn download(
    server: &Http,
    path: &str,
    max: usize,
    mut come: impl FnMut(usize, Option<u64>),
) -> Result<Vec<u8>, TransportError> {
    runtime()?.block_on(async {
        let patience = PATIENCE.as_duration();
        let opened = async {
            let (sender, response) = server.0.begin(Method::GET, path).await?;
            Ok((sender, understood(response).await?))
        };
        let (_sender, mut body) = timeout(patience, opened).await.map_err(|_| silent())??;
        let expected = body.size_hint().exact();
        let mut whole = Vec::new();
        while let Some(frame) = timeout(patience, body.frame()).await.map_err(|_| silent())? {
            let frame = frame.map_err(|error| broken(&error))?;
            whole.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
            if whole.len() > max {
                return Err(TransportError::Foreign(format!("it sends more than {max} bytes")));
            }
            come(whole.len(), expected);
        }
        Ok(whole)
    })
}
