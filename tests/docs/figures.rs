//! The figures of README.md are those of docs/performance.md and of docs/evidence: the benchmark
//! writes them in one run, `cargo bench --bench compare -- --markdown docs/performance.md --readme
//! README.md`.

use super::Page;
use super::evidence::{Table, generated};

/// What the six rows are about.
const FIGURES: [&str; 6] = [
    "ADD of bridge, portmap, firewall, tuning, bandwidth",
    "processes that this ADD starts",
    "ADD of host-local among 30000 leases",
    "size on disk",
    "objects left after `kill -9` at 20 moments of this ADD, then DEL and GC",
    "new connections per second to a published port, 400 containers",
];
/// Names of the benchmark's cases.
const CHAIN: &str = "bridge ipMasq+portmap+firewall+tuning+bandwidth";
const CONNECTIONS_OF_A_RUN: f64 = 500.0;

/// The rows of the six figures.
fn summary(page: &str) -> Vec<Vec<String>> {
    generated(&Page::read(page), "six figures").rows(None)
}

/// The figures of ours and of the reference in a row of the benchmark's calls.
fn measured(case: &str, operation: &str, figure: &str) -> [String; 2] {
    let calls = Table::read("calls");
    ["ours", "reference"].map(|side| calls.cell(&[case, operation], &format!("{side} {figure}")))
}

#[test]
fn the_readme_has_the_six_figures_of_the_page() {
    let readme = summary("README.md");
    let labels: Vec<&str> = readme.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(labels, FIGURES);
    assert!(readme.iter().all(|row| row.len() == 3 && !row.contains(&String::new())), "{readme:?}");
    assert_eq!(readme, summary("docs/performance.md"), "README and page disagree");
}

#[test]
fn the_six_figures_are_those_of_the_evidence() {
    let rows = summary("README.md");
    let of = |figure: usize| [rows[figure][1].clone(), rows[figure][2].clone()];
    let milliseconds = |figure: String| format!("{figure} ms");
    assert_eq!(of(0), measured(CHAIN, "ADD", "ms").map(milliseconds));
    assert_eq!(of(1), measured(CHAIN, "ADD", "processes"));
    assert_eq!(of(2), measured("host-local, 30000 leases", "ADD", "ms").map(milliseconds));
    assert_eq!(of(3), ["ours", "reference"].map(size));
    let (left, killed) = (Table::read("left"), format!("{CHAIN}, killed at 20 moments"));
    let all = |side| left.cell(&[&killed, "ADD", side, "all"], "left");
    assert_eq!(of(4), ["ours", "reference"].map(all));
    let times = measured("published port of 400 containers", "500 connections", "ms");
    for (rate, time) in of(5).iter().zip(times) {
        let expected = CONNECTIONS_OF_A_RUN * 1e3 / time.parse::<f64>().unwrap();
        let rate: f64 = rate.parse().unwrap();
        assert!((rate / expected - 1.0).abs() < 0.01, "{rate} of {time}: expected {expected}");
    }
}

/// As the summary has it.
fn size(side: &str) -> String {
    let sizes = Table::read("sizes");
    let bytes: f64 = sizes.cell(&[side], "bytes").parse().unwrap();
    format!("{:.1} MB, {} plugins", bytes / 1e6, sizes.cell(&[side], "plugins"))
}
