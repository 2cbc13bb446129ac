//! Knobs of the policy `surefoot`.

/// Knobs, with units.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a new service is watched before the models are asked.
    pub sample_ms: u64,
    /// The same for services too slow for a p99 of their own in a second, and for those that say nothing.
    pub sample_slow_ms: u64,
    /// QoS above 1 that a service is to be predicted with, at least.
    pub margin: f64,
    /// Errors of Model-B on this service that lie between its prediction and the target, at least.
    pub errors: f64,
    /// The error that Model-B is taken to have before it has been seen to predict.
    pub first_error: f64,
    /// Cores may be as busy as this after something was taken.
    pub busy: f64,
    /// The same where BE jobs get it while all are well: siblings become busy and clocks fall. Who is busier has more cores first.
    pub busy_beside_be: f64,
    /// Met with less than this, a service takes what is free.
    pub comfort_qos: f64,
    /// Between a change and the next judgement of the same service.
    pub settle_ms: u64,
    /// The same of a slow service: what it answers now it began to work on before.
    pub settle_slow_ms: u64,
    /// All must have met their targets for so long before anything is taken.
    pub calm_ms: u64,
    /// After something was taken, the loser is watched for so long; a slow one ten seconds longer.
    pub watch_ms: u64,
    /// A cell that missed its target is not tried again for so long, unless no more is seen to be well; doubles with every hurt, up to
    /// eight times. So is what BE jobs held when somebody suffered who stood by.
    pub grudge_ms: u64,
    /// Who missed its target or met it by a hair gives nothing to BE jobs for so long.
    pub spare_ms: u64,
    /// A backlog that is gone within so long needs no further resources.
    pub patience_ms: u64,
    /// The same of a slow service.
    pub patience_slow_ms: u64,
    /// Plans that take something after a disturbance.
    pub refines: u32,
    /// Between two such plans when these are used up, and until a bandwidth that hurt is tried again.
    pub calm_every_ms: u64,
    /// Between two plans that leave somebody short; after three of them it doubles each time, up to sixteen times, until something happens.
    pub poor_every_ms: u64,
    /// The same after a plan of that kind that left nobody short, while a slow service's cores are all busy.
    pub poor_queue_ms: u64,
    /// After a reclaim that hurt, the next one waits so long; doubles each time, up to sixteen times, until something changes.
    pub setback_ms: u64,
    /// The first BE job beside a service: it gets so much of what it holds on top, until it is seen how they get along. Siblings,
    /// frequency and memory are shared from then on, and no counter has said how much that costs.
    pub company: f64,
    /// Memory bandwidth that BE jobs begin with beside LC services, per cent, where it can be throttled.
    pub be_first_pct: u8,
    /// Between two raises of it that nobody suffered from.
    pub be_raise_ms: u64,
    /// Change of throughput that counts as a disturbance.
    pub load_change: f64,
    /// Price of all cores, with BE jobs and without.
    pub price_cores: [f64; 2],
    /// Price of all ways.
    pub price_ways: [f64; 2],
    /// Price of a QoS that is predicted 1 lower than ample, with BE jobs and without.
    pub price_risk: [f64; 2],
    /// Least gain in price for which something is taken.
    pub least_gain: f64,
    /// What it costs to move a service while all are well, for each of the LC services, and at most: changes are few on
    /// a server, however many services it has, so who could give only a little is left in peace (without BE jobs, when cores
    /// cost a third: who could give less than a third of them).
    pub price_move: f64,
    pub price_move_most: f64,
    /// Part of that price beside BE jobs, for so long after an arrival, a leave or a fall of load: a move then belongs to the answer to it.
    pub price_move_early: f64,
    pub early_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sample_ms: 300,
            sample_slow_ms: 1000,
            margin: 0.12,
            errors: 2.0,
            first_error: 0.08,
            busy: 0.85,
            busy_beside_be: 0.7,
            comfort_qos: 1.05,
            settle_ms: 400,
            settle_slow_ms: 1500,
            calm_ms: 1200,
            watch_ms: 2000,
            grudge_ms: 60_000,
            spare_ms: 20_000,
            patience_ms: 1200,
            patience_slow_ms: 12_000,
            refines: 3,
            calm_every_ms: 61_000,
            poor_every_ms: 3_000,
            poor_queue_ms: 1_000,
            setback_ms: 4_000,
            company: 0.5,
            be_first_pct: 30,
            be_raise_ms: 900,
            load_change: 0.12,
            price_cores: [1.0, 0.3],
            price_ways: [0.4, 0.12],
            price_risk: [0.12, 0.25],
            least_gain: 0.03,
            price_move: 0.036,
            price_move_most: 0.1,
            price_move_early: 0.5,
            early_ms: 4_000,
        }
    }
}
