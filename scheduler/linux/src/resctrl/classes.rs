//! Which services share a class of service (control group) when the processor has fewer classes than there are services.
//!
//! Each service has a class of its own while there are enough: to part two that shared means to move threads. Where they run out,
//! the merge that costs least is made, one after the other:
//!
//! 1. who needs just what the default group has goes there; equal needs share;
//! 2. BE jobs share with BE jobs;
//! 3. BE jobs go to the default group, where it keeps off the ways of LC services (somebody has narrowed it);
//! 4. LC services share, those with like needs first;
//! 5. where one class is left for both kinds, BE jobs keep it and LC services have the default group's ways: to confine the jobs
//!    protects more than to confine the services. With none left all are in the default group.
//!
//! Within a rule those that share already go on sharing. A shared class has the ways of all its members where they are one block,
//! else the widest member's: never a way that no member had, and an LC service never fewer than it asked for. No input but
//! the arguments: equal needs give equal layouts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use surefoot_server::allocation::contiguous;
use surefoot_server::ServiceId;

/// What a class is set to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// CBM of each L3 domain, in the order of their ids; empty without L3 allocation.
    pub ways: Vec<u32>,
    /// None without MBA, or where its domains differ.
    pub mba_pct: Option<u8>,
}

/// What one service asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub setting: Setting,
    pub lc: bool,
}

/// A control group of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    pub setting: Setting,
    pub members: BTreeSet<ServiceId>,
}

/// Where a service's threads are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Default,
    /// Name of the class, without the prefix of our groups.
    Class(String),
}

/// Our classes by name, and services of ours that are in the default group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub classes: BTreeMap<String, Class>,
    pub in_default: BTreeSet<ServiceId>,
}

/// What there is to share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Classes for us: what the hardware has, less the default group and those of others.
    pub classes: usize,
    /// What the default group is set to. It is not ours to change.
    pub default: Setting,
    /// Masks may have gaps.
    pub sparse: bool,
}

impl Layout {
    pub fn place(&self, id: &str) -> Option<Place> {
        let class = self.classes.iter().find(|(_, c)| c.members.contains(id)).map(|(name, _)| Place::Class(name.clone()));
        class.or_else(|| self.in_default.contains(id).then_some(Place::Default))
    }

    /// All places of `id`: more than one where a process died while it moved threads.
    pub fn places(&self, id: &str) -> Vec<Place> {
        let classes = self.classes.iter().filter(|(_, c)| c.members.contains(id)).map(|(name, _)| Place::Class(name.clone()));
        classes.chain(self.in_default.contains(id).then_some(Place::Default)).collect()
    }

    /// Those that share a place with `id`, itself left out.
    pub fn companions(&self, id: &str) -> BTreeSet<ServiceId> {
        let all = self.classes.values().map(|c| &c.members).find(|m| m.contains(id)).unwrap_or(&self.in_default);
        all.iter().filter(|m| *m != id).cloned().collect()
    }

    /// Ways that `id` really has, and the part of them that others of ours reach too; None where it has no place here.
    /// `shared` is the part that it was meant to share.
    pub fn held(&self, id: &str, shared: &[u32], default: &Setting) -> Option<(Vec<u32>, Vec<u32>)> {
        let ways = match self.place(id)? {
            Place::Default => &default.ways,
            Place::Class(name) => &self.classes[&name].setting.ways,
        };
        let alone = self.companions(id).is_empty();
        let others = |d: usize| {
            let classes = self.classes.values().filter(|c| !c.members.contains(id) && !c.members.is_empty());
            let mut mask = classes.fold(0, |m, c| m | c.setting.ways.get(d).copied().unwrap_or(0));
            if self.in_default.iter().any(|m| m != id) {
                mask |= default.ways.get(d).copied().unwrap_or(0);
            }
            mask | shared.get(d).copied().unwrap_or(0)
        };
        let common = ways.iter().enumerate().map(|(d, w)| if alone { w & others(d) } else { *w }).collect();
        Some((ways.clone(), common))
    }
}

/// Services that will share a class.
#[derive(Clone, Debug)]
struct Part {
    setting: Setting,
    lc: bool,
    members: BTreeSet<ServiceId>,
}

/// One merge; its order is its cost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Merge {
    rule: u8,
    /// They do not share yet.
    strangers: bool,
    /// Their ways are not one block: one of them gives up its own.
    apart: bool,
    mba_gap_pct: u8,
    /// Ways that one has and the other has not.
    differing_ways: u32,
    a: usize,
    /// None: into the default group.
    b: Option<usize>,
}

fn block(mask: u32, sparse: bool) -> bool {
    sparse || contiguous(mask)
}

fn join(a: &Setting, b: &Setting, lc: bool, sparse: bool) -> Setting {
    let wider = |x: u32, y: u32| if (y.count_ones(), Reverse(y)) > (x.count_ones(), Reverse(x)) { y } else { x };
    let ways = a.ways.iter().zip(&b.ways).map(|(x, y)| if block(x | y, sparse) { x | y } else { wider(*x, *y) }).collect();
    let mba_pct = a.mba_pct.zip(b.mba_pct).map(|(x, y)| if lc { x.max(y) } else { x.min(y) });
    Setting { ways, mba_pct }
}

/// True where `have` is at least `want` in every domain.
fn enough(have: &Setting, want: &Setting) -> bool {
    have.ways.iter().zip(&want.ways).all(|(h, w)| h.count_ones() >= w.count_ones())
}

fn merges(parts: &[Part], before: &Layout, bounds: &Bounds) -> Vec<Merge> {
    let mut all = vec![];
    let of_lc = |d: usize| parts.iter().filter(|p| p.lc).fold(0, |m, p| m | p.setting.ways.get(d).copied().unwrap_or(0));
    let off_lc = bounds.default.ways.iter().enumerate().all(|(d, w)| w & of_lc(d) == 0);
    let narrow = parts.iter().any(|p| p.lc && !enough(&bounds.default, &p.setting));
    for (i, x) in parts.iter().enumerate() {
        let was = |y: &Part| before.classes.values().any(|c| !c.members.is_disjoint(&x.members) && !c.members.is_disjoint(&y.members));
        let rule = match () {
            () if x.setting == bounds.default => 1,
            () if !x.lc && off_lc => 3,
            // Of the last two kinds of parts the one that suffers less; alone, whoever it is.
            () if x.lc == narrow => 6,
            () => 5,
        };
        let strangers = x.members.is_disjoint(&before.in_default);
        all.push(Merge { rule, strangers, apart: false, mba_gap_pct: 0, differing_ways: 0, a: i, b: None });
        for (j, y) in parts.iter().enumerate().skip(i + 1) {
            let (p, q) = (&x.setting, &y.setting);
            let rule = match (x.lc, y.lc) {
                _ if p == q => 1,
                (false, false) => 2,
                (true, true) => 4,
                _ => continue,
            };
            all.push(Merge {
                rule,
                strangers: !was(y),
                apart: p.ways.iter().zip(&q.ways).any(|(a, b)| !block(a | b, bounds.sparse)),
                mba_gap_pct: p.mba_pct.zip(q.mba_pct).map_or(0, |(a, b)| a.abs_diff(b)),
                differing_ways: p.ways.iter().zip(&q.ways).map(|(a, b)| (a ^ b).count_ones()).sum(),
                a: i,
                b: Some(j),
            });
        }
    }
    all
}

/// Classes for `needs`, as much as possible those of `before`.
pub fn plan(needs: &BTreeMap<ServiceId, Need>, before: &Layout, bounds: &Bounds) -> Layout {
    let mut parts: Vec<Part> =
        needs.iter().map(|(id, n)| Part { setting: n.setting.clone(), lc: n.lc, members: BTreeSet::from([id.clone()]) }).collect();
    let mut in_default = BTreeSet::new();
    while parts.len() > bounds.classes {
        let Some(m) = merges(&parts, before, bounds).into_iter().min() else { break };
        // The later index first: it does not move the earlier one.
        match m.b {
            None => in_default.extend(parts.remove(m.a).members),
            Some(b) => {
                let y = parts.remove(b);
                let x = &mut parts[m.a];
                x.lc |= y.lc;
                x.setting = join(&x.setting, &y.setting, x.lc, bounds.sparse);
                x.members.extend(y.members);
            }
        }
    }
    Layout { classes: named(parts, needs, before, bounds.classes), in_default }
}

/// Names for parts: of the class that most of its members are in, else of a member; where there is no room for another class
/// beside those that are to go, one of these is used again.
fn named(parts: Vec<Part>, needs: &BTreeMap<ServiceId, Need>, before: &Layout, budget: usize) -> BTreeMap<String, Class> {
    let mut names: Vec<Option<String>> = vec![None; parts.len()];
    let mut free: BTreeSet<&String> = before.classes.keys().collect();
    let mut known: Vec<(Reverse<usize>, bool, &String, usize)> = vec![];
    for (i, p) in parts.iter().enumerate() {
        for (name, c) in &before.classes {
            let common = c.members.intersection(&p.members).count();
            if common > 0 {
                known.push((Reverse(common), !p.members.contains(name), name, i));
            }
        }
    }
    known.sort();
    for (_, _, name, i) in known {
        if names[i].is_none() && free.remove(name) {
            names[i] = Some(name.clone());
        }
    }
    let mut made = before.classes.len();
    for i in 0..parts.len() {
        if names[i].is_some() {
            continue;
        }
        let first = |lc: bool| parts[i].members.iter().find(|m| needs[*m].lc == lc);
        let id = first(true).or_else(|| first(false)).cloned().unwrap_or_default();
        let name = if free.remove(&id) {
            id
        } else if let Some(old) = free.first().copied().filter(|_| made >= budget) {
            free.remove(old);
            old.clone()
        } else {
            made += 1;
            let taken = |n: &String| before.classes.contains_key(n) || names.iter().flatten().any(|t| t == n);
            // A tilde is in no id of a service.
            let others = (2..).map(|n| format!("{id}~{n}"));
            std::iter::once(id.clone()).chain(others).find(|n| !taken(n)).unwrap_or_default()
        };
        names[i] = Some(name);
    }
    let class = |p: Part| Class { setting: p.setting, members: p.members };
    names.into_iter().flatten().zip(parts).map(|(name, p)| (name, class(p))).collect()
}
