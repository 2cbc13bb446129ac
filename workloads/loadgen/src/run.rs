//! A run: connect, preload, send from each thread, collect in this one, report.

#![allow(unsafe_code, reason = "getrusage, and what a thread asks of the scheduler")]

use crate::config::Config;
use crate::control::{Command, Control};
use crate::driver::{drive_source, Clock, Limits, Mark, Sample, Sink};
use crate::error::{failed, LoadgenError};
use crate::feed::{encode_histogram, FeedDatagram, FeedSender};
use crate::live::{Changes, LiveSchedule, LEAD_NS};
use crate::net::{connect, monotonic_ns, preload, MonotonicClock, SocketTransport};
use crate::output::{Blocked, Output};
use crate::pace::Pacer;
use crate::protocol::{Protocol, ProtocolKind};
use crate::realtime::{self, Stops};
use crate::record::{Recorder, RecorderConfig};
use crate::report::{LoadStep, Phase, Report, WaveReport, WindowLine, WindowReport, FORMAT};
use crate::schedule::Plan;
use crate::verdict::{warnings, ClientUse};
use crate::warmup::{Answer, Detector};
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use surefoot_io::out::note;

/// A report and, if asked for, every sample (warm-up included), in the order the requests ended.
#[derive(Debug)]
pub struct RunOutput {
    pub report: Report,
    pub samples: Option<Vec<Sample>>,
}

enum Message {
    Window { samples: Vec<Sample>, mark: Mark, thread: usize },
    Ended { result: Result<bool, LoadgenError>, reconnects: u64, first_error: Option<String>, switches: u64, client: ClientUse },
}

/// Hands samples to the collecting thread once per window, in buffers that come back: no allocation while sending.
struct ChannelSink {
    thread: usize,
    buffer: Vec<Sample>,
    to: Sender<Message>,
    spare: Receiver<Vec<Sample>>,
}

impl Sink for ChannelSink {
    fn sample(&mut self, sample: &Sample) {
        self.buffer.push(*sample);
    }
    fn mark(&mut self, mark: Mark) {
        let fresh = self.spare.try_recv().unwrap_or_else(|_| Vec::with_capacity(4096));
        let samples = std::mem::replace(&mut self.buffer, fresh);
        // The collector outlives every thread; if it is gone, nobody wants the samples.
        let _ = self.to.send(Message::Window { samples, mark, thread: self.thread });
    }
}

fn cpu_time_ns() -> Option<u64> {
    // SAFETY: getrusage fills the structure.
    let usage = unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_SELF, &mut u) != 0 {
            return None;
        }
        u
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    Some(ns(usage.ru_utime) + ns(usage.ru_stime))
}

/// What became of a thread between two readings. Polling is wall time, so some of it may have been another's.
fn client_use(before: Option<(u64, u64)>, after: Option<(u64, u64)>, idle_poll_ns: u64, wall_ns: u64) -> ClientUse {
    let Some((before, after)) = before.zip(after).filter(|_| wall_ns > 0) else { return ClientUse::default() };
    let share = |ns: u64| Some((ns as f64 / wall_ns as f64).min(1.0));
    let cpu_ns = after.0.saturating_sub(before.0);
    ClientUse {
        busy_share: share(cpu_ns.saturating_sub(idle_poll_ns)),
        cpu_share: share(cpu_ns),
        run_queue_wait_share: share(after.1.saturating_sub(before.1)),
        ..ClientUse::default()
    }
}

/// The larger of each.
fn worse(a: ClientUse, b: ClientUse) -> ClientUse {
    let max = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
    ClientUse {
        busy_share: max(a.busy_share, b.busy_share),
        cpu_share: max(a.cpu_share, b.cpu_share),
        run_queue_wait_share: max(a.run_queue_wait_share, b.run_queue_wait_share),
        stops: a.stops.max(b.stops),
        stopped_ms: a.stopped_ms.max(b.stopped_ms),
        step_us: a.step_us.max(b.step_us),
    }
}

fn preemptions_of_this_thread() -> u64 {
    // SAFETY: getrusage fills the structure.
    unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut u);
        u.ru_nivcsw as u64
    }
}

/// Let the calling thread run on these CPUs only; none: wherever it may.
fn pin(cpus: &[usize]) -> Result<(), LoadgenError> {
    let Some(last) = cpus.iter().max() else { return Ok(()) };
    // As long as it takes: libc's own set ends at CPU 1023.
    let mut set = vec![0u64; last / 64 + 1];
    cpus.iter().for_each(|cpu| set[cpu / 64] |= 1 << (cpu % 64));
    // SAFETY: a system call on this thread; the set lives through it, and its size is stated.
    if unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(set.as_slice()), set.as_ptr().cast()) } != 0 {
        let e = std::io::Error::last_os_error();
        let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
        return Err(failed(format!("--cpu {}: cannot pin a thread there: {e}; is it within this process's cpuset?", list.join(","))));
    }
    Ok(())
}

/// Pin the calling thread, make its timers exact, and let it go first if it may. Returns whether it does.
fn settle_thread(cpu: Option<usize>, priority: Option<i32>) -> Result<bool, LoadgenError> {
    // SAFETY: a plain system call on this thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    pin(cpu.as_slice())?;
    if let Some(priority) = priority {
        return Ok(realtime::take(priority));
    }
    // A parent's real time is not ours to keep.
    realtime::give_back();
    Ok(false)
}

/// Said once, however many runs a process makes.
static NO_REAL_TIME: std::sync::Once = std::sync::Once::new();

fn no_real_time(why: &str) {
    let what = format!("note: no real-time priority: {why}. Other work on its CPUs can make the client late");
    NO_REAL_TIME.call_once(|| note(&what));
}

/// Windows as JSON lines under a temporary name until the run has ended.
struct WindowFile {
    file: std::io::BufWriter<Output>,
    failed: Option<std::io::Error>,
}

impl WindowFile {
    fn create(path: &Path, config: &Config) -> Result<Self, LoadgenError> {
        let out = Output::for_option("--windows", path, &config.inputs(), config.overwrite)?;
        Ok(WindowFile { file: std::io::BufWriter::new(out), failed: None })
    }

    fn line(&mut self, w: &WindowLine) {
        if self.failed.is_none() {
            let mut text = serde_json::to_vec(w).expect("a window is plain data");
            text.push(b'\n');
            self.failed = self.file.write_all(&text).err();
        }
    }

    fn commit(mut self) -> Result<(), LoadgenError> {
        let flushed = self.failed.take().map_or_else(|| self.file.flush(), Err);
        let out = self.file.get_mut();
        flushed.map_err(Blocked::Io).and_then(|()| out.finish()).map_err(|e| e.of_option("--windows", out.path()))
    }
}

/// When a window ended and how long it was, ms: the last one ends with the last reply, before its time.
fn true_window(end_ms: u64, length_ms: u64, now_ms: u64) -> (u64, u64) {
    let begin_ms = end_ms.saturating_sub(length_ms);
    let end_ms = now_ms.clamp(begin_ms + 1, end_ms.max(begin_ms + 1));
    (end_ms, end_ms - begin_ms)
}

/// The schedule asked for, changes so far included.
struct Asked {
    plan: Plan,
    seen: usize,
}

impl Asked {
    fn with(&mut self, changes: &Changes) -> &Plan {
        for change in changes.since(self.seen) {
            self.plan.apply(change);
            self.seen += 1;
        }
        &self.plan
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn no_thread(e: std::io::Error) -> LoadgenError {
    failed(format!("cannot start a thread: {e}"))
}

/// Obey a command; the answer says from when on.
fn act(command: Command, clock: &MonotonicClock, changes: &Changes, plan: &Plan, stop: &AtomicBool) -> Result<String, String> {
    let now_ns = clock.now_ns();
    match command {
        Command::Rps(rps) => {
            let at_ns = changes.set_rps(now_ns, rps).ok_or("this run has had its 100000 changes: start another")?;
            let text = format!("rps {rps} from {:.3} s on", at_ns as f64 * 1e-9);
            note(&format!("load: {text} (by command)"));
            Ok(text)
        }
        Command::Status => {
            let mut asked = Asked { plan: plan.clone(), seen: 0 };
            Ok(format!("{:.3} s: {} rps", now_ns as f64 * 1e-9, asked.with(changes).rps_at(now_ns)))
        }
        Command::Stop => {
            stop.store(true, Ordering::Relaxed);
            Ok("stopping".into())
        }
    }
}

/// Run `config` to its end, or until `stop` is set (the report then says `interrupted`).
///
/// # Errors
/// `BadInput` for a configuration that makes no sense; `Failed` if nothing listens, the preload is refused, a thread cannot be pinned,
/// or a file cannot be written. Errors of single requests are counted in the report instead.
pub fn run(config: &Config, stop: &AtomicBool) -> Result<RunOutput, LoadgenError> {
    config.check()?;
    // A parent that runs it in real time has thought of that. Else, on every CPU at once it would starve the server that it measures.
    let alone = || std::thread::available_parallelism().is_ok_and(|n| config.threads < n.get());
    let by_parent = realtime::priority();
    let first = by_parent.or(alone().then_some(1)).filter(|_| config.realtime);
    // Where it has CPUs apart from the service's its windows do not wait for others there.
    let apart = first.is_some() && (by_parent.is_some() || !config.cpus.is_empty());
    // What it asks of the scheduler ends with the thread.
    std::thread::scope(|scope| {
        let run = || settle_collector(config, apart).and_then(|()| run_here(config, first, stop));
        let whole = std::thread::Builder::new().name("collect".into()).spawn_scoped(scope, run).map_err(no_thread)?;
        whole.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The thread that collects stays off the service's CPUs, and lets those that send go first.
fn settle_collector(config: &Config, apart: bool) -> Result<(), LoadgenError> {
    realtime::give_back();
    if apart {
        realtime::before_others();
    }
    pin(&config.cpus)
}

/// `first`: the priority with which the sending threads are to go before ordinary ones, where that can be had.
fn run_here(config: &Config, first: Option<i32>, stop: &AtomicBool) -> Result<RunOutput, LoadgenError> {
    let protocol = Arc::new(Protocol::new(
        config.protocol,
        config.seed,
        config.key_space,
        config.set_ratio,
        config.value_bytes,
        &config.host,
        &config.path,
    ));
    let mut window_file = config.windows.as_deref().map(|w| WindowFile::create(w, config)).transpose()?;
    let control = config.control.as_deref().map(Control::open).transpose()?;
    let mut feed = config.feed.as_deref().map(FeedSender::new).transpose().map_err(|e| failed(format!("feed: {e}")))?;

    // Each thread has its connections; the first ones get the remainder.
    let mut streams: Vec<Vec<std::net::TcpStream>> = (0..config.threads).map(|_| Vec::new()).collect();
    for c in 0..config.connections {
        streams[c % config.threads].push(connect(config.target)?);
    }
    if config.preload && config.protocol != ProtocolKind::Http {
        preload(config.target, &protocol)?;
    }

    let cpu_before = cpu_time_ns();
    // A little in the future, so that every thread waits for the first request and none begins late.
    let start_ns = monotonic_ns() + 20_000_000;
    let clock = MonotonicClock { start_ns };
    let limits = Limits {
        outstanding_cap: config.max_outstanding.div_ceil(config.threads),
        window_ns: config.window_ns,
        end_ns: config.warmup_ns + config.duration_ns,
        grace_ns: config.grace_ns,
        client_late_ns: (config.rules.lag_floor_ms * 1e6) as u64,
    };

    let plan = Plan {
        arrivals: config.arrivals.clone(),
        load: config.load.clone(),
        seed: config.seed,
        warmup_ns: config.warmup_ns,
        end_ns: limits.end_ns,
        changes: Vec::new(),
    };

    let mut kept = config.keep_samples.then(Vec::new);
    let mut reconnects = 0;
    let mut first_error = None;
    let mut switches = 0;
    let mut client = ClientUse::default();
    let limit = realtime::limit(Path::new("/"));
    let share = limit.usable_share();
    if first.is_some() && share.is_none() {
        no_real_time("the kernel has too little of it (sched_rt_runtime_us, cpu.rt_runtime_us of the control group)");
    }
    let go_first = first.filter(|_| share.is_some());
    let mut realtime = true;
    let changes = Changes::default();
    let may_change = control.is_some() || config.warmup_auto;
    let asked = RefCell::new(Asked { plan: plan.clone(), seen: 0 });
    let detector = RefCell::new(config.warmup_auto.then(Detector::default));
    let settled = Cell::new(false);
    let on_window = |w: &WindowReport, response: &Histogram<u64>| {
        if let (Some(detector), Phase::WarmUp) = (detector.borrow_mut().as_mut(), w.phase) {
            if !settled.get() {
                let r = &w.response_time;
                settled.set(matches!(detector.window(w.window, r.mean_ms, r.count), Answer::Settled(_)));
            }
        }
        if let Some(file) = &mut window_file {
            let begin_ns = w.window * config.window_ns;
            let expected = asked.borrow_mut().with(&changes).expected(begin_ns, begin_ns + config.window_ns);
            let nominal_rps = if w.phase == Phase::Grace { 0.0 } else { expected / (config.window_ns as f64 * 1e-9) };
            file.line(&WindowLine {
                window: w.clone(),
                window_ms: config.window_ns as f64 * 1e-6,
                nominal_rps,
                histogram: encode_histogram(response),
            });
        }
        if let Some(feed) = &mut feed {
            let (t_ms, window_ms) = true_window(w.t_ms, config.window_ns / 1_000_000, monotonic_ns() / 1_000_000);
            feed.send(&FeedDatagram {
                service: config.service.clone(),
                t_ms,
                window_ms,
                count: w.completed,
                errors: w.errors,
                unit: "ns".into(),
                histogram: encode_histogram(response),
                offered: w.offered,
                dropped: w.dropped,
                outstanding: w.outstanding,
                oldest_ms: w.oldest_ms,
                verdict: w.verdict.kind.as_str().into(),
            });
            if feed.gone {
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    let mut recorder = Recorder::new(
        RecorderConfig {
            warmup_ns: config.warmup_ns,
            duration_ns: config.duration_ns,
            window_ns: config.window_ns,
            threads: config.threads,
            confidence: config.confidence,
            independent: config.independent,
            rules: config.rules,
            target_ns: config.qos_target_ms.map(|ms| (ms * 1e6) as u64),
            start_ns,
        },
        on_window,
    );

    let abort = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    let result = std::thread::scope(|scope| -> Result<(), LoadgenError> {
        if let Some(control) = &control {
            let (over, clock, changes, plan) = (&over, &clock, &changes, &plan);
            let serve = move || control.serve(over, |command| act(command, clock, changes, plan, stop));
            std::thread::Builder::new().name("control".into()).spawn_scoped(scope, serve).map_err(no_thread)?;
        }
        // However this ends, the control thread ends with it.
        let _over = SetOnDrop(&over);
        let (to, from) = channel();
        let mut spares = Vec::new();
        for (thread, streams) in streams.into_iter().enumerate() {
            let (spare_to, spare) = channel();
            spares.push(spare_to);
            let sink_to = to.clone();
            let to = to.clone();
            let (protocol, abort) = (protocol.clone(), &abort);
            let changes = may_change.then_some(&changes);
            let plan = plan.clone();
            let cpu = (!config.cpus.is_empty()).then(|| config.cpus[thread % config.cpus.len()]);
            std::thread::Builder::new()
                .name(format!("send-{thread}"))
                .spawn_scoped(scope, move || {
                    let mut reconnects = 0;
                    let mut first_error = None;
                    let mut idle_poll_ns = 0;
                    let mut own = ClientUse::default();
                    let before = preemptions_of_this_thread();
                    let (used_before, from_ns) = (realtime::schedstat(), monotonic_ns());
                    let result = settle_thread(cpu, go_first).and_then(|first| {
                        if go_first.is_some() && !first {
                            no_real_time("it was refused (needs root or CAP_SYS_NICE)");
                        }
                        let pacer = Pacer::new(config.spin_ns, config.rules.bias_floor_ms, share.filter(|_| first));
                        let mut transport =
                            SocketTransport::new(clock, config.target, protocol, streams, config.pipeline, pacer, Stops::new(limit))?;
                        let mut sink = ChannelSink { thread, buffer: Vec::with_capacity(4096), to: sink_to, spare };
                        let mut schedule = LiveSchedule::new(plan, changes, thread, config.threads);
                        let r = drive_source(&mut schedule, &clock, &mut transport, &limits, &mut sink, abort);
                        reconnects = transport.reconnects;
                        idle_poll_ns = transport.pacer.idle_poll_ns;
                        own.stops = transport.stops.count;
                        own.stopped_ms = transport.stops.stopped_ns as f64 * 1e-6;
                        own.step_us = transport.pacer.widest_step_ns as f64 * 1e-3;
                        first_error = transport.first_error.take();
                        r.map(|()| first)
                    });
                    let switches = preemptions_of_this_thread() - before;
                    let used = client_use(used_before, realtime::schedstat(), idle_poll_ns, monotonic_ns() - from_ns);
                    let client = worse(used, own);
                    let _ = to.send(Message::Ended { result, reconnects, first_error, switches, client });
                })
                .map_err(|e| {
                    abort.store(true, Ordering::Relaxed);
                    no_thread(e)
                })?;
        }
        drop(to);
        let mut warmup_over = false;
        let mut outcome = Ok(());
        let mut running = config.threads;
        while running > 0 {
            if stop.load(Ordering::Relaxed) {
                abort.store(true, Ordering::Relaxed);
            }
            let message = match from.recv_timeout(std::time::Duration::from_millis(50)) {
                Ok(m) => m,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => continue,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            };
            match message {
                Message::Window { mut samples, mark, thread } => {
                    for s in &samples {
                        recorder.sample(s);
                    }
                    if let Some(kept) = &mut kept {
                        kept.extend_from_slice(&samples);
                    }
                    samples.clear();
                    let _ = spares[thread].send(samples);
                    recorder.mark(mark);
                    if settled.get() && !warmup_over {
                        warmup_over = true;
                        // At the end of a window, and late enough for every thread to hear of it.
                        let at_ns = (clock.now_ns() + LEAD_NS).next_multiple_of(config.window_ns);
                        if at_ns < config.warmup_ns {
                            changes.end_warmup(at_ns);
                            recorder.end_warmup(at_ns);
                        }
                    }
                }
                Message::Ended { result, reconnects: r, first_error: e, switches: s, client: c } => {
                    running -= 1;
                    client = worse(client, c);
                    reconnects += r;
                    switches += s;
                    first_error = first_error.take().or(e);
                    match result {
                        Ok(first) => realtime &= first,
                        Err(e) => {
                            abort.store(true, Ordering::Relaxed);
                            outcome = Err(e);
                        }
                    }
                }
            }
        }
        outcome
    });
    result?;

    let interrupted = stop.load(Ordering::Relaxed);
    let elapsed_ns = monotonic_ns().saturating_sub(start_ns).max(1);
    let cpu_used = cpu_before.zip(cpu_time_ns()).map(|(a, b)| (b - a) as f64 / elapsed_ns as f64);
    let s = recorder.finish_with(interrupted, Some(client));
    let mut asked = asked.into_inner();
    let plan = asked.with(&changes);
    let warmup_ms = plan.warmup_ns as f64 * 1e-6;
    let warmup = detector.into_inner().map(|d| d.report(config.warmup_ns as f64 * 1e-6, config.window_ns as f64 * 1e-6));
    if let Some(w) = warmup.as_ref().filter(|w| !w.settled && !interrupted) {
        note(&format!("warning: the warm-up did not settle: {}", w.reason));
    }
    if let Some(file) = window_file {
        file.commit()?;
    }
    let seconds = s.duration_ns as f64 * 1e-9;
    let report = Report {
        format: FORMAT.into(),
        service: config.service.clone(),
        target: config.target.to_string(),
        protocol: config.protocol,
        arrivals: config.arrivals.clone(),
        seed: config.seed,
        load: config.load.steps().iter().map(|s| LoadStep { at_ms: s.at_ns as f64 * 1e-6, rps: s.rps }).collect(),
        load_shape: config.load.shape().into(),
        wave: config.load.wave().map(|w| WaveReport { amplitude: w.amplitude, period_ms: w.period_ns as f64 * 1e-6, phase: w.phase }),
        commands: plan.changes.iter().map(|c| LoadStep { at_ms: c.0 as f64 * 1e-6 - warmup_ms, rps: c.1 }).collect(),
        warmup_ms,
        warmup,
        duration_ms: s.duration_ns as f64 * 1e-6,
        window_ms: config.window_ns as f64 * 1e-6,
        connections: config.connections,
        threads: config.threads,
        pipeline: config.pipeline,
        interrupted,
        nominal_rps: plan.expected(plan.warmup_ns, plan.warmup_ns + s.duration_ns) / seconds,
        offered_rps: s.offered_rps,
        achieved_rps: s.achieved_rps,
        offered: s.counts.all(),
        completed: s.counts.completed,
        misses: s.counts.misses,
        errors: s.counts.errors,
        first_error,
        dropped_server: s.counts.dropped_server,
        dropped_client: s.counts.dropped_client,
        unfinished: s.counts.unfinished,
        reconnects,
        backlog_growth: s.backlog_growth,
        service_time: s.service_time,
        response_time: s.response_time,
        send_lag: s.send_lag,
        client_lag: s.client_lag,
        undelayed_p99_ms: s.undelayed_p99_ms,
        confidence: config.confidence,
        rules: config.rules,
        held: s.held,
        warnings: warnings(s.verdict.kind, &client, s.held as f64 / s.counts.all().max(1) as f64, config.connections * config.pipeline),
        qos_target_ms: config.qos_target_ms,
        above_target: s.target,
        client,
        verdict: s.verdict,
        windows: s.windows,
        client_cpu_cores: cpu_used,
        client_realtime: realtime,
        involuntary_switches: Some(switches),
        feed_delivered: feed.as_ref().map(|f| f.delivered),
        feed_undelivered: feed.as_ref().map(|f| f.undelivered),
    };
    Ok(RunOutput { report, samples: kept })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares of a thread's time; the worst thread's count, and what was not measured is none.
    #[test]
    fn shares_of_a_threads_time() {
        let u = client_use(Some((100, 10)), Some((700, 60)), 250, 1000);
        assert_eq!((u.busy_share, u.cpu_share, u.run_queue_wait_share), (Some(0.35), Some(0.6), Some(0.05)));
        assert_eq!(client_use(None, Some((1, 1)), 0, 10), ClientUse::default());
        let v = ClientUse {
            busy_share: Some(0.9),
            run_queue_wait_share: Some(0.01),
            stops: 2,
            stopped_ms: 100.0,
            step_us: 80.0,
            ..ClientUse::default()
        };
        assert_eq!(worse(u, v), ClientUse { cpu_share: Some(0.6), run_queue_wait_share: Some(0.05), ..v });
    }

    /// A window that is over is whole; one that ends with the last reply is as long as it lasted.
    #[test]
    fn the_last_window_is_as_long_as_it_lasted() {
        assert_eq!(true_window(1100, 100, 1103), (1100, 100));
        assert_eq!(true_window(1200, 100, 1107), (1107, 7));
        assert_eq!(true_window(1200, 100, 1100), (1101, 1));
    }
}
