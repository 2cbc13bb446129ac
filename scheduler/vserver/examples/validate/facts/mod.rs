//! The facts that the model has to reproduce: published ones, closed forms, physics. A module a group; each fact is one
//! call that says what is expected, from which source, and what the model gives.

mod a_max_load;
mod b_moses;
mod c_img_dnn;
mod d_cliffs;
mod e_threads;
mod f_oaa;
mod g_colocation;
mod h_closed_loop;
mod harvesters;
mod i_physics;
mod j_cosmos;
mod k_core_use;
mod l_closed_forms;
mod lab;
mod m_simulation;
mod n_harvest;
mod o_second_edition;
mod p_cosmos_loop;
mod q_cosmos_silo;
mod r_equal_shares;

pub use lab::Lab;

/// What a fact can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Parameters were set with this fact in view.
    Fit,
    /// No parameter was set for it.
    Pred,
    /// Mathematics, physics or implementation.
    Check,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Fit, Kind::Pred, Kind::Check];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Fit => "fit",
            Kind::Pred => "pred",
            Kind::Check => "check",
        }
    }
}

/// One fact and what the model makes of it.
#[derive(Clone, Debug)]
pub struct Fact {
    pub kind: Kind,
    pub source: &'static str,
    pub text: String,
    pub expected: String,
    pub got: String,
    pub holds: bool,
}

impl Fact {
    pub fn new(
        kind: Kind,
        source: &'static str,
        text: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
        holds: bool,
    ) -> Self {
        Fact { kind, source, text: text.into(), expected: expected.into(), got: got.into(), holds }
    }

    /// A value within a factor of the expected one.
    pub fn near(kind: Kind, source: &'static str, text: impl Into<String>, want: f64, factor: f64, got: f64) -> Self {
        let holds = want / factor <= got && got <= want * factor;
        Fact::new(kind, source, text, format!("{} (x/÷ {factor})", three(want)), three(got), holds)
    }
}

/// Three significant digits; from 1000 on whole numbers.
pub fn three(x: f64) -> String {
    if x == 0.0 || x.abs() >= 999.5 {
        return format!("{x:.0}");
    }
    let decimals = (2 - x.abs().log10().floor() as i32).max(0) as usize;
    let text = format!("{x:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

/// `[1, 2, 3]`.
pub fn list<T: ToString>(of: impl IntoIterator<Item = T>) -> String {
    format!("[{}]", of.into_iter().map(|x| x.to_string()).collect::<Vec<_>>().join(", "))
}

/// Never falls.
pub fn ascending<T: PartialOrd>(of: &[T]) -> bool {
    of.windows(2).all(|w| w[0] <= w[1])
}

/// A group of facts, numbered from `first`.
pub struct Group {
    pub first: usize,
    pub title: &'static str,
    /// Requests are simulated one by one.
    pub by_request: bool,
    pub facts: fn(&mut Lab) -> Vec<Fact>,
}

const fn quick(first: usize, title: &'static str, facts: fn(&mut Lab) -> Vec<Fact>) -> Group {
    Group { first, title, by_request: false, facts }
}

pub const GROUPS: [Group; 18] = [
    quick(1, "Maximum loads", a_max_load::facts),
    quick(37, "Moses", b_moses::facts),
    quick(46, "Img-dnn", c_img_dnn::facts),
    quick(51, "Other cliffs", d_cliffs::facts),
    quick(70, "Threads", e_threads::facts),
    quick(72, "OAA and RCliff", f_oaa::facts),
    quick(77, "Co-locations", g_colocation::facts),
    quick(82, "Closed loop", h_closed_loop::facts),
    quick(87, "Physics", i_physics::facts),
    quick(95, "COSMOS", j_cosmos::facts),
    Group { first: 105, title: "SmartHarvest: core use", by_request: true, facts: k_core_use::facts },
    quick(113, "Queueing: closed forms", l_closed_forms::facts),
    Group { first: 121, title: "Queueing: request by request", by_request: true, facts: m_simulation::facts },
    Group { first: 139, title: "Less kind", by_request: true, facts: o_second_edition::facts },
    quick(160, "COSMOS in closed loop", p_cosmos_loop::facts),
    quick(172, "COSMOS: silo", q_cosmos_silo::facts),
    quick(177, "Equal shares", r_equal_shares::facts),
    Group { first: 201, title: "SmartHarvest: harvesting", by_request: true, facts: n_harvest::facts },
];

/// A fact with its number and what the prototype made of it.
#[derive(Clone, Debug)]
pub struct Row {
    pub number: usize,
    pub fact: Fact,
    /// None: the prototype did not know this fact.
    pub prototype: Option<Prototype>,
}

impl Row {
    /// The prototype passes it and this model does not.
    pub fn worse(&self) -> bool {
        self.prototype.as_ref().is_some_and(|p| p.holds) && !self.fact.holds
    }

    /// "pass" or "FAIL", and where the prototype differs.
    pub fn verdict(&self) -> &'static str {
        match (self.fact.holds, self.prototype.as_ref().map_or(self.fact.holds, |p| p.holds)) {
            (true, true) => "pass",
            (false, false) => "FAIL",
            (true, false) => "pass (prototype: FAIL)",
            (false, true) => "FAIL (prototype: pass)",
        }
    }
}

/// What the reference prototype gave for a fact.
#[derive(Clone, Debug)]
pub struct Prototype {
    pub fact: String,
    pub got: String,
    pub holds: bool,
}

/// All rows of prototype.toml, in order: row `i` is fact number `i + 1`.
///
/// # Panics
/// If the file is not what it should be; it is part of this program.
pub fn prototype() -> Vec<Prototype> {
    let all: toml::Table = include_str!("prototype.toml").parse().expect("prototype.toml");
    let rows = all["rows"].as_array().expect("rows");
    rows.iter()
        .enumerate()
        .map(|(i, r)| {
            assert_eq!(r["number"].as_integer(), Some(i as i64 + 1), "prototype.toml: numbers are in order");
            let text = |key: &str| r[key].as_str().expect("a text").to_string();
            Prototype { fact: text("fact"), got: text("got"), holds: r["holds"].as_bool().expect("true or false") }
        })
        .collect()
}

/// The facts of the groups that `wanted` says, in order.
///
/// # Panics
/// If a group has more or fewer facts than prototype.toml, or others.
pub fn table(lab: &mut Lab, mut wanted: impl FnMut(&Group) -> bool) -> Vec<Row> {
    let known = prototype();
    let mut rows = Vec::new();
    for (i, group) in GROUPS.iter().enumerate() {
        if !wanted(group) {
            continue;
        }
        let next = GROUPS.get(i + 1).map_or(usize::MAX, |next| next.first);
        let facts = (group.facts)(lab);
        // Where the prototype has the group's facts, their number is known.
        let end = if group.first > known.len() { group.first + facts.len() } else { next.min(known.len() + 1) };
        assert!(facts.len() == end - group.first && end <= next, "facts of group {}", group.title);
        for (number, fact) in (group.first..end).zip(facts) {
            let prototype = known.get(number - 1).cloned();
            if let Some(p) = &prototype {
                assert_eq!(fact.text, p.fact, "fact {number} is another one in prototype.toml");
            }
            rows.push(Row { number, fact, prototype });
        }
    }
    rows
}
