//! What the kernel offers, from `info` and the mount options, read once for each mount.
//!
//! Folders of `info` differ by processor, kernel and mount options: each value is looked up by name, and a file that is not
//! there means what it meant before the kernel had it.

use super::mba::{MbaInfo, Unit, MOST_EIGHTHS, NO_LIMIT_EIGHTHS};
use super::schemata::Schemata;
use crate::files::{text, Files};
use std::path::Path;

/// L3 allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L3 {
    /// Lines of `schemata`: `L3`, or with CDP `L3CODE` and `L3DATA`, which get the same mask.
    pub lines: &'static [&'static str],
    pub cbm_mask: u32,
    /// At least 1, also where the hardware takes an empty mask: a service always owns something.
    pub min_cbm_bits: u32,
    /// Bits that devices (or other agents) use too.
    pub shareable_bits: u32,
    /// Masks may have gaps.
    pub sparse_masks: bool,
}

/// L3 monitoring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Monitoring {
    pub num_rmids: u32,
    /// `llc_occupancy`, `mbm_total_bytes`, `mbm_local_bytes`.
    pub features: Vec<String>,
    pub max_threshold_occupancy_bytes: Option<u64>,
    /// How counters come to groups, as the kernel shows it ("[mbm_event]\ndefault"); None on kernels and processors without a choice.
    pub mbm_assign_mode: Option<String>,
}

/// Everything on offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    pub l3: Option<L3>,
    pub mba: Option<MbaInfo>,
    /// Control groups, the default group included: the least over the resources (CDP has halved L3's already).
    pub num_closids: u32,
    pub monitoring: Option<Monitoring>,
    /// Mount options, as far as they are shown.
    pub options: String,
}

impl Info {
    /// `options` are those of the mount.
    pub fn read(files: &dyn Files, dir: &Path, options: &str) -> Self {
        let info = |path: &str| text(files, dir.join("info").join(path));
        let number = |path: &str| info(path).and_then(|t| t.parse::<u32>().ok());
        let hex = |path: &str| info(path).and_then(|t| u32::from_str_radix(t.trim_start_matches("0x"), 16).ok());
        let l3 = |lines: &'static [&'static str]| {
            let of = |file: &str| format!("{}/{file}", lines[0]);
            Some(L3 {
                lines,
                cbm_mask: hex(&of("cbm_mask")).filter(|m| *m != 0)?,
                min_cbm_bits: number(&of("min_cbm_bits")).unwrap_or(1).max(1),
                shareable_bits: hex(&of("shareable_bits")).unwrap_or(0),
                sparse_masks: number(&of("sparse_masks")).is_some_and(|s| s != 0),
            })
        };
        let root = Schemata::parse(&text(files, dir.join("schemata")).unwrap_or_default());
        let mba = number("MB/bandwidth_gran").map(|step| {
            let mut m = MbaInfo {
                unit: Unit::Percent,
                min: number("MB/min_bandwidth").unwrap_or(0),
                step: step.max(1),
                linear: number("MB/delay_linear") == Some(1),
                throttle_mode: info("MB/thread_throttle_mode"),
                domains: root.line("MB").map_or(1, |l| l.len() as u32).max(1),
                no_limit_eighths: NO_LIMIT_EIGHTHS,
            };
            m.unit = unit(&m, options, &root);
            m.no_limit_eighths = no_limit_eighths(&root);
            m
        });
        let resources = files.list(&dir.join("info")).unwrap_or_default();
        let monitoring = info("L3_MON/mon_features").map(|features| Monitoring {
            num_rmids: number("L3_MON/num_rmids").unwrap_or(0),
            features: features.lines().map(|l| l.trim().to_string()).collect(),
            max_threshold_occupancy_bytes: info("L3_MON/max_threshold_occupancy").and_then(|t| t.parse().ok()),
            mbm_assign_mode: info("L3_MON/mbm_assign_mode"),
        });
        Info {
            l3: l3(&["L3"]).or_else(|| l3(&["L3CODE", "L3DATA"])),
            mba,
            num_closids: resources.iter().filter_map(|r| number(&format!("{r}/num_closids"))).min().unwrap_or(0),
            monitoring,
            options: options.into(),
        }
    }

    pub fn cdp(&self) -> bool {
        self.l3.as_ref().is_some_and(|l| l.lines.len() > 1)
    }

    /// The line whose domains are the L3 caches; None where nothing can be given.
    pub fn domain_line(&self) -> Option<&'static str> {
        self.l3.as_ref().map(|l| l.lines[0]).or(self.mba.as_ref().map(|_| "MB"))
    }

    pub fn monitors(&self, event: &str) -> bool {
        self.monitoring.as_ref().is_some_and(|m| m.features.iter().any(|f| f == event))
    }
}

fn most(root: &Schemata) -> u32 {
    root.line("MB").into_iter().flatten().filter_map(|(_, v)| v.parse::<u32>().ok()).max().unwrap_or(0)
}

/// AMD's value for no limit, which is the greatest that the field takes: 2048, or more on processors with a wider one. The default group
/// shows it where no limit was set.
fn no_limit_eighths(root: &Schemata) -> u32 {
    Some(most(root)).filter(|m| m.is_power_of_two()).map_or(NO_LIMIT_EIGHTHS, |m| m.clamp(NO_LIMIT_EIGHTHS, MOST_EIGHTHS))
}

/// The unit of `MB` lines. The mount option says it on a kernel; elsewhere (a stand-in shows no options) and for AMD the values do:
/// only MB/s go beyond the greatest of AMD's, only AMD's beyond 100.
fn unit(m: &MbaInfo, options: &str, root: &Schemata) -> Unit {
    let most = most(root);
    if options.split(',').any(|o| o == "mba_MBps") || most > MOST_EIGHTHS {
        Unit::MbPerS
    } else if most > 100 || (m.step == 1 && !m.linear && m.throttle_mode.is_none()) {
        Unit::EighthGbPerS
    } else {
        Unit::Percent
    }
}
