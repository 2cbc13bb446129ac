//! Numbers of the policy `cosmos-per-service` alone. Periods, ratios, margins, floors and what gives a state up are those of `cosmos`.

use crate::settable::settings;

settings! {
    "cosmos-per-service"

    /// Cores of each LC service.
    cores: Cores {
        give: f64 = 0.25, 0.01..=0.9, "share", "of what it holds a service with room gives at once, at most", MemoryTune;
        busy: f64 = 0.8, 0.01..=1, "busy share", "of what it would be left with, at most", MemoryTune;
        grow: f64 = 0.25, 0.01..=4, "share", "of what it holds a service that misses its target gets more", MemoryTune;
        far_qos: f64 = 0.5, 0..=1, "QoS", "below it one period is enough, and it gets twice as much", MemoryTune;
        forgive: f64 = 0.1, 0..=1, "misses", "that a period within the target takes from those counted: one in so many may miss for ever", MemoryTune;
        sated: u32 = 2, 1..=100, "gifts", "in a row by which throughput of the jobs does not rise; then no core is given any more", MemoryTune;
    }

    /// Memory among the LC services.
    share: Share {
        resident: f64 = 0.98, 0.01..=1, "share", "of the footprint from which pages that come back say nothing of what is outside", Plant;
        moves: f64 = 0.05, 0..=1, "share", "of its footprint by which some service's memory must be off to be divided anew", CosmosOpen;
        gain: f64 = 0.2, 0..=1, "share", "fewer pages that would come back of all services, at least, for that", MemoryTune;
        disk: f64 = 0.01, 0..=1, "share", "of requests that wait for the swap device from which memory is what a service lacks, where cores are another policy's", Plant;
        vain: u32 = 2, 1..=100, "steps", "of memory after which a service that still misses its target gets no more", MemoryTune;
    }
}
