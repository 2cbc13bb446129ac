//! On-line learning in the daemon: whether Model-C learns, its experience across restarts, and what became of its updates.
//!
//! The policy says what was experienced and when to learn ([`surefoot_policy::Models`]); here is what a policy must not do: files,
//! log and metrics. Nothing that goes wrong here stops the control loop.

use super::config::LearningConfig;
use super::metrics::Metrics;
use crate::error::Result;
use crate::models::{self, SharedModels};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use surefoot_learn::guard::Score;
use surefoot_learn::{Agent, Bundle, Counts, ExperienceError};
use surefoot_policy::osml_plus::Settings;
use surefoot_policy::{learns, Policy};
use surefoot_server::Platform;

/// The experience file in a state folder.
pub const EXPERIENCE: &str = "experience.safetensors";

/// How far Model-C has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// In the weights; those of a refused window are not.
    pub steps: u64,
    pub counts: Counts,
    /// Transitions in the pool, and held back for the guard.
    pub pool: usize,
    pub held: usize,
}

impl Progress {
    fn of(agent: &Agent) -> Self {
        Progress { steps: agent.steps(), counts: agent.counts(), pool: agent.remembered(), held: agent.held_back() }
    }
}

/// Model-C of the running policy, while it learns.
pub struct Learning {
    models: SharedModels,
    /// Digest of the bundle whose scaling the experience has.
    bundle: String,
    file: Option<PathBuf>,
    save_every_ms: u64,
    saved_ms: u64,
    /// Transitions seen when the file was last written or read.
    saved_seen: u64,
    writer: Option<JoinHandle<std::result::Result<(), ExperienceError>>>,
    /// Why the last save failed, so that it is said once.
    unsaved: Option<String>,
    loaded: usize,
    last: Progress,
    /// Windows refused since the last that was kept.
    refused: u64,
}

/// The policy of a run, and its learning where it learns.
///
/// # Errors
/// See [`models::policy`].
pub fn policy(
    name: &str,
    platform: &Platform,
    bundle: Option<&Bundle>,
    seed: u64,
    config: &LearningConfig,
    state: Option<&Path>,
) -> Result<(Box<dyn Policy>, Option<Learning>)> {
    let Some(bundle) = bundle.filter(|_| learns(name)) else {
        return Ok((models::policy(name, platform, bundle, seed)?, None));
    };
    let shared = SharedModels::new(bundle, platform, config.on)?;
    let settings = Settings { learn_every_ms: config.every_ms, ..Settings::default() };
    let policy = models::policy_of(name, platform, shared.clone(), settings, seed)?;
    let file = config.experience.clone().or_else(|| Some(state?.join(EXPERIENCE)));
    let learning = config.on.then(|| Learning::open(shared, &bundle.digest, config, file));
    Ok((policy, learning))
}

impl Learning {
    /// Go on with the experience in `file`, where there is any. What cannot be used is said in one line, and left out.
    fn open(models: SharedModels, bundle: &str, config: &LearningConfig, file: Option<PathBuf>) -> Self {
        let found = file.as_deref().filter(|f| f.symlink_metadata().is_ok());
        let loaded = found.map_or(0, |f| match models.agent_mut(|a| a.load_experience(f, bundle)) {
            Ok(n) => {
                tracing::info!("learning: goes on with {n} transitions of earlier runs from {}", f.display());
                n
            }
            Err(e) => {
                tracing::warn!("learning: {e}");
                0
            }
        });
        let (last, saved_seen) = models.agent(|a| (Progress::of(a), a.seen()));
        Learning {
            models,
            bundle: bundle.into(),
            file,
            save_every_ms: config.save_every_s * 1000,
            saved_ms: 0,
            saved_seen,
            writer: None,
            unsaved: None,
            loaded,
            last,
            refused: 0,
        }
    }

    /// After each tick: log, metrics, and the file when its time has come.
    pub fn tick(&mut self, now_ms: u64, metrics: &Mutex<Metrics>) {
        let (now, score) = self.models.agent(|a| (Progress::of(a), a.last_score()));
        if now != self.last || now_ms == 0 {
            if let Some((warn, line)) = news(&self.last.counts, &now.counts, score, &mut self.refused) {
                if warn {
                    tracing::warn!("{line}");
                } else {
                    tracing::info!("{line}");
                }
            }
            self.last = now;
            metrics.lock().unwrap_or_else(PoisonError::into_inner).learning(now);
        }
        if now_ms >= self.saved_ms + self.save_every_ms {
            self.saved_ms = now_ms;
            self.save_aside();
        }
    }

    /// The last save. Waits for it.
    pub fn end(&mut self) {
        self.collect(true);
        let Some(file) = &self.file else { return };
        let done = self.models.agent(|a| if a.seen() == self.saved_seen { Ok(()) } else { a.save_experience(file, &self.bundle) });
        self.said(done);
    }

    /// Write in a thread of its own: the disk may be slow, and the control loop must not wait for it.
    fn save_aside(&mut self) {
        self.collect(false);
        let Some(file) = self.file.clone().filter(|_| self.writer.is_none()) else { return };
        let (agent, bundle) = match self.models.agent(|a| (a.seen() != self.saved_seen).then(|| a.clone())) {
            Some(agent) => (agent, self.bundle.clone()),
            None => return,
        };
        let seen = agent.seen();
        match Builder::new().name("experience".into()).spawn(move || agent.save_experience(&file, &bundle)) {
            Ok(writer) => (self.writer, self.saved_seen) = (Some(writer), seen),
            Err(e) => tracing::warn!("learning: experience is not saved now: {e}"),
        }
    }

    /// What became of the writer, if it is done or is to be waited for.
    fn collect(&mut self, wait: bool) {
        if let Some(writer) = self.writer.take_if(|w| wait || w.is_finished()) {
            if let Ok(done) = writer.join() {
                self.said(done);
            }
        }
    }

    fn said(&mut self, done: std::result::Result<(), ExperienceError>) {
        let Err(e) = done else {
            self.unsaved = None;
            return;
        };
        // What is not on the disk is not saved, however old.
        self.saved_seen = u64::MAX;
        let line = e.to_string();
        if self.unsaved.as_ref() != Some(&line) {
            tracing::warn!("learning: {line}");
            self.unsaved = Some(line);
        }
    }

    /// For the last line of a run.
    pub fn json(&self) -> Value {
        let Progress { steps, counts, pool, held } = self.last;
        json!({
            "steps": steps, "windows_kept": counts.kept, "windows_refused": counts.refused, "windows_unjudged": counts.unjudged,
            "steps_broken": counts.broken, "transitions": pool + held, "transitions_loaded": self.loaded,
            "transitions_left_out": counts.left_out,
        })
    }
}

/// What is new about updates, and whether it is a warning: the first window refused of several in a row, and the first kept again.
fn news(before: &Counts, now: &Counts, score: Option<Score>, refused: &mut u64) -> Option<(bool, String)> {
    let more = now.refused - before.refused;
    if more > 0 {
        *refused += more;
        let s = score.unwrap_or_default();
        let of = format!(
            "error of the Q-values {:.3} -> {:.3}, worth of the policy {:.3} -> {:.3} on held-back experience",
            s.td_before, s.td_after, s.worth_before, s.worth_after
        );
        let line = format!("learning: an update of Model-C is refused, its weights are as before: {of}. /metrics counts further ones");
        return (*refused == more).then_some((true, line));
    }
    if now.broken > before.broken && before.broken == 0 {
        return Some((true, "learning: a step of Model-C was not finite and is withdrawn. /metrics counts further ones".into()));
    }
    if now.kept > before.kept && *refused > 0 {
        let n = std::mem::take(refused);
        return Some((false, format!("learning: updates of Model-C are kept again, after {n} refused")));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_learn::rng::Rng;
    use surefoot_learn::{one_hot, Expect, TrustedKeys};

    /// Learning of the small test bundle's Model-C.
    fn learning(file: &Path) -> Learning {
        let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors");
        let keys = TrustedKeys::load(&vectors.join("keys/trusted")).unwrap();
        let bundle = Bundle::load(&vectors.join("bundle-small"), &keys, &Expect::default()).unwrap();
        let models = SharedModels::new(&bundle, &Platform::regular("t", 18, 2, 20, 2.25), true).unwrap();
        let config = LearningConfig { save_every_s: 10, ..LearningConfig::default() };
        Learning::open(models, &bundle.digest, &config, Some(file.into()))
    }

    /// Windows that the guard refuses, steps and experience are in /metrics and in the last line; the file is written when its time
    /// has come and goes on in the next run.
    #[test]
    fn metrics_and_file_follow_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.safetensors");
        let mut l = learning(&file);
        let metrics = Mutex::new(Metrics::default());
        assert!(!metrics.lock().unwrap().text().contains("surefoot_learning"), "where nothing learns there is nothing to say");
        l.models.agent_mut(|a| {
            // Rewards are noise: nothing that is learnt of them holds on held-back experience for long.
            let mut rng = Rng::new(3);
            for i in 0..600 {
                let mut state = || (0..8).map(|_| rng.uniform() as f32).collect::<Vec<f32>>();
                let (s, s2) = (state(), state());
                assert!(a.remember(&s, &one_hot(i % 7), 3.0 * s2[0], &s2));
            }
            assert!(!a.remember(&[2.0; 8], &one_hot(0), 1.0, &[0.0; 8]));
            a.guard.tolerance = 0.0;
            for _ in 0..16 * 100 {
                a.learn_step().unwrap().unwrap();
            }
        });
        l.tick(10_000, &metrics);
        let said = l.json();
        assert!(said["windows_refused"].as_u64().unwrap() > 0 && said["windows_kept"].as_u64().unwrap() > 0, "{said}");
        let text = metrics.lock().unwrap().text();
        for (name, value) in [
            ("surefoot_learning_steps", &said["steps"]),
            ("surefoot_learning_windows_total{verdict=\"kept\"}", &said["windows_kept"]),
            ("surefoot_learning_windows_total{verdict=\"refused\"}", &said["windows_refused"]),
            ("surefoot_learning_broken_steps_total", &json!(0)),
            ("surefoot_experience_transitions{part=\"pool\"}", &json!(525)),
            ("surefoot_experience_transitions{part=\"held_back\"}", &json!(75)),
            ("surefoot_experience_left_out_total", &json!(1)),
        ] {
            assert!(text.lines().any(|line| line == format!("{name} {value}")), "{name} {value}: {text}");
        }
        l.collect(true);
        let again = learning(&file);
        assert_eq!((again.loaded, again.json()["transitions"].as_u64()), (600, Some(600)));
    }

    /// Of refused windows in a row the first is told with its grounds, and then that updates are kept again; of broken steps the
    /// first ever.
    #[test]
    fn what_the_guard_refuses_is_told_once() {
        let counts = |kept, refused, broken| Counts { kept, refused, broken, ..Counts::default() };
        let score = Some(Score { td_before: 0.25, td_after: 0.5, worth_before: 2.0, worth_after: 1.0, scale: 1.0 });
        let mut refused = 0;
        let mut told = |before: Counts, now: Counts| news(&before, &now, score, &mut refused);
        assert_eq!(told(counts(0, 0, 0), counts(1, 0, 0)), None);
        let (warn, line) = told(counts(1, 0, 0), counts(1, 1, 0)).unwrap();
        assert!(warn && line.contains("0.250 -> 0.500") && line.contains("2.000 -> 1.000") && line.contains("as before"), "{line}");
        assert_eq!(told(counts(1, 1, 0), counts(1, 2, 0)), None);
        let (warn, line) = told(counts(1, 2, 0), counts(2, 2, 0)).unwrap();
        assert!(!warn && line.ends_with("after 2 refused"), "{line}");
        assert_eq!(told(counts(2, 2, 0), counts(3, 2, 0)), None);
        assert!(told(counts(3, 2, 0), counts(3, 3, 0)).unwrap().0, "and told again the next time");
        assert!(told(counts(3, 3, 0), counts(3, 3, 1)).unwrap().1.contains("not finite"));
        assert_eq!(told(counts(3, 3, 1), counts(3, 3, 2)), None);
    }
}
