//! A connection to a server that a test can cut.

use parking_lot::Mutex;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread;

/// The stream of a client, and that to the server.
type Link = (TcpStream, TcpStream);

/// The connections whose threads pass bytes; `None` once they were cut.
type Links = Arc<Mutex<Option<Vec<Weak<Link>>>>>;

/// Passes bytes between clients and a server, until it is cut.
pub(crate) struct Relay {
    pub(crate) url: String,
    address: SocketAddr,
    links: Links,
    /// The first line of each request.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Relay {
    /// Starts a relay to the server with this URL.
    pub(crate) fn start(server: &str) -> Self {
        let server = server.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let links: Links = Arc::new(Mutex::new(Some(Vec::new())));
        let requests = Arc::default();
        let (all, seen) = (Arc::clone(&links), Arc::clone(&requests));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut all = all.lock();
                let Some(all) = all.as_mut() else { return };
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let link = Arc::new((client, server));
                all.retain(|link| link.strong_count() > 0);
                all.push(Arc::downgrade(&link));
                let (seen, back) = (Arc::clone(&seen), Arc::clone(&link));
                thread::spawn(move || pass_requests(&link, &seen));
                thread::spawn(move || {
                    let (client, server) = &*back;
                    let _ = io::copy(&mut &*server, &mut &*client);
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Self { url: format!("http://{address}"), address, links, requests }
    }

    /// Returns the first lines of the requests that have passed since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock())
    }

    /// Cuts all connections, and refuses new ones from now on.
    pub(crate) fn cut(&self) {
        let links = self.links.lock().take();
        for link in links.iter().flatten().filter_map(Weak::upgrade) {
            let _ = link.0.shutdown(Shutdown::Both);
            let _ = link.1.shutdown(Shutdown::Both);
        }
        // Ends the thread that accepts connections.
        let _ = TcpStream::connect(self.address);
    }
}

impl Drop for Relay {
    /// Closes all descriptors: a guard looks at a bounded number of those of a program.
    fn drop(&mut self) {
        self.cut();
    }
}

/// Passes the requests of a client to the server, and records their first lines.
fn pass_requests(link: &Link, seen: &Mutex<Vec<String>>) {
    let (mut from, mut to) = (&link.0, &link.1);
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
