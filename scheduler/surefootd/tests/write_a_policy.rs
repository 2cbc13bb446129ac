//! The policy of docs/write-a-policy.md, on the bench that all policies are compared on.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

#[allow(dead_code)]
#[path = "../examples/my_policy.rs"]
mod my_policy;

mod common;

use my_policy::FollowsLoad;
use surefoot_policy::books::Books;
use surefoot_policy::{by_name, Guarded, ModelSet, Policy};
use surefootd::eval::run::{run, EvalRow};
use surefootd::stage::virtual_target::VirtualTarget;
use surefootd::stage::workload::Workload;

fn row(workload: &str, policy: &mut dyn Policy, at: &VirtualTarget) -> EvalRow {
    let file = common::root().join(format!("workloads/sets/demo/{workload}.toml"));
    run(at, &Workload::read(&file, &at.target()).unwrap(), policy, 1, false).unwrap().0
}

/// The whole file is what the guide promises: less than 60 lines.
#[test]
fn it_is_short() {
    assert!(include_str!("../examples/my_policy.rs").lines().count() < 60);
}

/// Its plans are valid, it does better than leaving things alone, and the same seed gives the same row.
#[test]
fn it_runs_on_the_bench() {
    let at = VirtualTarget::of_platform("server-1", None).unwrap();
    let mine = || Guarded::new(Box::new(FollowsLoad { books: Books::new(&at.platform) }), &at.platform);
    for workload in ["spike", "three-lc-steps"] {
        let got = row(workload, &mut mine(), &at);
        let left_alone = row(workload, by_name("unmanaged", &at.platform, ModelSet::default(), 1).unwrap().as_mut(), &at);
        assert_eq!(got.refused_plans, 0);
        assert!(
            got.qos_violation_s.unwrap() < 0.5 * left_alone.qos_violation_s.unwrap(),
            "{workload}: {} {}",
            got.qos_violation_s.unwrap(),
            left_alone.qos_violation_s.unwrap()
        );
        let again = row(workload, &mut mine(), &at);
        assert_eq!((got.qos_violation_s, got.actions, got.emu), (again.qos_violation_s, again.actions, again.emu));
    }
}
