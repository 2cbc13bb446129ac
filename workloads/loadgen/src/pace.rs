//! How a sending thread spends its CPU: when it polls, when it sleeps, and how far apart its looks at the sockets are. Pure: times come
//! in, decisions go out, so that it is proven in virtual time.
//!
//! What must hold:
//! 1. With real-time priority the thread stays below the kernel's limit on real time, which is a share of each period. A thread that
//!    passes the limit is stopped for the rest of the period (50 ms of each second, as kernels come), and every request due
//!    meanwhile is late. Time off the CPU is given in pieces of [`REST_NS`] instead.
//! 2. Polling, which trades CPU time for punctuality, takes at most [`POLL_SHARE`] of the time, and none while looks are apart.
//! 3. Below [`CALM`] nothing waits for the thread. Above [`BUSY`] its looks move apart, by at most `longest_step_ns`: what is due and what has
//!    been answered in one step shares wake-ups and system calls, so that the work per request falls as the rate rises. What
//!    waits for a look is the client's own lag, and counts as that. As the step grows, up to [`MOST_GROUP`] requests of a step share a connection,
//!    as they do with clients that pipeline: one system call for them here, and one there.
//! 4. A thread that the kernel has stopped all the same (others of its CPU use real time too) asks for less, and below [`LEAST_SHARE`] for none.

/// Kept from the kernel's limit, as a share of time: the thread that collects (7 % of a CPU at 118,000 requests per second), which may
/// have no other CPU, and errors of the accounts.
const MARGIN: f64 = 0.08;
/// Limit that is assumed where the kernel has none: since Linux 6.12 ordinary processes have a server of their own with 5 %.
const USUAL_LIMIT: f64 = 0.95;
/// Less real time than this is worth nothing.
const LEAST_SHARE: f64 = 0.5;
/// What is left of the share after the kernel has stopped the thread.
const AFTER_STOP: f64 = 0.7;
/// Share of time for work from which on looks move apart, and below which they come together again.
const BUSY: f64 = 0.70;
const CALM: f64 = 0.50;
const POLL_SHARE: f64 = 0.10;
/// Shares are taken over so long.
const SLICE_NS: u64 = 5_000_000;
const REST_NS: u64 = 60_000;
/// Time on the CPU that may be saved up: a burst of work is no reason to rest.
const MOST_CREDIT_NS: f64 = 10e6;
const MOST_POLL_CREDIT_NS: f64 = 2e6;
/// Shortest and, where the rules of the verdict allow it, longest step.
const LEAST_STEP_NS: f64 = 20_000.0;
const MOST_STEP_NS: f64 = 200_000.0;
/// Requests that share a connection, at most, when they leave in one step. Below [`BUSY`] each has the emptiest connection to itself.
const MOST_GROUP: f64 = 4.0;
/// Of the bias that the verdict allows: a request may wait a step to be sent, its reply another to be seen, of which half counts. Work
/// comes on top.
const STEP_SHARE_OF_BIAS: f64 = 0.2;
/// Going to sleep and waking is work of the kernel's that the clock around a sleep does not see: without it a thread that slept 40,000
/// times a second took 95 % of its CPU where its accounts had 80 %. It is a guess, put right with each [`Pacer::used`].
const SWITCH_NS: u64 = 4_000;
/// A reply that was there at once had waited for the look.
const AT_ONCE_NS: u64 = 5_000;

/// The kernel's limit on real time: `runtime_ns` of each `period_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RealtimeLimit {
    pub runtime_ns: u64,
    pub period_ns: u64,
}

/// As kernels come.
impl Default for RealtimeLimit {
    fn default() -> Self {
        RealtimeLimit { runtime_ns: 950_000_000, period_ns: 1_000_000_000 }
    }
}

impl RealtimeLimit {
    /// As the kernel writes it (us; a runtime of -1: no limit); none if that makes no sense.
    pub fn parse(runtime_us: &str, period_us: &str) -> Option<Self> {
        let period_us: u64 = period_us.trim().parse().ok().filter(|&p| p > 0)?;
        let runtime_us: i64 = runtime_us.trim().parse().ok()?;
        let runtime_us = u64::try_from(runtime_us).unwrap_or(period_us).min(period_us);
        Some(RealtimeLimit { runtime_ns: runtime_us.saturating_mul(1000), period_ns: period_us.saturating_mul(1000) })
    }

    fn share(&self) -> f64 {
        self.runtime_ns as f64 / self.period_ns as f64
    }

    /// How long a thread that has passed the limit is stopped.
    pub fn stop_ns(&self) -> u64 {
        let usual = (self.period_ns as f64 * (1.0 - USUAL_LIMIT)) as u64;
        (self.period_ns - self.runtime_ns).max(usual)
    }

    /// The share of time that a thread may take in real time; none where that is too little to be of use.
    pub fn usable_share(&self) -> Option<f64> {
        Some(self.share().min(USUAL_LIMIT) - MARGIN).filter(|&s| s >= LEAST_SHARE)
    }
}

/// What the thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Look at the sockets and come back.
    Look,
    /// Sleep until then or until something comes in.
    Sleep { until_ns: u64 },
    /// Be off the CPU until then, whatever comes in; then look.
    Rest { until_ns: u64 },
}

/// One thread's accounts.
#[derive(Debug, Clone)]
pub struct Pacer {
    /// Of the time, in real time; none: an ordinary thread, which the scheduler shares out.
    share: Option<f64>,
    spin_ns: u64,
    longest_step_ns: f64,
    step_ns: f64,
    credit_ns: f64,
    poll_credit_ns: f64,
    /// Accounts are made up to here.
    mark_ns: u64,
    looked_ns: u64,
    slice_wall_ns: u64,
    slice_work_ns: u64,
    slice_idle_ns: u64,
    /// CPU time of the thread when the slice began, as the kernel counts it.
    used_ns: Option<u64>,
    /// The longest step so far.
    pub widest_step_ns: u64,
    /// Time spent on polls that found nothing.
    pub idle_poll_ns: u64,
}

impl Pacer {
    /// `bias_ms`: what the client may add to a p99 before the run is its own. `share`: as [`RealtimeLimit::usable_share`].
    pub fn new(spin_ns: u64, bias_ms: f64, share: Option<f64>) -> Self {
        Pacer {
            share,
            spin_ns,
            longest_step_ns: (bias_ms * 1e6 * STEP_SHARE_OF_BIAS).min(MOST_STEP_NS),
            step_ns: 0.0,
            credit_ns: MOST_CREDIT_NS,
            poll_credit_ns: MOST_POLL_CREDIT_NS,
            mark_ns: 0,
            looked_ns: 0,
            slice_wall_ns: 0,
            slice_work_ns: 0,
            slice_idle_ns: 0,
            used_ns: None,
            widest_step_ns: 0,
            idle_poll_ns: 0,
        }
    }

    /// Begin the accounts.
    pub fn start(&mut self, now_ns: u64) {
        self.mark_ns = now_ns;
        self.looked_ns = now_ns;
    }

    /// The thread has run until now.
    fn ran(&mut self, now_ns: u64) {
        let ran_ns = now_ns.saturating_sub(self.mark_ns);
        self.mark_ns = self.mark_ns.max(now_ns);
        self.slice_work_ns += ran_ns;
        self.passed(ran_ns, 0);
    }

    fn slept(&mut self, off_ns: u64) {
        let work_ns = off_ns.min(SWITCH_NS);
        self.slice_work_ns += work_ns;
        self.passed(work_ns, off_ns - work_ns);
    }

    fn passed(&mut self, ran_ns: u64, slept_ns: u64) {
        let share = self.share.unwrap_or(1.0);
        let (ran, slept) = (ran_ns as f64, slept_ns as f64);
        self.credit_ns = (self.credit_ns + slept * share - ran * (1.0 - share)).min(MOST_CREDIT_NS);
        self.poll_credit_ns = (self.poll_credit_ns + (ran + slept) * POLL_SHARE).min(MOST_POLL_CREDIT_NS);
        self.slice_wall_ns += ran_ns + slept_ns;
    }

    /// Whether a slice is over, and [`used`](Self::used) should be told.
    pub fn slice_is_over(&self) -> bool {
        self.slice_wall_ns >= SLICE_NS
    }

    /// What the kernel counts as the thread's CPU time, ns; none: it does not tell. The slice is judged by that, and the accounts are put right.
    pub fn used(&mut self, cpu_ns: Option<u64>) {
        let told = cpu_ns.zip(self.used_ns).map(|(now, before)| now.saturating_sub(before).min(self.slice_wall_ns));
        self.used_ns = cpu_ns;
        let work_ns = told.unwrap_or(self.slice_work_ns);
        // Time that was work and counted as sleep: it earned nothing, and is owed.
        self.credit_ns = (self.credit_ns - (work_ns as f64 - self.slice_work_ns as f64)).min(MOST_CREDIT_NS);
        let busy = work_ns.saturating_sub(self.slice_idle_ns) as f64 / self.slice_wall_ns.max(1) as f64;
        (self.slice_wall_ns, self.slice_work_ns, self.slice_idle_ns) = (0, 0, 0);
        if busy > BUSY {
            self.step_ns = (self.step_ns * 1.5).max(LEAST_STEP_NS).min(self.longest_step_ns);
        } else if busy < CALM {
            self.step_ns = if self.step_ns <= LEAST_STEP_NS { 0.0 } else { self.step_ns * 0.8 };
        }
        self.widest_step_ns = self.widest_step_ns.max(self.step_ns as u64);
    }

    fn may_poll(&self) -> bool {
        self.step_ns == 0.0 && self.poll_credit_ns > 0.0 && self.credit_ns > 0.5 * MOST_CREDIT_NS
    }

    /// What to do when the next request is due at `due_ns`.
    pub fn next(&mut self, now_ns: u64, due_ns: u64) -> Next {
        self.ran(now_ns);
        let tick_ns = self.looked_ns + self.step_ns as u64;
        if self.share.is_some() && self.credit_ns <= 0.0 {
            // What was overdrawn is paid back first.
            let owed_ns = (-self.credit_ns / self.share.unwrap_or(1.0)) as u64;
            return Next::Rest { until_ns: tick_ns.max(now_ns + REST_NS.max(owed_ns)) };
        }
        if now_ns < tick_ns {
            return Next::Rest { until_ns: tick_ns };
        }
        if due_ns <= now_ns {
            return Next::Look;
        }
        let spin_ns = if self.may_poll() { self.spin_ns } else { 0 };
        if due_ns - now_ns > spin_ns {
            Next::Sleep { until_ns: due_ns - spin_ns }
        } else {
            Next::Look
        }
    }

    /// How many requests that leave together share a connection.
    pub fn group(&self) -> usize {
        (1.0 + (MOST_GROUP - 1.0) * self.step_ns / self.longest_step_ns.max(1.0)).round() as usize
    }

    /// A look begins. Returns since when what it finds may have been there.
    pub fn look(&mut self, now_ns: u64) -> u64 {
        std::mem::replace(&mut self.looked_ns, now_ns)
    }

    /// A look that nothing was due for has found nothing.
    pub fn polled(&mut self, began_ns: u64, now_ns: u64) {
        self.ran(now_ns);
        let idle_ns = now_ns.saturating_sub(began_ns);
        self.idle_poll_ns += idle_ns;
        self.poll_credit_ns -= idle_ns as f64;
        self.slice_idle_ns += idle_ns;
    }

    /// A sleep from `slept_ns` to `woke_ns` is over. Returns since when what it found may have been there.
    pub fn woke(&mut self, slept_ns: u64, woke_ns: u64) -> u64 {
        let off_ns = woke_ns.saturating_sub(slept_ns);
        self.mark_ns = self.mark_ns.max(woke_ns);
        self.slept(off_ns);
        let before_ns = std::mem::replace(&mut self.looked_ns, woke_ns);
        if off_ns < AT_ONCE_NS {
            before_ns
        } else {
            woke_ns
        }
    }

    /// A rest is over; the look follows.
    pub fn rested(&mut self, slept_ns: u64, woke_ns: u64) {
        self.mark_ns = self.mark_ns.max(woke_ns);
        self.slept(woke_ns.saturating_sub(slept_ns));
    }

    /// The kernel has stopped the thread. Returns whether it is to go on in real time.
    pub fn stopped(&mut self) -> bool {
        self.share = self.share.map(|s| s * AFTER_STOP).filter(|&s| s >= LEAST_SHARE);
        self.credit_ns = self.credit_ns.min(0.0);
        self.share.is_some()
    }

    pub fn realtime(&self) -> bool {
        self.share.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    /// A thread in virtual time: waking, sending and reading cost CPU time; each request is answered `answer_ns` after it left.
    struct World {
        wake_ns: u64,
        batch_ns: u64,
        request_ns: u64,
        answer_ns: u64,
        look_ns: u64,
        /// Work of the kernel's at the end of a sleep, before the clock is read again.
        unseen_ns: u64,
        /// The kernel tells the thread's CPU time.
        told: bool,
    }

    const USUAL: World =
        World { wake_ns: 4_000, batch_ns: 2_000, request_ns: 5_000, answer_ns: 40_000, look_ns: 500, unseen_ns: 0, told: false };

    /// Requests that connections have room for.
    const SLOTS: u64 = 256;

    struct Seen {
        /// On the CPU: begin and end.
        on: Vec<(u64, u64)>,
        lags_ns: Vec<u64>,
        replies_ns: Vec<u64>,
        cpu_ns: u64,
        polled_ns: u64,
        sent: u64,
    }

    impl Seen {
        /// The longest time on the CPU of any `window_ns` that begins with a piece of it.
        fn most_ns(&self, window_ns: u64) -> u64 {
            let mut most = 0;
            for (i, first) in self.on.iter().enumerate().step_by(97) {
                let end = first.0 + window_ns;
                let sum = self.on[i..].iter().take_while(|p| p.0 < end).map(|p| p.1.min(end) - p.0).sum();
                most = most.max(sum);
            }
            most
        }

        fn p99(list: &[u64]) -> u64 {
            let mut list = list.to_vec();
            list.sort_unstable();
            list[list.len() * 99 / 100]
        }
    }

    fn walk(world: &World, pacer: &mut Pacer, rate: impl Fn(u64) -> f64, end_ns: u64) -> Seen {
        let mut seen = Seen { on: vec![], lags_ns: vec![], replies_ns: vec![], cpu_ns: 0, polled_ns: 0, sent: 0 };
        let (mut now, mut drawn) = (0u64, 0u64);
        let mut gap = |at: u64| {
            drawn += 1;
            let u = crate::random::unit(crate::random::draw(9, 1, drawn));
            (-u.ln() / rate(at) * 1e9) as u64 + 1
        };
        let mut due = gap(0);
        let mut open: std::collections::VecDeque<u64> = std::collections::VecDeque::new();
        let mut on_since = 0;
        pacer.start(0);
        while now < end_ns {
            // Send what is due.
            let mut batch = 0;
            while due <= now && batch < SLOTS {
                seen.lags_ns.push(now - due);
                batch += 1;
                due += gap(due);
            }
            if batch > 0 {
                now += world.batch_ns + batch * world.request_ns;
                open.extend((0..batch).map(|_| now + world.answer_ns));
                seen.sent += batch;
            }
            let begun_ns = now;
            let mut looking = false;
            let off = |now: u64, until: u64, seen: &mut Seen, on_since: &mut u64| {
                seen.on.push((*on_since, now));
                seen.cpu_ns += now - *on_since;
                *on_since = until;
            };
            if pacer.slice_is_over() {
                pacer.used(world.told.then_some(seen.cpu_ns + now - on_since));
            }
            match pacer.next(now, due) {
                Next::Look => {
                    pacer.look(now);
                    now += world.look_ns;
                    looking = true;
                }
                Next::Sleep { until_ns } => {
                    let until = until_ns.min(open.front().copied().unwrap_or(u64::MAX)).max(now);
                    off(now, until, &mut seen, &mut on_since);
                    pacer.woke(now, until + world.unseen_ns);
                    now = until + world.unseen_ns + world.wake_ns;
                }
                Next::Rest { until_ns } => {
                    off(now, until_ns, &mut seen, &mut on_since);
                    pacer.rested(now, until_ns + world.unseen_ns);
                    pacer.look(until_ns + world.unseen_ns);
                    now = until_ns + world.unseen_ns + world.wake_ns;
                }
            }
            let mut found = 0;
            while open.front().is_some_and(|&r| r <= now) {
                seen.replies_ns.push(now - open.pop_front().unwrap());
                found += 1;
            }
            now += found * 1_000;
            if looking && found == 0 && due > now {
                pacer.polled(begun_ns, now);
            }
        }
        seen.on.push((on_since, now));
        seen.cpu_ns += now - on_since;
        seen.polled_ns = pacer.idle_poll_ns;
        seen
    }

    fn realtime() -> Option<f64> {
        RealtimeLimit::default().usable_share()
    }

    /// At any rate, up to ones that the thread cannot send, its real time stays below the kernel's limit in each period.
    #[test]
    fn real_time_is_given_back_before_the_kernel_takes_it() {
        for rate in [500.0, 5_000.0, 30_000.0, 66_000.0, 120_000.0, 200_000.0, 1_000_000.0] {
            let mut pacer = Pacer::new(20_000, 0.2, realtime());
            let seen = walk(&USUAL, &mut pacer, |_| rate, 3 * SEC);
            let most = seen.most_ns(SEC);
            assert!(most < 940_000_000, "{rate}: {most}");
            if rate >= 1_000_000.0 {
                // And what may be had is used.
                assert!(most > 850_000_000, "{most}");
            }
        }
    }

    /// So it does where waking costs far more than was guessed, as on virtual machines, and looks move apart although what the clock sees is
    /// little.
    #[test]
    fn the_kernels_count_puts_the_accounts_right() {
        let cpu_ns = |rate: f64, told: bool| {
            let world = World { unseen_ns: 14_000, told, request_ns: 3_000, ..USUAL };
            let seen = walk(&world, &mut Pacer::new(20_000, 0.2, realtime()), |_| rate, 3 * SEC);
            seen.most_ns(SEC)
        };
        for rate in [45_000.0, 66_000.0, 90_000.0] {
            let (guessed, told) = (cpu_ns(rate, false), cpu_ns(rate, true));
            assert!(told < 750_000_000 && guessed > told + 100_000_000, "{rate}: {guessed} {told}");
        }
    }

    /// The work per request falls as the rate rises, and polling never takes more than its share.
    #[test]
    fn work_is_shared_when_there_is_much_of_it() {
        let per_request = |rate: f64| {
            let mut pacer = Pacer::new(20_000, 0.2, realtime());
            let seen = walk(&USUAL, &mut pacer, |_| rate, 2 * SEC);
            assert!(seen.polled_ns <= (POLL_SHARE * 2e9) as u64 + 3_000_000, "{rate}: {}", seen.polled_ns);
            (seen.cpu_ns as f64 / seen.sent as f64, Seen::p99(&seen.lags_ns), Seen::p99(&seen.replies_ns))
        };
        let (slow, middle, fast) = (per_request(2_000.0), per_request(60_000.0), per_request(110_000.0));
        assert!(slow.0 > 1.5 * middle.0 && middle.0 > fast.0, "{slow:?} {middle:?} {fast:?}");
        // 110,000 requests of 5 us of their own and 1 us for the reply are 0.66 of a CPU: what comes on top is at most a quarter.
        assert!(fast.0 < 8_000.0, "{fast:?}");
        // A step of 80 us and a batch; the reply's wait likewise.
        assert!(fast.1 < 200_000 && fast.2 < 200_000, "{fast:?}");
        // In calm nothing waits for more than a wake-up or the work at hand.
        assert!(slow.1 < 30_000 && slow.2 < 30_000, "{slow:?}");
    }

    /// When the load falls, looks come together again.
    #[test]
    fn a_step_ends_with_the_load() {
        let mut pacer = Pacer::new(20_000, 0.2, realtime());
        let seen = walk(&USUAL, &mut pacer, |at| if at < SEC { 150_000.0 } else { 2_000.0 }, 2 * SEC);
        assert!(pacer.widest_step_ns >= 20_000 && pacer.step_ns == 0.0 && pacer.group() == 1, "{pacer:?}");
        let later = &seen.lags_ns[seen.lags_ns.len() - 1_500..];
        assert!(Seen::p99(later) < 30_000, "{}", Seen::p99(later));
    }

    /// A step never exceeds what the verdict lets the client add, be it little or much.
    #[test]
    fn the_verdicts_bias_bounds_the_step() {
        for (bias_ms, most_ns) in [(0.1, 20_000), (0.2, 40_000), (10.0, 200_000)] {
            let mut pacer = Pacer::new(0, bias_ms, None);
            walk(&USUAL, &mut pacer, |_| 500_000.0, SEC / 2);
            assert_eq!(pacer.widest_step_ns, most_ns, "{bias_ms}");
            assert_eq!(pacer.group(), 4);
        }
    }

    /// A thread that was stopped all the same asks for less, and then for no real time at all.
    #[test]
    fn who_is_stopped_asks_for_less() {
        let mut pacer = Pacer::new(20_000, 0.2, realtime());
        assert!(pacer.realtime() && pacer.stopped());
        let seen = walk(&USUAL, &mut pacer, |_| 1_000_000.0, 2 * SEC);
        let most = seen.most_ns(SEC);
        assert!((600_000_000..680_000_000).contains(&most), "{most}");
        assert!(!pacer.stopped() && !pacer.realtime());
        // An ordinary thread does not rest.
        let seen = walk(&USUAL, &mut Pacer::new(20_000, 0.2, None), |_| 1_000_000.0, 2 * SEC);
        assert!(seen.most_ns(SEC) > 980_000_000);
    }

    /// The kernel's two numbers, with those that mean no limit, and with too little to be of use.
    #[test]
    fn the_kernels_limit_is_read() {
        let limit = |runtime: &str, period: &str| RealtimeLimit::parse(runtime, period);
        let usual = limit("950000\n", "1000000\n").unwrap();
        assert_eq!(usual, RealtimeLimit { runtime_ns: 950_000_000, period_ns: SEC });
        assert_eq!((usual.stop_ns(), usual.usable_share()), (50_000_000, Some(0.95 - MARGIN)));
        let none = limit("-1", "1000000").unwrap();
        assert_eq!(none.usable_share(), Some(0.95 - MARGIN));
        assert!((49_000_000..=50_000_000).contains(&none.stop_ns()));
        assert_eq!(limit("400000", "1000000").unwrap().usable_share(), None);
        assert_eq!(limit("2000000", "1000000").unwrap().runtime_ns, SEC);
        for (runtime, period) in [("", "1000000"), ("950000", "0"), ("x", "1"), ("1", "-5")] {
            assert_eq!(limit(runtime, period), None, "{runtime} {period}");
        }
    }
}
