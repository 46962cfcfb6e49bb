//! The callback type for asynchronous answers.

/// A callback for an answer. Called once, with no mutex held, possibly on another thread, and
/// possibly before the call that received it has returned.
pub type Then<T> = Box<dyn FnOnce(T) + Send>;
