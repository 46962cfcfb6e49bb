//! Bodies of long answers, which are charged to the caller until they are sent: a client that reads
//! nothing makes the server keep no more than the client's share.

use super::response::Response;
use crate::shares::{Identity, SharedTable, TableFull, TableShare};
use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The length in bytes up to which an answer is not counted. Each connection sends one answer at a
/// time, or as many as it has streams.
const SHORT_BYTES: u64 = 16 << 10;
/// The length in bytes of the pieces in which a body is passed on: hyper copies a piece when its
/// buffer has room for it.
const PIECE_BYTES: usize = 16 << 10;

/// A long body, passed on piece by piece. The bytes that are not passed on yet count against the
/// share of the caller.
struct LongBody {
    body: Body,
    /// The rest of the frame that the body returned last.
    rest: Bytes,
    left: u64,
    _share: TableShare,
}

/// Charges the body of an answer to a caller if it is long. The administrator's backup is charged
/// even beyond the limit.
pub(super) fn charge(
    response: Response,
    table: &SharedTable,
    who: &Identity,
    is_backup: bool,
) -> Result<Response, TableFull> {
    let Some(left) = response.body().size_hint().exact().filter(|left| *left > SHORT_BYTES) else {
        return Ok(response);
    };
    let amount = left as usize;
    let share = if is_backup { table.take_always(who, amount) } else { table.take(who, amount)? };
    let long = |body| LongBody { body, rest: Bytes::new(), left, _share: share };
    Ok(response.map(|body| Body::new(long(body))))
}

impl HttpBody for LongBody {
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
            super::super::response::text(StatusCode::OK, kind, vec![b'x'; length])
        };
        let charge = |length, who| charge(answer(length), &table, who, false);
        let whole = charge(200 << 10, &eve).expect("her share");
        assert_eq!(table.taken(), 200 << 10);
        let full = charge(16 * 1_024 + 1, &eve).expect_err("one more long answer");
        assert!(full.to_string().contains("bytes of answers"), "{full}");
        assert!(charge(16 << 10, &eve).is_ok(), "short ones are not counted");
        drop(charge(200 << 10, &ann).expect("the other half"));
        let sent = whole.into_body().collect().await.expect("no error").to_bytes();
        assert_eq!((sent.len(), table.taken()), (200 << 10, 0));
    }
}
