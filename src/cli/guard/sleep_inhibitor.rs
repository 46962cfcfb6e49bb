//! Receives the signal of logind that this machine is about to sleep, and delays the sleep for a
//! moment, by one delay inhibitor of the process. Without a system bus there are no signals.

use crate::time::{Span, Time, boot_now};
use nix::sys::socket::UnixAddr;
use rustbus::connection::Timeout;
use rustbus::connection::ll_conn::DuplexConn;
use rustbus::message_builder::{HeaderFlags, MarshalledMessage, MessageBuilder, MessageType};
use rustbus::wire::UnixFd;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;

/// Where the system bus listens, unless `DBUS_SYSTEM_BUS_ADDRESS` says otherwise.
const BUS: &str = "unix:path=/run/dbus/system_bus_socket";
const LOGIND: &str = "org.freedesktop.login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const BUS_DRIVER: &str = "org.freedesktop.DBus";

/// How long the bus and logind may take to answer.
const ANSWER_PATIENCE: Span = Span::from_secs(5);
/// How long a sleep is delayed at most. Logind itself waits for 5 s, unless its configuration
/// (`InhibitDelayMaxSec`) says otherwise.
const SLEEP_DELAY: Span = Span::from_millis(4_500);
/// The first delay before the bus is tried again after it was lost, which is doubled each time.
const RECONNECT_FIRST: Span = Span::from_secs(1);
/// The longest delay before the bus is tried again.
const RECONNECT_MOST: Span = Span::from_secs(300);
/// The maximum number of signals that wait while an answer is read. Later ones are dropped: logind
/// sends two for each sleep.
const SIGNALS_MAX: usize = 16;

/// A call before the machine sleeps. It must call its argument once the machine may sleep.
pub(crate) type BeforeSleep = Box<dyn Fn(Box<dyn FnOnce() + Send>) + Send>;

/// Calls `before_sleep` before this machine sleeps, as long as this process runs.
pub(crate) fn start(before_sleep: BeforeSleep) -> io::Result<()> {
    let follow = move || {
        let mut delay = RECONNECT_FIRST;
        loop {
            let began = boot_now();
            let mut was_there = false;
            let why = follow(&before_sleep, &mut was_there).err().unwrap_or_default();
            if !was_there && delay == RECONNECT_FIRST {
                return log::info!("nobody says here that this machine is about to sleep: {why}");
            }
            if boot_now().since(began) > RECONNECT_MOST {
                delay = RECONNECT_FIRST;
            }
            log::info!("the system bus is tried again in {delay}: {why}");
            pause(delay);
            delay = (delay + delay).min(RECONNECT_MOST);
        }
    };
    std::thread::Builder::new().name("sleep".to_owned()).spawn(follow).map(drop)
}

fn pause(length: Span) {
    let (_send, never) = channel::<()>();
    // Nothing is ever sent, so this waits for the whole time.
    let _ = never.recv_timeout(length.as_duration());
}

/// Follows the signals of logind until the bus is lost. Returns why it was.
fn follow(before_sleep: &BeforeSleep, was_there: &mut bool) -> Result<(), String> {
    let mut bus = Bus::connect()?;
    *was_there = true;
    let mut inhibitor = bus.inhibit()?;
    loop {
        match bus.next_signal()? {
            Signal::Sleeps => {
                let (send, done) = channel();
                // The send fails if nobody waits any more: the machine sleeps already.
                before_sleep(Box::new(move || send.send(()).unwrap_or_default()));
                if done.recv_timeout(SLEEP_DELAY.as_duration()).is_err() {
                    log::warn!("the machine sleeps before everything was given up");
                }
                drop(inhibitor.take());
            }
            Signal::Woke | Signal::LogindCame if inhibitor.is_none() => {
                inhibitor = bus.inhibit()?;
            }
            Signal::Woke | Signal::LogindCame => {}
            Signal::LogindWent => inhibitor = None,
        }
    }
}

/// A signal of the bus that tells about sleep or about logind.
#[derive(Debug, PartialEq, Eq)]
enum Signal {
    Sleeps,
    Woke,
    LogindCame,
    LogindWent,
}

/// A connection to the system bus.
struct Bus {
    connection: DuplexConn,
    /// The connection of logind: anybody may send the same signals.
    logind: Option<String>,
    signals: VecDeque<Signal>,
}

fn failed(error: impl Display) -> String {
    error.to_string()
}

impl Bus {
    fn connect() -> Result<Self, String> {
        let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_else(|_| BUS.to_owned());
        let address = socket_address(&address)?;
        // If nobody listens, rustbus leaves a socket open, also in the commands of this process.
        let path = address.path().ok_or("the system bus has no path")?;
        UnixStream::connect(path).map_err(failed)?;
        let mut connection = DuplexConn::connect_to_bus(address, true).map_err(failed)?;
        close_on_exec(connection.send.as_raw_fd());
        close_on_exec(connection.recv.as_raw_fd());
        connection.send_hello(Timeout::Duration(ANSWER_PATIENCE.as_duration())).map_err(failed)?;
        let mut bus = Self { connection, logind: None, signals: VecDeque::new() };
        let sleeps = format!("type='signal',sender='{LOGIND}',member='PrepareForSleep'");
        let owner = format!(
            "type='signal',sender='{BUS_DRIVER}',member='NameOwnerChanged',arg0='{LOGIND}'"
        );
        for rule in [sleeps, owner] {
            bus.call(&mut rustbus::standard_messages::add_match(&rule))?;
        }
        Ok(bus)
    }

    /// Takes a delay inhibitor of logind, if logind is there.
    fn inhibit(&mut self) -> Result<Option<UnixFd>, String> {
        let mut ask = MessageBuilder::new()
            .call("Inhibit")
            .on("/org/freedesktop/login1")
            .with_interface(MANAGER)
            .at(LOGIND)
            .build();
        HeaderFlags::NoAutoStart.set(&mut ask.flags);
        let why = "gives the locks of guarded folders up";
        ask.body.push_param4("sleep", "latchfs", why, "delay").map_err(|it| format!("{it:?}"))?;
        let answer = self.call(&mut ask)?;
        if answer.typ != MessageType::Reply {
            let error = answer.dynheader.error_name.unwrap_or_default();
            log::info!("logind delays no sleep for this process: {error}");
            return Ok(None);
        }
        self.logind.clone_from(&answer.dynheader.sender);
        let inhibitor: UnixFd = answer.body.parser().get().map_err(|it| format!("{it:?}"))?;
        if let Some(fd) = inhibitor.get_raw_fd() {
            close_on_exec(fd);
        }
        log::debug!("logind delays a sleep until the locks are given up");
        Ok(Some(inhibitor))
    }

    /// Sends a call, and returns the answer.
    fn call(&mut self, ask: &mut MarshalledMessage) -> Result<MarshalledMessage, String> {
        let until = boot_now() + ANSWER_PATIENCE;
        let sending = self.connection.send.send_message(ask).map_err(failed)?;
        let serial = match sending.write(timeout(until)) {
            Ok(serial) => serial,
            Err((sending, error)) => {
                sending.force_finish();
                return Err(failed(error));
            }
        };
        loop {
            let message = self.connection.recv.get_next_message(timeout(until)).map_err(failed)?;
            let is_answer = matches!(message.typ, MessageType::Reply | MessageType::Error);
            if is_answer && message.dynheader.response_serial == Some(serial) {
                return Ok(message);
            }
            let signal = self.signal(&message);
            self.signals.extend(signal.filter(|_| self.signals.len() < SIGNALS_MAX));
        }
    }

    /// Waits for the next signal.
    fn next_signal(&mut self) -> Result<Signal, String> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            let next = self.connection.recv.get_next_message(Timeout::Infinite);
            let signal = self.signal(&next.map_err(failed)?);
            self.signals.extend(signal);
        }
    }

    /// Returns the signal about sleep or logind in a message of the bus; `None` for other messages.
    fn signal(&self, message: &MarshalledMessage) -> Option<Signal> {
        let header = &message.dynheader;
        let sender = header.sender.as_deref()?;
        match (message.typ, header.member.as_deref()?) {
            (MessageType::Signal, "PrepareForSleep") if self.logind.as_deref() == Some(sender) => {
                let sleeps: bool = message.body.parser().get().ok()?;
                Some(if sleeps { Signal::Sleeps } else { Signal::Woke })
            }
            (MessageType::Signal, "NameOwnerChanged") if sender == BUS_DRIVER => {
                let (name, _, new): (&str, &str, &str) = message.body.parser().get3().ok()?;
                let signal = if new.is_empty() { Signal::LogindWent } else { Signal::LogindCame };
                (name == LOGIND).then_some(signal)
            }
            _ => None,
        }
    }
}

fn timeout(until: Time) -> Timeout {
    // A socket takes no timeout of zero.
    Timeout::Duration(until.since(boot_now()).max(Span::from_millis(1)).as_duration())
}

/// Returns the socket of an address such as `unix:path=/run/dbus/system_bus_socket`.
fn socket_address(address: &str) -> Result<UnixAddr, String> {
    for part in address.split(';') {
        let Some(options) = part.strip_prefix("unix:") else { continue };
        let mut options = options.split(',').filter_map(|option| option.split_once('='));
        if let Some((_, path)) = options.find(|(key, _)| *key == "path") {
            return UnixAddr::new(path).map_err(failed);
        }
    }
    Err(format!("the address {address} of the system bus names no socket"))
}

/// Keeps a descriptor from the commands that this process starts.
#[allow(unsafe_code)]
fn close_on_exec(fd: RawFd) {
    // SAFETY: the call changes a flag of a descriptor, and no memory.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_path_of_an_address_counts() {
        assert!(socket_address("tcp:host=a;unix:abstract=b").is_err());
        let address = socket_address("unix:abstract=b;unix:path=/run/bus,guid=0").expect("a path");
        assert_eq!(address.path(), Some(std::path::Path::new("/run/bus")));
    }
}
