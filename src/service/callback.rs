//! The callback that receives an answer.

/// Where an answer goes. Called once, with no lock held, perhaps on another thread, perhaps
/// before the call that took it has returned.
pub type Then<T> = Box<dyn FnOnce(T) + Send>;
