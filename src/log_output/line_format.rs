//! The formats of a log line. Text that clients choose, such as the names of locks, is escaped, so
//! that no client can forge a line or send commands to a terminal.

use crate::time::Wall;
use env_logger::fmt::style::Style;
use log::Record;
use log::kv::{Error, Key, Value, VisitSource, VisitValue};
use std::fmt::Write as _;

/// Maximum length of a message or of one field in bytes; a longer one is cut off. A lock's name has
/// at most a quarter of that.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// The field with the time of the event that a record is about, which takes the place of the time
/// at which its line is made.
const EVENT_TIME: &str = "event_time";

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Time, level, message and `key=value` fields
    Text,
    /// One JSON object per line
    Json,
}

/// The style in which a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineStyle {
    /// The message and its fields, after the name of the program: for a command.
    Plain,
    /// The message and its fields after the time, the level and the name of the program: for a
    /// daemon.
    Text,
    /// A JSON object.
    Json,
}

/// Returns the line of a record, with the newline at its end. `color` is that of its level, and
/// changes a text alone.
pub(super) fn format_line(
    record: &Record<'_>,
    at: Wall,
    style: LineStyle,
    color: Style,
) -> Vec<u8> {
    let mut line = String::with_capacity(200);
    let level = record.level();
    let own = record.key_values().get(Key::from_str(EVENT_TIME));
    let at = own.map_or_else(|| at.to_string(), |own| own.to_string());
    match style {
        LineStyle::Plain => line.push_str("latchfs: "),
        LineStyle::Text => {
            let _ = write!(line, "{at} {color}{level:<5}{color:#} ");
        }
        LineStyle::Json => {
            let _ = write!(line, "{{\"time\":\"{at}\",\"level\":\"{level}\",\"target\":");
            quote(&mut line, record.target());
            line.push_str(",\"message\":");
        }
    }
    let message = record.args().as_str();
    let message = message.map_or_else(|| record.args().to_string().into(), std::borrow::Cow::from);
    if style == LineStyle::Json {
        quote(&mut line, &message);
    } else {
        escape(&mut line, &message);
    }
    // The fields of a record never fail.
    let _ = record.key_values().visit(&mut FieldWriter { line: &mut line, style });
    line.push_str(if style == LineStyle::Json { "}\n" } else { "\n" });
    line.into_bytes()
}

struct FieldWriter<'a> {
    line: &'a mut String,
    style: LineStyle,
}

impl<'kvs> VisitSource<'kvs> for FieldWriter<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        if key.as_str() == EVENT_TIME {
            return Ok(());
        }
        value.visit(ValueWriter { key: key.as_str(), fields: self })
    }
}

/// Writes one field, unless its value is missing.
struct ValueWriter<'a, 'b> {
    key: &'a str,
    fields: &'a mut FieldWriter<'b>,
}

impl ValueWriter<'_, '_> {
    /// Writes the key, and returns the line, to which the value is still to be added.
    fn begin(&mut self) -> &mut String {
        let FieldWriter { line, style } = &mut *self.fields;
        if *style == LineStyle::Json {
            line.push(',');
            quote(line, self.key);
            line.push(':');
        } else {
            let _ = write!(line, " {}=", self.key);
        }
        line
    }
}

impl VisitValue<'_> for ValueWriter<'_, '_> {
    fn visit_any(&mut self, value: Value<'_>) -> Result<(), Error> {
        self.visit_str(&value.to_string())
    }

    fn visit_null(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn visit_u64(&mut self, value: u64) -> Result<(), Error> {
        Ok(write!(self.begin(), "{value}")?)
    }

    fn visit_i64(&mut self, value: i64) -> Result<(), Error> {
        Ok(write!(self.begin(), "{value}")?)
    }

    fn visit_bool(&mut self, value: bool) -> Result<(), Error> {
        Ok(write!(self.begin(), "{value}")?)
    }

    fn visit_str(&mut self, value: &str) -> Result<(), Error> {
        let is_word = |c: char| c.is_alphanumeric() || "-_./:@+,[]".contains(c);
        let is_plain = !value.is_empty() && value.chars().all(is_word);
        let is_json = self.fields.style == LineStyle::Json;
        let line = self.begin();
        if is_plain && !is_json {
            escape(line, value);
        } else {
            quote(line, value);
        }
        Ok(())
    }
}

/// Appends a text as a string of JSON, whose control characters are escaped.
fn quote(line: &mut String, text: &str) {
    line.push('"');
    for c in start_of(text) {
        if matches!(c, '"' | '\\') {
            line.push('\\');
        }
        escape_char(line, c);
    }
    line.push('"');
}

/// Appends a text whose control characters are escaped.
fn escape(line: &mut String, text: &str) {
    start_of(text).for_each(|c| escape_char(line, c));
}

/// Returns the characters of a text within [`TEXT_BYTES_MAX`], and a sign that there are more.
fn start_of(text: &str) -> impl Iterator<Item = char> {
    let fits = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(fits).unwrap_or_default();
    text[..end].chars().chain((end < text.len()).then_some('\u{2026}'))
}

/// Whether a character is a control character, ends a line, or changes the direction in which a
/// terminal writes.
pub(crate) fn controls_terminal(c: char) -> bool {
    let turns_or_ends = matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns_or_ends || c.is_control()
}

/// Appends a character, or its escape if it controls the terminal.
fn escape_char(line: &mut String, c: char) {
    match c {
        '\n' => line.push_str("\\n"),
        '\r' => line.push_str("\\r"),
        '\t' => line.push_str("\\t"),
        c if controls_terminal(c) => {
            let _ = write!(line, "\\u{:04x}", u32::from(c));
        }
        c => line.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env_logger::fmt::style::AnsiColor;
    use log::Level;
    use log::kv::ToValue as _;
    use serde_json::Value as Json;

    /// Returns the line of a message with a lock's name and a token.
    fn line(message: &str, name: &str, style: LineStyle) -> String {
        let fields: &[(&str, Value<'_>)] = &[("lock", name.into()), ("token", 7_u64.into())];
        let line = format_line(
            &Record::builder()
                .level(Level::Info)
                .target("latchfs::locks")
                .key_values(&fields)
                .args(format_args!("{message}"))
                .build(),
            Wall::now(),
            style,
            Style::new(),
        );
        String::from_utf8(line).expect("text")
    }

    /// The characters that end a line or change its direction, beside the control characters.
    const ENDS_OR_TURNS: &str = "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\
                                 \u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";

    const HOSTILE: [&str; 7] = [
        "a\n2026-01-01T00:00:00.000Z INFO  forged",
        "\x1b[2J\x07\u{9b}31m\x7f\0",
        "\u{202e}dlrow\u{2028}",
        "\u{61c}\u{200e}\u{200f}\u{2066}dlrow\u{2069}",
        "a b=c \"d\" \\",
        "",
        "{\"level\":\"ERROR\"}",
    ];

    #[test]
    fn text_of_clients_can_forge_no_line_and_send_no_escape() {
        for hostile in HOSTILE {
            for style in [LineStyle::Plain, LineStyle::Text, LineStyle::Json] {
                let line = line(hostile, hostile, style);
                let whole = line.strip_suffix('\n').expect("a newline at the end");
                assert!(
                    !whole.chars().any(|c| c.is_control() || ENDS_OR_TURNS.contains(c)),
                    "{whole:?}"
                );
            }
        }
    }

    #[test]
    fn json_line_has_the_very_text() {
        for hostile in HOSTILE {
            let line = line("lock granted", hostile, LineStyle::Json);
            let known: Json = serde_json::from_str(&line).expect("JSON");
            assert_eq!((&known["lock"], &known["token"]), (&hostile.into(), &7.into()));
            assert_eq!(
                (&known["message"], &known["level"]),
                (&"lock granted".into(), &"INFO".into())
            );
            let time = known["time"].as_str().expect("a time");
            assert!(time.len() == 24 && time.ends_with('Z'), "{time}");
        }
    }

    #[test]
    fn text_line_has_fields_as_words_or_quoted() {
        let of = |name: &str| line("lock granted", name, LineStyle::Text)[25..].to_owned();
        assert_eq!(of("team/build"), "INFO  lock granted lock=team/build token=7\n");
        assert_eq!(of("a b=c"), "INFO  lock granted lock=\"a b=c\" token=7\n");
        assert_eq!(line("x", "y", LineStyle::Plain), "latchfs: x lock=y token=7\n");
        let record = Record::builder().level(Level::Info).args(format_args!("x")).build();
        let green = AnsiColor::Green.on_default();
        let colored = format_line(&record, Wall::now(), LineStyle::Text, green);
        assert!(String::from_utf8(colored).expect("text").contains("\x1b[32mINFO \x1b[0m"));
    }

    #[test]
    fn field_without_a_value_is_left_out() {
        let (token, client) = (None::<u64>, None::<&str>);
        let fields: &[(&str, Value<'_>)] =
            &[("token", token.to_value()), ("client", client.to_value()), ("n", 1_u64.into())];
        for (style, wanted) in [(LineStyle::Plain, " n=1\n"), (LineStyle::Json, ",\"n\":1}\n")] {
            let mut record = Record::builder();
            let record = record.key_values(&fields).args(format_args!("refused")).build();
            let line = format_line(&record, Wall::now(), style, Style::new());
            let line = String::from_utf8(line).expect("text");
            assert!(line.ends_with(wanted) && !line.contains("token"), "{line}");
        }
    }

    #[test]
    fn long_text_is_cut_off() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        for style in [LineStyle::Plain, LineStyle::Json] {
            let line = line(&long, &long, style);
            assert!(line.len() < 2 * TEXT_BYTES_MAX + 200, "{}", line.len());
            assert!(line.contains("é…"), "the cut is shown");
        }
    }
}
