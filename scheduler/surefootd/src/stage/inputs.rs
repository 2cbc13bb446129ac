//! What models lack here: inputs that are not measured (models have no answer, and policies go by a rule of thumb), and services that
//! they were not made for (they answer, and it was not judged how well).

use std::collections::{BTreeMap, BTreeSet};
use surefoot_learn::Bundle;
use surefoot_server::{Observation, ServiceId, ServiceView, FEATURE_NAMES};

/// Ticks in a row with or without an input before it is said: the first readings of a newcomer are not there yet.
const TICKS: u32 = 10;

/// What models ask for, and of which services it is missing.
#[derive(Debug, Default)]
pub struct Inputs {
    wanted: Vec<String>,
    of: BTreeMap<ServiceId, Seen>,
    /// Services that the bundle lists, by catalogue name; None without a bundle.
    listed: Option<BTreeSet<String>>,
    /// Others that were named already.
    strange: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Ticks in a row that do not say what was said last.
    otherwise: u32,
    said: bool,
}

/// What of the wanted features is not known of a service.
pub fn missing<'a>(wanted: &'a [String], s: &'a ServiceView) -> impl Iterator<Item = &'a String> {
    wanted.iter().filter(|n| s.features.get(n).is_none())
}

/// Something to be said: models fell silent for a service, or speak again.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    Silent {
        service: ServiceId,
        missing: Vec<String>,
    },
    Speak {
        service: ServiceId,
    },
    /// By catalogue name.
    Unlisted {
        services: Vec<String>,
        listed: Vec<String>,
    },
}

impl Inputs {
    /// Features that Models A and B of a bundle are asked with, and the services that it lists; without a bundle none.
    pub fn of(bundle: Option<&Bundle>) -> Self {
        let all = bundle.iter().flat_map(|b| b.a.inputs.iter().chain(&b.b.inputs)).map(|i| i.name.clone());
        let wanted: BTreeSet<String> = all.filter(|n| FEATURE_NAMES.contains(&n.as_str())).collect();
        let listed = bundle.map(|b| b.manifest.services.keys().cloned().collect());
        Inputs { wanted: wanted.into_iter().collect(), listed, ..Inputs::default() }
    }

    /// What is new after another tick.
    pub fn tick(&mut self, seen: &Observation) -> Vec<News> {
        self.of.retain(|id, _| seen.get(id).is_some());
        let mut news: Vec<News> = self.unlisted(seen.lc().map(|s| s.service.as_str())).into_iter().collect();
        for s in seen.lc() {
            let of = self.of.entry(s.id.clone()).or_default();
            let silent = missing(&self.wanted, s).next().is_some();
            of.otherwise = if silent != of.said { of.otherwise + 1 } else { 0 };
            if of.otherwise < TICKS {
                continue;
            }
            (of.said, of.otherwise) = (!of.said, 0);
            let service = s.id.clone();
            news.push(match of.said {
                true => News::Silent { service, missing: missing(&self.wanted, s).cloned().collect() },
                false => News::Speak { service },
            });
        }
        news
    }

    /// Which of these services, by catalogue name, the bundle does not list: of each once.
    pub fn unlisted<'a>(&mut self, services: impl Iterator<Item = &'a str>) -> Option<News> {
        let listed = self.listed.as_ref()?;
        let strange = services.filter(|s| !listed.contains(*s) && !self.strange.contains(*s));
        let services: BTreeSet<String> = strange.map(Into::into).collect();
        self.strange.extend(services.iter().cloned());
        (!services.is_empty())
            .then(|| News::Unlisted { services: services.into_iter().collect(), listed: listed.iter().cloned().collect() })
    }

    pub fn wanted(&self) -> &[String] {
        &self.wanted
    }
}

impl News {
    /// Into the log.
    pub fn log(&self) {
        match self {
            News::Silent { service, missing } => tracing::warn!(
                "{service}: models have no answer, a rule of thumb stands in: {} not measured here. Mend the counters (surefootd check), or \
                 use a bundle of a feature set without them",
                missing.join(", ")
            ),
            News::Unlisted { services, listed } if listed.is_empty() => tracing::info!(
                "{}: the bundle's models are of drawn services, and of none by name: they answer by counters alone",
                services.join(", ")
            ),
            News::Unlisted { services, listed } => tracing::warn!(
                "{}: not among the services that the bundle's models were made for ({}): they answer by counters alone, and how well was \
                 not judged. Train a bundle with {} in the campaign",
                services.join(", "),
                listed.join(", "),
                if services.len() == 1 { "it" } else { "them" }
            ),
            News::Speak { service } => tracing::info!("{service}: models answer again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::follower::tests::seen;
    use surefoot_server::Features;

    fn observe(ipc: Option<f64>) -> Observation {
        let mut seen = seen(0, &[("a", 5.0)]);
        seen.services[0].features = Features { ipc, cpu_usage_cores: Some(2.0), ..Features::default() };
        seen
    }

    /// A lost counter is said once, after a second, and so is its return; a newcomer's first readings are waited for.
    #[test]
    fn what_is_missing_is_said_once() {
        let mut inputs = Inputs { wanted: vec!["cpu_usage_cores".into(), "ipc".into()], ..Inputs::default() };
        let mut hear = |ipc, ticks| (0..ticks).flat_map(|_| inputs.tick(&observe(ipc))).collect::<Vec<_>>();
        assert_eq!(hear(None, TICKS - 1), []);
        assert_eq!(hear(Some(1.0), 50), []);
        assert_eq!(hear(None, 50), [News::Silent { service: "a".into(), missing: vec!["ipc".into()] }]);
        assert_eq!(hear(Some(1.0), 50), [News::Speak { service: "a".into() }]);
        let seen = observe(None);
        assert_eq!(missing(inputs.wanted(), &seen.services[0]).collect::<Vec<_>>(), ["ipc"]);
    }

    /// A service that the bundle does not list is named once, its second copy not again; without a bundle none is.
    #[test]
    fn strangers_are_named_once() {
        let two = || {
            let mut seen = seen(0, &[("a", 5.0), ("a-2", 5.0), ("b", 5.0), ("c", 5.0)]);
            seen.services.iter_mut().for_each(|s| s.service = s.id.trim_end_matches("-2").into());
            seen
        };
        let mut inputs = Inputs { listed: Some(["b".to_string()].into()), ..Inputs::default() };
        assert_eq!(inputs.tick(&two()), [News::Unlisted { services: vec!["a".into(), "c".into()], listed: vec!["b".into()] }]);
        assert_eq!(inputs.tick(&two()), []);
        assert_eq!(Inputs::default().tick(&two()), []);
    }
}
