//! Every number of the policy `surefoot` that can be set: name, value, bounds, unit, meaning, source; and what follows from these.
//!
//! *QoS* is target / p99. A *core* is a core unit of the platform. *Busy share* is busy cores / cores held.

use surefoot_server::settable::settings;

settings! {
    "surefoot"

    /// How readings become features, and which of them count as a change.
    readings: Readings {
        smooth_intervals: usize = 5, 1..=100, "intervals", "features are averaged over so many", Plant;
        enough_intervals: usize = 3, 1..=100, "intervals", "readings before they are believed: of busy cores, of a calm service, of a queue that drains; a burst is as long", Sets;
        load_change: f64 = 0.12, 0.001..=10, "share", "change of throughput that counts as a disturbance; twice as much is a jump, half of it a rise", Sets;
    }

    /// What is waited for, and how long.
    patience: Patience {
        sample_ms: u64 = 300, 0..=600_000, "ms", "a newcomer is watched before the models are asked", Paper;
        settle_ms: u64 = 400, 0..=600_000, "ms", "between a change and the next judgement of the same service; the first wait between two looks at what could be taken", Sets;
        slow_ms: u64 = 10_000, 1..=600_000, "ms", "in place of a window, for slow services: to be calm, and to work off a backlog", Plant;
        strikes: u32 = 1, 0..=1000, "intervals", "intervals above the target in a row that are no miss yet; one more, and a loss has hurt", Sets;
        watch_ms: u64 = 2000, 0..=600_000, "ms", "a loser is watched; a slow one for `slow_ms` more", Sets;
        spare_ms: u64 = 20_000, 0..=3_600_000, "ms", "a service that missed its target, or nearly, or was hurt beside BE jobs, gives nothing to these", Sets;
        again_ms: u64 = 4000, 1..=3_600_000, "ms", "between two tries of what may fail: a loss after one that hurt, bandwidth, a plan that leaves a service short, more for one that it did not help", TuneWorlds;
        refines: u32 = 3, 0..=1000, "plans", "plans that take something after a disturbance; plans that leave a service short before their wait doubles", Sets;
    }

    /// How much Model-B's predictions are believed.
    trust: Trust {
        margin: f64 = 0.12, 0..=10, "QoS", "QoS above 1 that must be predicted, at least; half of it is met by a hair", Sets;
        errors: f64 = 2.0, 0.01..=100, "errors", "errors of Model-B between its prediction and the target, at least", Sets;
        weight: f64 = 0.3, 0..=1, "share", "weight of the latest error in the average", Sets;
        far_qos: f64 = 0.5, 0..=1, "QoS", "far behind, with a queue to be worked off; expected at most where a miss speaks against a cell, or nothing is known", Sets;
    }

    /// What was seen on cells, and how long that counts.
    memory: Memory {
        grudge_ms: u64 = 60_000, 0..=3_600_000, "ms", "what was seen on a cell, and what did not help, counts for so long (after a hurt it doubles each time)", Sets;
    }

    /// Busy shares of cores.
    busy: Busy {
        most_beside_be: f64 = 0.7, 0.01..=1, "busy share", "after a loss to BE jobs at most, and what a bystander is brought down to: siblings get busy and clocks fall; below it cores are not what is lacking", Sets;
        most: f64 = 0.85, 0.01..=1, "busy share", "the same after any other loss, and without BE jobs", Sets;
        full: f64 = 0.95, 0.5..=1, "busy share", "above it cores have a queue that latency may not show yet, and nothing but cores helps", TuneWorlds;
    }

    /// What a plan pays: it is the cheapest one that fits.
    prices: Prices {
        cores_beside_be: f64 = 1.0, 0..=100, "price", "of all cores, beside BE jobs", Sets;
        ways_beside_be: f64 = 0.4, 0..=100, "price", "of all ways, beside BE jobs", Sets;
        quiet: f64 = 0.3, 0..=10, "share", "of these two prices without BE jobs", Sets;
        risk: f64 = 0.12, 0..=100, "price", "of each QoS below ample", TuneWorlds;
        ample_qos: f64 = 1.6, 1..=10, "QoS", "from here more is worth nothing", Sets;
        miss: f64 = 2.0, 0..=1000, "price", "of a target that is missed, and three times as much of each QoS below it; of leaving busy cores as they are in a plan that takes", Sets;
        stay: f64 = 0.5, 0..=100, "price", "of moving a service that is well, in a plan for others; least gain for which a service is left short", Sets;
        r#move: f64 = 0.05, 0..=100, "price", "of moving a service while all are well", TuneWorlds;
        memory: f64 = 0.01, 0..=100, "price", "of all memory, of what an LC service holds (`surefoot-memory`)", Guess;
        memory_beside_be: f64 = 4.0, 0..=100, "price", "of all memory, of what BE jobs lack of their footprints (`surefoot-memory`)", Guess;
        pool: f64 = 0.05, 0..=100, "price", "of all memory, as a pool; pages that come back cost cores, too (`surefoot-memory`)", Guess;
        bandwidth: f64 = 0.5, 0..=100, "price", "of all of the BE jobs' memory bandwidth; a service gets cores where these cost less (`surefoot-memory`)", Guess;
        move_memory: f64 = 0.001, 0..=100, "price", "of moving a unit of memory (`surefoot-memory`)", Guess;
    }

    /// Which cells a plan chooses from.
    offers: Offers {
        step_qos: f64 = 0.2, 0..=1, "QoS", "between two levels of predicted QoS of the cells on offer, above what is required and below the target", Sets;
        loss: f64 = 0.5, 0..=1, "share", "of what it holds a service gives at once; half of it once a loss has hurt, a quarter where it is slow or regrets one", Sets;
    }

    /// What a service that misses its target is given.
    grow: Grow {
        step: f64 = 0.25, 0..=4, "share", "of what it holds a service gets more at once; twice as much when it is far behind", Sets;
        hope_qos: f64 = 0.9, 0..=2, "QoS", "expected at least of an enlargement, at most of a part of one, and of a cell that was not seen where another was seen to be well", Sets;
        tries: u32 = 3, 1..=1000, "tries", "enlargements from which both resources grow and their use is judged; after twice as many they begin anew", Sets;
    }

    /// Memory (`surefoot-memory` alone).
    pages: Pages {
        units: u32 = 64, 4..=1024, "units", "of which all memory consists; a service moves by one in a second, at most", Guess;
        page_us: f64 = 6.0, 0..=1000, "us", "of a core for a page that comes back from the pool", Cosmos;
        trade: u32 = 2, 0..=64, "cores", "that a service gets for a unit of memory, at most", Guess;
        resident: f64 = 0.98, 0.01..=1, "share", "of the footprint from which pages that come back say nothing of what is outside", Plant;
        disk: f64 = 0.01, 0..=1, "share", "of requests that wait for the swap device from which a service's memory counts as a missed target", Plant;
        busy: f64 = 0.8, 0.01..=1, "busy share", "in place of `busy.most_beside_be`", MemoryTune;
        moves: f64 = 0.15, 0..=100, "share", "of `prices.move`", MemoryTune;
        plans: u32 = 20, 0..=1000, "plans", "in place of `patience.refines`", MemoryTune;
        forget_ms: u64 = 20_000, 0..=3_600_000, "ms", "in place of `memory.grudge_ms`", MemoryTune;
    }

    /// What newcomers are given once models answer.
    newcomers: Newcomers {
        keeps: f64 = 0.5, 0..=1, "share", "of what it was watched on it keeps: that says little about less; so much more of the cores when all of them are busy", Sets;
    }

    /// Where nothing is known of a service.
    blind: Blind {
        shares: f64 = 2.0, 0..=100, "equal shares", "on offer to a newcomer at most, and without risk; twice as many to a slow one, whose first queue stays for minutes", Sets;
    }

    /// BE jobs: room for the first one, and memory bandwidth.
    be: Be {
        company: f64 = 0.5, 0..=4, "share", "on top of what it holds, for a service when the first BE job comes: its cost is not known yet", Sets;
        first_pct: u8 = 30, 0..=100, "%", "memory bandwidth that BE jobs begin with beside LC services", Sets;
        steps: usize = 4, 1..=100, "steps", "in one raise where nothing counts what memory carries, and back at once while it is contended", Sets;
        contended: f64 = 0.6, 0..=1, "share", "of the peak bandwidth, from where memory may be what is waited for", Plant;
    }
}

/// What is seen of a change when it is past: the window of latencies, and some time for requests under way.
pub(super) const WINDOW_MS: u64 = surefoot_server::window::WINDOW_MS + 200;
/// Standard deviations from which a change is none of chance: one reading in 400 is as far off by itself.
pub(super) const SIGMAS: f64 = 3.0;
/// Times that a wait doubles at most: a belief is put to the test again after eight times as long at the latest.
pub(super) const DOUBLINGS: u32 = 3;
/// Just below the target: a cell that missed is remembered with at most this, and with this where latency is unknown.
pub(super) const MISSED_QOS: f64 = 0.99;
/// The power of what is left of cores and ways with which QoS falls by the rule of thumb, and the least that a service may show.
pub(super) const POWER: f64 = 2.0;
pub(super) const LEAST_POWER: f64 = 0.25;

/// What follows from the settings. Each has its reason here.
impl Settings {
    /// A jump: what was averaged before is of another service. Chance alone makes none of few requests.
    pub(super) fn is_jump(&self, change: f64, requests: u64) -> bool {
        change.abs() > (2.0 * self.readings.load_change).max(SIGMAS / (requests as f64).sqrt())
    }

    /// A rise that goes on would be a disturbance at the next reading.
    pub(super) fn is_rise(&self, change: f64, requests: u64) -> bool {
        change > (self.readings.load_change / 2.0).max(SIGMAS / (requests as f64).sqrt())
    }

    /// Requests of which the mean throughput consists: of so many, a change that counts is none of chance.
    pub(super) fn mean_requests(&self) -> f64 {
        (SIGMAS / self.readings.load_change).powi(2)
    }

    /// Weight of the latest reading in an average that is as old as features are.
    pub(super) fn latest_weight(&self) -> f64 {
        2.0 / (self.readings.smooth_intervals as f64 + 1.0)
    }

    /// A service is well by more than a hair: half way to what must be predicted.
    pub(super) fn comfort_qos(&self) -> f64 {
        1.0 + self.trust.margin / 2.0
    }

    /// What must be predicted of a service that Model-B was never wrong about.
    pub(super) fn sure_qos(&self) -> f64 {
        1.0 + self.trust.margin
    }

    /// Model-B's error before it was seen to predict: the margin is as wide as its errors ask for.
    pub(super) fn first_error(&self) -> f64 {
        self.trust.margin / self.trust.errors
    }

    /// A loss that hurt, seen in intervals: one more than what is no miss yet.
    pub(super) fn hurt_strikes(&self) -> u32 {
        self.patience.strikes + 1
    }

    /// Busy share up to which a service may be left, or is brought down to.
    pub(super) fn most_busy(&self, beside_be: bool) -> f64 {
        if beside_be {
            self.busy.most_beside_be
        } else {
            self.busy.most
        }
    }

    /// Cores so idle that half of them would do.
    pub(super) fn idle_busy(&self) -> f64 {
        self.busy.most / 2.0
    }

    /// Prices of all cores and of all ways.
    pub(super) fn prices_of(&self, beside_be: bool) -> (f64, f64) {
        let part = if beside_be { 1.0 } else { self.prices.quiet };
        (part * self.prices.cores_beside_be, part * self.prices.ways_beside_be)
    }

    /// Predicted QoS beyond what is required, of the cells on offer; where not all can have enough, no cell with plenty is looked for.
    pub(super) fn levels(&self, poor: bool) -> impl Iterator<Item = f64> {
        let step = self.offers.step_qos;
        (0..if poor { 1 } else { 3 }).map(move |n| step * f64::from(n))
    }

    /// QoS of the cells on offer where not all can have enough: from the target down.
    pub(super) fn poor_levels(&self) -> impl Iterator<Item = f64> {
        let step = self.offers.step_qos;
        (0..4).map(move |n| (1.0 - step * f64::from(n)).max(0.0))
    }

    /// Equal shares on offer to a service of which nothing is known, and the price of their risk: with the square of what is lacking,
    /// up to that of a service without anything, which misses its target by all of it.
    pub(super) fn blind_parts(&self, slow: bool) -> impl Iterator<Item = (f64, f64)> {
        let most = self.blind.shares * if slow { 2.0 } else { 1.0 };
        let none = 2.0 * self.prices.miss;
        (0..=8).rev().map(move |eighths| {
            let part = f64::from(eighths) / 8.0;
            (part * most, none * (1.0 - part).powi(2))
        })
    }

    /// The risk of a quarter of what is offered at most: half an equal share, by default, is enough to begin with.
    pub(super) fn enough_risk(&self) -> f64 {
        2.0 * self.prices.miss * 0.75_f64.powi(2)
    }
}

/// Settings of before, by what became of them: a file or a record that still has one is told.
const GONE: [(&str, &[&str]); 25] = [
    ("follows from surefoot.readings.load_change", &["readings.jump", "readings.rise", "readings.mean_requests", "memory.same_load"]),
    ("follows from surefoot.readings.smooth_intervals", &["readings.most_weight"]),
    (
        "is surefoot.readings.enough_intervals",
        &[
            "readings.saturated_intervals",
            "readings.calm_intervals",
            "readings.watched_intervals",
            "readings.drain_intervals",
            "patience.burst_intervals",
        ],
    ),
    (
        "is the window of latencies, which no setting changes",
        &[
            "readings.window_ms",
            "patience.sample_slow_ms",
            "patience.settle_slow_ms",
            "patience.patience_ms",
            "patience.calm_ms",
            "patience.poor_queue_ms",
            "patience.cold_part",
            "be.raise_ms",
        ],
    ),
    ("is surefoot.patience.slow_ms", &["patience.patience_slow_ms", "patience.calm_slow_ms"]),
    ("follows from surefoot.patience.strikes", &["patience.hurt_strikes"]),
    ("is surefoot.patience.settle_ms", &["patience.look_ms"]),
    ("is surefoot.patience.again_ms", &["patience.setback_ms", "patience.poor_every_ms", "grow.vain_ms"]),
    ("is surefoot.patience.refines", &["patience.poor_free"]),
    ("is surefoot.patience.spare_ms", &["memory.spare_beside_be"]),
    ("follows from surefoot.trust.margin", &["trust.first_error", "trust.comfort_qos", "memory.well_qos"]),
    ("is surefoot.trust.weight", &["trust.hurt_weight"]),
    ("is surefoot.trust.far_qos", &["trust.forbidden_qos", "trust.unknown_qos", "grow.far_qos"]),
    ("is surefoot.memory.grudge_ms", &["grow.vain_rest_ms"]),
    ("is surefoot.busy.most_beside_be", &["busy.idle", "busy.firm_beside_be"]),
    ("follows from surefoot.busy.most", &["busy.firm", "grow.vain_busy"]),
    ("is surefoot.busy.full", &["busy.queue", "busy.saturated"]),
    ("follows from surefoot.prices.quiet", &["prices.cores", "prices.ways"]),
    ("is surefoot.prices.risk", &["prices.risk_beside_be"]),
    ("follows from surefoot.prices.miss", &["prices.miss_slope", "blind.risks", "blind.slow_risks", "blind.enough_risk"]),
    ("is surefoot.prices.move", &["prices.least_gain", "prices.move_most", "prices.move_early", "patience.early_ms"]),
    ("follows from surefoot.offers.step_qos", &["offers.levels", "offers.poor_levels", "offers.further_qos", "be.raise_qos"]),
    (
        "follows from surefoot.offers.loss",
        &["offers.most_loss", "offers.loss_slow", "offers.loss_hurt", "offers.loss_regret", "newcomers.far_down"],
    ),
    (
        "follows from another setting of its group",
        &[
            "grow.step_far",
            "grow.step_far_tries",
            "grow.stuck_tries",
            "grow.both_tries",
            "grow.beyond_most",
            "grow.poor_loss",
            "grow.part_qos",
            "grow.unproven_qos",
            "newcomers.keeps_missing",
            "newcomers.saturated_growth",
            "blind.parts",
            "blind.slow_parts",
            "blind.step",
        ],
    ),
    (
        "is a constant",
        &[
            "readings.requests",
            "readings.jump_sigmas",
            "readings.rise_sigmas",
            "readings.least_weight",
            "readings.drain_ms",
            "patience.look_doublings",
            "patience.doublings",
            "trust.missed_qos",
            "memory.cells",
            "busy.queue_qos",
            "busy.overload",
            "busy.overload_slow",
            "busy.overload_slow_qos",
            "offers.poor_plan_levels",
            "offers.poor_qos",
            "offers.around_cores",
            "offers.around_ways",
            "offers.corner_slack",
            "offers.less",
            "grow.parts",
            "grow.part_qos_fall",
            "blind.shares_cores",
            "blind.shares_ways",
            "blind.power",
            "blind.least_power",
        ],
    ),
];

/// What became of a setting of before; None: there never was one of that name.
pub fn became(name: &str) -> Option<&'static str> {
    GONE.iter().find(|(_, names)| names.contains(&name)).map(|(what, _)| *what)
}

/// So much of a number of units, up to whole ones.
pub(super) fn part_up(n: u32, share: f64) -> u32 {
    (f64::from(n) * share).ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_server::settable::Settable;

    /// Forty settings at most, those of memory apart; no name is both gone and there; the study says of each that is gone what it is now.
    #[test]
    fn there_are_few_and_the_others_are_accounted_for() {
        let of_memory = |s: &&surefoot_server::settable::Setting<Settings>| s.meaning.contains("surefoot-memory") || s.group == "pages";
        let (memory, ours): (Vec<_>, Vec<_>) = Settings::table().iter().partition(of_memory);
        assert!(ours.len() <= 40 && memory.len() <= 14, "{} and {}", ours.len(), memory.len());
        let page = include_str!("../../../../docs/studies/2026-11-29-forty-settings.md");
        for name in GONE.iter().flat_map(|(_, names)| *names) {
            assert!(Settings::table().iter().all(|s| s.name() != **name), "{name}");
            assert!(page.contains(&format!("`{name}`")), "{name} is not accounted for in the study");
        }
        assert_eq!(became("offers.levels"), Some("follows from surefoot.offers.step_qos"));
        assert_eq!((became("trust.margin"), became("x.y")), (None, None));
    }
}
