//! What `cargo bench --bench compare -- --guard` lets pass, with figures made up for it.

// The benchmark uses the rest of these.
#[allow(dead_code)]
#[path = "../benches/compare/budget.rs"]
mod budget;
#[allow(dead_code)]
#[path = "../benches/compare/guard.rs"]
mod judgement;
#[allow(dead_code)]
#[path = "../benches/compare/names.rs"]
mod names;

use judgement::{By, Cost, Figures, Limit, Outcome, exceeds, excesses, judge, limits};
use names::Side;

/// A run with the usual figures, apart from one regression. Where nothing else is known, a figure
/// is 1.
#[derive(Default)]
struct Run {
    /// What the regression costs: this operation of ours, this many times as much.
    worse: Option<(Limit, f64)>,
    /// The group without figures.
    left_out: Option<&'static str>,
}

impl Run {
    fn usual(side: Side, (case, operation, cost): (&str, &str, Cost)) -> f64 {
        let of =
            |limit: &&Limit| (&*limit.case, limit.operation, limit.cost) == (case, operation, cost);
        let limits = limits();
        let by = |by: fn(&By) -> bool| limits.iter().filter(of).find(|limit| by(&limit.by));
        match side {
            Side::Ours => by(|by| matches!(by, By::Ours(_) | By::Nothing)).map_or(1.0, |l| l.usual),
            Side::Reference => by(|by| *by == By::Reference).map_or(1.0, |limit| 1.0 / limit.usual),
            Side::Floor => by(|by| *by == By::Floor).map_or(1.0, |limit| 1.0 / limit.usual),
        }
    }

    fn outcome(&self) -> Outcome {
        Outcome::of(&judge(self), self.left_out.as_slice())
    }
}

impl Figures for Run {
    fn figure(&self, side: Side, case: &str, operation: &'static str, cost: Cost) -> Option<f64> {
        let all = limits();
        let group = all.iter().find(|limit| limit.case == case).map(|limit| limit.group);
        if self.left_out.is_some() && self.left_out == group {
            return None;
        }
        let usual = Run::usual(side, (case, operation, cost));
        let worse = self.worse.iter().find(|(limit, _)| {
            (&*limit.case, limit.operation, limit.cost, side) == (case, operation, cost, Side::Ours)
        });
        Some(worse.map_or(usual, |(_, times)| if usual == 0.0 { 1.0 } else { usual * times }))
    }
}

#[test]
fn a_usual_run_passes() {
    let Outcome { passed, failed, skipped } = Run::default().outcome();
    assert_eq!((passed, failed, skipped), (limits().len(), 0, 0));
}

#[test]
fn noise_of_a_fifth_passes() {
    for limit in limits().into_iter().filter(|limit| limit.usual > 0.0) {
        let name = limit.name();
        let run = Run { worse: Some((limit, 1.2)), ..Run::default() };
        assert_eq!(run.outcome().failed, 0, "{name}");
    }
}

/// Twice the cost, and a process where there was none.
#[test]
fn a_regression_of_any_figure_fails() {
    for limit in limits() {
        let (name, group) = (limit.name(), limit.group);
        let run = Run { worse: Some((limit, 2.0)), ..Run::default() };
        let judged = judge(&run);
        let budget = judged.iter().find(|budget| budget.name == name).unwrap();
        assert_eq!(budget.verdict(), "MISSED", "{name}");
        assert!(Outcome::of(&judged, &[]).failed > 0, "{name}");
        assert!(excesses(&judged).iter().any(|line| line.starts_with(&name)), "{name}");
        assert!(exceeds(&judged, group), "{name}: measured again");
    }
}

#[test]
fn figures_that_are_missing_fail() {
    let run = Run { left_out: Some("macvlan"), ..Run::default() };
    assert_eq!(run.outcome().skipped, 2, "the machine makes no macvlan");
    assert_eq!(Outcome::of(&judge(&run), &[]).failed, 2, "it makes them");
}

#[test]
fn names_of_limits_are_their_own() {
    let mut names: Vec<String> = limits().iter().map(Limit::name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}
