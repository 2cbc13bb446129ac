#![allow(unsafe_code, reason = "a signal is ignored before there is another thread")]

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use std::process::ExitCode;
use surefoot_io::{out, shown};
use surefootd::base::cli::{Cli, Command};
use surefootd::base::error::{nearest, Error, Result};
use surefootd::base::say;
use surefootd::base::stop;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> ExitCode {
    out::begin();
    out::impatient(stop::requested);
    // A file that may grow no further (RLIMIT_FSIZE) is an error of that write, and ends nothing half-way.
    // SAFETY: no other thread yet, and SIG_IGN has no handler that could be unsafe.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let parsed = Cli::try_parse();
    let filter = parsed.as_ref().map_or(None, |cli| asked(cli.verbose, cli.quiet)).unwrap_or_else(of_environment);
    // Nothing in a line may act on a terminal, so it has no colours either.
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(|| out::Log)
        .with_target(false)
        .with_ansi(false)
        .log_internal_errors(false)
        .finish()
        .with(filter)
        .init();
    let done = match parsed {
        Ok(cli) => run(cli.command),
        // --help and --version.
        Err(e) if !e.use_stderr() => say::print(&e.render().to_string()),
        Err(e) => Err(Error::BadInput(usage(&e))),
    };
    let code = match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            out::note(&format!("surefootd: {e}"));
            ExitCode::from(e.exit_code())
        }
    };
    out::finish();
    code
}

/// What -v and -q ask for; None without either.
fn asked(verbose: u8, quiet: u8) -> Option<Targets> {
    let level = match (verbose, quiet) {
        (0, 0) => return None,
        (0, 1) => LevelFilter::WARN,
        (0, _) => LevelFilter::ERROR,
        (1, _) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    Some(Targets::new().with_default(level))
}

/// What SUREFOOT_LOG asks for.
fn of_environment() -> Targets {
    let wanted = std::env::var("SUREFOOT_LOG").ok().filter(|w| !w.is_empty()).and_then(|w| w.parse::<Targets>().ok());
    wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO))
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Sweep(a) => surefootd::commands::sweep::run(&a),
        Command::Eval(a) => surefootd::eval::eval(&a),
        Command::HarvestEval(a) => surefootd::eval::harvest::eval(&a),
        Command::Oracle(a) => surefootd::commands::oracle::run(&a),
        Command::Schema(a) => surefootd::commands::schema::print(&a),
        Command::Check(a) => surefootd::commands::check::check(&a),
        Command::Reset(a) => surefootd::commands::reset::reset(&a),
        Command::Run(a) => surefootd::node::run::run(&a),
        Command::Replay(a) => surefootd::commands::replay::run(&a),
        Command::Record(a) => surefootd::node::record::run(&a),
        Command::Explain(a) => surefootd::node::explain::run(&a),
        Command::Top(a) => surefootd::node::top::run(&a),
        Command::Actuate(a) => surefootd::commands::actuate::run(&a),
        Command::Resctrlfs(a) => surefootd::commands::resctrlfs::run(&a),
        Command::Completions(a) => surefootd::commands::manual::completions(&a),
        Command::Manual(a) => surefootd::commands::manual::pages(&a),
        Command::World(a) => surefootd::commands::world::run(&a),
    }
}

/// A command line that cannot be read, in one line: what is wrong with it, and where it is told how to write it.
fn usage(e: &clap::Error) -> String {
    let (command, path) = named();
    let help = format!("{path} --help");
    if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let names: Vec<String> = command.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name().to_string()).collect();
        return format!("no command is given. Choose one of {}; see {help}", names.join(", "));
    }
    let text = e.render().to_string();
    // What follows an empty line is a tip or the usage.
    let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let near = meant(e).map_or(String::new(), |s| format!(" Did you mean \"{s}\"?"));
    format!("{}.{near} See {help}", shown::message(first).trim_end_matches('.'))
}

/// The command that the first words of the command line name, and these words.
fn named() -> (clap::Command, String) {
    let (mut command, mut path) = (Cli::command(), "surefootd".to_string());
    for word in std::env::args().skip(1).filter(|w| !w.starts_with('-')) {
        let Some(inner) = command.find_subcommand(&word).cloned() else { break };
        (command, path) = (inner, format!("{path} {word}"));
    }
    (command, path)
}

/// What was meant in place of a command, an option or a value that there is not; never what --help hides.
fn meant(e: &clap::Error) -> Option<String> {
    let wrong = |kind| match e.get(kind) {
        Some(ContextValue::String(s)) => Some(s.as_str()),
        _ => None,
    };
    let (command, _) = named();
    if let Some(text) = wrong(ContextKind::InvalidSubcommand) {
        return nearest(text, command.get_subcommands().filter(|c| !c.is_hide_set()).map(clap::Command::get_name)).map(str::to_string);
    }
    if e.kind() == ErrorKind::UnknownArgument {
        let known: Vec<String> =
            command.get_arguments().filter(|a| !a.is_hide_set()).filter_map(|a| a.get_long().map(|l| format!("--{l}"))).collect();
        return nearest(wrong(ContextKind::InvalidArg)?, known.iter().map(String::as_str)).map(str::to_string);
    }
    let (text, Some(ContextValue::Strings(known))) = (wrong(ContextKind::InvalidValue)?, e.get(ContextKind::ValidValue)) else {
        return None;
    };
    nearest(text, known.iter().map(String::as_str)).map(str::to_string)
}
