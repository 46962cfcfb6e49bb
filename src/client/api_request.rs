//! Sends one request to the HTTP API and returns its JSON answer, for commands about the server
//! itself.
//!
//! Downloads one long answer of a server, and reports the progress.

use super::http_transport::{Http, HttpTarget, ServerAccess, broken, runtime, silent, understood};
use crate::client::http_transport::TransportError;
use crate::net::connections::{dial, start_http, with_causes};
use crate::time::Span;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::HOST;
use hyper::{Method, Request, Response};
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;

/// The maximum length of an API response in bytes: eight times the length of the status of a
/// cluster of 64 nodes with the longest names and URLs. The limit also bounds memory: two bytes of
/// JSON may take a hundred when parsed.
const ANSWER_BYTES_MAX: usize = 512 << 10;

/// Sends a request, and returns the status code and the body of the response. The text of an error
/// is a sentence for the user.
pub fn fetch(
    access: &ServerAccess,
    method: &str,
    path: &str,
    patience: Span,
) -> Result<(u16, Value), TransportError> {
    fetch_with(access, method, path, Bytes::new(), patience)
}

/// Sends a POST request with a JSON body like [`fetch`].
pub(crate) fn post(
    access: &ServerAccess,
    path: &str,
    body: &impl Serialize,
    patience: Span,
) -> Result<(u16, Value), TransportError> {
    let body = serde_json::to_vec(body).map_err(|error| broken(&error))?;
    fetch_with(access, "POST", path, body.into(), patience)
}

fn fetch_with(
    access: &ServerAccess,
    method: &str,
    path: &str,
    body: Bytes,
    patience: Span,
) -> Result<(u16, Value), TransportError> {
    let unusable = |error: &dyn ToString| TransportError::Foreign(error.to_string());
    let server = Http::new(access).map_err(|error| unusable(&error))?;
    let method = Method::from_bytes(method.as_bytes()).map_err(|error| unusable(&error))?;
    let asked = async {
        timeout(patience.as_duration(), request_api(&server.0, method, path, body))
            .await
            .unwrap_or_else(|_| Err(TransportError::Silent(format!("no answer within {patience}"))))
    };
    runtime()?.block_on(asked).map_err(|error| match error {
        TransportError::Denied(why) => TransportError::Denied(format!(
            "the server {} can't be used: {why}; pass a valid one with --cert and --key",
            access.url
        )),
        other => TransportError::Silent(no_answer(&access.url, &other)),
    })
}

/// Returns the sentence for a server that can't be reached.
pub fn no_answer(url: &str, error: &TransportError) -> String {
    format!("the server {url} does not answer ({error}); see whether it runs, and try again")
}

async fn request_api(
    target: &HttpTarget,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<(u16, Value), TransportError> {
    let (_sender, response) = target.begin(method, path, body).await?;
    json_of(response).await
}

/// Reads a response with a JSON body.
pub(super) async fn json_of(response: Response<Incoming>) -> Result<(u16, Value), TransportError> {
    let code = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let incomplete = |error| TransportError::Silent(format!("incomplete response: {error}"));
    let bytes = body.map_err(incomplete)?.to_bytes();
    Ok((code, serde_json::from_slice(&bytes).unwrap_or_default()))
}

/// A request without a body to a server on this machine or another one, which is not ours.
pub struct ForeignRequest<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// Host and port of the server.
    pub address: &'a str,
    /// The path with its query.
    pub path: &'a str,
    /// The header with the credential.
    pub header: (&'a str, &'a str),
}

/// Sends a request to a server that is not ours, and returns the status code and the body. An error
/// is a clause for the user.
pub fn ask_foreign(
    ForeignRequest { method, address, path, header: (name, value) }: ForeignRequest<'_>,
    patience: Span,
) -> Result<(u16, Vec<u8>), String> {
    let (host, port) = address.rsplit_once(':').ok_or("its address has no port")?;
    let port = port.parse().map_err(|_| "its port is no number")?;
    let host = host.trim_matches(['[', ']']);
    let request = Request::builder().method(method).uri(path);
    let request = request.header(HOST, address).header(name, value);
    let request = request.body(Full::new(Bytes::new())).map_err(|error| error.to_string())?;
    let answered = async {
        let stream = dial(host, port).await.map_err(|error| error.to_string())?;
        let mut sender = start_http(stream).await.map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| with_causes(&error))?;
        let code = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((code, body.map_err(|error| error.to_string())?.to_bytes().to_vec()))
    };
    let runtime = runtime().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let late = |_| Err(format!("no answer within {patience}"));
        timeout(patience.as_duration(), answered).await.unwrap_or_else(late)
    })
}

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
            let (sender, response) = server.0.begin(Method::GET, path, Bytes::new()).await?;
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
    use crate::service::replay::BACKUP_BYTES_MAX;
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
        bytes.map_err(|error| error.to_string())
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
