//! What policies ask the upper scheduler, and until when each word holds. Touches nothing: [`super::socket`] sends and hears.

use crate::stage::config::AskConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use surefoot_server::{Question, ServiceId, Word};

/// A word holds for so long; then the policy asks again, if it still wants to.
const KEEP_MS: u64 = 60_000;

/// A question on the socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename = "question")]
pub struct QuestionLine {
    /// As that of events: from 1 on in a run, without gaps.
    pub seq: u64,
    pub t_ms: u64,
    pub at_ms: Option<u64>,
    /// What an answer names.
    pub id: u64,
    /// What is asked for. So far: `share`.
    pub what: String,
    pub service: ServiceId,
    pub with: ServiceId,
    pub qos: f64,
    pub why: String,
    /// An answer that comes later is none.
    pub answer_ms: u64,
    /// What is done without one.
    pub unanswered: bool,
}

/// What a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The question's `id`.
    pub answer: u64,
    pub allow: bool,
}

/// How questions ended: allowed, denied, not answered.
pub const ENDED: [&str; 3] = ["allowed", "denied", "unanswered"];
const UNANSWERED: usize = 2;

#[derive(Clone, Debug)]
struct Open {
    line: QuestionLine,
    /// The word, and when it was given.
    word: Option<(bool, u64)>,
}

/// The questions of a run.
#[derive(Clone, Debug)]
pub struct Questions {
    how: AskConfig,
    last_id: u64,
    open: BTreeMap<(ServiceId, ServiceId), Open>,
    ended: [u64; 3],
}

impl Questions {
    pub fn new(how: AskConfig) -> Self {
        Questions { how, last_id: 0, open: BTreeMap::new(), ended: [0; 3] }
    }

    /// By [`ENDED`].
    pub fn ended(&self) -> [u64; 3] {
        self.ended
    }

    /// What is known now, for the policy. A question whose time is over has the word of the configuration.
    pub fn words(&mut self, t_ms: u64) -> Vec<Word> {
        let AskConfig { answer_ms, unanswered } = self.how;
        self.open.retain(|_, q| q.word.is_none_or(|(_, since_ms)| t_ms < since_ms + KEEP_MS));
        for ((service, with), q) in &mut self.open {
            if q.word.is_none() && t_ms >= q.line.t_ms + answer_ms {
                q.word = Some((unanswered, t_ms));
                self.ended[UNANSWERED] += 1;
                let done = if unanswered { "it is done" } else { "it is not done" };
                tracing::warn!("{service} would share with {with}: no upper scheduler has answered within {answer_ms} ms: {done}");
            }
        }
        let word = |((service, with), q): (&(ServiceId, ServiceId), &Open)| {
            Some(Word { service: service.clone(), with: with.clone(), allowed: q.word?.0 })
        };
        self.open.iter().filter_map(word).collect()
    }

    /// What a plan asks, as lines; `seq` numbers them. What waits for its word is not asked again.
    pub fn ask(
        &mut self,
        t_ms: u64,
        asked: &[Question],
        at_ms: impl Fn() -> Option<u64>,
        mut seq: impl FnMut() -> u64,
    ) -> Vec<QuestionLine> {
        let mut lines = vec![];
        for q in asked {
            let key = (q.service.clone(), q.with.clone());
            if self.open.contains_key(&key) {
                continue;
            }
            self.last_id += 1;
            let line = QuestionLine {
                seq: seq(),
                t_ms,
                at_ms: at_ms(),
                id: self.last_id,
                what: "share".into(),
                service: q.service.clone(),
                with: q.with.clone(),
                qos: q.qos,
                why: q.why.clone(),
                answer_ms: self.how.answer_ms,
                unanswered: self.how.unanswered,
            };
            self.open.insert(key, Open { line: line.clone(), word: None });
            lines.push(line);
        }
        lines
    }

    /// What waits for its word, the oldest first.
    pub fn waiting(&self) -> Vec<&QuestionLine> {
        let mut all: Vec<&QuestionLine> = self.open.values().filter(|q| q.word.is_none()).map(|q| &q.line).collect();
        all.sort_by_key(|q| q.id);
        all
    }

    /// What clients have said. The first word on a question counts; one that is late, or on no question, changes nothing.
    pub fn hear(&mut self, t_ms: u64, answers: &[Answer]) {
        for a in answers {
            // Until the word of the configuration counts, whatever tick hears it.
            let Some(((service, with), q)) = self.open.iter_mut().find(|(_, q)| q.line.id == a.answer && q.word.is_none()) else {
                tracing::debug!("answer {}: no such question is open", a.answer);
                continue;
            };
            q.word = Some((a.allow, t_ms));
            self.ended[usize::from(!a.allow)] += 1;
            tracing::info!("{service} {} share with {with}: the upper scheduler's word", if a.allow { "may" } else { "may not" });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask() -> [Question; 1] {
        [Question { service: "web".into(), with: "db".into(), qos: 1.5, why: "1 core".into() }]
    }

    fn questions(unanswered: bool) -> Questions {
        Questions::new(AskConfig { answer_ms: 300, unanswered })
    }

    fn allowed(q: &mut Questions, t_ms: u64) -> Option<bool> {
        q.words(t_ms).first().map(|w| w.allowed)
    }

    /// Asked once, however often the policy says it; the first answer in time counts, for a minute.
    #[test]
    fn a_question_is_asked_once_and_its_word_holds() {
        for allow in [true, false] {
            let mut q = questions(!allow);
            let lines = q.ask(1000, &ask(), || Some(5), || 7);
            assert_eq!((lines.len(), lines[0].id, lines[0].seq, lines[0].at_ms), (1, 1, 7, Some(5)));
            assert!(q.ask(1100, &ask(), || None, || panic!("it is asked already")).is_empty());
            assert_eq!(allowed(&mut q, 1100), None);
            q.hear(1200, &[Answer { answer: 9, allow: !allow }, Answer { answer: 1, allow }, Answer { answer: 1, allow: !allow }]);
            assert_eq!(allowed(&mut q, 1200), Some(allow));
            assert_eq!(allowed(&mut q, 61_100), Some(allow));
            assert_eq!(allowed(&mut q, 61_200), None);
            assert_eq!(q.ask(61_200, &ask(), || None, || 8)[0].id, 2);
            assert_eq!(q.ended(), if allow { [1, 0, 0] } else { [0, 1, 0] });
        }
    }

    /// Without an answer in time the configuration's word counts, and one that comes later changes nothing.
    #[test]
    fn silence_has_a_word() {
        for unanswered in [true, false] {
            let mut q = questions(unanswered);
            q.ask(1000, &ask(), || None, || 1);
            assert_eq!(allowed(&mut q, 1299), None);
            assert_eq!(allowed(&mut q, 1300), Some(unanswered));
            q.hear(1300, &[Answer { answer: 1, allow: !unanswered }]);
            assert_eq!((allowed(&mut q, 1400), q.ended()), (Some(unanswered), [0, 0, 1]));
            // Said in time, and heard by the decision that would have had none.
            let mut q = questions(unanswered);
            q.ask(1000, &ask(), || None, || 1);
            assert_eq!(q.waiting().len(), 1);
            q.hear(1300, &[Answer { answer: 1, allow: !unanswered }]);
            assert_eq!((allowed(&mut q, 1300), q.waiting().len()), (Some(!unanswered), 0));
        }
    }

    /// The line as docs/upper-scheduler.md has it.
    #[test]
    fn the_line_is_as_documented() {
        let line = questions(true).ask(3800, &ask(), || None, || 2).remove(0);
        let text = serde_json::to_string(&line).unwrap();
        assert!(
            text.starts_with(r#"{"event":"question","seq":2,"t_ms":3800,"at_ms":null,"id":1,"what":"share","service":"web","with":"db""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<QuestionLine>(&text).unwrap(), line);
        assert_eq!(serde_json::from_str::<Answer>(r#"{"answer":1,"allow":false}"#).unwrap(), Answer { answer: 1, allow: false });
        assert!(serde_json::from_str::<Answer>(r#"{"answer":1}"#).is_err());
    }
}
