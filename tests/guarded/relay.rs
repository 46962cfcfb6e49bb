//! A connection to a server that a test can cut.

use parking_lot::Mutex;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// The streams of both sides; `None` once the connection was cut.
type Streams = Arc<Mutex<Option<Vec<TcpStream>>>>;

/// Passes bytes between clients and a server, until it is cut.
pub(crate) struct Relay {
    pub(crate) url: String,
    streams: Streams,
}

impl Relay {
    /// Starts a relay to the server with this URL.
    pub(crate) fn start(server: &str) -> Self {
        let server = server.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let streams: Streams = Arc::new(Mutex::new(Some(Vec::new())));
        let all = Arc::clone(&streams);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let mut all = all.lock();
                let Some(all) = all.as_mut() else { continue };
                for (mut from, mut to) in
                    [(copy(&client), copy(&server)), (copy(&server), copy(&client))]
                {
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                all.extend([client, server]);
            }
        });
        Self { url, streams }
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
