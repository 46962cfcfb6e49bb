//! The specifications from which latchfs began (the seeds): a file for each, in which each
//! requirement is quoted above the test that shows it. `contrib/doc/seeds.md` lists what differs.

mod cluster;
mod documents;

mod seed_000;
mod seed_001;
mod seed_002;
mod seed_003;
mod seed_004;
