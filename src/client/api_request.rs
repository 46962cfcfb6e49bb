//! Sends one request to the HTTP API and returns its JSON answer, for commands about the server
//! itself.

use super::http_transport::{Http, HttpTarget, ServerAccess, runtime};
use super::transport::TransportError;
use crate::net::http_connection::{dial, start_http, with_causes};
use crate::time::Span;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Method, Request};
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
    let unusable = |error: &dyn ToString| TransportError::Foreign(error.to_string());
    let server = Http::new(access).map_err(|error| unusable(&error))?;
    let method = Method::from_bytes(method.as_bytes()).map_err(|error| unusable(&error))?;
    let asked = async {
        timeout(patience.as_duration(), ask(&server.0, method, path))
            .await
            .unwrap_or_else(|_| Err(TransportError::Silent(format!("no answer within {patience}"))))
    };
    runtime()?.block_on(asked).map_err(|trouble| match trouble {
        TransportError::Denied(why) => TransportError::Denied(format!(
            "the server {} can't be used: {why}; pass a valid one with --cert and --key",
            access.url
        )),
        other => TransportError::Silent(no_answer(&access.url, &other)),
    })
}

/// Returns the sentence for a server that can't be reached.
pub fn no_answer(url: &str, trouble: &TransportError) -> String {
    format!("the server {url} does not answer ({trouble}); see whether it runs, and try again")
}

async fn ask(
    target: &HttpTarget,
    method: Method,
    path: &str,
) -> Result<(u16, Value), TransportError> {
    let (_sender, response) = target.begin(method, path).await?;
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
    let runtime = runtime().map_err(|trouble| trouble.to_string())?;
    runtime.block_on(async {
        let late = |_| Err(format!("no answer within {patience}"));
        timeout(patience.as_duration(), answered).await.unwrap_or_else(late)
    })
}
