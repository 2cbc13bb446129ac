//! `surefootd schema`: the columns of what this program writes, so that readers can be checked against them.

use crate::base::cli;
use crate::base::error::Result;
use crate::base::say;
use crate::line;
use arrow_schema::Schema;
use serde_json::{json, Value};

fn columns(s: &Schema) -> Vec<Value> {
    s.fields().iter().map(|f| json!({ "name": f.name(), "type": f.data_type().to_string(), "nullable": f.is_nullable() })).collect()
}

/// # Errors
/// See [`say::print`].
pub fn print(args: &cli::Schema) -> Result<()> {
    let all =
        [("samples", crate::sweep::rows::schema()), ("eval", crate::eval::row_schema()), ("timelines", crate::eval::timeline_schema())];
    if args.json {
        let all: serde_json::Map<String, Value> = all.iter().map(|(n, s)| (n.to_string(), Value::from(columns(s)))).collect();
        return say::json(&all);
    }
    let mut page = String::new();
    for (name, schema) in all {
        line!(page, "{name}");
        for f in schema.fields() {
            line!(page, "  {:<24} {}{}", f.name(), f.data_type(), if f.is_nullable() { ", may be null" } else { "" });
        }
    }
    say::print(&page)
}
