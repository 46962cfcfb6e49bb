//! Lost replies: a client retries a request that the server has already executed, and the request
//! must not be executed twice.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use testing::net::{Net, PORT};
use testing::{free_port, latchfs};

/// Starts a proxy to `server` that drops the server's replies to the next `drops` batches (HTTP
/// requests of several commands), and closes their connections. Returns its port.
fn proxy(server: String, drops: Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&server) else { continue };
            let drops = Arc::clone(&drops);
            let asks = Arc::new(AtomicUsize::new(0));
            let (from, to) = (client.try_clone(), server.try_clone());
            let (Ok(mut from), Ok(mut to)) = (from, to) else { continue };
            let counting = Arc::clone(&asks);
            thread::spawn(move || {
                let mut bytes = vec![0; 65_536];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..count]);
                    counting
                        .fetch_add(usize::from(text.starts_with("POST /door")), Ordering::AcqRel);
                    if to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
            thread::spawn(move || back(server, client, &drops, &asks));
        }
    });
    port
}

fn back(mut server: TcpStream, mut client: TcpStream, drops: &AtomicUsize, asks: &AtomicUsize) {
    let mut bytes = vec![0; 65_536];
    while let Ok(count @ 1..) = server.read(&mut bytes) {
        let is_ask = asks.load(Ordering::Acquire) > 0;
        let drop_it = |left: usize| left.checked_sub(1);
        if is_ask && drops.fetch_update(Ordering::AcqRel, Ordering::Acquire, drop_it).is_ok() {
            break;
        }
        if client.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

#[test]
fn a_retry_after_a_lost_reply_has_no_second_effect() {
    let mut net = Net::new();
    let machine = net.machine();
    // The proxy is a thread of the test process, so the server must run in the network namespace of
    // the test process.
    let here = format!("127.0.0.1:{}", free_port());
    let served = run_here(&here, machine.path("state"));
    let drops = Arc::new(AtomicUsize::new(0));
    let port = proxy(here, Arc::clone(&drops));
    let dir = machine.path("here");
    let mount = mount_here(port, &dir);
    let mut last = 0;
    for round in 0..20 {
        for (make, remove) in [("mkdir", "rmdir"), ("touch", "rm")] {
            drops.store(1 + round % 2, Ordering::Release);
            sh(&format!("cd {} && {make} x", dir.display()));
            let page = std::fs::read(dir.join(".latchfs/status/x")).expect("a page");
            let status: serde_json::Value = serde_json::from_slice(&page).expect("JSON");
            let token = status["token"].as_u64().expect("held");
            assert_eq!(token, last + 1 + u64::from(last == 0) * (token - 1), "one grant, not two");
            last = token;
            drops.store(1, Ordering::Release);
            sh(&format!("cd {} && {remove} x", dir.display()));
        }
    }
    let _gone = std::process::Command::new("umount").arg("-l").arg(&dir).status();
    drop((mount, served));
    assert_ne!(PORT, 0);
}

struct Ours(std::process::Child);

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn sh(script: &str) {
    testing::run(std::process::Command::new("sh").args(["-c", script])).ok();
}

fn run_here(listen: &str, data: std::path::PathBuf) -> Ours {
    let mut command = latchfs();
    command.args(["serve", "--listen", listen, "--data"]).arg(data);
    begun(command, "listening")
}

fn mount_here(port: u16, dir: &std::path::Path) -> Ours {
    let mut command = latchfs();
    command.arg("mount").arg(dir).args(["--server", &format!("http://127.0.0.1:{port}")]);
    begun(command, "mounted")
}

fn begun(mut command: std::process::Command, word: &str) -> Ours {
    use std::io::BufRead as _;
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("built");
    let out = child.stdout.take().expect("piped");
    let ours = Ours(child);
    let line =
        std::io::BufReader::new(out).lines().map_while(Result::ok).find(|l| l.contains(word));
    assert!(line.is_some(), "it never said '{word}'");
    ours
}
