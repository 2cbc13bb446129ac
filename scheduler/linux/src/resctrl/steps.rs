//! From one layout of classes to another: what is done to groups, in which order, and how each step is undone.

use super::classes::{Layout, Place, Setting};
use std::collections::BTreeSet;
use surefoot_server::order::{order, Masks, Pass};
use surefoot_server::ServiceId;

/// One thing done to our groups. All of them may be repeated, and each has an inverse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A new class, set before a thread is in it.
    Make {
        class: String,
        setting: Setting,
    },
    Set {
        class: String,
        from: Setting,
        to: Setting,
    },
    /// All threads of a service; None = the default group, and no counters of its own.
    Move {
        id: ServiceId,
        from: Option<Place>,
        to: Option<Place>,
    },
    Remove {
        class: String,
        setting: Setting,
    },
}

impl Op {
    pub fn inverse(&self) -> Op {
        match self.clone() {
            Op::Make { class, setting } => Op::Remove { class, setting },
            Op::Remove { class, setting } => Op::Make { class, setting },
            Op::Set { class, from, to } => Op::Set { class, from: to, to: from },
            Op::Move { id, from, to } => Op::Move { id, from: to, to: from },
        }
    }
}

/// What turns `from` into `to`, each with the pass that it belongs to (see [`surefoot_server::order`]).
///
/// New classes come first: no thread is in them yet. Threads move once every class has its ways; into classes BE jobs first, out to the
/// default group LC services first, so that no job has more than it will have while a service has less. `lc` says which is one.
pub fn steps(from: &Layout, to: &Layout, min_ways: u32, lc: impl Fn(&str) -> bool) -> Vec<(Pass, Op)> {
    let mut out = vec![];
    let mut late = vec![];
    let mut held: Vec<(&String, &Setting, &Setting)> = vec![];
    for (name, class) in &to.classes {
        match from.classes.get(name) {
            None => out.push((Pass::Shrink, Op::Make { class: name.clone(), setting: class.setting.clone() })),
            Some(old) if old.setting == class.setting => {}
            // Taken over from others: set once they have left it.
            Some(old) if old.members.is_disjoint(&class.members) => {
                let set = Op::Set { class: name.clone(), from: old.setting.clone(), to: class.setting.clone() };
                late.push((name.clone(), set));
            }
            Some(old) => held.push((name, &old.setting, &class.setting)),
        }
    }
    out.extend(sets(&held, min_ways));
    let services =
        |l: &Layout| -> BTreeSet<ServiceId> { l.classes.values().flat_map(|c| &c.members).chain(&l.in_default).cloned().collect() };
    let mut moves: Vec<((u8, bool), Op)> = vec![];
    for id in services(from).union(&services(to)) {
        let b = to.place(id);
        let rank = match &b {
            None | Some(Place::Default) => (0, !lc(id)),
            Some(Place::Class(c)) if late.iter().any(|(name, _)| name == c) => (3, lc(id)),
            Some(Place::Class(_)) => (1, lc(id)),
        };
        let mut places: Vec<Option<Place>> = from.places(id).into_iter().map(Some).collect();
        if places.is_empty() {
            places.push(None);
        }
        for a in places {
            // Threads of a service that has left go with the class, where that goes.
            let swept = b.is_none() && matches!(&a, Some(Place::Class(c)) if !to.classes.contains_key(c));
            if a != b && !swept {
                moves.push((rank, Op::Move { id: id.clone(), from: a, to: b.clone() }));
            }
        }
    }
    moves.extend(late.into_iter().map(|(_, op)| ((2, false), op)));
    moves.sort_by_key(|(rank, _)| *rank);
    out.extend(moves.into_iter().map(|(_, op)| (Pass::Grow, op)));
    let gone = from.classes.iter().filter(|(name, _)| !to.classes.contains_key(*name));
    out.extend(gone.map(|(name, c)| (Pass::Grow, Op::Remove { class: name.clone(), setting: c.setting.clone() })));
    out
}

/// Writes to classes that stay: ways in an order that takes before it gives, bandwidth with the first write that may take it or
/// the last that may give it.
fn sets(held: &[(&String, &Setting, &Setting)], min_ways: u32) -> Vec<(Pass, Op)> {
    let masks = |s: &Setting| Masks { ways: s.ways.clone(), min_ways };
    let changes: Vec<(Masks, Masks)> = held.iter().map(|(_, a, b)| (masks(a), masks(b))).collect();
    let mut writes: Vec<(usize, Pass, Vec<u32>)> = order(&changes).into_iter().map(|w| (w.holder, w.pass, w.to.ways)).collect();
    for (i, (_, a, b)) in held.iter().enumerate() {
        if a.mba_pct != b.mba_pct && !writes.iter().any(|w| w.0 == i) {
            let takes = b.mba_pct < a.mba_pct;
            let at = if takes { writes.partition_point(|w| w.1 == Pass::Shrink) } else { writes.len() };
            writes.insert(at, (i, if takes { Pass::Shrink } else { Pass::Grow }, a.ways.clone()));
        }
    }
    let mut now: Vec<Setting> = held.iter().map(|(_, a, _)| (*a).clone()).collect();
    let mut out = vec![];
    for (n, (i, pass, ways)) in writes.iter().enumerate() {
        let (name, _, b) = held[*i];
        let last = !writes[n + 1..].iter().any(|w| w.0 == *i);
        let mba_pct = if last || b.mba_pct < now[*i].mba_pct { b.mba_pct } else { now[*i].mba_pct };
        let to = Setting { ways: ways.clone(), mba_pct };
        let from = std::mem::replace(&mut now[*i], to.clone());
        out.push((*pass, Op::Set { class: name.clone(), from, to }));
    }
    out
}
