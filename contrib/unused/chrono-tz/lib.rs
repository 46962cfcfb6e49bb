//! Stands for the table of all time zones. The crate display-more depends on it and uses nothing of
//! it; the real one takes nine more crates and a build script that parses the zones of the world.
