//! The figures of README.md are those of docs/performance.md: the benchmark writes both in one run,
//! `cargo bench --bench compare -- --markdown docs/performance.md --readme README.md`.

use super::Page;

/// What the six rows are about.
const FIGURES: [&str; 6] = [
    "ADD of bridge, portmap, firewall, tuning, bandwidth",
    "processes that this ADD starts",
    "ADD of host-local among 30000 leases",
    "size on disk",
    "left after `kill -9` at 20 moments of this ADD, then DEL and GC",
    "new connections per second to a published port, 400 containers",
];
/// Names of the benchmark's cases.
const CHAIN: &str = "bridge ipMasq+portmap+firewall+tuning+bandwidth";
const CONNECTIONS_OF_A_RUN: f64 = 500.0;

/// The rows between the marks of the summary.
fn summary(page: &Page) -> Vec<Vec<String>> {
    let lines = page.text.lines();
    let rest = lines.skip_while(|line| !line.starts_with("<!-- benches: summary"));
    let inside = rest.take_while(|line| *line != "<!-- benches: end of the summary -->").skip(1);
    let text = inside.map(|line| format!("{line}\n")).collect();
    Page { path: page.path.clone(), text }.rows(None)
}

/// The cells of ours and of the reference in a row of the benchmark's table.
fn measured(page: &Page, case: &str) -> [String; 2] {
    let rows = page.rows(Some("Figures"));
    let row = rows.iter().find(|row| row[0] == case);
    let row = row.unwrap_or_else(|| panic!("{} has no row {case:?}", page.path));
    [row[1].clone(), row[2].clone()]
}

/// The place of a column in the table of costs.
fn column(page: &Page, heading: &str) -> usize {
    let headings = page.text.lines().find(|line| line.starts_with("| case | ")).unwrap();
    headings.trim_matches('|').split('|').position(|cell| cell.trim() == heading).unwrap()
}

/// The text before the first bracket: the median.
fn median(cell: &str) -> String {
    cell.split(" (").next().unwrap().to_owned()
}

fn milliseconds(cell: &str) -> f64 {
    median(cell).strip_suffix(" ms").unwrap().parse().unwrap()
}

#[test]
fn the_readme_has_the_six_figures_of_the_page() {
    let readme = summary(&Page::read("README.md"));
    let labels: Vec<&str> = readme.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(labels, FIGURES);
    assert!(readme.iter().all(|row| row.len() == 3 && !row.contains(&String::new())), "{readme:?}");
    assert_eq!(readme, summary(&Page::read("docs/performance.md")), "README and page disagree");
}

#[test]
fn the_six_figures_are_those_of_the_page_s_tables() {
    let page = Page::read("docs/performance.md");
    let rows = summary(&page);
    let of = |figure: usize| [rows[figure][1].clone(), rows[figure][2].clone()];
    let chain = format!("{CHAIN} ADD");
    assert_eq!(of(0), measured(&page, &chain).map(|cell| median(&cell)));
    let row = page.rows(Some("Figures")).into_iter().find(|row| row[0] == chain).unwrap();
    assert_eq!(of(1).join(" / "), row[column(&page, "processes ours / ref")]);
    let leases = measured(&page, "host-local, 30000 leases ADD");
    assert_eq!(of(2), leases.map(|cell| median(&cell)));
    assert_eq!(of(3), ["ours", "reference"].map(|side| size(&page, side)));
    let left = measured(&page, &format!("{CHAIN}, killed at 20 moments ADD"));
    assert_eq!(of(4), left.map(|cell| cell.split(" left").next().unwrap().to_owned()));
    let times = measured(&page, "published port of 400 containers 500 connections");
    for (rate, time) in of(5).iter().zip(times) {
        let expected = CONNECTIONS_OF_A_RUN * 1e3 / milliseconds(&time);
        let rate: f64 = rate.parse().unwrap();
        assert!((rate / expected - 1.0).abs() < 0.01, "{rate} of {time}: expected {expected}");
    }
}

/// As the summary has it, from the line of the page's tables.
fn size(page: &Page, side: &str) -> String {
    let begin = format!("size, {side}: ");
    let line = page.text.lines().find_map(|line| line.strip_prefix(&begin)).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    format!("{:.1} MB, {} plugins", words[0].parse::<f64>().unwrap() / 1e6, words[3])
}
