//! Tests that every implementation of the alarm must pass.

use super::Alarm;
use crate::time::{Span, Time, boot_now};
use std::sync::Arc;

#[test]
fn it_fires_at_the_earliest_time_set() {
    let alarm = Alarm::new().expect("a timer is to be had");
    let now = boot_now();
    alarm.set(now + Span::from_secs(3_600));
    alarm.set(now + Span::from_millis(5));
    alarm.set(now + Span::from_secs(60));
    assert!(alarm.wait());
    let waited = boot_now().since(now);
    assert!(waited >= Span::from_millis(5) && waited < Span::from_secs(60), "{waited}");
    alarm.clear();
    alarm.stop();
    assert!(!alarm.wait());
}

#[test]
fn a_waiting_thread_notices_an_earlier_time() {
    let alarm = Arc::new(Alarm::new().expect("a timer is to be had"));
    alarm.set(boot_now() + Span::from_secs(3_600));
    let waiting = Arc::clone(&alarm);
    let rung = std::thread::spawn(move || waiting.wait());
    alarm.set(Time::ZERO);
    assert!(rung.join().expect("it waits"));
}
