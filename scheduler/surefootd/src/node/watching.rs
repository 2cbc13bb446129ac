//! The watch over a bundle's models in the daemon: what it found, as metrics, `top`, log and journal have it.

use super::decisions::{StandingLine, StandingNews};
use super::status::{Compared, ModelStatus};
use crate::base::error::{Error, Result};
use surefoot_learn::Bundle;
use surefoot_policy::watch::{Figures, Kind, News, Standing, Taught, View};
use surefoot_policy::{BundleModels, Watch};
use surefoot_server::Platform;

/// None without a bundle. Models A and B do not learn on line, so the watch has its own.
///
/// # Errors
/// [`Error::BadInput`] for a bundle that no policy could use.
pub fn watch(bundle: Option<&Bundle>, platform: &Platform, interval_ms: u64) -> Result<Option<Watch>> {
    let Some(b) = bundle else { return Ok(None) };
    let models = BundleModels::new(b, platform).map_err(Error::BadInput)?;
    Ok(Some(Watch::new(platform, Box::new(models), Taught::of(&b.manifest.metrics), interval_ms)))
}

/// How models do for each service.
pub fn statuses(watch: &Watch) -> Vec<ModelStatus> {
    watch.views().map(|v| status(&v)).collect()
}

fn status(v: &View) -> ModelStatus {
    let of = |kind: Kind| compared(&v.figures[kind as usize]);
    ModelStatus {
        service: v.service.into(),
        standing: v.standing.as_str().into(),
        drift: v.drift,
        held: of(Kind::Held),
        changed: of(Kind::Changed),
        overloaded: of(Kind::Overloaded),
        inputs_outside: v.outside as u64,
        inputs_outside_frac: v.outside_frac,
        oaa: v.oaa.as_str().into(),
    }
}

fn compared(f: &Figures) -> Compared {
    let known = |v: f64| (f.comparisons > 0).then_some(v);
    Compared {
        comparisons: f.comparisons,
        missed: f.missed,
        false_met: f.false_met,
        error_qos: known(f.error_qos),
        bias_qos: known(f.bias_qos),
        taught_qos: f.taught_qos(),
    }
}

/// News for the journal, and into the log.
pub fn tell(t_ms: u64, news: Vec<News>) -> Vec<StandingLine> {
    let line = |n: News| {
        let is_well = matches!(n.standing, Standing::AsTaught | Standing::TooFew);
        let line = StandingLine {
            t_ms,
            at_ms: None,
            service: n.service,
            standing: StandingNews {
                now: n.standing.as_str().into(),
                was: n.was.as_str().into(),
                kind: n.of.map(|(kind, _)| kind.as_str().into()),
                error_qos: n.of.map(|(_, f)| f.error_qos),
                bias_qos: n.of.map(|(_, f)| f.bias_qos),
                taught_qos: n.of.and_then(|(_, f)| f.taught_qos()),
                outside: n.outside,
            },
        };
        if is_well {
            tracing::info!("{}: {}", line.service, line.standing.text());
        } else {
            tracing::warn!("{}: {}. docs/watched-models.md says what to do", line.service, line.standing.text());
        }
        line
    };
    news.into_iter().map(line).collect()
}

impl StandingNews {
    /// "models are worse than taught: QoS is off by 0.31 where it was taught to be by 0.08 (held), and said too high by 0.30".
    pub fn text(&self) -> String {
        let now = match self.now.as_str() {
            "as-taught" => "models are as taught",
            "worse-than-taught" => "models are worse than taught",
            "strange-inputs" => "models have strange inputs",
            _ => "models have too few comparisons",
        };
        let mut out = now.to_string();
        if let (Some(kind), Some(error), Some(taught)) = (&self.kind, self.error_qos, self.taught_qos) {
            out += &format!(": QoS is off by {error:.2}, taught by {taught:.2} ({kind})");
            if let Some(bias) = self.bias_qos.filter(|b| b.abs() > error / 2.0) {
                out += &format!(", and said too {} by {:.2}", if bias > 0.0 { "high" } else { "low" }, bias.abs());
            }
        }
        if !self.outside.is_empty() {
            out += &format!("; outside of what was taught: {}", self.outside.join(", "));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line says how far off, by which comparisons, in which direction, and which inputs are outside; what is not known is left out.
    #[test]
    fn news_say_what_matters() {
        let mut n = StandingNews {
            now: "worse-than-taught".into(),
            was: "as-taught".into(),
            kind: Some("held".into()),
            error_qos: Some(0.312),
            bias_qos: Some(0.3),
            taught_qos: Some(0.083),
            outside: vec![],
        };
        assert_eq!(n.text(), "models are worse than taught: QoS is off by 0.31, taught by 0.08 (held), and said too high by 0.30");
        (n.bias_qos, n.outside) = (Some(-0.1), vec!["ipc".into(), "mbl_mbps".into()]);
        assert_eq!(
            n.text(),
            "models are worse than taught: QoS is off by 0.31, taught by 0.08 (held); outside of what was taught: ipc, mbl_mbps"
        );
        (n.now, n.kind) = ("strange-inputs".into(), None);
        assert_eq!(n.text(), "models have strange inputs; outside of what was taught: ipc, mbl_mbps");
    }
}
