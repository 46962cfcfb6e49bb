//! Builders of responses with JSON or text, all with `Cache-Control: no-store`.
//!
//! Bodies of answers, which are charged to the caller until they are sent: a client that reads
//! nothing makes the server keep no more than the client's share.

use crate::shares::{Identity, SharedTable, TableFull, TableShare};
use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde_json::Value;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The response type of all handlers.
pub(in crate::server::http) type Response = axum::http::Response<Body>;

/// Returns a response with a JSON body.
pub(in crate::server::http) fn json(status: StatusCode, value: &Value) -> Response {
    text(status, HeaderValue::from_static("application/json"), format!("{value}\n"))
}

/// Returns a response with this content type. It must not be cached, because the state may change
/// at any moment.
pub(in crate::server::http) fn text(
    status: StatusCode,
    kind: HeaderValue,
    body: impl Into<Body>,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The length in bytes up to which only the request of an answer is counted, and not its bytes.
const SHORT_BYTES: u64 = 16 << 10;
/// The length in bytes of the pieces in which a body is passed on: hyper copies a piece when its
/// buffer has room for it.
const PIECE_BYTES: usize = 16 << 10;

/// A body, passed on piece by piece. Until it is sent, its request counts as open, and the bytes of
/// a long body count against the share of the caller.
struct ChargedBody {
    body: Body,
    /// The rest of the frame that the body returned last.
    rest: Bytes,
    left: u64,
    _share: Option<TableShare>,
    _asking: TableShare,
}

/// Charges the body of an answer to a caller: the bytes of a long one, or one place for a backup.
/// An event stream has no length, and places of its own.
pub(in crate::server::http) fn charge(
    response: Response,
    table: &SharedTable,
    is_backup: bool,
    who: &Identity,
    asking: TableShare,
) -> Result<Response, TableFull> {
    let Some(left) = response.body().size_hint().exact().filter(|left| *left > 0) else {
        return Ok(response);
    };
    let amount = if is_backup { 1 } else { left as usize };
    let is_long = left > SHORT_BYTES || is_backup;
    let share = is_long.then(|| table.take(who, amount)).transpose()?;
    let charged =
        |body| ChargedBody { body, rest: Bytes::new(), left, _share: share, _asking: asking };
    Ok(response.map(|body| Body::new(charged(body))))
}

impl HttpBody for ChargedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return Poll::Ready(other),
            }
        }
        let length = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(length);
        self.left = self.left.saturating_sub(length as u64);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderValue, StatusCode};
    use http_body_util::BodyExt as _;

    #[tokio::test]
    async fn long_answers_count_until_they_are_sent() {
        let table = SharedTable::new("bytes of answers", 400 << 10, 200 << 10);
        let (eve, ann) = (Identity::User(1), Identity::User(2));
        let answer = |length: usize| {
            let kind = HeaderValue::from_static("text/plain");
            text(StatusCode::OK, kind, vec![b'x'; length])
        };
        let requests = SharedTable::new("requests", 10, 10);
        let charge = |length, who| {
            let asking = requests.take(who, 1).expect("a request");
            charge(answer(length), &table, false, who, asking)
        };
        let whole = charge(200 << 10, &eve).expect("her share");
        assert_eq!(table.taken(), 200 << 10);
        let full = charge(16 * 1_024 + 1, &eve).expect_err("one more long answer");
        assert!(full.to_string().contains("bytes of answers"), "{full}");
        let short = charge(16 << 10, &eve).expect("the bytes of short ones are not counted");
        assert_eq!(requests.taken(), 2, "both requests are open");
        drop(short);
        drop(charge(200 << 10, &ann).expect("the other half"));
        let sent = whole.into_body().collect().await.expect("no error").to_bytes();
        assert_eq!((sent.len(), table.taken(), requests.taken()), (200 << 10, 0, 0));
        let backups = SharedTable::new("backups", 1, 1);
        let backup = || {
            let asking = requests.take(&ann, 1).expect("a request");
            super::charge(answer(1 << 20), &backups, true, &ann, asking)
        };
        let first = backup().expect("one at a time");
        assert!(backup().is_err(), "two at a time");
        drop(first);
        assert!(backup().is_ok());
    }
}
