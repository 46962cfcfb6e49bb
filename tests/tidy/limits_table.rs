//! Checks that the table of limits in `contrib/doc/limits.md` and the constants of the code agree:
//! each constant of the table has the limit that its row states, each test in it exists, and each
//! constant of the code that ends in `_MAX` is in it.

use crate::{Source, has_word, sources};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Constants that bound nothing that a peer or a user makes the program keep: numbers of items that
/// are handled at a time, of attempts, and of items that are shown; sizes of own files and threads;
/// and values that need no memory.
const NOT_IN_THE_TABLE: &[(&str, &[&str])] = &[
    ("src/audit_chain/check.rs", &["AUDIT_FAULTS_MAX"]),
    ("src/audit_chain/hash_chain.rs", &["BYTES_MAX"]),
    ("src/audit_chain/log_file.rs", &["END_BYTES_MAX"]),
    ("src/auth/engine_shares.rs", &["COUNTS_MAX"]),
    ("src/cli/hook/agent_process.rs", &["ANCESTORS_MAX"]),
    ("src/cli/hook/file_lock.rs", &["LINKS_MAX"]),
    ("src/client/event_stream.rs", &["EVENT_NUMBER_MAX"]),
    ("src/client/request_queue.rs", &["REPEATS_MAX"]),
    ("src/control/control_executor.rs", &["WAITERS_SHOWN_MAX"]),
    ("src/engine/values/lease.rs", &["TOKEN_MAX"]),
    ("src/engine/values/name.rs", &["SHORT_BYTES_MAX"]),
    ("src/fuse/credentials.rs", &["BUFFER_BYTES_MAX", "GENERATIONS_MAX"]),
    ("src/fuse/mod.rs", &["CONTROL_BYTES_MAX"]),
    ("src/kernel/session.rs", &["BACKGROUND_MAX"]),
    ("src/kernel/mount_seal.rs", &["SHOWN_MAX"]),
    ("src/kernel/mountinfo.rs", &["LINKS_MAX"]),
    ("src/kernel/interrupts.rs", &["STATUS_BYTES_MAX"]),
    ("src/kernel/slow_calls.rs", &["THREADS_MAX"]),
    ("src/fuse/kernel_cache.rs", &["EVENTS_MAX"]),
    ("src/fuse/process/lease_users.rs", &["EVENTS_MAX"]),
    ("src/fuse/open_files.rs", &["EVENTS_MAX"]),
    ("src/fuse/file_waits.rs", &["EVENTS_MAX"]),
    ("src/fuse/posix_locks/lock_session.rs", &["EVENTS_MAX"]),
    ("src/fuse/process/bindings.rs", &["NEWS_MAX"]),
    ("src/fuse/process/bindings.rs", &["ENDS_MAX"]),
    ("src/guard/barrier_store/disk_tree.rs", &["SKIPPED_SHOWN_MAX"]),
    ("src/guard/barrier_store/marker_dir.rs", &["UNREAD_SHOWN_MAX"]),
    ("src/guard/doctor/folder_checks.rs", &["STRAYS_MAX"]),
    ("src/guard/lock/folder_lock.rs", &["EVENTS_MAX"]),
    ("src/guard/folder_snapshot/descriptor.rs", &["SENTENCES_MAX"]),
    ("src/guard/folder_snapshot/snapshot_store.rs", &["LISTED_MAX", "LISTED_SENTENCES_MAX"]),
    ("src/guard/folder_snapshot/snapshot_store.rs", &["DIFFERENCES_MAX"]),
    ("src/guard/stage/publish.rs", &["PATH_KEPT_MAX"]),
    ("src/guard/view/requests/lost_control.rs", &["LISTED_MAX"]),
    ("src/guard/view/parts/nodes.rs", &["DEPTH_MAX"]),
    ("src/raft/store/log.rs", &["CACHED_BYTES_MAX", "CACHED_MAX", "CHUNK_BYTES_MAX"]),
    ("src/raft/write/proposal_queue.rs", &["REQUESTS_MAX"]),
    ("src/raft/store/snapshot.rs", &["NAMES_MAX"]),
    ("src/server/http/handlers/cluster.rs", &["PENDING_MAX"]),
    ("src/server/http/connection.rs", &["GROUPS_MAX"]),
    ("src/server/http/handlers/sessions.rs", &["SEARCHES_MAX"]),
    ("src/server/http/server.rs", &["WORKERS_MAX"]),
    ("src/server/line/commands.rs", &["TRIES_MAX"]),
    ("src/server/line/fuzz.rs", &["BYTES_MAX"]),
    ("src/service/audit/audit_log.rs", &["LOGGED_MAX"]),
    ("src/service/local.rs", &["COPIED_AT_ONCE_MAX"]),
    ("src/service/parent_check.rs", &["BELOW_MAX"]),
    ("src/service/audit/refusal_log.rs", &["REASON_CHARS_MAX"]),
    ("src/service/queue_waits.rs", &["EVENTS_MAX"]),
    ("src/cli/guard/sleep_inhibitor.rs", &["SIGNALS_MAX"]),
];

/// A row of the table.
struct LimitRow {
    limit: String,
    path: String,
    constant: String,
    tests: Vec<String>,
}

/// Returns the texts in backquotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn rows() -> Vec<LimitRow> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/doc/limits.md");
    let text = fs::read_to_string(path).expect("the chapter is there");
    let of_row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, _, limit, _, _, constant, tests, _] = cells[..] else { return None };
        let [path, constant] = &quoted(constant)[..] else { return None };
        let (path, constant) = (path.clone(), constant.clone());
        Some(LimitRow { limit: limit.to_owned(), path, constant, tests: quoted(tests) })
    };
    text.lines().filter_map(of_row).collect()
}

/// Returns the number that a row states, in bytes if it has a unit.
fn stated(limit: &str) -> Option<u64> {
    let (number, unit) = limit.split_once(' ').unwrap_or((limit, ""));
    let number: u64 = number.replace(',', "").parse().ok()?;
    match unit {
        "" | "bytes" => Some(number),
        "KiB" => Some(number << 10),
        "MiB" => Some(number << 20),
        "GiB" => Some(number << 30),
        _ => None,
    }
}

/// Returns the expression of a constant, or of a field of a default value.
fn expression<'a>(source: &'a Source, name: &str) -> Option<&'a str> {
    let constant = format!("const {name}: ");
    let field = format!("{name}: ");
    let value = |line: &'a str| match line.split_once(&constant) {
        Some((_, rest)) => rest.split_once(" = ")?.1.split(';').next(),
        None => line
            .trim()
            .strip_prefix(&field)?
            .strip_suffix(',')
            .filter(|value| value.starts_with(|first: char| first.is_ascii_digit())),
    };
    source.code().find_map(|(_, line)| value(line))
}

/// Returns the value of a constant that is a sum, difference, product, quotient or shift of numbers
/// and other constants. Outside of parentheses it is evaluated from left to right.
fn value(all: &[Source], source: &Source, name: &str) -> Option<u64> {
    let Some(text) = expression(source, name) else {
        // The constant is imported: its file is named in a `use` line.
        let imports: Vec<_> = source.text.split(';').filter(|part| part.contains("use ")).collect();
        let is_import = |other: &&Source| {
            let module = other.path.rsplit('/').next().and_then(|file| file.strip_suffix(".rs"));
            let names = |import: &&str| {
                has_word(import, name)
                    && module.is_some_and(|module| import.contains(&format!("{module}::")))
            };
            expression(other, name).is_some() && imports.iter().any(names)
        };
        let other = all.iter().filter(|other| other.path.starts_with("src/")).find(is_import)?;
        return value(all, other, name);
    };
    let of_word = |word: &str| match word.replace('_', "").parse() {
        Ok(number) => Some(number),
        Err(_) => value(all, source, word),
    };
    let mut text = text.to_owned();
    while let Some(end) = text.find(')') {
        let start = text[..end].rfind('(')?;
        let inner = evaluate(&text[start + 1..end], of_word)?;
        text.replace_range(start..=end, &inner.to_string());
    }
    evaluate(&text, of_word)
}

/// Returns the value of an expression without parentheses.
fn evaluate(text: &str, of_word: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let words: Vec<_> = text.split_whitespace().collect();
    let mut result = of_word(words.first()?)?;
    for pair in words[1..].chunks(2) {
        let operand = of_word(pair.get(1)?)?;
        result = match pair[0] {
            "+" => result + operand,
            "-" => result - operand,
            "*" => result * operand,
            "/" => result / operand,
            "<<" => result << operand,
            _ => return None,
        };
    }
    Some(result)
}

#[test]
fn table_of_limits_states_the_constants_of_the_code() {
    let (all, rows) = (sources(), rows());
    assert!(rows.len() > 80, "the table is read: {} rows", rows.len());
    for LimitRow { limit, path, constant, tests } in &rows {
        let source = all.iter().find(|source| source.path == *path);
        let source = source.unwrap_or_else(|| panic!("there is no {path}"));
        let (value, stated) = (value(&all, source, constant), stated(limit));
        assert!(value.is_some() && value == stated, "{path} {constant}: {value:?}, not {limit}");
        assert!(!tests.is_empty(), "{path} {constant}: no test goes beyond it");
        for test in tests {
            let name = format!("fn {test}(");
            let is_test = all.iter().any(|source| source.text.contains(&name));
            assert!(is_test, "{path} {constant}: there is no test {test}");
        }
    }
}

#[test]
fn each_limit_of_the_code_is_in_the_table() {
    let rows = rows();
    let known: BTreeSet<_> = rows.iter().map(|row| (&*row.path, &*row.constant)).collect();
    let exempt = |path: &str, name: &str| {
        NOT_IN_THE_TABLE.iter().any(|(file, names)| *file == path && names.contains(&name))
    };
    let mut missing = vec![];
    for source in sources().iter().filter(|source| source.is_in("src/")) {
        if source.is_in("src/cli/") {
            continue;
        }
        for (_, line) in source.code() {
            let Some((_, rest)) = line.split_once("const ") else { continue };
            let Some((name, kind)) = rest.split_once(": ") else { continue };
            let is_number = ["usize", "u64", "u32", "u16"].iter().any(|of| kind.starts_with(of));
            let is_limit = name.ends_with("_MAX") && is_number;
            if is_limit && !known.contains(&(&*source.path, name)) && !exempt(&source.path, name) {
                missing.push(format!("{} {name}", source.path));
            }
        }
    }
    assert!(missing.is_empty(), "add these to contrib/doc/limits.md: {missing:#?}");
}
