//! Command line. Exit codes: 0 ok, 1 failed, 2 bad input.

use crate::base::part::Part;
use crate::base::progress::Mode;
use clap::{ArgAction, Args, Parser, Subcommand};
use std::path::PathBuf;

/// Keeps latency-critical services inside their QoS targets on one node: measures, learns from it, and allocates.
#[derive(Debug, Parser)]
#[command(
    name = "surefootd",
    version = env!("SUREFOOT_VERSION"),
    after_help = "Exit codes: 0 ok, 1 failed, 2 bad input. Logs go to stderr. \
                  Pages below docs/ are in /usr/share/doc/surefoot where Surefoot is installed."
)]
pub struct Cli {
    /// More in the log: what is done and why; twice for everything. In place of SUREFOOT_LOG
    #[arg(short, long, global = true, display_order = 900, action = ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Less in the log: warnings and errors alone; twice for errors alone. In place of SUREFOOT_LOG
    #[arg(short, long, global = true, display_order = 901, action = ArgAction::Count)]
    pub quiet: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// What this host can and cannot do, each gap with its remedy
    Check(Check),
    /// Run the cases of a campaign on a server and write samples
    Sweep(Sweep),
    /// Closed-loop comparison of policies on virtual servers
    Eval(Eval),
    /// Policies that lend idle cores for less than a tick, on virtual primary VMs (docs/smartharvest.md)
    HarvestEval(HarvestEval),
    /// Servers, services and workloads drawn from a seed (docs/worlds.md)
    World(World),
    /// The best allocation for a workload on a virtual server, by search (docs/oracle.md)
    Oracle(Oracle),
    /// The daemon: observe, decide, apply, every 100 ms
    Run(Run),
    /// Write what the daemon would see, every 100 ms, and control nothing (docs/record-and-top.md)
    Record(Record),
    /// Let policies decide on a recorded stream: the one that acted must decide the same again (docs/shadow.md)
    Replay(Replay),
    /// Live view of a running daemon: services, allocations, latency against target
    Top(Top),
    /// Why each action was taken, and what came of it (docs/explain.md)
    Explain(Explain),
    /// Give every resource back to the kernel's defaults
    Reset(Reset),
    /// Change kernel files for a daemon that has no right to (docs/privileges.md)
    Actuate(Actuate),
    /// Mount a stand-in for the kernel's resctrl, to try things without the hardware (docs/resctrlfs.md)
    Resctrlfs(Resctrlfs),
    /// Print what a shell needs to complete these commands
    Completions(Completions),
    /// Write the manual pages
    #[command(hide = true)]
    Manual(Manual),
    /// Columns of samples and eval rows
    #[command(hide = true)]
    Schema(Schema),
}

/// A help text with the policies that there are.
fn one_of(what: &str) -> String {
    let names = surefoot_policy::NAMES.join(", ");
    format!("{what}. There are: {names}, and socket:PATH for one in another process (docs/python-policies.md)")
}

/// An entry of a list: "a, b" names what "a,b" names.
fn trimmed(entry: &str) -> Result<String, std::convert::Infallible> {
    Ok(entry.trim().into())
}

#[derive(Debug, Args)]
pub struct Check {
    /// The node.toml of the daemon (docs/node-config.md): its folders, its resctrl, and whether its services are there
    #[arg(long, value_name = "NODE.toml")]
    pub config: Option<PathBuf>,
    /// "local", or "virtual:PLATFORM" (a platform file or the name of a shipped platform)
    #[arg(long, value_name = "S", default_value = "local")]
    pub server: String,
    /// Further profiles (DIR/services, DIR/batch, DIR/platforms)
    #[arg(long, value_name = "DIR")]
    pub profiles: Option<PathBuf>,
    /// State folder of the daemon; default: as for run
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Write a platform file of this host: a new file, with what could not be found out left blank (docs/check.md)
    #[arg(long, value_name = "FILE", group = "written")]
    pub write_platform: Option<PathBuf>,
    /// Write a recording of this host's resctrl, without names and ids, for the tests of Surefoot (docs/give-a-recording.md)
    #[arg(long, value_name = "FILE", group = "written")]
    pub pack_tree: Option<PathBuf>,
    /// Replace a file of --write-platform or --pack-tree that is there already
    #[arg(long, requires = "written")]
    pub overwrite: bool,
    /// Print JSON (docs/check.md)
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Sweep {
    /// What to measure (docs/campaign-format.md)
    pub campaign: PathBuf,
    /// "local", or "virtual:PLATFORM" (a platform file or the name of a shipped platform)
    #[arg(long, value_name = "S")]
    pub server: String,
    /// Folder for shards, journal and manifest
    #[arg(long, value_name = "DIR", required_unless_present = "plan")]
    pub out: Option<PathBuf>,
    /// Go on with what an earlier run left in --out
    #[arg(long)]
    pub resume: bool,
    /// Only part I of N of the cases, e.g. 2/3: what one of several equal servers measures
    #[arg(long, value_name = "I/N")]
    pub part: Option<Part>,
    /// Further profiles (DIR/services, DIR/batch, DIR/platforms); they override shipped ones by name
    #[arg(long, value_name = "DIR")]
    pub profiles: Option<PathBuf>,
    /// Threads on a virtual server; default: all CPUs
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Count, preview and estimate, and say what a run would be refused for; change nothing
    #[arg(long)]
    pub plan: bool,
    /// With --plan: images of services come later, do not look for them
    #[arg(long, requires = "plan")]
    pub without_images: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Progress on stderr
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: Mode,
    /// Catalogue of workloads for --server local; default: workloads/ here or above the executable
    #[arg(long, value_name = "DIR")]
    pub catalogue: Option<PathBuf>,
    /// Load generator for --server local; default: beside this executable
    #[arg(long, value_name = "FILE")]
    pub loadgen: Option<PathBuf>,
    /// With --server local: start services anew for each case and give each the whole warm-up, to compare with (docs/campaigns.md)
    #[arg(long)]
    pub relaunch: bool,
    /// With --server local: measure a case whose host was disturbed at most so often, and keep the best; default: 2
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=10))]
    pub tries: Option<u32>,
    /// CPUs that services may use with --server local, e.g. "0-3"
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Where --server local keeps what it changed; default: SUREFOOT_STATE/node, /var/lib/surefoot or ~/.local/state/surefoot
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// End when the parent process ends
    #[arg(long, hide = true, value_name = "PID", num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    pub die_with_parent: Option<i32>,
}

#[derive(Debug, Args)]
pub struct Eval {
    /// Workload files, or folders of them (docs/workload-format.md)
    #[arg(long, required_unless_present = "worlds", num_args = 1.., value_name = "DIR|FILE")]
    pub workloads: Vec<PathBuf>,
    /// Drawn worlds of one range, e.g. test:1..50 or tune:7, in place of --workloads and --platform (docs/worlds.md)
    #[arg(long, num_args = 1.., value_name = "RANGE:N")]
    pub worlds: Vec<String>,
    #[arg(long, required = true, value_delimiter = ',', value_parser = trimmed, value_name = "NAMES", help = one_of("Policies, comma-separated"))]
    pub policies: Vec<String>,
    /// A platform file or the name of a shipped platform
    #[arg(long, required_unless_present = "worlds", value_name = "P")]
    pub platform: Option<String>,
    /// Models for the policies that need them
    #[arg(long, value_name = "B")]
    pub bundle: Option<PathBuf>,
    /// Models of each world's own server: a folder of bundles PLATFORM.tar (docs/worlds.md)
    #[arg(long, value_name = "DIR", requires = "worlds", conflicts_with = "bundle")]
    pub bundles: Option<PathBuf>,
    /// Public key that must have signed the bundle; default: the keys this machine trusts
    #[arg(long, value_name = "FILE")]
    pub trust: Option<PathBuf>,
    /// Further profiles (DIR/services, DIR/batch, DIR/platforms); they override shipped ones by name
    #[arg(long, value_name = "DIR")]
    pub profiles: Option<PathBuf>,
    /// Runs of each workload and policy, with seeds 1 to N
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub seeds: u32,
    /// Folder for rows.parquet, rows.csv, timelines.parquet and eval.json; what an interrupted run of the same command left there is gone on with
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace the results of an earlier evaluation
    #[arg(long)]
    pub overwrite: bool,
    /// Threads; default: all CPUs
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Runs whose time line is kept
    #[arg(long, value_enum, default_value = "first")]
    pub timelines: Timelines,
    /// Tell policies untruths, to see what wrong models and lost readings cost
    #[arg(long, value_enum)]
    pub harm: Option<Harm>,
    /// Folder for what Model-C experienced, a file a run: what `surefoot learn-c` trains it on (docs/worlds.md)
    #[arg(long, value_name = "DIR")]
    pub experience: Option<PathBuf>,
    /// Simulate every request by itself instead of by the laws of queues: a second opinion, up to a thousand times slower
    #[arg(long)]
    pub exact: bool,
    /// A setting of a policy, e.g. surefoot.prices.move=0.05; several times for several (docs/policy-parameters.md)
    #[arg(long, value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub set: Vec<String>,
    /// Progress on stderr
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: Mode,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct HarvestEval {
    /// Published experiments, comma-separated, or "all": t1, f4, f5, f6, t2, f7, f8, f9, f10, f11, f13, f14, f15
    #[arg(long, value_delimiter = ',', value_parser = trimmed, value_name = "NAMES", required_unless_present_any = ["primaries", "worlds"])]
    pub experiments: Vec<String>,
    /// Primary VMs that share a group of cores, each with its load in requests/s, e.g. memcached@80000,indexserve; several times for several groups
    #[arg(long, value_name = "NAMES")]
    pub primaries: Vec<String>,
    /// Drawn primary workloads of one range, e.g. test:1..40 (docs/worlds.md)
    #[arg(long, value_name = "RANGE:N")]
    pub worlds: Vec<String>,
    /// Loads of drawn workloads as shares of their own, comma-separated, e.g. 0.05,0.3,1
    #[arg(long, value_delimiter = ',', value_name = "SHARES", requires = "worlds", default_value = "1", allow_negative_numbers = true, value_parser = load_share)]
    pub load_shares: Vec<f64>,
    /// Policies in place of each experiment's own (f10, f11, f13, f14 keep theirs), comma-separated: no-harvest, fixed-buffer-N, prev-peak, prev-peak-N, smartharvest, wait-budget, caladan
    #[arg(long, value_delimiter = ',', value_parser = trimmed, value_name = "NAMES")]
    pub policies: Vec<String>,
    /// Runs of each case and policy, with seeds 1 to N
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub seeds: u32,
    /// How cores move; default: cpugroups. f14 and f15 have both
    #[arg(long, value_enum)]
    pub mover: Option<Mover>,
    /// Seconds of each load (of the whole wave in f7); default: as long as the workload needs for a P99
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub duration_s: Option<f64>,
    /// A setting, e.g. window.length_ms=30; several times for several (docs/smartharvest.md)
    #[arg(long, value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub set: Vec<String>,
    /// Folder for rows.csv, summary.md and harvest.json; what an interrupted run of the same command left there is gone on with
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace the results of an earlier run
    #[arg(long)]
    pub overwrite: bool,
    /// Further profiles (DIR/bursts.toml); they override shipped ones by name
    #[arg(long, value_name = "DIR")]
    pub profiles: Option<PathBuf>,
    /// Threads; default: all CPUs
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Progress on stderr
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: Mode,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

fn load_share(text: &str) -> Result<f64, String> {
    text.trim().parse().ok().filter(|x| (0.001..=10.0).contains(x)).ok_or_else(|| "no share of a load. Give 0.001 to 10".into())
}

/// A length of time from a tenth of a second to a day.
fn seconds(text: &str) -> Result<f64, String> {
    let s = text.parse::<f64>().ok().filter(|s| (0.1..=86_400.0).contains(s));
    s.ok_or_else(|| "give seconds from 0.1 to 86400".into())
}

/// How cores move between primary VMs and a job: names of bursts.toml.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mover {
    /// By hypercalls: up to 10 ms
    Cpugroups,
    /// By interrupts: about 100 us
    Interrupts,
}

#[derive(Debug, Args)]
pub struct World {
    #[command(subcommand)]
    pub command: WorldCommand,
}

#[derive(Debug, Subcommand)]
pub enum WorldCommand {
    /// Write a world as a folder that --profiles and --workloads take
    Draw(WorldDraw),
}

#[derive(Debug, Args)]
pub struct WorldDraw {
    /// What the world is for; the ranges share no world
    #[arg(long, value_name = "RANGE", value_parser = ["train", "tune", "test", "memory-tune", "memory-test"])]
    pub range: String,
    /// Number of the world in its range
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub seed: u32,
    /// New folder for services/, batch/, platforms/, workloads/, campaign.toml and world.json
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Print world.json
    #[arg(long)]
    pub json: bool,
}

/// What is done to what policies see and ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Harm {
    /// Model-A gives the answers of other services and other times
    ShuffledA,
    /// The bundle may be one of another platform
    ForeignBundle,
    /// The latency feed of the first LC service falls silent after 10 s
    DeadFeed,
    /// No counter and no account of the kernel is there
    NoCounters,
    /// No model answers: policies go by their rules of thumb, and need no bundle
    NoModels,
    /// Model-C does not answer: actions are chosen by rules of thumb
    NoC,
    /// Model-C takes every action that may be taken for as good as any other
    UniformC,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Vendor {
    Intel,
    Amd,
}

impl From<Vendor> for surefoot_resctrlfs::hardware::Vendor {
    fn from(vendor: Vendor) -> Self {
        match vendor {
            Vendor::Intel => Self::Intel,
            Vendor::Amd => Self::Amd,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Timelines {
    /// Of the first seed
    First,
    /// Of every run
    All,
    None,
}

#[derive(Debug, Args)]
pub struct Oracle {
    /// Workload file (docs/workload-format.md)
    #[arg(long, value_name = "F")]
    pub workload: PathBuf,
    /// A platform file or the name of a shipped platform
    #[arg(long, value_name = "P")]
    pub platform: String,
    /// Further profiles (DIR/services, DIR/batch, DIR/platforms); they override shipped ones by name
    #[arg(long, value_name = "DIR")]
    pub profiles: Option<PathBuf>,
    /// With more than 3 LC services at a time: judge at most so many partitions, then report bounds
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub most_judged: u64,
    /// Threads; default: all CPUs
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace a file that is there already
    #[arg(long)]
    pub overwrite: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Run {
    #[arg(long, value_name = "P", help = one_of("Policy"))]
    pub policy: String,
    /// "local", or "virtual:PLATFORM" (a platform file or the name of a shipped platform)
    #[arg(long, value_name = "S")]
    pub server: String,
    /// Models for the policies that need them
    #[arg(long, value_name = "B")]
    pub bundle: Option<PathBuf>,
    /// Public key that must have signed the bundle; default: the keys this machine trusts
    #[arg(long, value_name = "FILE")]
    pub trust: Option<PathBuf>,
    /// With --server local: run the bundle though a newer one has run here, and count from it on
    #[arg(long)]
    pub allow_older: bool,
    /// What runs here (docs/node-config.md)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// End after so many seconds; default: run until SIGTERM
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub duration_s: Option<u64>,
    /// Record one JSON line per service and tick
    #[arg(long, value_name = "FILE", alias = "timeline")]
    pub events: Option<PathBuf>,
    /// Policies that decide on the same observations without acting, separated by commas (docs/shadow.md)
    #[arg(long, value_name = "P,...", value_delimiter = ',', value_parser = trimmed)]
    pub shadow: Vec<String>,
    /// Record every observation and plan, for `surefootd replay`
    #[arg(long, value_name = "FILE")]
    pub stream: Option<PathBuf>,
    /// Replace files of --events and --stream that are there already
    #[arg(long)]
    pub overwrite: bool,
    /// Further profiles for a virtual server
    #[arg(long, value_name = "DIR")]
    pub profiles: Option<PathBuf>,
    /// End when the parent process ends
    #[arg(long, hide = true, value_name = "PID", num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    pub die_with_parent: Option<i32>,
}

#[derive(Debug, Args)]
pub struct Replay {
    /// What `surefootd run --stream` recorded
    pub stream: PathBuf,
    /// Policies that decide on it besides the one that acted, separated by commas
    #[arg(long, value_name = "P,...", value_delimiter = ',', value_parser = trimmed)]
    pub policies: Vec<String>,
    /// The bundle of the run, for the policies that need one
    #[arg(long, value_name = "B")]
    pub bundle: Option<PathBuf>,
    /// Public key that must have signed the bundle; default: the keys this machine trusts
    #[arg(long, value_name = "FILE")]
    pub trust: Option<PathBuf>,
    /// Replay also a stream without its end (the recorder was killed, or is an older version): what is there
    #[arg(long)]
    pub cut: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Record {
    /// "local", or "virtual:PLATFORM" (a platform file or the name of a shipped platform)
    #[arg(long, value_name = "S")]
    pub server: String,
    /// Parquet in the columns of samples (docs/sweep-output.md), or JSON lines where the name ends in .jsonl
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace a file that is there already
    #[arg(long)]
    pub overwrite: bool,
    /// What runs here (docs/node-config.md)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// End after so many seconds; default: with the workload of a virtual server, else at SIGTERM or Ctrl-C
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub duration_s: Option<u64>,
    /// Further profiles for a virtual server
    #[arg(long, value_name = "DIR")]
    pub profiles: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
    /// End when the parent process ends
    #[arg(long, hide = true, value_name = "PID", num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    pub die_with_parent: Option<i32>,
}

#[derive(Debug, Args)]
pub struct Top {
    /// Where the daemon answers; default: http://127.0.0.1:19464, or the metrics_port of --config
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub url: Option<String>,
    /// Configuration of the daemon: its metrics_port and metrics_address say where it answers
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one frame and end; needs no terminal
    #[arg(long)]
    pub once: bool,
    /// Print one snapshot as JSON and end
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Explain {
    /// Configuration of the daemon: its journal, or that in its state_dir
    #[arg(long, value_name = "FILE", conflicts_with_all = ["state", "file"])]
    pub config: Option<PathBuf>,
    /// State folder of the daemon; default: as for run
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    pub state: Option<PathBuf>,
    /// The journal itself
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Only actions on this service
    #[arg(long, value_name = "ID")]
    pub service: Option<String>,
    /// Only actions of this kind: place, grow, shrink, deprive, share or rollback
    #[arg(long, value_name = "KIND")]
    pub action: Option<String>,
    /// Only actions of the last so long (30s, 10m, 2h, 1d), or since a time (2026-11-21T21:00Z)
    #[arg(long, value_name = "T")]
    pub since: Option<String>,
    /// The newest so many; default: 20, or all with --since
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub last: Option<u32>,
    /// The whole account of one action
    #[arg(long, value_name = "N")]
    pub id: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Reset {
    /// "local", or "virtual:PLATFORM"
    #[arg(long, value_name = "S", default_value = "local")]
    pub server: String,
    /// Configuration of the run to undo: its state_dir says what was changed
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where what was changed is kept; default: as for sweep
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Only put the recorded safe layout in force: LC services as before Surefoot came, BE jobs at the least.
    /// Quick, and by plain writes alone: for a service manager when the daemon has died
    #[arg(long)]
    pub safe: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Actuate {
    /// The daemon's configuration, which must be root's: what may be changed, and for whom
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Where the daemon finds us; default: actuator.socket of the configuration, or the socket that systemd passes
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Print what may be changed, and end
    #[arg(long)]
    pub list: bool,
    /// End when the parent process ends
    #[arg(long, hide = true, value_name = "PID", num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    pub die_with_parent: Option<i32>,
}

#[derive(Debug, Args)]
pub struct Resctrlfs {
    /// Empty folder to mount it on
    pub mountpoint: PathBuf,
    /// A platform file or the name of a shipped platform
    #[arg(long, value_name = "P")]
    pub platform: String,
    /// Linux whose resctrl to show: 6.1 or 6.12
    #[arg(long, value_name = "VERSION", default_value = "6.12")]
    pub kernel: String,
    /// Processor whose limits to show (docs/resctrlfs.md)
    #[arg(long, value_enum, default_value = "intel")]
    pub vendor: Vendor,
    /// Mount options of resctrl, e.g. "cdp,mba_MBps,debug"; "nonempty" mounts over files, too
    #[arg(short = 'o', long, value_name = "OPTIONS", default_value = "")]
    pub options: String,
    /// Further profiles (DIR/platforms); they override shipped ones by name
    #[arg(long, value_name = "DIR")]
    pub profiles: Option<PathBuf>,
    /// End when the parent process ends
    #[arg(long, hide = true, value_name = "PID", num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    pub die_with_parent: Option<i32>,
}

#[derive(Debug, Args)]
pub struct Completions {
    /// For bash: surefootd completions bash > /usr/share/bash-completion/completions/surefootd
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct Manual {
    /// Folder for surefootd.1 and a page of each command
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct Schema {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What `--server` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// Platform file or name.
    Virtual(String),
    Local,
}

impl Server {
    /// # Errors
    /// [`crate::base::error::Error::BadInput`] for anything but `local` and `virtual:...`.
    pub fn parse(text: &str) -> crate::base::error::Result<Self> {
        match text.split_once(':') {
            None if text == "local" => Ok(Server::Local),
            Some(("virtual", name)) if !name.is_empty() => Ok(Server::Virtual(name.into())),
            _ => Err(crate::base::error::Error::BadInput(format!(
                "--server {text}: is neither \"local\" nor \"virtual:PLATFORM\". Write e.g. --server virtual:server-1"
            ))),
        }
    }
}
