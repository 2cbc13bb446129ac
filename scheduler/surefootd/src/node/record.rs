//! `surefootd record`: what `surefootd run` would see, written down; nothing is controlled (docs/record-and-top.md).

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::files::{each_its_own, Output, Sources};
use crate::base::say;
use crate::base::stop;
use crate::node::machine::{bring_in, local_server, Clock, Node, Purpose};
use crate::node::recorder::Recorder;
use crate::node::run::read_by;
use crate::stage::config::NodeConfig;
use crate::stage::virtual_target::VirtualTarget;
use crate::sweep::expand::{Case, Neighbour};
use crate::sweep::rows::{recording_schema, sample_properties, Columns, Row};
use parquet::arrow::ArrowWriter;
use serde_json::{json, Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use surefoot_server::window::MIN_COUNT_P99_INTERVAL;
use surefoot_server::{Observation, Sending, Server, ServiceView, Verdict, FEATURE_NAMES};

/// The column `campaign` of a recording.
const CAMPAIGN: &str = "record";
/// Rows that are held back before they are encoded.
const BATCH_ROWS: usize = 1024;
/// Rows of a row group: what is in memory at most, encoded (18 minutes of six services).
const ROW_GROUP_ROWS: usize = 65_536;

/// One service at one tick, as a sample. `id` is what its case is called.
struct Sample {
    case: Case,
    row: Row,
    feed: &'static str,
}

/// Samples of one tick. An offered RPS that is unknown is no number.
fn samples(t_ms: u64, seen: &Observation, offered_rps: impl Fn(&str) -> Option<f64>) -> Vec<Sample> {
    let rps = |s: &ServiceView| offered_rps(&s.id).unwrap_or(f64::NAN);
    let ways = |s: &ServiceView| s.allocation.n_ways().round() as u32;
    let one = |s: &ServiceView| {
        let others = seen.services.iter().filter(|o| o.id != s.id);
        let w = s.window;
        let verdict = match w {
            Some(w) if w.verdict != Verdict::Valid => w.verdict,
            Some(w) if w.count >= MIN_COUNT_P99_INTERVAL => Verdict::Valid,
            _ => Verdict::NotResolvable,
        };
        Sample {
            case: Case {
                index: 0,
                case_id: s.id.clone(),
                seed: 0,
                service: s.service.clone(),
                rps: rps(s),
                load_pct: None,
                threads: s.threads,
                cores: s.allocation.cores(),
                ways: ways(s),
                mba_pct: s.allocation.mba_pct,
                memory: Default::default(),
                neighbours: others
                    .map(|o| Neighbour { service: o.service.clone(), cores: o.allocation.cores(), ways: ways(o), rps: rps(o) })
                    .collect(),
                repeat: 0,
                infeasible: None,
                unloaded: None,
                others_frac: 0.0,
            },
            row: Row::of(t_ms, &s.features, w, verdict, Sending::default()),
            feed: s.feed.as_str(),
        }
    };
    seen.services.iter().map(one).collect()
}

/// A sample as a JSON object with the names of the columns.
fn line(platform: &str, s: &Sample) -> Value {
    let (c, r) = (&s.case, &s.row);
    let rps = |v: f64| v.is_finite().then_some(v);
    let neighbour = |n: &Neighbour| json!({ "service": n.service, "cores": n.cores, "ways": n.ways, "rps": rps(n.rps) });
    let neighbours: Vec<Value> = c.neighbours.iter().map(neighbour).collect();
    let mut v = json!({
        "campaign": CAMPAIGN, "platform": platform, "service": c.service, "case_id": c.case_id, "threads": c.threads, "rps": rps(c.rps),
        "mba_pct": c.mba_pct, "neighbours": neighbours, "repeat": c.repeat, "t_ms": r.t_ms,
        "latency_mean_ms": r.mean_ms, "latency_p50_ms": r.p50_ms, "latency_p95_ms": r.p95_ms, "latency_p99_ms": r.p99_ms,
        "latency_p99_low_ms": r.p99_low_ms, "latency_p99_high_ms": r.p99_high_ms, "achieved_rps": r.achieved_rps,
        "errors": r.errors, "count": r.count, "verdict": r.verdict.as_str(),
        "feed": s.feed,
    });
    for (name, value) in FEATURE_NAMES.iter().zip(r.features) {
        v[*name] = json!(value);
    }
    v
}

/// A Parquet file under its temporary name until it is whole: without its end it is no file that anybody can read.
struct Parquet {
    out: Output,
    writer: Option<ArrowWriter<File>>,
    columns: Columns,
}

impl Parquet {
    fn create(out: Output, platform: &str) -> Result<Self> {
        let file = out.handle()?;
        let mut parquet = Parquet { out, writer: None, columns: Columns::recording(CAMPAIGN, platform) };
        let writer = ArrowWriter::try_new(file, Arc::new(recording_schema()), Some(sample_properties()));
        parquet.writer = Some(writer.map_err(|e| parquet.failed(&e))?);
        Ok(parquet)
    }

    fn failed(&self, e: &dyn std::fmt::Display) -> Error {
        let remedy = "Free some space, and record to a .jsonl file to keep what was written before an error";
        Error::Failed(format!("{}: cannot be written: {e}. {remedy}", self.out.path().display()))
    }

    fn push(&mut self, all: &[Sample]) -> Result<()> {
        for s in all {
            self.columns.push_recorded(&s.case, &s.row, s.feed);
        }
        if self.columns.rows() >= BATCH_ROWS {
            self.encode()?;
        }
        Ok(())
    }

    fn encode(&mut self) -> Result<()> {
        let batch = self.columns.take()?;
        let Some(w) = &mut self.writer else { return Ok(()) };
        let done = w.write(&batch).and_then(|()| if w.in_progress_rows() >= ROW_GROUP_ROWS { w.flush() } else { Ok(()) });
        done.map_err(|e| self.failed(&e))
    }

    /// The file gets its name.
    fn finish(mut self) -> Result<()> {
        self.encode()?;
        if let Some(w) = self.writer.take() {
            w.into_inner().map_err(|e| self.failed(&e))?;
        }
        self.out.finish()
    }
}

enum Sink {
    Parquet(Box<Parquet>),
    Lines(Box<Recorder>),
}

impl Sink {
    /// `server` is what that reads.
    fn create(args: &cli::Record, config: &NodeConfig, server: &Sources, platform: &str) -> Result<Self> {
        let out = args.out.as_path();
        let folder = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if out.is_dir() {
            return Err(Error::BadInput(format!("--out {}: is a folder. Name a file in it, e.g. samples.parquet", out.display())));
        }
        if !folder.is_dir() {
            return Err(Error::BadInput(format!("--out {}: no such folder: {}. Make it first", out.display(), folder.display())));
        }
        let inputs = read_by(config, args.profiles.as_deref()).with(server);
        each_its_own(&[("--out", Some(out)), ("journal in node.toml", config.journal.as_deref())])?;
        if is_lines(out) {
            let mut lines = Recorder::open("--out", out, &inputs, args.overwrite)?;
            lines.begin()?;
            return Ok(Sink::Lines(Box::new(lines)));
        }
        Ok(Sink::Parquet(Box::new(Parquet::create(Output::create("--out", out, &inputs, args.overwrite)?, platform)?)))
    }

    fn push(&mut self, platform: &str, all: &[Sample]) -> Result<()> {
        match self {
            Sink::Parquet(p) => p.push(all),
            Sink::Lines(l) => {
                for s in all {
                    l.line(&line(platform, s))?;
                }
                // Whole lines for whoever follows the file.
                l.flush()
            }
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Sink::Parquet(p) => p.finish(),
            Sink::Lines(mut l) => l.flush(),
        }
    }
}

fn is_lines(out: &Path) -> bool {
    out.extension().is_some_and(|x| x == "jsonl")
}

/// # Errors
/// Bad input or a failure, on one line.
pub fn run(args: &cli::Record) -> Result<()> {
    if let Some(pid) = args.die_with_parent {
        stop::die_with_parent((pid > 0).then_some(pid))?;
    }
    stop::install()?;
    let config = args.config.as_deref().map_or_else(|| Ok(NodeConfig::none()), NodeConfig::read)?;
    // Everything that can be wrong is found before anything is started.
    let (mut node, platform, feature_set, mut sink) = match cli::Server::parse(&args.server)? {
        cli::Server::Virtual(name) => {
            let at = VirtualTarget::open(&name, args.profiles.as_deref())?;
            let node = Node::virtual_server(&config, &at)?;
            let sink = Sink::create(args, &config, &at.read, &at.platform.name)?;
            (node, at.platform.name, "full", sink)
        }
        cli::Server::Local => {
            let pods = config.pods.as_ref().map_or(vec![], super::pods::once);
            let (mut server, ..) = local_server(&config, Purpose::Watch, |_| Ok(()))?;
            let platform = server.platform().name.clone();
            let sink = Sink::create(args, &config, &Sources::default(), &platform)?;
            let feature_set = server.feature_set().0;
            bring_in(&mut server, &config, &pods, Purpose::Watch)?;
            (Node::Local(Box::new(server)), platform, feature_set, sink)
        }
    };
    tracing::info!("recording {platform} to {}; SIGTERM or Ctrl-C ends it", args.out.display());
    let end_ms = node.end_ms(args.duration_s);
    let mut clock = Clock::new(config.interval_ms);
    let mut rows: BTreeMap<String, u64> = BTreeMap::new();
    let mut observations = 0u64;
    let (ended, t_ms) = loop {
        let (now, seen) = clock.observe(&mut node);
        let all = samples(now, &seen, |id| node.offered_rps(id, now));
        sink.push(&platform, &all)?;
        for s in &all {
            *rows.entry(s.case.case_id.clone()).or_insert(0) += 1;
        }
        observations += 1;
        if stop::requested() {
            break ("signal", now);
        }
        if end_ms.is_some_and(|e| now >= e) {
            break ("duration", now);
        }
        clock.advance(&mut node);
    };
    let finished = sink.finish();
    // What was started for the recording ends before a word is said of it, which may have to wait.
    drop(node);
    finished?;
    let total: u64 = rows.values().sum();
    if args.json {
        let services: Map<String, Value> = rows.into_iter().map(|(id, n)| (id, n.into())).collect();
        let format = if is_lines(&args.out) { "jsonl" } else { "parquet" };
        say::json(&json!({
                "file": args.out, "format": format, "server": args.server, "platform": platform, "feature_set": feature_set,
                "interval_ms": config.interval_ms, "observations": observations, "duration_s": t_ms as f64 / 1000.0, "rows": total,
                "rows_by_service": services, "ended": ended,
        }))
    } else {
        let names: Vec<String> = rows.keys().cloned().collect();
        let (file, names, s) = (args.out.display(), names.join(", "), t_ms as f64 / 1000.0);
        say::print(&format!("{file}: {total} rows of {names} in {s:.1} s ({feature_set})\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use surefoot_server::{Allocation, Features, Kind, Platform};

    fn seen(t_ms: u64) -> Observation {
        let p = Platform::regular("p", 4, 1, 8, 1.0);
        let view = |id: &str| ServiceView {
            id: id.into(),
            service: "s".into(),
            kind: Kind::Be,
            threads: 2,
            allocation: Allocation::everything(&p),
            placed: false,
            features: Features { alloc_cores: Some(4.0), ..Features::default() },
            feed: surefoot_server::FeedState::NotNeeded,
            interval: None,
            window: None,
            instr_per_s: None,
            memory: surefoot_server::MemoryView::default(),
        };
        Observation { t_ms, services: vec![view("a"), view("b")], ..Observation::default() }
    }

    /// However long a recording is, rows leave memory in groups; before its end the file has no name, without an end there is none.
    #[test]
    fn row_groups_bound_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.parquet");
        let mut p = Parquet::create(Output::create("--out", &path, &Sources::default(), false).unwrap(), "p").unwrap();
        let ticks = ROW_GROUP_ROWS as u64 / 2 + 600;
        for t in 0..ticks {
            p.push(&samples(t * 100, &seen(t * 100), |_| None)).unwrap();
        }
        assert!(p.columns.rows() < BATCH_ROWS && !path.exists());
        p.finish().unwrap();
        let read = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let groups: Vec<i64> = (0..read.num_row_groups()).map(|i| read.metadata().row_group(i).num_rows()).collect();
        assert_eq!(groups, [ROW_GROUP_ROWS as i64, 1200]);
        assert_eq!(fs_names(dir.path()), ["r.parquet"]);

        let aborted = dir.path().join("x.parquet");
        let out = Output::create("--out", &aborted, &Sources::default(), false).unwrap();
        Parquet::create(out, "p").unwrap().push(&samples(0, &seen(0), |_| None)).unwrap();
        assert_eq!(fs_names(dir.path()), ["r.parquet"]);
    }

    fn fs_names(dir: &Path) -> Vec<String> {
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// What is unknown is null in a line, and a service without latency is not resolvable.
    #[test]
    fn unknown_is_null() {
        let all = samples(300, &seen(300), |_| None);
        let v = line("p", &all[0]);
        assert!(v["feed"] == "not-needed" && v["rps"].is_null() && v["ipc"].is_null() && v["latency_p99_ms"].is_null());
        assert_eq!((&v["verdict"], &v["alloc_cores"], &v["neighbours"][0]["ways"]), (&"not-resolvable".into(), &4.0.into(), &8.into()));
        let names: std::collections::BTreeSet<String> = v.as_object().unwrap().keys().cloned().collect();
        let columns = recording_schema().fields().iter().map(|f| f.name().clone()).collect();
        assert_eq!(names, columns);
    }
}
