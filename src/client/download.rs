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
        let (expected, least) = (body.size_hint().exact(), body.size_hint().lower());
        let is_too_long = |bytes: usize| (bytes as u64).max(least) > max as u64;
        let mut whole = Vec::new();
        while !is_too_long(whole.len()) {
            let frame = timeout(patience, body.frame()).await.map_err(|_| silent())?;
            let Some(frame) = frame else { return Ok(whole) };
            let frame = frame.map_err(|error| broken(&error))?;
            whole.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
            come(whole.len(), expected);
        }
        Err(TransportError::Foreign(format!("it sends more than {max} bytes")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::http_transport::ServerAccess;
    use crate::service::backup::BACKUP_BYTES_MAX;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Downloads at most `max` bytes from a server that sends `answer` and closes the connection.
    fn downloaded(max: usize, answer: String) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            let _ = stream.read(&mut [0; 4_096]).expect("a request");
            stream.write_all(answer.as_bytes()).expect("the caller reads");
        });
        let access = ServerAccess { url, ..ServerAccess::default() };
        let server_of = Http::new(&access).expect("a URL");
        let bytes = download(&server_of, "/backup", max, |_, _| {});
        server.join().expect("no panic");
        bytes.map_err(|trouble| trouble.to_string())
    }

    /// A server that says how long its answer is, and then sends one byte of it.
    #[test]
    fn a_backup_that_is_too_long_is_refused_before_it_is_read() {
        let begun = |bytes: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\nx");
        let why = downloaded(BACKUP_BYTES_MAX, begun(BACKUP_BYTES_MAX)).expect_err("cut off");
        assert!(!why.contains("more than"), "{why}");
        let why = downloaded(BACKUP_BYTES_MAX, begun(BACKUP_BYTES_MAX + 1)).expect_err("too long");
        assert!(why.contains("more than 4294967296 bytes"), "{why}");
    }

    #[test]
    fn an_answer_of_unknown_length_is_read_up_to_the_limit() {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let of = |chunks: &str| format!("{head}{chunks}0\r\n\r\n");
        assert_eq!(downloaded(4, of("2\r\nab\r\n2\r\ncd\r\n")), Ok(b"abcd".to_vec()));
        let why = downloaded(4, of("2\r\nab\r\n3\r\ncde\r\n")).expect_err("too long");
        assert!(why.contains("more than 4 bytes"), "{why}");
    }
}
