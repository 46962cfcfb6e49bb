//! A connection to a server that a test can cut.

use parking_lot::Mutex;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// The streams of both sides; `None` once the connection was cut.
type Streams = Arc<Mutex<Option<Vec<TcpStream>>>>;

/// Passes bytes between clients and a server, until it is cut.
pub(crate) struct Relay {
    pub(crate) url: String,
    streams: Streams,
    /// The first line of each request.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Relay {
    /// Starts a relay to the server with this URL.
    pub(crate) fn start(server: &str) -> Self {
        let server = server.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let streams: Streams = Arc::new(Mutex::new(Some(Vec::new())));
        let requests = Arc::default();
        let (all, seen) = (Arc::clone(&streams), Arc::clone(&requests));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let mut all = all.lock();
                let Some(all) = all.as_mut() else { continue };
                let (there, back) =
                    ((copy(&client), copy(&server)), (copy(&server), copy(&client)));
                let seen = Arc::clone(&seen);
                thread::spawn(move || pass_requests(there, &seen));
                thread::spawn(move || {
                    let (mut from, mut to) = back;
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
                all.extend([client, server]);
            }
        });
        Self { url, streams, requests }
    }

    /// Returns the first lines of the requests that have passed since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock())
    }

    /// Cuts all connections, and refuses new ones from now on.
    pub(crate) fn cut(&self) {
        for stream in self.streams.lock().take().into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn copy(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a descriptor")
}

/// Passes the requests of a client to the server, and records their first lines.
fn pass_requests((mut from, mut to): (TcpStream, TcpStream), seen: &Mutex<Vec<String>>) {
    let mut part = vec![0; 65_536];
    let mut rest = String::new();
    while let Ok(length @ 1..) = from.read(&mut part) {
        rest.push_str(&String::from_utf8_lossy(&part[..length]));
        while let Some((line, after)) = rest.split_once('\n') {
            if let Some(request) = line.trim_end().strip_suffix(" HTTP/1.1") {
                // The body of the request before may end without a line break.
                let at =
                    ["POST ", "GET ", "PUT ", "DELETE ", "PATCH "].map(|word| request.find(word));
                let at = at.into_iter().flatten().max().unwrap_or(0);
                seen.lock().push(request[at..].to_owned());
            }
            rest = after.to_owned();
        }
        if to.write_all(&part[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
