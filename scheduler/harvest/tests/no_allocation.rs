//! No policy below a tick allocates once it is made: a loop of 50 us has no time for the allocator's locks.

#![allow(clippy::disallowed_methods, reason = "a test's inputs are its own")]

use surefoot_harvest::{Harvester, Seen, Settings};
use surefoot_mutate::allocations::{allocations, Counting};
use surefoot_server::lease::WAIT_BOUNDS;
use surefoot_server::Waits;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A minute of readings with bursts, exhaustions, moves and looks at waits.
#[test]
fn a_minute_of_readings_does_not_allocate() {
    assert!(allocations(|| drop(std::hint::black_box(vec![1u8; 9]))) > 0, "the counter counts");
    for name in ["no-harvest", "fixed-buffer-4", "prev-peak", "prev-peak-10", "smartharvest", "wait-budget", "caladan"] {
        let mut h = Harvester::named(name, 24, 23, &Settings::default()).unwrap();
        let mut n = 0u64;
        let counted = allocations(|| {
            while h.next_us() < 60_000_000 {
                n += 1;
                let now_us = h.next_us();
                if h.wants_waits(now_us) {
                    // Well for forty seconds, and then far from it.
                    let long = if now_us < 40_000_000 { 0 } else { n % 200 };
                    h.waited(now_us, &Waits { dispatches: 500, over: Some([long; WAIT_BOUNDS]), total_us: 1e3 });
                }
                let busy = (n * 7 / 64 % 17) as u32;
                h.poll(&Seen { now_us, busy: busy.min(h.kept()), here: h.kept(), waiting_us: Some((n % 20) as f64) });
            }
        });
        assert_eq!(counted, 0, "{name}");
        assert!(name == "no-harvest" || h.tally().moves > 100, "{name}: {:?}", h.tally());
    }
}
