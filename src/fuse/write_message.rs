//! Parses the messages that programs write to a lock's file. One write is one message. Pure: the
//! parser only reads bytes.

use crate::control::lease_options::{LeaseOptions, checked_pid, options_of, short, wrong_pid};
use crate::engine::Ttl;
use crate::engine::lease_terms::looks_like_a_duration;
use serde_json::Value;

/// The meaning of the bytes of one write to a lock's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The text is only white space: the write renews the lease.
    Renew,
    /// The write renews the lease, and changes it by the contained options.
    Options(LeaseOptions),
    /// Any other text: the write renews the lease, and the text becomes the content.
    Text,
}

/// Returns the message in `data`, or an error text that says why it is invalid.
pub(crate) fn parse(data: &[u8]) -> Result<Message, String> {
    let Ok(text) = std::str::from_utf8(data) else { return Ok(Message::Text) };
    let text = text.trim();
    match text {
        "" => Ok(Message::Renew),
        _ if text.starts_with('{') => parse_object(text),
        _ if looks_like_a_duration(text) => {
            let ttl = Ttl::parse(text).map_err(|error| format!("'{}': {error}", short(text)))?;
            Ok(Message::Options(LeaseOptions { ttl: Some(ttl), ..LeaseOptions::default() }))
        }
        _ => match text.strip_prefix("pid=") {
            // Only `pid=` with a number and nothing else is an option. Other text that begins with
            // `pid=`, such as `pid=12 host=x`, is content.
            Some(digits) if is_number(digits) => {
                let pid = digits.parse().map_err(|_| wrong_pid(digits))?;
                Ok(Message::Options(LeaseOptions {
                    pid: Some(checked_pid(pid)?),
                    ..LeaseOptions::default()
                }))
            }
            _ => Ok(Message::Text),
        },
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_object(text: &str) -> Result<Message, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        format!("a text that begins with '{{' is read as JSON, and this is none: {error}")
    })?;
    let Value::Object(object) = value else { return Ok(Message::Text) };
    let ours =
        |key: &String| matches!(key.as_str(), "ttl" | "grace" | "note" | "token" | "pid" | "mode");
    if !object.keys().all(ours) {
        return Ok(Message::Text);
    }
    if object.is_empty() {
        return Ok(Message::Renew);
    }
    options_of(&object).map(Message::Options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limits::NOTE_BYTES_MAX;
    use crate::engine::{Grace, Mode, Token};
    use crate::time::Span;
    use proptest::prelude::*;

    fn options(text: &str) -> LeaseOptions {
        match parse(text.as_bytes()) {
            Ok(Message::Options(options)) => options,
            other => panic!("{text:?} is {other:?}"),
        }
    }

    #[test]
    fn a_duration_is_a_ttl() {
        assert_eq!(options("60s\n").ttl.map(Ttl::span), Some(Span::from_secs(60)));
        assert_eq!(options(" 1m30s ").ttl.map(Ttl::span), Some(Span::from_secs(90)));
        for wrong in ["500ms", "0s", "-5s", "25h", "99999999999999999999h", "1s2", "1.2.3s"] {
            if !looks_like_a_duration(wrong) {
                continue;
            }
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn empty_write_is_a_renewal() {
        for empty in ["", "\n", "  \t\n", "{}"] {
            assert_eq!(parse(empty.as_bytes()), Ok(Message::Renew), "{empty:?}");
        }
    }

    #[test]
    fn texts_that_programs_write_are_content() {
        for text in ["1234", "1234\n", "host:1234", "hello", "s", "12 s", "[1]", "pid=12 host=x"] {
            assert_eq!(parse(text.as_bytes()), Ok(Message::Text), "{text:?}");
        }
        assert_eq!(parse(b"\xff\xfe"), Ok(Message::Text));
        assert_eq!(parse(br#"{"pid":1,"hostname":"x"}"#), Ok(Message::Text));
    }

    #[test]
    fn object_with_only_option_keys_is_options() {
        let text = r#"{"ttl":"60s","grace":"0s","note":"hi","token":7,"pid":12,"mode":"shared"}"#;
        let read = options(text);
        assert_eq!(read.ttl.map(Ttl::span), Some(Span::from_secs(60)));
        assert_eq!(read.grace.map(Grace::span), Some(Span::ZERO));
        assert_eq!(read.note.as_deref(), Some("hi"));
        assert_eq!(read.token, Some(Token::named(7)));
        assert_eq!((read.pid, read.mode), (Some(12), Some(Mode::Shared)));
        assert_eq!(options(r#"{"ttl":"60s","note":null}"#).note, None);
    }

    #[test]
    fn wrong_options_are_rejected() {
        let deep = format!("{{\"note\":{}{}}}", "[".repeat(1_500), "]".repeat(1_500));
        let long = format!("{{\"note\":\"{}\"}}", "x".repeat(NOTE_BYTES_MAX + 1));
        for wrong in [
            "{",
            "{\"ttl\":\"60s\"",
            r#"{"ttl":60}"#,
            r#"{"ttl":"500ms"}"#,
            r#"{"ttl":"25h"}"#,
            r#"{"grace":"25h"}"#,
            r#"{"token":-1}"#,
            r#"{"token":9007199254740992}"#,
            r#"{"pid":0}"#,
            r#"{"pid":99999999999}"#,
            r#"{"mode":"both"}"#,
            "pid=0",
            "pid=99999999999999999999",
            &deep,
            &long,
        ] {
            let sentence = parse(wrong.as_bytes()).expect_err(wrong);
            assert!(!sentence.is_empty() && !sentence.ends_with('.'), "{sentence}");
        }
    }

    proptest! {
        #[test]
        fn near_messages_do_not_panic(
            text in r#"[ ]?(pid=|\{"(ttl|pid|note|x)":"?)?-?[0-9.]{0,25}[hmsu]{0,2}"?\}?"#,
        ) {
            let _ = parse(text.as_bytes());
        }

        #[test]
        fn every_good_ttl_is_read(secs in 1_u64..=86_400) {
            let read = parse(format!("{secs}s\n").as_bytes());
            let ttl = Ttl::new(Span::from_secs(secs)).expect("within bounds");
            let want = Message::Options(LeaseOptions { ttl: Some(ttl), ..LeaseOptions::default() });
            prop_assert_eq!(read, Ok(want));
        }
    }
}
