//! Pods of a Kubernetes node while the daemon runs (docs/kubernetes.md): a thread looks at the list, the control loop takes what it found.
//!
//! The loop never waits for the list. A list that cannot be had leaves things as they are, and is said once; pods that go are let go
//! when their cgroup does, or at once where an annotation no longer asks for them.

use super::upper::conditions::Event;
use super::upper::What;
use crate::base::files::write_whole;
use crate::base::utc;
use crate::stage::config::{FeedConfig, How, NodeService, PodsConfig};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use surefoot_linux::pods::source::{look, Found, Source};
use surefoot_linux::{Root, Target};

/// The condition of a node, by its type.
const CONDITION: &str = "SurefootPressure";
/// Longest message of a condition, bytes.
const MOST_MESSAGE: usize = 1000;
/// A list that has not been written for so long is old, s; or for so many looks, where these are rare. The companion of the manifest
/// writes every 5 s.
const OLD_S: u64 = 60;
const OLD_LOOKS: u64 = 3;

/// A service, as [[service]] would have it.
fn service(f: Found) -> NodeService {
    NodeService {
        id: f.wanted.id,
        service: f.wanted.service,
        threads: f.wanted.threads,
        how: How::Adopt { kind: f.wanted.kind, target: Target::Cgroup(f.cgroup.into()) },
        prometheus: None,
        feed: FeedConfig::default(),
    }
}

/// What was said already: the same words every few seconds say nothing new.
#[derive(Default)]
struct Said(BTreeSet<String>);

impl Said {
    /// Log what is new; what is over may be said again.
    fn log(&mut self, all: BTreeSet<String>) {
        all.difference(&self.0).for_each(|word| tracing::warn!("{word}"));
        self.0 = all;
    }
}

/// The word on a list that nobody writes any more: what is held goes on by it, and new pods are not seen. It does not say the age itself,
/// which would make it another word each time; that is a metric.
fn old(config: &PodsConfig, age: Option<Duration>) -> Option<String> {
    let limit = Duration::from_secs(OLD_S.max(OLD_LOOKS * config.every_s));
    age.filter(|age| *age > limit).map(|_| {
        format!(
            "pods: {}: has not been written for {} s: pods that came since are not seen. Look why its companion does not write it \
             (docs/kubernetes.md)",
            config.source,
            limit.as_secs()
        )
    })
}

/// A look, as services; nothing where the list cannot be had.
fn services(config: &PodsConfig, root: &Root, said: &mut Said) -> Option<Vec<NodeService>> {
    match look(&config.source, &config.below, root) {
        Ok((found, refused)) => {
            let old = old(config, config.source.age(SystemTime::now()));
            said.log(refused.iter().map(ToString::to_string).chain(old).collect());
            Some(found.into_iter().map(service).collect())
        }
        Err(e) => {
            said.log(BTreeSet::from([format!("pods: {e}")]));
            None
        }
    }
}

/// Services of a list that is looked at once: for commands that only look.
pub fn once(config: &PodsConfig) -> Vec<NodeService> {
    services(config, &Root::default(), &mut Said::default()).unwrap_or_default()
}

/// Those that are not there any more, or not as they were.
fn let_go(before: &[NodeService], now: &[NodeService]) -> Vec<String> {
    before.iter().filter(|b| !now.contains(b)).map(|b| b.id.clone()).collect()
}

/// A word on what cannot be solved here: the condition, service, why.
type Word = (What, String, String);

/// The patch of a node's status.
///
/// `since_ms` is when its status began.
fn condition(words: &[Word], since_ms: u64, now_ms: u64) -> serde_json::Value {
    let stamp = |ms| utc::text(ms).replace(' ', "T") + "Z";
    let pressing = |w: &&Word| matches!(w.0, What::CannotPlace | What::Migrate);
    let worst = words.iter().filter(pressing).map(|w| w.0).min();
    let reason = match worst {
        Some(What::CannotPlace) => "CannotPlace",
        Some(_) => "Migrate",
        None => "ServicesHeld",
    };
    let mut message =
        words.iter().filter(pressing).map(|(what, id, why)| format!("{id}: {}: {why}", what.as_str())).collect::<Vec<_>>().join("; ");
    if message.is_empty() {
        message = "every service is placed, and none has to leave".into();
    }
    while message.len() > MOST_MESSAGE {
        message.pop();
    }
    json!({ "status": { "conditions": [{
        "type": CONDITION, "status": if worst.is_some() { "True" } else { "False" }, "reason": reason, "message": message,
        "lastHeartbeatTime": stamp(now_ms), "lastTransitionTime": stamp(since_ms),
    }] } })
}

/// Pods that are services, kept up to date by a thread.
pub struct Pods {
    here: Vec<NodeService>,
    latest: Arc<Mutex<Option<Vec<NodeService>>>>,
    words: Arc<Mutex<Vec<Word>>>,
    named: BTreeSet<String>,
    said: Said,
    source: Source,
}

impl Pods {
    /// `named` are ids of the configuration, which no pod may have.
    pub fn start(config: &PodsConfig, named: impl Iterator<Item = String>) -> std::io::Result<Self> {
        let root = Root::default();
        let (mut said, latest, words) = (Said::default(), Arc::new(Mutex::default()), Arc::new(Mutex::default()));
        let first = services(config, &root, &mut said).unwrap_or_default();
        tracing::info!("pods: {} of {} are services here", first.len(), config.source);
        let mut pods = Pods {
            here: vec![],
            latest: Arc::clone(&latest),
            words: Arc::clone(&words),
            named: named.collect(),
            said: Said::default(),
            source: config.source.clone(),
        };
        pods.here = pods.ours(first);
        let config = config.clone();
        std::thread::Builder::new().name("pods".into()).spawn(move || watch(&config, &root, said, &latest, &words))?;
        Ok(pods)
    }

    fn ours(&mut self, mut all: Vec<NodeService>) -> Vec<NodeService> {
        let taken = |s: &NodeService| self.named.contains(&s.id);
        let word = |s: &NodeService| format!("pod {0}: {0:?} is the id of a [[service]], too. Give the pod another with surefoot/id", s.id);
        let words = all.iter().filter(|s| taken(s)).map(word).collect();
        all.retain(|s| !taken(s));
        self.said.log(words);
        all
    }

    pub fn services(&self) -> &[NodeService] {
        &self.here
    }

    /// Take what was found since; the ids of those that are to be let go.
    pub fn refresh(&mut self) -> Vec<String> {
        let Some(now) = self.latest.lock().unwrap_or_else(PoisonError::into_inner).take() else { return vec![] };
        let now = self.ours(now);
        let gone = let_go(&self.here, &now);
        self.here = now;
        gone
    }

    /// For how long the list has been as it is; None where it is no file.
    pub fn list_age(&self) -> Option<Duration> {
        self.source.age(SystemTime::now())
    }

    /// What upper schedulers are told.
    pub fn tell(&self, in_force: &[&Event]) {
        let words = in_force.iter().map(|e| (e.event, e.service.clone(), e.why.clone())).collect();
        *self.words.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }
}

fn watch(config: &PodsConfig, root: &Root, mut said: Said, latest: &Mutex<Option<Vec<NodeService>>>, words: &Mutex<Vec<Word>>) {
    let (mut was, mut since_ms, mut failed) = (None, utc::now_ms(), false);
    loop {
        if let Some(path) = &config.condition {
            let now_ms = utc::now_ms();
            let words = words.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let pressed = words.iter().any(|w| matches!(w.0, What::CannotPlace | What::Migrate));
            if was != Some(pressed) {
                (was, since_ms) = (Some(pressed), now_ms);
            }
            let wrote = write_whole(path, format!("{}\n", condition(&words, since_ms, now_ms)).as_bytes());
            if let (Err(e), false) = (&wrote, failed) {
                tracing::warn!("pods.condition: {e}");
            }
            failed = wrote.is_err();
        }
        std::thread::sleep(Duration::from_secs(config.every_s));
        if let Some(now) = services(config, root, &mut said) {
            *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_server::Kind;

    fn a_service(id: &str, kind: Kind) -> NodeService {
        let how = How::Adopt { kind, target: Target::Cgroup(format!("/kubepods/pod{id}").into()) };
        NodeService { id: id.into(), service: id.into(), threads: None, how, prometheus: None, feed: FeedConfig::default() }
    }

    /// A pod that is not asked for any more is let go, one with another target too; the others stay.
    #[test]
    fn what_changes_is_let_go() {
        let lc = |t| Kind::Lc { qos_target_ms: t };
        let before = [a_service("a", lc(10.0)), a_service("b", lc(10.0)), a_service("c", Kind::Be)];
        let now = [a_service("a", lc(10.0)), a_service("b", lc(20.0)), a_service("d", Kind::Be)];
        assert_eq!(let_go(&before, &now), ["b", "c"]);
    }

    /// A list that its companion writes every few seconds is old after a minute, one that is looked at rarely later; a page never.
    #[test]
    fn an_old_list_is_said() {
        let config = |every_s| PodsConfig { source: Source::File("/run/pods.json".into()), every_s, below: "/".into(), condition: None };
        let said = |every_s, age_s| old(&config(every_s), Some(Duration::from_secs(age_s)));
        assert_eq!(said(5, 60), None);
        let word = said(5, 61).unwrap();
        assert!(word.starts_with("pods: /run/pods.json: has not been written for 60 s: "), "{word}");
        assert_eq!(said(5, 3000).unwrap(), word, "the same word: it is said once");
        assert_eq!((said(100, 300), said(100, 301).is_some()), (None, true));
        assert_eq!(old(&config(5), None), None);
    }

    /// The patch says the worst that is in force; what asks nothing of a scheduler does not make the condition true.
    #[test]
    fn the_condition_is_the_worst() {
        let word = |what, id: &str| (what, id.to_string(), "no room".to_string());
        let of = |words: &[Word]| {
            let c = condition(words, 0, 60_000)["status"]["conditions"][0].clone();
            (
                c["status"].as_str().unwrap().to_string(),
                c["reason"].as_str().unwrap().to_string(),
                c["message"].as_str().unwrap().to_string(),
            )
        };
        assert_eq!(of(&[]).0, "False");
        let (status, reason, _) = of(&[word(What::ExpectedSlowdown, "a"), word(What::Withheld, "b")]);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "ServicesHeld"));
        let (status, reason, message) = of(&[word(What::Migrate, "a"), word(What::CannotPlace, "b")]);
        assert_eq!(
            (status.as_str(), reason.as_str(), message.as_str()),
            ("True", "CannotPlace", "a: migrate: no room; b: cannot-place: no room")
        );
        let c = &condition(&[], 0, 60_000)["status"]["conditions"][0];
        assert_eq!((c["type"].as_str(), c["lastTransitionTime"].as_str()), (Some("SurefootPressure"), Some("1970-01-01T00:00:00Z")));
        assert_eq!(c["lastHeartbeatTime"], "1970-01-01T00:01:00Z");
        let long = [(What::Migrate, "é".repeat(2000), String::new())];
        assert!(of(&long).2.len() <= MOST_MESSAGE);
    }
}
