//! The definition of RCliff and OAA is `pipelines/label.py`: its vectors, and what this crate makes of them.

use surefoot_search::{label, Found, Question, Span};

fn cell(v: &serde_json::Value) -> (usize, usize) {
    let at = |i: usize| v[i].as_u64().expect("an index") as usize;
    (at(0), at(1))
}

/// Every plane of `tests/vectors/labels.json` (full, with holes, noisy, overloaded) has the label that the label stage gives it:
/// RCliff, OAA, bounds, exact or not.
#[test]
fn labels_are_those_of_the_label_stage() {
    let text = include_str!("../../../tests/vectors/labels.json");
    let cases: Vec<serde_json::Value> = serde_json::from_str(text).expect("JSON");
    assert!(cases.len() >= 400);
    let (mut exact, mut bounded, mut none) = (0, 0, 0);
    for (i, case) in cases.iter().enumerate() {
        let grid = case["p99_ms"].as_array().expect("rows");
        let q = Question {
            rows: grid.len(),
            columns: grid[0].as_array().expect("a row").len(),
            target_ms: case["target_ms"].as_f64().expect("a number"),
            from_least: (case["from_least"][0] == true, case["from_least"][1] == true),
            margin: cell(&case["margin"]),
            kink_row: None,
        };
        let value = |v: &serde_json::Value| match v {
            serde_json::Value::Null => f64::NAN,
            serde_json::Value::String(_) => f64::INFINITY,
            v => v.as_f64().expect("a number"),
        };
        let p99_ms: Vec<f64> = grid.iter().flat_map(|row| row.as_array().expect("a row")).map(value).collect();
        let want = &case["label"];
        match label(&q, &p99_ms) {
            Found::NoFeasibleCell { exact } => {
                assert!(want.is_null() && case["exact"] == exact, "{i}: {want}");
                none += 1;
            }
            Found::Label(l) => {
                let spans = ["rcliff_rows", "rcliff_columns", "oaa_rows", "oaa_columns"].map(|name| cell(&want[name]));
                let pair = |s: Span| (s.low, s.high);
                assert_eq!([l.rcliff_rows, l.rcliff_columns, l.oaa_rows, l.oaa_columns].map(pair), spans, "{i}");
                assert_eq!((l.rcliff, l.oaa, l.exact), (cell(&want["rcliff"]), cell(&want["oaa"]), case["exact"] == true), "{i}");
                *(if l.exact { &mut exact } else { &mut bounded }) += 1;
            }
        }
    }
    assert!(exact > 50 && bounded > 50 && none > 50, "{exact} exact, {bounded} bounded, {none} without a feasible cell");
}
