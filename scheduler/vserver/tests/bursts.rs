//! bursts.toml: what is read, and what is refused with file and key.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{here, profiles};
use std::path::Path;
use surefoot_vserver::{Bursts, Profiles};

/// What ships is read.
#[test]
fn the_shipped_file_is_read() {
    let all = profiles();
    assert_eq!(all.bursts.workloads.keys().collect::<Vec<_>>(), ["img-dnn", "indexserve", "memcached", "moses"]);
    // SmartHarvest, section 5.7: up to 10 ms with cpugroups, 130 us at P99 with interrupts.
    let return_ms = |name| all.bursts.reassignment(name).unwrap().return_ms;
    assert_eq!((return_ms("cpugroups"), return_ms("interrupts")), (10.0, 0.13));
    let vm = all.bursts.primary().unwrap();
    assert_eq!((vm.cores, vm.poll_us, vm.window_ms, vm.quantum_ms), (10, 50.0, 25.0, 10.0));
    // Section 3.4: P99 of the dispatch wait below 6 us at rest; the law is exponential.
    assert!(vm.dispatch_us * 100f64.ln() < 6.0);
    assert!(all.bursts.workloads.values().all(|w| w.bursts.is_some()));
    // Section 5.3: HDInsight and TeraSort run 2 to 3 times as fast as on one core, with 1.5 to 3.5 cores lent.
    for name in ["hdinsight", "terasort"] {
        let job = all.bursts.batch(name).unwrap();
        assert!((1.7..=2.3).contains(&job.speed_up(&[0.0, 0.5, 0.5], 0)), "{name}");
        assert!((2.6..=3.4).contains(&job.speed_up(&[0.0, 0.0, 0.0, 0.5, 0.5], 0)), "{name}");
    }
}

/// Each defect of bursts.toml is refused with the file, the key and a remedy.
#[test]
fn bad_bursts_name_file_and_key() {
    let good = std::fs::read_to_string(here("profiles/bursts.toml")).unwrap();
    for (from, to, key, remedy) in [
        ("task_us = 32.0", "task_us = 0", "workload.memcached.task_us", "from 0.001"),
        ("task_us = 32.0", "", "workload.memcached.task_us", "Add it"),
        ("task_us = 32.0", "task_us = 32.0\ntask_ms = 1", "workload.memcached.task_ms", "use one of"),
        ("qps = 40000", "qps = -1", "workload.memcached.qps", "from "),
        ("qps = 40000", "qps = \"many\"", "workload.memcached.qps", "Give a number"),
        ("fanout = 3", "fanout = 0", "workload.indexserve.fanout", "from 1"),
        ("fanout = 3", "fanout = 2.5", "workload.indexserve.fanout", "whole number"),
        ("scv_service = 0.35", "scv_service = -0.3", "workload.memcached.scv_service", "from 0"),
        ("scv_arrival = 2.4", "scv_arrival = 0.4", "workload.moses.scv_arrival", "from 1"),
        ("paper_peak = 7.7", "paper_peak = nan", "workload.memcached.paper_peak", "from 0"),
        ("\nreturn_ms = 10.0", "\nreturn_ms = -10", "reassignment.cpugroups.return_ms", "from 0"),
        ("\nreturn_ms = 10.0", "\ndelay_ms = 10", "reassignment.cpugroups.return_ms", "Add it"),
        (
            "[reassignment.cpugroups]\nreturn_least_ms = 0.4\nreturn_ms = 10.0",
            "[reassignment]\ncpugroups = 10.0",
            "reassignment.cpugroups",
            "Write it as",
        ),
        ("return_least_ms = 0.4", "return_least_ms = 40", "reassignment.cpugroups.return_least_ms", "10 or less"),
        ("take_ms = 5.0", "take_ms = 0.1", "reassignment.cpugroups.take_least_ms", "0.1 or less"),
        ("wake_us = 44.0", "wake_us = -1", "workload.memcached.wake_us", "from 0"),
        ("threads = 8", "threads = 0", "workload.memcached.threads", "from 1"),
        ("pinned = true", "pinned = 1", "workload.memcached.pinned", "true or false"),
        ("fanout = 3", "fanout = 3\npinned = true", "workload.indexserve.pinned", "fanout = 1"),
        ("per_s = 126.0", "per_s = -1", "workload.memcached.bursts.per_s", "from 0"),
        ("per_s = 126.0", "", "workload.memcached.bursts.per_s", "Add it"),
        ("requests = 59.0", "requests = 0.5", "workload.memcached.bursts.requests", "from 1"),
        ("lasts_ms = 0.24", "lasts_s = 0.6", "workload.memcached.bursts.lasts_ms", "Add it"),
        ("lasts_ms = 0.24", "lasts_ms = 0.24\nevery_ms = 8", "workload.memcached.bursts.every_ms", "use one of"),
        ("parallel = 0.9", "parallel = 1.9", "batch.hdinsight.parallel", "from 0"),
        ("parallel = 0.9", "", "batch.hdinsight.parallel", "Add it"),
        ("size_exponent = 0.2", "size_exponent = 2", "workload.memcached.bursts.size_exponent", "from 0"),
        ("dispatch_us = 1.2", "dispatch_us = -1.2", "primary.dispatch_us", "from 0"),
        ("quantum_ms = 10.0", "quantum_ms = 0", "primary.quantum_ms", "from 0.001"),
        ("cold_us = 25.0", "cold_us = \"cold\"", "primary.cold_us", "Give a number"),
        ("cores = 10", "cores = 0", "primary.cores", "from 1"),
        ("poll_us = 50.0", "poll_us = 0", "primary.poll_us", "from 0.1"),
        ("window_ms = 25.0", "window_ms = 0.01", "primary.window_ms", "at least one poll"),
        ("[primary]", "[primaries]", "primaries", "use one of: primary, reassignment, batch, workload"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from} is not in the file");
        let error = Bursts::parse(Path::new("dir/bursts.toml"), &bad).unwrap_err().to_string();
        assert!(error.starts_with(&format!("dir/bursts.toml: {key}: ")), "{to}: {error}");
        assert!(error.contains(remedy) && !error.contains('\n'), "{to}: {error}");
    }
}

/// A folder may hold no more than a bursts.toml; what it has is added or overrides by name, the rest stays.
#[test]
fn a_later_bursts_file_adds_and_overrides() {
    let dir = tempfile::tempdir().unwrap();
    let load = |text: &str| {
        std::fs::write(dir.path().join("bursts.toml"), text).unwrap();
        Profiles::load(&[here("profiles"), dir.path().into()])
    };
    let one =
        |name: &str, qps: u32| format!("[workload.{name}]\nqps = {qps}\ntask_us = 10\nfanout = 2\nscv_service = 0\nscv_arrival = 1\n");
    let shipped = &profiles().bursts;
    let all = load(&(one("moses", 7) + &one("mine", 9) + "[reassignment.slow]\nreturn_ms = 50\n")).unwrap().bursts;
    assert_eq!(all.workloads.len(), 5);
    assert_eq!((all.workload("moses").unwrap().qps, all.workload("mine").unwrap().qps), (7.0, 9.0));
    let mine = all.workload("mine").unwrap();
    assert_eq!((mine.paper_peak, mine.bursts, mine.threads, mine.pinned, mine.wake_us), (None, None, None, false, 0.0));
    assert_eq!(all.workload("memcached").unwrap(), shipped.workload("memcached").unwrap());
    assert_eq!(all.reassignment("slow").unwrap().return_ms, 50.0);
    assert_eq!(all.primary().unwrap(), shipped.primary().unwrap());
    assert_eq!(load("[primary]\ncores = 4\npoll_us = 50\nwindow_ms = 25\n").unwrap().bursts.primary().unwrap().cores, 4);
    let bad = load("[workload.moses]\nqps = 7\n").unwrap_err().to_string();
    assert!(bad.contains("bursts.toml: workload.moses.task_us: is missing"), "{bad}");
    let unknown = all.workload("memcachd").unwrap_err().to_string();
    assert!(unknown.contains("memcachd") && unknown.contains("memcached") && unknown.contains("--profiles"), "{unknown}");
    assert!(all.batch("bully").unwrap_err().to_string().contains("cpu-bully"));
    assert!(all.reassignment("ipi").unwrap_err().to_string().contains("interrupts"));
    assert!(Bursts::default().primary().unwrap_err().to_string().contains("[primary]"));
}
