//! Workload files (docs/workload-format.md): which services and jobs come, change their load and leave, and when.

use crate::error::{suggest, Error, Result};
use crate::known::Known;
use crate::load::{Loads, RawBursts, RawDay, RawDrift, Said, Shapes, MOST_RPS};
use crate::toml::{place, toml_error};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use surefoot_io::input::{self, WRITTEN_BYTES};
use surefoot_server::Server;
use surefoot_vserver::{Profiles, VirtualServer};
use toml::Spanned;

/// A checked workload. Times in ms from the start.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The file's name without its ending.
    pub name: String,
    /// The platform it was written for, if it says so.
    pub platform: Option<String>,
    pub duration_ms: u64,
    pub lc: Vec<Lc>,
    pub be: Vec<Be>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Lc {
    /// The service's name; a second copy gets "-2".
    pub id: String,
    pub service: String,
    /// None: one per logical CPU.
    pub threads: Option<u32>,
    /// What it touches of its memory; None: what its profile says.
    pub ws_gb: Option<f64>,
    pub arrive_ms: u64,
    pub leave_ms: Option<u64>,
    /// RPS from each of these times on, the first at arrival.
    pub rps: Vec<(u64, f64)>,
    /// What multiplies it all the time.
    pub shapes: Shapes,
    /// RPS at load 1.
    pub max_load_rps: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Be {
    pub id: String,
    pub job: String,
    /// As a service's.
    pub ws_gb: Option<f64>,
    pub arrive_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    platform: Option<String>,
    duration_s: Spanned<f64>,
    #[serde(default)]
    lc: Vec<Spanned<RawLc>>,
    #[serde(default)]
    be: Vec<Spanned<RawBe>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[lc]]")]
struct RawLc {
    service: String,
    load: Option<f64>,
    rps: Option<f64>,
    threads: Option<i64>,
    ws_gb: Option<f64>,
    #[serde(default)]
    arrive_s: f64,
    leave_s: Option<f64>,
    #[serde(default)]
    change: Vec<Spanned<RawChange>>,
    bursts: Option<Spanned<RawBursts>>,
    drift: Option<Spanned<RawDrift>>,
    day: Option<Spanned<RawDay>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table { at_s = ..., load = ... }")]
struct RawChange {
    at_s: f64,
    load: Option<f64>,
    rps: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[be]]")]
struct RawBe {
    job: String,
    ws_gb: Option<f64>,
    #[serde(default)]
    arrive_s: f64,
}

/// A working set that a file may name, GB.
fn working_set(target: &impl Known, name: &str, ws_gb: Option<f64>) -> std::result::Result<Option<f64>, String> {
    match ws_gb {
        Some(gb) if !(0.001..=100_000.0).contains(&gb) => Err(format!("{gb} is out of range. Give 0.001 to 100000 GB")),
        Some(_) if !target.pages(name) => {
            Err(format!("the profile of {name} does not say how it pages. Leave ws_gb out, or add a profile with [paging]"))
        }
        ok => Ok(ok),
    }
}

/// All workload files that the arguments name, in order; a folder stands for its *.toml by name.
///
/// # Errors
/// [`Error::BadInput`].
pub fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut out = vec![];
    for path in given {
        // Where that cannot be told, reading it says why.
        if matches!(path.try_exists(), Ok(false)) {
            let path = path.display();
            return Err(Error::BadInput(format!("--workloads {path}: is not there. Give a workload file, or a folder of them")));
        }
        if !path.is_dir() {
            out.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|e| Error::io(path, "cannot be read", &e))?;
        let mut found: Vec<PathBuf> =
            entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|x| x == "toml") && p.is_file()).collect();
        if found.is_empty() {
            return Err(Error::BadInput(format!(
                "--workloads {}: no *.toml in this folder. Name a folder with workload files",
                path.display()
            )));
        }
        found.sort();
        out.extend(found);
    }
    Ok(out)
}

/// The text of a workload file.
///
/// # Errors
/// [`Error::BadInput`] names the file and the remedy.
pub fn text(file: &Path) -> Result<String> {
    input::text(file, WRITTEN_BYTES).map_err(|e| Error::unreadable(file, "a workload file", &e))
}

impl Workload {
    /// Read a workload and resolve it on a platform.
    ///
    /// # Errors
    /// [`Error::BadInput`] names file, line, field and remedy.
    pub fn read(file: &Path, target: &impl Known) -> Result<Self> {
        Self::read_with_text(file, target).map(|(w, _)| w)
    }

    /// The same, and the text that was read.
    ///
    /// # Errors
    /// See [`Workload::read`].
    pub fn read_with_text(file: &Path, target: &impl Known) -> Result<(Self, String)> {
        let text = text(file)?;
        Ok((Self::parse(file, &text, target)?, text))
    }

    /// `file` names the workload and is for messages.
    ///
    /// # Errors
    /// See [`Workload::read`].
    pub fn parse(file: &Path, text: &str, target: &impl Known) -> Result<Self> {
        let raw: Raw = toml::from_str(text).map_err(|e| toml_error(file, text, &e, "docs/workload-format.md lists every field"))?;
        let wrong =
            |span: &Range<usize>, field: &str, what: String| Error::BadInput(format!("{}: {field}: {what}", place(file, text, span)));
        let duration_s = *raw.duration_s.get_ref();
        if !(1.0..=86_400.0).contains(&duration_s) {
            return Err(wrong(&raw.duration_s.span(), "duration_s", format!("{duration_s} is out of range. Give 1 to 86400 seconds")));
        }
        let time = |span: &Range<usize>, field: &str, s: f64| {
            if (0.0..duration_s).contains(&s) {
                return Ok((s * 1000.0).round() as u64);
            }
            Err(wrong(span, field, format!("{s} is not within the workload. Give 0 to less than duration_s = {duration_s}")))
        };
        if raw.lc.is_empty() && raw.be.is_empty() {
            return Err(Error::BadInput(format!("{}: lc: no service and no job. Add [[lc]] or [[be]]", file.display())));
        }
        let mut copies: BTreeMap<String, u32> = BTreeMap::new();
        let mut id = |name: &str| {
            let n = copies.entry(name.into()).or_insert(0);
            *n += 1;
            if *n == 1 {
                name.to_string()
            } else {
                format!("{name}-{n}")
            }
        };
        let mut lc = vec![];
        for entry in &raw.lc {
            let (span, e) = (entry.span(), entry.get_ref());
            let Some(max_load_rps) = target.max_load_rps(&e.service) else {
                let hint = if target.jobs().contains(&e.service.as_str()) {
                    "It is a BE job: write [[be]] with job =".to_string()
                } else {
                    format!("{} Mend the name, or add a profile with --profiles", suggest(&e.service, target.services().into_iter()))
                };
                return Err(wrong(&span, "lc.service", format!("unknown service \"{}\". {hint}", e.service)));
            };
            let Some(max_load_rps) = max_load_rps.filter(|r| *r > 0.0) else {
                let what = format!("\"{}\" misses its QoS target at any load on {}. Leave it out", e.service, target.platform());
                return Err(wrong(&span, "lc.service", what));
            };
            let offered = |span: &Range<usize>, field: &str, load: Option<f64>, rps: Option<f64>| {
                let rps = match (load, rps) {
                    (Some(l), None) if l > 0.0 && l <= 10.0 => return Ok(l * max_load_rps),
                    (Some(l), None) => {
                        return Err(wrong(
                            span,
                            &format!("{field}.load"),
                            format!("{l} is out of range. Give above 0 and at most 10, where 1 is max load"),
                        ))
                    }
                    (None, Some(r)) => r,
                    _ => return Err(wrong(span, &format!("{field}.load"), "give either load or rps, not both and not none".into())),
                };
                if rps > 0.0 && rps <= MOST_RPS {
                    Ok(rps)
                } else {
                    Err(wrong(span, &format!("{field}.rps"), format!("{rps} is not above 0. Give requests per second above 0")))
                }
            };
            let threads = match e.threads {
                Some(t) if !(1..=4096).contains(&t) => {
                    return Err(wrong(&span, "lc.threads", format!("{t} is out of range. Give 1 to 4096")));
                }
                t => t.map(|t| t as u32),
            };
            let ws_gb = working_set(target, &e.service, e.ws_gb).map_err(|what| wrong(&span, "lc.ws_gb", what))?;
            let arrive_ms = time(&span, "lc.arrive_s", e.arrive_s)?;
            let leave_ms = match e.leave_s {
                Some(s) if s.is_nan() || s <= e.arrive_s => {
                    return Err(wrong(&span, "lc.leave_s", format!("{s} is not after arrive_s = {}. Give a later time", e.arrive_s)));
                }
                // Leaving after the end is staying.
                Some(s) if s >= duration_s => None,
                Some(s) => Some(time(&span, "lc.leave_s", s)?),
                None => None,
            };
            let mut rps = vec![(arrive_ms, offered(&span, "lc", e.load, e.rps)?)];
            for change in &e.change {
                let (span, c) = (change.span(), change.get_ref());
                let at = time(&span, "lc.change.at_s", c.at_s)?;
                let (last, _) = rps[rps.len() - 1];
                if at <= last || leave_ms.is_some_and(|l| at >= l) {
                    let what = format!("{} is not after the change before it, or not before leave_s. Put changes in time order", c.at_s);
                    return Err(wrong(&span, "lc.change.at_s", what));
                }
                rps.push((at, offered(&span, "lc.change", c.load, c.rps)?));
            }
            let mend = |span: Range<usize>| move |(field, what): (&str, String)| wrong(&span, &format!("lc.{field}"), what);
            let shapes = Shapes {
                bursts: e.bursts.as_ref().map(|b| b.get_ref().checked().map_err(mend(b.span()))).transpose()?,
                drift: e.drift.as_ref().map(|d| d.get_ref().checked().map_err(mend(d.span()))).transpose()?,
                day: e.day.as_ref().map(|d| d.get_ref().checked(target.traces()).map_err(mend(d.span()))).transpose()?,
            };
            let most = rps.iter().map(|(_, rps)| rps * shapes.highest()).fold(0.0, f64::max);
            if most > MOST_RPS {
                let what = format!("its shapes reach {most:e} requests/s. Give at most {MOST_RPS:e}: a lower load, level or high");
                return Err(wrong(&span, "lc.load", what));
            }
            lc.push(Lc { id: id(&e.service), service: e.service.clone(), threads, ws_gb, arrive_ms, leave_ms, rps, shapes, max_load_rps });
        }
        let mut be = vec![];
        for entry in &raw.be {
            let (span, e) = (entry.span(), entry.get_ref());
            if !target.jobs().contains(&e.job.as_str()) {
                let hint = if target.services().contains(&e.job.as_str()) {
                    "It is an LC service: write [[lc]] with service =".to_string()
                } else {
                    format!("{} Mend the name, or add a profile with --profiles", suggest(&e.job, target.jobs().into_iter()))
                };
                return Err(wrong(&span, "be.job", format!("unknown job \"{}\". {hint}", e.job)));
            }
            let ws_gb = working_set(target, &e.job, e.ws_gb).map_err(|what| wrong(&span, "be.ws_gb", what))?;
            be.push(Be { id: id(&e.job), job: e.job.clone(), ws_gb, arrive_ms: time(&span, "be.arrive_s", e.arrive_s)? });
        }
        let name = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Workload { name, platform: raw.platform, duration_ms: (duration_s * 1000.0).round() as u64, lc, be })
    }

    /// Whether a load changes between the times that the file names.
    pub fn has_shapes(&self) -> bool {
        self.lc.iter().any(|l| !l.shapes.is_none())
    }

    /// When the last service or job arrives or the file changes a load: convergence counts from here. Shapes change loads all the
    /// time, and begin nothing anew.
    pub fn last_change_ms(&self) -> u64 {
        let lc = self.lc.iter().flat_map(|l| l.rps.iter().map(|(t, _)| *t));
        lc.chain(self.be.iter().map(|b| b.arrive_ms)).max().unwrap_or(0)
    }

    /// Announce everything to a virtual server; returns what is offered in the run of this seed.
    ///
    /// # Errors
    /// [`Error::BadInput`] for what the server refuses.
    pub fn announce(&self, server: &mut VirtualServer, profiles: &Profiles, seed: u64) -> Result<Loads> {
        let refused = |e: surefoot_server::ServerError| Error::BadInput(format!("workload {}: {e}", self.name));
        // A set of a service that does not page was refused when the file was read.
        let profile = |name: &str, ws_gb: Option<f64>| profiles.service_of_size(name, ws_gb).map_err(|e| Error::BadInput(e.to_string()));
        let everywhere = server.platform().logical_cpus();
        let loads = self.loads(seed);
        for l in &self.lc {
            let first_rps = loads.rate_at(&l.id, l.arrive_ms).unwrap_or(l.rps[0].1);
            server.add(l.arrive_ms, &l.id, profile(&l.service, l.ws_gb)?, first_rps, l.threads.unwrap_or(everywhere)).map_err(refused)?;
            match loads.of(&l.id).filter(|_| !l.shapes.is_none()) {
                Some(course) => server.follow(&l.id, course.clone()),
                None => l.rps[1..].iter().try_for_each(|(t, rps)| server.set_load(*t, &l.id, *rps)).map_err(refused)?,
            }
            if let Some(t) = l.leave_ms {
                server.remove(t, &l.id).map_err(refused)?;
            }
        }
        for b in &self.be {
            server.add(b.arrive_ms, &b.id, profile(&b.job, b.ws_gb)?, 0.0, everywhere).map_err(refused)?;
        }
        Ok(loads)
    }
}

impl Workload {
    /// What is offered to every LC service in a run of this seed.
    pub fn loads(&self, seed: u64) -> Loads {
        Loads::draw(self.lc.iter().map(Lc::said), self.duration_ms, seed)
    }
}

impl Lc {
    /// What the file says of the load.
    pub fn said(&self) -> Said<'_> {
        Said { id: &self.id, rps: &self.rps, leave_ms: self.leave_ms, max_load_rps: self.max_load_rps, shapes: &self.shapes }
    }

    /// The highest load that shapes can reach, as a share of max load, while the file's is that of `t_ms`; None while the service is
    /// away. It depends on no seed. What is offered in a run is [`crate::load::Offered`].
    pub fn highest_load_at(&self, t_ms: u64) -> Option<f64> {
        if self.leave_ms.is_some_and(|l| t_ms >= l) {
            return None;
        }
        let (_, rps) = self.rps.iter().rev().find(|(t, _)| *t <= t_ms)?;
        Some(rps / self.max_load_rps * self.shapes.highest())
    }
}

/// A workload written for another platform is run, with a warning: its loads are shares of another max load.
pub fn check_platform(w: &Workload, platform: &str) {
    if let Some(p) = w.platform.as_ref().filter(|p| *p != platform) {
        tracing::warn!("workload {}: written for {p}, run on {platform}", w.name);
    }
}
