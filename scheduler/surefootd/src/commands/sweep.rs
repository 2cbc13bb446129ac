//! `surefootd sweep` and its `--plan`.

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::stage::target::Target;
use crate::stage::virtual_target::VirtualTarget;
use crate::sweep::campaign::{Campaign, Strategy};
use crate::sweep::expand::{Expansion, Highest};
use crate::sweep::plan::{print_plan, to_measure, Doubts};
use crate::sweep::rows::{self, Columns, Of};
use crate::sweep::told::finish;
use crate::sweep::virtual_bench::VirtualBench;
use crate::sweep::{self, saturate, Bench};
use std::time::Instant;

/// # Errors
/// Bad input or a failure, on one line.
pub fn run(args: &cli::Sweep) -> Result<()> {
    if let Some(pid) = args.die_with_parent {
        crate::base::stop::die_with_parent((pid > 0).then_some(pid))?;
    }
    crate::base::stop::install()?;
    let server = cli::Server::parse(&args.server)?;
    if let Some(n) = args.threads {
        // Err only if a pool exists already, which then has the default size.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(n.into()).build_global();
    }
    let campaign = Campaign::read(&args.campaign)?;
    match server {
        cli::Server::Virtual(_) if args.relaunch => {
            Err(Error::BadInput("--relaunch: a virtual server has nothing to start. Leave it out, or give --server local".into()))
        }
        cli::Server::Virtual(_) if args.tries.is_some() => {
            Err(Error::BadInput("--tries: nothing disturbs a virtual server. Leave it out, or give --server local".into()))
        }
        cli::Server::Virtual(name) => {
            let v = VirtualTarget::open(&name, args.profiles.as_deref())?;
            campaign.check_target(Some(&v.platform.name))?;
            let target = v.target();
            let cases = Expansion::new(&campaign, &target)?.part(args.part)?;
            if args.plan {
                return plan_virtual(args, &campaign, &target, &cases, &v);
            }
            let worker = || -> sweep::Worker {
                let mut bench = VirtualBench::new(&v, &campaign.sampling);
                Box::new(move |case, rows| bench.measure(case, rows))
            };
            finish(args, &campaign, &target, &cases, Bench::Parallel(&worker))?.say()
        }
        cli::Server::Local => crate::sweep::local_bench::sweep(args, &campaign),
    }
}

fn plan_virtual(args: &cli::Sweep, campaign: &Campaign, target: &Target, cases: &Expansion, v: &VirtualTarget) -> Result<()> {
    // Speed and size of one shard's worth of cases, spread evenly, say what all of them will take.
    let n = cases.len().min(sweep::cases_per_shard(campaign, true));
    // What loads will be shares of is not known yet; what the profiles say takes as long.
    let guess = |service: &str| target.services.get(service).and_then(|s| s.max_load_rps).unwrap_or(saturate::FIRST_RPS);
    let guessed = cases.loads_to_find().into_iter().map(|l| {
        let rps = guess(&l.0);
        (l, Highest::Found { rps, others_frac: 0.0 })
    });
    let guessed = cases.clone().with_max_loads(guessed.collect());
    let mut bench = VirtualBench::new(v, &campaign.sampling);
    let mut columns = Columns::new(&campaign.name, &target.platform.name, Of::campaign(campaign));
    let (mut walk, mut rows) = (guessed.walk(), vec![]);
    let start = Instant::now();
    for i in 0..n {
        let case = walk.at((i as u128 * u128::from(cases.len()) / u128::from(n)) as u64);
        rows.clear();
        if case.infeasible.is_none() {
            bench.measure(case, &mut rows);
        }
        columns.push(case, &rows);
    }
    let bytes = rows::encode_samples(&columns.take()?)?.len();
    let threads = rayon::current_num_threads() as f64;
    let share = match campaign.strategy {
        Strategy::Frontier => to_measure(campaign, cases) as f64 / n as f64,
        Strategy::Exhaustive | Strategy::Random => cases.len() as f64 / n as f64,
    };
    print_plan(
        args,
        campaign,
        target,
        cases,
        start.elapsed().as_secs_f64() * share / threads,
        (bytes as f64 * share) as u64,
        &Doubts::default(),
    )
}
