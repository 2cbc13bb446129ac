//! `surefootd run`: observe, decide, apply, every 100 ms.

use super::decisions::{Journal, LendLine, RunLine, StandingLine};
use super::follower::Follower;
use super::learning::{self, Learning};
use super::lending::Lending;
use super::machine::{bring_in, local_server, Absent, Clock, Node, Purpose, Waited};
use super::metrics::{self, Metrics, Took};
use super::notify::Notifier;
use super::phases::{own, timed};
use super::pods::Pods;
use super::serials::Serials;
use super::upper::{socket::Hello, Upper};
use super::watching;
use crate::base::cli;
use crate::base::error::server_error;
use crate::base::error::{Error, Result};
use crate::base::files::{each_its_own, Sources};
use crate::base::places::state_dir;
use crate::base::say;
use crate::base::stop;
use crate::base::utc;
use crate::node::recorder::Recorder;
use crate::node::stream::{self, Head};
use crate::stage::config::NodeConfig;
use crate::stage::inputs::{Inputs, News};
use crate::stage::models::{self, bundle_sources, each_once, load_bundle, shadow_makers};
use crate::stage::moment::moments;
use crate::stage::socket::{asked_as, check_name};
use crate::stage::virtual_target::VirtualTarget;
use serde_json::json;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use surefoot_learn::{Bundle, Expect};
use surefoot_linux::local::Limit;
use surefoot_policy::pace::Pace;
use surefoot_policy::remote::wire::Role;
use surefoot_policy::remote::Held;
use surefoot_policy::{Asked, Policy, Shadows, Watch};
use surefoot_server::{Number, Observation, Plan, Platform, Server, QUANTITIES};

/// The journal of decisions in a state folder.
pub const JOURNAL: &str = "decisions.jsonl";

/// # Errors
/// Bad input or a failure, on one line.
pub fn run(args: &cli::Run) -> Result<()> {
    if let Some(pid) = args.die_with_parent {
        stop::die_with_parent((pid > 0).then_some(pid))?;
    }
    stop::install()?;
    let mut config = match &args.config {
        Some(f) => NodeConfig::read(f)?,
        None => NodeConfig::none(),
    };
    each_once("--shadow", &args.shadow)?;
    if args.shadow.contains(&args.policy) {
        let name = &args.policy;
        return Err(Error::BadInput(format!("--shadow: policy \"{name}\" is the one that acts (--policy). Leave it out here")));
    }
    let server = cli::Server::parse(&args.server)?;
    let metrics = Arc::new(Mutex::new(Metrics::default()));
    let (at, file) = (config.metrics_at(), config.file.clone());
    let serve = || -> Result<()> {
        let Some(at) = at else { return Ok(()) };
        let named = |e| if args.config.is_some() { Error::Failed(format!("{}: {e}", file.display())) } else { e };
        metrics::serve(at, metrics.clone()).map(|_| ()).map_err(named)
    };
    config.settings.pace =
        Pace::every(config.interval_ms).map_err(|e| Error::BadInput(format!("{}: interval_ms: {e}", config.file.display())))?;
    // Everything that can be wrong is found before anything is changed: names, the bundle and the models of policies before a server
    // is opened (a local one has its state folder from then on), the rest before there is a port, a line in the journal or a socket.
    check_name(&args.policy).map_err(Error::BadInput)?;
    if args.policy == "parties" {
        tracing::warn!("--policy parties decides as its authors' program does. What had that name before is parties-be (docs/rivals.md)");
    }
    args.shadow.iter().try_for_each(|name| check_name(name)).map_err(|e| Error::BadInput(format!("--shadow: {e}")))?;
    let mut pods = None;
    let mut waited = Waited::default();
    let real_time = config.realtime || matches!(server, cli::Server::Local);
    config.settings = asked_as(config.settings, Role::Actor, real_time);
    let (mut node, (mut policy, mut learning), mut story, mut beside) = match server {
        cli::Server::Virtual(name) => {
            let at = VirtualTarget::open(&name, args.profiles.as_deref())?;
            let node = Node::virtual_server(&config, &at)?;
            let bundle = bundle(args, Expect::virtual_platform(&at.platform), "full")?;
            let policy =
                learning::policy(&args.policy, &at.platform, bundle.as_ref(), config.seed, &config.learning, &config.settings, None)?;
            let looks_on = LooksOn::new(args, &config, &at.platform, bundle.as_ref())?;
            let head = head(args, &config, &at.platform, "full", bundle.as_ref(), policy.1.as_ref());
            let head = Head { is_virtual: true, ..head };
            let beside = Beside::open(looks_on, args, &config, &at.read, head)?;
            serve()?;
            let clock = config.realtime.then_some(utc::now_ms as fn() -> u64);
            let story = Story::open(config.journal.as_deref(), None, args, &config, &at.platform, clock, &metrics)?;
            (node, policy, story.with_models_of(bundle.as_ref()), beside)
        }
        cli::Server::Local => {
            let (mut server, state, bundle) = local_server(&config, Purpose::Control, |found| {
                let bundle = bundle(args, this_host(&found.platform, found.ways_of_all()), found.feature_set())?;
                if let (Some(b), Some(path)) = (&bundle, &args.bundle) {
                    Serials::of(&state_dir(config.state_dir.as_deref())).check(path, b, args.allow_older)?;
                }
                models::policy(&args.policy, &found.platform, bundle.as_ref(), &config.settings, config.seed)?;
                shadows(args, &config, &found.platform, bundle.as_ref())?;
                Ok(bundle)
            })?;
            // Who else controls resctrl takes the ways away, and is met only now.
            if let (Some(b), Some(path)) = (&bundle, &args.bundle) {
                let expected = this_host(server.platform(), server.ways_of_all()).feature_set(server.feature_set().0);
                expected.check(&b.manifest).map_err(|e| Error::BadInput(format!("bundle {}: {e}", path.display())))?;
            }
            let platform = server.platform().clone();
            let policy =
                learning::policy(&args.policy, &platform, bundle.as_ref(), config.seed, &config.learning, &config.settings, Some(&state))?;
            let looks_on = LooksOn::new(args, &config, &platform, bundle.as_ref())?;
            let head = head(args, &config, &platform, server.feature_set().0, bundle.as_ref(), policy.1.as_ref());
            let beside = Beside::open(looks_on, args, &config, &Sources::default(), head)?;
            serve()?;
            let named = config.services.iter().map(|s| s.id.clone());
            pods = config
                .pods
                .as_ref()
                .map(|p| Pods::start(p, named))
                .transpose()
                .map_err(|e| Error::Failed(format!("pods: no thread: {e}")))?;
            let journal = config.journal.clone().unwrap_or_else(|| state.join(JOURNAL));
            let story = Story::open(Some(&journal), Some(&state), args, &config, &platform, Some(utc::now_ms), &metrics)?;
            let resumed = bring_in(&mut server, &config, pods.as_ref().map_or(&[], Pods::services), Purpose::Control)
                .map(|w| waited = w)
                .and_then(|()| server.resume().map_err(server_error))
                .and_then(|r| remember(&state, args, bundle.as_ref()).map(|()| r));
            match resumed {
                Ok(r) if r.adopted.is_empty() => {}
                Ok(r) => tracing::info!("going on with the allocations of the run before this one: {}", r.adopted.join(", ")),
                Err(e) => {
                    // Nobody would look after what an earlier run left.
                    server.reset().map_err(server_error)?;
                    return Err(e);
                }
            }
            (Node::Local(Box::new(server)), policy, story.with_models_of(bundle.as_ref()), beside)
        }
    };
    if let Some(at) = config.metrics_at() {
        tracing::info!("metrics: http://{at}/metrics");
    }
    // A fault of ours ends the loop as an error does.
    beside.absent = Absent::with(pods, waited);
    let run = AssertUnwindSafe(|| control(args, &config, &mut node, policy.as_mut(), learning.as_mut(), &mut story, &mut beside));
    let looped = catch_unwind(run).unwrap_or_else(|_| Err(Error::Failed("a fault of surefootd ended the run. Please report it".into())));
    // Whatever ended the loop, the machine gets everything back: before a word is said of it, which may have to wait.
    let restored = match &mut node {
        Node::Local(s) => s.reset().map(|_| ()).map_err(server_error),
        Node::Virtual { .. } => Ok(()),
    };
    drop(node);
    let recorded = beside.end();
    // The disk may be slow: last of all.
    if let Some(l) = &mut learning {
        l.end();
    }
    let (summary, unplaced) = looped?;
    let said = say::json(&summary);
    restored.and(recorded).and(said).and(unplaced)
}

/// A service of which nothing could be set in all the time: the run has not done what it was for.
fn none_unplaced(m: &Metrics) -> Result<()> {
    let never = m.never_placed();
    let refused = m.bounded().iter().find(|l| never.contains(&l.service.as_str()));
    refused.map_or(Ok(()), |l| {
        Err(Error::Failed(format!("service \"{}\" was never placed: {}: {}. {}", l.service, l.value.name(), l.cause, l.remedy)))
    })
}

/// A bundle for this host: its models are of the hardware, and policies work within what others leave of the ways.
fn this_host(platform: &Platform, ways_of_all: u32) -> Expect {
    Expect { ways: Some(ways_of_all), ..Expect::platform(platform) }
}

fn bundle(args: &cli::Run, expected: Expect, feature_set: &str) -> Result<Option<Bundle>> {
    let expected = expected.feature_set(feature_set);
    args.bundle.as_deref().map(|b| load_bundle(b, args.trust.as_deref(), &expected)).transpose()
}

/// The policies that look on.
fn shadows(args: &cli::Run, config: &NodeConfig, platform: &Platform, bundle: Option<&Bundle>) -> Result<Shadows> {
    let (makers, judge) = shadow_makers(&args.shadow, platform, bundle, &config.settings, config.seed)?;
    Shadows::new(makers, judge).map_err(|e| Error::BadInput(format!("--shadow: {e}")))
}

/// Who decides on what: the head of a stream.
fn head(
    args: &cli::Run,
    config: &NodeConfig,
    platform: &Platform,
    feature_set: &str,
    bundle: Option<&Bundle>,
    learning: Option<&Learning>,
) -> Head {
    Head {
        format: 0,
        policy: args.policy.clone(),
        platform: platform.clone(),
        is_virtual: false,
        feature_set: feature_set.into(),
        seed: config.seed,
        interval_ms: config.interval_ms,
        bundle: bundle.map(|b| b.digest.clone()),
        learns: config.learning.on,
        learn_every_ms: config.learning.every_ms,
        settings: config.settings.changed(),
        resumed_experience: learning.is_some_and(Learning::resumed),
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

/// The bundle is the one that ran last from here on.
fn remember(state: &Path, args: &cli::Run, bundle: Option<&Bundle>) -> Result<()> {
    match (bundle, &args.bundle) {
        (Some(b), Some(path)) => Serials::of(state).keep(path, b, args.allow_older),
        _ => Ok(()),
    }
}

/// Where what happens is told: the journal of decisions, the metrics with the last of them, and upper schedulers.
struct Story<'a> {
    follower: Follower,
    journal: Option<Journal>,
    upper: Upper,
    inputs: Inputs,
    /// Time of day, where that has a meaning.
    clock: Option<fn() -> u64>,
    metrics: &'a Mutex<Metrics>,
}

impl<'a> Story<'a> {
    /// `state` is the state folder of a local server.
    fn open(
        journal: Option<&Path>,
        state: Option<&Path>,
        args: &cli::Run,
        config: &NodeConfig,
        platform: &Platform,
        clock: Option<fn() -> u64>,
        metrics: &'a Mutex<Metrics>,
    ) -> Result<Self> {
        let run = RunLine {
            at_ms: clock.map(|c| c()),
            policy: args.policy.clone(),
            platform: platform.name.clone(),
            bundle: args.bundle.as_ref().map(|b| b.display().to_string()),
            interval_ms: config.interval_ms,
            seed: config.seed,
            settings: config.settings.changed(),
            version: env!("CARGO_PKG_VERSION").into(),
        };
        let of_config = |e: Error| match &config.journal {
            Some(_) => e.of(&format!("{}: journal", config.file.display())),
            None => e,
        };
        let open = |p: &Path| Journal::open(p, config.journal_most_bytes, &run).map_err(of_config);
        let (journal, last_id) = journal.map(open).transpose()?.map_or((None, 0), |(j, last)| (Some(j), last));
        metrics.lock().unwrap_or_else(PoisonError::into_inner).about(&args.policy, platform, config.interval_ms);
        let hello = Hello {
            node: nix::sys::utsname::uname().map_or_else(|_| String::new(), |u| u.nodename().to_string_lossy().into()),
            policy: run.policy,
            platform: run.platform,
            interval_ms: run.interval_ms,
            version: run.version,
            run_at_ms: run.at_ms,
        };
        let upper = Upper::open(config, state, hello)?;
        Ok(Story { follower: Follower::new(last_id), journal, upper, inputs: Inputs::default(), clock, metrics })
    }

    /// Whether models are heard is told, too.
    fn with_models_of(self, bundle: Option<&Bundle>) -> Self {
        let inputs = Inputs::of(bundle);
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner).inputs(inputs.wanted());
        Story { inputs, ..self }
    }

    /// What was seen, wanted and done at one tick.
    fn tick(&mut self, t_ms: u64, seen: &Observation, mut plan: Plan, took: Took, refused: Option<&str>) {
        self.upper.tick(t_ms, seen, &plan, refused.is_some(), || self.clock.map(|c| c()));
        let mut m = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        self.inputs.tick(seen).iter().for_each(News::log);
        m.upper(self.upper.counts());
        m.tick(t_ms, seen, took);
        m.plan(&plan, refused.is_none());
        let reports = std::mem::take(&mut plan.reports);
        let told = self.follower.tick(t_ms, seen, plan, refused, || self.clock.map(|c| c()));
        m.tell(&told);
        drop(m);
        if let Some(j) = &mut self.journal {
            j.tell(t_ms, &told, &reports, refused);
        }
    }

    /// What has become of leases; mostly nothing.
    fn lends(&mut self, mut lines: Vec<LendLine>) {
        let Some(j) = self.journal.as_mut().filter(|_| !lines.is_empty()) else { return };
        let at_ms = self.clock.map(|c| c());
        lines.iter_mut().for_each(|l| l.at_ms = at_ms);
        j.lends(&lines);
    }

    /// How models do; mostly nothing.
    fn standings(&mut self, mut lines: Vec<StandingLine>) {
        let Some(j) = self.journal.as_mut().filter(|_| !lines.is_empty()) else { return };
        let at_ms = self.clock.map(|c| c());
        lines.iter_mut().for_each(|l| l.at_ms = at_ms);
        j.standings(&lines);
    }

    fn end(&mut self, t_ms: u64, seen: &Observation) {
        let closed = self.follower.end(t_ms, seen);
        if let Some(j) = &mut self.journal {
            j.end(&closed);
        }
    }
}

/// Who looks on: policies in the shadow, and the watch over the bundle's models, where there is a bundle.
struct LooksOn {
    shadows: Shadows,
    watch: Option<Watch>,
}

impl LooksOn {
    fn new(args: &cli::Run, config: &NodeConfig, platform: &Platform, bundle: Option<&Bundle>) -> Result<Self> {
        let shadows = shadows(args, config, platform, bundle)?;
        Ok(LooksOn { shadows, watch: watching::watch(bundle, platform, config.interval_ms)? })
    }
}

/// What is beside the loop: those who look on, and the recorders.
struct Beside {
    looks_on: LooksOn,
    stream: Option<stream::Writer>,
    events: Option<Recorder>,
    /// Services that come and go.
    absent: Absent,
    /// Recordings that ended before the run did. Control went on without them.
    failed: Vec<Error>,
}

/// What a node's configuration has it read.
pub(crate) fn read_by(config: &NodeConfig, profiles: Option<&Path>) -> Sources {
    let named = Sources::default().and("--config", Some(&config.file)).and("workload in node.toml", config.workload.as_deref());
    let named = named.and("catalogue in node.toml", config.catalogue.as_deref()).and("--profiles", profiles);
    named.and("learning.experience in node.toml", config.learning.experience.as_deref())
}

impl Beside {
    /// What the files hold stays until [`Beside::begin`].
    /// `server` is what that reads.
    fn open(looks_on: LooksOn, args: &cli::Run, config: &NodeConfig, server: &Sources, head: Head) -> Result<Self> {
        let read =
            read_by(config, args.profiles.as_deref()).with(server).with(&bundle_sources(args.bundle.as_deref(), args.trust.as_deref()));
        let outputs = [
            ("--stream", args.stream.as_deref()),
            ("--events", args.events.as_deref()),
            ("journal in node.toml", config.journal.as_deref()),
        ];
        each_its_own(&outputs)?;
        let stream = args.stream.as_deref().map(|f| stream::Writer::open(f, head, &read, args.overwrite)).transpose()?;
        let events = args.events.as_deref().map(|f| Recorder::open("--events", f, &read, args.overwrite)).transpose()?;
        Ok(Beside { looks_on, stream, events, absent: Absent::with(None, Waited::default()), failed: vec![] })
    }

    fn begin(&mut self) -> Result<()> {
        self.stream.as_mut().map_or(Ok(()), stream::Writer::begin)?;
        self.events.as_mut().map_or(Ok(()), Recorder::begin)
    }

    /// After the acting policy has decided; none of this reaches the machine.
    fn tick(&mut self, seen: &Observation, plan: &Plan) {
        let written = self.stream.as_mut().map(|w| w.tick(seen, plan));
        if let Some(Err(e)) = written {
            self.stream = None;
            self.fail(e);
        }
    }

    /// What the shadows say of it, once the acting policy's plan is in force: they may take their time, and learn. And how models do.
    fn look_on(&mut self, now_ms: u64, seen: &Observation, metrics: &Mutex<Metrics>) -> Result<Vec<StandingLine>> {
        let LooksOn { shadows, watch } = &mut self.looks_on;
        if !shadows.is_empty() {
            let said = shadows.step(seen.t_ms, seen).map_err(Error::Failed)?;
            let opinions = said.into_iter().map(|(name, o, _)| (name.to_string(), o));
            let mut m = metrics.lock().unwrap_or_else(PoisonError::into_inner);
            m.shadows(opinions);
            shadows.asked().for_each(|(name, asked)| m.ask(name, asked));
        }
        let Some(watch) = watch else { return Ok(vec![]) };
        let (news, took) = timed(|| watch.look(now_ms, seen));
        let Some(news) = news else { return Ok(vec![]) };
        metrics.lock().unwrap_or_else(PoisonError::into_inner).models(watching::statuses(watch), took);
        Ok(watching::tell(now_ms, news))
    }

    /// After the tick.
    fn events(&mut self, t_ms: u64, seen: &Observation, load: impl Fn(&str) -> Option<f64>) {
        let written = self.events.as_mut().map(|e| write_moments(e, t_ms, seen, load));
        if let Some(Err(e)) = written {
            self.events = None;
            self.fail(e);
        }
    }

    fn fail(&mut self, e: Error) {
        tracing::warn!("{e}. The run goes on without it");
        self.failed.push(e);
    }

    /// The recordings are whole, or it is said which is not.
    fn end(mut self) -> Result<()> {
        let stream = self.stream.as_mut().map_or(Ok(()), stream::Writer::end);
        let events = self.events.as_mut().map_or(Ok(()), Recorder::flush);
        self.failed.into_iter().next().map_or(Ok(()), Err).and(stream).and(events)
    }
}

/// Until it is to end; what to say of it.
fn control(
    args: &cli::Run,
    config: &NodeConfig,
    node: &mut Node,
    policy: &mut dyn Policy,
    mut learning: Option<&mut Learning>,
    story: &mut Story,
    beside: &mut Beside,
) -> Result<(serde_json::Value, Result<()>)> {
    let platform = node.server().platform().name.clone();
    let mut notifier = Notifier::from_env();
    let end_ms = node.end_ms(args.duration_s);
    let mut clock = Clock::new(config.interval_ms);
    let mut said = None;
    // Goes with this loop, however that ends: its threads lend no more then.
    let mut lending = Lending::new(&config.lends);
    beside.begin()?;
    loop {
        let ((now, mut seen), observe) = timed(|| clock.observe(node));
        seen.words = story.upper.words(now);
        let (plan, decide) = timed(|| policy.step(seen.t_ms, &seen));
        beside.tick(&seen, &plan);
        let (applied, apply) = if plan.is_empty() {
            (Ok(Default::default()), None)
        } else {
            let (applied, took) = timed(|| node.server().apply(&plan));
            (applied, Some(took))
        };
        let changed = applied.as_ref().map_or(vec![], |a| a.changed.clone());
        let refused = applied.err().map(|e| e.to_string());
        // The same words every tick say nothing new: /metrics counts them.
        if refused != said {
            if let Some(e) = &refused {
                tracing::warn!("plan not applied: {e}");
            }
            said.clone_from(&refused);
        }
        if let Node::Local(s) = &*node {
            // Once a second: nobody scrapes more often.
            if clock.ticks.is_multiple_of(10) {
                if let Some((before, now)) = s.cpus_changed() {
                    // Whoever comes next adopts what is in force, and goes by the CPUs that there are.
                    return Err(Error::Failed(format!("CPUs on line were {before} and are {now} now. Start it again (systemd does)")));
                }
                if let Some(what) = s.resctrl_changed() {
                    return Err(Error::Failed(format!("{what}. Start it again (systemd does)")));
                }
                story.metrics.lock().unwrap_or_else(PoisonError::into_inner).host(s);
            }
            // What was refused is known before what is placed is counted.
            if refused.is_some() || !seen.bounds.is_empty() {
                story.metrics.lock().unwrap_or_else(PoisonError::into_inner).limits(s.limits());
            }
        }
        if let (Node::Local(s), false) = (&mut *node, config.lends.is_empty()) {
            story.lends(lending.tick(now, &seen, s));
            story.metrics.lock().unwrap_or_else(PoisonError::into_inner).lends(lending.status());
        }
        let (learnt, learn) = timed(|| policy.between());
        let learn = learnt.then_some(learn);
        let standings = beside.look_on(now, &seen, story.metrics)?;
        story.standings(standings);
        if let Some(asked) = policy.asked() {
            story.metrics.lock().unwrap_or_else(PoisonError::into_inner).ask(policy.name(), asked);
        }
        story.tick(now, &seen, plan, Took { observe, decide, apply, learn }, refused.as_deref());
        if !changed.is_empty() {
            story.metrics.lock().unwrap_or_else(PoisonError::into_inner).placed(changed);
        }
        if let Some(l) = &mut learning {
            if let Some(progress) = l.tick(now) {
                story.metrics.lock().unwrap_or_else(PoisonError::into_inner).learning(progress);
            }
        }
        beside.events(now, &seen, |id| node.load_at(id, now));
        if clock.ticks == 0 {
            let pods = beside.absent.pods.as_ref().map_or(0, |p| p.services().len());
            let (here, all) = (seen.services.len(), node.services(config) + pods);
            let of = if here < all { format!("{here} of ") } else { String::new() };
            tracing::info!("{} on {platform}: {of}{all} {}", policy.name(), if all == 1 { "service" } else { "services" });
            notifier.ready(&format!("{} on {platform}", policy.name()));
        }
        notifier.alive();
        if let Some(ids) = beside.absent.look(now, node, config, Purpose::Control) {
            let mut metrics = story.metrics.lock().unwrap_or_else(PoisonError::into_inner);
            metrics.absent(ids);
            metrics.pods_list(beside.absent.pods.as_ref().and_then(Pods::list_age));
            drop(metrics);
            if let Some(pods) = &beside.absent.pods {
                pods.tell(&story.upper.in_force());
            }
        }
        if stop::requested() || end_ms.is_some_and(|e| now >= e) {
            story.lends(lending.end(now));
            story.end(now, &seen);
            break;
        }
        clock.advance(node);
    }
    notifier.stopping();
    let m = story.metrics.lock().unwrap_or_else(PoisonError::into_inner);
    let violation_s: serde_json::Map<_, _> =
        m.violation_ms().iter().map(|(id, ms)| (id.clone(), json!(ms.map(|ms| ms as f64 / 1000.0)))).collect();
    let cost = own();
    let bounded = |l: &Limit| json!({ "service": l.service, "value": l.value.name(), "cause": l.cause, "remedy": l.remedy });
    let bounded: Vec<serde_json::Value> = m.bounded().iter().map(bounded).collect();
    let unplaced = none_unplaced(&m);
    let of = |a: &Asked| {
        let held: serde_json::Map<_, _> = Held::ALL.iter().zip(a.held).map(|(why, n)| (why.as_str().into(), json!(n))).collect();
        json!({ "decisions": a.decisions, "held": held, "discarded": a.discarded, "connections": a.connections })
    };
    let asked: serde_json::Map<_, _> = m.asked().iter().map(|(name, a)| (name.clone(), of(a))).collect();
    let summary = json!({
        "policy": policy.name(), "platform": platform, "ticks": clock.ticks, "qos_violation_s": violation_s,
        "phases": m.phases().json(), "cpu_s": cost.cpu_s, "rss_bytes": cost.rss_bytes, "learning": learning.map(|l| l.json()),
        "shadows": m.shadowed(), "models": m.watched(), "bounded": bounded, "never_placed": m.never_placed(),
        "late_ticks": m.late_ticks(), "asked": asked,
    });
    Ok((summary, unplaced))
}

/// One line per service: what the report draws.
fn write_moments(e: &mut Recorder, t_ms: u64, seen: &Observation, load: impl Fn(&str) -> Option<f64>) -> Result<()> {
    for (m, s) in moments(seen, load).zip(&seen.services) {
        let mut line = json!({
            "t_ms": t_ms, "service": m.service, "kind": if m.is_lc { "lc" } else { "be" }, "p99_ms": m.p99_ms, "qos_target_ms": m.qos_target_ms,
            "load": m.load, "achieved_rps": s.window.map(|w| w.achieved_rps), "count": s.window.map(|w| w.count),
            "instr_per_s": m.instr_per_s, "feed": s.feed.as_str(), "doubt": s.feed.doubt().map(|d| d.as_str()), "features": s.features,
        });
        for (q, value) in QUANTITIES.iter().zip(m.held) {
            // A limit that is not there has no field.
            if let Some(value) = q.in_column(value) {
                line[q.key] = if q.number == Number::Real { json!(value) } else { json!(value as u64) };
            }
        }
        e.line(&line)?;
    }
    // Ten times a second is often enough for whoever follows the file.
    e.flush()
}
