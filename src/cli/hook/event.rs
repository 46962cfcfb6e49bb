//! The events that a coding agent tells a hook: one JSON object on standard input, in the form that
//! Claude Code and Codex document.

use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeSet;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// The maximum size of an event in bytes: it contains what the agent is about to write.
const EVENT_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of files that one event writes.
const EVENT_FILES_MAX: usize = 64;
/// The maximum length of the id of a session: several times that of a UUID.
const SESSION_ID_BYTES_MAX: usize = 128;

/// The lines of a patch that name a file.
const PATCH_MARKERS: [&str; 4] =
    ["*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "];
/// The first line of a patch.
const PATCH_BEGIN: &str = "*** Begin Patch";

/// The events during a session that write nothing: they show that the agent is at work.
const ACTIVITY: [&str; 11] = [
    "SessionStart",
    "UserPromptSubmit",
    "PermissionRequest",
    "PostToolUse",
    "PostToolUseFailure",
    "Notification",
    "PreCompact",
    "PostCompact",
    "SubagentStart",
    "SubagentStop",
    "Stop",
];

/// What an agent tells a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct AgentEvent {
    /// The session of the agent, which letters, digits, `.`, `_` and `-` name.
    pub(in crate::cli) session: String,
    pub(in crate::cli) kind: AgentEventKind,
}

/// What happens in an agent's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum AgentEventKind {
    /// The agent is about to write these files.
    Writes(BTreeSet<PathBuf>),
    /// The agent is at work.
    Works,
    /// The session ends.
    Ends,
}

/// The fields of an event that a hook needs. Others are left out, and none may come twice.
#[derive(Deserialize)]
struct RawEvent {
    session_id: String,
    hook_event_name: String,
    cwd: Option<PathBuf>,
    tool_name: Option<String>,
    tool_input: Option<RawToolInput>,
}

/// The input of a tool, as far as it names files.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawToolInput {
    Files(RawFiles),
    Other(IgnoredAny),
}

#[derive(Deserialize)]
struct RawFiles {
    file_path: Option<String>,
    notebook_path: Option<String>,
    command: Option<String>,
}

impl AgentEvent {
    /// Reads an event. The agent may keep its end of the pipe open, so that the event ends with its
    /// last brace. The error is a sentence.
    pub(in crate::cli) fn read(from: impl Read) -> Result<Self, String> {
        let mut from = BufReader::new(from.take(EVENT_BYTES_MAX));
        let mut parser = serde_json::Deserializer::from_reader(&mut from);
        let parsed = RawEvent::deserialize(&mut parser);
        drop(parser);
        let is_full = from.get_ref().limit() == 0 && from.buffer().is_empty();
        let raw = parsed.map_err(|_| {
            if is_full {
                format!("the event has more than {EVENT_BYTES_MAX} bytes")
            } else {
                "standard input has no event of an agent: one JSON object with session_id and \
                 hook_event_name, each field once"
                    .to_owned()
            }
        })?;
        if !from.buffer().trim_ascii().is_empty() {
            return Err("something follows the event on standard input".to_owned());
        }
        Self::of(raw)
    }

    fn of(raw: RawEvent) -> Result<Self, String> {
        let session = raw.session_id;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let fits = (1..=SESSION_ID_BYTES_MAX).contains(&session.len());
        let begins_well = session.starts_with(|letter: char| letter.is_ascii_alphanumeric());
        if !fits || !begins_well || !session.bytes().all(is_plain) {
            return Err(format!(
                "session_id must have 1 to {SESSION_ID_BYTES_MAX} letters, digits, '.', '_' or \
                 '-', and begin with one of the first two"
            ));
        }
        let kind = match raw.hook_event_name.as_str() {
            "PreToolUse" => {
                let tool = raw.tool_name.ok_or(
                    "the event names no tool; send the tool's name as 'tool_name', as an agent \
                     does at PreToolUse",
                )?;
                let dir = raw.cwd.filter(|dir| dir.is_absolute());
                let Some(RawToolInput::Files(input)) = raw.tool_input else {
                    return Err(
                        "the tool has no input that names a file; name only tools that write \
                                files in the matcher of this hook"
                            .to_owned(),
                    );
                };
                AgentEventKind::Writes(written(&tool, input, dir.as_deref())?)
            }
            "SessionEnd" => AgentEventKind::Ends,
            name if ACTIVITY.contains(&name) => AgentEventKind::Works,
            name => {
                return Err(format!(
                    "the event '{}' is unknown here; call this hook at PreToolUse, PostToolUse and \
                     SessionEnd",
                    shown(name)
                ));
            }
        };
        Ok(Self { session, kind })
    }
}

/// Returns a text of the agent as a message shows it.
fn shown(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(40).collect()
}

/// Returns the files that a tool is about to write.
fn written(tool: &str, input: RawFiles, dir: Option<&Path>) -> Result<BTreeSet<PathBuf>, String> {
    let paths = match tool {
        "Write" | "Edit" | "MultiEdit" => input.file_path.into_iter().collect(),
        "NotebookEdit" => input.notebook_path.or(input.file_path).into_iter().collect(),
        "apply_patch" => patched(&input.command.unwrap_or_default())?,
        _ => {
            return Err(format!(
                "this hook does not know which files the tool '{}' writes; name only Write, Edit, \
                 MultiEdit, NotebookEdit and apply_patch in its matcher",
                shown(tool)
            ));
        }
    };
    let whole = |path: String| match dir {
        _ if path.is_empty() || path.contains('\0') => Err("a path is empty or has a zero byte"),
        _ if Path::new(&path).is_absolute() => Ok(PathBuf::from(path)),
        Some(dir) => Ok(dir.join(path)),
        None => Err("a path is relative, and the event names no directory in 'cwd'"),
    };
    let files: BTreeSet<_> = paths.into_iter().map(whole).collect::<Result<_, _>>()?;
    match files.len() {
        0 => Err(format!("the input of the tool '{tool}' names no file")),
        1..=EVENT_FILES_MAX => Ok(files),
        _ => Err(format!("the tool writes more than {EVENT_FILES_MAX} files at once")),
    }
}

/// Returns the files that a patch in the form of Codex adds, changes, removes or renames.
fn patched(patch: &str) -> Result<Vec<String>, String> {
    if !patch.lines().any(|line| line.trim() == PATCH_BEGIN) {
        return Err("the input of apply_patch is no patch".to_owned());
    }
    let named = |line: &str| {
        let line = line.trim();
        PATCH_MARKERS.iter().find_map(|marker| Some(line.strip_prefix(marker)?.trim().to_owned()))
    };
    Ok(patch.lines().filter_map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(event: &Value) -> Result<AgentEvent, String> {
        AgentEvent::read(event.to_string().as_bytes())
    }

    fn files(event: &Value) -> Vec<PathBuf> {
        match read(event).expect("an event").kind {
            AgentEventKind::Writes(files) => files.into_iter().collect(),
            other => panic!("{other:?}"),
        }
    }

    fn before(tool: &str, input: &Value) -> Value {
        json!({"session_id": "a-1", "transcript_path": "/t", "cwd": "/work", "tool_name": tool,
            "hook_event_name": "PreToolUse", "permission_mode": "default", "tool_input": input})
    }

    #[test]
    fn the_files_of_each_tool_are_found() {
        for tool in ["Write", "Edit", "MultiEdit"] {
            assert_eq!(files(&before(tool, &json!({"file_path": "/a/b"}))), [Path::new("/a/b")]);
        }
        let notebook = json!({"notebook_path": "n.ipynb", "new_source": "1"});
        assert_eq!(files(&before("NotebookEdit", &notebook)), [Path::new("/work/n.ipynb")]);
        let patch = "*** Begin Patch\n*** Update File: a.rs\n@@\n-x\n+*** Add File: no\n\
                     *** Move to: b.rs\n*** Add File: /c\n+1\n*** Delete File: d\n*** End Patch\n";
        assert_eq!(
            files(&before("apply_patch", &json!({"command": patch}))),
            ["/c", "/work/a.rs", "/work/b.rs", "/work/d"].map(Path::new)
        );
    }

    #[test]
    fn other_events_show_that_the_session_works_or_ends() {
        let kind = |name: &str| {
            read(&json!({"session_id": "s", "hook_event_name": name})).map(|event| event.kind)
        };
        for name in ACTIVITY {
            assert_eq!(kind(name), Ok(AgentEventKind::Works), "{name}");
        }
        assert_eq!(kind("SessionEnd"), Ok(AgentEventKind::Ends));
        assert!(kind("Later").expect_err("unknown").contains("'Later' is unknown"));
        // The input of a tool that has run may be anything.
        let after = json!({"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "X",
            "tool_input": [1, {"file_path": 7}], "tool_response": {"ok": true}});
        assert_eq!(read(&after).map(|event| event.kind), Ok(AgentEventKind::Works));
    }

    #[test]
    fn hostile_events_are_refused() {
        let path = |path: &str| before("Write", &json!({"file_path": path}));
        let mut nowhere = before("Write", &json!({"file_path": "a"}));
        nowhere["cwd"] = "work".into();
        let mut unnamed = before("Write", &json!({"file_path": "/a"}));
        unnamed["tool_name"] = Value::Null;
        let many: Vec<_> = (0..65).map(|number| format!("*** Add File: {number}")).collect();
        let many = format!("{PATCH_BEGIN}\n{}", many.join("\n"));
        for (event, why) in [
            (path(""), "empty"),
            (path("/a\0b"), "zero byte"),
            (nowhere, "relative"),
            (unnamed, "names no tool; send the tool's name as 'tool_name'"),
            (before("Bash", &json!({"command": "rm x"})), "does not know which files"),
            (before("Write", &json!({})), "names no file"),
            (before("Write", &json!(7)), "no input"),
            (before("Write", &json!({"file_path": 7})), "no input"),
            (before("apply_patch", &json!({"command": "ls"})), "no patch"),
            (before("apply_patch", &json!({"command": many})), "more than 64 files"),
            (json!({"session_id": "a/b", "hook_event_name": "Stop"}), "session_id"),
            (json!({"session_id": "..", "hook_event_name": "Stop"}), "session_id"),
            (json!({"session_id": "", "hook_event_name": "Stop"}), "session_id"),
            (json!({"session_id": "s".repeat(129), "hook_event_name": "Stop"}), "session_id"),
            (json!({"session_id": 1, "hook_event_name": "Stop"}), "no event"),
            (json!({"hook_event_name": "Stop"}), "no event"),
            (json!([]), "no event"),
        ] {
            let refused = read(&event).expect_err("hostile");
            assert!(refused.contains(why), "{event}: {refused}");
        }
    }

    #[test]
    fn only_one_whole_event_of_bounded_size_is_one() {
        let stop = r#"{"session_id": "s", "hook_event_name": "Stop"}"#;
        assert!(AgentEvent::read(format!(" {stop}\n").as_bytes()).is_ok());
        let twice = r#"{"session_id": "s", "session_id": "t", "hook_event_name": "Stop"}"#;
        let nested = format!("{{\"x\":{}", "[".repeat(10_000));
        for text in ["", "{", "null", &stop[1..], twice, &nested, &format!("{stop}{stop}")] {
            assert!(AgentEvent::read(text.as_bytes()).is_err(), "{text}");
        }
        let path_twice = br#"{"session_id": "s", "hook_event_name": "PreToolUse", "cwd": "/",
            "tool_name": "Write", "tool_input": {"file_path": "/a", "file_path": "/b"}}"#;
        assert!(AgentEvent::read(&path_twice[..]).is_err());
        let long = before("Write", &json!({"file_path": "/a", "content": "x".repeat(1 << 20)}));
        let refused = read(&long).expect_err("too long");
        assert!(refused.contains("more than 1048576 bytes"), "{refused}");
    }
}
