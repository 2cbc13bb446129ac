//! What a policy sees of a server every interval.

use crate::allocation::Allocation;
use crate::bounds::Bounds;
use crate::features::Features;
use crate::memory::MemoryView;
use crate::question::Word;
use crate::ServiceId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Latency-critical service with a QoS target on p99, or best-effort job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Kind {
    Lc { qos_target_ms: f64 },
    Be,
}

/// Whether a percentile can be believed (loadgen decides; a sample that is not valid never trains a model in silence).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    #[default]
    Valid,
    /// The load generator could not keep its schedule.
    ClientLimited,
    /// The service completed less than was offered; latency grows with the length of the run.
    ServerOverloaded,
    /// Too few requests for this percentile.
    NotResolvable,
}

impl Verdict {
    pub const ALL: [Verdict; 4] = [Verdict::Valid, Verdict::ClientLimited, Verdict::ServerOverloaded, Verdict::NotResolvable];

    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Valid => "valid",
            Verdict::ClientLimited => "client-limited",
            Verdict::ServerOverloaded => "server-overloaded",
            Verdict::NotResolvable => "not-resolvable",
        }
    }
}

/// When a load generator sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SendLoop {
    /// By a schedule, whatever the server does.
    Open,
    /// After the reply to the request before.
    Closed,
}

impl SendLoop {
    pub const ALL: [SendLoop; 2] = [SendLoop::Open, SendLoop::Closed];

    /// As it stands in samples.
    pub fn as_str(self) -> &'static str {
        match self {
            SendLoop::Open => "open",
            SendLoop::Closed => "closed",
        }
    }
}

/// Where a response time begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LatencyFrom {
    /// When the request was due.
    Intended,
    /// When it was sent.
    Actual,
    /// When the server took it up.
    Service,
}

impl LatencyFrom {
    pub const ALL: [LatencyFrom; 3] = [LatencyFrom::Intended, LatencyFrom::Actual, LatencyFrom::Service];

    /// As it stands in samples.
    pub fn as_str(self) -> &'static str {
        match self {
            LatencyFrom::Intended => "intended",
            LatencyFrom::Actual => "actual",
            LatencyFrom::Service => "service",
        }
    }
}

/// How a load is put on a service and what its latencies count from; None: not told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    pub send_loop: Option<SendLoop>,
    pub latency_from: Option<LatencyFrom>,
}

impl Sending {
    /// By schedule, and counted from it: surefoot-loadgen and the virtual servers.
    pub const OPEN: Sending = Sending { send_loop: Some(SendLoop::Open), latency_from: Some(LatencyFrom::Intended) };

    /// In the words of the samples: `loop` and `latency_from`.
    pub fn words(&self) -> (Option<&'static str>, Option<&'static str>) {
        (self.send_loop.map(SendLoop::as_str), self.latency_from.map(LatencyFrom::as_str))
    }
}

/// Response times of one window, counted from the intended send time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests completed in the window.
    pub count: u64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    /// 95 % confidence interval of p99 from order statistics, where it is finite.
    pub p99_low_ms: Option<f64>,
    pub p99_high_ms: Option<f64>,
    pub achieved_rps: f64,
    pub errors: u64,
    pub verdict: Verdict,
}

/// What in a feed speaks against its own reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// The histogram names another unit than the configuration, or two.
    Unit,
    /// Counts fall to and fro: several processes answer by turns.
    Workers,
    /// Some pages of the service are not read.
    Pages,
    /// A rate that is hundreds of times that of the minute before.
    Rate,
    /// Response times that no server has.
    Slow,
    /// Response times below what a system call takes.
    Fast,
    /// The sum of response times and their buckets cannot both be right.
    Sum,
}

impl Doubt {
    pub const ALL: [Doubt; 7] = [Doubt::Unit, Doubt::Workers, Doubt::Pages, Doubt::Rate, Doubt::Slow, Doubt::Fast, Doubt::Sum];

    pub fn as_str(self) -> &'static str {
        match self {
            Doubt::Unit => "unit",
            Doubt::Workers => "workers",
            Doubt::Pages => "pages",
            Doubt::Rate => "rate",
            Doubt::Slow => "slow",
            Doubt::Fast => "fast",
            Doubt::Sum => "sum",
        }
    }

    /// To follow "its latency is doubtful: ".
    pub fn words(self) -> &'static str {
        match self {
            Doubt::Unit => "its histogram names another unit than the configuration, or two",
            Doubt::Workers => "its counts fall to and fro, as where several processes answer by turns",
            Doubt::Pages => "some of its pages are not read",
            Doubt::Rate => "its rate is hundreds of times that of the minute before",
            Doubt::Slow => "no server takes as long as it says",
            Doubt::Fast => "no server answers as fast as it says",
            Doubt::Sum => "the sum of its response times contradicts their buckets",
        }
    }
}

/// What a service's latency feed says now. Never to be told from a missing window: that has other reasons, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum FeedState {
    /// A BE job: nothing is judged by its latency.
    NotNeeded,
    /// There is a window, and it says whether the target is met.
    Fresh,
    /// The feed speaks, and says that no request has been completed and none waits: idle, or just started.
    Idle,
    /// There is a window, but p99 is only known to lie between two bounds with the target between them.
    Coarse,
    /// Nothing has been heard for longer than [`crate::window::SILENT_MS`], or never.
    Unknown {
        /// When it was last heard, or when the service came; ms on the observation's clock.
        since_ms: u64,
        /// False for one that has not said a word since the service came.
        #[serde(default)]
        heard: bool,
    },
    /// It speaks, and something in it speaks against it: nothing that it says is believed.
    Doubtful {
        /// Since when; ms on the observation's clock.
        since_ms: u64,
        why: Doubt,
    },
}

impl FeedState {
    /// What the feed of an LC service can be.
    pub const OF_LC: [&str; 5] = ["fresh", "idle", "coarse", "unknown", "doubtful"];

    pub fn as_str(self) -> &'static str {
        match self {
            FeedState::NotNeeded => "not-needed",
            FeedState::Fresh => "fresh",
            FeedState::Idle => "idle",
            FeedState::Coarse => "coarse",
            FeedState::Unknown { .. } => "unknown",
            FeedState::Doubtful { .. } => "doubtful",
        }
    }

    /// Why it is not believed; None where it is, or is silent.
    pub fn doubt(&self) -> Option<Doubt> {
        match self {
            FeedState::Doubtful { why, .. } => Some(*why),
            _ => None,
        }
    }

    /// Of a feed that speaks.
    pub fn heard(window: Option<&Latency>) -> Self {
        if window.is_some() {
            FeedState::Fresh
        } else {
            FeedState::Idle
        }
    }
}

/// One service or job on a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceView {
    pub id: ServiceId,
    /// Catalogue or profile name ("xapian"); several ids may share it.
    pub service: String,
    pub kind: Kind,
    pub threads: u32,
    /// In force now.
    pub allocation: Allocation,
    /// False until the first plan that names it: it then holds everything, shared.
    pub placed: bool,
    pub features: Features,
    /// Whether the two below can be had, and if not, why.
    pub feed: FeedState,
    /// The last interval; None for BE jobs, for a silent feed and for an interval without completions.
    pub interval: Option<Latency>,
    /// The last second (or longer, at rates where a second has too few requests): what QoS is judged by. None where `feed` is
    /// `NotNeeded`, `Idle`, `Unknown` or `Doubtful`.
    pub window: Option<Latency>,
    /// Instructions per second, where known: the throughput of a BE job.
    pub instr_per_s: Option<f64>,
    /// What it does with memory; all unknown in files of older versions.
    #[serde(default, skip_serializing_if = "MemoryView::is_unknown")]
    pub memory: MemoryView,
}

impl ServiceView {
    pub fn is_lc(&self) -> bool {
        matches!(self.kind, Kind::Lc { .. })
    }

    pub fn qos_target_ms(&self) -> Option<f64> {
        match self.kind {
            Kind::Lc { qos_target_ms } => Some(qos_target_ms),
            Kind::Be => None,
        }
    }

    /// An LC service of which it is unknown whether it meets its target: policies take nothing away from it.
    pub fn latency_unknown(&self) -> bool {
        self.is_lc() && matches!(self.feed, FeedState::Unknown { .. } | FeedState::Doubtful { .. } | FeedState::Coarse)
    }

    /// An LC service that has not been heard since it came.
    pub fn never_heard(&self) -> bool {
        self.is_lc() && matches!(self.feed, FeedState::Unknown { heard: false, .. })
    }

    /// QoS = target / p99, above 1 when met. None for BE jobs and while latency is unknown.
    pub fn qos(&self) -> Option<f64> {
        if self.latency_unknown() {
            return None;
        }
        Some(self.qos_target_ms()? / self.window?.p99_ms.max(1e-9))
    }

    /// It meets its target, or no request comes to it: what was said about its need is over.
    pub fn at_ease(&self) -> bool {
        self.qos_met() == Some(true) || self.feed == FeedState::Idle
    }

    /// QoS met over the last second; None while unknown.
    pub fn qos_met(&self) -> Option<bool> {
        self.qos().map(|q| q >= 1.0)
    }
}

/// Everything on a server at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    pub t_ms: u64,
    pub services: Vec<ServiceView>,
    /// What the kernel, or the groups around a service, let be set of it; a service without a bound is not named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bounds: BTreeMap<ServiceId, Bounds>,
    /// What the upper scheduler has said of questions that were asked; None: it is asked nothing, and a policy does what it would ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<Word>>,
}

impl Observation {
    /// The upper scheduler has said that these two are not to share: another neighbour may.
    pub fn denied(&self, service: &str, with: &str) -> bool {
        self.words.iter().flatten().any(|w| w.service == service && w.with == with && !w.allowed)
    }

    pub fn get(&self, id: &str) -> Option<&ServiceView> {
        self.services.iter().find(|s| s.id == id)
    }

    pub fn lc(&self) -> impl Iterator<Item = &ServiceView> {
        self.services.iter().filter(|s| s.is_lc())
    }

    pub fn be(&self) -> impl Iterator<Item = &ServiceView> {
        self.services.iter().filter(|s| !s.is_lc())
    }
}
