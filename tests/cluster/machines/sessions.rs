//! A server with a thousand idle sessions that clients only keep alive.

use latchfs::engine::{ClientId, Grace, Op, OpenSession, Outcome, SessionId, Ttl};
use latchfs::service::batch::batch_messages::{
    ASKS_MAX, BatchItem, ItemReply, RequestBatch, decode_response, encode_batch,
};
use std::fs;
use std::process::Command;
use testing::eventually_in_cluster;
use testing::net::Net;

const SESSIONS: usize = 1_000;
/// The number of rounds of keep-alives, which together last several ttls.
const ROUNDS: usize = 12;

/// Sends a batch of commands by curl on the server's machine; returns the replies to the commands.
fn send_batch(machine: &testing::net::Machine, asks: Vec<BatchItem>) -> Vec<ItemReply> {
    let (question, answer) = (machine.path("question"), machine.path("answer"));
    let bytes = encode_batch(&RequestBatch::new(0, asks));
    fs::write(&question, bytes).expect("ours");
    let mut command: Command = machine.command("curl");
    command.args(["-sS", "--fail", "-o"]).arg(&answer).arg("--data-binary");
    command.arg(format!("@{}", question.display())).arg(format!("{}/door/v1/ask", machine.url()));
    testing::run(&mut command).ok();
    decode_response(&fs::read(&answer).expect("answered")).expect("of this version").replies
}

/// Returns the processor time that a process has used, in hundredths of a second.
fn work(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    ticks(12) + ticks(13)
}

#[test]
fn a_thousand_idle_sessions_are_kept() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let served = server.serve("");
    let a = a.mount(&server.url(), "--ttl 1s");
    let client = ClientId::parse("idle").expect("valid");
    let ttl = Some(Ttl::parse("2s").expect("valid"));
    let open = |_| {
        let (client, grace) = (client.clone(), Grace::NONE);
        BatchItem::Submit(Op::OpenSession(OpenSession { client, ttl, grace }).into())
    };
    let asks: Vec<_> = (0..SESSIONS).map(open).collect();
    let sessions: Vec<SessionId> = asks
        .chunks(ASKS_MAX)
        .flat_map(|asks| send_batch(&server, asks.to_vec()))
        .map(|reply| match reply {
            ItemReply::Answered(Ok(Outcome::SessionOpened(id))) => id,
            other => panic!("not opened: {other:?}"),
        })
        .collect();
    assert_eq!(sessions.len(), SESSIONS);
    let before = (work(served.pid()), latchfs::time::boot_now());
    for round in 0..ROUNDS {
        // The next round begins a third of a ttl later. Until then, the test looks up names in the
        // mount.
        let watched = a.dir().join(format!(".latchfs/status/none{round}"));
        eventually_in_cluster("some time has passed", || {
            fs::metadata(&watched).ok()?;
            let waited = latchfs::time::boot_now().since(before.1);
            (waited.as_millis() > 600 * (round as u64 + 1)).then_some(())
        });
        let keep: Vec<_> =
            sessions.iter().map(|id| BatchItem::Submit(Op::KeepAlive(*id).into())).collect();
        for asks in keep.chunks(ASKS_MAX) {
            for reply in send_batch(&server, asks.to_vec()) {
                let kept = matches!(reply, ItemReply::Answered(Ok(Outcome::KeptAlive(_))));
                assert!(kept, "round {round}: {reply:?}");
            }
        }
    }
    let span = latchfs::time::boot_now().since(before.1);
    let work = work(served.pid()) - before.0;
    println!("{SESSIONS} sessions for {span}: {work} hundredths of a second of processor time");
    assert_eq!(a.server_page()["contact"], "connected");
    a.sh("mkdir x && rmdir x").ok();
}
