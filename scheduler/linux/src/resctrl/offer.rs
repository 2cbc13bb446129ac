//! What resctrl has left for us, in the words of platforms.
//!
//! Policies count ways from 0, and give every L3 domain of the platform one mask. Ways that others hold alone are not among them: here
//! masks of plans become masks of resctrl's domains, within what is on offer there, and back. The L3 domains of resctrl are compared with
//! those that sysfs shows of the CPUs: a stand-in may have others, and a virtual machine may show none.

use super::classes::widest;
use super::info::L3;
use super::masks::Reserved;
use std::collections::{BTreeMap, BTreeSet};
use surefoot_server::allocation::full_mask;

/// Which L3 domain of the platform CPUs and resctrl's domains belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    /// Of CPUs that are on line, and of no other.
    pub of_cpu: BTreeMap<u32, u32>,
    /// Of resctrl's domains, by their ids.
    pub of_id: BTreeMap<u32, usize>,
    /// How sysfs and resctrl differ, and what is made of it; None where they agree.
    pub differ: Option<String>,
}

fn named(ids: impl Iterator<Item = u64>) -> String {
    ids.map(|id| id.to_string()).collect::<Vec<_>>().join(" ")
}

impl Domains {
    /// From the L3 cache of each CPU on line (None: sysfs shows none), its package, and the ids of resctrl's domains where there are any.
    ///
    /// As many of one as of the other agree, in the order of their ids: the kernel's own are the ids of the caches. Otherwise what both can
    /// tell apart counts.
    pub fn compare(caches: &BTreeMap<u32, Option<u64>>, packages: &BTreeMap<u32, u64>, resctrl: &[u32]) -> Self {
        let shown: BTreeSet<u64> = caches.values().flatten().copied().collect();
        let package = |cpu: &u32| packages.get(cpu).copied().unwrap_or(0);
        // Without any L3 a package counts as one; a CPU that alone has none goes with the first.
        let first = shown.first().copied();
        let key = |cpu: &u32, l3: &Option<u64>| l3.or(first).unwrap_or_else(|| package(cpu));
        let keys: BTreeMap<u32, u64> = caches.iter().map(|(cpu, l3)| (*cpu, key(cpu, l3))).collect();
        let ranks: BTreeMap<u64, u32> = keys.values().copied().collect::<BTreeSet<_>>().into_iter().zip(0..).collect();
        let by_rank = || keys.iter().map(|(cpu, key)| (*cpu, ranks[key])).collect();
        let what = if first.is_some() { "L3 caches" } else { "packages (and no L3 cache)" };
        let differ = |made: &str| {
            let (here, there) = (ranks.len(), resctrl.len());
            let ids = (named(ranks.keys().copied()), named(resctrl.iter().map(|id| u64::from(*id))));
            Some(format!("sysfs shows {here} {what} (ids {}), resctrl has {there} L3 domains (ids {}): {made}", ids.0, ids.1))
        };
        if resctrl.is_empty() || resctrl.len() == ranks.len() {
            let of_id = resctrl.iter().copied().zip(0..).collect();
            return Domains { of_cpu: by_rank(), of_id, differ: None };
        }
        if first.is_some() && ranks.keys().all(|k| resctrl.iter().any(|id| u64::from(*id) == *k)) {
            // Domains without a CPU here get what the first one gets.
            let of_id = resctrl.iter().map(|id| (*id, ranks.get(&u64::from(*id)).map_or(0, |r| *r as usize))).collect();
            return Domains { of_cpu: by_rank(), of_id, differ: differ("those without a CPU go with the first") };
        }
        let made = "all CPUs count as one cache, and every domain gets the same ways";
        Domains {
            of_cpu: keys.keys().map(|cpu| (*cpu, 0)).collect(),
            of_id: resctrl.iter().map(|id| (*id, 0)).collect(),
            differ: differ(made),
        }
    }
}

/// Ways on offer in one domain of resctrl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    /// The platform's domain.
    domain: usize,
    mask: u32,
}

/// Ways on offer; [`Offer::default`] where nothing can be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// How many a plan may give out, in every domain alike; 0 where fewer are left than a mask must have.
    pub ways: u32,
    /// By resctrl's ids.
    at: BTreeMap<u32, Window>,
    /// The holders of what is not on offer, a phrase for each.
    pub taken: Vec<String>,
}

/// Bit `i` of `mask` at the place of the `i`-th bit of `window`; what is beyond the window is lost.
fn deposit(mask: u32, window: u32) -> u32 {
    let places = (0..32).filter(|b| window >> b & 1 == 1);
    places.enumerate().filter(|(i, _)| mask >> i & 1 == 1).fold(0, |m, (_, b)| m | 1 << b)
}

/// The inverse of [`deposit`].
fn extract(mask: u32, window: u32) -> u32 {
    let places = (0..32).filter(|b| window >> b & 1 == 1);
    places.enumerate().filter(|(_, b)| mask >> b & 1 == 1).fold(0, |m, (i, _)| m | 1 << i)
}

/// `n` ways of those that are free, as few as can be of the `shareable`, of equal choices the lowest. Without `sparse` they are one block.
fn pick(free: u32, n: u32, shareable: u32, sparse: bool) -> u32 {
    if sparse {
        let mut bits: Vec<u32> = (0..32).filter(|b| free >> b & 1 == 1).collect();
        bits.sort_by_key(|b| (shareable >> b & 1, *b));
        return bits.into_iter().take(n as usize).fold(0, |m, b| m | 1 << b);
    }
    let blocks = (0..32u32).filter_map(|at| full_mask(n).checked_shl(at)).filter(|b| b & !free == 0 && b.count_ones() == n);
    blocks.min_by_key(|b| ((b & shareable).count_ones(), b.trailing_zeros())).unwrap_or(0)
}

impl Offer {
    /// What `reserved` leaves of `l3` in the domains of resctrl that are on line (`ids`).
    pub fn new(l3: &L3, ids: &[u32], of_id: &BTreeMap<u32, usize>, reserved: &[Reserved]) -> Self {
        let free = |i: usize| l3.cbm_mask & !reserved.iter().filter(|r| r.domain == i).fold(0, |m, r| m | r.mask);
        let most = |i: usize| if l3.sparse_masks { free(i) } else { widest(free(i)) }.count_ones();
        let ways = (0..ids.len()).map(most).min().filter(|n| *n >= l3.min_cbm_bits).unwrap_or(0);
        let window = |(i, id): (usize, &u32)| {
            let mask = pick(free(i), ways, l3.shareable_bits, l3.sparse_masks);
            (*id, Window { domain: of_id.get(id).copied().unwrap_or(0), mask })
        };
        Offer { ways, at: ids.iter().enumerate().map(window).collect(), taken: taken(ids, reserved) }
    }

    fn window(&self, id: u32) -> Option<Window> {
        // A domain that came later goes with the first until the offer is looked at anew.
        self.at.get(&id).or_else(|| self.at.values().next()).copied()
    }

    /// Masks of a plan, one for each domain of the platform, as those of resctrl's domains `ids`.
    pub fn to_hardware(&self, ids: &[u32], ways: &[u32]) -> Vec<u32> {
        if ways.is_empty() {
            return vec![];
        }
        let mask = |id: &u32| self.window(*id).map_or(0, |w| deposit(ways.get(w.domain).copied().unwrap_or(0), w.mask));
        ids.iter().map(mask).collect()
    }

    /// Masks of resctrl's domains `ids` as a plan would say them: what is beyond the offer is left out.
    pub fn to_platform(&self, ids: &[u32], masks: &[u32]) -> Vec<u32> {
        let n = if masks.is_empty() { 0 } else { self.at.values().map(|w| w.domain + 1).max().unwrap_or(0) };
        let of = |domain: usize| {
            let here = |(id, mask): (&u32, &u32)| self.window(*id).filter(|w| w.domain == domain).map(|w| extract(*mask, w.mask));
            // One that has just gone off line: no task runs there.
            ids.iter().zip(masks).find_map(here).unwrap_or_else(|| full_mask(self.ways))
        };
        (0..n).map(of).collect()
    }

    /// Whether a mask that fits one fits the other, where both have a domain.
    pub fn same_place(&self, other: &Offer) -> bool {
        self.at.iter().all(|(id, w)| other.at.get(id).is_none_or(|o| o.mask == w.mask))
    }
}

/// A phrase for each holder: "exclusive group kvm has ways 0xf of L3 domain 0, 0xf of L3 domain 1".
fn taken(ids: &[u32], reserved: &[Reserved]) -> Vec<String> {
    let mut by: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for r in reserved {
        let id = ids.get(r.domain).copied().unwrap_or_default();
        by.entry(&r.by).or_default().push(format!("{:#x} of L3 domain {id}", r.mask));
    }
    by.into_iter().map(|(by, what)| format!("{by} has ways {}", what.join(", "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn l3(ways: u32, sparse_masks: bool) -> L3 {
        L3 { lines: &["L3"], cbm_mask: full_mask(ways), min_cbm_bits: 2, shareable_bits: 0, sparse_masks }
    }

    fn held(domain: usize, mask: u32) -> Reserved {
        Reserved { domain, mask, by: "exclusive group kvm".into() }
    }

    fn caches(of: &[(u32, Option<u64>)]) -> BTreeMap<u32, Option<u64>> {
        of.iter().copied().collect()
    }

    /// The widest block that is left in every domain is on offer, each domain with its own; fewer ways than a mask must have are none.
    #[test]
    fn what_others_hold_is_not_on_offer() {
        let of_id = BTreeMap::from([(0, 0), (16, 1)]);
        let offer = |reserved: &[Reserved]| Offer::new(&l3(11, false), &[0, 16], &of_id, reserved);
        let all = offer(&[]);
        assert_eq!((all.ways, all.to_hardware(&[0, 16], &[0x7ff, 0x3])), (11, vec![0x7ff, 0x3]));
        // 0x00f of the first domain, 0x0c0 of the second: 7 above, and 6 below of 6 + 3 bits.
        let some = offer(&[held(0, 0x00f), held(1, 0x0c0)]);
        assert_eq!((some.ways, some.to_hardware(&[0, 16], &[0x3f, 0x30])), (6, vec![0x3f0, 0x30]));
        assert_eq!(some.to_platform(&[0, 16], &[0x7ff, 0x33]), [0x3f, 0x33]);
        assert_eq!(some.taken, ["exclusive group kvm has ways 0xf of L3 domain 0, 0xc0 of L3 domain 16"]);
        assert!(!some.same_place(&all));
        assert_eq!(offer(&[held(0, 0x3fe)]).ways, 0);
        // Masks with gaps: each way that is left.
        let sparse = Offer::new(&l3(11, true), &[0], &of_id, &[held(0, 0x0c0)]);
        assert_eq!((sparse.ways, sparse.to_hardware(&[0], &[0x1c0])), (9, vec![0x700]));
        assert_eq!(sparse.to_platform(&[0], &[0x720]), [0x1e0]);
        // Those shared with devices are the last to be taken.
        let top = L3 { shareable_bits: 0x600, ..l3(11, false) };
        let two = Offer::new(&top, &[0, 1], &of_id, &[held(0, 0x003), held(1, 0x00f)]);
        assert_eq!((two.ways, two.to_hardware(&[0, 1], &[0x7f, 0x7f])), (7, vec![0x1fc, 0x7f0]));
    }

    /// Depositing and extracting are inverse within the window, for every mask.
    #[test]
    fn masks_come_back() {
        for window in [0x1u32, 0xff, 0x7f8, 0xffff_ffff, 0x8000_0001, 0x5550] {
            for mask in (0u32..64).chain([u32::MAX]) {
                let here = mask & full_mask(window.count_ones());
                assert_eq!(extract(deposit(mask, window), window), here, "{mask:x} in {window:x}");
                assert_eq!(deposit(mask, window) & !window, 0);
            }
        }
    }

    /// The same number of domains agrees in the order of ids; a CPU without a cache of its own is with the first.
    #[test]
    fn equal_numbers_agree() {
        let two = caches(&[(0, Some(0)), (1, Some(16)), (5, None)]);
        let d = Domains::compare(&two, &BTreeMap::new(), &[0, 16]);
        assert_eq!((d.of_cpu, d.of_id, d.differ), ([(0, 0), (1, 1), (5, 0)].into(), [(0, 0), (16, 1)].into(), None));
        // No cache in sysfs: two packages are two domains.
        let packages = BTreeMap::from([(0, 0), (1, 1)]);
        let d = Domains::compare(&caches(&[(0, None), (1, None)]), &packages, &[0, 1]);
        assert_eq!((d.of_cpu, d.differ), ([(0, 0), (1, 1)].into(), None));
        // Without resctrl sysfs alone counts.
        assert_eq!(Domains::compare(&two, &BTreeMap::new(), &[]).of_cpu.values().max(), Some(&1));
    }

    /// Where they differ, what both can tell apart counts, and it is said with both lists of ids.
    #[test]
    fn differences_are_said() {
        let two = caches(&[(0, Some(0)), (1, Some(1))]);
        let one = Domains::compare(&two, &BTreeMap::new(), &[0]);
        assert_eq!((one.of_cpu, one.of_id), ([(0, 0), (1, 0)].into(), [(0, 0)].into()));
        let said = one.differ.unwrap();
        assert!(said.contains("2 L3 caches (ids 0 1), resctrl has 1 L3 domains (ids 0)") && said.contains("as one cache"), "{said}");
        // A cache of sysfs that resctrl has, and one more there.
        let more = Domains::compare(&caches(&[(0, Some(1))]), &BTreeMap::new(), &[0, 1]);
        assert_eq!((more.of_cpu, more.of_id), ([(0, 0)].into(), [(0, 0), (1, 0)].into()));
        let offer = Offer::new(&l3(4, false), &[0, 1], &BTreeMap::from([(0, 0), (1, 0)]), &[]);
        assert_eq!((offer.to_hardware(&[0, 1], &[0x3]), offer.to_platform(&[0, 1], &[0x3, 0x3])), (vec![0x3, 0x3], vec![0x3]));
        // Three of one and two of the other, of different ids.
        let three = Domains::compare(&caches(&[(0, Some(0)), (1, Some(4)), (2, Some(8))]), &BTreeMap::new(), &[0, 1]);
        assert!(three.of_cpu.values().all(|d| *d == 0) && three.differ.is_some());
        let none = Domains::compare(&caches(&[(0, None)]), &BTreeMap::from([(0, 0)]), &[0, 1]);
        assert!(none.differ.unwrap().contains("no L3 cache"));
    }
}
