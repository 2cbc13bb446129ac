//! Frontier labels against exhaustive labels on virtual Server 1: 11 services x 5 loads x 36 threads (docs/benchmarks.md).
//!
//!     cargo run --release --locked -p surefootd --example frontier
//!
//! Exit code 1 if they agree in fewer than 99 % of the planes, differ by more than one step in any, or took more than 5 % of the cases (the
//! last table, whose noise is harder than the goal's, is for information). Noise is tried with several seeds.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "an example's input and output are its own")]

mod trial;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;
use trial::{run, Noise, Outcome};

const SERVICES: [&str; 11] =
    ["ads", "img-dnn", "login", "masstree", "memcached", "mongodb", "moses", "nginx", "specjbb", "sphinx", "xapian"];

/// One service a campaign: a grid may have a thousand million cases, and cells at their target need thousands.
fn campaign(service: &str, repeats: u32, seed: u32) -> String {
    // The catalogue has three loads of this one.
    let rps = if service == "ads" { "[10, 100, 300, 600, 1000]" } else { "\"catalogue\"" };
    format!(
        "name = \"frontier\"\nstrategy = \"frontier\"\nseed = {seed}\n[targets]\nvirtual = [\"server-1\"]\n[sweep]\nservices = [\"{service}\"]\n\
         rps = {rps}\nthreads = \"1..36\"\n[sampling]\nsamples = 30\nrepeats = {repeats}\n"
    )
}

fn main() -> ExitCode {
    let reading = "5 % noise of each reading, 30 readings a case";
    let tries = [
        ("no noise", Noise::None, 1, 1, true),
        (reading, Noise::OfEachReading(0.05), 6_000, 1, true),
        (reading, Noise::OfEachReading(0.05), 6_000, 2, true),
        (reading, Noise::OfEachReading(0.05), 6_000, 3, true),
        ("5 % noise of each case", Noise::OfEachCase(0.05), 100, 1, false),
    ];
    let mut good = true;
    for (what, noise, repeats, seed, goal) in tries {
        let start = Instant::now();
        let all: BTreeMap<String, Outcome> =
            SERVICES.iter().flat_map(|service| run("server-1", &campaign(service, repeats, seed), noise)).collect();
        println!("{what}; at most {repeats} cases a cell; seed {seed}; {:.1} s", start.elapsed().as_secs_f64());
        println!(
            "{:<10} {:>7} {:>8} {:>9} {:>8} {:>8} {:>9} {:>7}   exhaustive, same noise",
            "service", "planes", "same", "one step", "further", "bounded", "cases", "share"
        );
        for (service, o) in &all {
            print(service, o);
        }
        let sum = all.into_values().fold(Outcome::default(), Outcome::add);
        print("all", &sum);
        println!();
        good &= !goal || (sum.further == 0 && sum.same * 100 >= sum.planes * 99 && sum.cases * 100 <= sum.grid * 5);
    }
    if good {
        return ExitCode::SUCCESS;
    }
    eprintln!("frontier: labels differ in more than 1 % of the planes, or by more than one step, or took more than 5 % of the cases");
    ExitCode::FAILURE
}

fn print(name: &str, o: &Outcome) {
    let share = |n: u64, of: u64| 100.0 * n as f64 / of.max(1) as f64;
    println!(
        "{name:<10} {:>7} {:>6.2} % {:>9} {:>8} {:>8} {:>9} {:>5.2} %   {:.2} % same",
        o.planes,
        share(o.same, o.planes),
        o.one_step,
        o.further,
        o.bounded,
        o.cases,
        share(o.cases, o.grid),
        100.0 - share(o.exhaustive_wrong, o.planes)
    );
}
