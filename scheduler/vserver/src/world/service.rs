//! An LC service, drawn; and its target and max load, measured on the world's server.

use super::quantities as q;
use super::quantity::{digits, Stream};
use crate::profile::{PlatformProfile, Profile, ProfileError};
use crate::steady::{max_load_rps, Steady, HORIZON_S};
use crate::tenant::Tenant;
use std::path::Path;
use std::sync::Arc;
use surefoot_server::allocation::full_mask;
use surefoot_server::CpuSet;

/// Max load of a service that meets its target at none, requests/s: the least that a profile may name. No draw has come to it.
const LEAST_RPS: f64 = 1e-6;

/// What a world wants of one of its services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Any,
    /// A p99 that neighbours move past the target, and that cores and ways do not bring back.
    Floor,
    /// It refuses requests instead of letting them wait past the target.
    Sheds,
}

/// A drawn service.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub profile: Arc<Profile>,
    pub text: String,
    /// What was wanted is there.
    pub has: Wanted,
    /// CPU time at max load alone on the whole server, cores.
    pub busy_cores: f64,
}

/// The world that a service is drawn for.
pub struct Site {
    pub platform: Arc<PlatformProfile>,
    /// The job that floors are judged beside.
    pub streams: Arc<Profile>,
    /// Its services page as those of the COSMOS paper do.
    pub is_over_committed: bool,
}

/// What is written into a profile.
struct Fields {
    name: String,
    title: String,
    body: [String; 2],
    max_outstanding: f64,
    target_ms: f64,
    max_rps: Option<f64>,
}

impl Site {
    /// Draw a service.
    ///
    /// # Errors
    /// [`ProfileError`] where the loader refuses what was drawn: a fault of the ranges.
    pub fn service(&self, s: Stream, name: &str, wanted: Wanted) -> Result<Drawn, ProfileError> {
        let tries = if wanted == Wanted::Floor { q::MOST_TRIES } else { 1 };
        let mut kept = self.attempt(s, name, wanted)?;
        for n in 1..tries {
            if kept.1 == wanted {
                break;
            }
            kept = self.attempt(s.part("again", n), name, wanted)?;
        }
        self.with_max_load(kept.0, kept.1)
    }

    /// All of a service but its max load; and whether what was wanted is there.
    fn attempt(&self, s: Stream, name: &str, wanted: Wanted) -> Result<(Fields, Wanted), ProfileError> {
        let minstr = digits(s.draw(&q::MINSTR) * if s.is(&q::SLOW) { q::SLOW_FACTOR } else { 1.0 }, 4);
        let cpi = s.draw(&q::CPI_CORE);
        let reference_s = minstr * 1e6 * cpi * q::REFERENCE_STALLS / (q::REFERENCE_GHZ * 1e9);
        let dispatch_us = digits(reference_s * 1e6 / q::REFERENCE_WORKERS / s.draw(&q::FRONT), 4);
        let capacity_rps = (1e6 / dispatch_us).min(q::REFERENCE_WORKERS / reference_s);
        let idle_rps = q::IDLE_LOAD * capacity_rps;
        let open = if s.is(&q::BOUNDED) { s.draw(&q::OUTSTANDING).round() } else { q::OPEN_LOOP };
        let body = [demand(s, minstr, cpi, dispatch_us), memory(s, self.is_over_committed)];
        let title = format!("drawn service, {} a request", work(minstr));
        let mut f = Fields { name: name.into(), title, body, max_outstanding: open, target_ms: 1e6, max_rps: None };
        let idle_ms = self.alone_ms(&f.profile()?, idle_rps);
        let factor = s.draw(&q::TARGET).max(if wanted == Wanted::Sheds { q::LEAST_SHED_TARGET } else { 0.0 });
        // Rounded up, so that the target stays above what it was drawn from.
        f.target_ms = up(idle_ms * factor, 2);
        let mut has = Wanted::Any;
        if wanted == Wanted::Floor {
            let company_ms = self.company_ms(&f.profile()?, idle_rps);
            if company_ms > idle_ms * q::LEAST_FLOOR {
                f.target_ms = up(idle_ms + s.draw(&q::FLOOR_TARGET) * (company_ms - idle_ms), 3);
                has = if f.target_ms < company_ms { Wanted::Floor } else { Wanted::Any };
            }
        }
        if wanted == Wanted::Sheds {
            let wait_s = (f.target_ms - idle_ms) * 1e-3 * s.draw(&q::SHED_WAIT);
            let (fewest, most) = q::SHED_OUTSTANDING;
            // Neither the workers' queue nor the front station's gets longer than that.
            let at_workers = wait_s * q::SHED_CORES / reference_s;
            f.max_outstanding = at_workers.min(wait_s * 1e6 / dispatch_us).floor().clamp(fewest, most);
            has = Wanted::Sheds;
        }
        Ok((f, has))
    }

    fn with_max_load(&self, mut f: Fields, has: Wanted) -> Result<Drawn, ProfileError> {
        let profile = Arc::new(f.profile()?);
        // The target is above the idle p99, so some load meets it.
        let max = max_load_rps(&self.platform, &profile).unwrap_or(LEAST_RPS).max(LEAST_RPS);
        f.max_rps = Some(down(max, 3));
        let text = f.text();
        let profile = Arc::new(f.profile()?);
        let busy_cores = self.case(&profile, down(max, 3)).cpu_usage_cores;
        Ok(Drawn { profile, text, has, busy_cores })
    }

    /// Alone on the whole server, a thread a CPU.
    fn case(&self, profile: &Arc<Profile>, rps: f64) -> crate::steady::Sample {
        let p = &self.platform;
        let tenant = [Tenant::new(profile.clone(), rps, p.logical_cpus(), p.all_cpus(), full_mask(p.llc.ways))];
        Steady::new(p.clone()).case(&tenant, HORIZON_S)[0]
    }

    fn alone_ms(&self, profile: &Profile, rps: f64) -> f64 {
        self.case(&Arc::new(profile.clone()), rps).latency.map_or(0.0, |l| l.p99)
    }

    /// p99 on a good part of the server, the streaming job on the rest.
    pub fn company_ms(&self, profile: &Profile, rps: f64) -> f64 {
        company_ms(&self.platform, &self.streams, &Arc::new(profile.clone()), rps)
    }
}

/// p99 of a service on [`q::COMPANY_CORES`] and [`q::COMPANY_WAYS`] of the server while a job has the rest, ms.
pub fn company_ms(p: &Arc<PlatformProfile>, job: &Arc<Profile>, service: &Arc<Profile>, rps: f64) -> f64 {
    let cores = p.cpu.physical_cores;
    let mine = ((f64::from(cores) * q::COMPANY_CORES) as u32).clamp(1, cores - 1);
    let ways = ((f64::from(p.llc.ways) * q::COMPANY_WAYS) as u32).max(1);
    // Whole cores: no sibling of the service's runs the job.
    let cpus =
        |from: u32, to: u32| (0..p.cpu.smt).fold(CpuSet::empty(), |set, t| set.union(CpuSet::range(t * cores + from, t * cores + to)));
    let low = full_mask(ways);
    let tenants = [
        Tenant::new(service.clone(), rps, p.logical_cpus(), cpus(0, mine), low),
        Tenant::new(job.clone(), 0.0, p.logical_cpus(), cpus(mine, cores), full_mask(p.llc.ways) & !low),
    ];
    Steady::new(p.clone()).case(&tenants, HORIZON_S)[0].latency.map_or(0.0, |l| l.p99)
}

impl Fields {
    fn profile(&self) -> Result<Profile, ProfileError> {
        Profile::parse(Path::new(&format!("{}.toml", self.name)), &self.text())
    }

    fn text(&self) -> String {
        let Fields { name, title, body: [demand, memory], max_outstanding, target_ms, max_rps } = self;
        let levels = match max_rps {
            Some(max) => q::LEVELS.iter().map(|l| digits(l * max, 4).to_string()).collect::<Vec<_>>().join(", "),
            None => "1".into(),
        };
        // By the name of its server alone: elsewhere max load is another, and is computed.
        let max_load = max_rps.map_or(String::new(), |max| format!("\n[max_load_rps]\n{} = {max}\n", platform_of(name)));
        format!(
            "# A drawn LC service (docs/worlds.md). Fields: docs/virtual-server.md.\n\
             kind = \"lc\"\nname = \"{name}\"\ntitle = \"{title}\"\ndomain = \"drawn\"\nqos_target_ms = {target_ms}\n\
             rps_levels = [{levels}]\n\n{demand}max_outstanding = {max_outstanding}\n\n{memory}{max_load}"
        )
    }
}

/// `tune-7-p` for `tune-7-s3`.
fn platform_of(service: &str) -> String {
    format!("{}-p", service.rsplit_once('-').map_or(service, |(world, _)| world))
}

/// CPU, cache and, but for its bound, queue.
fn demand(s: Stream, minstr: f64, cpi: f64, dispatch_us: f64) -> String {
    let contention = if s.is(&q::CONTENDED) { s.draw(&q::CONTENTION) } else { 0.0 };
    let floor = s.draw(&q::MRC_FLOOR);
    let (main, hot) = (s.draw(&q::MAIN_A), s.draw(&q::HOT_A));
    let scale = ((q::MOST_MISSES - floor) / (main + hot)).min(1.0);
    let (main, hot) = (digits(main * scale, 4), digits(hot * scale, 4));
    let (io_prob, io_ms) = if s.is(&q::DISK) { (s.draw(&q::IO_PROB), s.draw(&q::IO_MS)) } else { (0.0, 0.0) };
    let scv_arrival = if s.is(&q::BURSTY) { s.draw(&q::SCV_ARRIVAL) } else { 1.0 };
    format!(
        "[cpu]\nminstr_per_req = {minstr}\ncpi_core = {cpi}\ncontention = {contention}\noversub = {}\nweight = 1.0\n\n\
         [cache]\napki = {}\nl2_exp = {}\nmrc_floor = {floor}\nmrc = [[{main}, {}, {}], [{hot}, {}, {}]]\n\
         ws_thread = {}\nmlp = {}\nllc_exposed = {}\nwriteback = {}\n\n\
         [queue]\nscv_arrival = {scv_arrival}\nscv_service = {}\ndispatch_us = {dispatch_us}\ndispatch_scv = {}\nnet_us = {}\n\
         io_prob = {io_prob}\nio_ms = {io_ms}\n",
        s.draw(&q::OVERSUB),
        s.draw(&q::APKI),
        s.draw(&q::L2_EXP),
        s.draw(&q::MAIN_MB),
        s.draw(&q::MAIN_P),
        s.draw(&q::HOT_MB),
        s.draw(&q::HOT_P),
        s.draw(&q::WS_THREAD),
        s.draw(&q::MLP),
        s.draw(&q::LLC_EXPOSED),
        s.draw(&q::WRITEBACK),
        s.draw(&q::SCV_SERVICE),
        s.draw(&q::DISPATCH_SCV),
        s.draw(&q::NET_US),
    )
}

fn memory(s: Stream, is_over_committed: bool) -> String {
    let (mut res_mb, mut paging) = (s.draw(&q::RES_MB).round(), String::new());
    if is_over_committed {
        (res_mb, paging) = super::memory::of_service(s);
    } else if res_mb >= q::PAGING_FROM_MB {
        paging = paging_of(s, res_mb);
    }
    format!(
        "[memory]\nvirt_mb = {}\nvirt_mb_thread = {}\nres_mb = {res_mb}\nres_mb_thread = {}\nres_mb_queued = {}\n{paging}",
        (res_mb * s.draw(&q::VIRT_RATIO)).round(),
        s.draw(&q::VIRT_THREAD),
        s.draw(&q::RES_THREAD),
        s.draw(&q::RES_QUEUED),
    )
}

/// How a service of so many MB pages where there is memory enough.
fn paging_of(s: Stream, res_mb: f64) -> String {
    format!(
        "\n[paging]\nws_gb = {}\npage_skew = {}\npages = {}\ncompress_ratio = {}\nlru_error = {}\n",
        digits(res_mb / 1024.0 * s.draw(&q::WS_RATIO), 3),
        s.draw(&q::PAGE_SKEW),
        s.draw(&q::PAGES),
        s.draw(&q::COMPRESS),
        s.draw(&q::LRU_ERROR),
    )
}

/// Work of a request in words.
fn work(minstr: f64) -> String {
    match minstr {
        m if m < 1.0 => format!("{} thousand instructions", digits(m * 1e3, 2)),
        m => format!("{} million instructions", digits(m, 2)),
    }
}

/// Rounded to so many significant digits, but never below `x`.
fn up(x: f64, n: usize) -> f64 {
    let near = digits(x, n);
    if near >= x {
        return near;
    }
    digits(near + 10f64.powi(x.log10().floor() as i32 + 1 - n as i32), n)
}

/// The same, never above `x`.
fn down(x: f64, n: usize) -> f64 {
    let near = digits(x, n);
    if near <= x {
        return near;
    }
    digits(near - 10f64.powi(x.log10().floor() as i32 + 1 - n as i32), n)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Targets are rounded up and max loads down, by less than one in the last digit.
    #[test]
    fn rounding_keeps_its_side() {
        for (x, n, high, low) in [(1.234, 2, 1.3, 1.2), (0.0951, 2, 0.096, 0.095), (9.96, 2, 10.0, 9.9), (1200.0, 2, 1200.0, 1200.0)] {
            assert_eq!((up(x, n), down(x, n)), (high, low));
        }
    }
}
