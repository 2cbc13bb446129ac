//! On-line learning in the daemon: whether Model-C learns, its experience across restarts, and what became of its updates.
//!
//! The policy says what was experienced and when to learn ([`surefoot_policy::Models`], [`surefoot_policy::OsmlModels`]); here is what a policy must not do: files,
//! log and metrics. Nothing that goes wrong here stops the control loop.

use crate::base::error::{Error, Result};
use crate::stage::config::LearningConfig;
use crate::stage::models::{self, HasLearner, Shared};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};
use surefoot_learn::experience::{is_experience, MAX_FILE_BYTES};
use surefoot_learn::guard::Score;
use surefoot_learn::learner::Nets;
use surefoot_learn::{Bundle, Counts, ExperienceError, Learner};
use surefoot_linux::own::{self, Folder};
use surefoot_policy::{learns, BundleModels, BundleOsml, Family, ModelSet, Policy, Settings};
use surefoot_server::Platform;

/// The experience file in a state folder, of OSML+'s Model-C and of OSML's: neither could use the other's.
pub const EXPERIENCE: &str = "experience.safetensors";
pub const EXPERIENCE_OSML: &str = "experience-osml.safetensors";

/// Enough of a file to know it by.
const HEAD_BYTES: usize = 64 << 10;

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
    fn of<N: Nets>(agent: &Learner<N>) -> Self {
        Progress { steps: agent.steps(), counts: agent.counts(), pool: agent.remembered(), held: agent.held_back() }
    }
}

/// What writes experience that was taken from a Model-C: to a file, of a bundle.
type Writer = Box<dyn FnOnce(&Path, &str) -> std::result::Result<(), ExperienceError> + Send>;

/// A Model-C of either kind, as far as the daemon cares.
trait Pupil {
    fn progress(&self) -> Progress;
    fn score(&self) -> Option<Score>;
    /// Transitions remembered so far.
    fn seen(&self) -> u64;
    fn load(&self, file: &Path, bundle: &str) -> std::result::Result<usize, ExperienceError>;
    fn save(&self, file: &Path, bundle: &str) -> std::result::Result<(), ExperienceError>;
    /// Its experience as it is now, for another thread.
    fn writer(&self) -> Writer;
}

fn failed(file: &Path, what: &str, e: &std::io::Error) -> ExperienceError {
    let (cause, remedy) = own::cause_and_remedy(e, "Check the folder's rights and room");
    ExperienceError::new(file, format!("experience cannot be {what}: {cause}"), &remedy)
}

fn read(file: &Path) -> std::result::Result<Vec<u8>, ExperienceError> {
    let bytes = Folder::of(file).and_then(|(folder, name)| folder.read(name, MAX_FILE_BYTES));
    match bytes {
        // Whether its folder will be there when it is written is seen then.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        other => other.map(Option::unwrap_or_default).map_err(|e| failed(file, "read", &e)),
    }
}

fn write(file: &Path, bytes: &[u8]) -> std::result::Result<(), ExperienceError> {
    Folder::of(file).and_then(|(folder, name)| folder.replace(name, bytes)).map_err(|e| failed(file, "written", &e))
}

/// That a file may be replaced: it is one of experience, or not there.
///
/// # Errors
/// What it is instead, which is to stay.
fn replaceable(file: &Path) -> std::result::Result<(), ExperienceError> {
    let bytes = read(file)?;
    if is_experience(&bytes[..bytes.len().min(HEAD_BYTES)]) {
        return Ok(());
    }
    Err(ExperienceError::new(file, "is there and no experience of ours, so it stays as it is", "Move it away, or give another path"))
}

impl<M: HasLearner> Pupil for Shared<M> {
    fn progress(&self) -> Progress {
        self.agent(Progress::of)
    }

    fn score(&self) -> Option<Score> {
        self.agent(Learner::last_score)
    }

    fn seen(&self) -> u64 {
        self.agent(Learner::seen)
    }

    fn load(&self, file: &Path, bundle: &str) -> std::result::Result<usize, ExperienceError> {
        let bytes = read(file)?;
        self.agent_mut(|a| a.take_experience(file, &bytes, bundle))
    }

    fn save(&self, file: &Path, bundle: &str) -> std::result::Result<(), ExperienceError> {
        write(file, &self.agent(|a| a.experience(bundle)))
    }

    fn writer(&self) -> Writer {
        let agent = self.agent(Learner::clone);
        Box::new(move |file, bundle| write(file, &agent.experience(bundle)))
    }
}

/// Model-C of the running policy, while it learns.
pub struct Learning {
    models: Box<dyn Pupil>,
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
    settings: &Settings,
    state: Option<&Path>,
) -> Result<(Box<dyn Policy>, Option<Learning>)> {
    let settings = settings.clone().learning_every(config.every_ms);
    let (pupil, set, file): (Box<dyn Pupil>, ModelSet, &str) = match (bundle, learns(name)) {
        (Some(b), Some(Family::OsmlPlus)) => {
            let shared = Shared::new(BundleModels::new(b, platform).map_err(Error::BadInput)?, config.on);
            let set = ModelSet { plus: Some(Box::new(shared.clone())), osml: None };
            (Box::new(shared), set, EXPERIENCE)
        }
        (Some(b @ Bundle { osml: Some(networks), .. }), Some(Family::Osml)) => {
            let networks = BundleOsml::from_networks(networks.clone(), platform).map_err(Error::BadInput)?;
            let shared = Shared::new(networks, config.on);
            let set = ModelSet { osml: Some(Box::new(shared.clone())), ..ModelSet::of(b, platform).map_err(Error::BadInput)? };
            (Box::new(shared), set, EXPERIENCE_OSML)
        }
        _ => return Ok((models::policy(name, platform, bundle, &settings, seed)?, None)),
    };
    let policy = models::policy_of(name, platform, set, settings, seed)?;
    if let Some(Err(e)) = config.experience.as_deref().filter(|_| config.on).map(replaceable) {
        return Err(Error::BadInput(format!("learning.experience: {e}")));
    }
    let file = config.experience.clone().or_else(|| Some(state?.join(file)));
    let learning = match bundle {
        Some(b) if config.on => Some(Learning::open(pupil, &b.digest, config, file)),
        _ => None,
    };
    Ok((policy, learning))
}

impl Learning {
    /// Go on with the experience in `file`, where there is any. What cannot be used is said in one line, and left out.
    fn open(models: Box<dyn Pupil>, bundle: &str, config: &LearningConfig, file: Option<PathBuf>) -> Self {
        let file = file.filter(|f| {
            let checked = replaceable(f);
            if let Err(e) = &checked {
                tracing::warn!("learning: {e}; nothing is saved meanwhile");
            }
            checked.is_ok()
        });
        let found = file.as_deref().filter(|f| f.symlink_metadata().is_ok());
        let loaded = found.map_or(0, |f| match models.load(f, bundle) {
            Ok(n) => {
                tracing::info!("learning: goes on with {n} transitions of earlier runs from {}", f.display());
                n
            }
            Err(e) => {
                tracing::warn!("learning: {e}");
                0
            }
        });
        let (last, saved_seen) = (models.progress(), models.seen());
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

    /// Whether it went on with experience of an earlier run.
    pub fn resumed(&self) -> bool {
        self.loaded > 0
    }

    /// After each tick: log, and the file when its time has come. What there is to tell, where it is news.
    pub fn tick(&mut self, now_ms: u64) -> Option<Progress> {
        let (now, score) = (self.models.progress(), self.models.score());
        let is_news = now != self.last || now_ms == 0;
        if is_news {
            if let Some((warn, line)) = news(&self.last.counts, &now.counts, score, &mut self.refused) {
                if warn {
                    tracing::warn!("{line}");
                } else {
                    tracing::info!("{line}");
                }
            }
            self.last = now;
        }
        if now_ms >= self.saved_ms + self.save_every_ms {
            self.saved_ms = now_ms;
            self.save_aside();
        }
        is_news.then_some(now)
    }

    /// The last save. Waits for it.
    pub fn end(&mut self) {
        self.collect(true);
        let Some(file) = &self.file else { return };
        let done = if self.models.seen() == self.saved_seen { Ok(()) } else { self.models.save(file, &self.bundle) };
        self.said(done);
    }

    /// Write in a thread of its own: the disk may be slow, and the control loop must not wait for it.
    fn save_aside(&mut self) {
        self.collect(false);
        let Some(file) = self.file.clone().filter(|_| self.writer.is_none()) else { return };
        let seen = self.models.seen();
        if seen == self.saved_seen {
            return;
        }
        let (write, bundle) = (self.models.writer(), self.bundle.clone());
        match Builder::new().name("experience".into()).spawn(move || write(&file, &bundle)) {
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
    use crate::node::metrics::Metrics;
    use std::sync::Mutex;
    use surefoot_learn::rng::Rng;
    use surefoot_learn::{one_hot, Expect, TrustedKeys};

    /// Learning of the small test bundle's Model-C, and a handle of it.
    fn learning(file: &Path) -> (Learning, Shared<BundleModels>) {
        let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors");
        let keys = TrustedKeys::load(&vectors.join("keys/trusted")).unwrap();
        let bundle = Bundle::load(&vectors.join("bundle-small"), &keys, &Expect::default()).unwrap();
        let models = Shared::new(BundleModels::new(&bundle, &Platform::regular("t", 18, 2, 20, 2.25)).unwrap(), true);
        let config = LearningConfig { save_every_s: 10, ..LearningConfig::default() };
        (Learning::open(Box::new(models.clone()), &bundle.digest, &config, Some(file.into())), models)
    }

    /// Windows that the guard refuses, steps and experience are in /metrics and in the last line; the file is written when its time
    /// has come and goes on in the next run.
    #[test]
    fn metrics_and_file_follow_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.safetensors");
        let (mut l, models) = learning(&file);
        let metrics = Mutex::new(Metrics::default());
        assert!(!metrics.lock().unwrap().text().contains("surefoot_learning"), "where nothing learns there is nothing to say");
        models.agent_mut(|a| {
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
        metrics.lock().unwrap().learning(l.tick(10_000).unwrap());
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
        let (again, _) = learning(&file);
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
