//! `surefootd replay`: policies decide on a recorded stream (docs/shadow.md).

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::say;
use crate::line;
use crate::node::learning;
use crate::node::stream::{self, Head};
use crate::node::tally::{Shadowed, Tally};
use crate::stage::config::{LearningConfig, NodeConfig};
use crate::stage::models::{each_once, load_bundle, shadow_makers};
use serde_json::json;
use sha2::{Digest, Sha256};
use surefoot_learn::{Bundle, Expect, NeededBy};
use surefoot_policy::pace::Pace;
use surefoot_policy::{Policy, Settings, Shadows};
use surefoot_server::{Observation, Plan};

/// # Errors
/// [`Error::BadInput`] for a stream, bundle or policy; [`Error::Failed`] where the policy that acted decides otherwise now.
pub fn run(args: &cli::Replay) -> Result<()> {
    each_once("--policies", &args.policies)?;
    let (head, moments) = stream::read(&args.stream, args.cut)?;
    let expected = expected(&head);
    let bundle = args.bundle.as_deref().map(|b| load_bundle(b, args.trust.as_deref(), &expected)).transpose()?;
    check(&args.stream, &head, bundle.as_ref())?;
    let wrong = |e| Error::BadInput(format!("{}: {e}", args.stream.display()));
    let mut settings = Settings::of(&head.settings).map_err(wrong)?;
    settings.pace = Pace::every(head.interval_ms).map_err(|e| wrong(format!("interval_ms: {e}")))?;
    let mut acting = again(&head, bundle.as_ref(), &settings)?;
    let (makers, judge) = shadow_makers(&args.policies, &head.platform, bundle.as_ref(), &settings, head.seed)?;
    let mut shadows = Shadows::new(makers, judge).map_err(Error::BadInput)?;
    let mut tallies: Vec<Tally> = args.policies.iter().map(|_| Tally::default()).collect();
    let (mut ticks, mut plans, mut differ, mut first) = (0u64, 0u64, 0u64, None);
    let (mut begin, mut missing) = (None, 0);
    // Of all decisions, however many there are.
    let mut decisions = Sha256::new();
    for moment in moments {
        let m = moment?;
        ticks += 1;
        let now = m.seen.t_ms;
        missing = missed(now - *begin.get_or_insert(now), head.interval_ms, ticks);
        let plan = acting.step(now, &m.seen);
        acting.between();
        plans += u64::from(plan.is_step());
        decisions.update(serde_json::to_vec(&plan.allocations(&m.seen)).map_err(|e| Error::Failed(e.to_string()))?);
        decisions.update(b"\n");
        if !same(&m.seen, &plan, &m.plan) {
            differ += 1;
            first.get_or_insert(now);
        }
        for ((_, o, _), t) in shadows.step(now, &m.seen).map_err(Error::Failed)?.iter().zip(&mut tallies) {
            t.add(o);
        }
    }
    let others: Vec<Shadowed> = args.policies.iter().zip(&tallies).map(|(p, t)| t.of(p)).collect();
    let digest: String = decisions.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if args.json {
        let v = json!({ "policy": head.policy, "platform": head.platform.name, "ticks": ticks, "ticks_missing": missing,
                        "ticks_with_a_plan": plans, "ticks_that_differ": differ, "decisions_sha256": digest, "shadows": others });
        say::json(&v)?;
    } else {
        let mut page = String::new();
        let gaps = if missing > 0 { format!(" ({missing} missing)") } else { String::new() };
        line!(page, "{} on {}: {ticks} ticks{gaps}, {plans} with a plan, {differ} decided otherwise now", head.policy, head.platform.name);
        line!(page, "decisions: sha256 {digest}");
        if !others.is_empty() {
            line!(
                page,
                "{:<16} {:>12} {:>10} {:>18} {:>16} {:>12}",
                "policy",
                "ticks: plan",
                "otherwise",
                "cores otherwise",
                "ways otherwise",
                "regret QoS"
            );
        }
        for o in others {
            let regret = o.regret_qos.map_or("-".to_string(), |r| format!("{r:.3}"));
            let (share, cores, ways) = (100.0 * o.disagreement_frac, o.disagreement_cores, o.disagreement_ways);
            line!(page, "{:<16} {:>12} {share:>8.1} % {cores:>18.2} {ways:>16.2} {regret:>12}", o.policy, o.ticks_with_a_plan);
        }
        say::print(&page)?;
    }
    match first {
        None => Ok(()),
        Some(t) => Err(Error::Failed(format!(
            "{}: {} decides otherwise than it did, first at {t} ms. Another version ({} recorded it), a stream that was \
             changed or is not whole, or a fault of surefootd",
            args.stream.display(),
            head.policy,
            head.version
        ))),
    }
}

/// Two plans are the same where they say the same and come to the same: a plan may name what stays as it is.
fn same(seen: &Observation, a: &Plan, b: &Plan) -> bool {
    a == b
        || (&a.actions, &a.reports) == (&b.actions, &b.reports) && a.layout(seen) == b.layout(seen) && a.changes.keys().eq(b.changes.keys())
}

/// Ticks that there was time for from the first to the last and that are not there. Over all of it, as a host's are a little early or late.
fn missed(took_ms: u64, interval_ms: u64, ticks: u64) -> u64 {
    let steps = took_ms.saturating_add(interval_ms / 2) / interval_ms.max(1);
    steps.saturating_sub(ticks - 1)
}

/// A stream has its platform in it: only the bundle can be another one.
fn expected(head: &Head) -> Expect {
    let who = format!("`{}` of the stream", head.platform.name);
    // Where others held ways alone the platform had fewer than the hardware, which is what a bundle is of.
    let expect = Expect { ways: None, ..Expect::platform(&head.platform) };
    match head.bundle {
        // That it is the same one, and so of the feature set, is looked at in `check`.
        Some(_) => {
            let remedy = "Give the bundle that the stream was recorded with".into();
            Expect { needed_by: Some(NeededBy { who, remedy }), ..expect }
        }
        None => {
            let remedy = format!("Give one from data of `{}` (`surefoot bundle build`)", head.platform.name);
            Expect { needed_by: Some(NeededBy { who, remedy }), ..expect.feature_set(&head.feature_set) }
        }
    }
}

/// What cannot be replayed is refused before anything is decided.
fn check(file: &std::path::Path, head: &Head, bundle: Option<&Bundle>) -> Result<()> {
    let wrong = |what: String| Err(Error::BadInput(format!("{}: {what}", file.display())));
    match (&head.bundle, bundle) {
        (Some(was), Some(is)) if *was != is.digest => {
            wrong("it was recorded with another bundle. Give the one of the run with --bundle".to_string())
        }
        (Some(_), None) => wrong("it was recorded with a bundle. Give it with --bundle".into()),
        _ if head.resumed_experience => {
            wrong("learning went on from experience of an earlier run, which a stream does not hold. Record with a fresh state folder, or with learning off ([learning] in node.toml)".into())
        }
        _ => Ok(()),
    }
}

/// The policy that acted, as it began.
fn again(head: &Head, bundle: Option<&Bundle>, settings: &Settings) -> Result<Box<dyn Policy>> {
    let config = LearningConfig { on: head.learns, every_ms: head.learn_every_ms, ..NodeConfig::none().learning };
    Ok(learning::policy(&head.policy, &head.platform, bundle, head.seed, &config, settings, None)?.0)
}
