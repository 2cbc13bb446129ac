//! node.toml (docs/node-config.md): what a node runs.

use crate::base::error::{Error, Result};
use crate::base::toml::{place, toml_error};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::path::{Component, Path, PathBuf};
use surefoot_harvest::Harvester;
use surefoot_io::input::{self, WRITTEN_BYTES};
use surefoot_linux::actuator::{self, Pattern};
use surefoot_linux::catalogue::Loadgen;
use surefoot_linux::feed::{scrape, Scrape, Unit, Url, Wanted, MODE};
use surefoot_linux::pods::source::Source;
use surefoot_linux::Target;
use surefoot_policy::Settings;
use surefoot_server::settable::Settable;
use surefoot_server::{names, CpuSet, Kind};
use toml::Spanned;

/// 9464 is the default of OpenTelemetry's SDKs: a service on the same node may have it.
pub const METRICS_PORT: u16 = 19464;
pub const ACTUATOR_USER: &str = "surefoot";
pub const ACTUATOR_STATE: &str = "/var/lib/surefoot-actuator";
/// Largest journal of decisions by default; a full one is kept beside it.
pub const JOURNAL_MB: u64 = 16;

/// Between two ticks.
pub const INTERVAL_MS: RangeInclusive<u64> = 10..=60_000;
/// Between two looks at the threads of a lender, and by default: a file of each thread is read.
pub const POLL_MS: RangeInclusive<f64> = 0.01..=100.0;
const POLL_DEFAULT_MS: f64 = 5.0;
/// What decides below a tick by default.
const LEND_POLICY: &str = "wait-budget";
/// Between two steps of learning.
pub const LEARN_EVERY_MS: RangeInclusive<u64> = 100..=3_600_000;

/// A range as TOML's integers have it.
fn whole_numbers(r: &RangeInclusive<u64>) -> Range<i64> {
    *r.start() as i64..*r.end() as i64 + 1
}

/// A checked node.toml; paths are relative to its folder.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    pub file: PathBuf,
    /// Virtual servers: the workload file to run.
    pub workload: Option<PathBuf>,
    /// Virtual servers: one second takes one second.
    pub realtime: bool,
    pub state_dir: Option<PathBuf>,
    pub catalogue: Option<PathBuf>,
    pub cpus: Option<CpuSet>,
    /// LC services alone on their CPUs become cpuset partitions.
    pub partitions: bool,
    /// Cores of leases move by owner where the kernel has sched_ext.
    pub sched_ext: bool,
    /// Working sets are looked at.
    pub working_set: bool,
    /// Mount point of resctrl, also of a stand-in; None = the kernel's.
    pub resctrl: Option<PathBuf>,
    /// Peak memory bandwidth, MB/s; None = unknown.
    pub mem_bw_mbps: Option<f64>,
    /// None = no metrics.
    pub metrics_port: Option<u16>,
    /// Where it listens.
    pub metrics_address: IpAddr,
    /// JSON lines of actions with their reasons.
    pub journal: Option<PathBuf>,
    /// A journal of this size becomes the old generation, of which one is kept.
    pub journal_most_bytes: u64,
    pub interval_ms: u64,
    pub seed: u64,
    /// Who may write to the latency socket: its mode, and its group by name or number.
    pub feed_mode: u32,
    pub feed_group: Option<String>,
    /// Who changes kernel files; None = the daemon itself.
    pub actuator: Option<ActuatorConfig>,
    pub learning: LearningConfig,
    /// Of policies: `[policy.settings]`.
    pub settings: Settings,
    pub upper: UpperConfig,
    pub services: Vec<NodeService>,
    /// Pods of a Kubernetes node that are services, too.
    pub pods: Option<PodsConfig>,
    /// By lender.
    pub lends: Vec<Lend>,
}

/// Pods of a Kubernetes node (docs/kubernetes.md).
#[derive(Clone, Debug, PartialEq)]
pub struct PodsConfig {
    pub source: Source,
    /// Between two looks.
    pub every_s: u64,
    /// The kubelet's --cgroup-root.
    pub below: String,
    /// Where what cannot be solved here is told as a condition of the node.
    pub condition: Option<PathBuf>,
}

/// Idle cores of a service that are lent to a BE job between two plans (docs/node-config.md).
#[derive(Clone, Debug, PartialEq)]
pub struct Lend {
    pub lender: String,
    pub borrower: String,
    /// One of [`surefoot_harvest::NAMES`].
    pub policy: String,
    pub poll_ms: f64,
    pub settings: surefoot_harvest::Settings,
}

/// The socket of upper schedulers: for its owner and its group.
pub const UPPER_MODE: u32 = 0o660;

/// Word to upper schedulers (docs/upper-scheduler.md).
#[derive(Clone, Debug, PartialEq)]
pub struct UpperConfig {
    pub on: bool,
    /// None: in the state folder of a local server, nowhere for a virtual one.
    pub socket: Option<PathBuf>,
    /// Who may listen: the socket's mode, and its group by name or number.
    pub mode: u32,
    pub group: Option<String>,
    /// None: it is asked nothing.
    pub ask: Option<AskConfig>,
}

impl Default for UpperConfig {
    fn default() -> Self {
        UpperConfig { on: true, socket: None, mode: UPPER_MODE, group: None, ask: None }
    }
}

/// How an upper scheduler is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskConfig {
    /// An answer that takes longer is none.
    pub answer_ms: u64,
    /// What counts then.
    pub unanswered: bool,
}

/// Three decisions: as long as a newcomer is watched before it is placed.
pub const ANSWER_MS: u64 = 300;

/// On-line learning (docs/online-learning.md).
#[derive(Clone, Debug, PartialEq)]
pub struct LearningConfig {
    pub on: bool,
    /// At most one step of learning in so long.
    pub every_ms: u64,
    /// Where experience is kept; None: in the state folder of a local server, nowhere for a virtual one.
    pub experience: Option<PathBuf>,
    /// Between two saves; the last is at the end.
    pub save_every_s: u64,
}

impl Default for LearningConfig {
    fn default() -> Self {
        LearningConfig { on: true, every_ms: 500, experience: None, save_every_s: 300 }
    }
}

/// The process that holds the rights (docs/privileges.md).
#[derive(Clone, Debug, PartialEq)]
pub struct ActuatorConfig {
    pub socket: PathBuf,
    /// Name or number of the user that the daemon runs as.
    pub user: String,
    /// Cgroups that may be set, besides those that services name.
    pub cgroups: Vec<Pattern>,
    /// Where the safe layout is kept; the actuator's own.
    pub state_dir: PathBuf,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeService {
    pub id: String,
    pub service: String,
    pub threads: Option<u32>,
    pub how: How,
    /// Its own histogram of response times; None: it sends datagrams, or somebody else does.
    pub prometheus: Option<Scrape>,
    pub feed: FeedConfig,
}

/// Senders that may speak for a service besides its own processes, root and the daemon's user (docs/latency-feed.md).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedConfig {
    /// Names or numbers.
    pub users: Vec<String>,
    pub groups: Vec<String>,
    /// As /proc/PID/cgroup has them.
    pub cgroups: Vec<PathBuf>,
    /// All that may write to feed.sock.
    pub anybody: bool,
    pub socket: Option<SocketConfig>,
}

/// A socket for one service alone: its mode, and its group by name or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketConfig {
    pub mode: u32,
    pub group: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum How {
    /// Start it from the catalogue.
    Launch { port: Option<u16> },
    /// It runs already.
    Adopt { kind: Kind, target: Target },
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    workload: Option<PathBuf>,
    realtime: Option<bool>,
    state_dir: Option<PathBuf>,
    catalogue: Option<PathBuf>,
    cpus: Option<Spanned<String>>,
    resctrl: Option<PathBuf>,
    mem_bw_mbps: Option<Spanned<f64>>,
    metrics_port: Option<Spanned<i64>>,
    metrics_address: Option<Spanned<String>>,
    partitions: Option<bool>,
    sched_ext: Option<bool>,
    working_set: Option<bool>,
    journal: Option<PathBuf>,
    journal_mb: Option<Spanned<i64>>,
    interval_ms: Option<Spanned<i64>>,
    seed: Option<Spanned<i64>>,
    feed_mode: Option<Spanned<String>>,
    feed_group: Option<String>,
    actuator: Option<RawActuator>,
    learning: Option<RawLearning>,
    policy: Option<RawPolicy>,
    upper: Option<RawUpper>,
    pods: Option<RawPods>,
    #[serde(default)]
    service: Vec<Spanned<RawService>>,
    #[serde(default)]
    lend: Vec<Spanned<RawLend>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [pods]")]
struct RawPods {
    source: Spanned<String>,
    every_s: Option<Spanned<i64>>,
    below: Option<Spanned<String>>,
    condition: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[lend]]")]
struct RawLend {
    lender: String,
    borrower: String,
    policy: Option<String>,
    poll_ms: Option<Spanned<f64>>,
    #[serde(default)]
    settings: RawSettings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [actuator]")]
struct RawActuator {
    socket: Option<PathBuf>,
    user: Option<String>,
    #[serde(default)]
    cgroups: Vec<Spanned<String>>,
    state_dir: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [policy.settings] of numbers (which policy it is, says --policy)")]
struct RawPolicy {
    #[serde(default)]
    settings: RawSettings,
}

/// Numbers under dotted names, in the file's order: `surefoot.prices.move = 0.05`.
#[derive(Default)]
struct RawSettings(Vec<(Spanned<String>, RawSetting)>);

enum RawSetting {
    Numbers(Vec<f64>),
    Group(RawSettings),
}

impl<'de> Deserialize<'de> for RawSettings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_map(RawSettings::default())
    }
}

impl<'de> Visitor<'de> for RawSettings {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a table of settings")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> std::result::Result<Self, A::Error> {
        while let Some(entry) = map.next_entry()? {
            self.0.push(entry);
        }
        Ok(self)
    }
}

impl<'de> Deserialize<'de> for RawSetting {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_any(OneSetting)
    }
}

struct OneSetting;

impl<'de> Visitor<'de> for OneSetting {
    type Value = RawSetting;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a number, or a list of numbers")
    }

    fn visit_i64<E>(self, x: i64) -> std::result::Result<RawSetting, E> {
        Ok(RawSetting::Numbers(vec![x as f64]))
    }

    fn visit_f64<E>(self, x: f64) -> std::result::Result<RawSetting, E> {
        Ok(RawSetting::Numbers(vec![x]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<RawSetting, A::Error> {
        let mut numbers = vec![];
        while let Some(x) = list.next_element()? {
            numbers.push(x);
        }
        Ok(RawSetting::Numbers(numbers))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<RawSetting, A::Error> {
        RawSettings::default().visit_map(map).map(RawSetting::Group)
    }
}

/// Sets one by its name, and says the full name of it.
type Assign<'a> = &'a mut dyn FnMut(&str, &[f64]) -> std::result::Result<String, String>;

impl RawSettings {
    /// # Errors
    /// Where it stands and what is wrong with it.
    fn assign(self, under: &str, to: Assign<'_>, named: &mut BTreeSet<String>) -> std::result::Result<(), (Range<usize>, String)> {
        for (key, value) in self.0 {
            let name = if under.is_empty() { key.get_ref().clone() } else { format!("{under}.{}", key.get_ref()) };
            match value {
                RawSetting::Group(group) => group.assign(&name, to, named)?,
                RawSetting::Numbers(numbers) => {
                    let full = to(&name, &numbers).map_err(|e| (key.span(), e))?;
                    if named.contains(&full) {
                        return Err((key.span(), format!("{full}: is set twice. Name it once")));
                    }
                    named.insert(full);
                }
            }
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [learning]")]
struct RawLearning {
    on: Option<bool>,
    every_ms: Option<Spanned<i64>>,
    experience: Option<PathBuf>,
    save_every_s: Option<Spanned<i64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [upper]")]
struct RawUpper {
    on: Option<bool>,
    socket: Option<PathBuf>,
    mode: Option<Spanned<String>>,
    group: Option<String>,
    ask: Option<bool>,
    answer_ms: Option<Spanned<i64>>,
    unanswered: Option<Spanned<String>>,
}

/// What a service says for a campaign besides: how it comes to run, and how it is loaded (docs/campaign-format.md).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForCampaign {
    /// Where the file stands that says it, for messages.
    pub span: Range<usize>,
    pub kind: Option<Kind>,
    /// Argument vector of a process to start; `{threads}` and `{port}` are filled in.
    pub command: Option<Vec<String>>,
    /// Where it is loaded, on 127.0.0.1.
    pub port: Option<u16>,
    /// Whether each case begins with a new process or container.
    pub restart: bool,
    pub loadgen: Option<Loadgen>,
    pub rps_levels: Vec<f64>,
    pub max_load_rps: Option<f64>,
}

impl ForCampaign {
    /// The first field that says nothing to a node.
    fn beyond_a_node(&self) -> Option<&'static str> {
        let given = [
            ("command", self.command.is_some()),
            ("restart", self.restart),
            ("loadgen", self.loadgen.is_some()),
            ("rps_levels", !self.rps_levels.is_empty()),
            ("max_load_rps", self.max_load_rps.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(field, _)| field)
    }
}

/// `[[service]]` as it is written: of a node.toml, and of a campaign.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[service]]")]
pub struct RawService {
    service: String,
    id: Option<String>,
    threads: Option<i64>,
    port: Option<u16>,
    kind: Option<String>,
    qos_target_ms: Option<f64>,
    container: Option<String>,
    cgroup: Option<PathBuf>,
    unit: Option<String>,
    pid: Option<u32>,
    prometheus: Option<RawPrometheus>,
    feed: Option<RawFeed>,
    command: Option<Vec<String>>,
    #[serde(default)]
    restart: bool,
    loadgen: Option<Loadgen>,
    #[serde(default)]
    rps_levels: Vec<f64>,
    max_load_rps: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [service.feed]")]
struct RawFeed {
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    cgroups: Vec<PathBuf>,
    #[serde(default)]
    anybody: bool,
    #[serde(default)]
    socket: bool,
    socket_mode: Option<String>,
    socket_group: Option<String>,
}

impl RawFeed {
    /// # Errors
    /// The field and what is wrong with it.
    fn checked(self) -> std::result::Result<FeedConfig, (&'static str, String)> {
        let plain = |c: &Path| c.is_absolute() && c.components().skip(1).all(|p| matches!(p, Component::Normal(_)));
        for c in &self.cgroups {
            if c == Path::new("/") {
                return Err(("cgroups", "\"/\" holds every process. Name a cgroup below it, or write anybody = true".into()));
            }
            if !plain(c) {
                return Err(("cgroups", format!("is {c:?}. Name it as /proc/PID/cgroup does, e.g. \"/system.slice/load.service\"")));
            }
        }
        let socket = match (self.socket, self.socket_mode, self.socket_group) {
            (true, mode, group) => {
                let mode = mode.map_or(Ok(MODE), |m| octal(&m).ok_or_else(|| ("socket_mode", not_octal(&m))))?;
                Some(SocketConfig { mode, group })
            }
            (false, None, None) => None,
            (false, Some(_), _) => return Err(("socket_mode", "goes with a socket of the service's own. Write socket = true".into())),
            (false, _, Some(_)) => return Err(("socket_group", "goes with a socket of the service's own. Write socket = true".into())),
        };
        Ok(FeedConfig { users: self.users, groups: self.groups, cgroups: self.cgroups, anybody: self.anybody, socket })
    }
}

/// A socket's mode.
fn octal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|m| (0o200..=0o777).contains(m))
}

fn not_octal(text: &str) -> String {
    format!("is {text:?}. Write it in octal, e.g. \"0660\"")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table { url = ..., histogram = ... }")]
struct RawPrometheus {
    #[serde(alias = "urls")]
    url: RawUrls,
    histogram: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    unit: Option<String>,
    interval_ms: Option<u64>,
}

/// A page, or one of each process.
#[derive(Deserialize)]
#[serde(untagged, expecting = "give a URL in quotes, or a list of such")]
enum RawUrls {
    One(String),
    Several(Vec<String>),
}

impl RawUrls {
    fn checked(self) -> std::result::Result<Vec<Url>, String> {
        let texts = match self {
            RawUrls::One(text) => vec![text],
            RawUrls::Several(texts) => texts,
        };
        if !(1..=scrape::MOST_URLS).contains(&texts.len()) {
            return Err(format!("has {} URLs. Give 1 to {}, one for each process", texts.len(), scrape::MOST_URLS));
        }
        if let Some((k, twice)) = texts.iter().enumerate().find(|(k, text)| texts[..*k].contains(text)) {
            return Err(format!(
                "{twice:?} stands there twice (the second time in place {}): what it counts would count twice. Remove one",
                k + 1
            ));
        }
        texts.iter().map(|text| Url::parse(text)).collect()
    }
}

impl RawPrometheus {
    /// # Errors
    /// The field and what is wrong with it.
    fn checked(self) -> std::result::Result<Scrape, (&'static str, String)> {
        let urls = self.url.checked().map_err(|e| ("url", e))?;
        let named = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        if self.histogram.is_empty() || !self.histogram.chars().all(named) || self.histogram.ends_with("_bucket") {
            let what = format!("is {:?}. Give the metric's name without _bucket, e.g. \"request_duration_seconds\"", self.histogram);
            return Err(("histogram", what));
        }
        let of_name = |name: &String| Unit::NAMED.iter().find(|(n, _)| n == name).map(|(_, unit)| *unit);
        let unit = match &self.unit {
            None => None,
            Some(name) => Some(of_name(name).ok_or_else(|| ("unit", format!("is {name:?}. Write \"s\", \"ms\", \"us\" or \"ns\"")))?),
        };
        let interval_ms = self.interval_ms.unwrap_or(scrape::INTERVAL_MS);
        if !scrape::INTERVALS_MS.contains(&interval_ms) {
            let (least, most) = (scrape::INTERVALS_MS.start(), scrape::INTERVALS_MS.end());
            return Err(("interval_ms", format!("{interval_ms} is out of range. Give {least} to {most}: a second of silence is unknown")));
        }
        Ok(Scrape { urls, wanted: Wanted { histogram: self.histogram, labels: self.labels, unit }, interval_ms })
    }
}

impl NodeConfig {
    /// Services that run already: id and where.
    pub fn adopted(&self) -> Vec<(String, Target)> {
        let target = |s: &NodeService| match &s.how {
            How::Adopt { target, .. } => Some((s.id.clone(), target.clone())),
            How::Launch { .. } => None,
        };
        self.services.iter().filter_map(target).collect()
    }

    /// What a node without a file runs.
    pub fn none() -> Self {
        NodeConfig {
            file: PathBuf::new(),
            workload: None,
            realtime: true,
            state_dir: None,
            catalogue: None,
            cpus: None,
            partitions: false,
            sched_ext: false,
            working_set: true,
            resctrl: None,
            mem_bw_mbps: None,
            metrics_port: Some(METRICS_PORT),
            metrics_address: Ipv4Addr::LOCALHOST.into(),
            journal: None,
            journal_most_bytes: JOURNAL_MB << 20,
            interval_ms: 100,
            seed: 1,
            feed_mode: MODE,
            feed_group: None,
            actuator: None,
            learning: LearningConfig::default(),
            settings: Settings::default(),
            upper: UpperConfig::default(),
            services: vec![],
            pods: None,
            lends: vec![],
        }
    }

    /// Where the metrics are; None = nowhere.
    pub fn metrics_at(&self) -> Option<SocketAddr> {
        Some((self.metrics_address, self.metrics_port?).into())
    }

    /// # Errors
    /// [`Error::BadInput`] names file, line, field and remedy.
    pub fn read(file: &Path) -> Result<Self> {
        let text = input::text(file, WRITTEN_BYTES).map_err(|e| Error::unreadable(file, "a node.toml", &e))?;
        Self::parse(file, &text)
    }

    /// # Errors
    /// See [`NodeConfig::read`].
    pub fn parse(file: &Path, text: &str) -> Result<Self> {
        let raw: Raw = toml::from_str(text).map_err(|e| toml_error(file, text, &e, "docs/node-config.md lists every field"))?;
        let wrong =
            |span: &Range<usize>, field: &str, what: String| Error::BadInput(format!("{}: {field}: {what}", place(file, text, span)));
        let whole = |field: &str, v: Option<Spanned<i64>>, default: i64, range: Range<i64>| match v {
            None => Ok(default),
            Some(s) if range.contains(s.get_ref()) => Ok(*s.get_ref()),
            Some(s) => {
                let what = format!("{} is out of range. Give {} to {}", s.get_ref(), range.start, range.end - 1);
                Err(wrong(&s.span(), field, what))
            }
        };
        let folder = file.parent().unwrap_or(Path::new(""));
        let here = |p: PathBuf| folder.join(p);
        let cpus = match raw.cpus {
            None => None,
            Some(s) => Some(CpuSet::parse(s.get_ref()).map_err(|e| wrong(&s.span(), "cpus", format!("{e}. Write e.g. \"0-3\"")))?),
        };
        let mode = |field: &str, v: Option<Spanned<String>>, default: u32| match v {
            None => Ok(default),
            Some(s) => octal(s.get_ref()).ok_or_else(|| wrong(&s.span(), field, not_octal(s.get_ref()))),
        };
        let feed_mode = mode("feed_mode", raw.feed_mode, MODE)?;
        let mem_bw_mbps = match raw.mem_bw_mbps {
            Some(s) if !(s.get_ref().is_finite() && *s.get_ref() > 0.0) => {
                return Err(wrong(&s.span(), "mem_bw_mbps", format!("is {}. Give the peak memory bandwidth in MB/s", s.get_ref())));
            }
            s => s.map(Spanned::into_inner),
        };
        let port = whole("metrics_port", raw.metrics_port, i64::from(METRICS_PORT), 0..65_536)? as u16;
        let metrics_address = match raw.metrics_address {
            None => Ipv4Addr::LOCALHOST.into(),
            Some(s) => s.get_ref().parse().map_err(|_| {
                let what = format!("\"{}\" is no IP address. Write e.g. \"127.0.0.1\", or \"0.0.0.0\" for every one", s.get_ref());
                wrong(&s.span(), "metrics_address", what)
            })?,
        };
        let read = Self::services(file, text, raw.service)?;
        let of_campaigns = read.iter().find_map(|(_, more)| Some((more.beyond_a_node()?, &more.span)));
        if let Some((field, span)) = of_campaigns {
            let what = "is for campaigns (docs/campaign-format.md): a node starts what its catalogue has. Remove it".to_string();
            return Err(wrong(span, &format!("service.{field}"), what));
        }
        let services: Vec<NodeService> = read.into_iter().map(|(service, _)| service).collect();
        let lends = Self::lends(file, text, raw.lend, &services)?;
        let pods = match raw.pods {
            None => None,
            Some(p) => {
                let source = if p.source.get_ref().contains("://") {
                    Source::Page(Url::parse(p.source.get_ref()).map_err(|e| wrong(&p.source.span(), "pods.source", e))?)
                } else {
                    Source::File(here(p.source.get_ref().into()))
                };
                let below = p.below.as_ref().map_or("/", |b| b.get_ref().as_str());
                if let Some(b) = p.below.as_ref().filter(|b| !b.get_ref().starts_with('/') || b.get_ref().contains("..")) {
                    let what = format!("is {:?}. Write the kubelet's --cgroup-root, e.g. \"/kubelet\"", b.get_ref());
                    return Err(wrong(&b.span(), "pods.below", what));
                }
                let every_s = whole("pods.every_s", p.every_s, 5, 1..3601)? as u64;
                Some(PodsConfig { source, every_s, below: below.into(), condition: p.condition.map(here) })
            }
        };
        let actuator = match raw.actuator {
            None => None,
            Some(a) => {
                let pattern = |p: Spanned<String>| Pattern::parse(p.get_ref()).map_err(|e| wrong(&p.span(), "actuator.cgroups", e));
                Some(ActuatorConfig {
                    socket: here(a.socket.unwrap_or_else(|| actuator::SOCKET.into())),
                    user: a.user.unwrap_or_else(|| ACTUATOR_USER.into()),
                    cgroups: a.cgroups.into_iter().map(pattern).collect::<Result<_>>()?,
                    state_dir: here(a.state_dir.unwrap_or_else(|| ACTUATOR_STATE.into())),
                })
            }
        };
        let learning = {
            let (raw, default) = (raw.learning.unwrap_or_default(), LearningConfig::default());
            LearningConfig {
                on: raw.on.unwrap_or(default.on),
                every_ms: whole("learning.every_ms", raw.every_ms, default.every_ms as i64, whole_numbers(&LEARN_EVERY_MS))? as u64,
                experience: raw.experience.map(here),
                save_every_s: whole("learning.save_every_s", raw.save_every_s, default.save_every_s as i64, 10..86_401)? as u64,
            }
        };
        let mut settings = Settings::default();
        let raw_settings = raw.policy.unwrap_or_default().settings;
        let mut set = |name: &str, numbers: &[f64]| settings.assign(name, numbers);
        raw_settings.assign("", &mut set, &mut BTreeSet::new()).map_err(|(span, e)| wrong(&span, "policy.settings", e))?;
        let upper = {
            let (raw, default) = (raw.upper.unwrap_or_default(), UpperConfig::default());
            let (on, asks) = (raw.on.unwrap_or(default.on), raw.ask.unwrap_or(false));
            if asks && !on {
                return Err(Error::BadInput(format!(
                    "{}: upper.ask: there is no socket to ask on. Remove it, or on = false",
                    file.display()
                )));
            }
            if let (false, Some(span)) = (asks, raw.answer_ms.as_ref().map(Spanned::span).or(raw.unanswered.as_ref().map(Spanned::span))) {
                return Err(wrong(&span, "upper.ask", "is not true, so nothing is asked. Write ask = true, or remove this line".into()));
            }
            let answer_ms = whole("upper.answer_ms", raw.answer_ms, ANSWER_MS as i64, 10..60_001)? as u64;
            let unanswered = match raw.unanswered {
                None => true,
                Some(s) => match s.get_ref().as_str() {
                    "allow" => true,
                    "deny" => false,
                    other => return Err(wrong(&s.span(), "upper.unanswered", format!("is \"{other}\". Write \"allow\" or \"deny\""))),
                },
            };
            UpperConfig {
                on,
                ask: asks.then_some(AskConfig { answer_ms, unanswered }),
                socket: raw.socket.map(here),
                mode: mode("upper.mode", raw.mode, default.mode)?,
                group: raw.group,
            }
        };
        Ok(NodeConfig {
            file: file.into(),
            workload: raw.workload.map(here),
            realtime: raw.realtime.unwrap_or(true),
            state_dir: raw.state_dir.map(here),
            catalogue: raw.catalogue.map(here),
            cpus,
            partitions: raw.partitions.unwrap_or(false),
            sched_ext: raw.sched_ext.unwrap_or(false),
            working_set: raw.working_set.unwrap_or(true),
            resctrl: raw.resctrl.map(here),
            mem_bw_mbps,
            metrics_port: (port > 0).then_some(port),
            metrics_address,
            journal: raw.journal.map(here),
            journal_most_bytes: (whole("journal_mb", raw.journal_mb, JOURNAL_MB as i64, 1..1025)? as u64) << 20,
            interval_ms: whole("interval_ms", raw.interval_ms, 100, whole_numbers(&INTERVAL_MS))? as u64,
            seed: whole("seed", raw.seed, 1, 0..i64::MAX)? as u64,
            feed_mode,
            feed_group: raw.feed_group,
            actuator,
            learning,
            settings,
            upper,
            services,
            pods,
            lends,
        })
    }

    /// What `[[lend]]` entries say.
    fn lends(file: &Path, text: &str, raw: Vec<Spanned<RawLend>>, services: &[NodeService]) -> Result<Vec<Lend>> {
        let mut lends: Vec<Lend> = vec![];
        for entry in raw {
            let at = entry.span();
            let l = entry.into_inner();
            let wrong = |span: &Range<usize>, field: &str, what: String| {
                Err(Error::BadInput(format!("{}: lend.{field}: {what}", place(file, text, span))))
            };
            for (field, id) in [("lender", &l.lender), ("borrower", &l.borrower)] {
                if !services.iter().any(|s| s.id == *id) {
                    let near = names::nearest(id, services.iter().map(|s| s.id.as_str()));
                    let near = near.map_or(String::new(), |n| format!(" Did you mean \"{n}\"?"));
                    return wrong(&at, field, format!("no [[service]] has the id \"{id}\".{near} Name one that has"));
                }
            }
            let (lender, borrower) = (&l.lender, &l.borrower);
            if lender == borrower {
                return wrong(&at, "borrower", format!("\"{lender}\" cannot lend to itself. Name a BE job"));
            }
            if services.iter().any(|s| s.id == *borrower && matches!(s.how, How::Adopt { kind: Kind::Lc { .. }, .. })) {
                return wrong(
                    &at,
                    "borrower",
                    format!("\"{borrower}\" is an LC service, which could not do without what it gives back. Name a BE job"),
                );
            }
            if lends.iter().any(|o| o.lender == *lender) {
                return wrong(&at, "lender", format!("\"{lender}\" lends already. Give each lender one [[lend]]"));
            }
            if lends.iter().any(|o| o.lender == *borrower || o.borrower == *lender) {
                let what = format!("\"{lender}\" to \"{borrower}\": a service lends or borrows, not both. Remove one [[lend]] of it");
                return wrong(&at, "lender", what);
            }
            let poll_ms = match &l.poll_ms {
                None => POLL_DEFAULT_MS,
                Some(p) if POLL_MS.contains(p.get_ref()) => *p.get_ref(),
                Some(p) => {
                    let (least, most) = (POLL_MS.start(), POLL_MS.end());
                    let what = format!("{} is out of range. Give {least} to {most}", p.get_ref());
                    return wrong(&p.span(), "poll_ms", what);
                }
            };
            let mut settings = surefoot_harvest::Settings::default();
            settings.window.poll_us = (poll_ms * 1000.0).round() as u64;
            settings.caladan.poll_us = settings.window.poll_us;
            let mut set = |name: &str, numbers: &[f64]| {
                let full = settings.assign(name, numbers)?;
                if full.ends_with(".poll_us") {
                    return Err(format!("{full}: poll_ms says it here. Remove it"));
                }
                Ok(full)
            };
            if let Err((span, e)) = l.settings.assign("", &mut set, &mut BTreeSet::new()) {
                return wrong(&span, "settings", e);
            }
            let policy = l.policy.unwrap_or_else(|| LEND_POLICY.into());
            if let Err(e) = Harvester::named(&policy, 2, 1, &settings) {
                return wrong(&at, "policy", e);
            }
            if poll_ms * 2.0 > settings.window.length_ms {
                let what = format!(
                    "a window of {} ms has less than two looks of {poll_ms} ms. Give poll_ms at most half of window.length_ms",
                    settings.window.length_ms
                );
                return wrong(&at, "poll_ms", what);
            }
            lends.push(Lend { lender: l.lender, borrower: l.borrower, policy, poll_ms, settings });
        }
        Ok(lends)
    }

    /// What `[[service]]` entries say: the one reading of them.
    ///
    /// # Errors
    /// See [`NodeConfig::read`].
    pub fn services(file: &Path, text: &str, raw: Vec<Spanned<RawService>>) -> Result<Vec<(NodeService, ForCampaign)>> {
        let wrong =
            |span: &Range<usize>, field: &str, what: String| Error::BadInput(format!("{}: {field}: {what}", place(file, text, span)));
        let mut services = vec![];
        let mut ids = BTreeSet::new();
        let mut ports = BTreeMap::new();
        for entry in raw {
            let span = entry.span();
            let s = entry.into_inner();
            let id = s.id.clone().unwrap_or_else(|| s.service.clone());
            // Without an id of its own it is the service's name that has to be one.
            if let Err(e) = surefoot_linux::local::check_id_form(&id) {
                return Err(wrong(&span, if s.id.is_some() { "service.id" } else { "service.service" }, e));
            }
            if !ids.insert(id.clone()) {
                return Err(wrong(&span, "service.id", format!("\"{id}\" stands there twice. Give each service its own id")));
            }
            let threads = match s.threads {
                Some(t) if !(1..=1024).contains(&t) => {
                    return Err(wrong(&span, "service.threads", format!("{t} is out of range. Give 1 to 1024")));
                }
                t => t.map(|t| t as u32),
            };
            if let Some(Err(e)) = s.unit.as_deref().map(surefoot_linux::unit::check_name) {
                return Err(wrong(&span, "service.unit", e));
            }
            let targets =
                [s.container.map(Target::Container), s.cgroup.map(Target::Cgroup), s.unit.map(Target::Unit), s.pid.map(Target::Pid)];
            let targets: Vec<Target> = targets.into_iter().flatten().collect();
            let kind = match (s.kind.as_deref(), s.qos_target_ms) {
                (Some("lc"), Some(t)) if t > 0.0 && t.is_finite() => Some(Kind::Lc { qos_target_ms: t }),
                (Some("lc"), _) => {
                    return Err(wrong(&span, "service.qos_target_ms", "is missing or not above 0. Give the p99 target in ms".into()))
                }
                (Some("be"), None) => Some(Kind::Be),
                (Some("be"), Some(_)) => return Err(wrong(&span, "service.qos_target_ms", "a BE job has none. Remove it".into())),
                (None, None) => None,
                (None, Some(_)) => return Err(wrong(&span, "service.kind", "is missing. Write kind = \"lc\"".into())),
                (Some(k), _) => return Err(wrong(&span, "service.kind", format!("is \"{k}\". Write \"lc\" or \"be\""))),
            };
            let how = match (targets.len() + usize::from(s.command.is_some()), kind) {
                (0, None) => {
                    if let Some((p, other)) = s.port.and_then(|p| Some((p, ports.insert(p, id.clone())?))) {
                        let what = format!("{p} of \"{id}\" is that of \"{other}\" too. Give each service its own port");
                        return Err(wrong(&span, "service.port", what));
                    }
                    How::Launch { port: s.port }
                }
                (0, Some(_)) => {
                    let what =
                        "goes with a service that runs already. Name its container, cgroup, unit or pid, or leave kind out".to_string();
                    return Err(wrong(&span, "service.kind", what));
                }
                (1, Some(kind)) => match targets.into_iter().next() {
                    Some(target) => How::Adopt { kind, target },
                    None => How::Launch { port: s.port },
                },
                (1, None) => {
                    return Err(wrong(&span, "service.kind", "is missing. Write kind = \"lc\" with qos_target_ms, or \"be\"".into()))
                }
                _ => {
                    return Err(wrong(&span, "service", "names more than one of container, cgroup, unit, pid and command. Keep one".into()))
                }
            };
            let prometheus = match s.prometheus.map(RawPrometheus::checked).transpose() {
                Ok(Some(_)) if matches!(how, How::Adopt { kind: Kind::Be, .. }) => {
                    return Err(wrong(&span, "service.prometheus", "a BE job has no latency to judge. Remove it".into()))
                }
                Ok(p) => p,
                Err((field, what)) => return Err(wrong(&span, &format!("service.prometheus.{field}"), what)),
            };
            let feed = match s.feed.map(RawFeed::checked).transpose() {
                Ok(Some(_)) if matches!(how, How::Adopt { kind: Kind::Be, .. }) => {
                    return Err(wrong(&span, "service.feed", "a BE job has no latency to send. Remove it".into()))
                }
                Ok(Some(_)) if prometheus.is_some() => {
                    return Err(wrong(&span, "service.feed", "its histogram is scraped. Remove feed, or prometheus".into()))
                }
                Ok(f) => f.unwrap_or_default(),
                Err((field, what)) => return Err(wrong(&span, &format!("service.feed.{field}"), what)),
            };
            let more = ForCampaign {
                span,
                kind,
                command: s.command,
                port: s.port,
                restart: s.restart,
                loadgen: s.loadgen,
                rps_levels: s.rps_levels,
                max_load_rps: s.max_load_rps,
            };
            services.push((NodeService { id, service: s.service, threads, how, prometheus, feed }, more));
        }
        Ok(services)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metrics are on this machine alone where nothing else is said; an address that is none is refused, with its line.
    #[test]
    fn metrics_are_where_they_are_said_to_be() {
        let at = |text: &str| NodeConfig::parse(Path::new("node.toml"), text).map(|c| c.metrics_at().map(|a| a.to_string()));
        assert_eq!(at("").unwrap().as_deref(), Some("127.0.0.1:19464"));
        assert_eq!(at("metrics_address = \"0.0.0.0\"\nmetrics_port = 9000").unwrap().as_deref(), Some("0.0.0.0:9000"));
        assert_eq!(at("metrics_address = \"::1\"").unwrap().as_deref(), Some("[::1]:19464"));
        assert_eq!(at("metrics_address = \"::1\"\nmetrics_port = 0").unwrap(), None);
        let wrong = at("\nmetrics_address = \"localhost\"").unwrap_err().to_string();
        assert!(wrong.contains(":2:") && wrong.contains("\"localhost\" is no IP address"), "{wrong}");
    }

    /// The actuator's table has a default for every field, and a pattern that is none is found while reading.
    #[test]
    fn the_actuator_has_a_table() {
        let node = |text: &str| NodeConfig::parse(Path::new("/etc/surefoot/node.toml"), text);
        assert_eq!(node("").unwrap().actuator, None);
        let a = node("[actuator]\n").unwrap().actuator.unwrap();
        assert_eq!((a.socket, a.user.as_str(), a.cgroups.len()), (actuator::SOCKET.into(), "surefoot", 0));
        let a = node("[actuator]\nsocket = \"a.sock\"\ncgroups = [\"/docker/*\"]\n").unwrap().actuator.unwrap();
        assert_eq!((a.socket, a.cgroups[0].to_string().as_str()), ("/etc/surefoot/a.sock".into(), "/docker/*"));
        let said = node("[actuator]\ncgroups = [\n\"docker\"]\n").unwrap_err().to_string();
        assert!(said.contains("node.toml:3") && said.contains("actuator.cgroups: \"docker\" does not begin with /"), "{said}");
    }

    /// Settings of a policy stand under their dotted names, or in tables of their groups; what is wrong is said with line, name and bounds.
    #[test]
    fn settings_of_a_policy_have_a_table() {
        let node = |text: &str| NodeConfig::parse(Path::new("/etc/surefoot/node.toml"), text);
        assert_eq!(node("").unwrap().settings, Settings::default());
        let dotted = node("[policy.settings]\nsurefoot.prices.move = 0.06\nsurefoot.margin = 1\nsurefoot.offers.step_qos = 0.1\n");
        let tables =
            node("[policy.settings.surefoot]\nmargin = 1.0\noffers.step_qos = 0.1\n[policy.settings.surefoot.prices]\nmove = 0.06\n");
        assert_eq!(dotted.as_ref().unwrap().settings, tables.unwrap().settings);
        let changed = dotted.unwrap().settings.changed();
        assert_eq!(changed.keys().collect::<Vec<_>>(), ["surefoot.offers.step_qos", "surefoot.prices.move", "surefoot.trust.margin"]);
        for (line, said) in [
            ("surefoot.prices.mvoe = 1", "node.toml:2: policy.settings: surefoot.prices.mvoe: there is no such setting. Did you mean"),
            (
                "surefoot.busy.most = 7",
                "node.toml:2: policy.settings: surefoot.busy.most: 7 is out of its bounds. Give one number from 0.01 to 1",
            ),
            (
                "surefoot.offers.levels = [0, 0.1, 0.2]",
                "node.toml:2: policy.settings: surefoot.offers.levels: there is no such setting any more. It follows from surefoot.offers.step_qos",
            ),
            ("surefoot.margin = 0.2\nsurefoot.trust.margin = 0.3", "node.toml:3: policy.settings: surefoot.trust.margin: is set twice"),
            ("parties.step = 1", "parties.step: only cosmos, cosmos-per-service, osml-plus, senpai, socket, surefoot have settings"),
            (
                "surefoot = 1",
                "only cosmos, cosmos-per-service, osml-plus, senpai, socket, surefoot have settings of that kind. Write surefoot.GROUP.NAME",
            ),
            ("surefoot.margin = \"much\"", "expected a number, or a list of numbers"),
            ("surefoot.margin = true", "expected a number, or a list of numbers"),
        ] {
            let error = node(&format!("[policy.settings]\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains('\n'), "{line}: {error}");
        }
    }

    /// A lender and a BE job of the file, a policy that this machine can run, and numbers in their bounds; all else is said with its line.
    #[test]
    fn what_is_lent_has_a_table() {
        const SERVICES: &str = "[[service]]\nservice = \"web\"\nkind = \"lc\"\nqos_target_ms = 5.0\npid = 7\n\
             [[service]]\nservice = \"db\"\nkind = \"lc\"\nqos_target_ms = 5.0\npid = 8\n\
             [[service]]\nservice = \"batch\"\nkind = \"be\"\npid = 9\n";
        let node = |lends: &str| NodeConfig::parse(Path::new("node.toml"), &format!("{SERVICES}{lends}"));
        let entry = |lender: &str, borrower: &str, more: &str| format!("[[lend]]\nlender = {lender:?}\nborrower = {borrower:?}\n{more}\n");
        assert_eq!(node("").unwrap().lends, []);
        let l = node(&entry("web", "batch", "")).unwrap().lends.remove(0);
        assert_eq!((l.lender.as_str(), l.borrower.as_str(), l.policy.as_str(), l.poll_ms), ("web", "batch", "wait-budget", 5.0));
        assert_eq!((l.settings.window.poll_us, l.settings.window.length_ms), (5000, 25.0));
        let l = node(&entry("web", "batch", "policy = \"caladan\"\npoll_ms = 0.05")).unwrap().lends.remove(0);
        assert_eq!((l.settings.window.poll_us, l.settings.caladan.poll_us), (50, 50));
        let more = "policy = \"fixed-buffer-2\"\npoll_ms = 20\nsettings = { window.length_ms = 100, guard.aggressive = 1 }";
        let two = node(&(entry("web", "batch", more) + &entry("db", "batch", ""))).unwrap().lends;
        assert_eq!((two[0].policy.as_str(), two[0].poll_ms, two[0].settings.window.length_ms), ("fixed-buffer-2", 20.0, 100.0));
        assert_eq!((two[0].settings.guard.aggressive, two[1].lender.as_str()), (1, "db"));
        for (lends, said) in [
            (entry("wbe", "batch", ""), "lend.lender: no [[service]] has the id \"wbe\". Did you mean \"web\"?"),
            (entry("web", "jobs", ""), "lend.borrower: no [[service]] has the id \"jobs\""),
            (entry("batch", "batch", ""), "lend.borrower: \"batch\" cannot lend to itself"),
            (entry("web", "db", ""), "lend.borrower: \"db\" is an LC service"),
            (entry("web", "batch", "") + &entry("web", "batch", ""), "lend.lender: \"web\" lends already"),
            (entry("web", "batch", "policy = \"smart\""), "lend.policy: policy \"smart\" is unknown below a tick"),
            (entry("web", "batch", "poll_ms = 0"), "node.toml:18: lend.poll_ms: 0 is out of range. Give 0.01 to 100"),
            (entry("web", "batch", "poll_ms = 13"), "lend.poll_ms: a window of 25 ms has less than two looks of 13 ms"),
            (entry("web", "batch", "settings = { window.poll_us = 50 }"), "lend.settings: window.poll_us: poll_ms says it here"),
            (
                entry("web", "batch", "settings = { window.lenght_ms = 50 }"),
                "lend.settings: smartharvest.window.lenght_ms: there is no such",
            ),
            (entry("web", "batch", "settings = { learn.rate = 50 }"), "lend.settings: smartharvest.learn.rate: 50 is out of its bounds"),
            (entry("web", "batch", "until = 7"), "unknown field `until`"),
            ("[[lend]]\nlender = \"web\"\n".into(), "missing field `borrower`"),
        ] {
            let error = node(&lends).unwrap_err().to_string();
            assert!(error.starts_with("node.toml:") && error.contains(said) && !error.contains('\n'), "{lends}: {error}");
        }
        let jobs = SERVICES.to_string() + "[[service]]\nservice = \"index\"\nkind = \"be\"\npid = 10\n";
        let both = jobs + &entry("web", "batch", "") + &entry("batch", "index", "");
        let error = NodeConfig::parse(Path::new("node.toml"), &both).unwrap_err().to_string();
        assert!(error.contains("lend.lender: \"batch\" to \"index\": a service lends or borrows, not both"), "{error}");
    }

    /// Learning is on unless the file says otherwise; its file is relative to node.toml, its numbers have ranges.
    #[test]
    fn learning_has_a_table() {
        let node = |text: &str| NodeConfig::parse(Path::new("/etc/surefoot/node.toml"), text);
        assert_eq!(node("").unwrap().learning, LearningConfig::default());
        assert!(node("[learning]\n").unwrap().learning.on);
        let l = node("[learning]\non = false\nevery_ms = 1000\nexperience = \"x.safetensors\"\nsave_every_s = 60\n").unwrap().learning;
        let experience = Some(PathBuf::from("/etc/surefoot/x.safetensors"));
        assert_eq!(l, LearningConfig { on: false, every_ms: 1000, experience, save_every_s: 60 });
        for (line, field) in [("every_ms = 50", "learning.every_ms: 50"), ("save_every_s = 1", "learning.save_every_s: 1")] {
            let said = node(&format!("[learning]\n{line}\n")).unwrap_err().to_string();
            assert!(said.contains("node.toml:2") && said.contains(field) && said.contains("out of range"), "{said}");
        }
        assert!(node("[learning]\nevery_s = 1\n").unwrap_err().to_string().contains("every_s"));
    }

    /// Upper schedulers have a socket unless the file says otherwise; its path is relative to node.toml, its mode octal.
    #[test]
    fn upper_schedulers_have_a_table() {
        let node = |text: &str| NodeConfig::parse(Path::new("/etc/surefoot/node.toml"), text);
        assert_eq!(node("[upper]\n").unwrap().upper, UpperConfig { on: true, socket: None, mode: 0o660, group: None, ask: None });
        let u = node("[upper]\non = false\nsocket = \"u.sock\"\nmode = \"0600\"\ngroup = \"schedulers\"\n").unwrap().upper;
        let socket = Some(PathBuf::from("/etc/surefoot/u.sock"));
        assert_eq!(u, UpperConfig { on: false, socket, mode: 0o600, group: Some("schedulers".into()), ask: None });
        let ask = |text: &str| node(&format!("[upper]\nask = true\n{text}")).map(|n| n.upper.ask).map_err(|e| e.to_string());
        assert_eq!(ask(""), Ok(Some(AskConfig { answer_ms: 300, unanswered: true })));
        assert_eq!(ask("answer_ms = 50\nunanswered = \"deny\"\n"), Ok(Some(AskConfig { answer_ms: 50, unanswered: false })));
        for (text, says) in
            [("unanswered = \"no\"", "upper.unanswered: is \"no\""), ("answer_ms = 5", "upper.answer_ms"), ("on = false", "upper.ask")]
        {
            let said = ask(text).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
        let said = node("[upper]\nmode = \"660 \"\n").unwrap_err().to_string();
        assert!(said.contains("node.toml:2: upper.mode: is \"660 \". Write it in octal"), "{said}");
        assert!(node("[upper]\nport = 1\n").unwrap_err().to_string().contains("port"));
    }

    /// Two services on one port are found while reading: the second one would fail at its start.
    #[test]
    fn a_port_belongs_to_one_service() {
        let node = |second: u16| {
            let text = format!("[[service]]\nservice = \"a\"\nport = 7\n[[service]]\nservice = \"b\"\nport = {second}\n");
            NodeConfig::parse(Path::new("node.toml"), &text)
        };
        assert_eq!(node(8).unwrap().services.len(), 2);
        let e = node(7).unwrap_err();
        assert_eq!(e.exit_code(), 2);
        let said = e.to_string();
        assert!(said.starts_with("node.toml:4") && said.contains("service.port: 7 of \"b\" is that of \"a\" too"), "{said}");
    }

    /// A service may have a page of each of its processes; the unit is the page's own where none is given.
    #[test]
    fn a_service_may_have_several_pages() {
        let node = |url: &str| {
            let text = format!("[[service]]\nservice = \"web\"\nprometheus = {{ url = {url}, histogram = \"h\" }}\n");
            NodeConfig::parse(Path::new("node.toml"), &text)
        };
        let urls = |url: &str| -> Vec<String> {
            let p = node(url).unwrap().services[0].prometheus.clone().unwrap();
            assert_eq!(p.wanted.unit, None);
            p.urls.iter().map(|u| u.as_str().to_string()).collect()
        };
        let (a, b) = ("http://localhost:1/", "http://localhost:2/");
        assert_eq!(urls(&format!("{a:?}")), [a]);
        assert_eq!(urls(&format!("[{a:?}, {b:?}]")), [a, b]);
        let text = format!("[[service]]\nservice = \"web\"\nprometheus = {{ urls = [{a:?}, {b:?}], histogram = \"h\" }}\n");
        assert_eq!(NodeConfig::parse(Path::new("node.toml"), &text).unwrap().services[0].prometheus.as_ref().unwrap().urls.len(), 2);
        let many: Vec<String> = (1..=65).map(|port| format!("\"http://localhost:{port}/\"")).collect();
        for (url, why) in [
            ("[]".to_string(), "service.prometheus.url: has 0 URLs. Give 1 to 64"),
            (format!("[{}]", many.join(", ")), "service.prometheus.url: has 65 URLs. Give 1 to 64"),
            (format!("[{a:?}, {b:?}, {a:?}]"), "stands there twice (the second time in place 3)"),
            (format!("[{a:?}, \"http://10.0.0.1/\"]"), "not on this machine"),
            ("7".into(), "give a URL in quotes, or a list of such"),
            ("[7]".into(), "give a URL in quotes, or a list of such"),
        ] {
            let said = node(&url).unwrap_err().to_string();
            assert!(said.contains(why) && !said.trim_end().contains('\n'), "{url}: {said}");
        }
    }

    /// What to scrape is checked while reading; a wrong field is named.
    #[test]
    fn what_to_scrape_is_checked() {
        let node = |kind: &str, more: &str| {
            let text = format!(
                "feed_mode = \"0666\"\n[[service]]\nservice = \"web\"\n{kind}\npid = 7\n[service.prometheus]\nurl = \"http://localhost:9121/metrics\"\nhistogram = \"h\"\n{more}"
            );
            NodeConfig::parse(Path::new("node.toml"), &text)
        };
        let lc = "kind = \"lc\"\nqos_target_ms = 5.0";
        let good = node(lc, "unit = \"ms\"\ninterval_ms = 250\nlabels = { path = \"/x\" }").unwrap();
        let p = good.services[0].prometheus.clone().unwrap();
        assert_eq!((p.urls[0].as_str(), p.interval_ms, p.wanted.unit), ("http://localhost:9121/metrics", 250, Some(Unit::Milliseconds)));
        assert_eq!((p.wanted.labels["path"].as_str(), good.feed_mode), ("/x", 0o666));
        let says = |kind: &str, more: &str, why: &str| {
            let said = node(kind, more).unwrap_err().to_string();
            assert!(said.starts_with("node.toml:") && said.contains(why), "{said}");
        };
        says(lc, "unit = \"m\"", "service.prometheus.unit: is \"m\"");
        says(lc, "interval_ms = 1000", "service.prometheus.interval_ms: 1000 is out of range. Give 100 to 500");
        says("kind = \"be\"", "", "service.prometheus: a BE job");
        let text = "[[service]]\nservice = \"web\"\nprometheus = { url = \"http://10.0.0.1/\", histogram = \"h\" }\n";
        let said = NodeConfig::parse(Path::new("node.toml"), text).unwrap_err().to_string();
        assert!(said.contains("service.prometheus.url: ") && said.contains("not on this machine"), "{said}");
        let said = NodeConfig::parse(Path::new("node.toml"), "feed_mode = \"rw\"").unwrap_err().to_string();
        assert!(said.starts_with("node.toml:1") && said.contains("feed_mode: is \"rw\""), "{said}");
    }

    /// The senders of a service are read and checked with their fields; a mistake is found while reading.
    #[test]
    fn who_speaks_for_a_service_is_checked() {
        let node = |kind: &str, feed: &str| {
            let text = format!("[[service]]\nservice = \"web\"\n{kind}\npid = 7\n[service.feed]\n{feed}\n");
            NodeConfig::parse(Path::new("node.toml"), &text)
        };
        let lc = "kind = \"lc\"\nqos_target_ms = 5.0";
        let all = "users = [\"www\", \"7\"]\ngroups = [\"load\"]\ncgroups = [\"/a/b.service\"]\nsocket = true\nsocket_mode = \"0666\"\nsocket_group = \"g\"";
        let want = FeedConfig {
            users: vec!["www".into(), "7".into()],
            groups: vec!["load".into()],
            cgroups: vec!["/a/b.service".into()],
            anybody: false,
            socket: Some(SocketConfig { mode: 0o666, group: Some("g".into()) }),
        };
        assert_eq!(node(lc, all).unwrap().services[0].feed, want);
        assert_eq!(node(lc, "").unwrap().services[0].feed, FeedConfig::default());
        assert_eq!(node(lc, "socket = true").unwrap().services[0].feed.socket, Some(SocketConfig { mode: 0o660, group: None }));
        for (kind, feed, why) in [
            (lc, "cgroups = [\"/\"]", "service.feed.cgroups: \"/\" holds every process"),
            (lc, "cgroups = [\"a\"]", "service.feed.cgroups: is \"a\""),
            (lc, "cgroups = [\"/a/../b\"]", "service.feed.cgroups: is \"/a/../b\""),
            (lc, "socket_mode = \"0660\"", "service.feed.socket_mode: goes with a socket"),
            (lc, "socket_group = \"g\"", "service.feed.socket_group: goes with a socket"),
            (lc, "socket = true\nsocket_mode = \"rw\"", "service.feed.socket_mode: is \"rw\""),
            (lc, "user = \"x\"", "unknown field `user`"),
            ("kind = \"be\"", "anybody = true", "service.feed: a BE job"),
        ] {
            let said = node(kind, feed).unwrap_err().to_string();
            assert!(said.starts_with("node.toml:") && said.contains(why) && !said.contains('\n'), "{said}");
        }
        let both =
            "[[service]]\nservice = \"web\"\nprometheus = { url = \"http://localhost/\", histogram = \"h\" }\nfeed = { anybody = true }\n";
        let said = NodeConfig::parse(Path::new("node.toml"), both).unwrap_err().to_string();
        assert!(said.contains("service.feed: its histogram is scraped"), "{said}");
    }

    /// A systemd unit is a target like the others; one that is no service is refused with the field.
    #[test]
    fn a_service_may_be_a_unit() {
        let node = |unit: &str| {
            let text = format!("[[service]]\nservice = \"a\"\nkind = \"be\"\nunit = \"{unit}\"\n");
            NodeConfig::parse(Path::new("node.toml"), &text)
        };
        let how = node("redis.service").unwrap().services.remove(0).how;
        assert!(matches!(how, How::Adopt { target: Target::Unit(u), .. } if u == "redis.service"));
        let e = node("redis").unwrap_err();
        assert_eq!(e.exit_code(), 2);
        assert!(e.to_string().contains("service.unit: unit \"redis\"") && e.to_string().contains("redis.service"), "{e}");
    }
}
