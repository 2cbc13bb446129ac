//! The validation table: every fact that the model has to reproduce, what it gives, and what the reference prototype gave.
//!
//! Exit code 0: no fact is worse than in the prototype. 1: some are. 2: bad input.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "an example's input and output are its own")]

mod facts;

use facts::{Kind, Lab, Row};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
Print the validation table of the virtual server.

Usage: validate [--quick] [--json] [--markdown FILE] [--profiles DIR] [--seed N]

  --quick          leave out facts that need request-by-request simulation
  --json           print the table as JSON
  --markdown FILE  write the table to FILE, too (all facts: not with --quick)
  --profiles DIR   profiles to add or to put in place of the shipped ones, to see what a new calibration does
  --seed N         seed of the simulations, default 1";

#[derive(Default)]
struct Args {
    quick: bool,
    json: bool,
    markdown: Option<PathBuf>,
    profiles: Option<PathBuf>,
    seed: u64,
}

/// `Err(None)`: help was asked for.
fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, Option<String>> {
    let mut out = Args { seed: 1, ..Args::default() };
    while let Some(arg) = args.next() {
        let mut value = |what: &str| args.next().ok_or(format!("{arg} wants {what}"));
        match arg.as_str() {
            "--quick" => out.quick = true,
            "--json" => out.json = true,
            "--markdown" => out.markdown = Some(value("a file")?.into()),
            "--profiles" => out.profiles = Some(value("a folder")?.into()),
            "--seed" => {
                let n = value("a number")?;
                out.seed = n.parse().map_err(|_| format!("--seed {n}: give a whole number, 0 or more"))?;
            }
            "--help" | "-h" => return Err(None),
            _ => return Err(Some(format!("{arg}: unknown option. See --help"))),
        }
    }
    if out.quick && out.markdown.is_some() {
        return Err(Some("--markdown writes all facts: leave --quick out".into()));
    }
    Ok(out)
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(Some(what)) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    let mut lab = match Lab::open(args.profiles.as_deref(), args.seed) {
        Ok(lab) => lab,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let rows = facts::table(&mut lab, |group| {
        let wanted = !(args.quick && group.by_request);
        if wanted {
            eprintln!("{} ...", group.title);
        }
        wanted
    });
    print!("{}", if args.json { json(&rows) } else { table(&rows) });
    if let Some(file) = &args.markdown {
        if let Err(e) = std::fs::write(file, page(&rows)) {
            eprintln!("{}: cannot be written: {e}", file.display());
            return ExitCode::FAILURE;
        }
    }
    let worse: Vec<String> = rows.iter().filter(|r| r.worse()).map(|r| r.number.to_string()).collect();
    if worse.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("worse than in the prototype: facts {}", worse.join(", "));
    ExitCode::FAILURE
}

/// Markdown table and totals.
fn table(rows: &[Row]) -> String {
    let mut out =
        String::from("| # | kind | source | fact | expected | got | prototype | |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for r in rows {
        let f = &r.fact;
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            r.number,
            f.kind.name(),
            f.source,
            f.text,
            f.expected,
            f.got,
            r.prototype.as_ref().map_or("", |p| &p.got),
            r.verdict()
        );
    }
    out + "\n" + &totals(rows)
}

fn totals(rows: &[Row]) -> String {
    let mut out = String::new();
    for kind in Kind::ALL {
        let of: Vec<&Row> = rows.iter().filter(|r| r.fact.kind == kind).collect();
        let hold = of.iter().filter(|r| r.fact.holds).count();
        let before = of.iter().filter(|r| r.prototype.as_ref().is_some_and(|p| p.holds)).count();
        let _ = writeln!(out, "{}: {hold} of {} hold (prototype: {before})", kind.name(), of.len());
    }
    out
}

fn json(rows: &[Row]) -> String {
    let list: Vec<serde_json::Value> = rows
        .iter()
        .map(|r| {
            serde_json::json!({
                "number": r.number, "kind": r.fact.kind.name(), "source": r.fact.source, "fact": r.fact.text,
                "expected": r.fact.expected, "got": r.fact.got, "holds": r.fact.holds,
                "prototype": r.prototype.as_ref().map(|p| serde_json::json!({ "got": p.got, "holds": p.holds })),
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(list))
}

/// docs/virtual-server-validation.md.
fn page(rows: &[Row]) -> String {
    format!(
        "# Validation table of the virtual server\n\n\
         Written by `make validate`; [virtual-server.md](virtual-server.md) says what it means. *fit*: parameters were set with this fact \
         in view. *pred*: no parameter was set for it. *check*: mathematics, physics or implementation. *Prototype*: what the scalar \
         reference of the model gave.\n\n{}",
        table(rows)
    )
}
