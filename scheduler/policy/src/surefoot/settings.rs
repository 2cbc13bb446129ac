//! Every number of the policy `surefoot` that was chosen by hand: name, value, bounds, unit, meaning, source.
//!
//! *QoS* is target / p99. A *core* is a core unit of the platform. *Busy share* is busy cores / cores held.

use surefoot_server::settable::settings;

settings! {
    "surefoot"

    /// How readings become features, and which of them count as a change.
    readings: Readings {
        smooth_intervals: usize = 5, 1..=100, "intervals", "features are averaged over so many", Plant;
        window_ms: u64 = 1200, 100..=60_000, "ms", "the window of latencies, and some time for requests under way", Plant;
        saturated_intervals: usize = 3, 1..=100, "intervals", "readings before busy cores are believed to be a queue", Sets;
        calm_intervals: usize = 3, 1..=100, "intervals", "readings of a service before anything is taken from it", Sets;
        watched_intervals: usize = 4, 1..=100, "intervals", "readings of a watched service before it may give again", Sets;
        requests: u64 = 50, 1..=1_000_000, "requests", "an interval with fewer says nothing about a jump of load", Plant;
        jump: f64 = 0.2, 0..=10, "share", "change of throughput between intervals that is a jump of load", Sets;
        jump_sigmas: f64 = 4.0, 0..=100, "deviations", "the same where requests are few: standard deviations of their number", Plant;
        rise: f64 = 0.06, 0..=10, "share", "change of throughput between intervals from where nothing is taken", Sets;
        rise_sigmas: f64 = 2.5, 0..=100, "deviations", "the same where requests are few", Plant;
        mean_requests: f64 = 400.0, 1..=1_000_000, "requests", "throughput is averaged over so many", Plant;
        least_weight: f64 = 0.005, 0.0001..=0.1, "share", "weight of one interval in that average, at least", Plant;
        most_weight: f64 = 0.3, 0.1..=1, "share", "weight of one interval in that average, at most", Plant;
        load_change: f64 = 0.12, 0..=10, "share", "change of throughput that counts as a disturbance", Sets;
        drain_intervals: usize = 3, 2..=100, "intervals", "a backlog's fall is read over so many", Plant;
        drain_ms: f64 = 60.0, 0..=60_000, "ms", "the mean must fall so fast that it were gone in patience / so much intervals", Sets;
    }

    /// What is waited for, and how long.
    patience: Patience {
        sample_ms: u64 = 300, 0..=600_000, "ms", "a newcomer is watched before the models are asked", Paper;
        sample_slow_ms: u64 = 1000, 0..=600_000, "ms", "the same of slow services and of those without latency", Sets;
        settle_ms: u64 = 400, 0..=600_000, "ms", "between a change and the next judgement of the same service", Sets;
        settle_slow_ms: u64 = 1500, 0..=600_000, "ms", "the same of a slow service: its answers were begun before the change", Plant;
        patience_ms: u64 = 1200, 1..=600_000, "ms", "a backlog that is gone within this time needs nothing more", Sets;
        patience_slow_ms: u64 = 12_000, 1..=600_000, "ms", "the same of a slow service", Sets;
        strikes: u32 = 1, 0..=1000, "intervals", "intervals above the target in a row that are no miss yet", Sets;
        burst_intervals: u32 = 3, 0..=1000, "intervals", "the same, on top, of a service that was well here at this load", Sets;
        hurt_strikes: u32 = 2, 1..=1000, "intervals", "intervals above the target in a row after which a loss has hurt", Sets;
        cold_part: f64 = 0.5, 0..=100, "windows", "a newcomer with a queue looks cold for so long", Sets;
        calm_ms: u64 = 1200, 0..=600_000, "ms", "all services must have met their targets before anything is taken", Sets;
        calm_slow_ms: u64 = 10_000, 0..=600_000, "ms", "the same of a slow service, on what it holds", Plant;
        watch_ms: u64 = 2000, 0..=600_000, "ms", "a loser is watched; a slow one for `calm_slow_ms` more", Sets;
        spare_ms: u64 = 20_000, 0..=3_600_000, "ms", "a service that missed its target, or nearly, gives nothing to BE jobs", Sets;
        refines: u32 = 3, 0..=1000, "plans", "plans that take something after a disturbance", Sets;
        look_ms: u64 = 250, 0..=600_000, "ms", "between two looks at what could be taken; doubles while nothing is found", Sets;
        look_doublings: u32 = 5, 0..=16, "times", "at most", Sets;
        setback_ms: u64 = 4000, 0..=3_600_000, "ms", "after a loss that hurt the next one waits, after a bandwidth that did the next raise; doubles each time", Sets;
        early_ms: u64 = 4000, 0..=3_600_000, "ms", "a disturbance is answered for so long: moves are cheaper then", Sets;
        poor_every_ms: u64 = 3000, 0..=3_600_000, "ms", "between two plans that leave a service short", Sets;
        poor_queue_ms: u64 = 1000, 0..=3_600_000, "ms", "the same after one that left none short, for a slow service with a queue", Sets;
        poor_free: u32 = 3, 0..=1000, "plans", "such plans before their wait doubles each time, until something happens", Sets;
        doublings: u32 = 4, 0..=16, "times", "of waits after a loss that hurt or a plan that leaves a service short, at most; halvings of `offers.loss_regret`, too", Sets;
    }

    /// How much Model-B's predictions are believed.
    trust: Trust {
        margin: f64 = 0.12, 0..=10, "QoS", "QoS above 1 that must be predicted, at least", Sets;
        errors: f64 = 2.0, 0..=100, "errors", "errors of Model-B between its prediction and the target, at least", Sets;
        first_error: f64 = 0.08, 0..=2, "share", "relative error of Model-B before it was seen to predict", Sets;
        weight: f64 = 0.3, 0..=1, "share", "weight of the latest error in the average", Sets;
        hurt_weight: f64 = 0.5, 0..=1, "share", "weight of an error that hurt", Sets;
        comfort_qos: f64 = 1.05, 1..=10, "QoS", "a service that meets its target with less takes what is free", Sets;
        missed_qos: f64 = 0.99, 0..=1, "QoS", "a cell that missed is remembered with at most this, and with this where latency is unknown", Plant;
        forbidden_qos: f64 = 0.5, 0..=1, "QoS", "expected at most on a cell that a miss speaks against", Sets;
        unknown_qos: f64 = 0.5, 0..=1, "QoS", "expected without models on less than is held", Sets;
    }

    /// What was seen on cells, and how long that counts.
    memory: Memory {
        grudge_ms: u64 = 60_000, 0..=3_600_000, "ms", "what was seen on a cell counts for so long (after a hurt it doubles each time); a second more between plans that take, once few are left, and before a bandwidth that hurt is tried again", Sets;
        spare_beside_be: f64 = 0.25, 0..=10, "share", "a service that was hurt gives nothing to BE jobs for such a part of that time", Sets;
        cells: usize = 48, 1..=10_000, "cells", "remembered for each service; the oldest goes first", Plant;
        well_qos: f64 = 1.2, 1..=10, "QoS", "from here an earlier miss on as much or more had another cause", Sets;
        same_load: f64 = 0.08, 0..=1, "share", "loads closer than this are the same", Sets;
    }

    /// Busy shares of cores: nine thresholds on one scale, in rising order of what they allow.
    busy: Busy {
        idle: f64 = 0.6, 0.01..=1, "busy share", "below it more cores do not help; without models a service is given so many", Sets;
        firm_beside_be: f64 = 0.65, 0.01..=1, "busy share", "a bystander gets cores to come down to it, beside BE jobs", Sets;
        most_beside_be: f64 = 0.7, 0.01..=1, "busy share", "after a loss to BE jobs at most: siblings get busy and clocks fall", Sets;
        firm: f64 = 0.8, 0.01..=1, "busy share", "a bystander gets cores to come down to it, without BE jobs; below it a service that misses may wait for memory", Sets;
        most: f64 = 0.85, 0.01..=1, "busy share", "after any other loss at most", Sets;
        full: f64 = 0.92, 0.01..=1, "busy share", "above it nothing but cores helps", Sets;
        queue: f64 = 0.95, 0.5..=1, "busy share", "above it cores have a queue, and bound the QoS that is expected", Sets;
        saturated: f64 = 0.96, 0.5..=1, "busy share", "above it a queue grows that latency may not show yet", Sets;
        queue_qos: f64 = 0.8, 0..=1, "QoS", "expected at most where the queue begins; it falls from there to the overload", Sets;
        overload: f64 = 1.2, 1.01..=4, "busy share", "of the cores that would be left: nothing of QoS is expected", Sets;
        overload_slow: f64 = 1.05, 1.01..=4, "busy share", "the same of a slow service, whose queue stays for minutes", Sets;
        overload_slow_qos: f64 = -1.0, -10..=0, "QoS", "its expected QoS goes on falling down to this", Sets;
    }

    /// What a plan pays: it is the cheapest one that fits.
    prices: Prices {
        cores_beside_be: f64 = 1.0, 0..=100, "price", "of all cores, beside BE jobs", Sets;
        cores: f64 = 0.3, 0..=100, "price", "of all cores, without BE jobs", Sets;
        ways_beside_be: f64 = 0.4, 0..=100, "price", "of all ways, beside BE jobs", Sets;
        ways: f64 = 0.12, 0..=100, "price", "of all ways, without BE jobs", Sets;
        risk_beside_be: f64 = 0.12, 0..=100, "price", "of each QoS below ample, beside BE jobs", Sets;
        risk: f64 = 0.25, 0..=100, "price", "of each QoS below ample, without BE jobs", Sets;
        ample_qos: f64 = 1.6, 1..=10, "QoS", "from here more is worth nothing", Sets;
        miss: f64 = 2.0, 0..=1000, "price", "of a target that is missed, or of leaving busy cores as they are in a plan that takes", Sets;
        miss_slope: f64 = 6.0, 0..=1000, "price", "of each QoS below the target", Sets;
        stay: f64 = 0.5, 0..=100, "price", "of moving a service that is well, in a plan for others; least gain for which a service is left short", Sets;
        least_gain: f64 = 0.03, 0..=100, "price", "least gain for which something is taken while all are well", Sets;
        r#move: f64 = 0.036, 0..=100, "price", "of moving a service while all are well, for each LC service", Sets;
        move_most: f64 = 0.1, 0..=100, "price", "the same, at most", Sets;
        memory: f64 = 0.01, 0..=100, "price", "of all memory, of what an LC service holds (`surefoot-memory`)", Guess;
        memory_beside_be: f64 = 4.0, 0..=100, "price", "of all memory, of what BE jobs lack of their footprints (`surefoot-memory`)", Guess;
        pool: f64 = 0.05, 0..=100, "price", "of all memory, as a pool; pages that come back cost cores, too (`surefoot-memory`)", Guess;
        bandwidth: f64 = 0.5, 0..=100, "price", "of all of the BE jobs' memory bandwidth; a service gets cores where these cost less (`surefoot-memory`)", Guess;
        move_memory: f64 = 0.001, 0..=100, "price", "of moving a unit of memory (`surefoot-memory`)", Guess;
        move_early: f64 = 0.5, 0..=100, "share", "of that price, beside BE jobs and soon after a disturbance", Sets;
    }

    /// Which cells a plan chooses from.
    offers: Offers {
        levels: [f64; 3] = [0.0, 0.2, 0.45], 0..=10, "QoS", "predicted QoS beyond what is required of the cells on offer", Sets;
        poor_plan_levels: usize = 1, 0..=3, "levels", "of these where not all services can have enough", Sets;
        poor_levels: [f64; 4] = [1.02, 0.9, 0.7, 0.4], 0..=10, "QoS", "predicted QoS of the cells on offer where not all can have enough", Sets;
        poor_qos: f64 = 1.02, 1..=10, "QoS", "must be predicted of a giver where not all can have enough", Sets;
        around_cores: [u32; 5] = [0, 1, 0, 1, 2], 0..=64, "cores", "above Model-A's OAA: cells that are offered, too", Sets;
        around_ways: [u32; 5] = [0, 0, 1, 1, 1], 0..=64, "ways", "the ways of the same", Sets;
        further_qos: f64 = 0.2, 0..=10, "QoS", "beyond what is required for a cell within Model-A's OAA", Sets;
        corner_slack: f64 = 0.3, 0..=0.99, "units", "Model-A's corners are rounded up beyond it", Sets;
        most_loss: f64 = 0.5, 0..=1, "share", "of what it holds a service gives at once to others that need it", Sets;
        loss: f64 = 0.5, 0..=1, "share", "of what it holds a service that is well gives at once", Sets;
        loss_slow: f64 = 0.125, 0..=1, "share", "the same of a slow service", Sets;
        loss_hurt: f64 = 0.25, 0..=1, "share", "the same of a service that a loss has hurt", Sets;
        loss_regret: f64 = 0.125, 0..=1, "share", "the same while all are well, once a loss at this load was too much; halves each time", Sets;
        less: [f64; 5] = [0.9, 0.75, 0.5, 0.25, 0.0], 0..=1, "share", "of what is held, on offer where not all can have enough", Sets;
    }

    /// What a service that misses its target is given.
    grow: Grow {
        far_qos: f64 = 0.5, 0..=1, "QoS", "below it a service is far behind, with a queue to be worked off", Sets;
        step: f64 = 0.25, 0..=4, "share", "of what it holds a service gets more at once", Sets;
        step_far: f64 = 0.5, 0..=4, "share", "the same when it is far behind", Sets;
        step_far_tries: u32 = 2, 0..=16, "tries", "for so many tries that step grows with each", Sets;
        tries: u32 = 6, 1..=1000, "tries", "enlargements, each larger than the last, before it begins anew", Sets;
        stuck_tries: u32 = 2, 0..=1000, "tries", "from here the other resource may do where none is left of the one", Sets;
        both_tries: u32 = 3, 0..=1000, "tries", "from here both resources grow", Sets;
        beyond_most: u32 = 3, 0..=64, "units", "each try goes further beyond what is held, up to so much", Sets;
        poor_loss: f64 = 0.25, 0..=1, "share", "of what it holds a service with idle cores may lose where not all can have enough", Sets;
        hope_qos: f64 = 0.9, 0..=2, "QoS", "expected at least of an enlargement", Sets;
        parts: [f64; 4] = [1.0, 0.5, 0.25, 0.125], 0..=1, "share", "of a step, and a unit: better than a queue that stays", Sets;
        part_qos: f64 = 0.9, 0..=2, "QoS", "expected at most of a part", Sets;
        part_qos_fall: f64 = 0.02, 0..=1, "QoS", "less of each smaller part", Sets;
        vain_ms: u64 = 3000, 0..=3_600_000, "ms", "before it is judged, from the first try", Sets;
        vain_busy: f64 = 0.4, 0.01..=1, "busy share", "of a service with busier cores it is not judged; what is given back leaves it below", Sets;
        vain_rest_ms: u64 = 60_000, 0..=3_600_000, "ms", "before more is tried again; doubles each time", Sets;
        unproven_qos: f64 = 0.95, 0..=10, "QoS", "expected at most of a cell that was not seen, where another was seen to be well", Sets;
    }

    /// Memory (`surefoot-memory` alone).
    pages: Pages {
        units: u32 = 64, 4..=1024, "units", "of which all memory consists; a service moves by one in a second, at most", Guess;
        page_us: f64 = 6.0, 0..=1000, "us", "of a core for a page that comes back from the pool", Cosmos;
        trade: u32 = 2, 0..=64, "cores", "that a service gets for a unit of memory, at most", Guess;
        resident: f64 = 0.98, 0.01..=1, "share", "of the footprint from which pages that come back say nothing of what is outside", Plant;
        disk: f64 = 0.01, 0..=1, "share", "of requests that wait for the swap device from which a service's memory counts as a missed target", Plant;
        busy: f64 = 0.8, 0.01..=1, "busy share", "in place of `busy.most_beside_be` and `busy.firm_beside_be`", MemoryTune;
        moves: f64 = 0.15, 0..=100, "share", "of `prices.move` and `prices.least_gain`", MemoryTune;
        plans: u32 = 20, 0..=1000, "plans", "in place of `patience.refines`", MemoryTune;
        forget_ms: u64 = 20_000, 0..=3_600_000, "ms", "in place of `memory.grudge_ms`", MemoryTune;
    }

    /// What newcomers are given once models answer, and what they may cost others.
    newcomers: Newcomers {
        keeps: f64 = 0.5, 0..=1, "share", "of what it was watched on it keeps: that says little about less", Sets;
        keeps_missing: f64 = 0.75, 0..=1, "share", "the same while it misses its target", Sets;
        saturated_growth: f64 = 1.5, 0..=4, "share", "of the cores it was watched on it needs, when all of them are busy", Sets;
        far_down: f64 = 0.25, 0..=1, "share", "of its cores that a service loses at once is far", Sets;
    }

    /// What stands in for models, and where nothing is known of a service.
    blind: Blind {
        parts: [f64; 6] = [2.0, 1.5, 1.0, 0.5, 0.25, 0.0], 0..=100, "equal shares", "on offer to a newcomer", Sets;
        risks: [f64; 6] = [0.0, 0.3, 0.8, 2.0, 3.0, 5.0], 0..=100, "price", "of these", Sets;
        slow_parts: [f64; 10] = [4.0, 3.0, 2.5, 2.0, 1.75, 1.5, 1.25, 1.0, 0.5, 0.0], 0..=100, "equal shares", "on offer to a slow newcomer: its first queue stays for minutes", Sets;
        slow_risks: [f64; 10] = [0.0, 0.3, 0.5, 0.8, 1.0, 1.3, 1.7, 2.5, 4.0, 6.0], 0..=100, "price", "of these", Sets;
        enough_risk: f64 = 2.0, 0..=100, "price", "a newcomer's cell with no more needs nothing of others", Sets;
        shares_cores: [f64; 7] = [0.9, 1.0, 0.9, 0.75, 1.0, 0.75, 0.5], 0..=1, "share", "of its cores that a service may be left", Sets;
        shares_ways: [f64; 7] = [1.0, 0.9, 0.9, 1.0, 0.75, 0.75, 0.5], 0..=1, "share", "of its ways, beside these", Sets;
        step: f64 = 0.25, 0..=4, "share", "of what it holds a service that misses its target gets more", Sets;
        power: f64 = 2.0, 0.1..=8, "power", "of the share that is left, with which QoS is taken to fall until a loss has shown another one", Guess;
        least_power: f64 = 0.25, 0.01..=8, "power", "a lower one counts as this", Guess;
    }

    /// BE jobs: room for the first one, and memory bandwidth.
    be: Be {
        company: f64 = 0.5, 0..=4, "share", "on top of what it holds, for a service when the first BE job comes: its cost is not known yet", Sets;
        first_pct: u8 = 30, 0..=100, "%", "memory bandwidth that BE jobs begin with beside LC services", Sets;
        raise_ms: u64 = 900, 0..=3_600_000, "ms", "between two raises of it that hurt no service", Sets;
        raise_qos: f64 = 1.2, 1..=10, "QoS", "of the worst service, from where it is raised", Sets;
        steps: usize = 4, 1..=100, "steps", "in one raise where nothing counts what memory carries, and back at once while it is contended", Sets;
        contended: f64 = 0.6, 0..=1, "share", "of the peak bandwidth, from where memory may be what is waited for", Plant;
    }
}

/// So much of a number of units, up to whole ones.
pub(super) fn part_up(n: u32, share: f64) -> u32 {
    (f64::from(n) * share).ceil() as u32
}
