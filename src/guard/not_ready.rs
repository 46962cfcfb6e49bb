//! The sentences that say why a folder is not ready, and the next step.

use super::barrier::missing::NotArrived;
use super::folder_barrier::Arrival;
use std::fmt;

/// How many of the missing paths a sentence names.
const NAMED_MOST: usize = 3;

/// A number of bytes, as people read it.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes @ 0..1_000 => write!(f, "{bytes} bytes"),
            bytes @ 1_000..1_000_000 => write!(f, "{} KB", bytes / 1_000),
            bytes @ 1_000_000..1_000_000_000 => write!(f, "{} MB", bytes / 1_000_000),
            bytes => write!(f, "{} GB", bytes / 1_000_000_000),
        }
    }
}

fn say_missing(missing: &NotArrived, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Some(marker) = &missing.marker {
        let token = marker.name.tenure.token.as_u64();
        return write!(f, "the marker of tenure {token} has not arrived yet");
    }
    if missing.count == 0 {
        return f.write_str("'.latchfs/ignore' is not the one of the last marker yet");
    }
    write!(
        f,
        "{} of {} files have not arrived, {}",
        missing.count,
        missing.of,
        Bytes(missing.bytes)
    )?;
    for (number, path) in missing.paths.iter().take(NAMED_MOST).enumerate() {
        f.write_str(if number == 0 { ": " } else { ", " })?;
        write!(f, "'{}' {}", path.path, path.because)?;
    }
    Ok(())
}

/// Writes a sentence without a full stop.
impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready | Self::First => f.write_str("everything is here"),
            Self::NotArrived(missing) => say_missing(missing, f),
            Self::Unsure(why) => write!(
                f,
                "nobody can say whether everything is here: {why}; wait until that machine is back \
                 and its files are here, or go on with the folder as it stands by 'latchfs guard \
                 accept --reason WHY'"
            ),
        }
    }
}
