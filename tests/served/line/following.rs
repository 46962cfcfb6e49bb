//! A follower, a program that has registered at the server to be sent lock changes, receives every
//! change in order, and delays no client.

use crate::line::follower::{After, Follower};
use std::net::TcpListener;
use testing::{Lines, eventually};

fn register(lines: &Lines, address: &str) {
    assert_eq!(lines.request(&format!("REGISTER,{address}")), "REGISTERED");
}

fn every_change(after: After) {
    let lines = Lines::start(&["--grace", "0s"]);
    assert_eq!(lines.request("LOCK,before,z"), "SUCCESS");
    let follower = Follower::start(after);
    register(&lines, &follower.address);
    assert_eq!(follower.next_message(), "SYNC,LOCK,before,z", "what is held already comes first");
    let mut talk = lines.connect();
    for number in 0..50 {
        assert_eq!(talk.request(&format!("LOCK,lock{number},a")), "SUCCESS");
        assert_eq!(talk.request(&format!("LOCK,lock{number},b")), "FAIL");
        assert_eq!(talk.request(&format!("UNLOCK,lock{number},a")), "SUCCESS");
    }
    for number in 0..50 {
        assert_eq!(follower.next_message(), format!("SYNC,LOCK,lock{number},a"));
        assert_eq!(follower.next_message(), format!("SYNC,UNLOCK,lock{number},a"));
    }
    // The server sends the follower a `SYNC` line when a lock expires, and when a release over HTTP
    // passes a lock to the next waiter.
    assert_eq!(talk.request("LOCK,short,a,1s"), "SUCCESS");
    assert_eq!(follower.next_message(), "SYNC,LOCK,short,a");
    assert_eq!(follower.next_message(), "SYNC,UNLOCK,short,a");
    let server = &lines.server;
    server.curl(&["-X", "POST", "/locks/queue?client=a"]).is(200);
    let waits = server.open(&["-X", "POST", "/locks/queue?client=b&wait=60s"]);
    server.in_line("queue", 1);
    server.curl(&["-X", "DELETE", "/locks/queue?client=a"]).is(200);
    waits.reply().is(200);
    for next_message in ["SYNC,LOCK,queue,a", "SYNC,UNLOCK,queue,a", "SYNC,LOCK,queue,b"] {
        assert_eq!(follower.next_message(), next_message);
    }
    assert_eq!(lines.metric("latchfs_line_followers"), Some(1));
    eventually("all are acknowledged", || {
        (lines.metric("latchfs_line_sync_total")? == 106).then_some(())
    });
}

#[test]
fn every_change_goes_to_a_follower_that_ends_each_connection() {
    every_change(After::Ends);
}

#[test]
fn every_change_goes_to_a_follower_that_keeps_its_connection() {
    every_change(After::GoesOn);
}

#[test]
fn registering_again_starts_over() {
    let lines = Lines::start(&[]);
    let follower = Follower::start(After::GoesOn);
    register(&lines, &follower.address);
    assert_eq!(lines.request("LOCK,a,x"), "SUCCESS");
    assert_eq!(follower.next_message(), "SYNC,LOCK,a,x");
    register(&lines, &follower.address);
    assert_eq!(follower.next_message(), "SYNC,LOCK,a,x");
    assert_eq!(lines.metric("latchfs_line_followers"), Some(1));
}

/// Two followers (programs registered to be sent lock changes) do not work: nothing listens on the
/// address of one, and the other never replies. They delay no client, and the server drops both.
#[test]
fn dead_followers_are_dropped() {
    let lines = Lines::start(&[]);
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("bound").to_string()
    };
    // The kernel accepts connections to this listener, but no program reads from them, so the
    // server gets no `ACK`.
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    register(&lines, &gone);
    register(&lines, &mute.local_addr().expect("bound").to_string());
    let follower = Follower::start(After::GoesOn);
    register(&lines, &follower.address);
    assert_eq!(lines.metric("latchfs_line_followers"), Some(3));
    for number in 0..100 {
        assert_eq!(lines.request(&format!("LOCK,lock{number},a")), "SUCCESS");
    }
    for number in 0..100 {
        assert_eq!(follower.next_message(), format!("SYNC,LOCK,lock{number},a"));
    }
    eventually("the gone one is dropped", || {
        (lines.metric("latchfs_line_dropped_total")? >= 1).then_some(())
    });
    eventually("the mute one is dropped", || {
        (lines.metric("latchfs_line_followers")? == 1).then_some(())
    });
    let log = lines.server.log();
    assert!(log.contains(&gone) && log.contains("has to register again"), "{log}");
    assert_eq!(lines.request("LOCK,last,a"), "SUCCESS");
    assert_eq!(follower.next_message(), "SYNC,LOCK,last,a");
}
