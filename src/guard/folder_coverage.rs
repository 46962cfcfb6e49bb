//! The ignore rules of a folder on this machine, and the paths for which they make a difference, as
//! `guard status` shows them.

use super::barrier::coverage::CountedPaths;
use super::barrier::folder_path::FolderPath;
use super::barrier::ignored::{IgnoreRules, IgnoredBecause};
use super::barrier_store::ignore_files::read_ignore_rules;
use super::barrier_store::tool_file::{read_tool_patterns, write_tool_patterns};
use super::disk::Disk;
use super::folder_changes::{AskTool, BarrierState, FolderBarrier};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

impl<D: Disk> FolderBarrier<D> {
    /// Asks the sync tool for its ignore patterns by this call when a tenure begins.
    pub(crate) fn ask_tool_by(&self, call: AskTool) {
        // Nobody sets a second one.
        let _ = self.tool.set(call);
    }

    /// Asks the sync tool for its patterns. One that does not answer has those that it has named
    /// last, also before this guard was started.
    fn ask_tool(&self) {
        let Some(ask) = self.tool.get() else { return };
        let answer = ask();
        let mut known = self.tool_patterns.lock();
        *known = match (answer, known.take()) {
            (Some(Ok(text)), known) => {
                if known != Some(Ok(text.clone())) {
                    let written = write_tool_patterns(&*self.disk, &self.dirs.state, &text);
                    if let Err(error) = written {
                        log::warn!("the ignore patterns of Syncthing are not kept: {error}");
                    }
                }
                Some(Ok(text))
            }
            (Some(Err(_)), Some(Ok(last))) => Some(Ok(last)),
            (Some(Err(why)), _) => {
                let last = read_tool_patterns(&*self.disk, &self.dirs.state);
                Some(last.ok_or(why))
            }
            (None, _) => None,
        };
    }

    /// Reads the ignore rules, and asks the sync tool.
    pub(super) fn new_rules(&self) -> Arc<IgnoreRules> {
        self.ask_tool();
        let rules = Arc::new(self.read_rules());
        self.state.lock().rules = Arc::clone(&rules);
        rules
    }

    /// Reads the ignore rules again in a tenure. Those of the sync tool stay as they were when it
    /// began, and so do those of a `.latchfs/ignore` that can't be used any more.
    pub(super) fn rules(&self) -> Arc<IgnoreRules> {
        if self.tool_patterns.lock().is_none() {
            self.ask_tool();
        }
        let rules = self.read_rules();
        let mut state = self.state.lock();
        if rules.is_usable() {
            state.rules = Arc::new(rules);
        }
        Arc::clone(&state.rules)
    }

    fn read_rules(&self) -> IgnoreRules {
        let tool = self.tool_patterns.lock().clone();
        read_ignore_rules(&*self.disk, &self.dirs.folder, self.local.clone(), &tool)
    }

    /// Gives up those of some paths, and of the paths below them, that a rule ignores and that are
    /// covered. The folder is ready, and no marker is being listed. Returns whether there are any.
    pub(super) fn give_up(&self, paths: &BTreeSet<FolderPath>) -> Result<bool, String> {
        self.rules();
        let mut state = self.state.lock();
        let given_up = state.own_coverage().despite_rules(paths);
        if given_up.is_empty() {
            return Ok(false);
        }
        let BarrierState { coverage, ledger, .. } = &mut *state;
        coverage.give_up(&given_up);
        ledger.accept_ignored(given_up);
        state.save()?;
        Ok(true)
    }

    /// Returns the paths for which an ignore rule makes a difference, or would, as JSON.
    pub(crate) fn coverage_json(&self, may_see: bool) -> Value {
        let state = self.state.lock();
        let paths = |of: &CountedPaths| {
            let path = |(path, rule): &(FolderPath, IgnoredBecause)| {
                let (path, rule) = (path.as_str(), rule.to_string());
                json!({"path": path, "rule": rule})
            };
            let first = of.first.iter().filter(|_| may_see).map(path);
            json!({"count": of.count, "paths": first.collect::<Vec<_>>()})
        };
        json!({
            "not_covered": paths(&state.coverage.not_covered),
            "covered_despite_a_rule": paths(&state.coverage.despite),
            "problems": state.rules.problems().collect::<Vec<_>>(),
            "note": state.rules.unused_stignore(),
        })
    }
}
