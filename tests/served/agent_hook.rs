//! `latchfs hook`: what coding agents call before they write a file, on a machine on which nothing
//! is set up.

use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use testing::{LocalUser, rounds, signal, soon};

const UID: u32 = 47_112;

/// The events of the fixtures.
const EDIT: &str = include_str!("../fixtures/agent_events/claude_edit.json");
const EDITED: &str = include_str!("../fixtures/agent_events/claude_edited.json");
const MULTI_EDIT: &str = include_str!("../fixtures/agent_events/claude_multi_edit.json");
const NOTEBOOK: &str = include_str!("../fixtures/agent_events/claude_notebook.json");
const WRITE: &str = include_str!("../fixtures/agent_events/claude_write.json");
const END: &str = include_str!("../fixtures/agent_events/claude_end.json");
const PATCH: &str = include_str!("../fixtures/agent_events/codex_patch.json");
const STOP: &str = include_str!("../fixtures/agent_events/codex_stop.json");

/// An agent: a process that starts a hook for each line of its input, which is an event, and prints
/// the exit code, the time that the hook took in milliseconds, and its message.
const AGENT: &str = r#"
import json, subprocess, sys, time
for event in sys.stdin:
    begun = time.monotonic()
    # A shell that waits for the hook, as for a command of several words.
    command = ['sh', '-c', 'latchfs hook "$@"; exit $?', 'sh', *sys.argv[1:]]
    hook = subprocess.run(command, input=event.rstrip('\n').encode(), stderr=subprocess.PIPE)
    took = (time.monotonic() - begun) * 1000
    print(json.dumps([hook.returncode, took, hook.stderr.decode(errors='replace')]), flush=True)
"#;

struct Agent {
    child: Child,
}

/// The answer of a hook.
struct Answer {
    code: i64,
    millis: f64,
    message: String,
}

impl Agent {
    fn of(user: &LocalUser, options: &[&str]) -> Self {
        let mut command = user.command(&[&["/usr/bin/python3", "-c", AGENT], options].concat());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Self { child: child.expect("it starts") }
    }

    /// Has the agent start a hook for an event in the home of the user.
    fn tells(&mut self, user: &LocalUser, event: &str) -> Answer {
        let event = event.trim().replace("DIR", user.home().to_str().expect("text"));
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{event}").expect("it reads");
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\n") {
            self.child.stdout.as_mut().expect("piped").read_exact(&mut byte).expect("it answers");
            line.push(byte[0]);
        }
        let answer: Value = serde_json::from_slice(&line).expect("JSON");
        Answer {
            code: answer[0].as_i64().expect("a code"),
            millis: answer[1].as_f64().expect("a time"),
            message: answer[2].as_str().expect("a text").to_owned(),
        }
    }

    /// Has the agent start a hook, which must let it go on.
    #[track_caller]
    fn may(&mut self, user: &LocalUser, event: &str) {
        let answer = self.tells(user, event);
        assert_eq!(answer.code, 0, "{}", answer.message);
    }

    /// Has the agent start a hook, which must block it. Returns the message.
    #[track_caller]
    fn may_not(&mut self, user: &LocalUser, event: &str) -> String {
        let Answer { code, message, .. } = self.tells(user, event);
        assert_eq!(code, 2, "{message}");
        assert!(message.starts_with("latchfs: "), "{message}");
        message
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("our child");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the locks that hooks hold, without those of their watchers.
fn held(user: &LocalUser) -> Vec<Value> {
    let listed = user.latchfs(&["ls", "agents/", "--json"]).ok();
    let listed: Vec<Value> = serde_json::from_str(&listed).expect("JSON");
    let is_file = |lock: &Value| lock["name"].as_str().is_some_and(|it| !it.contains("/session/"));
    listed.into_iter().filter(is_file).collect()
}

fn names(user: &LocalUser) -> Vec<String> {
    let name = |lock: Value| lock["name"].as_str().expect("a name").to_owned();
    let mut names: Vec<_> = held(user).into_iter().map(name).collect();
    names.sort_unstable();
    names
}

fn lock_of(user: &LocalUser, file: &str) -> String {
    format!("agents/file{}", user.home().join(file).display())
}

/// The recorded events of two sessions of Claude Code and one of Codex that work on one file.
#[test]
fn recorded_events_of_agents_are_replayed() {
    let user = LocalUser::new(UID);
    let (mut first, mut second, mut third) =
        (Agent::of(&user, &[]), Agent::of(&user, &[]), Agent::of(&user, &[]));
    for event in [EDIT, EDITED, MULTI_EDIT, NOTEBOOK] {
        first.may(&user, event);
    }
    assert_eq!(names(&user), [lock_of(&user, "main.rs"), lock_of(&user, "plot.ipynb")]);
    for (agent, event) in [(&mut second, WRITE), (&mut third, PATCH)] {
        let why = agent.may_not(&user, event);
        assert!(why.contains("main.rs was not written, since its lock is held by"), "{why}");
        assert!(why.contains("(note: agent session 7b2c1f6e-"), "{why}");
        assert!(why.contains(", taken "), "{why}");
        let next = format!("latchfs run --wait 10m '{}' -- true", lock_of(&user, "main.rs"));
        assert!(why.contains(&next), "{why}");
    }
    assert_eq!(names(&user).len(), 2, "a patch that is blocked takes none of its files");
    first.may(&user, END);
    assert_eq!(names(&user), Vec::<String>::new());
    third.may(&user, PATCH);
    third.may(&user, STOP);
    assert_eq!(names(&user), [lock_of(&user, "main.rs"), lock_of(&user, "src/new.rs")]);
    second.may_not(&user, WRITE);
}

#[test]
fn leases_end_with_the_process_of_the_agent() {
    let user = LocalUser::new(UID);
    let (mut first, mut second) = (Agent::of(&user, &[]), Agent::of(&user, &[]));
    first.may(&user, EDIT);
    second.may_not(&user, WRITE);
    soon("the watcher", || {
        let listed = user.latchfs(&["ls", "agents/session/"]).ok();
        listed.contains("agents/session/7b2c1f6e-").then_some(())
    });
    first.kill();
    soon("the end of the leases", || names(&user).is_empty().then_some(()));
    second.may(&user, WRITE);
}

/// A lease ends a while after the last event of its session, also while the agent runs, and each
/// event renews it.
#[test]
fn an_idle_lease_expires_and_events_renew_it() {
    let user = LocalUser::new(UID);
    let mut agent = Agent::of(&user, &["--ttl", "1h"]);
    agent.may(&user, EDIT);
    let expires = |user: &LocalUser| held(user)[0]["expires_at"].as_str().expect("one").to_owned();
    let before = expires(&user);
    soon("a later end", || {
        agent.may(&user, EDITED);
        (expires(&user) > before).then_some(())
    });
    assert!(held(&user)[0]["ttl_ms"] == 3_600_000, "{:?}", held(&user));
    agent.may(&user, END);
    agent.kill();
    let mut short = Agent::of(&user, &["--ttl", "1s"]);
    short.may(&user, EDIT);
    soon("the end of the lease", || names(&user).is_empty().then_some(()));
}

/// Links lead to one lock, and a path that is no name of a lock has one by its digest.
#[test]
fn every_way_to_a_file_means_one_lock() {
    let user = LocalUser::new(UID);
    symlink("main.rs", user.home().join("link.rs")).expect("ours");
    symlink(".", user.home().join("here")).expect("ours");
    let (mut first, mut second) = (Agent::of(&user, &[]), Agent::of(&user, &[]));
    first.may(&user, EDIT);
    for way in ["DIR/link.rs", "DIR/here/main.rs", "DIR/./main.rs", "main.rs", "here/link.rs"] {
        let why = second.may_not(&user, &WRITE.replace("DIR/main.rs", way));
        assert!(why.contains(&lock_of(&user, "main.rs")), "{way}: {why}");
    }
    let long = format!("DIR/{}", "d/".repeat(600));
    first.may(&user, &EDIT.replace("DIR/main.rs", &long));
    let why = second.may_not(&user, &WRITE.replace("DIR/main.rs", &long));
    assert!(why.contains("agents/digest/"), "{why}");
    let why = second.may_not(&user, &WRITE.replace("DIR/main.rs", "DIR/here/../main.rs"));
    assert!(why.contains("without '..'"), "{why}");
}

/// An agent takes every exit code but 2 for leave to go on.
#[test]
fn each_failure_blocks_the_agent() {
    let user = LocalUser::new(UID);
    let hook = |options: &[&str], input: &str| {
        let mut command = user.command(&[&["latchfs", "hook"], options].concat());
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        // A hook that ends at once reads nothing.
        let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("our child");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let blocked = |options: &[&str], input: &str, why: &str| {
        let (code, message) = hook(options, input);
        assert_eq!(code, Some(2), "{options:?} {why}: {message}");
        assert!(message.contains(why), "{message}");
    };
    let event = |fields: Value| {
        let mut event = json!({"session_id": "s", "hook_event_name": "PreToolUse", "cwd": "/",
            "tool_name": "Write"});
        for (name, value) in fields.as_object().expect("fields") {
            event[name] = value.clone();
        }
        event.to_string()
    };
    let edit = EDIT.replace("DIR", user.home().to_str().expect("text"));
    blocked(&[], "", "no event");
    blocked(&[], "{\"hook_event_name\"", "no event");
    blocked(&[], &format!("{edit}{edit}"), "something follows");
    blocked(&[], &event(json!({"tool_input": {"file_path": "a\u{0}b"}})), "zero byte");
    blocked(&[], &event(json!({"tool_name": "Bash", "tool_input": {}})), "does not know");
    blocked(&[], &event(json!({"hook_event_name": "Unknown"})), "is unknown here");
    blocked(&[], &event(json!({"session_id": "../x"})), "session_id");
    blocked(&[], &event(json!({"session_id": ".."})), "session_id");
    let content = "x".repeat(2 << 20);
    blocked(&[], &event(json!({"tool_input": {"content": content}})), "more than 1048576 bytes");
    blocked(&["--no-such-option"], &edit, "unexpected argument");
    blocked(&["--ttl", "1ms"], &edit, "a ttl is at least 1s");
    let global = user.sh("latchfs -q hook --no-such-option");
    assert_eq!(global.code, 2, "{global:?}");
    blocked(&["--server", "http://127.0.0.1:1"], &edit, "latchfs: ");
    blocked(&["--agent-pid", "4194304"], &edit, "no process 4194304");
    fs::write(user.home().join("plain"), "").expect("ours");
    let below = edit.replace("main.rs", "plain/file");
    blocked(&[], &below, "can't be followed");
}

/// A daemon that hangs, and an agent that never ends its event, make a hook end after 5 s.
#[test]
fn a_hook_ends_in_time() {
    let user = LocalUser::new(UID);
    let mut agent = Agent::of(&user, &[]);
    agent.may(&user, EDIT);
    let daemon = user.daemon();
    signal(daemon, libc::SIGSTOP);
    let Answer { code, millis, message } = agent.tells(&user, WRITE);
    signal(daemon, libc::SIGCONT);
    assert!(code == 2 && message.contains("answer"), "{code}: {message}");
    assert!(millis < 20_000.0, "{millis} ms");
    let mut silent: Command = user.command(&["latchfs", "hook"]);
    let silent = silent.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut silent = silent.expect("it starts");
    let stdin = silent.stdin.take();
    let mut why = String::new();
    silent.stderr.take().expect("piped").read_to_string(&mut why).expect("text");
    assert!(why.contains("there was no answer for 5s, so nothing is written"), "{why}");
    assert_eq!(silent.wait().expect("our child").code(), Some(2));
    drop(stdin);
}

/// An event that ends, in a pipe that does not, is answered at once.
#[test]
fn an_event_in_an_open_pipe_is_answered_and_fast() {
    let user = LocalUser::new(UID);
    let mut open: Command = user.command(&["latchfs", "hook"]);
    let mut open = open.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = open.stdin.take().expect("piped");
    let event = EDIT.trim().replace("DIR", user.home().to_str().expect("text"));
    stdin.write_all(event.as_bytes()).expect("it reads");
    assert_eq!(open.wait().expect("our child").code(), Some(0));
    drop(stdin);
    let mut agent = Agent::of(&user, &[]);
    let mut times: Vec<_> = (0..rounds(20, 200)).map(|_| agent.tells(&user, EDIT).millis).collect();
    times.sort_by(f64::total_cmp);
    println!(
        "a hook takes {:.1} ms, at most {:.1} ms",
        times[times.len() / 2],
        times[times.len() - 1]
    );
    // The tests run beside others, so the bound is a multiple of what a hook takes alone.
    assert!(times[times.len() / 2] < 200.0, "{times:?}");
}

/// What Claude Code and Codex have sent to the hooks of `contrib/agents`, when a server in place of
/// their models told them to write: each write is allowed, and the end of the session frees the
/// files.
#[test]
fn recorded_sessions_of_agents_hold_their_files_until_they_end() {
    let user = LocalUser::new(UID);
    let held = || user.latchfs(&["ls", "agents/file/", "--json"]).ok().matches("\"held\"").count();
    for (recorded, tools, files) in [
        (include_str!("../fixtures/agent_events/recorded_claude_code_2.1.197.jsonl"), 3, 2),
        (include_str!("../fixtures/agent_events/recorded_codex_0.171.0.jsonl"), 1, 1),
    ] {
        let mut agent = Agent::of(&user, &[]);
        let events: Vec<&str> = recorded.lines().collect();
        let (end, during) = events.split_last().expect("events");
        let begins = during.iter().filter(|event| event.contains("\"PreToolUse\"")).count();
        assert!(begins == tools && end.contains("\"SessionEnd\""), "{recorded}");
        for event in during {
            let answer = agent.tells(&user, event);
            assert_eq!((answer.code, &*answer.message), (0, ""), "{event}");
        }
        assert_eq!(held(), files);
        let mut other = Agent::of(&user, &[]);
        let writes = during[0].replacen("\"session_id\":\"", "\"session_id\":\"other-", 1);
        let blocked = other.tells(&user, &writes);
        assert!(blocked.code == 2 && blocked.message.contains("was not written"), "{writes}");
        assert_eq!(agent.tells(&user, end).code, 0);
        assert_eq!(held(), 0);
        assert_eq!(other.tells(&user, &writes).code, 0);
        assert_eq!(other.tells(&user, &end.replacen("\":\"", "\":\"other-", 1)).code, 0);
    }
}

/// The settings that are shipped call the hook for tools that it knows, and block an agent on a
/// machine without latchfs.
#[test]
fn the_shipped_settings_call_the_hook_as_it_wants_to_be_called() {
    let user = LocalUser::new(UID);
    let tells = |script: &str, event: &Value| {
        let mut command = user.command(&["sh", "-c", script]);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        // A shell that finds no program reads nothing.
        let _ = write!(child.stdin.take().expect("piped"), "{event}");
        child.wait().expect("our child").code()
    };
    for settings in [
        include_str!("../../contrib/agents/claude-settings.json"),
        include_str!("../../contrib/agents/codex-hooks.json"),
    ] {
        let settings: Value = serde_json::from_str(settings).expect("JSON");
        for (name, groups) in settings["hooks"].as_object().expect("events") {
            let group = &groups[0];
            let hook = &group["hooks"][0];
            // Codex gives a hook at the end of a session 3 s, and no tool waits for it.
            let least = if name == "SessionEnd" { 3 } else { 6 };
            assert!(hook["type"] == "command" && hook["timeout"].as_u64() >= Some(least), "{hook}");
            let script = hook["command"].as_str().expect("a text");
            let matcher = group["matcher"].as_str().unwrap_or("*");
            for tool in matcher.trim_matches(['^', '$']).split('|') {
                let event = json!({"session_id": "s", "hook_event_name": name, "cwd": "/",
                    "tool_name": tool, "tool_input": {"file_path": "/a", "notebook_path": "/b",
                        "command": "*** Begin Patch\n*** Add File: c\n+1\n*** End Patch"}});
                assert_eq!(tells(script, &event), Some(0), "{name} {tool}");
                if name == "PreToolUse" {
                    let script = script.replace("latchfs", "no-such-program");
                    assert_eq!(tells(&script, &event), Some(2), "{name} {tool}");
                }
            }
        }
    }
}
