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
    let done = match Cli::parse().command {
        Command::Sweep(a) => surefootd::cmd_sweep::run(&a),
        Command::Eval(a) => surefootd::eval::eval(&a),
        Command::Schema(a) => {
            surefootd::schema::print(&a);
            Ok(())
        }
        _ => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("surefootd: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}
