//! Command line of the load generator. It only wires; see the library for what things mean.

#![allow(unsafe_code, reason = "signal handlers that only set a flag")]

use clap::{Parser, Subcommand};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;
use surefoot_io::{out, shown};
use surefoot_loadgen::config::{parse_cpus, parse_duration_ns, parse_load, parse_states, parse_target, parse_wave};
use surefoot_loadgen::feed::STANDARD_OUTPUT;
use surefoot_loadgen::inproc::{Behaviour, InProcessServer};
use surefoot_loadgen::mmpp::Mmpp;
use surefoot_loadgen::output::{Input, Output};
use surefoot_loadgen::protocol::ProtocolKind;
use surefoot_loadgen::quantile::{Latency, Quantile};
use surefoot_loadgen::relay::relay;
use surefoot_loadgen::saturate::{search, Finding, Journal, Point, Service, Settings};
use surefoot_loadgen::windows::merge;
use surefoot_loadgen::{run, Arrivals, Config, LoadProfile, LoadgenError, Report};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// Open-loop load generator: latency counts from the intended send time, so a stalled server cannot hide.
///
/// Exit code: 0 the run is done (read the verdict), 1 it failed, 2 bad input.
#[derive(Parser)]
#[command(name = "surefoot-loadgen", version = env!("SUREFOOT_VERSION"), args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    args: RunArgs,
}

#[derive(Subcommand)]
enum Command {
    /// The highest load that meets a QoS target, the knee, and the latency-load curve
    Saturate(Box<SaturateArgs>),
    /// Merge windows that --windows wrote: count and percentiles of any part of a run
    Windows {
        file: PathBuf,
        /// Time since the start of the stream, warm-up included; without both: the measured windows
        #[arg(long)]
        from: Option<String>,
        #[arg(long)]
        to: Option<String>,
        #[arg(long, default_value_t = 0.95)]
        confidence: f64,
        #[arg(long)]
        json: bool,
    },
    /// A load generator on another host: pass the windows of a command's output (--feed -) on to a feed's socket here
    Relay {
        /// Unix datagram socket
        #[arg(long)]
        feed: PathBuf,
        /// Usually ssh HOST surefoot-loadgen ... --feed -
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// How punctual is this machine? Offered against achieved rate and send lag, against a server in this process
    Selftest {
        /// Rates to try, requests per second
        #[arg(long, value_delimiter = ',', default_values_t = [500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0])]
        rates: Vec<f64>,
        /// Time per rate
        #[arg(long, default_value = "2s")]
        duration: String,
        #[arg(long, default_value_t = 20.0)]
        spin_us: f64,
        /// Pin the sending thread to these CPUs
        #[arg(long)]
        cpu: Option<String>,
        /// Print the reports as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// Requests per second
    #[arg(long, allow_hyphen_values = true, conflicts_with = "load")]
    rps: Option<f64>,
    /// Load steps, times from the end of the warm-up, e.g. 0s:2000,10s:6000
    #[arg(long, allow_hyphen_values = true)]
    load: Option<String>,
    /// Load from a file of lines SECONDS,RPS, joined by straight lines
    #[arg(long, conflicts_with_all = ["rps", "load", "diurnal"])]
    load_file: Option<PathBuf>,
    /// Let the rate swing as over a day: AMPLITUDE:PERIOD[:PHASE], e.g. 0.6:10min is --rps x (1 +- 0.6), and the mean stays
    #[arg(long)]
    diurnal: Option<String>,
    /// Measured time
    #[arg(long, default_value = "10s")]
    duration: String,
    #[arg(long, default_value_t = 100)]
    window_ms: u64,
    /// Unix datagram socket that gets one datagram per window; - is a line each on standard output, for `relay`
    #[arg(long)]
    feed: Option<PathBuf>,
    /// Take samples as independent: plain binomial intervals, too narrow where requests queue behind one another
    #[arg(long)]
    independent: bool,
    /// Count the requests that took longer than this
    #[arg(long)]
    qos_target_ms: Option<f64>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Write the report (JSON) here
    #[arg(long)]
    out: Option<PathBuf>,
    /// Write one JSON line per window here, with its histogram; `windows` merges them
    #[arg(long)]
    windows: Option<PathBuf>,
    /// Replace files that are there already
    #[arg(long)]
    overwrite: bool,
    /// Take commands (rps 12000, status, stop) on a Unix socket made here (mode 0600), or on stdin if this is -
    #[arg(long)]
    control: Option<PathBuf>,
}

/// What is loaded and by what client.
#[derive(clap::Args)]
struct ServiceArgs {
    /// HOST:PORT; only loopback and containers of this machine unless --allow-remote
    #[arg(long)]
    target: Option<String>,
    /// memcached, resp or http
    #[arg(long, default_value = "memcached")]
    protocol: String,
    #[command(flatten)]
    gaps: GapArgs,
    /// Same stream before the measured time, at the rate of its beginning; auto: until the response time is level
    #[arg(long, default_value = "1s")]
    warmup: String,
    /// --warmup auto: measure from then on at the latest
    #[arg(long, default_value = "60s")]
    warmup_limit: String,
    /// How long after the end to wait for replies
    #[arg(long, default_value = "1s")]
    grace: String,
    #[arg(long, default_value_t = 16)]
    connections: usize,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Requests in flight per connection, at most [default: 64, http 1]
    #[arg(long)]
    pipeline: Option<usize>,
    /// Requests due and unanswered, at most; the rest is dropped and counted
    #[arg(long, default_value_t = 20_000)]
    max_outstanding: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keys, drawn uniformly
    #[arg(long, default_value_t = 10_000)]
    key_space: u64,
    #[arg(long, default_value_t = 200)]
    value_bytes: usize,
    /// Share of SETs, 0 to 1
    #[arg(long, default_value_t = 0.0, allow_hyphen_values = true)]
    set_ratio: f64,
    /// Do not store the keys beforehand
    #[arg(long)]
    no_preload: bool,
    /// HTTP path; `{key}` stands for the number of the request's key, 0 to key-space - 1
    #[arg(long, default_value = "/")]
    path: String,
    /// Pin sending threads to these CPUs, e.g. 0,2-3
    #[arg(long, alias = "cpus")]
    cpu: Option<String>,
    /// Do not put the sending threads before ordinary processes (SCHED_FIFO; done by default where allowed, the report says whether)
    #[arg(long)]
    no_realtime: bool,
    /// Poll instead of sleeping for this long before a request is due: less send lag, more CPU time
    #[arg(long, default_value_t = 20.0)]
    spin_us: f64,
    /// Name in the report and in the feed
    #[arg(long, default_value = "service")]
    service: String,
    /// Confidence of the intervals
    #[arg(long, default_value_t = 0.95)]
    confidence: f64,
    /// The client's own send lag may reach this p99 (or 10 % of the response time's) and move the p99 by a fifth of it (or 5 %), before
    /// the run is client-limited [default: 1; saturate: 5/8 of the target if that is more]
    #[arg(long)]
    lag_limit_ms: Option<f64>,
    /// Load a host that is not this machine. Only your own
    #[arg(long)]
    allow_remote: bool,
}

#[derive(clap::Args)]
struct SaturateArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// At most 1 % of the requests may take longer than this
    #[arg(long)]
    qos_target_ms: f64,
    /// First rate, requests per second
    #[arg(long, default_value_t = 50.0)]
    from: f64,
    /// Never more than this rate
    #[arg(long, default_value_t = 5e6)]
    max_rps: f64,
    /// Stop when the rates that hold and fail are this near, as a share
    #[arg(long, default_value_t = 0.05)]
    resolution: f64,
    /// A rate fails when it has failed so many times in a row; 2 where other work on the machine spoils single runs
    #[arg(long, default_value_t = 1)]
    tries: u32,
    /// Requests of a rate's first run
    #[arg(long, default_value_t = 1000.0)]
    samples: f64,
    /// Shortest run
    #[arg(long, default_value = "2s")]
    shortest: String,
    /// All runs of one try together, at most
    #[arg(long, default_value = "60s")]
    longest: String,
    /// Evenly spaced rates that the curve has besides those of the search
    #[arg(long, default_value_t = 10)]
    points: u32,
    /// Remember each run here; a search that was killed goes on from it
    #[arg(long)]
    journal: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Write the result with the latency-load curve (JSON) here
    #[arg(long)]
    out: Option<PathBuf>,
    /// Replace a file that is there already
    #[arg(long)]
    overwrite: bool,
}

#[derive(clap::Args)]
struct GapArgs {
    /// poisson, constant or bursty (Poisson at a rate that jumps; the mean stays)
    #[arg(long, default_value = "poisson")]
    arrivals: String,
    /// bursty: rate in a burst, over the mean [default: 4]
    #[arg(long)]
    burst_factor: Option<f64>,
    /// bursty: share of time in bursts [default: 0.1]
    #[arg(long)]
    burst_share: Option<f64>,
    /// bursty: mean length of a burst [default: 200ms]
    #[arg(long)]
    burst_dwell: Option<String>,
    /// bursty: more states than calm and burst, RELATIVE_RATE:DWELL each, e.g. 0.5:900ms,1:2s,5:100ms
    #[arg(long, conflicts_with_all = ["burst_factor", "burst_share", "burst_dwell"])]
    states: Option<String>,
}

impl GapArgs {
    fn law(&self) -> Result<Arrivals, LoadgenError> {
        let bursty = self.states.is_some() || self.burst_factor.is_some() || self.burst_share.is_some() || self.burst_dwell.is_some();
        match self.arrivals.as_str() {
            "poisson" | "constant" if bursty => Err(bad("--states and --burst-... need --arrivals bursty")),
            "poisson" => Ok(Arrivals::Poisson),
            "constant" => Ok(Arrivals::Constant),
            "bursty" => Ok(Arrivals::Mmpp(match &self.states {
                Some(text) => parse_states(text)?,
                None => {
                    let dwell_ns = parse_duration_ns("--burst-dwell", self.burst_dwell.as_deref().unwrap_or("200ms"))?;
                    Mmpp::bursty(self.burst_factor.unwrap_or(4.0), self.burst_share.unwrap_or(0.1), dwell_ns)?
                }
            })),
            other => Err(bad(format!("--arrivals `{other}`: use poisson, constant or bursty"))),
        }
    }
}

/// Print a line; a reader that went away (`| head`) is no reason to fail.
macro_rules! say {
    ($($arg:tt)*) => {
        print(&(format!($($arg)*) + "\n"))
    };
}

/// A note on standard error, which is not waited for.
macro_rules! tell {
    ($($arg:tt)*) => {
        out::note(&format!($($arg)*))
    };
}

/// What cannot be printed is said once, at the end.
fn print(text: &str) {
    if let Err(e) = out::print(text) {
        UNSAID.get_or_init(|| e.to_string());
    }
}

static UNSAID: OnceLock<String> = OnceLock::new();

fn bad(text: impl Into<String>) -> LoadgenError {
    LoadgenError::BadInput(text.into())
}

fn base_config(args: &ServiceArgs, load: LoadProfile, lag_limit_ms: f64) -> Result<Config, LoadgenError> {
    let protocol: ProtocolKind = args.protocol.parse().map_err(|e| bad(format!("--protocol: {e}")))?;
    let text = args.target.as_deref().ok_or_else(|| bad("--target is missing: give HOST:PORT, e.g. 127.0.0.1:11211"))?;
    let mut c = Config::new(parse_target(text, args.allow_remote)?, protocol, load);
    c.host = text.into();
    c.service = args.service.clone();
    c.path = args.path.clone();
    c.arrivals = args.gaps.law()?;
    c.warmup_auto = args.warmup == "auto";
    c.warmup_ns =
        if c.warmup_auto { parse_duration_ns("--warmup-limit", &args.warmup_limit)? } else { parse_duration_ns("--warmup", &args.warmup)? };
    c.grace_ns = parse_duration_ns("--grace", &args.grace)?;
    c.seed = args.seed;
    c.connections = args.connections;
    c.threads = args.threads;
    c.pipeline = args.pipeline.unwrap_or(c.pipeline);
    c.max_outstanding = args.max_outstanding;
    c.key_space = args.key_space;
    c.value_bytes = args.value_bytes;
    c.set_ratio = args.set_ratio;
    c.preload = !args.no_preload;
    c.cpus = args.cpu.as_deref().map(parse_cpus).transpose()?.unwrap_or_default();
    c.realtime = !args.no_realtime;
    c.spin_ns = spin_ns(args.spin_us)?;
    c.confidence = args.confidence;
    let lag_limit_ms = args.lag_limit_ms.unwrap_or(lag_limit_ms);
    if !(lag_limit_ms.is_finite() && lag_limit_ms > 0.0) {
        return Err(bad(format!("--lag-limit-ms {lag_limit_ms} must be above 0")));
    }
    c.rules.lag_floor_ms = lag_limit_ms;
    c.rules.bias_floor_ms = 0.2 * lag_limit_ms;
    Ok(c)
}

fn config(args: &RunArgs) -> Result<Config, LoadgenError> {
    let mut load = match (args.rps, &args.load, &args.load_file) {
        (Some(rps), _, _) => LoadProfile::constant(rps)?,
        (None, Some(load), _) => parse_load(load)?,
        (None, None, Some(file)) => LoadProfile::read(file)?,
        (None, None, None) => return Err(bad("no load: give --rps 2000, --load 0s:2000,10s:6000 or --load-file day.csv")),
    };
    if let Some(text) = &args.diurnal {
        load = load.with_wave(parse_wave(text)?)?;
    }
    let mut c = base_config(&args.service, load, 1.0)?;
    c.duration_ns = parse_duration_ns("--duration", &args.duration)?;
    c.window_ns = args.window_ms.saturating_mul(1_000_000);
    c.independent = args.independent;
    c.qos_target_ms = args.qos_target_ms;
    c.feed = args.feed.clone();
    c.windows = args.windows.clone();
    c.overwrite = args.overwrite;
    c.load_file = args.load_file.clone();
    c.control = args.control.clone();
    c.check()?;
    Ok(c)
}

fn spin_ns(us: f64) -> Result<u64, LoadgenError> {
    if (0.0..=1e6).contains(&us) {
        Ok((us * 1e3) as u64)
    } else {
        Err(bad(format!("--spin-us {us} is not between 0 and 1000000")))
    }
}

fn number(v: Option<f64>) -> String {
    v.map_or("-".into(), |v| format!("{v:.3}"))
}

fn show_latency(name: &str, l: &Latency) {
    let q = |q: &Quantile| match q.value_ms {
        None => "-".into(),
        Some(v) => format!("{v:.3} [{}, {}]", number(q.lower_ms), number(q.upper_ms)),
    };
    say!("{name:<14} {:<26} {:<26} {:<26} {:<26}", q(&l.p50), q(&l.p95), q(&l.p99), q(&l.p999));
}

fn show_header(confidence: f64) {
    let c = confidence * 100.0;
    say!("ms [{c} % interval] p50                    p95                        p99                        p99.9");
}

fn show(r: &Report) {
    say!(
        "{} at {}: offered {:.1} rps, achieved {:.1} rps, {} completed of {} in {:.1} s",
        r.service,
        r.target,
        r.offered_rps,
        r.achieved_rps,
        r.completed,
        r.offered,
        r.duration_ms * 1e-3
    );
    let lost = [
        ("misses", r.misses),
        ("errors", r.errors),
        ("dropped (server)", r.dropped_server),
        ("dropped (client)", r.dropped_client),
        ("unfinished", r.unfinished),
        ("reconnects", r.reconnects),
        ("feed undelivered", r.feed_undelivered.unwrap_or(0)),
    ];
    for (name, count) in lost.iter().filter(|(_, count)| *count > 0) {
        say!("  {name}: {count}");
    }
    if let Some(e) = &r.first_error {
        say!("  first error: {e}");
    }
    if let Some(w) = &r.warmup {
        say!("warm-up {:.1} s: {}", r.warmup_ms * 1e-3, w.reason);
    }
    for c in &r.commands {
        say!("load by command: {} rps from {:.3} s on", c.rps, c.at_ms * 1e-3);
    }
    show_header(r.confidence);
    show_latency("response time", &r.response_time);
    show_latency("service time", &r.service_time);
    show_latency("send lag", &r.send_lag);
    let percent = |share: Option<f64>| share.map_or("-".into(), |s| format!("{:.0} %", s * 100.0));
    say!(
        "client CPU {} cores; its busiest thread worked {}, waited for a CPU {} of the time",
        number(r.client_cpu_cores),
        percent(r.client.busy_share),
        percent(r.client.run_queue_wait_share)
    );
    if let (Some(target), Some(t)) = (r.qos_target_ms, r.above_target) {
        say!("QoS target {target} ms: {} of {} requests above it", t.above, t.count);
    }
    for w in &r.warnings {
        say!("warning: {w}");
    }
    say!("verdict: {} - {}", r.verdict.kind.as_str(), r.verdict.reason);
}

fn print_json(value: &impl serde::Serialize) -> Result<(), LoadgenError> {
    let text = serde_json::to_string_pretty(value).map_err(|e| LoadgenError::Failed(format!("report: {e}")))?;
    if let Err(e) = out::json_text(&(text + "\n")) {
        UNSAID.get_or_init(|| e.to_string());
    }
    Ok(())
}

/// The file of `--out`, before anything is sent: what is in its way is found then.
fn result_file(path: Option<&Path>, inputs: &[Input<'_>], overwrite: bool) -> Result<Option<Output>, LoadgenError> {
    path.map(|p| Output::for_option("--out", p, inputs, overwrite)).transpose()
}

fn write_result(out: Option<Output>, value: &impl serde::Serialize) -> Result<(), LoadgenError> {
    let Some(mut out) = out else { return Ok(()) };
    let mut text = serde_json::to_vec_pretty(value).map_err(|e| LoadgenError::Failed(format!("result: {e}")))?;
    text.push(b'\n');
    let written = out.write_all(&text).map_err(Into::into).and_then(|()| out.finish());
    written.map_err(|e| e.of_option("--out", out.path()))
}

fn run_once(args: &RunArgs) -> Result<(), LoadgenError> {
    let config = config(args)?;
    if args.out.is_some() && args.out == args.windows {
        return Err(bad("--out and --windows name one file. Give each its own"));
    }
    let out = result_file(args.out.as_deref(), &config.inputs(), args.overwrite)?;
    let lines = config.feed.as_deref() == Some(Path::new(STANDARD_OUTPUT));
    if lines && args.json {
        return Err(bad("--feed - and --json both write to standard output. Leave one out, or give --out FILE"));
    }
    let report = run(&config, &STOP)?.report;
    write_result(out, &report)?;
    if lines {
        tell!("verdict: {} - {}", report.verdict.kind.as_str(), report.verdict.reason);
    } else if args.json {
        print_json(&report)?;
    } else {
        show(&report);
    }
    report.unanswered().map_or(Ok(()), |why| Err(LoadgenError::Failed(why)))
}

fn show_point(p: &Point) {
    let finding = match p.finding {
        Finding::Holds => "holds",
        Finding::Fails => "fails",
        Finding::UndecidedWithin => "undecided, within so far",
        Finding::UndecidedBeyond => "undecided, beyond so far",
        Finding::ClientLimited => "client-limited",
    };
    let level = if p.judged_q < 0.99 { "p95" } else { "p99" };
    let time = number(if p.judged_q < 0.99 { p.p95_ms } else { p.p99_ms });
    tell!("{:>10} rps  {level} {time:>9} ms  {finding} ({} of {} above)", p.rps, p.above, p.count);
    if matches!(p.finding, Finding::ClientLimited) {
        tell!("warning: {}", p.reason);
    }
}

fn saturate(args: &SaturateArgs) -> Result<(), LoadgenError> {
    let settings = Settings {
        target_ms: args.qos_target_ms,
        from_rps: args.from,
        max_rps: args.max_rps,
        resolution: args.resolution,
        confidence: args.service.confidence,
        tries: args.tries,
        samples: args.samples,
        shortest_ns: parse_duration_ns("--shortest", &args.shortest)?,
        longest_ns: parse_duration_ns("--longest", &args.longest)?,
        points: args.points,
        seed: args.service.seed,
    };
    settings.check()?;
    // The client's lag is part of the response time: what it adds can make a rate look worse, never better.
    let mut config = base_config(&args.service, LoadProfile::constant(args.from)?, (0.625 * args.qos_target_ms).max(1.0))?;
    config.qos_target_ms = Some(args.qos_target_ms);
    config.check()?;
    let about = serde_json::to_string(&(&settings, format!("{config:?}"))).map_err(|e| LoadgenError::Failed(format!("settings: {e}")))?;
    let journal: Vec<Input<'_>> = args.journal.iter().map(|j| ("--journal", j.as_path())).collect();
    let out = result_file(args.out.as_deref(), &journal, args.overwrite)?;
    let service = Service { config, stop: &STOP };
    let found = match &args.journal {
        Some(path) => {
            let mut journal = Journal::open(path, &about, service)?;
            if journal.remembered() > 0 {
                tell!("going on: {} runs are in {}", journal.remembered(), path.display());
            }
            search(&mut journal, &settings, show_point)?
        }
        None => search(&mut { service }, &settings, show_point)?,
    };
    write_result(out, &found)?;
    if args.json {
        return print_json(&found);
    }
    say!("{}", found.summary);
    if let Some(k) = found.knee {
        say!("knee at {} rps, p99 {:.3} ms", k.rps, k.p99_ms);
    }
    Ok(())
}

fn windows(file: &Path, from: Option<&str>, to: Option<&str>, confidence: f64, json: bool) -> Result<(), LoadgenError> {
    if !(0.5..1.0).contains(&confidence) {
        return Err(bad(format!("--confidence {confidence} is not between 0.5 and 1 (e.g. 0.95)")));
    }
    let time = |option, text: Option<&str>, other| text.map_or(Ok(other), |t| parse_duration_ns(option, t).map(|ns| ns as f64 * 1e-6));
    let range = match (from, to) {
        (None, None) => None,
        _ => Some((time("--from", from, 0.0)?, time("--to", to, f64::INFINITY)?)),
    };
    let m = merge(file, range, confidence)?;
    if json {
        return print_json(&m);
    }
    let (from, to) = (m.from_ms * 1e-3, m.to_ms * 1e-3);
    say!(
        "{} windows, {from:.1} to {to:.1} s: {} completed of {} offered, {} errors, {} dropped",
        m.windows,
        m.completed,
        m.offered,
        m.errors,
        m.dropped
    );
    show_header(confidence);
    show_latency("response time", &m.response_time);
    Ok(())
}

fn selftest(rates: &[f64], duration: &str, spin_us: f64, cpu: Option<&str>, json: bool) -> Result<(), LoadgenError> {
    let duration_ns = parse_duration_ns("--duration", duration)?;
    let cpus = cpu.map(parse_cpus).transpose()?.unwrap_or_default();
    let loads: Vec<LoadProfile> = rates.iter().map(|&r| LoadProfile::constant(r)).collect::<Result<_, _>>()?;
    let behaviour = Behaviour { value_bytes: 200, ..Behaviour::default() };
    let server =
        InProcessServer::start(ProtocolKind::Memcached, behaviour).map_err(|e| LoadgenError::Failed(format!("in-process server: {e}")))?;
    let mut reports = Vec::new();
    if !json {
        say!("Against a server in this process (its CPU time is counted too). Times in ms.");
        say!(
            "{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}  verdict",
            "offered",
            "achieved",
            "lag p50",
            "lag p99",
            "lag p99.9",
            "resp p99",
            "CPUs"
        );
    }
    for load in loads {
        let mut c = Config::new(server.address, ProtocolKind::Memcached, load);
        c.service = "selftest".into();
        c.duration_ns = duration_ns;
        c.warmup_ns = 200_000_000;
        c.spin_ns = spin_ns(spin_us)?;
        c.cpus.clone_from(&cpus);
        c.preload = false;
        let r = run(&c, &STOP)?.report;
        if !json {
            say!(
                "{:>9.1} {:>9.1} {:>9} {:>9} {:>9} {:>9} {:>7}  {}",
                r.offered_rps,
                r.achieved_rps,
                number(r.client_lag.p50.value_ms),
                number(r.client_lag.p99.value_ms),
                number(r.client_lag.p999.value_ms),
                number(r.response_time.p99.value_ms),
                number(r.client_cpu_cores),
                r.verdict.kind.as_str()
            );
        }
        reports.push(r);
        if STOP.load(Ordering::Relaxed) {
            break;
        }
    }
    if json {
        print_json(&reports)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    out::begin();
    out::impatient(|| STOP.load(Ordering::Relaxed));
    let code = match (run_command(), UNSAID.get()) {
        (Ok(()), None) => ExitCode::SUCCESS,
        (Ok(()), Some(why)) => {
            tell!("error: standard output: {why}; make room there, or send it elsewhere");
            ExitCode::FAILURE
        }
        (Err(e), _) => {
            tell!("error: {}", shown::message(&e.to_string()));
            ExitCode::from(e.exit_code())
        }
    };
    out::finish();
    code
}

fn run_command() -> Result<(), LoadgenError> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if !e.use_stderr() => {
            // --help and --version.
            print(&e.render().to_string());
            return Ok(());
        }
        Err(e) => {
            let text = e.render().to_string();
            let first = text.split("\n\n").next().unwrap_or("bad arguments").trim_start_matches("error: ");
            return Err(bad(format!("{first} (see --help)")));
        }
    };
    let handler = on_signal as extern "C" fn(libc::c_int);
    // SAFETY: the handler only stores to an atomic. A file that may grow no further is an error of that write.
    unsafe {
        libc::signal(libc::SIGINT, handler as libc::sighandler_t);
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    match &cli.command {
        Some(Command::Selftest { rates, duration, spin_us, cpu, json }) => selftest(rates, duration, *spin_us, cpu.as_deref(), *json),
        Some(Command::Relay { feed, command }) => relay(feed, command, &STOP),
        Some(Command::Saturate(args)) => saturate(args),
        Some(Command::Windows { file, from, to, confidence, json }) => windows(file, from.as_deref(), to.as_deref(), *confidence, *json),
        None => run_once(&cli.args),
    }
}
