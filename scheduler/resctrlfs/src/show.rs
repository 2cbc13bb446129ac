//! What the files show.

use crate::errno::{Errno, Result};
use crate::hardware::Fault;
use crate::machine::{Group, GroupId, Machine, Mode, Schema};
use crate::rmid::Event;
use crate::tree::{File, InfoFile};
use std::fmt::Write as _;

impl Machine {
    pub(crate) fn show(&self, file: File) -> Result<Vec<u8>> {
        let text = match file {
            File::Cpus(g) => self.show_cpus(g, false)?,
            File::CpusList(g) => self.show_cpus(g, true)?,
            File::Mode(g) => self.group(g)?.mode.name().to_string() + "\n",
            File::Schemata(g) => self.show_schemata(self.group(g)?),
            File::Size(g) => self.show_size(self.group(g)?),
            File::Tasks(g) => self.members(self.group(g)?).iter().map(|t| format!("{t}\n")).collect(),
            File::CtrlHwId(g) => format!("{}\n", self.group(g)?.closid),
            File::MonHwId(g) => format!("{}\n", self.group(g)?.rmid),
            File::Counter(g, domain, event) => self.show_counter(g, domain, event)?,
            File::LastStatus => return Ok(self.status.show()),
            File::Info(f) => self.show_info(f)?,
        };
        Ok(text.into_bytes())
    }

    fn show_cpus(&self, id: GroupId, list: bool) -> Result<String> {
        let g = self.group(id)?;
        let cpus = match g.locked {
            Some((d, _)) => self.hw.domains[d].cpus.and(&self.online),
            None => g.cpus.clone(),
        };
        Ok(if list { cpus.list() } else { cpus.mask(self.hw.n_cpus()) } + "\n")
    }

    /// Width of resource names: room for the CDP names where CDP can be mounted.
    fn name_width(&self) -> usize {
        if self.hw.cdp {
            "L3DATA".len()
        } else {
            2
        }
    }

    /// Width of values, of the widest resource.
    fn value_width(&self) -> usize {
        let l3 = self.hw.cbm_bits.div_ceil(4) as usize;
        self.hw.mba.as_ref().map_or(l3, |m| l3.max(m.max.to_string().len()))
    }

    /// One line of a resource; `value` gives what to show for a domain (by index).
    fn line(&self, s: Schema, value: impl Fn(usize) -> String) -> String {
        let parts: Vec<String> = self.online_domains().into_iter().map(|d| format!("{}={}", self.hw.domains[d].id, value(d))).collect();
        format!("{:>width$}:{}\n", s.name(), parts.join(";"), width = self.name_width())
    }

    /// What a class is set to.
    pub(crate) fn setting(&self, s: Schema, domain: usize, closid: u32) -> u32 {
        let d = &self.settings[domain];
        let values = match s {
            Schema::Mb if self.in_mbps() => &d.mbps,
            Schema::Mb => &d.mb,
            _ => &d.l3[s.kind()],
        };
        values.get(closid as usize).copied().unwrap_or(0)
    }

    fn show_schemata(&self, g: &Group) -> String {
        if let Some((d, cbm)) = g.locked {
            return format!("L3:{}={cbm:x}\n", self.hw.domains[d].id);
        }
        let width = self.value_width();
        let mut text = String::new();
        for s in self.schemas() {
            text += &match (g.mode, s) {
                (Mode::PseudoLocksetup, _) => format!("{}:uninitialized\n", s.name()),
                (_, Schema::Mb) => self.line(s, |d| format!("{:width$}", self.setting(s, d, g.closid))),
                _ => self.line(s, |d| format!("{:0width$x}", self.setting(s, d, g.closid))),
            };
        }
        text
    }

    fn mask_bytes(&self, cbm: u32) -> u64 {
        self.hw.llc_bytes / u64::from(self.hw.cbm_bits) * u64::from(cbm.count_ones())
    }

    fn show_size(&self, g: &Group) -> String {
        if let Some((d, cbm)) = g.locked {
            return format!("{:>width$}:{}={}\n", "L3", self.hw.domains[d].id, self.mask_bytes(cbm), width = self.name_width());
        }
        let mut text = String::new();
        for s in self.schemas() {
            text += &self.line(s, |d| match (g.mode, s) {
                (Mode::PseudoLocksetup, _) => "0".into(),
                (_, Schema::Mb) => self.setting(s, d, g.closid).to_string(),
                _ => self.mask_bytes(self.setting(s, d, g.closid)).to_string(),
            });
        }
        text
    }

    /// A control group's counter adds those of its monitoring groups; those that fail are left out.
    fn show_counter(&self, id: GroupId, domain: usize, event: Event) -> Result<String> {
        let g = self.group(id)?;
        let Some(rmids) = &self.rmids else { return Err(Errno::ENODEV) };
        let mut all = vec![g.rmid];
        if g.parent.is_none() {
            all.extend(self.children(id).into_iter().filter_map(|c| self.group(c).ok().map(|c| c.rmid)));
        }
        let read: Vec<_> = all.into_iter().map(|r| rmids.read(domain, r, event)).collect();
        let good: Vec<u64> = read.iter().filter_map(|r| r.ok()).collect();
        Ok(match read.last() {
            Some(Err(fault)) if good.is_empty() => match fault {
                Fault::Error => "Error\n".into(),
                Fault::Unavailable => "Unavailable\n".into(),
            },
            _ => format!("{}\n", good.iter().sum::<u64>()),
        })
    }

    /// Who uses each way: X hardware and software, H hardware, S shared, E exclusive, P pseudo-locked, 0 nobody.
    fn bit_usage(&self, kind: usize, domain: usize) -> String {
        let (mut shared, mut exclusive) = (0, 0);
        for (closid, mode) in self.classes() {
            let cbm = self.settings[domain].l3[kind][closid as usize];
            match mode {
                Mode::Shareable => shared |= cbm,
                Mode::Exclusive => exclusive |= cbm,
                Mode::PseudoLocksetup | Mode::PseudoLocked => {}
            }
        }
        let locked = self.settings[domain].locked.unwrap_or(0);
        let letter = |bit: u32| {
            let has = |mask: u32| mask >> bit & 1 == 1;
            match (has(self.hw.shareable_bits), has(shared)) {
                (true, true) => 'X',
                (true, false) => 'H',
                (false, true) => 'S',
                (false, false) if has(exclusive) => 'E',
                (false, false) if has(locked) => 'P',
                (false, false) => '0',
            }
        };
        (0..self.hw.cbm_bits).rev().map(letter).collect()
    }

    fn show_info(&self, file: InfoFile) -> Result<String> {
        let hw = &self.hw;
        let (mba, mon) = (hw.mba.as_ref(), hw.monitoring.as_ref());
        let mut text = match file {
            InfoFile::BitUsage(kind) => {
                let parts: Vec<String> =
                    self.online_domains().into_iter().map(|d| format!("{}={}", hw.domains[d].id, self.bit_usage(kind, d))).collect();
                parts.join(";")
            }
            InfoFile::CbmMask => format!("{:x}", hw.cbm_mask()),
            InfoFile::MinCbmBits => hw.min_cbm_bits.to_string(),
            InfoFile::NumClosids(n) => n.to_string(),
            InfoFile::ShareableBits => format!("{:x}", hw.shareable_bits),
            InfoFile::SparseMasks => u8::from(hw.sparse_masks).to_string(),
            InfoFile::BandwidthGran => mba.ok_or(Errno::ENODEV)?.step.to_string(),
            InfoFile::DelayLinear => u8::from(mba.ok_or(Errno::ENODEV)?.linear).to_string(),
            InfoFile::MinBandwidth => mba.ok_or(Errno::ENODEV)?.min.to_string(),
            InfoFile::ThrottleMode => mba.and_then(|m| m.throttle_mode).ok_or(Errno::ENODEV)?.to_string(),
            InfoFile::Threshold => self.rmids.as_ref().ok_or(Errno::ENODEV)?.threshold_bytes().to_string(),
            InfoFile::MonFeatures => Event::ALL.map(Event::name).join("\n"),
            InfoFile::NumRmids => mon.ok_or(Errno::ENODEV)?.rmids.to_string(),
        };
        let _ = writeln!(text);
        Ok(text)
    }
}
