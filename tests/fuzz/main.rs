//! Fuzzing of everything that parses bytes or text from outside: `targets` has one test for each
//! decoder, `guard_targets` those of guarded folders, `harness` runs it on valid inputs and on
//! mutations of them. Names and durations, whose rules are short, are compared with a second
//! implementation here.
//!
//! `LATCHFS_FUZZ_CASES` is the number of inputs for each decoder; `contrib/fuzz` tries a million.

#[cfg(target_os = "linux")]
mod guard_targets;
mod harness;
mod memory;
mod mutations;
mod targets;
mod values;

use harness::cases;
use latchfs::engine::values::lease::{looks_like_a_duration, parse_span};
use latchfs::engine::{LockName, Ttl};
use latchfs::time::Span;
use proptest::prelude::*;

/// Generates byte strings of which some are valid names, and many almost are.
fn nearly_names() -> impl Strategy<Value = Vec<u8>> {
    let text = r"(\.latchfs|\.\.|\.|/|[a-z]{1,8}|é|\x7f|\n){0,8}".prop_map(String::into_bytes);
    let long = (0..6_usize, 250..260_usize, any::<bool>()).prop_map(|(parts, bytes, slash)| {
        let part = "x".repeat(bytes);
        [vec![part.as_str(); parts].join("/"), "/".repeat(usize::from(slash))].concat().into_bytes()
    });
    prop_oneof![text, long, proptest::collection::vec(any::<u8>(), 0..300)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases() as u32))]

    #[test]
    fn a_name_is_accepted_exactly_if_it_is_valid(bytes in nearly_names()) {
        let good = |part: &str| {
            (1..=255).contains(&part.len()) && part != "." && part != ".."
                && !part.chars().any(char::is_control)
        };
        let wanted = std::str::from_utf8(&bytes).is_ok_and(|text| {
            text.len() <= 1_024 && text.split('/').all(good) && !text.starts_with(".latchfs")
        });
        let parsed = LockName::parse_bytes(&bytes);
        prop_assert_eq!(parsed.is_ok(), wanted);
        if let Ok(name) = parsed {
            prop_assert_eq!(name.as_str().as_bytes(), &bytes[..]);
        }
    }

    #[test]
    fn a_ttl_is_accepted_exactly_if_it_is_within_bounds(
        text in r"[-+]?([0-9]{0,22}(\.[0-9]{0,22})?[hmsnu ]{0,2}){0,4}",
    ) {
        let span = parse_span(&text);
        prop_assert!(span.is_err() || looks_like_a_duration(&text), "a ttl that no write can say");
        prop_assert_eq!(Ttl::parse(&text).is_ok(), span.is_ok_and(|span| {
            (1_000..=86_400_000).contains(&span.as_millis()) && span >= Span::from_secs(1)
                && span <= Span::from_secs(86_400)
        }));
    }

    #[test]
    fn a_duration_is_the_sum_of_its_parts(
        (h, m, s) in (0..30_u64, 0..60_u64, 0..60_u64),
        ms in 0..1000_u64,
    ) {
        let span = Span::from_millis(((h * 60 + m) * 60 + s) * 1_000 + ms);
        prop_assert_eq!(parse_span(&format!("{h}h{m}m{s}s{ms}ms")), Ok(span));
        prop_assert_eq!(parse_span(&format!("{h}h{m}m{s}.{ms:03}s")), Ok(span));
    }

    #[test]
    fn a_formatted_span_parses_to_itself_or_slightly_more(
        nanos in 0..200_000_000_000_000_u64,
        exact in 0..200_000_u64,
    ) {
        let span = Span::from_nanos(nanos);
        let read = parse_span(&span.to_string()).expect("what is shown can be read");
        prop_assert!(read >= span, "who waits as long as shown has waited long enough");
        prop_assert!(read.as_nanos() - nanos < 1_000_000_000);
        let span = Span::from_secs(exact);
        prop_assert_eq!(parse_span(&span.to_string()), Ok(span));
        let span = Span::from_millis(exact % 100 * 100);
        prop_assert_eq!(parse_span(&span.to_string()), Ok(span));
    }
}
