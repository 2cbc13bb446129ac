//! The least that a limit on a group's memory may be: below it the kernel kills, or the group stands still.
//!
//! `memory.current` counts what zswap keeps of a group. So a limit can be met down to what the pages compress to, and no further: the kernel
//! has nothing left to take then, and kills (seen on 6.1 and 6.12; docs/cosmos.md). What must hold of a limit:
//!
//! - What neither swap nor reclaim can move stays: page tables, stacks, locked pages.
//! - Anonymous and shared pages stay, but for those that have a slot of swap. Each page has one at most, whether it is in the pool or on the
//!   device.
//! - Pages with a slot cost their compressed size, up to what the pool may hold. What exceeds the pool is on the device, where writing to it is
//!   allowed, else it stays.
//! - Nothing shrinks a pool but its shrinker (Linux 6.8). Where that is on, the pool costs nothing that could not be written to the device.
//!
//! The pages of files can be dropped, so they count for nothing.

use crate::cgroup::{Cgroup, Version};
use crate::files::text;
use crate::memory_use::value;
use crate::root::Root;
use std::path::Path;

/// Uncompressed bytes a byte of the pool is taken to hold until a pool of this group says it: the mean of the COSMOS paper's programs. What
/// has been compressed is measured, and the floor is found anew, before a limit is written.
const RATIO_UNTIL_MEASURED: f64 = 1.9;
/// zswap gains nothing below it, and a pool of a few odd pages must not say that everything compresses to nothing.
const LEAST_RATIO: f64 = 1.0;
const MOST_RATIO: f64 = 8.0;
/// A pool below this share of the group's pages says little of the others.
const MEASURED_FRAC: f64 = 0.01;
/// Room above what must stay, as a share of it: the pages of the instruction that runs, and what the next second adds.
const MARGIN_FRAC: f64 = 0.05;
/// The same of a small group: the kernel takes memory in batches of 64 pages for each CPU.
const LEAST_MARGIN_BYTES: u64 = 1 << 20;

/// What zswap and swap offer on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// New pages go to the pool.
    pub zswap: bool,
    /// The pool writes its oldest pages to the device where memory is short.
    pub shrinker: bool,
    /// Most that all pools may hold together, bytes.
    pub pool_bytes: u64,
    /// What all of them hold now; 0 where the kernel does not say (before Linux 5.19).
    pub pools_bytes: u64,
    /// Slots of swap that nobody has, bytes.
    pub free_bytes: u64,
}

impl Offer {
    /// None where the host does not say what swap it has.
    pub fn read(root: &Root) -> Option<Self> {
        let meminfo = root.read("/proc/meminfo")?;
        let kib = |key: &str| -> Option<u64> {
            let line = meminfo.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
            line.trim().trim_end_matches(" kB").parse().ok()
        };
        let set = |name: &str| root.read(format!("/sys/module/zswap/parameters/{name}"));
        let on = |name: &str| set(name).is_some_and(|t| t == "Y" || t == "1");
        let pct: u64 = set("max_pool_percent").and_then(|t| t.parse().ok()).unwrap_or(100);
        Some(Offer {
            zswap: on("enabled"),
            shrinker: on("shrinker_enabled"),
            pool_bytes: (kib("MemTotal")? << 10) / 100 * pct.min(100),
            pools_bytes: kib("Zswap").unwrap_or(0) << 10,
            free_bytes: kib("SwapFree")? << 10,
        })
    }
}

/// Pages of one group, of groups below it too, and what it may do with them; bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// What cannot be moved: of the kernel without the pool and what it can drop, and locked pages.
    pub fixed_bytes: u64,
    /// Anonymous and shared pages in memory, those with a slot of swap too.
    pub resident_bytes: u64,
    /// Of these, those with a slot.
    pub both_bytes: u64,
    /// Slots of swap that it has, whatever became of the pages.
    pub slots_bytes: u64,
    /// Slots that it may have besides, by its own limits and those above it.
    pub more_slots_bytes: u64,
    /// What its pool takes, and what that holds.
    pub pool_bytes: u64,
    pub stored_bytes: u64,
    /// Most that its pool may take, by its own limit and those above it. Without writeback less what pools beside it hold.
    pub most_pool_bytes: u64,
    /// Pages that the pool does not take may go to the device.
    pub writeback: bool,
}

impl Pages {
    /// None on v1, and where the kernel does not say enough.
    pub fn of(group: &Cgroup) -> Option<Self> {
        let dir = group.memory.as_ref().filter(|_| group.version == Version::V2)?;
        let stat = group.memory_stat()?;
        let of = |key: &str| value(&stat, key);
        let or_none = |key: &str| of(key).unwrap_or(0);
        let file = |dir: &Path, name: &str| text(group.files().as_ref(), dir.join(name));
        let limit = |dir: &Path, name: &str| file(dir, name).map_or(u64::MAX, |t| t.parse().unwrap_or(u64::MAX));
        let slots_bytes = group.swapped_bytes().unwrap_or(0);
        let pool_bytes = or_none("zswap");
        let (mut most_pool_bytes, mut room_bytes) = (limit(dir, "memory.zswap.max"), u64::MAX);
        // The tightest of the groups from here up; the root has no such files.
        let (mut more_slots_bytes, mut writeback) = (u64::MAX, true);
        for at in dir.ancestors().take_while(|at| file(at, "memory.swap.current").is_some()) {
            let has = file(at, "memory.swap.current").and_then(|t| t.parse().ok()).unwrap_or(0);
            more_slots_bytes = more_slots_bytes.min(limit(at, "memory.swap.max").saturating_sub(has));
            writeback &= file(at, "memory.zswap.writeback").is_none_or(|t| t != "0");
            let pools: u64 = file(at, "memory.zswap.current").and_then(|t| t.parse().ok()).unwrap_or(0);
            let most = limit(at, "memory.zswap.max");
            most_pool_bytes = most_pool_bytes.min(most);
            room_bytes = room_bytes.min(most.saturating_sub(if at == dir { 0 } else { pools.saturating_sub(pool_bytes) }));
        }
        // Pools of others may give way to the device, and then this one takes more: only without it are they sure to stay.
        let most_pool_bytes = if writeback { most_pool_bytes } else { most_pool_bytes.min(room_bytes) };
        // Linux 5.18 adds it up. The pool is a part of it.
        let parts = || ["kernel_stack", "pagetables", "percpu", "slab_unreclaimable"].map(or_none).iter().sum::<u64>();
        let kernel = of("kernel").map_or_else(parts, |all| all.saturating_sub(pool_bytes + or_none("slab_reclaimable")));
        Some(Pages {
            fixed_bytes: kernel + or_none("sock") + or_none("unevictable"),
            resident_bytes: of("active_anon")? + of("inactive_anon")?,
            both_bytes: or_none("swapcached"),
            slots_bytes,
            more_slots_bytes,
            pool_bytes,
            stored_bytes: or_none("zswapped"),
            most_pool_bytes,
            writeback,
        })
    }

    /// Anonymous and shared pages, wherever they are, each once.
    pub fn footprint_bytes(&self) -> u64 {
        (self.resident_bytes + self.slots_bytes).saturating_sub(self.both_bytes)
    }

    /// Uncompressed bytes in a byte of its pool; None before enough has been compressed to say.
    pub fn ratio(&self) -> Option<f64> {
        let enough = self.pool_bytes > 0 && self.stored_bytes as f64 >= MEASURED_FRAC * self.footprint_bytes() as f64;
        enough.then(|| (self.stored_bytes as f64 / self.pool_bytes as f64).clamp(LEAST_RATIO, MOST_RATIO))
    }
}

/// What must stay in memory of these pages, bytes: with less the kernel has nothing left to take.
pub fn must_stay_bytes(pages: &Pages, offer: &Offer) -> u64 {
    let all = pages.footprint_bytes();
    let slots = pages.slots_bytes.saturating_add(pages.more_slots_bytes.min(offer.free_bytes));
    let (out, without_slot) = (all.min(slots), all.saturating_sub(slots));
    let ratio = pages.ratio().unwrap_or(RATIO_UNTIL_MEASURED);
    let compressed = (out as f64 / ratio) as u64;
    // Copies that are there stay, whatever the limits are now.
    let others = if pages.writeback { 0 } else { offer.pools_bytes.saturating_sub(pages.pool_bytes) };
    let may = if offer.zswap { pages.most_pool_bytes.min(offer.pool_bytes.saturating_sub(others)) } else { 0 };
    let pool = compressed.min(may.max(pages.pool_bytes));
    let in_pool = if pool < compressed { (pool as f64 * ratio) as u64 } else { out };
    let moved = match (pages.writeback, offer.shrinker) {
        (true, true) => 0,
        (true, false) => pool,
        (false, _) => pool + (out - in_pool.min(out)),
    };
    pages.fixed_bytes + without_slot + moved
}

/// The least that a limit on these pages may be: what must stay, and room to run in.
pub fn floor_bytes(pages: &Pages, offer: &Offer) -> u64 {
    let stay = must_stay_bytes(pages, offer);
    stay + ((stay as f64 * MARGIN_FRAC) as u64).max(LEAST_MARGIN_BYTES)
}

/// The least that a limit on a group's memory may be now; None where the host does not say (v1).
pub fn of(root: &Root, group: &Cgroup) -> Option<u64> {
    Some(floor_bytes(&Pages::of(group)?, &Offer::read(root)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::{v1, v2};
    use crate::cgroup::Mounts;
    use crate::root::tests::put;

    const MIB: u64 = 1 << 20;
    const OFFER: Offer = Offer { zswap: true, shrinker: false, pool_bytes: 200 * MIB, pools_bytes: 0, free_bytes: 512 * MIB };
    /// 128 MiB of a process, of which nothing has been taken yet.
    const PAGES: Pages = Pages {
        fixed_bytes: MIB,
        resident_bytes: 128 * MIB,
        both_bytes: 0,
        slots_bytes: 0,
        more_slots_bytes: u64::MAX,
        pool_bytes: 0,
        stored_bytes: 0,
        most_pool_bytes: u64::MAX,
        writeback: true,
    };

    fn mib(pages: Pages, offer: Offer) -> u64 {
        (must_stay_bytes(&pages, &offer) + MIB / 2) / MIB
    }

    /// What was seen of 128 MiB at 1.9 : 1 on real kernels: killed at 64 MiB, 66 to 70 MiB left by a full reclaim.
    #[test]
    fn the_floor_is_what_pages_compress_to() {
        // 1 + 128 / 1.9 = 68.4, and 5 % of that.
        assert_eq!((mib(PAGES, OFFER), floor_bytes(&PAGES, &OFFER) / MIB), (68, 71));
        // A small group has 1 MiB more: 1 + 4 / 1.9 = 3.1.
        assert_eq!(floor_bytes(&Pages { resident_bytes: 4 * MIB, ..PAGES }, &OFFER) / MIB, 4);
        // Once 20 MiB hold 60, the ratio is 3: 1 + 128 / 3.
        let measured = Pages { resident_bytes: 68 * MIB, slots_bytes: 60 * MIB, pool_bytes: 20 * MIB, stored_bytes: 60 * MIB, ..PAGES };
        assert_eq!((measured.footprint_bytes(), mib(measured, OFFER)), (128 * MIB, 44));
        // A hundredth of a pool says nothing, and neither does one that holds nothing.
        assert_eq!(Pages { pool_bytes: MIB / 4, stored_bytes: MIB, ..PAGES }.ratio(), None);
        assert_eq!(Pages { pool_bytes: MIB, stored_bytes: 100 * MIB, ..PAGES }.ratio(), Some(MOST_RATIO));
        assert_eq!(Pages { pool_bytes: 100 * MIB, stored_bytes: 90 * MIB, ..PAGES }.ratio(), Some(LEAST_RATIO));
    }

    /// A page that came back and has its slot still is one page: 6.1 keeps the copy, 6.12 does not, and the floor is the same.
    #[test]
    fn a_page_with_a_copy_counts_once() {
        let back = Pages { resident_bytes: 128 * MIB, slots_bytes: 80 * MIB, both_bytes: 80 * MIB, ..PAGES };
        let with_copies = Pages { pool_bytes: 42 * MIB, stored_bytes: 80 * MIB, ..back };
        assert_eq!((mib(back, OFFER), mib(with_copies, OFFER)), (68, 68));
    }

    /// Pages that cannot be compressed go to the device where there is room and that is allowed, and stay otherwise.
    #[test]
    fn what_exceeds_the_pool_is_on_the_device_or_stays() {
        let pool = |most_pool_bytes| Pages { most_pool_bytes, ..PAGES };
        // A pool of 20 MiB, none, and one of all that the host gives (1 % of 1 GiB).
        assert_eq!((mib(pool(20 * MIB), OFFER), mib(pool(0), OFFER)), (21, 1));
        assert_eq!(mib(PAGES, Offer { pool_bytes: 10 * MIB, ..OFFER }), 11);
        assert_eq!(mib(PAGES, Offer { zswap: false, ..OFFER }), 1);
        // Not to the device: 20 MiB hold 38, the other 90 stay.
        assert_eq!(mib(Pages { writeback: false, ..pool(20 * MIB) }, OFFER), 1 + 20 + 90);
        assert_eq!(mib(Pages { writeback: false, ..pool(0) }, OFFER), 129);
        // Copies that are there stay under a lower limit: 30 of them hold 57 MiB, the rest is on the device.
        let copies = Pages { resident_bytes: 71 * MIB, slots_bytes: 57 * MIB, pool_bytes: 30 * MIB, stored_bytes: 57 * MIB, ..pool(0) };
        assert_eq!((mib(copies, OFFER), mib(copies, Offer { zswap: false, ..OFFER })), (31, 31));
    }

    /// With the shrinker the pool gives way, as long as there is a device to write to; without any swap nothing does.
    #[test]
    fn the_shrinker_needs_a_device_and_no_swap_keeps_everything() {
        let shrinker = Offer { shrinker: true, ..OFFER };
        assert_eq!(mib(PAGES, shrinker), 1);
        assert_eq!(mib(Pages { writeback: false, ..PAGES }, shrinker), 68);
        for offer in [OFFER, shrinker] {
            assert_eq!(mib(PAGES, Offer { free_bytes: 0, ..offer }), 129);
        }
        // Slots for 38 MiB of 128, by the host and by the group: 90 stay, and 38 / 1.9.
        assert_eq!(mib(PAGES, Offer { free_bytes: 38 * MIB, ..OFFER }), 1 + 90 + 20);
        assert_eq!(mib(Pages { more_slots_bytes: 38 * MIB, ..PAGES }, OFFER), 1 + 90 + 20);
        // Those that it has count, though none are free.
        let swapped = Pages { resident_bytes: 90 * MIB, slots_bytes: 38 * MIB, pool_bytes: 20 * MIB, stored_bytes: 38 * MIB, ..PAGES };
        assert_eq!(mib(swapped, Offer { free_bytes: 0, ..OFFER }), 1 + 90 + 20);
    }

    /// More pages, fewer slots, a larger pool: the floor is never lower for it, and never above what is there.
    #[test]
    fn the_floor_is_monotonous() {
        for resident in [0, 1, 64, 128, 600] {
            for free in [0, 10, 100, 1000] {
                for most in [0, 1, 50, 1000] {
                    let pages = |r, m| Pages { resident_bytes: r * MIB, most_pool_bytes: m * MIB, ..PAGES };
                    let at = |r, f, m| must_stay_bytes(&pages(r, m), &Offer { free_bytes: f * MIB, ..OFFER });
                    let here = at(resident, free, most);
                    assert!(here <= at(resident + 7, free, most) && here >= at(resident, free + 7, most));
                    assert!(here <= at(resident, free, most + 7) && here <= (resident + 1) * MIB, "{resident} {free} {most}");
                }
            }
        }
    }

    /// Written by hand in the kernel's form, with figures that are easy to add up.
    const STAT: &str = "anon 1000\nfile 9000\nkernel 700\nsock 50\nzswap 200\nzswapped 400\nswapcached 100\ninactive_anon 600\n\
                        active_anon 400\nunevictable 30\nslab_reclaimable 300\n";

    /// All of it is read from the kernel's files; limits of groups above count; where files are missing there is no floor.
    #[test]
    fn pages_and_offer_are_read() {
        let (_dir, root) = v2();
        let g = "/sys/fs/cgroup/app.slice";
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        assert_eq!((Pages::of(&c), Offer::read(&root), of(&root, &c)), (None, None, None));
        put(&root, &format!("{g}/c/memory.stat"), STAT);
        put(&root, &format!("{g}/c/memory.swap.current"), "500\n");
        put(&root, &format!("{g}/c/memory.swap.max"), "max\n");
        put(&root, &format!("{g}/memory.swap.current"), "600\n");
        put(&root, &format!("{g}/memory.swap.max"), "1000\n");
        let pages = Pages {
            // 700 + 50 + 30 - 200 - 300.
            fixed_bytes: 280,
            resident_bytes: 1000,
            both_bytes: 100,
            slots_bytes: 500,
            more_slots_bytes: 400,
            pool_bytes: 200,
            stored_bytes: 400,
            most_pool_bytes: u64::MAX,
            writeback: true,
        };
        assert_eq!(Pages::of(&c), Some(pages));
        put(&root, &format!("{g}/c/memory.zswap.max"), "77\n");
        put(&root, &format!("{g}/memory.zswap.writeback"), "0\n");
        assert_eq!(Pages::of(&c), Some(Pages { most_pool_bytes: 77, writeback: false, ..pages }));
        put(&root, "/proc/meminfo", "MemTotal:  1000 kB\nSwapTotal: 9 kB\nSwapFree:   8 kB\n");
        assert_eq!(
            Offer::read(&root),
            Some(Offer { zswap: false, shrinker: false, pool_bytes: 1_024_000, pools_bytes: 0, free_bytes: 8192 })
        );
        for (name, value) in [("enabled", "Y"), ("shrinker_enabled", "Y"), ("max_pool_percent", "20")] {
            put(&root, &format!("/sys/module/zswap/parameters/{name}"), value);
        }
        assert_eq!(Offer::read(&root), Some(Offer { zswap: true, shrinker: true, pool_bytes: 204_800, pools_bytes: 0, free_bytes: 8192 }));
        assert!(of(&root, &c).is_some_and(|floor| floor > LEAST_MARGIN_BYTES));
        let (_dir, root) = v1();
        assert_eq!(of(&root, &Mounts::read(&root).of_pid(&root, 42).unwrap()), None);
    }

    /// A v2 host with the statistics of a group, its slots of swap and those of the group above it.
    fn host(stat: &str) -> (tempfile::TempDir, Root, Cgroup) {
        let (dir, root) = v2();
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        for at in ["/sys/fs/cgroup/app.slice", "/sys/fs/cgroup/app.slice/c"] {
            put(&root, &format!("{at}/memory.swap.current"), "0\n");
        }
        put(&root, "/sys/fs/cgroup/app.slice/c/memory.stat", stat);
        (dir, root, c)
    }

    /// Before Linux 5.18 the sum is missing, and its parts are there. Slab that can be dropped is no part of sockets and locked pages.
    #[test]
    fn kernel_memory_is_read_with_and_without_its_sum() {
        let fixed = |stat: &str| {
            let (_dir, _root, c) = host(&format!("{stat}active_anon 0\ninactive_anon 0\n"));
            Pages::of(&c).unwrap().fixed_bytes
        };
        let parts = "kernel_stack 16\npagetables 40\npercpu 4\nslab_unreclaimable 100\n";
        let common = "sock 50\nunevictable 30\nslab_reclaimable 300\n";
        assert_eq!(fixed(common), 80);
        assert_eq!(fixed(&format!("{common}{parts}")), 80 + 160);
        // The sum holds the parts and the pool.
        assert_eq!(fixed(&format!("kernel 700\nzswap 200\n{common}{parts}")), 80 + 200);
        assert_eq!(fixed(&format!("kernel 10\nzswap 200\n{common}")), 80);
    }

    /// What may not go to the device has the room that pools of other groups leave: under limits of groups above, and of the host's share.
    #[test]
    fn pools_of_others_take_room_from_what_stays() {
        let (_dir, root, c) = host(&format!("zswap {}\nzswapped {}\nactive_anon {}\ninactive_anon 0\n", 5 * MIB, 10 * MIB, 90 * MIB));
        let g = "/sys/fs/cgroup/app.slice";
        put(&root, &format!("{g}/c/memory.swap.current"), &(10 * MIB).to_string());
        put(&root, "/sys/module/zswap/parameters/enabled", "Y");
        let host = |total_mib: u64, pools_mib: u64| {
            put(
                &root,
                "/proc/meminfo",
                &format!("MemTotal: {} kB\nSwapFree: 9999999 kB\nZswap: {} kB\n", total_mib << 10, pools_mib << 10),
            );
        };
        let stays = || must_stay_bytes(&Pages::of(&c).unwrap(), &Offer::read(&root).unwrap()) / MIB;
        host(1000, 75);
        // At 2 : 1 all 100 MiB fit, in a pool that the device stands behind or not.
        assert_eq!(stays(), 50);
        put(&root, &format!("{g}/memory.zswap.writeback"), "0");
        assert_eq!(stays(), 50);
        // A host with 100 MiB for pools, of which others hold 70: 30 hold 60.
        host(100, 75);
        assert_eq!(stays(), 30 + 40);
        host(1000, 75);
        // Above it 45 MiB, of which the neighbour holds 15.
        put(&root, &format!("{g}/memory.zswap.max"), &(45 * MIB).to_string());
        put(&root, &format!("{g}/memory.zswap.current"), &(20 * MIB).to_string());
        put(&root, &format!("{g}/c/memory.zswap.current"), &(5 * MIB).to_string());
        assert_eq!(stays(), 30 + 40);
        // With the device behind them the pools of others may give way: the whole room counts.
        put(&root, &format!("{g}/memory.zswap.writeback"), "1");
        host(100, 75);
        assert_eq!(stays(), 45);
    }
}
