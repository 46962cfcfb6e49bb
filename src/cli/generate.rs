//! `completions` and `man`: made from the same definitions that the commands are read by.

use super::Cli;
use super::exit::{Done, Failure};
use super::out;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io;

/// `completions`.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// `man`.
#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Only the page of this command
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

pub(super) fn completions(args: &CompletionsArgs) -> Done {
    out::write(&script(args.shell))
}

pub(super) fn man(args: &ManArgs) -> Done {
    let page = match &args.command {
        None => whole_page(),
        Some(name) => command_page(name),
    };
    match page {
        Ok(Some(page)) => out::write(&page),
        Ok(None) => Err(Failure::usage(format!(
            "there is no command '{}'; see 'latchfs --help'",
            args.command.as_deref().unwrap_or_default()
        ))),
        Err(error) => Err(Failure::output(&error)),
    }
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "latchfs", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The program and all its commands on one page.
fn whole_page() -> io::Result<Option<String>> {
    let mut root = Cli::command();
    root.build();
    let mut page = Vec::new();
    let man = Man::new(root.clone()).title("latchfs").manual("latchfs");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    for command in shown(&root) {
        let heading = format!(".SH \"LATCHFS {}\"\n", command.get_name().to_uppercase());
        page.extend_from_slice(heading.as_bytes());
        let man = Man::new(command.clone());
        let mut part = Vec::new();
        man.render_synopsis_section(&mut part)?;
        man.render_description_section(&mut part)?;
        man.render_options_section(&mut part)?;
        man.render_extra_section(&mut part)?;
        let part = String::from_utf8_lossy(&part).replace(".SH ", ".SS ");
        page.extend_from_slice(part.as_bytes());
    }
    man.render_extra_section(&mut page)?;
    Ok(Some(String::from_utf8_lossy(&page).into_owned()))
}

fn command_page(name: &str) -> io::Result<Option<String>> {
    let mut root = Cli::command();
    root.build();
    let Some(command) = shown(&root).find(|command| command.get_name() == name) else {
        return Ok(None);
    };
    let mut page = Vec::new();
    let title = format!("latchfs-{name}");
    Man::new(command.clone()).title(title).manual("latchfs").render(&mut page)?;
    Ok(Some(String::from_utf8_lossy(&page).into_owned()))
}

fn shown(root: &Command) -> impl Iterator<Item = &Command> {
    root.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// What lies in contrib is what the program prints; `UPDATE=1 cargo test` writes it anew.
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
        holds("completions/latchfs.bash", &script(Shell::Bash));
        holds("completions/_latchfs", &script(Shell::Zsh));
        holds("completions/latchfs.fish", &script(Shell::Fish));
    }

    #[test]
    fn the_manual_in_contrib_is_current() {
        holds("man/latchfs.1", &whole_page().expect("rendered").expect("there"));
    }

    #[test]
    fn each_command_has_a_page() {
        for command in shown(&Cli::command()) {
            let page = command_page(command.get_name()).expect("rendered");
            assert!(page.is_some_and(|page| page.contains(".SH NAME")), "{}", command.get_name());
        }
        assert!(command_page("no-such-command").expect("rendered").is_none());
    }
}
