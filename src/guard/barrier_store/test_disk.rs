//! A disk for tests that fails or stops at a numbered step.
