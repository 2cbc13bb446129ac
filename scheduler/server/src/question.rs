//! What a policy asks the upper scheduler before it does it, and what that has said (OSML paper, Algorithm 4; OSML+ paper, Sec. 3.3: sharing is the
//! upper scheduler's to allow).

use crate::{Observation, Plan, ServiceId};
use serde::{Deserialize, Serialize};

/// May one service use what is another's, since no service can be deprived of it?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The service that lacks something.
    pub service: ServiceId,
    /// The service whose cores or ways it would share.
    pub with: ServiceId,
    /// Predicted for `with` while they are shared: target / p99, or what is left of 1 (as the policy reports it).
    pub qos: f64,
    pub why: String,
}

/// The word on a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Word {
    pub service: ServiceId,
    pub with: ServiceId,
    pub allowed: bool,
}

impl Observation {
    /// The upper scheduler has said that these two are not to share: another neighbour may.
    pub fn denied(&self, service: &str, with: &str) -> bool {
        self.words.iter().flatten().any(|w| w.service == service && w.with == with && !w.allowed)
    }
}

impl Plan {
    /// Whether a service may share with another one. Where there is no word on it yet, the question becomes a part of the plan, and the answer is no for now.
    pub fn may_share(&mut self, seen: &Observation, question: Question) -> bool {
        let Some(words) = &seen.words else { return true };
        let same = |service: &str, with: &str| service == question.service && with == question.with;
        if let Some(word) = words.iter().find(|w| same(&w.service, &w.with)) {
            return word.allowed;
        }
        if !self.questions.iter().any(|q| same(&q.service, &q.with)) {
            self.questions.push(question);
        }
        false
    }

    /// The upper scheduler has been asked on a service's behalf: whether it can be held is not known yet.
    pub fn waits_for_word(&self, id: &str) -> bool {
        self.questions.iter().any(|q| q.service == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question { service: "web".into(), with: "db".into(), qos: 1.2, why: "1 core".into() }
    }

    /// Where nothing is asked it is done. Else it is asked once a plan, and the word counts, for these two services alone.
    #[test]
    fn a_word_is_waited_for_where_somebody_is_asked() {
        let mut plan = Plan::default();
        let mut seen = Observation::default();
        assert!(plan.may_share(&seen, question()) && plan.questions.is_empty());
        seen.words = Some(vec![]);
        for _ in 0..2 {
            assert!(!plan.may_share(&seen, question()));
        }
        assert_eq!(plan.questions, [question()]);
        assert!(plan.waits_for_word("web") && !plan.waits_for_word("db"));
        for allowed in [true, false] {
            let mut plan = Plan::default();
            seen.words = Some(vec![Word { service: "web".into(), with: "db".into(), allowed }]);
            assert_eq!((plan.may_share(&seen, question()), seen.denied("web", "db")), (allowed, !allowed));
            assert!(!seen.denied("db", "web"));
            assert!(!plan.may_share(&seen, Question { service: "db".into(), with: "web".into(), ..question() }));
            assert_eq!(plan.questions.len(), 1);
        }
    }

    /// Files of before have neither questions nor words, and nothing is written where there are none.
    #[test]
    fn what_nobody_asks_is_not_written() {
        let plan = serde_json::to_string(&Plan::default()).unwrap();
        assert!(!plan.contains("questions") && !serde_json::to_string(&Observation::default()).unwrap().contains("words"));
        let asked = Plan { questions: vec![question()], ..Plan::default() };
        assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&asked).unwrap()).unwrap(), asked);
    }
}
