//! latchfs: a directory in which a file is a lock.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "planted-version")]
    if let Some(version) =
        std::env::var("LATCHFS_KNOWN_VERSION").ok().and_then(|it| it.parse().ok())
    {
        let planted = &latchfs::engine::codec::state_codec::PLANTED_VERSION;
        planted.store(version, std::sync::atomic::Ordering::SeqCst);
    }
    latchfs::cli::main()
}
