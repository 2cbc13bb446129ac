//! Frontier labels against exhaustive labels on virtual Server 1: 11 services x 5 loads x 36 threads (docs/benchmarks.md).
//!
//!     cargo run --release --locked -p surefootd --example frontier
//!
//! Exit code 1 if they agree in fewer than 99 % of the planes, or took more than 5 % of the cases (the last table, whose noise is
//! harder than the goal's, is for information).

mod trial;

use std::process::ExitCode;
use std::time::Instant;
use trial::{run, Noise, Outcome};

const SERVICES: &str = r#""img-dnn", "masstree", "memcached", "mongodb", "moses", "nginx", "specjbb", "sphinx", "xapian", "login""#;

fn campaign(services: &str, rps: &str, repeats: u32) -> String {
    format!(
        "name = \"frontier\"\nstrategy = \"frontier\"\n[targets]\nvirtual = [\"server-1\"]\n[sweep]\nservices = [{services}]\nrps = {rps}\n\
         threads = \"1..36\"\n[sampling]\nsamples = 30\nrepeats = {repeats}\n"
    )
}

fn main() -> ExitCode {
    let tries = [
        ("no noise", Noise::None, 1, true),
        ("5 % noise of each reading, 30 readings a case", Noise::OfEachReading(0.05), 400, true),
        ("5 % noise of each case", Noise::OfEachCase(0.05), 100, false),
    ];
    let mut good = true;
    for (what, noise, repeats, goal) in tries {
        let start = Instant::now();
        let mut all = run("server-1", &campaign(SERVICES, "\"catalogue\"", repeats), noise);
        // The catalogue has three loads of this one.
        all.extend(run("server-1", &campaign("\"ads\"", "[10, 100, 300, 600, 1000]", repeats), noise));
        println!("{what}; at most {repeats} cases a cell; {:.1} s", start.elapsed().as_secs_f64());
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
        good &= !goal || (sum.same * 100 >= sum.planes * 99 && sum.cases * 100 <= sum.grid * 5);
    }
    if good {
        return ExitCode::SUCCESS;
    }
    eprintln!("frontier: the labels differ in more than 1 % of the planes, or took more than 5 % of the cases");
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
