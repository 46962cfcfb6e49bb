//! The `completions` and `man` commands, which generate their output from the clap definitions.

use super::exit::{CliError, CliResult};
use super::output;
use clap::Command;
use clap_complete::Shell;
use clap_complete::env::Shells;
use clap_mangen::Man;
use std::fmt::Write;
use std::io;

/// The arguments of `latchfs completions`.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell for which to print completions
    #[arg(value_enum)]
    shell: Shell,
}

/// The arguments of `latchfs man`.
#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Only the page of this command
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// The variable by which the script of a shell asks for completions.
pub(super) const COMPLETE: &str = "LATCHFS_COMPLETE";

/// Prints the script by which a shell completes the command line.
pub(super) fn completions(args: &CompletionsArgs) -> CliResult {
    output::write(&script(args.shell).map_err(|error| CliError::output(&error))?)
}

/// Prints the manual page of the command line `root`, or of one of its commands.
pub(super) fn man(args: &ManArgs, root: Command) -> CliResult {
    let page = match &args.command {
        None => whole_page(root),
        Some(name) => command_page(name, root),
    };
    match page {
        Ok(Some(page)) => output::write(&page),
        Ok(None) => Err(CliError::usage(format!(
            "there is no command '{}'; see 'latchfs --help'",
            args.command.as_deref().unwrap_or_default()
        ))),
        Err(error) => Err(CliError::output(&error)),
    }
}

/// Returns the script for a shell, which calls the program for each completion: so it knows the
/// names of locks, and the options of the version that is installed.
fn script(shell: Shell) -> io::Result<String> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).ok_or(io::ErrorKind::Unsupported)?;
    let mut script = Vec::new();
    completer.write_registration(COMPLETE, "latchfs", "latchfs", "latchfs", &mut script)?;
    Ok(String::from_utf8_lossy(&script).trim().to_owned() + "\n")
}

/// The roff macros for the headings of sections and subsections.
const SECTION: &str = ".SH";
const SUBSECTION: &str = ".SS";

/// Renders one manual page of the program and all its commands.
fn whole_page(mut root: Command) -> io::Result<Option<String>> {
    root.build();
    let mut page = head(&root, "LATCHFS")?;
    page += &body(&root, SECTION)?;
    for command in commands(&root) {
        let _ = writeln!(page, ".SH \"LATCHFS {}\"", command.get_name().to_uppercase());
        page += &body(command, SUBSECTION)?;
        page += &tail(command, SUBSECTION);
    }
    page += &tail(&root, SECTION);
    Ok(Some(page))
}

fn command_page(name: &str, mut root: Command) -> io::Result<Option<String>> {
    root.build();
    let Some(command) = commands(&root).find(|command| command.get_name() == name) else {
        return Ok(None);
    };
    let mut page = head(command, &format!("LATCHFS-{}", name.to_uppercase()))?;
    page += &body(command, SECTION)?;
    page += &tail(command, SECTION);
    Ok(Some(page))
}

fn head(command: &Command, title: &str) -> io::Result<String> {
    let man = Man::new(command.clone()).title(title).manual("latchfs");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    Ok(once_defined(&page, true))
}

fn body(command: &Command, heading: &str) -> io::Result<String> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    Ok(once_defined(&page, false).replace(SECTION, heading))
}

/// Renders the text that follows the options in a help (examples, exit codes) for roff, line by
/// line.
fn tail(command: &Command, heading: &str) -> String {
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut page = String::new();
    for block in text.split("\n\n").filter(|block| !block.is_empty()) {
        let (title, lines) = block.split_once('\n').unwrap_or((block, ""));
        let title = title.trim_end_matches(':').to_uppercase();
        let _ = writeln!(page, "{heading} \"{title}\"\n.nf");
        for line in lines.lines() {
            // roff takes a line that begins with a dot or a quote as a command, so each line gets a
            // prefix.
            let _ = writeln!(page, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"));
        }
        page += ".fi\n";
    }
    page
}

/// Removes repeated definitions from a part of the page: each rendered part begins with the same
/// two lines, which define the apostrophe, and only the first part keeps them.
fn once_defined(page: &[u8], first: bool) -> String {
    let page = String::from_utf8_lossy(page);
    let definition = |line: &str| line.starts_with(".ie ") || line.starts_with(".el ");
    let (mut text, mut seen) = (String::new(), 0);
    for line in page.lines() {
        let is_repeated = definition(line) && (!first || seen >= 2);
        seen += usize::from(definition(line));
        if !is_repeated {
            text += line;
            text.push('\n');
        }
    }
    text
}

fn commands(root: &Command) -> impl Iterator<Item = &Command> {
    root.get_subcommands().filter(|command| command.get_name() != "help")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command_line::definition;
    use std::path::Path;

    /// Asserts that a file in `contrib` equals the program's output; `UPDATE=1 cargo test` rewrites
    /// the file.
    fn holds(file: &str, text: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib").join(file);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().expect("has one")).expect("makes a directory");
            std::fs::write(&path, text).expect("writes");
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == text, "contrib/{file} is old: run 'UPDATE=1 cargo test generate'");
    }

    #[test]
    fn completions_in_contrib_are_current() {
        holds("completions/latchfs.bash", &script(Shell::Bash).expect("a script"));
        holds("completions/_latchfs", &script(Shell::Zsh).expect("a script"));
        holds("completions/latchfs.fish", &script(Shell::Fish).expect("a script"));
    }

    #[test]
    fn the_manual_in_contrib_is_current() {
        holds("man/latchfs.1", &whole_page(definition()).expect("rendered").expect("there"));
    }

    #[test]
    fn the_permissions_in_contrib_are_current() {
        let text = format!(
            "# Permissions\n\n## Servers and mounts\n\nEvery front end decides by this table, \
             which `latchfs serve --print-permissions` prints. All else is\ndenied. `ctl` is \
             the file `.latchfs/ctl` of a mount, `file` a system call on a file in a mount,\n\
             `batch` a part of `POST /door/v1/ask`. What is held is changed by its holder only, \
             but root may release by\n`rm` and `rmdir` what users of this machine hold.\n\n\
             ```text\n{}```\n\n## Guarded folders\n\nThe guard of a folder decides by this table, \
             which `latchfs guard permissions` prints (`--json`). All else is\ndenied. \
             [Guarded folders](guard.md) tells what the requests do.\n\n```text\n{}```\n",
            crate::cli::serve::access_options::table(),
            crate::cli::guard::guard_command::table()
        );
        holds("doc/permissions.md", &text);
    }

    #[test]
    fn each_command_has_a_page() {
        for command in commands(&definition()) {
            let page = command_page(command.get_name(), definition()).expect("rendered");
            assert!(page.is_some_and(|page| page.contains(".SH NAME")), "{}", command.get_name());
        }
        assert!(command_page("no-such-command", definition()).expect("rendered").is_none());
    }
}
