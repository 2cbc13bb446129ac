//! Bundles and policies by name.

use crate::base::error::{Error, Result};
use crate::base::files::Sources;
use crate::stage::socket::{self, Endpoint};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use surefoot_learn::learner::Nets;
use surefoot_learn::{Bundle, Ddpg, Dqn, Expect, KeyGuard, Learner, TrustedKeys, ACTIONS};
use surefoot_policy::remote::wire::Role;
use surefoot_policy::shadow::Maker;
use surefoot_policy::{
    by_name_with, Area, AreaInterval, BPoints, BundleModels, BundleOsml, Experience, Interval, ModelSet, Models, OsmlModels, Policy,
    Settings, State,
};
use surefoot_server::Platform;

/// Verify and load a bundle for what is expected.
///
/// # Errors
/// [`Error::BadInput`] names what was refused.
pub fn load_bundle(path: &Path, trust: Option<&Path>, expected: &Expect) -> Result<Bundle> {
    if !path.exists() {
        return Err(Error::BadInput(format!(
            "--bundle {}: no such file or folder. Build one with `surefoot bundle build`",
            path.display()
        )));
    }
    // Who can write a key chooses which bundles run.
    let guard = KeyGuard::Owner(nix::unistd::geteuid().as_raw());
    let option = if trust.is_some() { "--trust " } else { "" };
    let keys = TrustedKeys::load_guarded(trust, guard).map_err(|e| Error::BadInput(format!("{option}{e}")))?;
    Bundle::load(path, &keys, expected).map_err(|e| Error::BadInput(format!("bundle {}: {e}", path.display())))
}

/// What [`load_bundle`] reads.
pub fn bundle_sources(bundle: Option<&Path>, trust: Option<&Path>) -> Sources {
    let keys = trust.map(Path::to_path_buf).or_else(|| bundle.and_then(|_| TrustedKeys::default_folder()));
    Sources::default().and("--bundle", bundle).and("--trust", keys.as_deref())
}

/// Two of a name cannot be told apart in what comes of them.
///
/// # Errors
/// [`Error::BadInput`] for a policy that an option names twice, or an entry of its list that names none.
pub fn each_once(option: &str, names: &[String]) -> Result<()> {
    if names.iter().any(String::is_empty) {
        return Err(Error::BadInput(format!("{option}: the list has an empty entry. Name policies with one comma between two")));
    }
    match names.iter().enumerate().find(|(i, n)| names[..*i].contains(n)) {
        Some((_, twice)) => Err(Error::BadInput(format!("{option}: policy \"{twice}\" is there twice. Name it once"))),
        None => Ok(()),
    }
}

/// # Errors
/// [`Error::BadInput`] for an unknown name, or a policy that needs a bundle and got none, or one without its models.
pub fn policy(name: &str, platform: &Platform, bundle: Option<&Bundle>, settings: &Settings, seed: u64) -> Result<Box<dyn Policy>> {
    let models = bundle.map(|b| ModelSet::of(b, platform)).transpose().map_err(Error::BadInput)?;
    policy_of(name, platform, models.unwrap_or_default(), settings.clone(), seed)
}

/// A policy over models that somebody else looks into, too.
///
/// # Errors
/// See [`policy`].
pub fn policy_of(name: &str, platform: &Platform, models: ModelSet, settings: Settings, seed: u64) -> Result<Box<dyn Policy>> {
    if socket::path_of(name).is_some() {
        return Ok(Endpoint::policy(&Endpoint::open(name, platform, &settings, seed)?));
    }
    socket::check_name(name).map_err(Error::BadInput)?;
    by_name_with(name, platform, models, settings, seed).map_err(Error::BadInput)
}

/// A maker for each name.
pub type Makers = Vec<(String, Maker)>;

/// What it takes to have shadows ([`surefoot_policy::shadow`]): a maker for each name, and a judge where there is a bundle.
///
/// # Errors
/// [`Error::BadInput`] for a bundle that no policy could use. Names are found wrong when the makers are asked.
pub fn shadow_makers(
    names: &[String],
    platform: &Platform,
    bundle: Option<&Bundle>,
    settings: &Settings,
    seed: u64,
) -> Result<(Makers, Option<Box<dyn Models>>)> {
    let judge = bundle.map(|b| BundleModels::new(b, platform)).transpose().map_err(Error::BadInput)?;
    let maker = |name: &String| {
        let (wanted, platform, bundle) = (name.clone(), platform.clone(), bundle.cloned());
        let settings = socket::asked_as(settings.clone(), Role::Shadow, settings.real_time);
        // Once there, a policy on a socket that goes is waited for: a shadow that begins anew ends no run.
        let mut endpoint = None;
        let make: Maker = Box::new(move || {
            let made = match (&endpoint, socket::path_of(&wanted)) {
                (Some(known), _) => Ok(Endpoint::policy(known)),
                (None, Some(_)) => Endpoint::open(&wanted, &platform, &settings, seed).map(|e| Endpoint::policy(endpoint.insert(e))),
                (None, None) => policy(&wanted, &platform, bundle.as_ref(), &settings, seed),
            };
            made.map_err(|e| e.to_string())
        });
        (name.clone(), make)
    };
    Ok((names.iter().map(maker).collect(), judge.map(|j| Box::new(j) as Box<dyn Models>)))
}

/// Networks whose Model-C learns.
pub trait HasLearner {
    type Nets: Nets + Send + 'static;

    fn learner(&self) -> &Learner<Self::Nets>;
    fn learner_mut(&mut self) -> &mut Learner<Self::Nets>;
}

impl HasLearner for BundleModels {
    type Nets = Ddpg;

    fn learner(&self) -> &Learner<Ddpg> {
        self.agent()
    }

    fn learner_mut(&mut self) -> &mut Learner<Ddpg> {
        self.agent_mut()
    }
}

impl HasLearner for BundleOsml {
    type Nets = Dqn;

    fn learner(&self) -> &Learner<Dqn> {
        self.agent()
    }

    fn learner_mut(&mut self) -> &mut Learner<Dqn> {
        self.agent_mut()
    }
}

/// A bundle's networks, of which a policy has one handle and the daemon another: experience comes from a file and goes there.
pub struct Shared<M> {
    models: Rc<RefCell<M>>,
    /// False: Model-C stays as the bundle has it, and remembers nothing.
    learns: bool,
}

impl<M> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Shared { models: self.models.clone(), learns: self.learns }
    }
}

impl<M: HasLearner> Shared<M> {
    pub fn new(models: M, learns: bool) -> Self {
        Shared { models: Rc::new(RefCell::new(models)), learns }
    }

    /// Look at Model-C as it is now.
    pub fn agent<R>(&self, look: impl FnOnce(&Learner<M::Nets>) -> R) -> R {
        look(self.models.borrow().learner())
    }

    /// Change Model-C.
    pub fn agent_mut<R>(&self, change: impl FnOnce(&mut Learner<M::Nets>) -> R) -> R {
        change(self.models.borrow_mut().learner_mut())
    }
}

type Answer<T> = std::result::Result<T, String>;

impl Models for Shared<BundleModels> {
    fn area(&self, service: &str, s: &State) -> Answer<Area> {
        self.models.borrow().area(service, s)
    }

    fn qos(&self, service: &str, s: &State, cores: f64, ways: f64) -> Answer<f64> {
        self.models.borrow().qos(service, s, cores, ways)
    }

    fn qos_cap(&self) -> f64 {
        self.models.borrow().qos_cap()
    }

    fn qos_interval(&self, service: &str, s: &State, cores: f64, ways: f64) -> Option<Interval> {
        self.models.borrow().qos_interval(service, s, cores, ways)
    }

    fn area_interval(&self, service: &str, s: &State) -> Option<AreaInterval> {
        self.models.borrow().area_interval(service, s)
    }

    fn strangeness(&self, s: &State) -> Option<f64> {
        self.models.borrow().strangeness(s)
    }

    fn outside(&self, s: &State, cores: f64, ways: f64) -> Vec<String> {
        self.models.borrow().outside(s, cores, ways)
    }

    fn act(&mut self, service: &str, s: &State) -> Answer<[f32; ACTIONS]> {
        self.models.borrow_mut().act(service, s)
    }

    fn worth(&mut self, service: &str, s: &State, action: usize) -> Option<f64> {
        self.models.borrow_mut().worth(service, s, action)
    }

    fn remember(&mut self, e: &Experience) -> bool {
        self.learns && self.models.borrow_mut().remember(e)
    }

    fn learn(&mut self) -> bool {
        self.learns && self.models.borrow_mut().learn()
    }

    fn steps(&self) -> u64 {
        self.models.borrow().steps()
    }
}

impl OsmlModels for Shared<BundleOsml> {
    fn area(&self, service: &str, s: &State, neighbours: bool) -> Answer<Area> {
        self.models.borrow().area(service, s, neighbours)
    }

    fn b_points(&self, service: &str, s: &State, slowdown: f64) -> Answer<BPoints> {
        self.models.borrow().b_points(service, s, slowdown)
    }

    fn slowdown(&self, service: &str, s: &State, cores: f64, ways: f64) -> Answer<f64> {
        self.models.borrow().slowdown(service, s, cores, ways)
    }

    fn choose(&mut self, service: &str, s: &State, possible: &dyn Fn(usize) -> bool) -> Answer<Option<usize>> {
        self.models.borrow_mut().choose(service, s, possible)
    }

    fn worth(&mut self, service: &str, s: &State, action: usize) -> Option<f64> {
        self.models.borrow_mut().worth(service, s, action)
    }

    fn reseed(&mut self, seed: u64) {
        self.models.borrow_mut().reseed(seed);
    }

    fn latency_cap(&self) -> f64 {
        self.models.borrow().latency_cap()
    }

    fn remember(&mut self, e: &Experience) -> bool {
        self.learns && self.models.borrow_mut().remember(e)
    }

    fn learn(&mut self) -> bool {
        self.learns && self.models.borrow_mut().learn()
    }

    fn steps(&self) -> u64 {
        self.models.borrow().steps()
    }
}
