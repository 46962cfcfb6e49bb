//! The decisions of the sync barrier.

pub(crate) mod content_digest;
pub(crate) mod folder_path;
pub(crate) mod marker_name;
pub(crate) mod handover;
pub(crate) mod marker;
pub(crate) mod marker_files;
pub(crate) mod chain;
pub(crate) mod tree;
pub(crate) mod change_log;
pub(crate) mod ledger;
pub(crate) mod ledger_file;
pub(crate) mod strays;
pub(crate) mod ignored;
mod comparison;
pub(crate) mod ready;
pub(crate) mod accept;
pub(crate) mod checkpoint;
pub(crate) mod marking;
pub(crate) mod late;
#[cfg(test)]
mod test_markers;
#[cfg(test)]
mod test_tree;
#[cfg(test)]
mod tests_explore;
