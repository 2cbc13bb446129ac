//! Model-C learning on line, alone, with and without another platform's Model-C to begin from (OSML+ paper, Sec. 4.5, Fig. 14).
//!
//! An episode is 200 steps of 100 ms of a virtual server with three LC services and one BE job. At each step one service acts, the
//! one that is furthest from its target, or the next in turn while all meet theirs: Model-C's action of the largest probability
//! (with its Gaussian noise) that can be carried out is done, the reward is the paper's (Sec. 3.2, Model-B's prediction in it), and
//! one step of learning follows. No other model and no other rule acts. The episode's reward is the sum over its steps.
//!
//!     cargo run --release -p surefootd --example episodes -- --platform server-2 --bundle B2 --from B1 --trust KEY --out curve.csv
//!
//! Every seed runs twice: from the Model-C of --from, and from random weights. Model-B and the bounds of inputs are --bundle's in
//! both. What the paper leaves open, and what is done here:
//!
//! * Weights from another platform are moved to this one's bounds, so that they are the same function of cores, MB and MB/s
//!   (as `pipelines/fits/fit.py` does).
//! * Random critics begin at the return of a reward of 2 for ever: finding that one number would take most of the episodes.
//! * An episode begins, a second before its first step, with a random allocation: each service has from the least to an even
//!   share of cores and of ways, the BE job the rest. Some services then have too little and some too much.
//! * Ten mixes of services and loads take turns, so that a mean over ten episodes is over the same mixes.
//! * *Stable*: the first episode from which on every mean over ten episodes stays within [`WITHIN`] of the level that was reached,
//!   the mean of the last [`LEVEL`] episodes. *Reached*: the first from which on none is below the level of random weights, less
//!   as much. A curve may be stable at a poor level.
//! * The learner's guard is off: it is ours, not the paper's.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "an example's input and output are its own")]

use clap::Parser;
use std::io::Write;
use std::path::{Path, PathBuf};
use surefoot_learn::rng::Rng;
use surefoot_learn::{one_hot, Agent, Bundle, Expect, Guard, InputSpec, Mlp, TrustedKeys, ACTIONS};
use surefoot_policy::books::{Amount, Books};
use surefoot_policy::{BundleModels, Models, State};
use surefoot_server::{Server, ServiceView, Tick};
use surefoot_vserver::VirtualServer;
use surefootd::base::error::{Error, Result};
use surefootd::stage::load::Shapes;
use surefootd::stage::models::load_bundle;
use surefootd::stage::virtual_target::VirtualTarget;
use surefootd::stage::workload::{Be, Lc, Workload};

const STEP_MS: u64 = 100;
/// Episodes of one turn of the mixes; means are over as many.
const TURN: usize = 10;
/// Share of the level that a mean may be off by, and episodes that the level is the mean of.
const WITHIN: f64 = 0.02;
const LEVEL: usize = 50;
/// Reward of a step that random critics expect for ever.
const START_REWARD: f32 = 2.0;
/// Services that have a p99 every second at the loads below.
const SERVICES: [&str; 9] = ["img-dnn", "masstree", "memcached", "mongodb", "moses", "nginx", "specjbb", "xapian", "login"];
const JOBS: [&str; 3] = ["blackscholes", "bodytrack", "streamcluster"];

#[derive(Parser)]
struct Args {
    /// A platform file or the name of a shipped platform
    #[arg(long, default_value = "server-2")]
    platform: String,
    /// Bundle of that platform: Model-B, and the inputs of Model-C
    #[arg(long)]
    bundle: PathBuf,
    /// Bundle of another platform: the Model-C to begin from
    #[arg(long)]
    from: PathBuf,
    /// Public key that must have signed both; default: the keys this machine trusts
    #[arg(long)]
    trust: Option<PathBuf>,
    #[arg(long, default_value_t = 300)]
    episodes: usize,
    #[arg(long, default_value_t = 200)]
    steps: usize,
    /// Seeds 1 to N
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Standard deviation of the noise on the actor's probabilities
    #[arg(long, default_value_t = 0.05)]
    noise: f32,
    /// A row an episode
    #[arg(long)]
    out: PathBuf,
}

/// Three services at 20 to 45 % of their max load, and a job.
fn mix(at: &VirtualTarget, rng: &mut Rng, number: usize) -> Result<Workload> {
    let known = at.target();
    let mut names = SERVICES.to_vec();
    let mut lc = vec![];
    for _ in 0..3 {
        let service = names.swap_remove(rng.below(names.len())).to_string();
        let max_load_rps = known
            .services
            .get(&service)
            .and_then(|s| s.max_load_rps)
            .ok_or_else(|| Error::BadInput(format!("{service}: no max load on {}. Choose another platform", at.platform.name)))?;
        let rps = vec![(0, max_load_rps * (0.2 + 0.05 * rng.below(6) as f64))];
        lc.push(Lc {
            id: service.clone(),
            service,
            threads: None,
            ws_gb: None,
            arrive_ms: 0,
            leave_ms: None,
            rps,
            shapes: Shapes::default(),
            max_load_rps,
        });
    }
    let job = JOBS[number % JOBS.len()].to_string();
    let be = vec![Be { id: job.clone(), job, ws_gb: None, arrive_ms: 0 }];
    Ok(Workload { name: format!("mix-{number}"), platform: None, duration_ms: 86_400_000, lc, be })
}

/// The same function of natural units, for inputs with other bounds; further inputs (the critic's action) have none.
fn moved(net: &Mlp, old: &[InputSpec], new: &[InputSpec]) -> Mlp {
    let mut net = net.clone();
    let (from, to) = net.span(0);
    let outputs = net.sizes()[1];
    let weights = &mut net.params_mut()[from..to];
    let (w, b) = weights.split_at_mut(weights.len() - outputs);
    for (i, (o, n)) in old.iter().zip(new).enumerate() {
        let span = o.max - o.min;
        let (shift, scale) = (((n.min - o.min) / span) as f32, ((n.max - n.min) / span) as f32);
        for (v, b) in w[i * outputs..(i + 1) * outputs].iter_mut().zip(b.iter_mut()) {
            *b += *v * shift;
            *v *= scale;
        }
    }
    net
}

/// Uniform in +-1/sqrt(inputs of the layer), as an untrained network begins; biases of a critic's last layer at `level`.
fn random(like: &Mlp, level: Option<f32>, rng: &mut Rng) -> Mlp {
    let mut net = like.clone();
    for l in 0..net.layers() {
        let bound = 1.0 / (net.sizes()[l] as f32).sqrt();
        let (from, to) = net.span(l);
        for p in &mut net.params_mut()[from..to] {
            *p = (2.0 * rng.uniform() as f32 - 1.0) * bound;
        }
    }
    if let (Some(level), Some(last)) = (level, net.params_mut().last_mut()) {
        *last = level;
    }
    net
}

/// An agent of this platform, from random weights or another platform's.
fn begin(own: &Agent, from: Option<&Agent>, seed: u64, noise: f32) -> Result<Agent> {
    let mut rng = Rng::new(seed);
    let mut hyper = own.hyper.clone();
    (hyper.seed, hyper.noise) = (seed, noise);
    let names = |a: &Agent| a.inputs.iter().map(|i| i.name.clone()).collect::<Vec<_>>();
    let nets = match from {
        Some(a) if names(a) != names(own) => {
            return Err(Error::BadInput("--from: its Model-C takes other inputs. Begin from a bundle of the same feature set".into()))
        }
        Some(a) => [a.actor(), a.critic(), a.actor_target(), a.critic_target()].map(|net| moved(net, &a.inputs, &own.inputs)),
        None => {
            let actor = random(own.actor(), None, &mut rng);
            let critic = random(own.critic(), Some(START_REWARD / (1.0 - hyper.gamma)), &mut rng);
            [actor.clone(), critic.clone(), actor, critic]
        }
    };
    let [actor, critic, actor_target, critic_target] = nets;
    let agent = Agent::from_networks(own.inputs.clone(), actor, critic, actor_target, critic_target, hyper);
    let mut agent = agent.ok_or_else(|| Error::BadInput("--from: its Model-C has another shape".into()))?.with_guard(Guard::off());
    agent.available = own.available.clone();
    Ok(agent)
}

/// What action `i` of the paper's Table 5 leads to; None where it cannot be carried out.
fn after(books: &Books, id: &str, action: usize) -> Option<(Amount, u8)> {
    let slot = books.slot(id)?;
    let unit = if action < 2 { Amount::new(1, 0) } else { Amount::new(0, 1) };
    match action {
        0 | 2 => unit.fits_in(books.free()).then(|| (slot.own.plus(unit), slot.mba_pct)),
        1 | 3 => unit.fits_in(books.spare(id)).then(|| (slot.own.minus(unit), slot.mba_pct)),
        4 | 5 => books.mba_step(slot.mba_pct, action == 4).map(|pct| (slot.own, pct)),
        _ => Some((slot.own, slot.mba_pct)),
    }
}

/// The paper's reward (Sec. 3.2): of QoS while a target is missed, else of what LC services leave unused.
fn reward(predicted_met: bool, qos: &[f64], unused: f64) -> f64 {
    if qos.iter().any(|q| *q < 1.0) {
        f64::from(u8::from(predicted_met)) + qos.iter().map(|q| q.min(1.0)).sum::<f64>() / qos.len() as f64
    } else {
        2.0 + unused
    }
}

/// Mean share of cores, ways and bandwidth that is left unused.
fn unused(books: &Books) -> f64 {
    let (total, rest) = (books.total(), books.rest());
    let mut shares = vec![f64::from(rest.cores) / f64::from(total.cores)];
    if total.ways > 0 {
        shares.push(f64::from(rest.ways) / f64::from(total.ways));
    }
    if books.platform.mba.is_some() && !books.slots().is_empty() {
        let held = books.slots().iter().map(|s| f64::from(s.mba_pct)).sum::<f64>() / books.slots().len() as f64;
        shares.push(1.0 - held / 100.0);
    }
    shares.iter().sum::<f64>() / shares.len() as f64
}

/// One episode; returns the sum of its rewards.
fn episode(at: &VirtualTarget, w: &Workload, agent: &mut Agent, b: &BundleModels, steps: usize, seed: u64) -> Result<f64> {
    let mut server = VirtualServer::new(at.profile.clone(), Some(seed));
    w.announce(&mut server, &at.profiles, seed)?;
    let refused = |e: String| Error::Failed(format!("{}: {e}", w.name));
    let mut books = Books::new(&at.platform);
    let (mut sum, mut turn, mut rng) = (0.0, 0, Rng::new(seed));
    let mut pending: Option<(String, Vec<f32>, usize, bool)> = None;
    let lead = 1000 / STEP_MS as usize;
    for tick in 0..=lead + steps {
        let seen = server.observe();
        for id in books.follow(&seen).lc_arrived {
            let parts = w.lc.len() as u32 + 1;
            let least = books.least();
            let drawn = |rng: &mut Rng, least: u32, all: u32| least + rng.below((all / parts).saturating_sub(least) as usize + 1) as u32;
            let share = Amount::new(drawn(&mut rng, least.cores, books.total().cores), drawn(&mut rng, least.ways, books.total().ways));
            if !books.admit(&id, share) {
                return Err(refused(format!("no room for {id}")));
            }
        }
        let state = |a: &Agent, s: &ServiceView| {
            let state = State::of(s);
            a.state_by(|n| if n == "qos" { state.qos.map(|q| q.min(1.0)) } else { state.features.get(n) })
        };
        let qos: Vec<f64> = seen.lc().filter_map(ServiceView::qos).collect();
        if let Some((id, before, action, met)) = pending.take() {
            let r = reward(met, &qos, unused(&books));
            if !qos.is_empty() {
                sum += r;
            }
            if let Some(next) = seen.get(&id).filter(|_| !qos.is_empty()).and_then(|s| state(agent, s).ok()) {
                agent.remember(&before, &one_hot(action), r as f32, &next);
                agent.learn_step().map_err(|e| refused(e.to_string()))?;
            }
        }
        if tick >= lead && tick < lead + steps {
            let worst = seen
                .lc()
                .filter(|s| s.qos().is_some_and(|q| q < 1.0))
                .min_by(|x, y| x.qos().partial_cmp(&y.qos()).unwrap_or(std::cmp::Ordering::Equal));
            turn += 1;
            let acting = worst.or_else(|| seen.lc().nth(turn % w.lc.len()));
            if let Some((s, before)) = acting.and_then(|s| Some((s, state(agent, s).ok()?))) {
                let p = agent.act(&before);
                let options = (0..ACTIONS).filter(|&i| agent.available[i]).filter_map(|i| Some((i, after(&books, &s.id, i)?)));
                let best = options.max_by(|(i, _), (j, _)| p[*i].total_cmp(&p[*j]).then(j.cmp(i)));
                if let Some((action, (own, pct))) = best {
                    books.set(&s.id, own);
                    books.set_mba(&s.id, pct);
                    let (cores, ways) = (at.platform.cores(own.cores), f64::from(own.ways));
                    let met = b.qos(&s.service, &State::of(s), cores, ways).is_ok_and(|q| q >= 1.0);
                    pending = Some((s.id.clone(), before, action, met));
                }
            }
        }
        let plan = books.plan(&seen).map_err(refused)?;
        if !plan.is_empty() {
            server.apply(&plan).map_err(|e| refused(e.to_string()))?;
        }
        server.advance(Tick { ms: STEP_MS });
    }
    Ok(sum)
}

/// The first episode from which on every mean over [`TURN`] episodes is between `low` and `high`; None if the last is not.
fn since(rewards: &[f64], low: f64, high: f64) -> Option<usize> {
    let means: Vec<f64> = rewards.windows(TURN).map(|w| w.iter().sum::<f64>() / TURN as f64).collect();
    let first = means.iter().rposition(|m| !(low..=high).contains(m)).map_or(0, |last| last + 1);
    (first < means.len()).then_some(first)
}

fn level(rewards: &[f64]) -> f64 {
    let last = &rewards[rewards.len().saturating_sub(LEVEL)..];
    last.iter().sum::<f64>() / last.len().max(1) as f64
}

fn said(at: Option<usize>) -> String {
    at.map_or("never".into(), |e| e.to_string())
}

fn run(args: &Args) -> Result<()> {
    let at = VirtualTarget::of_platform(&args.platform, None)?;
    let own = load_bundle(&args.bundle, args.trust.as_deref(), &Expect::virtual_platform(&at.platform).feature_set("full"))?;
    let from = other(&args.from, args.trust.as_deref())?;
    let models = BundleModels::new(&own, &at.platform).map_err(Error::BadInput)?;
    let mut csv = vec!["start,seed,episode,reward".to_string()];
    println!("start     seed  first {TURN}  last {LEVEL}  stable from  reached random's level");
    for seed in 1..=args.seeds {
        let mut rng = Rng::new(seed);
        let mixes = (0..TURN).map(|n| mix(&at, &mut rng, n)).collect::<Result<Vec<_>>>()?;
        let mut of_random = None;
        for (name, start) in [("random", None), ("transfer", Some(&from.c))] {
            let mut agent = begin(&own.c, start, seed, args.noise)?;
            let mut rewards = vec![];
            for e in 0..args.episodes {
                let one = episode(&at, &mixes[e % TURN], &mut agent, &models, args.steps, 1000 * seed + e as u64)?;
                csv.push(format!("{name},{seed},{e},{one:.3}"));
                rewards.push(one);
            }
            let mine = level(&rewards);
            let theirs = *of_random.get_or_insert(mine);
            let first = rewards.iter().take(TURN).sum::<f64>() / TURN.min(rewards.len()).max(1) as f64;
            let stable = said(since(&rewards, (1.0 - WITHIN) * mine, (1.0 + WITHIN) * mine));
            let reached = said(since(&rewards, (1.0 - WITHIN) * theirs, f64::INFINITY));
            println!("{name:<8} {seed:>5} {first:>9.1} {mine:>8.1}  {stable:>11}  {reached:>22}");
        }
    }
    let mut file = std::fs::File::create(&args.out).map_err(|e| Error::io(&args.out, "cannot be written", &e))?;
    writeln!(file, "{}", csv.join("\n")).map_err(|e| Error::io(&args.out, "cannot be written", &e))
}

/// A bundle of any platform.
fn other(path: &Path, trust: Option<&Path>) -> Result<Bundle> {
    let refused = |e: surefoot_learn::BundleError| Error::BadInput(format!("--from {}: {e}", path.display()));
    let keys = trust.map_or_else(TrustedKeys::load_default, TrustedKeys::load).map_err(refused)?;
    Bundle::load(path, &keys, &Expect::default()).map_err(refused)
}

fn main() {
    if let Err(e) = run(&Args::parse()) {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_learn::{Output, Tape};

    /// What leaves the band again was not stable.
    #[test]
    fn stable_is_for_good() {
        // the mean over ten is 0.9 while the 0 is among them, 1 before and after
        let mut rewards = vec![1.0; 40];
        assert_eq!(since(&rewards, 1.0, 1.0), Some(0));
        rewards[12] = 0.0;
        assert_eq!(since(&rewards, 1.0, 1.0), Some(13));
        assert_eq!(since(&rewards, 0.9, 0.95), None);
        rewards[35] = 0.0;
        assert_eq!((since(&rewards, 1.0, 1.0), since(&rewards, 0.9, 1.0)), (None, Some(0)));
        assert_eq!(level(&rewards), 38.0 / 40.0);
    }

    /// The same cores and MB give the same answer, whatever the bounds.
    #[test]
    fn weights_are_moved_to_other_bounds() {
        let spec = |name: &str, min, max| InputSpec { name: name.into(), min, max };
        let (old, new) = ([spec("a", 0.0, 36.0), spec("b", 1.0, 3.0)], [spec("a", 0.0, 64.0), spec("b", 0.0, 4.0)]);
        // a third input that has no bounds
        let net = Mlp::random(&[3, 4, 2], Output::Linear, 0.5, &mut Rng::new(3));
        let other = moved(&net, &old, &new);
        let (mut t, mut u) = (Tape::default(), Tape::default());
        for (a, b) in [(0.0, 1.0), (10.0, 2.5), (36.0, 3.0)] {
            let x = [old[0].scale(a), old[1].scale(b), 0.7];
            let y = [new[0].scale(a), new[1].scale(b), 0.7];
            for (p, q) in net.forward(&x, 1, &mut t).iter().zip(other.forward(&y, 1, &mut u)) {
                assert!((p - q).abs() < 1e-5, "{p} {q}");
            }
        }
    }

    /// Missing a target is never worth more than meeting all (OSML+ paper, Sec. 3.2).
    #[test]
    fn the_reward_is_the_papers() {
        // 1 + (1 + 0.5) / 2
        assert_eq!(reward(true, &[2.0, 0.5], 0.9), 1.75);
        assert_eq!(reward(false, &[2.0, 0.5], 0.9), 0.75);
        assert_eq!(reward(false, &[2.0, 1.0], 0.25), 2.25);
    }
}
