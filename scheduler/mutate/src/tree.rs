//! Changes of JSON and TOML that keep it JSON and TOML.

use crate::hostile;
use fastrand::Rng;
use serde_json::{Map, Value};

/// Elements of a list that is made long.
const LONG: usize = 20_000;
/// Levels of what is made deep: below what the parsers refuse, and above.
const DEEP: [usize; 3] = [20, 100, 500];

/// A change of one value; None for what is no JSON.
pub fn json(rng: &mut Rng, from: &[u8]) -> Option<Vec<u8>> {
    let mut v: Value = serde_json::from_slice(from).ok()?;
    change(rng, &mut v);
    let text = serde_json::to_string(&v).ok()?;
    Some(twice(rng, text).into_bytes())
}

/// A change of one document; None for what is no TOML, or would be none.
pub fn toml(rng: &mut Rng, from: &[u8]) -> Option<Vec<u8>> {
    let table: toml::Table = std::str::from_utf8(from).ok()?.parse().ok()?;
    let mut v = serde_json::to_value(&table).ok()?;
    change(rng, &mut v);
    let table: toml::Table = serde_json::from_value(bare(v)?).ok()?;
    Some(toml::to_string(&table).ok()?.into_bytes())
}

/// Without what TOML has no form for.
fn bare(v: Value) -> Option<Value> {
    Some(match v {
        Value::Null => return None,
        Value::Array(l) => l.into_iter().filter_map(bare).collect(),
        Value::Object(m) => Value::Object(m.into_iter().filter_map(|(k, v)| Some((k, bare(v)?))).collect()),
        // Beyond what an integer of TOML holds.
        Value::Number(n) if n.as_i64().is_none() => Value::from(n.as_f64().unwrap_or(0.0)),
        other => other,
    })
}

/// Now and then a key stands twice.
fn twice(rng: &mut Rng, text: String) -> String {
    let keys: Vec<usize> = text.match_indices("{\"").map(|(i, _)| i).collect();
    if keys.is_empty() || rng.u8(0..12) > 0 {
        return text;
    }
    let at = keys[rng.usize(0..keys.len())] + 1;
    let Some(end) = text[at + 1..].find('"').map(|n| at + 1 + n + 1) else { return text };
    format!("{}{}:null,{}", &text[..at], &text[at..end], &text[at..])
}

fn count(v: &Value) -> usize {
    1 + match v {
        Value::Array(l) => l.iter().map(count).sum(),
        Value::Object(m) => m.values().map(count).sum(),
        _ => 0,
    }
}

/// The `n`th value, the whole being the first.
fn nth(v: &mut Value, n: usize) -> Option<&mut Value> {
    if n == 0 {
        return Some(v);
    }
    let mut left = n - 1;
    let below: Vec<&mut Value> = match v {
        Value::Array(l) => l.iter_mut().collect(),
        Value::Object(m) => m.values_mut().collect(),
        _ => vec![],
    };
    for c in below {
        let here = count(c);
        if left < here {
            return nth(c, left);
        }
        left -= here;
    }
    None
}

fn change(rng: &mut Rng, v: &mut Value) {
    let n = count(v);
    let other = {
        let i = rng.usize(0..n);
        nth(v, i).map_or(Value::Null, |x| x.clone())
    };
    let i = rng.usize(0..n);
    let Some(at) = nth(v, i) else { return };
    if rng.u8(0..6) == 0 {
        *at = other;
        return;
    }
    *at = match (at.take(), rng.u8(0..8)) {
        (_, 0) => any(rng),
        (old, 1) => deep(rng, old),
        (Value::Number(n), 2..=3) => near(rng, &n),
        (Value::Number(_), 4..=6) => number(rng),
        (Value::Bool(b), 2..=6) => Value::Bool(!b),
        (Value::String(_), 2..=6) => Value::String(hostile::text(rng)),
        (Value::Array(l), 2..=7) => list(rng, l),
        (Value::Object(m), 2..=7) => object(rng, m),
        (old, _) => Value::Array(vec![old]),
    };
}

fn number(rng: &mut Rng) -> Value {
    let x = hostile::number(rng);
    match rng.u8(0..4) {
        0 => Value::from(x as i64),
        1 => Value::from(x as u64),
        2 => Value::from(rng.i64(-3..100)),
        _ => Value::from(x),
    }
}

/// A number of the same kind that is not far.
fn near(rng: &mut Rng, n: &serde_json::Number) -> Value {
    if let Some(i) = n.as_i64() {
        return Value::from([i.wrapping_add(1), i.wrapping_sub(1), i.wrapping_mul(2), i / 2, i.wrapping_neg()][rng.usize(0..5)]);
    }
    let x = n.as_f64().unwrap_or(0.0);
    Value::from([x * 2.0, x / 2.0, -x, x * 1e6, x * 1e-6, x.round()][rng.usize(0..6)])
}

fn any(rng: &mut Rng) -> Value {
    match rng.u8(0..7) {
        0 => Value::Null,
        1 => Value::Bool(rng.bool()),
        2 => number(rng),
        3 => Value::Array(vec![]),
        4 => Value::Object(Map::new()),
        5 => Value::Array((0..LONG).map(Value::from).collect()),
        _ => Value::String(hostile::text(rng)),
    }
}

fn deep(rng: &mut Rng, mut v: Value) -> Value {
    let in_lists = rng.bool();
    for _ in 0..DEEP[rng.usize(0..DEEP.len())] {
        v = if in_lists { Value::Array(vec![v]) } else { Value::Object(Map::from_iter([("a".to_string(), v)])) };
    }
    v
}

fn list(rng: &mut Rng, mut l: Vec<Value>) -> Value {
    if l.is_empty() {
        return Value::Array(vec![any(rng)]);
    }
    let i = rng.usize(0..l.len());
    match rng.u8(0..6) {
        0 => l.clear(),
        1 => drop(l.remove(i)),
        2 => l.insert(i, l[i].clone()),
        3 => l = l.iter().cycle().take(LONG).cloned().collect(),
        4 => l.reverse(),
        _ => l.push(any(rng)),
    }
    Value::Array(l)
}

fn object(rng: &mut Rng, mut m: Map<String, Value>) -> Value {
    let keys: Vec<String> = m.keys().cloned().collect();
    let Some(key) = (!keys.is_empty()).then(|| keys[rng.usize(0..keys.len())].clone()) else {
        return Value::Object(Map::from_iter([(hostile::text(rng), any(rng))]));
    };
    match rng.u8(0..5) {
        0 => drop(m.remove(&key)),
        1 => {
            let v = m.remove(&key).unwrap_or_default();
            m.insert(hostile::text(rng), v);
        }
        2 => {
            let v = m[&key].clone();
            m.extend((0..LONG / 10).map(|i| (format!("{key}{i}"), v.clone())));
        }
        3 => {
            m.insert(hostile::text(rng), any(rng));
        }
        _ => {
            m.insert(key, any(rng));
        }
    }
    Value::Object(m)
}
