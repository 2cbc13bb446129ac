//! Which services share a class of service (control group) when the processor has fewer classes than there are services.
//!
//! Each service has a class of its own while there are enough: to part two that shared means to move threads. Where they run out,
//! the merge that costs least is made, one after the other:
//!
//! 1. a service that needs just what the default group has goes there; equal needs share;
//! 2. BE jobs share with BE jobs;
//! 3. BE jobs go to the default group, where it keeps off the ways of LC services (another program has narrowed it);
//! 4. LC services share, those with like needs first;
//! 5. where one class is left for both kinds, BE jobs keep it and LC services have the default group's ways: to confine the jobs
//!    protects more than to confine the services. With none left all are in the default group.
//!
//! Within a rule those that share already go on sharing. A shared class has the widest block of its members' ways: never a
//! way that none of them had, and never fewer than any of them asked for. No input but
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
    /// Their ways are not one block: some of them are given up.
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

/// The widest block of a mask, of equal ones the lowest.
pub(super) fn widest(mask: u32) -> u32 {
    let (mut best, mut rest) = (0u32, mask);
    while rest != 0 {
        let low = rest.trailing_zeros();
        let run = (rest >> low).trailing_ones();
        let block = (u32::MAX >> (32 - run)) << low;
        if run > best.count_ones() {
            best = block;
        }
        rest &= !block;
    }
    best
}

/// What serves all of these in one class, whatever the order in which they come.
fn common(needs: &[&Need], sparse: bool) -> Setting {
    let domains = needs.iter().map(|n| n.setting.ways.len()).max().unwrap_or(0);
    let union = |d: usize| needs.iter().fold(0, |m, n| m | n.setting.ways.get(d).copied().unwrap_or(0));
    let ways = (0..domains).map(|d| if sparse { union(d) } else { widest(union(d)) }).collect();
    let mba = needs.iter().map(|n| n.setting.mba_pct);
    let mba_pct = if needs.iter().any(|n| n.lc) { mba.max() } else { mba.min() };
    Setting { ways, mba_pct: mba_pct.flatten() }
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
            // Of the last two kinds of parts the one that suffers less; alone, whichever it is.
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
                x.members.extend(y.members);
                x.setting = common(&x.members.iter().map(|m| &needs[m]).collect::<Vec<_>>(), bounds.sparse);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resctrl::steps::{steps, Op};

    fn setting(ways: &[u32], mba_pct: u8) -> Setting {
        Setting { ways: ways.to_vec(), mba_pct: Some(mba_pct) }
    }

    fn lc(ways: u32, mba_pct: u8) -> Need {
        Need { setting: setting(&[ways], mba_pct), lc: true }
    }

    fn be(ways: u32, mba_pct: u8) -> Need {
        Need { lc: false, ..lc(ways, mba_pct) }
    }

    fn needs(all: &[(&str, Need)]) -> BTreeMap<ServiceId, Need> {
        all.iter().map(|(id, n)| (id.to_string(), n.clone())).collect()
    }

    /// Eleven ways, all of them the default group's.
    fn room(classes: usize) -> Bounds {
        Bounds { classes, default: setting(&[0x7ff], 100), sparse: false }
    }

    fn shown(l: &Layout) -> String {
        let members = |m: &BTreeSet<ServiceId>| m.iter().cloned().collect::<Vec<_>>().join("+");
        let mut all: Vec<String> = l
            .classes
            .iter()
            .map(|(n, c)| format!("{n}: {} {:x?} {}", members(&c.members), c.setting.ways, c.setting.mba_pct.unwrap_or(0)))
            .collect();
        if !l.in_default.is_empty() {
            all.push(format!("default: {}", members(&l.in_default)));
        }
        all.join("; ")
    }

    fn six() -> BTreeMap<ServiceId, Need> {
        needs(&[
            ("img", lc(0x003, 100)),
            ("moses", lc(0x00c, 100)),
            ("xapian", lc(0x0f0, 90)),
            ("masstree", lc(0x100, 50)),
            ("sort", be(0x200, 20)),
            ("zip", be(0x400, 30)),
        ])
    }

    /// Skylake with MBA: seven classes beside the default group are enough for six services. As groups of others take theirs, BE
    /// jobs share first, then the LC services with the likest needs; one class is for the BE jobs.
    #[test]
    fn six_services_on_eight_classes_and_fewer() {
        let of = |n| shown(&plan(&six(), &Layout::default(), &room(n)));
        assert_eq!(plan(&six(), &Layout::default(), &room(7)).classes.len(), 6);
        assert_eq!(
            of(5),
            "img: img [3] 100; masstree: masstree [100] 50; moses: moses [c] 100; sort: sort+zip [600] 20; xapian: xapian [f0] 90"
        );
        assert_eq!(of(4), "img: img+moses [f] 100; masstree: masstree [100] 50; sort: sort+zip [600] 20; xapian: xapian [f0] 90");
        assert_eq!(of(2), "img: img+masstree+moses+xapian [1ff] 100; sort: sort+zip [600] 20");
        assert_eq!(of(1), "sort: sort+zip [600] 20; default: img+masstree+moses+xapian");
        assert_eq!(of(0), "default: img+masstree+moses+sort+xapian+zip");
    }

    /// A service that needs what the default group has goes there; so do BE jobs where it keeps off the ways of LC services.
    #[test]
    fn the_default_group_is_used_where_it_fits() {
        let all = needs(&[("a", lc(0x0f, 100)), ("b", lc(0x30, 100)), ("c", be(0x40, 100)), ("any", lc(0x7ff, 100))]);
        assert_eq!(shown(&plan(&all, &Layout::default(), &room(3))), "a: a [f] 100; b: b [30] 100; c: c [40] 100; default: any");
        let narrowed = Bounds { default: setting(&[0x700], 100), ..room(2) };
        let three = needs(&[("a", lc(0x0f, 100)), ("b", lc(0x30, 100)), ("c", be(0x40, 100))]);
        assert_eq!(shown(&plan(&three, &Layout::default(), &narrowed)), "a: a [f] 100; b: b [30] 100; default: c");
        assert_eq!(shown(&plan(&three, &Layout::default(), &Bounds { classes: 1, ..narrowed })), "a: a+b [3f] 100; default: c");
    }

    /// A name stays while a member of the class does; a class that none needs gives its place where there is no other.
    #[test]
    fn names_stay_with_their_services() {
        let two = needs(&[("a", be(0x1, 100)), ("b", be(0x2, 100))]);
        let shared = plan(&two, &Layout::default(), &room(1));
        assert_eq!(shown(&shared), "a: a+b [3] 100");
        let only_b = needs(&[("b", be(0x2, 100))]);
        let left = plan(&only_b, &shared, &room(1));
        assert_eq!(shown(&left), "a: b [2] 100");
        // "a" comes again: its name is taken.
        assert_eq!(shown(&plan(&two, &left, &room(2))), "a: b [2] 100; a~2: a [1] 100");
        let c = needs(&[("c", lc(0x4, 100))]);
        assert_eq!(shown(&plan(&c, &left, &room(1))), "a: c [4] 100");
        assert_eq!(shown(&plan(&c, &left, &room(2))), "c: c [4] 100");
    }

    /// What a shared class gives is what its members hold, and that others reach it.
    #[test]
    fn what_is_held_is_told() {
        let l = plan(&six(), &Layout::default(), &room(4));
        let held = |id: &str| l.held(id, &[0], &room(4).default).unwrap();
        assert_eq!((held("img"), held("xapian")), ((vec![0xf], vec![0xf]), (vec![0xf0], vec![0])));
        let l = plan(&six(), &Layout::default(), &room(1));
        assert_eq!(l.held("sort", &[0], &room(1).default).unwrap(), (vec![0x600], vec![0x600]));
        assert_eq!(l.held("img", &[0], &room(1).default).unwrap().0, [0x7ff]);
        assert_eq!(l.held("nobody", &[0], &room(1).default), None);
    }

    /// xorshift64*.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u32) -> u32 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % u64::from(n)) as u32
        }

        fn block(&mut self) -> u32 {
            let width = 1 + self.below(6);
            ((1 << width) - 1) << self.below(12 - width)
        }
    }

    /// Do an operation to a layout: what it says is there must be there.
    fn execute(l: &mut Layout, op: &Op) {
        let mut all = |id: &str, place: &Option<Place>, inside: bool| match place {
            Some(Place::Class(c)) => {
                let m = &mut l.classes.get_mut(c).unwrap_or_else(|| panic!("no {c}")).members;
                assert!(if inside { m.insert(id.into()) } else { m.remove(id) }, "{op:?}");
            }
            Some(Place::Default) => assert!(if inside { l.in_default.insert(id.into()) } else { l.in_default.remove(id) }, "{op:?}"),
            None => {}
        };
        match op {
            Op::Move { id, from, to } => {
                all(id, from, false);
                all(id, to, true);
            }
            Op::Make { class, setting } => {
                let made = l.classes.insert(class.clone(), Class { setting: setting.clone(), members: BTreeSet::new() });
                assert!(made.is_none(), "{op:?}");
            }
            Op::Set { class, from, to } => assert_eq!(std::mem::replace(&mut l.classes.get_mut(class).unwrap().setting, to.clone()), *from),
            Op::Remove { class, setting } => assert_eq!(l.classes.remove(class).unwrap().setting, *setting),
        }
    }

    /// Random services, needs and room, one after the other: the rules of this module hold for every layout, and every step
    /// between two of them is sound.
    #[test]
    fn every_layout_keeps_the_rules() {
        let mut random = Random(4711);
        let mut before = Layout::default();
        let (mut shared, mut spilled, mut kept) = (0, 0, 0);
        for n in 0..20_000 {
            let mut all = BTreeMap::new();
            for id in ["a", "b", "c", "d", "e", "f", "g", "h"] {
                if random.below(4) > 0 {
                    let setting = setting(&[random.block(), random.block()], 10 * (1 + random.below(10)) as u8);
                    all.insert(id.to_string(), Need { setting, lc: random.below(3) > 0 });
                }
            }
            let default = if random.below(4) == 0 { [random.block(), random.block()] } else { [0xfff, 0xfff] };
            let bounds = Bounds { classes: random.below(10) as usize, default: setting(&default, 100), sparse: random.below(4) == 0 };
            let got = plan(&all, &before, &bounds);
            let said = || format!("{n}: {bounds:?}\n{all:?}\n{}\n{}", shown(&before), shown(&got));
            assert!(got.classes.len() <= bounds.classes, "{}", said());
            let placed = got.classes.values().map(|c| c.members.len()).sum::<usize>() + got.in_default.len();
            assert!(placed == all.len() && all.keys().all(|id| got.place(id).is_some()), "{}", said());
            assert_eq!(plan(&all, &before, &bounds), got, "{}", said());
            assert_eq!(plan(&all, &got, &bounds), got, "not stable: {}", said());
            if all.len() <= bounds.classes {
                assert!(got.classes.values().all(|c| c.members.len() == 1) && got.in_default.is_empty(), "{}", said());
            }
            for c in got.classes.values() {
                let of: Vec<&Need> = c.members.iter().map(|m| &all[m]).collect();
                for d in 0..2 {
                    let mask = c.setting.ways[d];
                    assert!(mask != 0 && (bounds.sparse || contiguous(mask)), "{}", said());
                    assert_eq!(mask & !of.iter().fold(0, |m, n| m | n.setting.ways[d]), 0, "{}", said());
                    assert!(of.iter().all(|n| mask.count_ones() >= n.setting.ways[d].count_ones()), "{}", said());
                }
                assert!(of.iter().filter(|n| n.lc).all(|n| c.setting.mba_pct >= n.setting.mba_pct), "{}", said());
                // BE jobs are beside an LC service only where they would have had its ways anyhow.
                let (lcs, bes): (Vec<&Need>, Vec<&Need>) = of.iter().partition(|n| n.lc);
                let jobs = common(&bes, bounds.sparse).ways;
                let within = |(d, w): (usize, &u32)| w & !lcs.iter().fold(0, |m, n| m | n.setting.ways[d]) == 0;
                assert!(lcs.is_empty() || jobs.iter().enumerate().all(within), "{}", said());
                shared += usize::from(of.len() > 1);
            }
            // An LC service is put with all others only where nothing else is left, or where it has as much there.
            let lc_out = got.in_default.iter().any(|id| all[id].lc && all[id].setting != bounds.default);
            assert!(!lc_out || bounds.classes <= 1 || !enough_apart(&all, bounds.classes), "{}", said());
            spilled += usize::from(!got.in_default.is_empty());
            kept += usize::from(!before.classes.is_empty() && before.classes.keys().any(|k| got.classes.contains_key(k)));
            let most = bounds.classes.max(before.classes.len());
            let mut now = before.clone();
            let done: Vec<Op> = steps(&before, &got, 1, |id| all.get(id).is_some_and(|n| n.lc)).into_iter().map(|s| s.1).collect();
            for op in &done {
                execute(&mut now, op);
                // A class is made before another goes only while there is room.
                assert!(now.classes.len() <= most, "{op:?} {}", said());
                assert!(now.classes.values().all(|c| c.setting.ways.iter().all(|w| *w != 0)));
            }
            assert_eq!(now, got, "{}", said());
            // Members of a class that went were swept with it: the way back makes it, without them.
            if done.iter().all(|op| !matches!(op, Op::Remove { .. })) {
                done.iter().rev().for_each(|op| execute(&mut now, &op.inverse()));
                assert_eq!(now, before, "{}", said());
            }
            before = got;
        }
        assert!(shared > 1000 && spilled > 1000 && kept > 1000, "{shared} {spilled} {kept}");
    }

    /// True where BE jobs in one class and LC services in the rest would fit.
    fn enough_apart(all: &BTreeMap<ServiceId, Need>, classes: usize) -> bool {
        classes >= usize::from(all.values().any(|n| n.lc)) + usize::from(all.values().any(|n| !n.lc))
    }
}
