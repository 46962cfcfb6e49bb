//! The users as which a guard acts on systems without views: none but its own.

/// Makes a call as the guard itself.
pub(crate) fn itself<T>(call: impl FnOnce() -> T) -> T {
    call()
}
