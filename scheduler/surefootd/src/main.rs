#![allow(unsafe_code, reason = "SIGPIPE gets its default back before there is another thread")]

use clap::Parser;
use std::io::IsTerminal;
use std::process::ExitCode;
use surefootd::cli::{Cli, Command};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("SUREFOOT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let command = Cli::parse().command;
    let only_prints = matches!(
        &command,
        Command::Check(_) | Command::Explain(_) | Command::Oracle(_) | Command::Replay(_) | Command::Reset(_) | Command::Schema(_)
    );
    let prints_once = matches!(&command, Command::Top(a) if a.once || a.json)
        || matches!(&command, Command::Actuate(a) if a.list)
        || matches!(&command, Command::Sweep(a) if a.plan);
    if only_prints || prints_once {
        // `surefootd check | head` ends quietly. What writes files keeps going when its reader leaves.
        // SAFETY: no other thread yet, and SIG_DFL has no handler that could be unsafe.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    let done = match command {
        Command::Sweep(a) => surefootd::cmd_sweep::run(&a),
        Command::Eval(a) => surefootd::eval::eval(&a),
        Command::Oracle(a) => surefootd::cmd_oracle::run(&a),
        Command::Schema(a) => {
            surefootd::schema::print(&a);
            Ok(())
        }
        Command::Check(a) => surefootd::local_target::check(&a),
        Command::Reset(a) => surefootd::local_target::reset(&a),
        Command::Run(a) => surefootd::daemon::run(&a),
        Command::Replay(a) => surefootd::cmd_replay::run(&a),
        Command::Record(a) => surefootd::record::run(&a),
        Command::Explain(a) => surefootd::explain::run(&a),
        Command::Top(a) => surefootd::top::run(&a),
        Command::Actuate(a) => surefootd::cmd_actuate::run(&a),
        Command::Resctrlfs(a) => surefootd::cmd_resctrlfs::run(&a),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("surefootd: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}
