//! What the files take: one write is one command.

use crate::cpus::Cpus;
use crate::errno::{Errno, Result};
use crate::hardware::Kernel;
use crate::machine::{Caller, GroupId, Machine, Mode, Schema, DEFAULT, NO_LIMIT_MBPS};
use crate::number::{c_str, signed_32, trim, unsigned, unsigned_32};
use crate::tree::{Dir, File, What};
use std::collections::BTreeMap;
use std::ffi::OsStr;

/// Values of a write to `schemata` that are parsed and not yet applied, by resource and domain (by index).
type Staged = BTreeMap<(Schema, usize), u32>;

impl Machine {
    /// Log why, and refuse.
    fn refuse<T>(&mut self, why: impl AsRef<[u8]>) -> Result<T> {
        self.status.add(why.as_ref());
        Err(Errno::EINVAL)
    }

    pub(crate) fn write_threshold(&mut self, data: &[u8]) -> Result<()> {
        let bytes = unsigned_32(data, 0)?;
        self.rmids.as_mut().ok_or(Errno::ENODEV)?.set_threshold(bytes)
    }

    // ---- tasks.

    pub(crate) fn write_tasks(&mut self, id: GroupId, data: &[u8], who: Caller) -> Result<()> {
        if self.hw.kernel == Kernel::V6_1 {
            let tid = signed_32(trim(c_str(data)), 0).ok().and_then(|t| u32::try_from(t).ok()).ok_or(Errno::EINVAL)?;
            self.status.clear();
            self.holds_tasks(id)?;
            return self.join(tid, id, who);
        }
        self.status.clear();
        self.holds_tasks(id)?;
        let mut rest = c_str(data);
        while !matches!(rest.first(), None | Some(b'\n')) {
            let end = rest.iter().position(|b| *b == b',');
            let text = trim(&rest[..end.unwrap_or(rest.len())]);
            rest = end.map_or(&[], |n| &rest[n + 1..]);
            let Ok(tid) = signed_32(text, 0) else {
                return self.refuse([b"Task list parsing error pid ", text, b"\n"].concat());
            };
            let Ok(tid) = u32::try_from(tid) else {
                return self.refuse(format!("Invalid pid {tid}\n"));
            };
            if let Err(e) = self.join(tid, id, who) {
                self.status.add(format!("Error while processing task {tid}\n").as_bytes());
                return Err(e);
            }
        }
        Ok(())
    }

    fn holds_tasks(&mut self, id: GroupId) -> Result<()> {
        if self.group(id)?.mode.pseudo() {
            return self.refuse("Pseudo-locking in progress\n");
        }
        Ok(())
    }

    // ---- cpus.

    pub(crate) fn write_cpus(&mut self, id: GroupId, data: &[u8], list: bool) -> Result<()> {
        self.holds_tasks(id)?;
        let n = self.hw.n_cpus();
        let parsed = if list { Cpus::parse_list(data, n) } else { Cpus::parse_mask(data, n) };
        let new = parsed.inspect_err(|_| self.status.add(b"Bad CPU list/mask\n"))?;
        if !new.minus(&self.online).is_empty() {
            return self.refuse("Can only assign online CPUs\n");
        }
        match self.group(id)?.parent {
            None => self.give_cpus(id, new),
            Some(parent) => self.monitor_cpus(id, parent, new),
        }
    }

    fn give_cpus(&mut self, id: GroupId, new: Cpus) -> Result<()> {
        let dropped = self.group(id)?.cpus.minus(&new);
        if !dropped.is_empty() {
            if id == DEFAULT {
                return self.refuse("Can't drop CPUs from default group\n");
            }
            self.group_mut(DEFAULT)?.cpus.add(&dropped);
        }
        let added = new.minus(&self.group(id)?.cpus);
        for (other, g) in &mut self.mounted_mut()?.groups {
            // Monitoring groups of this group start anew; elsewhere they lose what their parent loses.
            if g.parent == Some(id) {
                g.cpus.clear();
            } else if *other != id {
                g.cpus = g.cpus.minus(&added);
            }
        }
        self.group_mut(id)?.cpus = new;
        Ok(())
    }

    fn monitor_cpus(&mut self, id: GroupId, parent: GroupId, new: Cpus) -> Result<()> {
        if !new.minus(&self.group(parent)?.cpus).is_empty() {
            return self.refuse("Can only add CPUs to mongroup that belong to parent\n");
        }
        for sibling in self.children(parent) {
            let g = self.group_mut(sibling)?;
            g.cpus = g.cpus.minus(&new);
        }
        self.group_mut(id)?.cpus = new;
        Ok(())
    }

    // ---- schemata.

    pub(crate) fn write_schemata(&mut self, id: GroupId, data: &[u8]) -> Result<()> {
        let Some((b'\n', text)) = data.split_last() else { return Err(Errno::EINVAL) };
        self.status.clear();
        let mode = self.group(id)?.mode;
        if mode == Mode::PseudoLocked {
            return self.refuse("Resource group is pseudo-locked\n");
        }
        let mut staged = Staged::new();
        for line in c_str(text).split(|b| *b == b'\n') {
            let Some(colon) = line.iter().position(|b| *b == b':') else { return self.refuse("Missing ':'\n") };
            let (name, values) = (trim(&line[..colon]), &line[colon + 1..]);
            if values.is_empty() {
                return self.refuse([b"Missing '", name, b"' value\n"].concat());
            }
            let Some(schema) = self.schemas().into_iter().find(|s| s.name().as_bytes() == name) else {
                return self.refuse([b"Unknown or unsupported resource name '", name, b"'\n"].concat());
            };
            self.parse_line(id, schema, values, &mut staged)?;
        }
        let closid = self.group(id)?.closid as usize;
        for ((schema, d), value) in &staged {
            match schema {
                Schema::Mb => self.settings[*d].mb[closid] = *value,
                s => self.settings[*d].l3[s.kind()][closid] = *value,
            }
        }
        if mode == Mode::PseudoLocksetup {
            if let Some(((_, d), cbm)) = staged.first_key_value() {
                self.lock(id, *d, *cbm)?;
            }
        }
        Ok(())
    }

    fn parse_line(&mut self, id: GroupId, schema: Schema, values: &[u8], staged: &mut Staged) -> Result<()> {
        let mode = self.group(id)?.mode;
        if mode == Mode::PseudoLocksetup && schema == Schema::Mb {
            return self.refuse("Cannot pseudo-lock MBA resource\n");
        }
        let mut rest = Some(values);
        while let Some(line) = rest.filter(|l| !l.is_empty()) {
            let end = line.iter().position(|b| *b == b';');
            let part = &line[..end.unwrap_or(line.len())];
            rest = end.map(|n| &line[n + 1..]);
            let parsed = part.iter().position(|b| *b == b'=').and_then(|n| Some((unsigned(&part[..n], 10).ok()?, trim(&part[n + 1..]))));
            let Some((domain, value)) = parsed else {
                return self.refuse("Missing '=' or non-numeric domain\n");
            };
            let found = self.online_domains().into_iter().find(|d| u64::from(self.hw.domains[*d].id) == domain);
            let d = found.ok_or(Errno::EINVAL)?;
            if staged.contains_key(&(schema, d)) {
                return self.refuse(format!("Duplicate domain {domain}\n"));
            }
            if schema == Schema::Mb {
                let value = self.parse_bandwidth(value)?;
                if self.in_mbps() {
                    // The software controller takes it at once, whatever comes after it.
                    let closid = self.group(id)?.closid as usize;
                    self.settings[d].mbps[closid] = value;
                } else {
                    staged.insert((schema, d), value);
                }
            } else {
                let cbm = self.parse_cbm(id, schema, d, value)?;
                staged.insert((schema, d), cbm);
                if mode == Mode::PseudoLocksetup {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn parse_bandwidth(&mut self, text: &[u8]) -> Result<u32> {
        let Ok(value) = unsigned_32(text, 10) else {
            return self.refuse([b"Invalid MB value ", text, b"\n"].concat());
        };
        if self.in_mbps() {
            return Ok(value);
        }
        let (min, max, step) = self.hw.mba.as_ref().map(|m| (m.min, m.max, m.step)).ok_or(Errno::EINVAL)?;
        if value < min || value > max {
            return self.refuse(format!("MB value {value} out of range [{min},{max}]\n"));
        }
        Ok(value.next_multiple_of(step))
    }

    fn parse_cbm(&mut self, id: GroupId, schema: Schema, domain: usize, text: &[u8]) -> Result<u32> {
        let (mode, closid) = self.group(id).map(|g| (g.mode, g.closid))?;
        if mode == Mode::PseudoLocksetup && self.settings[domain].locked.is_some() {
            return self.refuse("Pseudo-locked region in hierarchy\n");
        }
        let Ok(value) = unsigned(text, 16) else {
            return self.refuse([b"Non-hex character in the mask ", text, b"\n"].concat());
        };
        let cbm = match u32::try_from(value) {
            Ok(v) if v <= self.hw.cbm_mask() && (v != 0 || self.hw.min_cbm_bits == 0) => v,
            _ => return self.refuse("Mask out of range\n"),
        };
        let run = (cbm >> cbm.trailing_zeros().min(31)).trailing_ones();
        if !self.hw.sparse_masks && run != cbm.count_ones() {
            return self.refuse(format!("The mask {cbm:x} has non-consecutive 1-bits\n"));
        }
        if run < self.hw.min_cbm_bits {
            return self.refuse(format!("Need at least {} bits in the mask\n", self.hw.min_cbm_bits));
        }
        if !mode.pseudo() && self.settings[domain].locked.is_some_and(|l| l & cbm != 0) {
            return self.refuse("CBM overlaps with pseudo-locked region\n");
        }
        if self.overlaps(schema, domain, cbm, closid, true) {
            return self.refuse("Overlaps with exclusive group\n");
        }
        if mode != Mode::Shareable && self.overlaps(schema, domain, cbm, closid, false) {
            return self.refuse("Overlaps with other group\n");
        }
        Ok(cbm)
    }

    /// Does a mask meet another class's (only exclusive ones', or all and the hardware's too)? Under CDP, code and data count.
    fn overlaps(&self, schema: Schema, domain: usize, cbm: u32, closid: u32, only_exclusive: bool) -> bool {
        if !only_exclusive && cbm & self.hw.shareable_bits != 0 {
            return true;
        }
        let kinds: &[usize] = if self.cdp() { &[0, 1] } else { &[0] };
        debug_assert!(kinds.contains(&schema.kind()));
        self.classes()
            .into_iter()
            .filter(|(c, mode)| *c != closid && *mode != Mode::PseudoLocksetup && (!only_exclusive || *mode == Mode::Exclusive))
            .any(|(c, _)| kinds.iter().any(|k| self.settings[domain].l3[*k][c as usize] & cbm != 0))
    }

    /// Settings of a new class: all that no exclusive or pseudo-locked group holds, cut to its lowest run of ways.
    pub(crate) fn init_class(&mut self, closid: u32) -> Result<()> {
        let c = closid as usize;
        let mut new: Vec<(usize, usize, u32)> = vec![];
        for s in self.schemas().into_iter().filter(|s| *s != Schema::Mb) {
            for d in self.online_domains() {
                let kinds: &[usize] = if self.cdp() { &[0, 1] } else { &[0] };
                let (mut mine, mut used) = (self.hw.shareable_bits, self.hw.shareable_bits);
                for (other, mode) in self.classes() {
                    if other == closid || mode == Mode::PseudoLocksetup {
                        continue;
                    }
                    let theirs = kinds.iter().fold(0, |m, k| m | self.settings[d].l3[*k][other as usize]);
                    used |= theirs;
                    if mode == Mode::Shareable {
                        mine |= theirs;
                    }
                }
                used |= self.settings[d].locked.unwrap_or(0);
                let cbm = lowest_run(mine | (self.hw.cbm_mask() & !used));
                if cbm.count_ones() < self.hw.min_cbm_bits {
                    self.status.add(format!("No space on {}:{}\n", s.name(), self.hw.domains[d].id).as_bytes());
                    return Err(Errno::ENOSPC);
                }
                new.push((d, s.kind(), cbm));
            }
        }
        let most = self.hw.mba.as_ref().map_or(0, |m| m.max);
        for d in self.online_domains() {
            self.settings[d].mb[c] = most;
            self.settings[d].mbps[c] = NO_LIMIT_MBPS;
        }
        for (d, kind, cbm) in new {
            self.settings[d].l3[kind][c] = cbm;
        }
        Ok(())
    }

    // ---- mode.

    pub(crate) fn write_mode(&mut self, id: GroupId, data: &[u8]) -> Result<()> {
        let Some((b'\n', text)) = data.split_last() else { return Err(Errno::EINVAL) };
        self.status.clear();
        let mode = self.group(id)?.mode;
        let text = c_str(text);
        if text == mode.name().as_bytes() {
            return Ok(());
        }
        if mode == Mode::PseudoLocked {
            return self.refuse("Cannot change pseudo-locked group\n");
        }
        let new = match text {
            b"shareable" => Mode::Shareable,
            b"exclusive" => {
                self.stands_alone(id)?;
                Mode::Exclusive
            }
            b"pseudo-locksetup" => {
                self.enter_locksetup(id)?;
                Mode::PseudoLocksetup
            }
            _ => return self.refuse("Unknown or unsupported mode\n"),
        };
        if mode == Mode::PseudoLocksetup {
            let rmid = self.alloc_rmid()?;
            self.group_mut(id)?.rmid = rmid;
            self.restrict(id, 0o777, &["cpus", "cpus_list", "tasks", "mon_groups"]);
        }
        self.group_mut(id)?.mode = new;
        Ok(())
    }

    fn stands_alone(&mut self, id: GroupId) -> Result<()> {
        let closid = self.group(id)?.closid;
        for s in self.schemas().into_iter().filter(|s| *s != Schema::Mb) {
            for d in self.online_domains() {
                if self.overlaps(s, d, self.setting(s, d, closid), closid, false) {
                    return self.refuse("Schemata overlaps\n");
                }
            }
        }
        Ok(())
    }

    fn enter_locksetup(&mut self, id: GroupId) -> Result<()> {
        let g = self.group(id)?.clone();
        let why = if id == DEFAULT {
            "Cannot pseudo-lock default group\n"
        } else if self.cdp() {
            "CDP enabled\n"
        } else if !self.hw.pseudo_locking {
            "Pseudo-locking not supported\n"
        } else if !self.children(id).is_empty() {
            "Monitoring in progress\n"
        } else if !self.members(&g).is_empty() {
            "Tasks assigned to resource group\n"
        } else if !g.cpus.is_empty() {
            "CPUs assigned to resource group\n"
        } else {
            self.restrict(id, 0, &["cpus", "cpus_list", "tasks", "mon_groups"]);
            self.release_rmid(g.rmid);
            return Ok(());
        };
        self.refuse(why)
    }

    /// The region is filled and locked; the class is free again.
    fn lock(&mut self, id: GroupId, domain: usize, cbm: u32) -> Result<()> {
        self.settings[domain].locked = Some(cbm);
        let g = self.group_mut(id)?;
        g.locked = Some((domain, cbm));
        g.mode = Mode::PseudoLocked;
        self.restrict(id, 0o444, &["cpus", "cpus_list"]);
        Ok(())
    }

    /// Modes of some of a group's files: as at first, within `mask`.
    fn restrict(&mut self, id: GroupId, mask: u32, names: &[&str]) {
        let Ok(dir) = self.group(id).map(|g| g.dir) else { return };
        let Ok(m) = self.mounted_mut() else { return };
        for name in names {
            let Some(node) = m.tree.child(dir, OsStr::new(name)) else { continue };
            let mode = match m.tree.what(node) {
                Ok(What::Dir(Dir::MonGroups(_))) => 0o755,
                Ok(What::File(File::Cpus(_) | File::CpusList(_) | File::Tasks(_))) => 0o644,
                _ => continue,
            };
            if let Ok(a) = m.tree.attr_mut(node) {
                a.mode = mode & mask;
            }
        }
    }
}

/// The run of ones that holds the lowest one.
fn lowest_run(mask: u32) -> u32 {
    let low = mask.trailing_zeros();
    if low == 32 {
        return 0;
    }
    let run = (mask >> low).trailing_ones();
    (u32::MAX >> (32 - run)) << low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0b0110_1100: the lowest run is bits 2 and 3.
    #[test]
    fn the_lowest_run_is_kept() {
        assert_eq!(lowest_run(0b0110_1100), 0b1100);
        assert_eq!(lowest_run(0), 0);
        assert_eq!(lowest_run(u32::MAX), u32::MAX);
    }
}
