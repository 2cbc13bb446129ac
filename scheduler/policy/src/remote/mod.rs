//! A policy that decides in another process: it is asked every interval, and what it answers is checked before it counts.
//!
//! What must hold: an answer counts whole or not at all; where none counts, the last one that did goes on (the *last safe plan*), and
//! who comes meanwhile isolates nobody else.
//!
//! [`wire`] has what is said. Who carries it is behind a port ([`Answers`]): a socket of `surefootd`, a closure in tests. An answer
//! speaks of counts, as our own policies do ([`Books`]): which CPUs and masks they become is no business of the other side.

pub mod asked;
pub mod wire;

use crate::books::{Amount, Books, News};
use crate::Policy;
pub use asked::{Asked, Held};
use surefoot_server::settable::settings;
use surefoot_server::{Action, ActionKind, Because, HoldsIf, Observation, Plan, Platform, Report};
use wire::{Answer, Count, Hello, Hold, Question, MOST_ANSWER_BYTES, MOST_REPORTS, PROTOCOL, UNITS};

/// Before the path of a socket, in the name of a policy that listens there.
pub const SOCKET: &str = "socket:";

settings! {
    "socket"

    /// How long a policy in another process is waited for.
    limit: TimeLimit {
        interval_share: f64 = 0.3, 0.01..=0.5, "share", "of the interval that an answer may take, where time is real", Guess;
        virtual_ms: u64 = 5000, 10..=600_000, "ms", "that an answer may take, where time is virtual and waits", Guess;
    }
}

/// No answer that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    pub held: Held,
    /// In one line.
    pub why: String,
}

impl Miss {
    pub fn new(held: Held, why: impl Into<String>) -> Self {
        Miss { held, why: why.into() }
    }
}

/// The port: who carries questions to the policy and its answers back.
pub trait Answers {
    /// Its number in the connection is the carrier's to give.
    ///
    /// # Errors
    /// Why there is no answer within the time limit.
    fn ask(&mut self, now_ms: u64, question: &Question) -> Result<Answer, Miss>;

    /// What became of the decision: None where it is the policy's own.
    fn became(&mut self, now_ms: u64, miss: Option<&Miss>);

    fn asked(&self) -> Asked;
}

/// The first line of a connection.
pub fn hello<'a>(platform: &'a Platform, role: wire::Role, interval_ms: u64, limit_ms: f64, seed: u64, version: &'a str) -> Hello<'a> {
    let books = Books::new(platform);
    Hello {
        protocol: PROTOCOL,
        version,
        role,
        interval_ms,
        limit_ms,
        seed,
        platform,
        core_unit_cores: platform.core_step,
        total: books.total().into(),
        least: books.least().into(),
        mba: platform.mba,
        most_answer_bytes: MOST_ANSWER_BYTES,
        units: UNITS.iter().copied().collect(),
    }
}

/// The policy, as a node has it.
pub struct Remote {
    name: String,
    books: Books,
    link: Box<dyn Answers>,
    /// Why the last answer was left out: it is told with the next question.
    refused: Option<String>,
}

impl Remote {
    /// `name`: what it is asked for by, such as `socket:/run/mine.sock`.
    pub fn new(name: &str, platform: &Platform, link: Box<dyn Answers>) -> Self {
        Remote { name: name.into(), books: Books::new(platform), link, refused: None }
    }

    /// The last safe plan, for who is here now. A newcomer uses what the BE jobs use, so that it stands in no other's way.
    fn hold(&mut self, seen: &Observation, news: &News) -> Plan {
        for id in news.lc_arrived.iter().filter(|id| seen.get(id).is_some_and(|s| !s.placed)) {
            self.books.crowd_in(id);
        }
        self.books.plan(seen).unwrap_or_default()
    }
}

impl Policy for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let news = self.books.follow(seen);
        let Remote { books, link, refused, .. } = self;
        let answer = link.ask(now_ms, &question(books, refused.as_deref(), seen));
        let decided = answer.and_then(|answer| enter(books, seen, answer));
        link.became(now_ms, decided.as_ref().err());
        match decided {
            Ok((after, plan)) => {
                (self.books, self.refused) = (after, None);
                plan
            }
            Err(miss) => {
                self.refused = Some(miss.why).filter(|_| matches!(miss.held, Held::Refused | Held::Malformed));
                self.hold(seen, &news)
            }
        }
    }

    fn asked(&self) -> Option<Asked> {
        Some(self.link.asked())
    }
}

fn question<'a>(books: &'a Books, refused: Option<&'a str>, seen: &'a Observation) -> Question<'a> {
    let held = books.slots().iter().map(|s| {
        let hold = Hold { core_units: s.own.cores, ways: s.own.ways, mba_pct: Some(s.mba_pct), why: None };
        (s.id.as_str(), hold)
    });
    Question {
        seq: 0,
        seen,
        held: held.collect(),
        crowd: seen.lc().map(|s| s.id.as_str()).filter(|id| books.is_crowded(id)).collect(),
        be_mba_pct: books.be_mba_pct,
        free: Count::from(books.free()),
        be_lacks: Count::from(books.be_lacks()),
        refused,
    }
}

/// Enter an answer in the books: the books that result, and the plan that puts them in force.
///
/// In the order of our own policies: who is to have less gives first, then newcomers get theirs, then who is to have more.
fn enter(books: &Books, seen: &Observation, answer: Answer) -> Result<(Books, Plan), Miss> {
    if let Some(error) = answer.error {
        return Err(Miss::new(Held::Failed, format!("it could not decide: {}", cut(&error))));
    }
    let mut after = books.clone();
    entered(&mut after, seen, answer).map(|plan| (after, plan)).map_err(|why| Miss::new(Held::Refused, why))
}

fn entered(books: &mut Books, seen: &Observation, answer: Answer) -> Result<Plan, String> {
    let Answer { hold, crowd, be_mba_pct, reports, .. } = answer;
    for id in hold.keys().chain(&crowd) {
        match seen.get(id) {
            None => return Err(format!("service {id:?} is not here")),
            Some(s) if !s.is_lc() => return Err(format!("{id:?} is a BE job: jobs hold what no service does")),
            Some(_) => {}
        }
    }
    let least = books.least();
    for (id, h) in &hold {
        if !least.fits_in(h.amount()) {
            let least = words(least);
            return Err(format!("{id}: {}, but {least} are the least", words(h.amount())));
        }
        if let Some(pct) = h.mba_pct {
            check_mba(&books.platform, pct).map_err(|why| format!("{id}: {why}"))?;
        }
        if crowd.contains(id) {
            return Err(format!("{id}: is in `hold` and in `crowd`. Name it in one of them"));
        }
    }
    if let Some(held) = crowd.iter().find(|id| books.slot(id).is_some()) {
        return Err(format!("{held}: is in `crowd`, but holds something of its own already"));
    }
    let mut plan = Plan::default();
    let asked: Vec<(&str, &Hold)> = seen.lc().filter_map(|s| hold.get_key_value(&s.id)).map(|(id, h)| (id.as_str(), h)).collect();
    let wants = |books: &Books, id: &str, own: Amount| format!("{id}: {}, but {} are free", words(own), words(books.free()));
    for (id, h) in &asked {
        let Some(own) = books.slot(id).map(|s| s.own) else { continue };
        let less = own.at_most(h.amount());
        if less != own {
            books.set(id, less);
            act(seen, id, ActionKind::Shrink, h, &mut plan);
        }
    }
    for (id, h) in asked.iter().filter(|(id, _)| books.slot(id).is_none()).copied().collect::<Vec<_>>() {
        if books.admit(id, h.amount()) {
            act(seen, id, ActionKind::Place, h, &mut plan);
        } else if books.unit_is_left_for(id) {
            return Err(wants(books, id, h.amount()));
        } else {
            // By quota everybody in force needs a unit: there is none for it, whatever is free.
            books.crowd_in(id);
        }
    }
    for (id, h) in &asked {
        let Some(slot) = books.slot(id).cloned() else { continue };
        let more = slot.own.at_least(h.amount());
        if more != slot.own {
            if !books.set(id, more) {
                return Err(wants(books, id, h.amount()));
            }
            // More than a bounded service can make use of is no step.
            if books.slot(id).map(|s| s.own) != Some(slot.own) {
                act(seen, id, ActionKind::Grow, h, &mut plan);
            }
        }
        if let Some(pct) = h.mba_pct.filter(|pct| *pct != slot.mba_pct) {
            books.set_mba(id, pct);
            act(seen, id, if pct > slot.mba_pct { ActionKind::Grow } else { ActionKind::Shrink }, h, &mut plan);
        }
    }
    crowd.iter().for_each(|id| books.crowd_in(id));
    if let Some(pct) = be_mba_pct {
        check_mba(&books.platform, pct).map_err(|why| format!("be_mba_pct: {why}"))?;
        books.be_mba_pct = pct;
    }
    plan.changes = books.plan(seen)?.changes;
    plan.reports = checked(reports, seen)?;
    Ok(plan)
}

fn words(a: Amount) -> String {
    format!("{} core units and {} ways", a.cores, a.ways)
}

/// A text of strangers in a length that a record can bear.
fn cut(text: &str) -> String {
    text.chars().take(wire::MOST_WHY).collect()
}

fn check_mba(p: &Platform, pct: u8) -> Result<(), String> {
    match p.mba {
        None if pct == 100 => Ok(()),
        None => Err(format!("mba_pct {pct}, but the platform hands out no memory bandwidth. Leave it out")),
        Some(m) if (m.min_pct..=100).contains(&pct) && pct.is_multiple_of(m.step_pct.max(1)) => Ok(()),
        Some(m) => Err(format!("mba_pct {pct}. Give {} to 100, in steps of {}", m.min_pct, m.step_pct)),
    }
}

fn checked(mut reports: Vec<Report>, seen: &Observation) -> Result<Vec<Report>, String> {
    if reports.len() > MOST_REPORTS {
        return Err(format!("{} reports. Send {MOST_REPORTS} at most", reports.len()));
    }
    for report in &mut reports {
        let (Report::CannotPlace { service, .. }
        | Report::ExpectedSlowdown { service, .. }
        | Report::Migrate { service, .. }
        | Report::Withheld { service, .. }) = &report;
        if service != Report::ALL && seen.get(service).is_none() {
            return Err(format!("a report is of service {service:?}, which is not here"));
        }
        if let Report::CannotPlace { why, .. } | Report::Migrate { why, .. } | Report::Withheld { why, .. } = report {
            *why = cut(why);
        }
    }
    Ok(reports)
}

fn act(seen: &Observation, id: &str, kind: ActionKind, h: &Hold, plan: &mut Plan) {
    let Some(s) = seen.get(id) else { return };
    let mut because = Because::seen(s).expect(HoldsIf::Qos { at_least: 1.0 });
    because.say("the policy", "core units", f64::from(h.core_units), "");
    because.say("the policy", "ways", f64::from(h.ways), "");
    let why = h.why.as_deref().map_or_else(|| format!("the policy says {}", words(h.amount())), cut);
    plan.actions.push(Action { service: id.into(), kind, why, because });
}

#[cfg(test)]
mod tests;
