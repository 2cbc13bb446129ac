//! campaign.toml: what to measure. The one place that reads the format (docs/campaign-format.md).

use crate::base::error::{Error, Result};
use crate::base::toml::{place, toml_error};
use crate::stage::config::{FeedConfig, ForCampaign, How, NodeConfig, NodeService, RawService};
use crate::sweep::limits::{round6, Amount, Limits};
use serde::{Deserialize, Serialize, Serializer};
use std::ops::Range;
use std::path::{Path, PathBuf};
use surefoot_io::input::{self, WRITTEN_BYTES};
use surefoot_server::CpuSet;
use toml::Spanned;

/// A parsed campaign. Values are as written; [`crate::sweep::expand`] resolves them on a platform.
#[derive(Clone, Debug, Serialize)]
pub struct Campaign {
    #[serde(skip)]
    pub file: PathBuf,
    /// For messages only: where each field stands.
    #[serde(skip)]
    text: String,
    pub name: String,
    pub strategy: Strategy,
    pub seed: u64,
    pub targets: Targets,
    pub sweep: Sweep,
    pub sampling: Sampling,
    #[serde(rename = "loadgen", skip_serializing_if = "Generator::is_default")]
    pub generator: Generator,
    /// For [`Strategy::Random`] only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random: Option<Draw>,
    /// Services that the campaign itself names, in place of the catalogue's; none: the catalogue's.
    #[serde(rename = "service", skip_serializing_if = "Vec::is_empty", serialize_with = "as_written")]
    pub services: Vec<Service>,
}

/// A service that a campaign names, as node.toml would.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    pub node: NodeService,
    pub more: ForCampaign,
}

impl Service {
    /// What decides the results.
    pub fn canonical(&self) -> serde_json::Value {
        let (n, m) = (&self.node, &self.more);
        let (target, kind) = match &n.how {
            How::Adopt { target, kind } => (Some(target), Some(*kind)),
            How::Launch { .. } => (None, m.kind),
        };
        let mut all = serde_json::json!({
            "id": n.id, "service": n.service, "threads": n.threads, "target": target, "command": m.command, "port": m.port,
            "kind": kind.map(|k| format!("{k:?}")), "loadgen": m.loadgen, "rps_levels": m.rps_levels, "max_load_rps": m.max_load_rps,
        });
        // Only where it is said: a campaign that was begun before there was such a field is the same.
        if let Some(all) = all.as_object_mut().filter(|_| m.restart) {
            all.insert("restart".into(), true.into());
        }
        all
    }

    /// What it is, in messages: "kv (pid 7)".
    pub fn said(&self) -> String {
        let what = match (&self.node.how, &self.more.command) {
            (How::Adopt { target, .. }, _) => target.to_string(),
            (How::Launch { .. }, Some(command)) => format!("command {}", command.join(" ")),
            (How::Launch { .. }, None) => "of the catalogue".into(),
        };
        format!("\"{}\" ({what})", self.node.id)
    }

    /// Whether its number of threads is the sweep's to choose.
    fn threads_can_be_chosen(&self) -> bool {
        let filled_in = |command: &Vec<String>| command.iter().any(|a| a.contains("{threads}"));
        matches!(self.node.how, How::Launch { .. }) && self.node.threads.is_none() && self.more.command.as_ref().is_none_or(filled_in)
    }
}

fn as_written<S: Serializer>(services: &[Service], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(services.iter().map(Service::canonical))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Every cell.
    Exhaustive,
    /// The cells that decide the labels ([`crate::sweep`], `surefoot-search`).
    Frontier,
    /// Cells drawn at random, each once.
    Random,
}

/// How many cells are drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Draw {
    Cells(u64),
    /// Of all cells, above 0 to 1.
    Share(f64),
}

impl Strategy {
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::Exhaustive => "exhaustive",
            Strategy::Frontier => "frontier",
            Strategy::Random => "random",
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [targets]")]
pub struct Targets {
    #[serde(rename = "virtual", default)]
    pub virtual_: Vec<String>,
    #[serde(default)]
    pub hosts: Option<String>,
    /// What the hosts measure: None is "local".
    #[serde(default)]
    pub server: Option<String>,
    #[serde(default)]
    pub local: bool,
}

/// One axis of the sweep, as written.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Axis {
    /// "all", "cores", "catalogue" or a range "a..b" / "a..b step s", of RPS also "a%..b%" / "a%..b% step s%" and "saturation:a,b".
    Text(String),
    List(Vec<f64>),
}

#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    /// None = every service that the target knows ("all").
    pub services: Option<Vec<String>>,
    pub rps: Axis,
    pub threads: Axis,
    pub cores: Axis,
    pub ways: Axis,
    pub mba_pct: Axis,
    /// Limits on the memory of the measured service; None: none is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Limits>,
    /// The part of such a limit that may hold compressed pages; None: what the target does without being told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Limits>,
    pub neighbours: Neighbours,
    #[serde(skip)]
    spans: Spans,
}

#[derive(Clone, Debug, Default)]
struct Spans(Vec<(&'static str, Range<usize>)>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [neighbours]")]
pub struct Neighbours {
    pub count: Vec<u32>,
    #[serde(default = "one")]
    pub draws: u32,
    /// BE jobs that may be drawn, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
}

fn one() -> u32 {
    1
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sampling {
    pub warmup_ms: u64,
    pub interval_ms: u64,
    pub samples: u32,
    pub repeats: u32,
}

/// How the load generators of a campaign run, whatever they load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Generator {
    /// None: the CPUs that the campaign does not manage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Sending threads of each surefoot-loadgen; None: one, or what its entry says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

impl Generator {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

// What the file may hold; everything else is an error.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: Spanned<String>,
    #[serde(default)]
    strategy: Option<Strategy>,
    #[serde(default)]
    seed: Option<Spanned<i64>>,
    #[serde(default)]
    targets: Targets,
    sweep: RawSweep,
    #[serde(default)]
    sampling: RawSampling,
    #[serde(default)]
    loadgen: Option<Spanned<RawLoadgen>>,
    #[serde(default)]
    random: Option<Spanned<RawRandom>>,
    #[serde(default)]
    service: Vec<Spanned<RawService>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [loadgen]")]
struct RawLoadgen {
    cpus: Option<Spanned<String>>,
    threads: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [random]")]
struct RawRandom {
    cells: Option<u64>,
    share: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [sweep]")]
struct RawSweep {
    services: Spanned<RawServices>,
    #[serde(default)]
    rps: Option<Spanned<RawAxis>>,
    #[serde(default)]
    threads: Option<Spanned<RawAxis>>,
    #[serde(default)]
    cores: Option<Spanned<RawAxis>>,
    #[serde(default)]
    ways: Option<Spanned<RawAxis>>,
    #[serde(default)]
    mba_pct: Option<Spanned<RawAxis>>,
    #[serde(default)]
    memory: Option<Spanned<Limits>>,
    #[serde(default)]
    pool: Option<Spanned<Limits>>,
    #[serde(default)]
    neighbours: Option<Spanned<Neighbours>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "give a list of service names, or \"all\"")]
enum RawServices {
    All(String),
    List(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "give a number, a list of numbers, a range such as \"1..36\" or a word such as \"all\"")]
enum RawAxis {
    Number(f64),
    Text(String),
    List(Vec<f64>),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [sampling]")]
struct RawSampling {
    warmup_ms: Option<Spanned<i64>>,
    interval_ms: Option<Spanned<i64>>,
    samples: Option<Spanned<i64>>,
    repeats: Option<Spanned<i64>>,
}

impl Campaign {
    /// # Errors
    /// [`Error::BadInput`] names file, line, field and remedy.
    pub fn read(file: &Path) -> Result<Self> {
        let text = input::text(file, WRITTEN_BYTES).map_err(|e| Error::unreadable(file, "a campaign.toml", &e))?;
        Self::parse(file, &text)
    }

    /// `file` is for messages only.
    ///
    /// # Errors
    /// See [`Campaign::read`].
    pub fn parse(file: &Path, text: &str) -> Result<Self> {
        let raw: Raw = toml::from_str(text).map_err(|e| toml_error(file, text, &e, "docs/campaign-format.md lists every field"))?;
        let at = |field: &'static str, span: Range<usize>, what: String| {
            Error::BadInput(format!("{}: {field}: {what}", place(file, text, &span)))
        };
        let name = raw.name.get_ref().clone();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return Err(at("name", raw.name.span(), format!("{name:?} is no name. Use letters, digits, - _ and . only")));
        }
        let whole = |field: &'static str, v: Option<Spanned<i64>>, default: i64, range: Range<i64>| match v {
            None => Ok(default),
            Some(s) if range.contains(s.get_ref()) => Ok(*s.get_ref()),
            Some(s) => {
                let what = format!("{} is out of range. Give a whole number from {} to {}", s.get_ref(), range.start, range.end - 1);
                Err(at(field, s.span(), what))
            }
        };
        let seed = whole("seed", raw.seed, 1, 0..i64::MAX)? as u64;
        let hour = 3_600_000;
        let sampling = Sampling {
            warmup_ms: whole("sampling.warmup_ms", raw.sampling.warmup_ms, 2000, 0..hour + 1)? as u64,
            interval_ms: whole("sampling.interval_ms", raw.sampling.interval_ms, 100, 10..hour + 1)? as u64,
            samples: whole("sampling.samples", raw.sampling.samples, 30, 1..100_001)? as u32,
            repeats: whole("sampling.repeats", raw.sampling.repeats, 1, 1..10_001)? as u32,
        };
        let s = raw.sweep;
        let mut spans = vec![("sweep.services", s.services.span())];
        let services = match s.services.into_inner() {
            RawServices::All(w) if w == "all" => None,
            RawServices::All(w) => {
                return Err(at("sweep.services", spans[0].1.clone(), format!("{w:?} is no list. Write [{w:?}], or \"all\"")));
            }
            RawServices::List(l) if l.is_empty() => {
                return Err(at("sweep.services", spans[0].1.clone(), "is empty. Name at least one service, or write \"all\"".into()));
            }
            RawServices::List(l) => Some(l),
        };
        let mut axis = |field: &'static str, v: Option<Spanned<RawAxis>>, default: &str| -> Result<Axis> {
            let Some(v) = v else { return Ok(Axis::Text(default.into())) };
            let span = v.span();
            spans.push((field, span.clone()));
            let list = match v.into_inner() {
                RawAxis::Text(t) => return Ok(Axis::Text(t)),
                RawAxis::Number(x) => vec![x],
                RawAxis::List(l) => l,
            };
            if list.is_empty() {
                return Err(at(field, span, "is empty. Give at least one value".into()));
            }
            if let Some(x) = list.iter().find(|x| !x.is_finite()) {
                return Err(at(field, span, format!("{x} is no number. Give finite numbers")));
            }
            Ok(Axis::List(list))
        };
        let rps_span = s.rps.as_ref().map(Spanned::span);
        let rps = axis("sweep.rps", s.rps, "catalogue")?;
        rps.saturation().map_err(|what| at("sweep.rps", rps_span.unwrap_or_default(), what))?;
        let threads = axis("sweep.threads", s.threads, "cores")?;
        let cores = axis("sweep.cores", s.cores, "all")?;
        let ways = axis("sweep.ways", s.ways, "all")?;
        let mba_pct = match axis("sweep.mba_pct", s.mba_pct, "")? {
            Axis::Text(t) if t.is_empty() => Axis::List(vec![100.0]),
            other => other,
        };
        let mut limits = |field: &'static str, v: Option<Spanned<Limits>>| -> Result<Option<Limits>> {
            let Some(v) = v else { return Ok(None) };
            let span = v.span();
            let limits = v.into_inner();
            spans.push((field, span.clone()));
            limits.values().map_err(|what| at(field, span, what))?;
            Ok(Some(limits))
        };
        let pool_span = s.pool.as_ref().map(Spanned::span);
        let memory = limits("sweep.memory", s.memory)?;
        let pool = limits("sweep.pool", s.pool)?;
        if let Some(span) = pool_span.filter(|_| memory.is_none()) {
            let what = "is a part of a limit on memory, and there is none. Add memory = \"60%..120% step 10%\", or remove it";
            return Err(at("sweep.pool", span, what.into()));
        }
        let neighbours = match s.neighbours {
            None => Neighbours { count: vec![0], draws: 1, jobs: vec![] },
            Some(n) => {
                let span = n.span();
                let n = n.into_inner();
                if n.count.is_empty() {
                    return Err(at("sweep.neighbours.count", span, "is empty. Give at least one count, e.g. [0, 1]".into()));
                }
                if let Some(c) = n.count.iter().find(|c| **c > 16) {
                    return Err(at("sweep.neighbours.count", span, format!("{c} is too many. Give 0 to 16")));
                }
                if n.draws == 0 || n.draws > 10_000 {
                    return Err(at("sweep.neighbours.draws", span, format!("{} is out of range. Give 1 to 10000", n.draws)));
                }
                spans.push(("sweep.neighbours", span));
                n
            }
        };
        let strategy = raw.strategy.unwrap_or(Strategy::Exhaustive);
        let random = match (strategy, raw.random) {
            (Strategy::Random, Some(r)) => {
                let span = r.span();
                let draw = match (r.get_ref().cells, r.get_ref().share) {
                    (Some(n), None) if n > 0 => Some(Draw::Cells(n)),
                    (None, Some(x)) if x > 0.0 && x <= 1.0 => Some(Draw::Share(x)),
                    _ => None,
                };
                let what = "says not how much to draw. Give either cells = 5000, or share = 0.05 (above 0, at most 1)";
                Some(draw.ok_or_else(|| at("random", span, what.into()))?)
            }
            (Strategy::Random, None) => {
                let name = file.display();
                return Err(Error::BadInput(format!(
                    "{name}: random: is missing. With strategy = \"random\", add [random] with cells = 5000, or share = 0.05"
                )));
            }
            (_, Some(r)) => {
                let what = "is for strategy = \"random\" only. Remove it, or change the strategy";
                return Err(at("random", r.span(), what.into()));
            }
            (_, None) => None,
        };
        let generator = match raw.loadgen {
            None => Generator::default(),
            Some(l) if !raw.targets.local && raw.targets.hosts.is_none() => {
                let what = "a virtual server has no load generator. Remove it, or give targets local = true or hosts";
                return Err(at("loadgen", l.span(), what.into()));
            }
            Some(l) => {
                let l = l.into_inner();
                let cpus = l.cpus.map(|c| {
                    spans.push(("loadgen.cpus", c.span()));
                    let wrong = |what| at("loadgen.cpus", c.span(), format!("{what}. Write a list of CPUs such as \"2-3\" or \"1,3\""));
                    match CpuSet::parse(c.get_ref()) {
                        Ok(set) if set.is_empty() => Err(wrong("names no CPU".into())),
                        other => other.map_err(wrong),
                    }
                });
                if let Some(t) = &l.threads {
                    spans.push(("loadgen.threads", t.span()));
                }
                let threads = l.threads.map(|t| whole("loadgen.threads", Some(t), 1, 1..257)).transpose()?;
                Generator { cpus: cpus.transpose()?, threads: threads.map(|t| t as u32) }
            }
        };
        let t = &raw.targets;
        if t.virtual_.is_empty() && t.hosts.is_none() && !t.local {
            let name = file.display();
            return Err(Error::BadInput(format!(
                "{name}: targets: none is named. Add [targets] with virtual = [\"server-1\"], local = true, or hosts = \"group\""
            )));
        }
        if let Some(server) = &t.server {
            let wrong = |what: &str| Err(Error::BadInput(format!("{}: targets.server: {what}", file.display())));
            if t.hosts.is_none() {
                return wrong("is what the hosts measure, and there is no targets.hosts. Add hosts = \"group\", or remove it");
            }
            if server != "local" && server.strip_prefix("virtual:").is_none_or(str::is_empty) {
                return wrong(&format!("{server:?} is no server. Write \"local\" or \"virtual:PLATFORM\""));
            }
        }
        let named = NodeConfig::services(file, text, raw.service)?;
        let named: Vec<Service> = named.into_iter().map(|(node, more)| Service { node, more }).collect();
        check_services(&named, &raw.targets).map_err(|(span, field, what)| at(field, span, what))?;
        Ok(Campaign {
            services: named,
            file: file.into(),
            text: text.into(),
            name,
            strategy,
            seed,
            targets: raw.targets,
            sweep: Sweep { services, rps, threads, cores, ways, mba_pct, memory, pool, neighbours, spans: Spans(spans) },
            sampling,
            generator,
            random,
        })
    }

    /// An error about one field: file, line, field, what and remedy.
    pub fn wrong(&self, field: &str, what: impl std::fmt::Display) -> Error {
        let span = self.sweep.spans.0.iter().find(|(f, _)| *f == field).map(|(_, s)| s.clone());
        let at = match span {
            Some(s) => place(&self.file, &self.text, &s),
            None => self.file.display().to_string(),
        };
        Error::BadInput(format!("{at}: {field}: {what}"))
    }

    /// As [`Campaign::wrong`], about a field of a service that the campaign names.
    pub fn wrong_of(&self, service: &Service, field: &str, what: impl std::fmt::Display) -> Error {
        Error::BadInput(format!("{}: {field}: {what}", place(&self.file, &self.text, &service.more.span)))
    }

    /// The service of this name that the campaign itself names.
    pub fn service(&self, id: &str) -> Option<&Service> {
        self.services.iter().find(|s| s.node.id == id)
    }

    /// Threads of a service that cannot be chosen; None where they are the sweep's to choose.
    ///
    /// # Errors
    /// [`Error::BadInput`] where the sweep asks for others, or nobody says how many there are.
    pub fn fixed_threads(&self, id: &str) -> Result<Option<u32>> {
        let Some(s) = self.service(id).filter(|s| !s.threads_can_be_chosen()) else { return Ok(None) };
        let why = match &s.node.how {
            How::Adopt { .. } => "it runs already",
            How::Launch { .. } if s.node.threads.is_some() => "its [[service]] names them",
            How::Launch { .. } => "its command has no {threads}",
        };
        let cannot = |what: String| {
            let said = s.said();
            Err(self.wrong("sweep.threads", format!("{what} of {said} cannot be set: {why}")))
        };
        let asked = match (&self.sweep.threads, s.node.threads) {
            (Axis::Text(_), Some(known)) if !self.sweep.spans.0.iter().any(|(f, _)| *f == "sweep.threads") => return Ok(Some(known)),
            (Axis::Text(_), None) if !self.sweep.spans.0.iter().any(|(f, _)| *f == "sweep.threads") => {
                let what = format!("is missing: {why}, so how many {} has is to be told. Write threads = N", s.said());
                return Err(self.wrong_of(s, "service.threads", what));
            }
            (Axis::Text(t), known) => {
                let known = known.map_or("its number".to_string(), |k| k.to_string());
                return cannot(format!("\"{t}\"")).map_err(|e| with_remedy(&e, &format!("Leave threads out, or write {known}")));
            }
            (Axis::List(l), known) => (l, known),
        };
        match asked {
            (l, Some(known)) if l.as_slice() == [f64::from(known)] => Ok(Some(known)),
            (l, None) if l.len() == 1 && l[0].fract() == 0.0 && (1.0..=1024.0).contains(&l[0]) => Ok(Some(l[0] as u32)),
            (l, known) => {
                let all: Vec<String> = l.iter().map(f64::to_string).collect();
                let remedy = known.map_or("Write the one number that it has".to_string(), |k| format!("Leave threads out, or write {k}"));
                cannot(all.join(", ")).map_err(|e| with_remedy(&e, &remedy))
            }
        }
    }

    /// Whether its loads are per cent of max loads that are measured on the target.
    pub fn finds_loads(&self) -> bool {
        self.sweep.rps.saturation().is_ok_and(|loads| loads.is_some())
    }

    /// Limits on memory and, within each, on the pool, as written; one pair without any where the campaign has no such axis.
    ///
    /// # Errors
    /// [`Error::BadInput`].
    pub fn memory_settings(&self) -> Result<Vec<(Amount, Amount)>> {
        let of = |field: &str, limits: Option<&Limits>| match limits {
            Some(l) => l.values().map_err(|what| self.wrong(field, what)),
            None => Ok(vec![Amount::None]),
        };
        let pools = of("sweep.pool", self.sweep.pool.as_ref())?;
        let pairs = |limit: Amount| {
            // A pool is a part of a limit: without one nothing goes there.
            let of_it = if limit == Amount::None { &[Amount::None][..] } else { pools.as_slice() };
            of_it.iter().map(move |pool| (limit, *pool)).collect::<Vec<_>>()
        };
        Ok(of("sweep.memory", self.sweep.memory.as_ref())?.into_iter().flat_map(pairs).collect())
    }

    /// Whether its rows say what was seen of memory.
    pub fn sweeps_memory(&self) -> bool {
        self.sweep.memory.is_some()
    }

    /// What the hash is of: every field that decides what is measured, as JSON.
    pub fn canonical(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Refuse targets that the file does not name.
    ///
    /// # Errors
    /// [`Error::BadInput`].
    pub fn check_target(&self, virtual_name: Option<&str>) -> Result<()> {
        let t = &self.targets;
        match virtual_name {
            Some(name) if !t.virtual_.iter().any(|v| v == name) && t.server != Some(format!("virtual:{name}")) => {
                Err(Error::BadInput(format!(
                    "{}: targets.virtual: does not name \"{name}\" (it names {}). Add it there, or use another --server",
                    self.file.display(),
                    if t.virtual_.is_empty() { "none".to_string() } else { t.virtual_.join(", ") }
                )))
            }
            None if !t.local && (t.hosts.is_none() || t.server.as_ref().is_some_and(|s| s != "local")) => Err(Error::BadInput(format!(
                "{}: targets: local is not true and no hosts are named. Add local = true, or use --server virtual:PLATFORM",
                self.file.display()
            ))),
            _ => Ok(()),
        }
    }
}

fn with_remedy(e: &Error, remedy: &str) -> Error {
    Error::BadInput(format!("{e}. {remedy}"))
}

/// What `[[service]]` of a campaign may not say, whatever the target is: span, field, what and remedy.
fn check_services(services: &[Service], targets: &Targets) -> std::result::Result<(), (Range<usize>, &'static str, String)> {
    let mut ports = std::collections::BTreeMap::new();
    for Service { node, more } in services {
        let wrong = |field: &'static str, what: String| Err((more.span.clone(), field, what));
        let on_virtual = targets.virtual_.first().cloned().or(targets.server.clone().filter(|s| s != "local"));
        if let Some(server) = on_virtual {
            return wrong(
                "service",
                format!("the virtual server {server} knows its profiles only. Give targets local = true or hosts alone"),
            );
        }
        if node.prometheus.is_some() || node.feed != FeedConfig::default() {
            let field = if node.prometheus.is_some() { "service.prometheus" } else { "service.feed" };
            return wrong(field, "a campaign's load generator tells the latency. Remove it".into());
        }
        if more.restart && matches!(node.how, How::Adopt { .. }) {
            return wrong("service.restart", "it runs on its own and is not started here. Remove it, or give its command".into());
        }
        if let Some((port, other)) = more.port.and_then(|p| Some((p, ports.insert(p, node.id.clone())?))) {
            return wrong("service.port", format!("{port} of \"{}\" is that of \"{other}\" too. Give each service its own port", node.id));
        }
        if let Some(r) = more.rps_levels.iter().chain(&more.max_load_rps).find(|r| !(r.is_finite() && **r > 0.0)) {
            return wrong("service.rps_levels", format!("{r} is no rate (rps_levels, max_load_rps). Give requests per second above 0"));
        }
        if let Some(l) = &more.loadgen {
            l.check_run_here().map_err(|what| (more.span.clone(), "service.loadgen", what))?;
        }
        let Some(command) = &more.command else { continue };
        let program = command.first().map_or("", String::as_str);
        if program.is_empty() || program.contains('/') && !program.starts_with('/') {
            return wrong("service.command", format!("{program:?} is no program. Give an absolute path, or a name that is in PATH"));
        }
        if let Some(a) = command.iter().find(|a| a.replace("{threads}", "").replace("{port}", "").contains(['{', '}'])) {
            return wrong("service.command", format!("\"{a}\" has an unknown placeholder. Known are {{threads}} and {{port}}"));
        }
    }
    Ok(())
}

/// Values of an axis.
pub enum Values {
    /// Depends on the platform or the catalogue: "all", "cores", "catalogue".
    Word(String),
    Numbers(Vec<f64>),
}

/// Least word of a load that is found by measuring.
const SATURATION: &str = "saturation";
/// Most loads of a campaign that finds them, and the highest of them: beyond it nothing but the length of a queue is measured.
const MOST_LOADS: usize = 50;
const MOST_LOAD_PCT: f64 = 200.0;

impl Axis {
    /// "saturation:20,40" as 20, 40: per cent of the max load that is measured on the target itself. None: nothing is to be measured for it.
    ///
    /// # Errors
    /// See [`Axis::values`].
    pub fn saturation(&self) -> std::result::Result<Option<Vec<f64>>, String> {
        let Axis::Text(text) = self else { return Ok(None) };
        let Some(rest) = text.trim().strip_prefix(SATURATION) else { return Ok(None) };
        let remedy = "Write per cent of the max load that is measured here, e.g. \"saturation:20,40,60,80,100\"";
        let Some(list) = rest.trim_start().strip_prefix(':') else { return Err(format!("\"{text}\" names no loads. {remedy}")) };
        let mut found: Vec<f64> = vec![];
        for word in list.split(',').map(str::trim) {
            let pct = match word.parse::<f64>() {
                Ok(x) if x > 0.0 && x <= MOST_LOAD_PCT => x,
                Ok(_) => return Err(format!("{word} % is no load. Give more than 0 and at most {MOST_LOAD_PCT} %")),
                Err(_) => return Err(format!("\"{word}\" in \"{text}\" is no number. {remedy}")),
            };
            if found.contains(&pct) {
                return Err(format!("{pct} % stands there twice. Name each load once; use sampling.repeats to measure again"));
            }
            found.push(pct);
        }
        if found.len() > MOST_LOADS {
            return Err(format!("{} loads are too many. Give at most {MOST_LOADS}", found.len()));
        }
        Ok(Some(found))
    }

    /// "5%..100% step 5%" as 5, 10, ... 100, and "50%" as 50: per cent of something that the caller knows. None: nothing here is in per cent.
    ///
    /// # Errors
    /// See [`Axis::values`].
    pub fn per_cent(&self) -> std::result::Result<Option<Vec<f64>>, String> {
        let Axis::Text(text) = self else { return Ok(None) };
        if !text.contains('%') {
            return Ok(None);
        }
        let bad = || format!("\"{text}\" is no range of per cent. Write \"5%..100% step 5%\", or \"50%\"");
        let numbers = text.split("..").flat_map(|part| part.split("step"));
        let whole = numbers.clone().all(|n| n.trim().strip_suffix('%').is_some_and(|n| n.trim().parse::<f64>().is_ok()));
        if !whole {
            return Err(bad());
        }
        let plain = text.replace('%', "");
        let range = if text.contains("..") { plain.clone() } else { format!("{plain}..{plain}") };
        match Axis::Text(range).values(1.0, &[]).map_err(|e| if e.contains("holds") { e.replace(&plain, text) } else { bad() })? {
            Values::Numbers(l) if l.first().is_some_and(|x| *x > 0.0) => Ok(Some(l)),
            Values::Numbers(_) => Err(format!("\"{text}\" holds a load that is not above 0 %. Begin above 0%")),
            Values::Word(_) => Err(bad()),
        }
    }

    /// Ranges are inclusive: "1..36" is 36 values. `step` defaults to `unit`.
    ///
    /// # Errors
    /// What is wrong, with the remedy; the caller names file and field.
    pub fn values(&self, unit: f64, words: &[&str]) -> std::result::Result<Values, String> {
        let text = match self {
            Axis::List(l) => return Ok(Values::Numbers(l.clone())),
            Axis::Text(t) => t.trim(),
        };
        if words.contains(&text) {
            return Ok(Values::Word(text.into()));
        }
        let bad = || {
            let words: Vec<String> = words.iter().map(|w| format!("\"{w}\"")).collect();
            let or = if words.is_empty() { String::new() } else { format!(", or {}", words.join(" or ")) };
            format!("\"{text}\" is no range. Write \"1..36\", \"0.1..1.0 step 0.1\", a list{or}")
        };
        let (range, step) = match text.split_once("step") {
            Some((r, s)) => (r.trim(), s.trim().parse::<f64>().map_err(|_| bad())?),
            None => (text, unit),
        };
        let (a, b) = range.split_once("..").ok_or_else(bad)?;
        let (a, b): (f64, f64) = (a.trim().parse().map_err(|_| bad())?, b.trim().parse().map_err(|_| bad())?);
        if !(a.is_finite() && b.is_finite() && step.is_finite()) || a > b || step <= 0.0 {
            return Err(format!("\"{text}\" holds no value. Write the smaller bound first and a step above 0"));
        }
        let n = ((b - a) / step + 1e-9).floor();
        if n > 1e6 {
            return Err(format!("\"{text}\" holds more than a million values. Use a wider step"));
        }
        // Rounded: 0.1 + 2 x 0.1 must be 0.3.
        Ok(Values::Numbers((0..=n as u64).map(|i| round6(a + i as f64 * step)).collect()))
    }
}
