//! A connection to a server that a test can cut or delay.
use parking_lot::{Condvar, Mutex};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread;
use testing::soon;

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
    sent: Arc<Mutex<Sent>>,
    delays: Arc<Delays>,
}

/// The bodies of the requests that have passed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    pub(crate) bodies: u64,
    pub(crate) bytes: u64,
}

impl Sent {
    /// Returns what has passed since `before`.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self { bodies: self.bodies - before.bodies, bytes: self.bytes - before.bytes }
    }

    /// Counts the body that a line of a head announces, if it does.
    fn add(&mut self, line: &str) {
        let length = line.split_once(": ").filter(|(name, _)| *name == "content-length");
        if let Some(length) = length.and_then(|(_, length)| length.trim_end().parse::<u64>().ok()) {
            self.bodies += 1;
            self.bytes += length;
        }
    }
}

/// The messages that the relay keeps back.
#[derive(Default)]
struct Delays {
    requests: Kept,
    answers: Kept,
}

/// The requests that contain one of some texts, or the answers to them.
#[derive(Default)]
struct Kept {
    state: Mutex<KeptState>,
    changed: Condvar,
}

#[derive(Default)]
struct KeptState {
    texts: Vec<String>,
    /// The number that is kept back now.
    count: usize,
}

impl Kept {
    fn keep(&self, text: &str) {
        self.state.lock().texts.push(text.to_owned());
    }

    /// Waits until this request, or its answer, may pass.
    fn pass(&self, request: &str) {
        let mut state = self.state.lock();
        let is_kept = |state: &mut KeptState| state.texts.iter().any(|it| request.contains(it));
        if is_kept(&mut state) {
            state.count += 1;
            self.changed.wait_while(&mut state, is_kept);
            state.count -= 1;
        }
    }

    fn pass_all(&self) {
        self.state.lock().texts.clear();
        self.changed.notify_all();
    }

    fn wait_for_one(&self) {
        soon("what is kept back", || (self.state.lock().count == 1).then_some(()));
    }
}

impl Relay {
    /// Starts a relay to the server with this URL.
    pub(crate) fn start(server: &str) -> Self {
        let server = server.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let links: Links = Arc::new(Mutex::new(Some(Vec::new())));
        let (requests, sent, delays) = (Arc::default(), Arc::default(), Arc::default());
        let (all, seen) = (Arc::clone(&links), Arc::clone(&requests));
        let sent_by_all: Arc<Mutex<Sent>> = Arc::clone(&sent);
        let delays_of_all: Arc<Delays> = Arc::clone(&delays);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut all = all.lock();
                let Some(all) = all.as_mut() else { return };
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let link = Arc::new((client, server));
                all.retain(|link| link.strong_count() > 0);
                all.push(Arc::downgrade(&link));
                let (seen, back) = (Arc::clone(&seen), Arc::clone(&link));
                let sent = Arc::clone(&sent_by_all);
                let (delays, delays_back) =
                    (Arc::clone(&delays_of_all), Arc::clone(&delays_of_all));
                let last = Arc::new(Mutex::new(String::new()));
                let last_back = Arc::clone(&last);
                thread::spawn(move || pass_requests(&link, &seen, &sent, &delays, &last));
                thread::spawn(move || pass_answers(&back, &delays_back, &last_back));
            }
        });
        Self { url: format!("http://{address}"), address, links, requests, sent, delays }
    }

    /// Keeps back the requests that contain `text`, and what follows on their connections.
    pub(crate) fn keep_requests(&self, text: &str) {
        self.delays.requests.keep(text);
    }

    /// Keeps back the answers to the requests that contain `text`.
    pub(crate) fn keep_answers(&self, text: &str) {
        self.delays.answers.keep(text);
    }

    pub(crate) fn wait_for_kept_request(&self) {
        self.delays.requests.wait_for_one();
    }

    pub(crate) fn wait_for_kept_answer(&self) {
        self.delays.answers.wait_for_one();
    }

    pub(crate) fn pass_requests(&self) {
        self.delays.requests.pass_all();
    }

    pub(crate) fn pass_answers(&self) {
        self.delays.answers.pass_all();
    }

    /// Returns the first lines of the requests that have passed since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock())
    }

    /// Returns the number and the size of the bodies that have passed.
    pub(crate) fn sent(&self) -> Sent {
        *self.sent.lock()
    }

    /// Cuts all connections, and refuses new ones from now on.
    pub(crate) fn cut(&self) {
        let links = self.links.lock().take();
        for link in links.iter().flatten().filter_map(Weak::upgrade) {
            let _ = link.0.shutdown(Shutdown::Both);
            let _ = link.1.shutdown(Shutdown::Both);
        }
        self.pass_requests();
        self.pass_answers();
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
fn pass_requests(
    link: &Link,
    seen: &Mutex<Vec<String>>,
    sent: &Mutex<Sent>,
    delays: &Delays,
    last: &Mutex<String>,
) {
    let (mut from, mut to) = (&link.0, &link.1);
    let mut part = vec![0; 65_536];
    let mut rest = String::new();
    while let Ok(length @ 1..) = from.read(&mut part) {
        let request = String::from_utf8_lossy(&part[..length]).into_owned();
        rest.push_str(&request);
        while let Some((line, after)) = rest.split_once('\n') {
            if let Some(request) = line.trim_end().strip_suffix(" HTTP/1.1") {
                // The body of the request before may end without a line break.
                let at =
                    ["POST ", "GET ", "PUT ", "DELETE ", "PATCH "].map(|word| request.find(word));
                let at = at.into_iter().flatten().max().unwrap_or(0);
                seen.lock().push(request[at..].to_owned());
            }
            sent.lock().add(line);
            rest = after.to_owned();
        }
        last.lock().clone_from(&request);
        delays.requests.pass(&request);
        if to.write_all(&part[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Passes the answers of the server to a client, which has sent the request `last` last.
fn pass_answers(link: &Link, delays: &Delays, last: &Mutex<String>) {
    let (mut to, mut from) = (&link.0, &link.1);
    let mut part = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut part) {
        let request = last.lock().clone();
        delays.answers.pass(&request);
        if to.write_all(&part[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
