//! Every number of the policy `cosmos`: name, value, bounds, unit, meaning, source.
//!
//! *Footprint* is all pages of a service or job, wherever they are. *Pool* is the part of its memory that may hold compressed pages
//! (the paper's CMS). A *core* is a core unit of the platform.

use surefoot_server::settable::settings;

settings! {
    "cosmos"

    /// Steps of the search.
    step: Step {
        period_ms: u64 = 1000, 100..=60_000, "ms", "between two looks (tau)", Cosmos;
        cores: u32 = 1, 1..=64, "cores", "taken from the LC services at once", Cosmos;
        memory: f64 = 0.05, 0.001..=0.5, "share", "of the LC services' footprint, given to them at once", Cosmos;
        first_busy: f64 = 0.5, 0.05..=1, "share", "of the time that cores may be busy where many are taken at once: after the first state of a search, and readapt.more_cores stay besides", CosmosOpen;
        skips: u32 = 1, 0..=1, "levels", "1: M begins where both sides' pages fit; 0: at the least, and every M is tried with all cores", Cosmos;
    }

    /// The compression ratio that the pool is computed with.
    ratio: Ratio {
        start: f64 = 1.9, 1.05..=20, "ratio", "until pages of the service have been compressed", Plant;
        least: f64 = 1.05, 1.001..=5, "ratio", "a lower one counts as this: Eq. 2 divides by what is above 1", CosmosOpen;
        trusted: f64 = 0.01, 0..=1, "share", "of the footprint that the pool must be before its ratio is believed", CosmosOpen;
    }

    /// What a job touches of its memory, where the server tells (paper: w_B).
    touched: Touched {
        margin: f64 = 0.05, 0..=1, "share", "of its working set that a job has besides, at most its footprint", CosmosOpen;
        back: f64 = 0.05, 0..=1, "share", "of its footprint that may come back within half a minute; more, and the working set is doubted", CosmosOpen;
        doubt_ms: u64 = 1_800_000, 1000..=86_400_000, "ms", "that no smaller working set is believed after that", CosmosOpen;
    }

    /// How long a state is in force before it is judged, and by what.
    judge: Judge {
        settle_ms: u64 = 1000, 0..=60_000, "ms", "after a change nothing is read: queues and the last second's requests are of before", CosmosOpen;
        readings: usize = 2, 1..=60, "periods", "whose requests and throughput judge a state together", CosmosOpen;
        most_ms: u64 = 10_000, 0..=600_000, "ms", "that a state is read for at most, while its requests are too few to tell whether p99 is within the margin", CosmosOpen;
        rest: f64 = 0.002, 0..=1, "share", "of its footprint that may move in a period once memory is at rest", CosmosOpen;
        most_wait_ms: u64 = 60_000, 0..=3_600_000, "ms", "for memory to come to rest; then the state is judged as it is", CosmosOpen;
        margin: f64 = 0.05, 0..=0.9, "share", "of the target that p99 must stay below it", CosmosOpen;
        margin_few: f64 = 0.15, 0..=0.9, "share", "the same at most where requests are few: as much as the p99 of one window of twenty is off, where not all cores are given yet", CosmosOpen;
        margin_step: f64 = 0.05, 0..=0.9, "share", "more of it after each state that was kept and then missed the target", CosmosOpen;
        margin_most: f64 = 0.3, 0..=0.9, "share", "of it at most", CosmosOpen;
        gain: f64 = 0.005, 0..=1, "share", "by which throughput must be above the best to have risen", CosmosOpen;
        anew: u32 = 3, 0..=100, "times", "that limits of a state are computed anew at most", CosmosOpen;
        same: f64 = 0.02, 0..=1, "share", "of the footprint by which a limit must be off before it is computed anew", CosmosOpen;
    }

    /// What is left to each side.
    least: Least {
        be_cores: u32 = 1, 1..=64, "cores", "of the BE jobs", CosmosOpen;
        be_memory: f64 = 0.05, 0..=0.9, "share", "of the machine's memory, of the BE jobs", CosmosOpen;
        compressed: f64 = 1.05, 1..=10, "ratio", "of what all pages of an LC service compress to: a lower limit kills it", CosmosOpen;
    }

    /// When a state that was kept is given up.
    readapt: Readapt {
        load: f64 = 0.2, 0.01..=10, "share", "change of the LC services' load", CosmosOpen;
        footprint: f64 = 0.1, 0.01..=10, "share", "change of the footprint of either side", CosmosOpen;
        ratio: f64 = 0.1, 0.01..=10, "share", "change of the compression ratio", CosmosOpen;
        periods: u32 = 3, 1..=1000, "periods", "in a row that such a change must last", CosmosOpen;
        misses: u32 = 3, 1..=1000, "periods", "with a missed target, less what those within it forgive", CosmosOpen;
        forgive: f64 = 0.1, 0..=1, "misses", "that a period within the target takes from those counted: one in so many may miss for ever", CosmosOpen;
        more_cores: u32 = 2, 0..=64, "cores", "that the next search begins with, above those that were kept, by load", CosmosOpen;
    }

    /// The state of `cosmos-static`; the default is the paper's best at low load and over-commitment (Fig. 1).
    fixed: Fixed {
        cores: u32 = 4, 1..=1024, "cores", "of the LC services", Cosmos;
        memory_gb: f64 = 37.3, 0.001..=100_000, "GiB", "of the LC services", Cosmos;
        pool_gb: f64 = 5.3, 0..=100_000, "GiB", "of it that may hold compressed pages", Cosmos;
    }
}
