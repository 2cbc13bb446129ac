//! What a look costs (aim: 3 us for 24 CPUs), and a run of the programs. As root.

#![allow(clippy::print_stderr, reason = "what was not measured is said")]

use criterion::{criterion_group, criterion_main, Criterion};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use surefoot_bpf::{programs_for, spent, Feed, Hierarchy, Stats};

const CPUS: usize = 24;

/// A slot as the programs have it.
#[repr(align(64))]
struct Line(AtomicU64);

fn feed(c: &mut Criterion) {
    let loaded = programs_for(Hierarchy::Unified, CPUS).map_err(|e| e.to_string());
    let feed = match loaded.and_then(|handles| Feed::open(handles).map_err(|e| e.to_string())) {
        Ok(feed) => feed,
        Err(why) => return eprintln!("NOT RUN: {why}"),
    };
    let mut watch = feed.watch(1, 0).expect("the root is a group");
    c.bench_function("a look/24 CPUs, lines in this CPU's cache", |b| {
        b.iter(|| (0..CPUS as u32).filter(|cpu| black_box(&watch).runs_on(*cpu)).count());
    });
    c.bench_function("waits of a window/24 CPUs", |b| b.iter(|| watch.waits()));
    c.bench_function("the longest wait now", |b| b.iter(|| black_box(&watch).waiting_ns(black_box(1 << 50))));
    // Every line was written by another CPU since the look before: what each costs more than one in the own cache.
    let lines: Vec<Line> = (0..CPUS as u64).map(|n| Line(AtomicU64::new(n))).collect();
    let (ready, end) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut done = 0;
            while !end.load(Ordering::Relaxed) {
                let asked = ready.load(Ordering::Acquire);
                if asked % 2 == 1 && asked != done {
                    for line in &lines {
                        line.0.fetch_add(1, Ordering::Relaxed);
                    }
                    done = asked;
                    ready.store(asked + 1, Ordering::Release);
                }
            }
        });
        c.bench_function("a look/24 CPUs, each line written by another CPU since", |b| {
            b.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let asked = ready.load(Ordering::Relaxed) + 1;
                    ready.store(asked, Ordering::Release);
                    while ready.load(Ordering::Acquire) != asked + 1 {
                        std::hint::spin_loop();
                    }
                    let start = std::time::Instant::now();
                    black_box(lines.iter().filter(|l| l.0.load(Ordering::Relaxed) & 255 == 7).count());
                    spent += start.elapsed();
                }
                spent
            });
        });
        end.store(true, Ordering::Relaxed);
    });
    let counting = Stats::count().expect("the kernel counts runs");
    let before = spent();
    std::thread::sleep(Duration::from_secs(2));
    let now = spent();
    drop(counting);
    let runs = (now.0 - before.0).max(1);
    eprintln!("programs: {} ns a run, {runs} runs in 2 s", (now.1 - before.1).as_nanos() / u128::from(runs));
}

criterion_group!(benches, feed);
criterion_main!(benches);
