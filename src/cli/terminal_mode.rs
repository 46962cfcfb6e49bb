//! The terminal of a command that draws its whole screen: keys without echo, the alternate screen,
//! and how the terminal was before.

use super::exit::{CliError, CliResult};
use super::output;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read};
use std::time::Duration;

/// Switches to the alternate screen, and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor, and switches back.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves the cursor to the top left.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears the rest of the screen.
const CLEAR_BELOW: &str = "\x1b[J";
/// The keys that end the command: q, Q, Ctrl-C, Ctrl-D and Escape.
const QUIT: [u8; 5] = [b'q', b'Q', 3, 4, 27];

/// The terminal in the mode of such a command, until this value is dropped.
pub(super) struct TerminalMode {
    /// The modes before, unless standard input is no terminal.
    before: Option<Termios>,
}

impl TerminalMode {
    /// Switches the terminal into the mode.
    pub(super) fn enter() -> CliResult<Self> {
        let failed = |error: rustix::io::Errno| CliError::system("the terminal", &error.into());
        let stdin = io::stdin();
        let before = stdin.is_terminal().then(|| tcgetattr(&stdin)).transpose().map_err(failed)?;
        if let Some(before) = &before {
            let mut modes = before.clone();
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            tcsetattr(&stdin, OptionalActions::Now, &modes).map_err(failed)?;
        }
        let mode = Self { before };
        output::write(ENTER)?;
        Ok(mode)
    }

    /// Draws lines from the top of the screen.
    pub(super) fn draw(lines: &[String]) -> CliResult {
        let mut text = HOME.to_owned();
        for (number, line) in lines.iter().enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            let _ = write!(text, "{end}{line}{CLEAR_LINE}");
        }
        output::write(&(text + CLEAR_BELOW))
    }

    /// Waits for a key for so long, and returns whether it is one that ends the command.
    pub(super) fn is_quit_pressed(&self, patience: Duration) -> bool {
        let mut stdin = io::stdin();
        if self.before.is_none() {
            std::thread::sleep(patience);
            return false;
        }
        let patience = Timespec::try_from(patience).ok();
        let mut wanted = [PollFd::new(&stdin, PollFlags::IN)];
        if !poll(&mut wanted, patience.as_ref()).is_ok_and(|ready| ready > 0) {
            return false;
        }
        let mut keys = [0; 64];
        match stdin.read(&mut keys) {
            // The terminal is gone.
            Ok(0) | Err(_) => true,
            Ok(count) => keys[..count].iter().any(|key| QUIT.contains(key)),
        }
    }
}

impl Drop for TerminalMode {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = output::write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
