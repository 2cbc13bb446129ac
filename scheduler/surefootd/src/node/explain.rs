//! `surefootd explain`: the journal of decisions, read back: a table, or the whole account of one action.
//!
//! Reads the file alone, so it answers while a daemon runs and after it has ended. A line that is being written (or that a kill
//! cut off at the end) is passed over; other damage is named by its line, and the rest is read.

use crate::base::cli;
use crate::base::error::{nearest, Error, Result};
use crate::base::files::own_error;
use crate::base::places::state_dir;
use crate::base::say;
use crate::base::utc;
use crate::node::decisions::{old_generation, LendLine, LendNews, RunLine, StandingLine};
use crate::node::follower::{Closed, ClosedBy, Effect, Record};
use crate::node::run::JOURNAL;
use crate::stage::config::NodeConfig;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use surefoot_io::input::{long_line, next_line, Found, LINE_BYTES};
use surefoot_io::json;
use surefoot_io::out::note;
use surefoot_io::shown::{self, message};
use surefoot_linux::own::plain_file;
use surefoot_server::lease::LONG_WAIT_US;
use surefoot_server::{ActionKind, HoldsIf, Report, Seen, FEATURE_NAMES};

/// Twice what `journal_mb` may be.
const MOST_JOURNAL_BYTES: u64 = 2 << 30;
/// Damaged lines that are named; the others are counted.
const MOST_DAMAGED: usize = 20;
/// Records and runs that are kept while a journal is read: the newest, and of so many bytes.
const MOST_RECORDS: usize = 100_000;
const MOST_RECORD_BYTES: usize = 256 << 20;
/// Longest reason in the table.
const WHY: usize = 100;

/// A journal, or what of it was asked for.
#[derive(Debug, Default, Serialize)]
pub struct Story {
    /// Each run whose first line is still there, oldest first.
    pub runs: Vec<RunLine>,
    /// By id; with the index of its run, where that is known.
    #[serde(serialize_with = "with_run")]
    pub records: BTreeMap<u64, (Option<usize>, Record)>,
    /// What was not taken from services whose latency was unknown; with the index of its run.
    pub withheld: Vec<(Option<usize>, Withheld)>,
    /// What has become of leases, oldest first; with the index of its run.
    pub lends: Vec<(Option<usize>, LendLine)>,
    /// How models did, oldest first; with the index of its run.
    pub standings: Vec<(Option<usize>, StandingLine)>,
    /// The first of them.
    pub damaged: Vec<Damage>,
    pub damaged_lines: u64,
    /// Actions of an older version, which had no id and no account.
    pub older: u64,
    /// Lines that could be read.
    #[serde(skip)]
    readable: u64,
    /// Bytes of the lines of records that are kept, by id; and their sum.
    #[serde(skip)]
    sizes: (BTreeMap<u64, usize>, usize),
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Withheld {
    pub t_ms: u64,
    pub service: String,
    pub why: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    pub file: PathBuf,
    pub line: u64,
    pub why: String,
}

fn with_run<S: serde::Serializer>(records: &BTreeMap<u64, (Option<usize>, Record)>, s: S) -> std::result::Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Row<'a> {
        run: Option<usize>,
        #[serde(flatten)]
        record: &'a Record,
    }
    s.collect_seq(records.values().map(|(run, record)| Row { run: *run, record }))
}

/// Which records are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub service: Option<String>,
    pub action: Option<ActionKind>,
    pub id: Option<u64>,
    pub since: Option<Since>,
    /// The newest so many; None: all.
    pub last: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Milliseconds before now; before the newest record where records have no time of day.
    Ago(u64),
    /// Milliseconds since 1970.
    At(u64),
}

impl Since {
    /// "10m", "2026-11-21", "2026-11-21T21:00Z".
    ///
    /// # Errors
    /// [`Error::BadInput`].
    pub fn parse(text: &str) -> Result<Self> {
        let ago = || {
            let unit = text.chars().last()?;
            let number: f64 = text[..text.len() - unit.len_utf8()].parse().ok().filter(|n: &f64| (0.0..1e9).contains(n))?;
            let unit_ms = match unit {
                's' => 1e3,
                'm' => 60e3,
                'h' => 3600e3,
                'd' => 86_400e3,
                _ => return None,
            };
            Some(Since::Ago((number * unit_ms) as u64))
        };
        ago().or_else(|| utc::parse(text).map(Since::At)).ok_or_else(|| {
            Error::BadInput(format!(
                "--since {text}: is neither a time span nor a time. Write e.g. 10m, 2h, 1d, or 2026-11-21T21:00Z (UTC)"
            ))
        })
    }
}

impl Since {
    /// Whether something was so late; not known without a time of day.
    fn has(self, at_ms: Option<u64>, now_ms: u64) -> bool {
        at_ms.is_some_and(|at| match self {
            Since::At(t) => at >= t,
            Since::Ago(ms) => at >= now_ms.saturating_sub(ms),
        })
    }
}

impl Story {
    /// # Errors
    /// [`Error::BadInput`] where there is no journal, [`Error::Failed`] where it cannot be read.
    pub fn read(file: &Path, wanted: &Wanted, now_ms: u64) -> Result<Self> {
        let mut story = Story::default();
        let old = old_generation(file);
        let found_old = story.read_one(&old, wanted, false)?;
        if !story.read_one(file, wanted, true)? && !found_old {
            return Err(Error::BadInput(format!(
                "{}: there is no journal. It is written by `surefootd run` (`journal` in node.toml, or STATE_DIR/{JOURNAL}); name it with --config, --state or --file",
                file.display()
            )));
        }
        // A journal begins with a line of its run; a damaged one has others that can be read.
        if story.readable == 0 {
            if let Some(first) = story.damaged.first() {
                return Err(Error::BadInput(format!(
                    "{}: is no journal of decisions: no line of it can be read (line {}: {}). Name the one of `surefootd run` (--config, --state, --file)",
                    file.display(),
                    first.line,
                    first.why
                )));
            }
        }
        if let Some(since) = wanted.since {
            let runs = &story.runs;
            // Reports have no time of day of their own; the run that they belong to has.
            let begun = |run: Option<usize>| runs.get(run?)?.at_ms;
            let newest = story.records.values().next_back().map(|(run, r)| (*run, r.t_ms));
            story.withheld.retain(|(run, w)| since.has(begun(*run).map(|at| at.saturating_add(w.t_ms)), now_ms));
            story.lends.retain(|(_, l)| since.has(l.at_ms, now_ms));
            story.standings.retain(|(_, l)| since.has(l.at_ms, now_ms));
            story.records.retain(|_, (run, r)| match (r.at_ms, since) {
                (None, Since::Ago(ms)) => newest.is_some_and(|(last, t)| *run == last && r.t_ms >= t.saturating_sub(ms)),
                (at, since) => since.has(at, now_ms),
            });
        }
        Ok(story)
    }

    /// False where there is no such file.
    fn read_one(&mut self, file: &Path, wanted: &Wanted, newest: bool) -> Result<bool> {
        let mut reader = match plain_file(file) {
            Ok(f) => BufReader::new(f),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) if e.kind() == ErrorKind::IsADirectory => {
                return Err(Error::BadInput(format!("{}: is a folder, no journal. Name the file in it, e.g. {JOURNAL}", file.display())));
            }
            Err(e) => return Err(own_error(file, "cannot be read", &e)),
        };
        let (mut line, mut number, mut bytes) = (vec![], 0, 0);
        loop {
            let found = next_line(&mut reader, &mut line, LINE_BYTES).map_err(|e| match e.kind() {
                ErrorKind::FileTooLarge => Error::BadInput(format!("{}: is no journal of decisions: {e}", file.display())),
                _ => Error::io(file, "cannot be read", &e),
            })?;
            bytes += match found {
                Found::Line(n) => n as u64,
                Found::TooLong(n) => n,
                Found::End => 0,
            };
            if bytes > MOST_JOURNAL_BYTES {
                let most = MOST_JOURNAL_BYTES >> 30;
                return Err(Error::BadInput(format!("{}: is no journal of decisions: it is longer than {most} GiB", file.display())));
            }
            number += 1;
            let whole = line.last() == Some(&b'\n');
            let read = match found {
                Found::End => return Ok(true),
                Found::Line(_) if line.trim_ascii().is_empty() => continue,
                Found::Line(_) => self.take(&line, wanted).map_err(|e| e.to_string()),
                Found::TooLong(_) => Err(long_line(LINE_BYTES)),
            };
            match read {
                Ok(()) => self.readable += 1,
                // Just being written, or cut off by a kill.
                Err(_) if newest && !whole && matches!(found, Found::Line(_)) && (self.readable > 0 || begins(&line)) => {}
                Err(why) => {
                    self.damaged_lines += 1;
                    if self.damaged.len() < MOST_DAMAGED {
                        self.damaged.push(Damage { file: file.into(), line: number, why: message(&why) });
                    }
                }
            }
        }
    }

    fn take(&mut self, line: &[u8], wanted: &Wanted) -> serde_json::Result<()> {
        let v: Value = json::from_slice(line)?;
        let has = |key: &str| v.get(key).is_some();
        // What belongs to no action.
        let asked = |id: &str| wanted.service.as_ref().is_none_or(|s| s == id) && wanted.action.is_none() && wanted.id.is_none();
        if let Some(run) = v.get("run") {
            let run: RunLine = serde_json::from_value(run.clone())?;
            // A new generation repeats the line of its run.
            if self.runs.last() != Some(&run) && self.runs.len() < MOST_RECORDS {
                self.runs.push(run);
            }
        } else if has("action") && !has("id") {
            self.older += 1;
        } else if has("action") {
            let r: Record = serde_json::from_value(v)?;
            let is = wanted.service.as_ref().is_none_or(|s| *s == r.service)
                && wanted.action.is_none_or(|a| a == r.action)
                && wanted.id.is_none_or(|id| id == r.id);
            if is {
                self.keep(r, line.len(), wanted.last.unwrap_or(MOST_RECORDS).min(MOST_RECORDS));
            }
        } else if has("effect") {
            let c: Closed = serde_json::from_value(v)?;
            if let Some((_, r)) = self.records.get_mut(&c.id) {
                r.effect = Some(c.effect);
            }
        } else if has("lend") {
            let line: LendLine = serde_json::from_value(v)?;
            if [&line.lender, &line.borrower].into_iter().any(|id| asked(id)) {
                add(&mut self.lends, (self.runs.len().checked_sub(1), line), wanted);
            }
        } else if has("standing") {
            let line: StandingLine = serde_json::from_value(v)?;
            if asked(&line.service) {
                add(&mut self.standings, (self.runs.len().checked_sub(1), line), wanted);
            }
        } else if let Some(report) = v.get("report") {
            let said = serde_json::from_value(report.clone())?;
            if let (Report::Withheld { service, why }, Some(t_ms)) = (said, v.get("t_ms").and_then(Value::as_u64)) {
                if asked(&service) {
                    add(&mut self.withheld, (self.runs.len().checked_sub(1), Withheld { t_ms, service, why }), wanted);
                }
            }
        } else if !has("error") {
            return Err(serde::de::Error::custom("is no line of a journal of decisions"));
        }
        Ok(())
    }

    /// One record more; the oldest go where that is too much.
    fn keep(&mut self, r: Record, bytes: usize, most: usize) {
        let (sizes, sum) = &mut self.sizes;
        *sum += bytes;
        *sum -= sizes.insert(r.id, bytes).unwrap_or(0);
        self.records.insert(r.id, (self.runs.len().checked_sub(1), r));
        while self.records.len() > most || (*sum > MOST_RECORD_BYTES && self.records.len() > 1) {
            let Some((id, _)) = self.records.pop_first() else { break };
            *sum -= sizes.remove(&id).unwrap_or(0);
        }
    }

    fn run_of(&self, index: Option<usize>) -> Option<&RunLine> {
        self.runs.get(index?)
    }
}

/// One more of what belongs to no action; the oldest go where that is more than was asked for.
fn add<T>(to: &mut Vec<T>, new: T, wanted: &Wanted) {
    to.push(new);
    let surplus = to.len().saturating_sub(wanted.last.unwrap_or(MOST_RECORDS).min(MOST_RECORDS));
    to.drain(..surplus);
}

/// Whether a first line that is being written may become a journal's.
fn begins(line: &[u8]) -> bool {
    const RUN: &[u8] = b"{\"run\":";
    line.starts_with(RUN) || RUN.starts_with(line)
}

/// Three digits or so.
fn short(v: f64) -> String {
    match v.abs() {
        a if a >= 1e7 || a > 0.0 && a < 0.01 => format!("{v:.2e}"),
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        _ => format!("{v:.2}"),
    }
}

fn known(v: Option<f64>) -> String {
    v.map_or("-".into(), short)
}

/// "yes", "no", "-" (not judged), "open".
pub fn verdict_of(r: &Record) -> &'static str {
    match (&r.effect, r.applied) {
        (_, false) => "refused",
        (None, true) => "open",
        (Some(e), true) => match e.held {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        },
    }
}

fn when(r: &Record) -> String {
    r.at_ms.map_or_else(|| format!("{:.1} s", r.t_ms as f64 / 1000.0), utc::text)
}

/// One line per record.
pub fn table(story: &Story) -> String {
    let mut out = String::new();
    let width = story.records.values().map(|(_, r)| r.service.chars().count()).max().unwrap_or(0).clamp(7, 24);
    let _ =
        writeln!(out, "{:>6}  {:<19}  {:<width$}  {:<8}  {:>18}  {:<7}  WHY", "ID", "WHEN (UTC)", "SERVICE", "ACTION", "P99 ms", "HELD");
    for (_, r) in story.records.values() {
        let seen = r.because.seen.and_then(|s| s.p99_ms);
        let p99 = match &r.effect {
            Some(e) => format!("{} -> {}", known(e.p99_before_ms), known(e.p99_after_ms)),
            None => known(seen),
        };
        let why: String = shown::line(&r.why).chars().take(WHY).collect();
        let service: String = shown::line(&r.service).chars().take(width).collect();
        let _ = writeln!(
            out,
            "{:>6}  {:<19}  {service:<width$}  {:<8}  {p99:>18}  {:<7}  {why}",
            r.id,
            when(r),
            r.action.as_str(),
            verdict_of(r)
        );
    }
    if story.records.is_empty() {
        out.push_str("no action\n");
    }
    let at = |at_ms: Option<u64>, t_ms: u64| at_ms.map_or_else(|| format!("{:.1} s into its run", t_ms as f64 / 1000.0), utc::text);
    for (_, l) in &story.standings {
        let _ = writeln!(out, "{}  {}: {}", at(l.at_ms, l.t_ms), shown::line(&l.service), shown::line(&l.standing.text()));
    }
    for (_, l) in &story.lends {
        let when = at(l.at_ms, l.t_ms);
        let [lender, borrower, policy] = [&l.lender, &l.borrower, &l.policy].map(|id| shown::line(id));
        let _ = writeln!(out, "{when}  {lender} lends to {borrower} by {policy}: {}", lent(&l.lend));
    }
    for (_, w) in &story.withheld {
        let s = w.t_ms as f64 / 1000.0;
        let _ = writeln!(out, "withheld from the policy, {s:.1} s into its run: {}: {}", shown::line(&w.service), shown::line(&w.why));
    }
    out
}

/// What has become of a lease, in words.
fn lent(news: &LendNews) -> String {
    match news {
        LendNews::Granted { cores, cpus } => format!("up to {cores} cores (CPUs {}) from now on", shown::line(cpus)),
        LendNews::Refused { why } => format!("nothing: {}", shown::line(why)),
        LendNews::Stopped { dispatches, long, mean_wait_us, stop_s } => {
            let waited = match long {
                Some(long) => {
                    format!("{long} of {dispatches} dispatches waited longer than {LONG_WAIT_US:.0} us, {} us in the mean", short(*mean_wait_us))
                }
                None => format!("{dispatches} dispatches waited {} us in the mean", short(*mean_wait_us)),
            };
            format!("nothing for {} s: {waited} (the long-term safeguard)", short(*stop_s))
        }
        LendNews::Ended { why, lasted_ms, windows, short: less, exhausted, stops, moves } => format!(
            "everything is back after {:.1} s: {}. {windows} windows, {less} of them with less than their peak; cores exhausted {exhausted} times, \
             stopped {stops} times, {moves} moves",
            *lasted_ms as f64 / 1000.0,
            shown::line(why)
        ),
    }
}

/// All that is known of one action.
pub fn account(r: &Record, run: Option<&RunLine>) -> String {
    let mut out = String::new();
    let by = run.map_or(String::new(), |run| {
        let bundle = run.bundle.as_ref().map_or(String::new(), |b| format!(", bundle {}", shown::line(b)));
        format!(", by {} on {}{bundle}", shown::line(&run.policy), shown::line(&run.platform))
    });
    let _ = writeln!(
        out,
        "#{} {} {}  {} ({:.1} s into the run){by}",
        r.id,
        r.action.as_str(),
        shown::line(&r.service),
        when(r),
        r.t_ms as f64 / 1000.0
    );
    let _ = writeln!(out, "  {}", shown::line(&r.why));
    let _ = writeln!(out, "seen");
    match &r.because.seen {
        Some(s) => seen_lines(&mut out, s),
        None => out.push_str("  nothing yet\n"),
    }
    let _ = writeln!(out, "models said");
    for s in &r.because.said {
        let _ = writeln!(out, "  {:<8} {:<44} {} {}", shown::line(&s.by), shown::line(&s.what), short(s.value), shown::line(&s.unit));
    }
    if r.because.said.is_empty() {
        out.push_str("  nothing: no model was asked\n");
    }
    let _ = writeln!(out, "rejected");
    for x in &r.because.rejected {
        let _ = writeln!(out, "  {}: {}", shown::line(&x.what), shown::line(&x.why));
    }
    if r.because.rejected.is_empty() {
        out.push_str("  nothing else was in question\n");
    }
    if let Some(bound) = &r.because.bound {
        let _ = writeln!(out, "bound by\n  {}", shown::line(bound));
    }
    let _ = writeln!(out, "done\n  {}", shown::line(&done(r)));
    let _ = writeln!(out, "expected\n  {}", expected(r));
    let _ = writeln!(out, "came\n  {}", r.effect.as_ref().map_or_else(|| open(r), came));
    out
}

fn seen_lines(out: &mut String, s: &Seen) {
    let _ = match (s.p99_ms, s.qos_target_ms) {
        (Some(p99), Some(target)) => writeln!(
            out,
            "  p99 {} ms, target {} ms: QoS {}; verdict {}, {} requests, {}/s",
            short(p99),
            short(target),
            known(s.qos),
            s.verdict.map_or("unknown", |v| v.as_str()),
            s.count.map_or("-".into(), |c| c.to_string()),
            known(s.achieved_rps)
        ),
        (None, Some(target)) => writeln!(out, "  latency unknown, target {} ms", short(target)),
        (_, None) => writeln!(out, "  a BE job; instructions/s {}", known(s.instr_per_s)),
    };
    let _ = writeln!(out, "  held {}", s.held.text());
    let values = s.features.values();
    let named = FEATURE_NAMES.iter().zip(values);
    let list: Vec<String> = named.clone().filter_map(|(n, v)| Some(format!("{n} {}", short(v?)))).collect();
    let missing: Vec<&str> = named.filter(|(_, v)| v.is_none()).map(|(n, _)| *n).collect();
    if !list.is_empty() {
        let of = if s.intervals > 1 { format!("features, mean of {} intervals", s.intervals) } else { "features".into() };
        let _ = writeln!(out, "  {of}: {}", list.join(", "));
    }
    if !missing.is_empty() {
        let _ = writeln!(out, "  not known: {}", missing.join(", "));
    }
}

fn done(r: &Record) -> String {
    if !r.applied {
        return format!("refused, nothing was changed: {}", r.error.as_deref().unwrap_or("no reason is recorded"));
    }
    r.given.text().unwrap_or_else(|| "its own allocation stays as it is".into())
}

fn expected(r: &Record) -> String {
    let e = &r.because.expected;
    let rule = match e.holds_if {
        HoldsIf::NotJudged => "nothing is expected of this service".into(),
        HoldsIf::Qos { at_least } => format!("holds if QoS is at least {}", short(at_least)),
        HoldsIf::P99Falls => "holds if p99 falls, or the target is met".into(),
        HoldsIf::P99Stays => "holds if p99 rises by less than a tenth, or the target is met".into(),
    };
    match (e.qos, e.p99_ms) {
        (Some(q), Some(p)) => format!("QoS {}, p99 {} ms; {rule}", short(q), short(p)),
        (Some(q), None) => format!("QoS {}; {rule}", short(q)),
        _ => rule,
    }
}

fn open(r: &Record) -> String {
    if r.applied {
        "not known yet, or the daemon was killed before it was".into()
    } else {
        "nothing: the plan was refused".into()
    }
}

fn came(e: &Effect) -> String {
    let after = format!("{:.1} s later, {}", e.after_ms as f64 / 1000.0, e.closed_by.words());
    let held = match (e.held, e.closed_by) {
        (Some(true), _) => "the expectation held",
        (Some(false), _) => "the expectation did not hold",
        (None, ClosedBy::Window) => "not judged",
        (None, _) => "not judged: no p99 lies wholly after the action",
    };
    if e.instr_per_s_before.is_some() && e.p99_before_ms.is_none() {
        return format!("instructions/s {} -> {}, {after}", known(e.instr_per_s_before), known(e.instr_per_s_after));
    }
    let verdict = e.verdict.map_or(String::new(), |v| format!(" ({})", v.as_str()));
    format!(
        "p99 {} -> {} ms{verdict}, QoS {} -> {}, {after}: {held}",
        known(e.p99_before_ms),
        known(e.p99_after_ms),
        known(e.qos_before),
        known(e.qos_after)
    )
}

/// The journal that the arguments name.
fn journal(args: &cli::Explain) -> Result<PathBuf> {
    if let Some(f) = &args.file {
        // A link that the caller names is the caller's; one in a folder of somebody else's is not followed.
        return Ok(f.canonicalize().unwrap_or_else(|_| f.clone()));
    }
    let config = args.config.as_deref().map(NodeConfig::read).transpose()?;
    if let Some(f) = config.as_ref().and_then(|c| c.journal.clone()) {
        return Ok(f);
    }
    // A local run cannot do without services: this file is a virtual server's, and the host's own journal none of its.
    if let Some(c) = config.as_ref().filter(|c| c.workload.is_some() && c.services.is_empty()) {
        return Err(Error::BadInput(format!(
            "{}: journal: is missing, so a run on a virtual server writes none. Set e.g. journal = \"{JOURNAL}\" and run it again, or name the journal of another run with --file or --state",
            c.file.display()
        )));
    }
    Ok(state_dir(args.state.as_deref().or(config.as_ref().and_then(|c| c.state_dir.as_deref()))).join(JOURNAL))
}

/// # Errors
/// Bad input, a journal that cannot be read, or an id that is not there.
pub fn run(args: &cli::Explain) -> Result<()> {
    let file = journal(args)?;
    let action = args.action.as_deref().map(|text| {
        let names = ActionKind::ALL.map(ActionKind::as_str);
        let near = || nearest(text, names).map_or(String::new(), |n| format!(" Did you mean \"{n}\"?"));
        let known = ActionKind::ALL.into_iter().find(|k| k.as_str() == text);
        known.ok_or_else(|| Error::BadInput(format!("--action {text}: is unknown.{} Choose one of: {}", near(), names.join(", "))))
    });
    let since = args.since.as_deref().map(Since::parse).transpose()?;
    let last = match (args.last, since, args.id) {
        (None, None, None) => Some(20),
        (n, ..) => n.map(|n| n as usize),
    };
    let wanted =
        Wanted { service: args.service.clone(), action: action.transpose()?, id: args.id, since, last: last.filter(|_| since.is_none()) };
    let mut story = Story::read(&file, &wanted, utc::now_ms())?;
    while last.is_some_and(|n| story.records.len() > n) {
        story.records.pop_first();
    }
    if let (Some(id), true) = (args.id, story.records.is_empty()) {
        return Err(Error::Failed(format!(
            "{}: there is no action {id}. `surefootd explain` lists the last ones; older ones go with the old generation (journal_mb)",
            file.display()
        )));
    }
    note(&format!("surefootd: reading {}", file.display()));
    for d in &story.damaged {
        note(&format!("surefootd: {}:{}: damaged, left out: {}", d.file.display(), d.line, d.why));
    }
    let unnamed = story.damaged_lines - story.damaged.len() as u64;
    if unnamed > 0 {
        note(&format!("surefootd: {}: {unnamed} more lines are damaged and left out", file.display()));
    }
    if story.older > 0 {
        note(&format!("surefootd: {}: {} actions of an older version, without account, left out", file.display(), story.older));
    }
    if args.json {
        let mut v = serde_json::to_value(&story).unwrap_or_default();
        v["file"] = file.display().to_string().into();
        say::json(&v)
    } else if args.id.is_some() {
        say::print(&story.records.values().map(|(run, r)| account(r, story.run_of(*run))).collect::<String>())
    } else {
        say::print(&table(&story))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::decisions::StandingNews;
    use clap::Parser as _;
    use surefoot_server::{Because, Features, Given, Held, Verdict};

    fn record(id: u64, service: &str, t_ms: u64, at_ms: Option<u64>) -> Record {
        let seen = Seen {
            p99_ms: Some(12.0),
            qos_target_ms: Some(10.0),
            qos: Some(10.0 / 12.0),
            verdict: Some(Verdict::Valid),
            count: Some(1043),
            achieved_rps: Some(1043.0),
            held: Held { cores: 5.0, ways: Some(3.0), mba_pct: 100, ..Held::default() },
            features: Features { ipc: Some(0.9), ..Features::default() },
            intervals: 5,
            ..Seen::default()
        };
        let mut because = Because { seen: Some(seen), ..Because::default() }.expect(HoldsIf::P99Falls);
        because.say("Model-B", "QoS on 6 cores, 3 ways", 1.25, "");
        because.reject("1 way more", "Model-B: gain 0.01");
        because.bind("one unit a step");
        because.predict(1.25, 2.0);
        Record {
            id,
            t_ms,
            at_ms,
            service: service.into(),
            action: ActionKind::Grow,
            why: "QoS 0.83; 1 cores more\u{1b}[31m".into(),
            applied: true,
            error: None,
            given: Given { cores: Some(6.0), ways: Some(vec![0x7]), mba_pct: Some(100), ..Given::default() },
            because,
            effect: None,
        }
    }

    fn effect(id: u64) -> Closed {
        Closed {
            id,
            effect: Effect {
                t_ms: 2300,
                after_ms: 1000,
                closed_by: ClosedBy::Window,
                p99_before_ms: Some(12.0),
                p99_after_ms: Some(7.9),
                qos_before: Some(10.0 / 12.0),
                qos_after: Some(10.0 / 7.9),
                verdict: Some(Verdict::Valid),
                instr_per_s_before: None,
                instr_per_s_after: None,
                held: Some(true),
            },
        }
    }

    fn json(v: &impl Serialize) -> String {
        serde_json::to_string(v).unwrap()
    }

    fn write(lines: &[String]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(JOURNAL);
        std::fs::write(&file, lines.join("\n")).unwrap();
        (dir, file)
    }

    fn all() -> Wanted {
        Wanted::default()
    }

    /// A record and its effect come back as they were written, from both generations, with the run that they belong to.
    #[test]
    fn records_come_back_whole() {
        let run = RunLine { policy: "osml-plus".into(), platform: "p".into(), ..RunLine::default() };
        let run_line = serde_json::json!({ "run": run }).to_string();
        let report = "{\"t_ms\":0,\"report\":{\"report\":\"cannot-place\",\"service\":\"a\",\"why\":\"w\"}}".to_string();
        let withheld = "{\"t_ms\":700,\"report\":{\"report\":\"withheld\",\"service\":\"q\",\"why\":\"unheard\"}}".to_string();
        let lines = [run_line.clone(), json(&effect(1)), report, withheld, json(&record(2, "b", 9, None)), String::new()];
        let (_dir, file) = write(&lines);
        std::fs::write(old_generation(&file), [run_line, json(&record(1, "a", 5, None)), String::new()].join("\n")).unwrap();
        let story = Story::read(&file, &all(), 0).unwrap();
        assert_eq!((story.runs.as_slice(), story.damaged.len()), ([run].as_slice(), 0));
        let whole = Record { effect: Some(effect(1).effect), ..record(1, "a", 5, None) };
        assert_eq!(story.records[&1], (Some(0), whole));
        assert_eq!(story.records[&2], (Some(0), record(2, "b", 9, None)));
        assert!(table(&story).contains("withheld from the policy, 0.7 s into its run: q: unheard"), "{}", table(&story));
        for other in [Wanted { service: Some("a".into()), ..all() }, Wanted { id: Some(1), ..all() }] {
            assert!(Story::read(&file, &other, 0).unwrap().withheld.is_empty());
        }
    }

    /// What became of leases comes back as it was written, by lender or borrower, by time and in number.
    #[test]
    fn leases_are_told() {
        let line = |t_ms: u64, lend: LendNews| LendLine {
            t_ms,
            at_ms: Some(t_ms),
            lender: "web".into(),
            borrower: "batch".into(),
            policy: "smartharvest".into(),
            lend,
        };
        let told = [
            line(100, LendNews::Granted { cores: 3, cpus: "1-3".into() }),
            line(900, LendNews::Stopped { dispatches: 1000, long: Some(70), mean_wait_us: 12.5, stop_s: 10.0 }),
            line(950, LendNews::Stopped { dispatches: 1000, long: None, mean_wait_us: 12.5, stop_s: 10.0 }),
            line(2000, LendNews::Refused { why: "web has one whole core".into() }),
        ];
        let ended = LendNews::Ended { why: "w".into(), lasted_ms: 1500, windows: 60, short: 2, exhausted: 5, stops: 1, moves: 9 };
        let lines = told.iter().map(|l| serde_json::to_string(l).unwrap());
        let (_dir, file) = write(&lines.chain([serde_json::to_string(&line(1600, ended)).unwrap(), String::new()]).collect::<Vec<_>>());
        let story = Story::read(&file, &all(), 2000).unwrap();
        assert_eq!((story.lends.len(), story.damaged.len(), &story.lends[1].1), (5, 0, &told[1]));
        let text = table(&story);
        for words in [
            "web lends to batch by smartharvest: up to 3 cores (CPUs 1-3) from now on",
            "nothing for 10.0 s: 70 of 1000 dispatches waited longer than 50 us, 12.5 us in the mean (the long-term safeguard)",
            "nothing for 10.0 s: 1000 dispatches waited 12.5 us in the mean",
            "nothing: web has one whole core",
            "back after 1.5 s: w. 60 windows, 2 of them with less than their peak; cores exhausted 5 times, stopped 1 times, 9 moves",
        ] {
            assert!(text.contains(words), "no \"{words}\": {text}");
        }
        let count = |w: Wanted| Story::read(&file, &w, 2000).unwrap().lends.len();
        assert_eq!(["web", "batch", "other"].map(|id| count(Wanted { service: Some(id.into()), ..all() })), [5, 5, 0]);
        assert_eq!((count(Wanted { id: Some(1), ..all() }), count(Wanted { last: Some(2), ..all() })), (0, 2));
        assert_eq!(count(Wanted { since: Some(Since::Ago(500)), ..all() }), 2);
    }

    /// How models did for a service stands below the table, by service and by time.
    #[test]
    fn standings_are_told() {
        let line = |service: &str, at_ms: u64| StandingLine {
            t_ms: 40_000,
            at_ms: Some(at_ms),
            service: service.into(),
            standing: StandingNews {
                now: "worse-than-taught".into(),
                was: "as-taught".into(),
                kind: Some("changed".into()),
                error_qos: Some(0.3),
                bias_qos: Some(0.3),
                taught_qos: Some(0.08),
                outside: vec!["ipc\u{1b}[31m".into()],
            },
        };
        let told = [line("web", 500), line("db", 1900)];
        let (_dir, file) = write(&told.iter().map(|l| serde_json::to_string(l).unwrap()).chain([String::new()]).collect::<Vec<_>>());
        let story = Story::read(&file, &all(), 2000).unwrap();
        assert_eq!((story.standings.len(), story.damaged.len(), &story.standings[1].1), (2, 0, &told[1]));
        let text = table(&story);
        let words = "web: models are worse than taught: QoS is off by 0.30, taught by 0.08 (changed), and said too high by 0.30";
        assert!(text.contains(words) && !text.contains('\u{1b}'), "{text}");
        let count = |w: Wanted| Story::read(&file, &w, 2000).unwrap().standings.len();
        assert_eq!(["web", "other"].map(|id| count(Wanted { service: Some(id.into()), ..all() })), [1, 0]);
        assert_eq!((count(Wanted { id: Some(1), ..all() }), count(Wanted { since: Some(Since::Ago(500)), ..all() })), (0, 1));
    }

    /// A line cut off at the end is passed over, one cut off in the middle is named, and what an older version wrote is counted.
    #[test]
    fn damage_is_named_by_its_line() {
        let cut = json(&record(2, "a", 0, None))[..40].to_string();
        let older = "{\"t_ms\":0,\"service\":\"a\",\"action\":\"place\",\"why\":\"w\"}".to_string();
        let lines = [json(&record(1, "a", 0, None)), cut.clone(), "{\"x\":1}".into(), older, json(&effect(1)), cut];
        let (_dir, file) = write(&lines);
        let story = Story::read(&file, &all(), 0).unwrap();
        assert_eq!(story.damaged.iter().map(|d| d.line).collect::<Vec<_>>(), [2, 3]);
        assert!(story.damaged[1].why.contains("no line of a journal"));
        assert_eq!((story.older, story.records.len(), story.records[&1].1.effect.is_some()), (1, 1, true));
        let (_dir, file) = write(&[]);
        assert!(Story::read(&file, &all(), 0).unwrap().records.is_empty());
        let missing = Story::read(&file.join("none"), &all(), 0);
        assert!(missing.is_err(), "a journal below a file");
        let (_other, other) = write(&["root:x:0".into(), String::new()]);
        for (path, words) in [(file.parent().unwrap(), "is a folder"), (other.as_path(), "is no journal")] {
            assert!(Story::read(path, &all(), 0).is_err_and(|e| e.to_string().contains(words) && e.exit_code() == 2), "{words}");
        }
        let none = Story::read(Path::new("/nowhere/decisions.jsonl"), &all(), 0).unwrap_err();
        assert!(none.exit_code() == 2 && none.to_string().contains("--state"), "{none}");
    }

    /// Service, action, id, age and number choose; ages count from now, or from the newest record where there is no time of day.
    #[test]
    fn filters_choose() {
        let hour_ms = 3_600_000;
        let lines: Vec<String> = (1..=4)
            .map(|i| json(&record(i, if i % 2 == 0 { "even" } else { "odd" }, i * 1000, Some(i * hour_ms))))
            .chain([String::new()])
            .collect();
        let (_dir, file) = write(&lines);
        let ids = |w: Wanted| Story::read(&file, &w, 5 * hour_ms).unwrap().records.into_keys().collect::<Vec<_>>();
        assert_eq!(ids(Wanted { service: Some("even".into()), ..all() }), [2, 4]);
        assert_eq!(ids(Wanted { action: Some(ActionKind::Shrink), ..all() }), [0; 0]);
        assert_eq!(ids(Wanted { id: Some(3), ..all() }), [3]);
        assert_eq!(ids(Wanted { last: Some(2), ..all() }), [3, 4]);
        assert_eq!(ids(Wanted { since: Some(Since::parse("2h").unwrap()), ..all() }), [3, 4]);
        assert_eq!(ids(Wanted { since: Some(Since::parse("1970-01-01T02:00Z").unwrap()), ..all() }), [2, 3, 4]);
        let timeless: Vec<String> = (1..=4).map(|i| json(&record(i, "a", i * 1000, None))).chain([String::new()]).collect();
        std::fs::write(&file, timeless.join("\n")).unwrap();
        let ids = |w: Wanted| Story::read(&file, &w, 5 * hour_ms).unwrap().records.into_keys().collect::<Vec<_>>();
        assert_eq!(ids(Wanted { since: Some(Since::Ago(1000)), ..all() }), [3, 4]);
        for bad in ["", "10", "10x", "-1m", "m", "yesterday"] {
            assert_eq!(Since::parse(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    /// The journal is the one that was named, else that of the node's state folder; a virtual server without `journal` has none.
    #[test]
    fn the_journal_is_that_of_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node.toml");
        let asked = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let explain = crate::base::cli::Cli::try_parse_from(["surefootd", "explain", "--config", file.to_str().unwrap()]).unwrap();
            let crate::base::cli::Command::Explain(args) = explain.command else { panic!("another command") };
            journal(&args)
        };
        let service = "[[service]]\nservice = \"a\"\n";
        assert_eq!(asked("workload = \"w.toml\"\njournal = \"j\"\n").unwrap(), dir.path().join("j"));
        assert_eq!(asked(&format!("state_dir = \"s\"\n{service}")).unwrap(), dir.path().join("s").join(JOURNAL));
        // One file may serve both servers; only a local run then has a journal of its own.
        assert_eq!(asked(&format!("workload = \"w.toml\"\nstate_dir = \"s\"\n{service}")).unwrap(), dir.path().join("s").join(JOURNAL));
        let e = asked("workload = \"w.toml\"\n").unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains("journal: is missing") && e.to_string().contains("journal = "), "{e}");
    }

    /// An account says what was seen, what models said, what was rejected, what bound, what was expected and what came.
    #[test]
    fn an_account_is_whole() {
        let mut r = record(12, "moses", 12_300, Some(1_795_294_803_000));
        let run = RunLine { policy: "osml-plus".into(), platform: "server-1".into(), ..RunLine::default() };
        let text = account(&r, Some(&run));
        let said = [
            "#12 grow moses  2026-11-21 21:00:03 (12.3 s into the run), by osml-plus on server-1\n",
            "p99 12.0 ms, target 10.0 ms: QoS 0.83; verdict valid, 1043 requests, 1043/s\n",
            "held 5 cores, 3 ways, memory bandwidth 100 %\n",
            "features, mean of 5 intervals: ipc 0.90\n  not known: llc_misses_per_s, mbl_mbps",
            "Model-B  QoS on 6 cores, 3 ways",
            "1 way more: Model-B: gain 0.01\n",
            "one unit a step\n",
            "6 cores, ways 0x7, memory bandwidth 100 %\n",
            "QoS 1.25, p99 8.00 ms; holds if p99 falls, or the target is met\n",
            "not known yet",
        ];
        for s in said {
            assert!(text.contains(s), "{s:?} is not in\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
        r.effect = Some(effect(12).effect);
        let text = account(&r, None);
        let came = "p99 12.0 -> 7.90 ms (valid), QoS 0.83 -> 1.27, 1.0 s later, in the first full window: the expectation held";
        assert!(text.contains(came), "{text}");
        let mut story = Story::default();
        story.records.insert(12, (None, r));
        let text = table(&story);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert!(row.join(" ").contains("moses grow 12.0 -> 7.90 yes"), "{text}");
    }
}
