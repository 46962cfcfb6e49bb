//! The budget of each folder of `src`: the lines of code, without tests, of the files that lie in
//! it. A change that needs more raises the budget in a commit of its own, which says why.

use crate::{Source, sources};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A budget is a multiple of this, so that a fix of a few lines needs no commit about budgets.
const STEP: usize = 50;

/// The folders of `src`, and their budgets in lines.
const BUDGETS: &[(&str, usize)] = &[
    ("src", 500),
    ("src/audit_chain", 600),
    ("src/auth", 1950),
    ("src/barrier", 3100),
    ("src/barrier/tests_explore", 1200),
    ("src/cli", 1750),
    ("src/cli/connect", 2350),
    ("src/cli/doctor", 1600),
    ("src/cli/guard", 3250),
    ("src/cli/hook", 600),
    ("src/cli/lock", 930),
    ("src/cli/mount", 850),
    ("src/cli/run", 1250),
    ("src/cli/serve", 1750),
    ("src/cli/show", 660),
    ("src/client", 3350),
    ("src/common", 500),
    ("src/control", 700),
    ("src/engine", 1550),
    ("src/engine/codec", 1300),
    ("src/engine/rules", 1750),
    ("src/engine/values", 2750),
    ("src/fuse", 3550),
    ("src/fuse/control_files", 800),
    ("src/fuse/ops", 1700),
    ("src/fuse/posix_locks", 850),
    ("src/fuse/posix_locks/table", 2000),
    ("src/fuse/process", 800),
    ("src/guard", 1800),
    ("src/guard/barrier_store", 1600),
    ("src/guard/disk", 1150),
    ("src/guard/doctor", 550),
    ("src/guard/folder", 3000),
    ("src/guard/folder_snapshot", 1700),
    ("src/guard/lock", 1300),
    ("src/guard/stage", 900),
    ("src/guard/tenures", 2050),
    ("src/guard/tests_explore", 1850),
    ("src/guard/view", 1100),
    ("src/guard/view/parts", 2300),
    ("src/guard/view/requests", 3550),
    ("src/guard/view/tests", 0),
    ("src/home", 600),
    ("src/kernel", 3050),
    ("src/log_output", 500),
    ("src/metrics", 400),
    ("src/mutex", 650),
    ("src/net", 250),
    ("src/raft", 850),
    ("src/raft/node", 2100),
    ("src/raft/rpc", 1450),
    ("src/raft/store", 1100),
    ("src/raft/write", 1300),
    ("src/server", 350),
    ("src/server/http", 2300),
    ("src/server/http/bodies", 1400),
    ("src/server/http/handlers", 2600),
    ("src/server/http/routes", 850),
    ("src/server/line", 1000),
    ("src/service", 2650),
    ("src/service/audit", 700),
    ("src/service/batch", 550),
    ("src/storage", 1500),
];

/// Returns the lines of code of the files in each folder.
fn lines(sources: &[Source]) -> BTreeMap<&str, usize> {
    let mut folders = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_in("src/")) {
        let (folder, _) = source.path.rsplit_once('/').expect("it is in src");
        let count = source.code().filter(|(_, line)| !line.trim().is_empty()).count();
        *folders.entry(folder).or_default() += count;
    }
    folders
}

#[test]
fn folders_keep_to_their_budgets() {
    let sources = sources();
    let found = lines(&sources);
    let budgets: BTreeMap<_, _> = BUDGETS.iter().copied().collect();
    let fits = |(folder, lines): (&&str, &usize)| {
        budgets.get(folder).is_some_and(|most| lines <= most && most - lines < 2 * STEP)
    };
    let mut table = String::new();
    for (folder, lines) in &found {
        writeln!(table, "    (\"{folder}\", {}),", lines.next_multiple_of(STEP)).expect("memory");
    }
    let wrong: Vec<_> = found.iter().filter(|it| !fits(*it)).collect();
    assert!(
        wrong.is_empty() && budgets.len() == found.len(),
        "folders beyond their budgets, or far below: {wrong:?}; the table of today is\n{table}"
    );
}
