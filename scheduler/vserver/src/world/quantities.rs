//! Every quantity that a world draws, with range, correlation and source: the table of docs/worlds.md.
//!
//! A source gives the order of magnitude, not the law: published tables have a dozen services and a few servers. "shipped" are the
//! profiles of this repository, which were calibrated against the papers' tables. No drawn value is taken from one of them.

use super::quantity::Common::{Era, Memory, Size};
use super::quantity::Law::{Even, Log, OneOf, Share, Whole};
use super::quantity::Quantity;

macro_rules! quantities {
    ($list:ident: $($name:ident = $field:literal, $unit:literal, $law:expr, [$($with:expr),*], $source:literal;)*) => {
        $(pub const $name: Quantity = Quantity { name: $field, unit: $unit, law: $law, with: &[$($with),*], source: $source };)*
        pub const $list: &[Quantity] = &[$($name),*];
    };
}

quantities! { PLATFORM:
    CORES = "cpu.physical_cores", "cores", Whole(10, 40), [(Era, 0.6)], "one socket of Broadwell to Ice Lake: OSML+ Table 4 has 18 to 32";
    SMT = "cpu.smt", "2 threads, else 1", Share(0.85), [], "servers of the papers; some turn it off (COSMOS, SmartHarvest)";
    MANY_DOMAINS = "llc.domains", "several, else 1", Share(0.2), [], "AMD EPYC has an L3 a core complex, Intel one a socket";
    DOMAINS = "llc.domains (several)", "domains", OneOf(&[2.0, 4.0]), [], "as above, few enough for cores to share one";
    PEAK_GHZ = "cpu.turbo_ghz[0]", "GHz", Even(2.8, 4.2), [(Era, 0.3)], "data sheets; OSML+ servers 3.2 to 4.0";
    ALL_CORES_RATIO = "cpu.turbo_ghz, last over first", "ratio", Even(0.66, 1.0), [(Era, -0.3)], "data sheets; 1 where turbo is off";
    FLAT_CORES = "cpu.turbo_ghz, cores at the peak", "cores", Whole(1, 4), [], "data sheets: the first bins are equal";
    BASE_RATIO = "cpu.base_ghz over turbo of all cores", "ratio", Even(0.7, 0.95), [], "data sheets";
    IDLE_AWAKE = "cpu.idle_awake", "share", Even(0.02, 0.05), [], "shipped: 0.03";
    SMT_SLOWDOWN = "cpu.smt_slowdown", "ratio", Even(1.35, 1.7), [], "two threads give 1.2 to 1.5 times one; shipped 1.5 to 1.55";
    CPI_SCALE = "cpu.cpi_scale", "Broadwell = 1", Even(0.72, 1.03), [(Era, -0.8)], "generations since; shipped 0.82 to 1";
    L2_MB = "cpu.l2_mb", "MB", OneOf(&[0.25, 0.25, 0.5, 1.0, 1.0, 1.25, 2.0]), [(Era, 0.8)], "data sheets, Broadwell to Sapphire Rapids, Zen";
    WAYS = "llc.ways", "ways", OneOf(&[11.0, 11.0, 12.0, 12.0, 15.0, 16.0, 16.0, 20.0]), [], "resctrl on Intel and AMD";
    LLC_PER_CORE = "llc.mb_per_way x ways over cores", "MB a core", Log(1.1, 3.5), [(Era, -0.3)], "data sheets; OSML+ servers 1.4 to 2.5";
    TWO_WAYS = "llc.min_ways", "2 ways, else 1 (with 16 ways or more)", Share(0.1), [], "min_cbm_bits of some kinds of server";
    HIT_NS = "llc.hit_ns", "ns", Even(14.0, 30.0), [(Era, 0.5)], "load-to-use latency; meshes are slower than rings";
    BW_PER_CORE = "mem.bw_gbs over cores", "GB/s a core", Log(2.2, 6.0), [(Era, 0.2)], "channels x rate; OSML+ servers 2.9 to 4.3";
    USABLE = "mem.usable", "share", Even(0.76, 0.9), [], "STREAM over the peak; shipped 0.84 to 0.88";
    IDLE_NS = "mem.idle_ns", "ns", Even(75.0, 118.0), [(Era, 0.5)], "loaded-latency measurements; shipped 85 to 92";
    QUEUE_NS = "mem.queue_ns", "ns", Even(14.0, 36.0), [], "shape of loaded-latency curves; shipped 22";
    CORE_BW = "mem.core_bw_gbs", "GB/s", Even(9.0, 16.0), [(Era, 0.4)], "STREAM on one core; shipped 12 to 13";
    MBA = "mem.mba", "has it", Share(0.7), [(Era, 0.6)], "Intel since Skylake, AMD since Rome";
    MBA_STEP = "mem.mba_min_pct, mba_step_pct", "%", OneOf(&[10.0, 10.0, 10.0, 20.0]), [], "info/MB of resctrl";
    CAPACITY_GB = "mem.capacity_gb", "GB", OneOf(&[96.0, 128.0, 192.0, 256.0, 384.0, 512.0]), [(Era, 0.5)], "OSML+ Table 4: 128 to 256";
    SLOW_DISK = "os.disk_us, disk_iops, disk_scale", "a hard disk, else NVMe", Share(0.12), [(Era, -0.4)], "OSML+ Server 1 has a hard disk";
    DISK_US = "os.disk_us (NVMe)", "us", Log(80.0, 300.0), [], "shipped 110 to 289";
    DISK_IOPS = "os.disk_iops (NVMe)", "1/s", Log(6e4, 3e5), [], "shipped 80,000 to 300,000";
    TIMESLICE_MS = "os.timeslice_ms", "ms", Even(2.0, 4.0), [], "Linux 6: 3 by default, scaled with CPUs";
    WAKE_PREEMPT = "os.wake_preempt", "share", Even(0.5, 0.9), [], "shipped 0.7, not measured";
    MIGRATE_US = "os.migrate_us", "us a thread", Log(40.0, 160.0), [], "shipped 80, not measured";
    DECOMPRESS_US = "os.decompress_us", "us a page", Even(4.0, 8.0), [], "COSMOS: 5.6";
    RECLAIM_US = "os.reclaim_us", "us a page", Even(2.5, 5.0), [], "COSMOS: 3.5";
    RECLAIM_BURST_US = "os.reclaim_burst_us", "us", Even(120.0, 250.0), [], "COSMOS: 177";
    CPUS_MS = "enforce.cpus_ms", "ms", Even(4.0, 15.0), [], "shipped 8: cpuset writes and migrations";
    WAYS_MS = "enforce.ways_ms", "ms", Even(0.5, 2.0), [], "shipped 1: one MSR a class";
    MBA_MS = "enforce.mba_ms", "ms", Even(1.0, 4.0), [], "shipped 2";
    NOISE_IPC = "noise.ipc", "relative", Even(0.01, 0.03), [], "spread of 100 ms readings; shipped 0.015";
    NOISE_MISSES = "noise.misses", "relative", Even(0.02, 0.06), [], "the same; 0.03";
    NOISE_MBL = "noise.mbl", "relative", Even(0.01, 0.04), [], "the same; 0.02";
    NOISE_CPU = "noise.cpu", "relative", Even(0.005, 0.02), [], "the same; 0.01";
    NOISE_FREQ = "noise.freq", "relative", Even(0.003, 0.01), [], "the same; 0.005";
}

quantities! { SERVICE:
    MINSTR = "cpu.minstr_per_req", "10^6 instructions", Log(0.015, 120.0), [(Size, 1.0)], "key-value stores of some us to searches of tens of ms: TailBench (IISWC 2016); shipped 0.02 to 15";
    SLOW = "cpu.minstr_per_req x 30", "is slow", Share(0.06), [], "speech recognition takes a second a request: TailBench";
    CPI_CORE = "cpu.cpi_core", "cycles", Even(0.5, 1.2), [(Size, -0.5), (Memory, 0.3)], "small requests are network stack, large ones arithmetic; CloudSuite (ASPLOS 2012), shipped 0.55 to 1.05";
    CONTENDED = "cpu.contention", "above 0", Share(0.3), [], "locks: databases and middleware of the shipped ones";
    CONTENTION = "cpu.contention (above 0)", "a worker", Log(0.0005, 0.006), [], "shipped 0.002 to 0.006";
    OVERSUB = "cpu.oversub", "ratio", Log(0.012, 0.12), [(Size, -0.4)], "OSML+ Fig. 3 (threads); shipped 0.015 to 0.1";
    APKI = "cache.apki", "1/1000 instructions", Log(1.5, 24.0), [(Memory, 0.9)], "L2 misses of CloudSuite and TailBench; shipped 2.2 to 16";
    L2_EXP = "cache.l2_exp", "", Even(0.25, 0.45), [], "square-root rule of miss ratios, below it for large L2; shipped 0.35";
    MRC_FLOOR = "cache.mrc_floor", "share", Even(0.02, 0.34), [(Memory, 0.5)], "what no LLC holds: data sets of GB; shipped 0.03 to 0.3";
    MAIN_A = "cache.mrc[0][0]", "share", Even(0.15, 0.5), [], "height of the step; shipped 0.22 to 0.42";
    MAIN_MB = "cache.mrc[0][1]", "MB", Log(2.0, 30.0), [(Memory, 0.6)], "working sets of 2 to 20 MB (CloudSuite: 4 to 6; moses 14); shipped 2 to 14";
    MAIN_P = "cache.mrc[0][2]", "", Log(1.2, 6.5), [(Size, 0.4)], "scans of a model are steep, hash tables are not; shipped 1 to 6.3";
    HOT_A = "cache.mrc[1][0]", "share", Even(0.06, 0.28), [], "height of the second step; shipped 0.1 to 0.25";
    HOT_MB = "cache.mrc[1][1]", "MB", Log(0.8, 6.0), [], "code, stacks and hot data; shipped 2 to 5";
    HOT_P = "cache.mrc[1][2]", "", Even(1.0, 2.2), [], "shipped 1 to 2";
    WS_THREAD = "cache.ws_thread", "a thread", Log(0.001, 0.012), [], "shipped 0.002 to 0.01";
    MLP = "cache.mlp", "misses in flight", Log(1.4, 5.0), [(Memory, -0.6)], "CloudSuite: 1.4 to 2.3 for services, 4 for arithmetic; shipped 1.8 to 4";
    LLC_EXPOSED = "cache.llc_exposed", "share", Even(0.28, 0.48), [(Memory, 0.5)], "shipped 0.3 to 0.45";
    WRITEBACK = "cache.writeback", "lines a line read", Even(0.15, 0.5), [], "shipped 0.2 to 0.45";
    BURSTY = "queue.scv_arrival", "above 1", Share(0.25), [], "open loops are Poisson, fleets of clients are not";
    SCV_ARRIVAL = "queue.scv_arrival (above 1)", "", Even(1.2, 3.0), [], "ours: no source gives it below a second";
    SCV_SERVICE = "queue.scv_service", "", Log(0.05, 1.8), [], "TailBench's spread of service times; shipped 0.06 to 1.6";
    FRONT = "queue.dispatch_us", "capacity of the front station over that of 24 workers", Log(0.35, 4.0), [], "shipped services are limited there (0.2 to 1); above 1 all cores count";
    DISPATCH_SCV = "queue.dispatch_scv", "", Even(0.05, 0.3), [], "shipped 0.1";
    NET_US = "queue.net_us", "us", Log(20.0, 200.0), [], "kernel network stack and wire; shipped 30 to 90";
    BOUNDED = "queue.max_outstanding", "below 10^8", Share(0.35), [], "clients with connections: mutilate, YCSB, sysbench";
    OUTSTANDING = "queue.max_outstanding (below 10^8)", "requests", Log(500.0, 20000.0), [], "shipped 2,000 to 20,000";
    DISK = "queue.io_prob", "above 0", Share(0.2), [], "persistent stores";
    IO_PROB = "queue.io_prob (above 0)", "share of requests", Log(0.0005, 0.006), [], "shipped 0.002 to 0.004";
    IO_MS = "queue.io_ms", "ms", Even(0.5, 2.5), [], "shipped 1 to 2";
    TARGET = "qos_target_ms", "p99 of the idle service on the whole machine = 1", Log(2.0, 14.0), [], "the papers' targets over TailBench's p99 at low load: 2 to 15";
    RES_MB = "memory.res_mb", "MB", Log(150.0, 12000.0), [(Memory, 0.5), (Size, -0.3)], "stores hold their data in memory; shipped 200 to 14,000";
    VIRT_RATIO = "memory.virt_mb over res_mb", "ratio", Even(1.15, 3.0), [], "allocators and runtimes; shipped 1.2 to 4";
    VIRT_THREAD = "memory.virt_mb_thread", "MB", Even(8.0, 20.0), [], "stacks and arenas; shipped 9 to 20";
    RES_THREAD = "memory.res_mb_thread", "MB", Log(1.0, 12.0), [(Size, 0.4)], "shipped 1 to 14";
    RES_QUEUED = "memory.res_mb_queued", "MB a request", Log(0.004, 0.1), [(Size, 0.6)], "buffers of a request; shipped 0.004 to 0.1";
    WS_RATIO = "paging.ws_gb over res_mb", "share", Even(0.3, 0.95), [], "what is touched of what is resident; COSMOS";
    PAGE_SKEW = "paging.page_skew", "", Log(0.1, 1.0), [], "COSMOS; shipped 0.12 to 0.28";
    PAGES = "paging.pages", "pages a request", Log(0.5, 8.0), [(Size, 0.5)], "COSMOS; shipped 1.3 to 6";
    COMPRESS = "paging.compress_ratio", "ratio", Even(1.5, 2.6), [], "COSMOS: 1.9";
    LRU_ERROR = "paging.lru_error", "share", Even(0.3, 1.0), [], "shipped 0.4 to 1";
}

quantities! { JOB:
    PARALLEL = "cpu.parallel", "share", Even(0.95, 1.0), [], "PARSEC (PACT 2008), GAP; shipped 0.965 to 1";
    JOB_CPI = "cpu.cpi_core", "cycles", Even(0.35, 0.95), [], "shipped 0.35 to 0.9";
    STREAM_APKI = "cache.apki (job 1)", "1/1000 instructions", Even(18.0, 40.0), [], "a streaming job: STREAM, GAP; shipped 26 to 36";
    STREAM_FLOOR = "cache.mrc_floor (job 1)", "share", Even(0.33, 0.97), [], "the same";
    STREAM_MLP = "cache.mlp (job 1)", "misses in flight", Even(4.0, 9.0), [], "the same; prefetchers";
    REUSE_APKI = "cache.apki (job 2)", "1/1000 instructions", Even(8.0, 22.0), [], "a job with a working set: canneal, streamcluster of PARSEC";
    REUSE_FLOOR = "cache.mrc_floor (job 2)", "share", Even(0.05, 0.35), [], "the same";
    REUSE_MLP = "cache.mlp (job 2)", "misses in flight", Even(1.6, 5.0), [], "the same";
    PLAIN_APKI = "cache.apki (job 3)", "1/1000 instructions", Log(0.02, 4.0), [], "a compute-bound job: blackscholes, bodytrack";
    PLAIN_FLOOR = "cache.mrc_floor (job 3)", "share", Even(0.03, 0.1), [], "the same";
    PLAIN_MLP = "cache.mlp (job 3)", "misses in flight", Even(2.5, 4.5), [], "the same";
    JOB_A = "cache.mrc[0][0]", "share of what the floor leaves", Even(0.4, 0.95), [], "shipped: 0.5 to 1";
    JOB_MB = "cache.mrc[0][1]", "MB", Log(3.0, 26.0), [], "PARSEC's working sets; shipped 4 to 20";
    JOB_P = "cache.mrc[0][2]", "", Log(0.7, 5.0), [], "shipped 0.7 to 5";
    JOB_WRITEBACK = "cache.writeback", "lines a line read", Even(0.05, 0.5), [], "shipped 0.05 to 0.5";
    JOB_RES_MB = "memory.res_mb", "MB", Log(60.0, 25000.0), [], "shipped 10 to 24,600";
}

quantities! { WORKLOAD:
    SERVICES = "[[lc]]", "services", Whole(2, 6), [], "OSML+ Sec. 4.3: two to six";
    JOBS = "[[be]]", "jobs", Whole(0, 2), [], "OSML+ has one; two share what is left";
    LOAD = "lc.load before they are scaled", "share of max load", Even(0.2, 1.0), [], "OSML+ Sec. 4.1: 10 to 100 %";
    PRESSURE = "CPU time that all loads ask for", "share of the server's", Even(0.15, 0.6), [], "ours: neither trivial nor hopeless";
    ARRIVAL = "lc.arrive_s", "0 together, 1 in turn, 2 spread", OneOf(&[0.0, 1.0, 2.0]), [], "OSML+ Sec. 4.3 (in turn), README's four at once, Fig. 12 (spread)";
    SPREAD_S = "lc.arrive_s (spread)", "s", Even(1.0, 30.0), [], "OSML+ Fig. 12";
    EVENT_S = "lc.change.at_s, lc.leave_s", "s", Even(38.0, 78.0), [], "after arrivals, and early enough to settle";
    SPIKE = "a spike past max load", "has one", Share(0.35), [], "SPIKES: flash crowds are in no committed set";
    SPIKE_LOAD = "load of the spike", "share of max load", Even(1.05, 1.6), [], "ours";
    SPIKE_S = "length of the spike", "s", Log(3.0, 15.0), [], "surefoot-faults/overload: 5 s";
    LEAVES = "a service leaves", "has one (with three services or more)", Share(0.35), [], "OSML+ Fig. 10 and 12";
    CHANGES = "another load of a service", "has one, of those left", Share(0.35), [], "OSML+ Fig. 10 and 12";
    CHANGE = "load after the change", "times the load before", Even(0.4, 1.3), [], "ours";
    UNSERVED = "a demand that nothing serves", "is one", Share(0.15), [], "no committed set has one: what a policy gives up then counts";
    OVERLOAD = "load of the heaviest service there", "share of max load", Even(1.2, 1.6), [], "ours; where all at 100 % do not ask for more than the server has";
}

quantities! { WORLD:
    FLOOR = "a service with a floor", "has one", Share(0.35), [], "tight targets: what busy siblings, clocks and memory cost is not given back by cores or ways";
    FLOOR_TARGET = "qos_target_ms (with a floor)", "0 = its idle p99 alone, 1 = the same in company", Even(0.2, 0.75), [], "alone it meets the target, beside others it does not";
    SHEDS = "a service that sheds", "has one", Share(0.35), [], "bounded queues and admission control";
    SHED_WAIT = "queue.max_outstanding (sheds)", "longest wait over target less idle p99, at four cores", Even(0.3, 0.8), [], "a refused request never spoils p99";
}

quantities! { PRIMARY:
    TASK_US = "task_us", "us", Log(30.0, 4000.0), [], "memcached to moses of TailBench";
    FANOUT = "fanout (not pinned)", "tasks", OneOf(&[1.0, 1.0, 1.0, 2.0, 3.0]), [], "a search engine asks several shards; most services do not";
    PINNED = "pinned", "in tasks below 100 us", Share(0.5), [], "threads with connections of their own (memcached)";
    THREADS = "threads", "of 10 cores", OneOf(&[8.0, 8.0, 9.0, 10.0, 10.0]), [], "client and server in one VM; shipped 8 to 10";
    PRIMARY_SERVICE = "scv_service", "(sd / mean) squared", Log(0.03, 1.0), [], "shipped 0.03 to 0.5; exponential 1";
    PRIMARY_ARRIVAL = "scv_arrival", "(sd / mean) squared", Even(1.0, 2.5), [], "open loops of TailBench and mutilate; shipped 1 to 2.4";
    BUSY = "mean busy cores, without waking", "cores", Even(0.8, 2.4), [], "SmartHarvest Table 1: 1.3 to 2.3 of 10";
    WAKE_SHARE = "wake_us", "share of 45 us, task_us at most", Even(0.05, 1.0), [], "timers and network interrupts; shipped 0 and 44";
    BURST_SHARE = "bursts.per_s", "share of the requests in bursts", Even(0.05, 0.45), [], "shipped 0.05 to 0.4";
    BURST_CORES = "bursts.requests", "busy cores of a burst by itself", Even(3.0, 7.0), [], "SmartHarvest Table 1: mean peaks 5.2 to 7.7 of 10";
    BURST_MS = "bursts.lasts_ms", "ms", Log(0.2, 8.0), [], "shorter and longer than cores take to move; shipped 0.24 to 6";
    BURST_GROWS = "bursts.size_exponent", "exponent of load", Even(0.0, 1.0), [], "a clock's own work, and what had to wait for it";
}

quantities! { OVER_COMMITTED:
    MEMORY_CAPACITY_GB = "mem.capacity_gb", "GB", OneOf(&[64.0, 64.0, 96.0, 128.0]), [(Era, 0.5)], "COSMOS: 64; more takes longer to move than a run lasts";
    MEMORY_WS_GB = "paging.ws_gb, before it is scaled", "GB", Log(8.0, 40.0), [], "COSMOS has one service of 42 to 51; here two to four share that";
    MEMORY_SKEW = "paging.page_skew", "", Log(0.1, 0.4), [], "shipped: 0.12 to 0.28";
    MEMORY_PAGES = "paging.pages", "pages a request", Log(1.0, 6.0), [(Size, 0.5)], "shipped: 1.3 to 6";
    MEMORY_COMPRESS = "paging.compress_ratio", "ratio", Even(1.6, 2.3), [], "COSMOS: 1.9";
    MEMORY_LRU = "paging.lru_error", "share", Even(0.4, 1.0), [], "shipped: 0.4 to 1";
    MEMORY_JOB_WS_GB = "paging.ws_gb (job), before it is scaled", "GB", Log(8.0, 30.0), [], "COSMOS has one job of 22 to 27; here two share that";
    MEMORY_STREAM_SKEW = "paging.page_skew (job 1)", "", Log(10.0, 30.0), [], "a streaming job needs its whole set; shipped 25";
    MEMORY_JOB_SKEW = "paging.page_skew (jobs 2, 3)", "", Even(0.4, 1.0), [], "shipped: 0.5 to 0.9";
    MEMORY_JOB_PAGES = "paging.pages over cache.apki (job)", "ratio", Log(0.01, 0.035), [], "shipped: 0.01 to 0.04";
    MEMORY_SERVICES = "[[lc]]", "services", Whole(2, 4), [], "COSMOS has one";
    MOR = "all working sets over the server's memory", "ratio", Even(1.05, 1.3), [], "COSMOS: 1.075, 1.15, 1.3";
    LC_SHARE = "LC services' share of all working sets", "share", Even(0.55, 0.75), [], "COSMOS: 0.65";
    MEMORY_PRESSURE = "CPU time that all loads ask for", "share of the server's", Even(0.1, 0.4), [], "COSMOS's loads are 12 to 50 % of max load; pages that come back ask for more";
    MEMORY_CHANGES = "another load of the first service", "has one", Share(0.5), [], "ours";
    MEMORY_EVENT_S = "lc.change.at_s", "s", Even(120.0, 180.0), [], "after a first search, and three minutes before the end";
}

/// The tables of docs/worlds.md, in its order, by heading.
pub const ALL: [(&str, &[Quantity]); 7] = [
    ("World", WORLD),
    ("Platform", PLATFORM),
    ("Service", SERVICE),
    ("Job", JOB),
    ("Workload", WORKLOAD),
    ("Over-committed memory", OVER_COMMITTED),
    ("Primary VM", PRIMARY),
];

/// LC services of a world, BE jobs and workloads: enough that workloads differ, few enough that a hundred worlds are drawn at once.
pub const SERVICES_OF_A_WORLD: usize = 8;
pub const JOBS_OF_A_WORLD: usize = 3;
pub const WORKLOADS_OF_A_WORLD: usize = 2;

/// Least bandwidth of a server, GB/s: two channels of DDR4-2400.
pub const LEAST_BW_GBS: f64 = 38.4;
/// Length of a workload, s: as the drawn sets of workloads/sets. The settled part is its last 10 s.
pub const DURATION_S: f64 = 120.0;
/// The same where memory is over-committed, as in workloads/sets/cosmos-e2: gigabytes take their time to move.
pub const OVER_COMMITTED_DURATION_S: f64 = 360.0;
/// BE jobs of such a workload: they compete with each other, too.
pub const JOBS_OF_AN_OVER_COMMITTED_WORKLOAD: usize = 2;
/// A slow service's work over that of others: a second instead of tens of milliseconds (sphinx of TailBench).
pub const SLOW_FACTOR: f64 = 30.0;
/// An open loop: more requests than ever wait (as in the shipped profiles).
pub const OPEN_LOOP: f64 = 1e8;
/// Data sets from this size on say how they page, MB: smaller ones are never limited.
pub const PAGING_FROM_MB: f64 = 1000.0;
/// Largest sum of a miss-ratio curve's floor and steps: the share of accesses that a tiny LLC still serves is above 0.
pub const MOST_MISSES: f64 = 0.95;
/// The server that a front station's capacity is drawn against: 24 workers at 2.8 GHz (18 cores with SMT), a Broadwell.
pub const REFERENCE_WORKERS: f64 = 24.0;
pub const REFERENCE_GHZ: f64 = 2.8;
/// Time per request over its core-bound part, about: misses (shipped profiles: 1.1 to 2.3).
pub const REFERENCE_STALLS: f64 = 1.6;
/// Load of an "idle" service, share of the reference server's capacity: hardly any request waits.
pub const IDLE_LOAD: f64 = 0.02;
/// Least p99 in company over p99 alone of a service with a floor. Below it measuring would not tell them apart.
pub const LEAST_FLOOR: f64 = 1.1;
/// Draws of a service until it has a floor. On servers with much bandwidth a core few services have one.
pub const MOST_TRIES: usize = 64;
/// Longest time over the target's idle p99 of services that shed: their target leaves room for a queue.
pub const LEAST_SHED_TARGET: f64 = 3.0;
/// Cores of the allocation that a bounded queue is drawn for: services seldom hold fewer.
pub const SHED_CORES: f64 = 4.0;
/// Fewest and most requests of a queue that sheds.
pub const SHED_OUTSTANDING: (f64, f64) = (2.0, 512.0);
/// What a service holds in the company that a floor is judged in, share of cores and of ways. The streaming job has the rest: enough
/// cores to fill the memory bus of nearly every drawn server.
pub const COMPANY_CORES: f64 = 0.5;
pub const COMPANY_WAYS: f64 = 0.75;
/// CPU time that an unserved demand asks for, over what there is. Above 1 by more than sharing could hide.
pub const UNSERVED_PRESSURE: f64 = 1.2;
/// Lowest and highest load of a service that is served.
pub const LOADS: (f64, f64) = (0.05, 1.0);
/// RPS levels of a drawn service, share of its max load: those of the shipped ones.
pub const LEVELS: [f64; 5] = [0.2, 0.4, 0.6, 0.8, 1.0];
