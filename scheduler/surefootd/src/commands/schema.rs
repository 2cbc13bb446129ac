//! `surefootd schema`: the columns of what this program writes, the resources and the words that stand in them, so that readers
//! can be checked against them.

use crate::base::cli;
use crate::base::error::Result;
use crate::base::say;
use crate::line;
use crate::node::metrics::families::Family;
use crate::node::metrics::Metrics;
use crate::node::phases::Own;
use crate::node::upper::What;
use crate::sweep::manifest::SCHEMA_VERSION;
use crate::sweep::rows::{State, MARKS};
use arrow_schema::Schema;
use serde_json::{json, Value};
use surefoot_learn::dqn;
use surefoot_learn::manifest::ACTION_NAMES;
use surefoot_policy::{Listed, Settings};
use surefoot_server::{ActionKind, LatencyFrom, Quantity, SendLoop, Verdict, FEATURE_NAMES, QUANTITIES};

fn columns(s: &Schema) -> Vec<Value> {
    s.fields().iter().map(|f| json!({ "name": f.name(), "type": f.data_type().to_string(), "nullable": f.is_nullable() })).collect()
}

/// Words with a meaning in files, by what they are words for.
fn words() -> Value {
    json!({
        "features": FEATURE_NAMES,
        "states": State::ALL,
        "marks": MARKS,
        "verdicts": Verdict::ALL.map(Verdict::as_str),
        "loops": SendLoop::ALL.map(SendLoop::as_str),
        "latency_from": LatencyFrom::ALL.map(LatencyFrom::as_str),
        "action_kinds": ActionKind::ALL.map(ActionKind::as_str),
        "events": What::ALL.map(What::as_str),
        "model_c_actions": ACTION_NAMES,
    })
}

/// What a service can hold, in the order in which it is shown.
fn resources() -> Value {
    let one = |q: &Quantity| {
        json!({
            "name": q.resource.name(), "key": q.key, "unit": q.unit, "words": q.words, "limit": q.limit, "range": q.range, "set_in": q.set_in,
        })
    };
    QUANTITIES.iter().map(one).collect()
}

/// Every family of /metrics.
fn metrics() -> Value {
    let one = |f: &Family| json!({ "name": f.name, "type": f.kind.as_str(), "help": f.help });
    Metrics::default().families(&Own::default()).iter().map(one).collect()
}

/// Settings of policies, with their bounds.
fn settings() -> Value {
    let one = |s: Listed| {
        json!({
            "name": s.name, "default": s.default, "low": s.low, "high": s.high, "whole": s.whole, "is_list": s.is_list, "unit": s.unit,
            "meaning": s.meaning, "source": s.source,
        })
    };
    Settings::listed().into_iter().map(one).collect()
}

/// Numbers that both sides of a file must agree on.
fn numbers() -> Value {
    json!({ "manifest_version": SCHEMA_VERSION, "osml_reach": dqn::REACH, "osml_actions": dqn::ACTIONS })
}

/// # Errors
/// See [`say::print`].
pub fn print(args: &cli::Schema) -> Result<()> {
    let all =
        [("samples", crate::sweep::rows::schema()), ("eval", crate::eval::row_schema()), ("timelines", crate::eval::timeline_schema())];
    if args.json {
        let tables = all.iter().map(|(n, s)| (*n, Value::from(columns(s))));
        let all = tables.chain([
            ("resources", resources()),
            ("words", words()),
            ("metrics", metrics()),
            ("numbers", numbers()),
            ("settings", settings()),
        ]);
        return say::json(&all.map(|(n, v)| (n.to_string(), v)).collect::<serde_json::Map<String, Value>>());
    }
    let mut page = String::new();
    for (name, schema) in all {
        line!(page, "{name}");
        for f in schema.fields() {
            line!(page, "  {:<24} {}{}", f.name(), f.data_type(), if f.is_nullable() { ", may be null" } else { "" });
        }
    }
    line!(page, "resources");
    for q in &QUANTITIES {
        line!(page, "  {:<24} {}, {}", q.key, q.unit, q.range);
    }
    say::print(&page)
}
