//! The image of `contrib/docker`: runs the command of its Dockerfile in a network namespace of its
//! own. The image itself is not built by this test, because that needs a registry with the base
//! images.

use std::process::Command;
use testing::{Scratch, latchfs_path, run};

const DOCKERFILE: &str = include_str!("../../../contrib/docker/Dockerfile");

/// Returns the arguments of the last instruction `word` in the Dockerfile.
fn said(word: &str) -> &'static str {
    let mut lines =
        DOCKERFILE.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    lines.next_back().unwrap_or_else(|| panic!("the image has no {word}"))
}

fn words(word: &str) -> Vec<String> {
    serde_json::from_str(said(word)).expect("a list of texts")
}

/// The server in the image is not root, and owns the directory of its locks.
#[test]
fn image_has_a_user_of_its_own() {
    let (user, volume) = (said("USER"), said("VOLUME"));
    let (uid, gid) = user.split_once(':').expect("a user and a group");
    assert!(uid.parse::<u32>().is_ok_and(|uid| uid > 0), "{user}");
    for part in [format!("--uid {uid} "), format!("--gid {gid} ")] {
        assert!(DOCKERFILE.contains(&part), "{part}");
    }
    assert!(DOCKERFILE.contains(&format!("install -d -o latchfs -g latchfs -m 700 {volume}")));
}

#[test]
fn command_of_the_image_grants_locks() {
    let [program] = &words("ENTRYPOINT")[..] else { panic!("one program is started") };
    assert_eq!(said("COPY"), format!("--from=build /src/target/release/latchfs {program}"));
    let (scratch, volume) = (Scratch::new(), said("VOLUME"));
    let own = scratch.path().join("data");
    assert_eq!(said("ENV"), format!("LATCHFS_DATA={volume}"), "the locks are on the volume");
    let script = format!(
        "ip link set lo up
        \"$0\" \"$@\" > out 2>&1 & server=$!
        until grep -qs listening out; do kill -0 $server || {{ cat out >&2; exit 1; }}; done
        curl -sS -X POST 'http://127.0.0.1:{}/lock?client=laptop1&ttl=30s'
        kill $server; wait $server",
        said("EXPOSE"),
    );
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c", &script, latchfs_path()])
        .args(words("CMD"))
        .env("LATCHFS_DATA", &own)
        .current_dir(scratch.path());
    let said = run(&mut command).ok();
    assert!(own.join("log").is_dir());
    assert!(said.starts_with(r#"{"holder":"laptop1","expires_at":""#), "{said}");
}
