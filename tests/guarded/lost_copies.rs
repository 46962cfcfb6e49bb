//! Lost files whose restoring takes long.
use crate::shares_of_users::{
    ATTACKER, StopAtEnd, VICTIM, as_user, become_user, lost_of, make_lost, make_state, open_ctl,
    open_folder, send,
};
use latchfs::time::{Span, Time, boot_now};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use testing::Guard;

/// Restores a large lost file as the attacker. Returns how long that took, and the longest time for
/// which another user waited for an answer meanwhile.
fn longest_answer_during_a_restore(view: &Path, number: u64) -> (Span, Span) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&is_over);
        let victim = scope.spawn(|| {
            become_user(VICTIM);
            let mut longest = Span::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let begun = boot_now();
                // The kernel keeps no answer to either.
                let name = format!("none-{}", begun.since(Time::ZERO).as_millis());
                fs::metadata(view.join(name)).expect_err("there is none");
                fs::read(view.join(".latchfs/status")).expect("all may read it");
                longest = longest.max(boot_now().since(begun));
            }
            longest
        });
        let begun = boot_now();
        as_user(ATTACKER, || {
            let mut ctl = open_ctl(view).expect("a share of the open files");
            let request = format!("{{\"do\": \"restore\", \"number\": {number}}}");
            send(&ctl, &request).expect("an answer");
            let mut text = String::new();
            ctl.read_to_string(&mut text).expect("readable");
            assert!(text.contains("restored\":"), "{text}");
        });
        let took = boot_now().since(begun);
        is_over.store(true, Ordering::Relaxed);
        (took, victim.join().expect("no panic"))
    })
}

#[test]
fn a_large_lost_file_that_is_restored_delays_no_other_user() {
    const BYTES: usize = 1 << 20;
    const ROUNDS: u64 = 3;
    let scratch = open_folder();
    make_state(&scratch);
    make_lost(&scratch, ATTACKER, 1..=ROUNDS, 5);
    for number in 1..=ROUNDS {
        let large = File::create(lost_of(&scratch).join(number.to_string())).expect("there");
        let part = vec![b'x'; BYTES];
        for at in 0..320 {
            large.write_all_at(&part, at * BYTES as u64).expect("room");
        }
    }
    let guard = Guard::start(&scratch, "view", &[]);
    // A request that has to wait for the lock goes on by another thread in any case.
    guard.request("take", &[]).ok();
    // On a busy machine every answer may take that long once, but a copy always would.
    let is_quick = (1..=ROUNDS).any(|number| {
        let (took, longest) = longest_answer_during_a_restore(&guard.view, number);
        println!("a restore of {took:?}, and the longest answer meanwhile {longest:?}");
        assert!(took > Span::from_millis(120), "the copy is too short to show anything: {took:?}");
        longest < Span::from_millis(100)
    });
    assert!(is_quick, "each time another user waited for longer than 100 ms");
}
