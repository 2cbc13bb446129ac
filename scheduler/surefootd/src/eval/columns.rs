//! Columns of evaluation rows: one list, read by the schema, the Parquet file and the CSV file.

use super::run::EvalRow;
use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow_schema::{DataType, Field};
use std::sync::Arc;

/// How a column's value is read from a row. None is null, in CSV an empty cell.
#[derive(Clone, Copy)]
enum Read {
    Text(fn(&EvalRow) -> Option<String>),
    Truth(fn(&EvalRow) -> bool),
    Whole(fn(&EvalRow) -> Option<i64>),
    Real(fn(&EvalRow) -> Option<f64>),
}

/// One column (docs/eval-output.md).
pub struct Column {
    name: &'static str,
    nullable: bool,
    read: Read,
}

use Read::{Real, Text, Truth, Whole};

const fn always(name: &'static str, read: Read) -> Column {
    Column { name, nullable: false, read }
}

const fn maybe(name: &'static str, read: Read) -> Column {
    Column { name, nullable: true, read }
}

/// In the order of the files.
pub static COLUMNS: [Column; 31] = [
    always("workload", Text(|r| Some(r.workload.clone()))),
    always("policy", Text(|r| Some(r.policy.clone()))),
    always("platform", Text(|r| Some(r.platform.clone()))),
    always("plant", Whole(|r| Some(i64::from(r.plant)))),
    maybe("world", Text(|r| r.world.clone())),
    always("seed", Whole(|r| Some(r.seed as i64))),
    always("converged", Truth(|r| r.converged)),
    maybe("convergence_s", Real(|r| r.convergence_s)),
    always("actions", Whole(|r| Some(r.actions))),
    maybe("emu", Real(|r| r.emu)),
    maybe("be_throughput", Real(|r| r.be_throughput)),
    maybe("qos_violation_s", Real(|r| r.qos_violation_s)),
    maybe("worst_slowdown", Real(|r| r.worst_slowdown)),
    maybe("cores_used", Real(|r| r.cores_used)),
    maybe("ways_used", Real(|r| r.ways_used)),
    maybe("mbw_used", Real(|r| r.mbw_used)),
    maybe("decision_us_p50", Real(|r| r.decision_us_p50)),
    maybe("decision_us_p99", Real(|r| r.decision_us_p99)),
    maybe("oracle_emu", Real(|r| r.oracle_emu)),
    always("qos_violation_by_lc_s", Text(|r| Some(serde_json::to_string(&r.qos_violation_by_lc_s).unwrap_or_default()))),
    maybe("offered_load", Real(|r| r.offered_load)),
    always("refused_plans", Whole(|r| Some(r.refused_plans))),
    always("self_violation_s", Real(|r| Some(r.self_violation_s))),
    always("reclaim_crossings", Whole(|r| Some(r.reclaim_crossings))),
    always("deprive_crossings", Whole(|r| Some(r.deprive_crossings))),
    maybe("actions_per_min_settled", Real(|r| r.actions_per_min_settled)),
    maybe("self_violation_settled_s", Real(|r| r.self_violation_settled_s)),
    maybe("be_throughput_met", Real(|r| r.be_throughput_met)),
    maybe("emu_cosmos", Real(|r| r.emu_cosmos)),
    maybe("window_requests", Whole(|r| r.window_requests)),
    maybe("held_decisions", Whole(|r| r.held_decisions)),
];

impl Column {
    pub fn field(&self) -> Field {
        let of = match self.read {
            Text(_) => DataType::Utf8,
            Truth(_) => DataType::Boolean,
            Whole(_) => DataType::Int64,
            Real(_) => DataType::Float64,
        };
        Field::new(self.name, of, self.nullable)
    }

    pub fn values(&self, rows: &[EvalRow]) -> ArrayRef {
        match self.read {
            Text(f) => Arc::new(StringArray::from_iter(rows.iter().map(f))),
            Truth(f) => Arc::new(BooleanArray::from_iter(rows.iter().map(|r| Some(f(r))))),
            Whole(f) => Arc::new(Int64Array::from_iter(rows.iter().map(f))),
            Real(f) => Arc::new(Float64Array::from_iter(rows.iter().map(f))),
        }
    }

    fn cell(&self, row: &EvalRow) -> String {
        let text = match self.read {
            Text(f) => f(row),
            Truth(f) => Some(f(row).to_string()),
            Whole(f) => f(row).map(|n| n.to_string()),
            Real(f) => f(row).map(|x| x.to_string()),
        };
        text.map_or(String::new(), quoted)
    }
}

/// A cell of a CSV file.
pub fn quoted(text: String) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

/// A line of names, and one for each row.
pub fn csv(rows: &[EvalRow]) -> String {
    let head = COLUMNS.each_ref().map(|c| c.name).join(",");
    let lines = rows.iter().map(|r| COLUMNS.each_ref().map(|c| c.cell(r)).join(","));
    std::iter::once(head).chain(lines).map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each field of a row is a column under its own name; names with commas and quotes stay one cell.
    #[test]
    fn every_field_is_a_column() {
        let row = EvalRow { workload: "a,\"b\"".into(), convergence_s: Some(1.5), ..EvalRow::default() };
        let fields = serde_json::to_value(&row).unwrap();
        let (mut fields, mut names): (Vec<String>, Vec<&str>) =
            (fields.as_object().unwrap().keys().cloned().collect(), COLUMNS.iter().map(|c| c.name).collect());
        fields.sort();
        names.sort_unstable();
        assert_eq!(fields, names);
        let text = csv(&[row]);
        let line = text.lines().nth(1).unwrap();
        assert!(line.starts_with("\"a,\"\"b\"\"\",,,0,,0,false,1.5,0,"), "{line}");
        assert_eq!(text.lines().count(), 2);
    }
}
