//! Memory, SMT, MBA, cache contention and bounds: what any server of this kind shows.

use super::lab::{Alone, Lab, LC, UNSEEN};
use super::{ascending, list, three, Fact, Kind};
use surefoot_server::CpuSet;
use surefoot_vserver::Tenant;

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    vec![stream_peak(lab), loaded_latency(lab), smt(lab), mba(lab), working_set(lab), contention(lab), monotone(lab), bounds(lab)]
}

fn check(source: &'static str, text: &str, expected: &str, got: String, holds: bool) -> Fact {
    Fact::new(Kind::Check, source, text, expected, got, holds)
}

fn stream_peak(lab: &mut Lab) -> Fact {
    let p = lab.platform("server-1");
    let t = lab.job("stream", 36, p.all_cpus(), 0xfffff);
    let share = lab.case("server-1", &[t])[0].mbl_mbps / (p.mem.bw_gbs * 1e3);
    let text = "STREAM on Server 1 reaches of the 76.8 GB/s peak";
    check("physics", text, "70-90 %", format!("{:.0} %", 100.0 * share), (0.7..=0.9).contains(&share))
}

fn loaded_latency(lab: &mut Lab) -> Fact {
    let p = lab.platform("server-1");
    let [half, most] = [0.5, 0.9].map(|u| p.mem_latency_ns(u) / p.mem.idle_ns);
    check(
        "loaded-latency measurements",
        "memory latency at 50 % / 90 % utilisation over idle",
        "1.05-1.3x / 1.6-4x",
        format!("{half:.2}x / {most:.2}x"),
        (1.05..=1.3).contains(&half) && (1.6..=4.0).contains(&most),
    )
}

fn smt(lab: &mut Lab) -> Fact {
    let [one, both] = [18, 36].map(|n| {
        let t = lab.job("blackscholes", n, CpuSet::range(0, n), 0xfffff);
        lab.case("server-1", &[t])[0].instr_per_s
    });
    let gain = both / one;
    let text = "SMT: throughput of 36 over 18 threads, compute bound";
    check("physics", text, "1.15-1.35x", format!("{gain:.2}x"), (1.15..=1.35).contains(&gain))
}

fn mba(lab: &mut Lab) -> Fact {
    let gbs = [0.1, 0.2, 0.3, 0.5, 0.8, 1.0].map(|mba| {
        let t = Tenant { mba, ..lab.job("stream", 32, CpuSet::range(0, 32), 0xfff) };
        lab.case("server-2", &[t])[0].mbl_mbps / 1e3
    });
    check(
        "physics",
        "MBA 10..100 % on Server 2: STREAM bandwidth rises, 10 % leaves",
        "monotone, <60 %",
        list(gbs.iter().map(|x| format!("{x:.1}"))),
        ascending(&gbs) && gbs[0] < 0.6 * gbs[5],
    )
}

fn working_set(lab: &mut Lab) -> Fact {
    let gbs = [3, 5, 7, 9, 12].map(|ways| {
        let t = lab.job("streamcluster", 12, CpuSet::range(0, 12), (1 << ways) - 1);
        lab.case("server-1", &[t])[0].mbl_mbps / 1e3
    });
    check(
        "PARSEC characterisation",
        "streamcluster traffic collapses once its block (~14 MB) fits: 3/5/7/9/12 ways, GB/s",
        ">4x fall",
        list(gbs.iter().map(|x| format!("{x:.1}"))),
        gbs[0] > 4.0 * gbs[4],
    )
}

fn contention(lab: &mut Lab) -> Fact {
    let [apart, shared] = [0xfc000, 0xfffff].map(|ways| {
        let moses = Tenant::new(lab.profile("moses"), 2600.0, 36, CpuSet::range(0, 9), 0x3fff);
        let stream = lab.job("stream", 9, CpuSet::range(9, 18), ways);
        lab.case("server-1", &[moses, stream])[0].latency.expect("LC").p99
    });
    let text = "moses beside stream: separate ways -> stream may use all ways";
    check("physics", text, "much worse", format!("{apart:.1} -> {shared:.1} ms"), shared > 1.5 * apart)
}

/// Every service at its middle level: 36 numbers of cores x 11 numbers of ways.
fn monotone(lab: &mut Lab) -> Fact {
    const WAYS: [u32; 11] = [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20];
    let (mut violations, mut steps) = (0, 0);
    for service in LC.iter().chain(&UNSEEN) {
        let levels = lab.rps_levels(service);
        let a = Alone::new(service, levels[levels.len() / 2]);
        let plane: Vec<[f64; 11]> = (1..=36).map(|c| WAYS.map(|w| lab.p99_ms(&a.cores(c).ways(w)))).collect();
        for (c, row) in plane.iter().enumerate() {
            for (w, p99) in row.iter().enumerate() {
                if c > 0 {
                    steps += 1;
                    violations += u32::from(*p99 > 1.05 * plane[c - 1][w]);
                }
                if w > 0 {
                    steps += 1;
                    violations += u32::from(*p99 > 1.02 * row[w - 1]);
                }
            }
        }
    }
    let text = "more cores (5 %) or ways (2 %) never raise steady p99: violations over all services";
    check("property", text, "0", format!("{violations} of {steps}"), violations == 0)
}

/// The features' normalisation bounds that the OSML+ paper publishes.
fn bounds(lab: &mut Lab) -> Fact {
    let (mut ipc, mut freq, mut mbl, mut usage) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    for service in LC {
        for rps in lab.rps_levels(service) {
            for cores in [2, 9, 18, 36] {
                for ways in [1, 8, 20] {
                    let s = lab.alone(&Alone::new(service, rps).cores(cores).ways(ways));
                    ipc = ipc.max(s.ipc);
                    freq = freq.max(s.core_freq_mhz);
                    mbl = mbl.max(s.mbl_mbps);
                    usage = usage.max(s.cpu_usage_cores);
                }
            }
        }
    }
    check(
        "OSML+ bounds",
        "features inside the published normalisation bounds: IPC<2.75, f<3792 MHz, MBL<134829 MB/s, usage<=36",
        "all",
        format!("IPC {}, f {freq:.0}, MBL {mbl:.0}", three(ipc)),
        ipc < 2.75 && freq < 3792.0 && mbl < 134829.0 && usage <= 36.0,
    )
}
