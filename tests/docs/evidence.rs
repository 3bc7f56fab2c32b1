//! The tables of docs/evidence, and what the pages show of them. The programs that measure write
//! both: `tests/faults/run`, and `cargo bench --bench compare -- --markdown docs/performance.md`.

use std::collections::BTreeSet;
use std::fs;

use super::{Page, links, root};

/// A file of docs/evidence.
pub struct Table {
    pub name: String,
    head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn read(name: &str) -> Table {
        let path = root().join("docs/evidence").join(name).with_extension("csv");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let mut lines = text.lines().map(cells);
        let head = lines.next().unwrap_or_default();
        Table { name: name.to_owned(), head, rows: lines.collect() }
    }

    fn all() -> Vec<Table> {
        let files = fs::read_dir(root().join("docs/evidence")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let name = |file: String| file.strip_suffix(".csv").expect("only tables").to_owned();
        names.map(|file| Table::read(&name(file))).collect()
    }

    pub fn column(&self, heading: &str) -> usize {
        let at = self.head.iter().position(|cell| cell == heading);
        at.unwrap_or_else(|| panic!("{}.csv has no column {heading:?}", self.name))
    }

    /// The cell in this column of the row that begins with `names`.
    pub fn cell(&self, names: &[&str], heading: &str) -> String {
        let row = self.rows.iter().find(|row| row[..names.len()] == *names);
        let row = row.unwrap_or_else(|| panic!("{}.csv has no row {names:?}", self.name));
        row[self.column(heading)].clone()
    }

    /// What a column adds up to; an empty cell counts as nothing.
    fn sum(&self, heading: &str) -> usize {
        let at = self.column(heading);
        self.rows
            .iter()
            .filter(|row| !row[at].is_empty())
            .map(|row| row[at].parse::<usize>().unwrap())
            .sum()
    }
}

/// The cells of a line. A cell with commas is in quotes, and a quote in it is doubled.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let (mut quoted, mut rest) = (false, line.chars().peekable());
    while let Some(c) = rest.next() {
        let cell = cells.last_mut().unwrap();
        match c {
            '"' if quoted && rest.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cell.push(c),
        }
    }
    assert!(!quoted, "a quote is open: {line}");
    cells
}

/// The text of a page that a program has written under this name.
pub fn generated(page: &Page, name: &str) -> Page {
    let begin = format!("<!-- generated: {name} -->\n");
    let inside = page.text.split_once(&begin).and_then(|(_, rest)| rest.split_once(END));
    let text = inside.unwrap_or_else(|| panic!("{} has no `{}`", page.path, begin.trim_end())).0;
    Page { path: page.path.clone(), text: text.to_owned() }
}

const END: &str = "<!-- end of generated -->";

/// The names of the parts that programs have written.
fn parts(page: &Page) -> Vec<String> {
    let names = page.text.split("<!-- generated: ").skip(1);
    names.map(|rest| rest.split_once(" -->").unwrap().0.to_owned()).collect()
}

#[test]
fn every_table_of_the_evidence_is_whole_and_a_page_leads_to_it() {
    let linked: BTreeSet<String> =
        Page::all().iter().flat_map(|page| links(&page.prose())).collect();
    for Table { name, head, rows } in Table::all() {
        assert!(!rows.is_empty(), "{name}.csv has no rows");
        let odd = rows.iter().find(|row| row.len() != head.len());
        assert_eq!(odd, None, "{name}.csv: another number of cells than {head:?}");
        assert!(linked.contains(&format!("evidence/{name}.csv")), "no page leads to {name}.csv");
    }
}

/// The rows that the page shows are rows of a table with its columns.
#[test]
fn the_page_of_performance_shows_rows_of_the_evidence() {
    let page = Page::read("docs/performance.md");
    let tables = Table::all();
    let parts: Vec<String> =
        parts(&page).into_iter().filter(|name| name != "six figures").collect();
    assert_eq!(parts.len(), 6, "{parts:?}");
    for part in parts {
        let text = generated(&page, &part).text;
        let mut lines = text.lines().filter(|line| line.starts_with('|'));
        let split = |line: &str| -> Vec<String> {
            line[1..line.len() - 1].split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let head = split(lines.next().unwrap());
        let sources =
            tables.iter().filter(|table| head.iter().all(|cell| table.head.contains(cell)));
        let known: BTreeSet<Vec<String>> = sources
            .flat_map(|table| {
                let places: Vec<usize> = head.iter().map(|cell| table.column(cell)).collect();
                let pick =
                    move |row: &Vec<String>| places.iter().map(|at| row[*at].clone()).collect();
                table.rows.iter().map(pick).collect::<Vec<_>>()
            })
            .collect();
        let rows: Vec<Vec<String>> = lines.skip(1).map(split).collect();
        assert!(!rows.is_empty(), "{part} has no rows");
        let unknown: Vec<_> = rows.iter().filter(|row| !known.contains(*row)).collect();
        assert!(unknown.is_empty(), "{part}: not in docs/evidence: {unknown:?}");
    }
}

/// Nothing that was tried has failed.
#[test]
fn the_page_of_reliability_has_the_sums_of_the_sweeps() {
    let of = |name: &str, names: &[&str], tried: &[&str], failures: &str| {
        let table = Table::read(name);
        let places: Vec<usize> = names.iter().map(|heading| table.column(heading)).collect();
        let subject = |row: &Vec<String>| places.iter().map(|at| row[*at].clone()).collect();
        let subjects: BTreeSet<Vec<String>> = table.rows.iter().map(subject).collect();
        let tried: usize = tried.iter().map(|heading| table.sum(heading)).sum();
        [subjects.len(), table.rows.len(), tried, table.sum(failures)].map(|sum| sum.to_string())
    };
    let disks = ["disks after a kill", "disks after a power loss"];
    let expected = [
        of("kills", &["network"], &["kills"], "left"),
        of("errors", &["network"], &["errors"], "not borne"),
        of("power-loss", &["form", "store"], &disks, "failures"),
    ];
    let rows = generated(&Page::read("docs/reliability.md"), "sweeps").rows(None);
    let shown: Vec<&[String]> = rows.iter().map(|row| &row[1..]).collect();
    assert_eq!(shown, expected.each_ref().map(|row| &row[..]));
    assert!(expected.iter().all(|row| row[3] == "0"), "{expected:?}");
}
