//! `surefootd completions` and `surefootd manual`: what shells and man know of the commands, made from the definitions of [`cli`].

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::files::write_whole;
use crate::base::say;
use clap::{Command, CommandFactory};

const NAME: &str = "surefootd";

/// # Errors
/// See [`say::print`].
pub fn completions(args: &cli::Completions) -> Result<()> {
    let mut text = vec![];
    clap_complete::generate(args.shell, &mut command(), NAME, &mut text);
    say::print(&String::from_utf8_lossy(&text))
}

/// The commands that --help names, and the one that help itself would add left out.
fn command() -> Command {
    cli::Cli::command().disable_help_subcommand(true)
}

/// A page for the program, and one for each command: `surefootd-run.1`.
///
/// # Errors
/// [`Error::BadInput`] for a folder that is not there, [`Error::Failed`] for a file that cannot be written.
pub fn pages(args: &cli::Manual) -> Result<()> {
    if !args.out.is_dir() {
        return Err(Error::BadInput(format!("--out {}: is no folder. Make it first", args.out.display())));
    }
    for (name, page) in rendered()? {
        write_whole(&args.out.join(name), &page)?;
    }
    Ok(())
}

fn rendered() -> Result<Vec<(String, Vec<u8>)>> {
    let mut pages = vec![];
    let mut all = command();
    all.build();
    collect(&all, NAME, &mut pages)?;
    Ok(pages)
}

fn collect(command: &Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let titled = command.clone().display_name(name.to_string());
    let man =
        clap_mangen::Man::new(titled).title(name).section("1").source(concat!("Surefoot ", env!("CARGO_PKG_VERSION"))).manual("Surefoot");
    let mut page = vec![];
    man.render(&mut page).map_err(|e| Error::Failed(format!("{name}.1: {e}")))?;
    pages.push((format!("{name}.1"), page));
    let inner = command.get_subcommands().filter(|c| !c.is_hide_set());
    inner.into_iter().try_for_each(|c| collect(c, &format!("{name}-{}", c.get_name()), pages))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Each command that --help shows has a page, which names every option that its --help shows; hidden ones have none.
    #[test]
    fn every_command_has_a_page() {
        fn check(command: &Command, name: &str, pages: &[(String, Vec<u8>)]) -> usize {
            let (_, page) = pages.iter().find(|(n, _)| *n == format!("{name}.1")).unwrap_or_else(|| panic!("no page of {name}"));
            // roff writes a hyphen that is no break as \-, and changes of the font as \fB.
            let text = ["\\fB", "\\fI", "\\fR"].iter().fold(String::from_utf8(page.clone()).unwrap(), |t, font| t.replace(font, " "));
            let text = text.replace("\\-", "-");
            for a in command.get_arguments() {
                let Some(long) = a.get_long() else { continue };
                let shown = !a.is_hide_set();
                let word = format!("--{long}");
                let named = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|w| w == word);
                assert_eq!(named, shown, "{name} {word}");
            }
            let inner = command.get_subcommands().filter(|c| !c.is_hide_set());
            1 + inner.map(|c| check(c, &format!("{name}-{}", c.get_name()), pages)).sum::<usize>()
        }
        let pages = rendered().unwrap();
        let mut all = command();
        all.build();
        assert_eq!(check(&all, NAME, &pages), pages.len());
        assert_eq!(pages.iter().map(|(n, _)| n).collect::<BTreeSet<_>>().len(), pages.len());
    }

    /// Completions of each shell name every command.
    #[test]
    fn every_command_can_be_completed() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut text = vec![];
            clap_complete::generate(shell, &mut command(), NAME, &mut text);
            let text = String::from_utf8(text).unwrap();
            for c in command().get_subcommands().filter(|c| !c.is_hide_set()) {
                assert!(text.contains(c.get_name()), "{shell}: {}", c.get_name());
            }
        }
    }
}
