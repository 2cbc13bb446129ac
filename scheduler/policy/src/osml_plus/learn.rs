//! Model-C on line: what it proposes, and what it is taught of the outcome (OSML+ paper, Sec. 3.2).

use super::*;
use crate::models::Experience;

impl OsmlPlus {
    /// Credit the actions of the last step with what they brought. The networks learn of it when the plan is in force.
    pub(super) fn learn(&mut self, now_ms: u64, seen: &Observation) {
        // A p99 that cannot be believed is as good as none.
        let known: Vec<f64> = seen.lc().filter(|s| !doubtful(s)).filter_map(ServiceView::qos).collect();
        for (id, before, action, predicted_met) in std::mem::take(&mut self.pending) {
            let Some(s) = seen.get(&id).filter(|s| s.qos().is_some()) else { continue };
            if doubtful(s) {
                self.left_out += 1;
                continue;
            }
            let reward = if known.iter().any(|q| *q < 1.0) {
                f64::from(u8::from(predicted_met)) + known.iter().map(|q| q.min(1.0)).sum::<f64>() / known.len() as f64
            } else {
                2.0 + self.unused_share(&id)
            };
            self.models.remember(&Experience { before, action, vector: None, reward, after: State::of(s) });
        }
        if now_ms >= self.learnt_ms + self.set.learn_every_ms {
            self.learnt_ms = now_ms;
            self.to_learn = true;
            // Leaving a service alone is an action, too; once in a while it is worth remembering.
            for s in seen.lc().filter(|s| s.qos_met() == Some(true)) {
                if self.lives.get(&s.id).is_some_and(|l| !l.asleep() && l.watch.is_none()) {
                    self.expect(s, IDLE, self.books.usable(&s.id));
                }
            }
        }
    }

    /// r_resource: mean over the resources under control of the share that is left unused. As in off-line training (`fit_c` in
    /// `pipelines/train.py`): cores and ways that no LC service holds, and where there is MBA, how far the service that acted
    /// is throttled. Bandwidth that is only measured is not under control and does not count.
    pub(super) fn unused_share(&self, id: &str) -> f64 {
        let (total, rest) = (self.books.total(), self.books.rest());
        let mut shares = vec![f64::from(rest.cores) / f64::from(total.cores.max(1))];
        if total.ways > 0 {
            shares.push(f64::from(rest.ways) / f64::from(total.ways));
        }
        if self.books.platform.mba.is_some() {
            shares.push(1.0 - f64::from(self.books.slot(id).map_or(100, |s| s.mba_pct)) / 100.0);
        }
        shares.iter().sum::<f64>() / shares.len() as f64
    }

    /// Model-C's probabilities, with a little noise to explore; all zero where it cannot answer.
    pub(super) fn propose(&mut self, s: &ServiceView) -> ([f64; 7], String) {
        if self.with.with.model_c == 0 {
            return ([0.0; 7], "without Model-C".into());
        }
        let state = self.state(s);
        match self.models.act(&s.service, &state) {
            Ok(p) => (p.map(|p| f64::from(p) + self.set.noise * self.rng.normal()), self.model_c()),
            Err(_) => ([0.0; 7], "rule of thumb".into()),
        }
    }

    /// Model-C's name in an action's reason, with what it was not taught.
    fn model_c(&self) -> String {
        match self.left_out {
            0 => "Model-C".into(),
            n => format!("Model-C ({n} experiences with a doubtful p99 left out)"),
        }
    }

    /// Keep an action for Model-C's pool; the reward follows in the next step. What is done counts more than "idle".
    pub(super) fn expect(&mut self, s: &ServiceView, action: usize, result: Amount) {
        if self.with.with.model_c == 0 {
            return;
        }
        self.pending.retain(|p| p.0 != s.id);
        if doubtful(s) {
            self.left_out += 1;
            return;
        }
        let met = self.b(s, result).is_ok_and(|q| q >= 1.0);
        self.pending.push((s.id.clone(), State::of(s), action, met));
    }
}
