//! Checks that every statement of a documentation page has its tests. `tests/docs/PAGE.txt` lists
//! the page's chapters, in each chapter the subjects of the page, and below each subject, indented,
//! its tests. A subject is the first cell of a table row; rows with the same first cell share their
//! tests. In a chapter without a table a subject is a list item.

use std::collections::BTreeSet;
use std::fs;

use super::{Page, code_spans, root};

/// A table row of these pages is at most this wide, so that viewers show it without scrolling.
const WIDEST_ROW: usize = 160;

/// The content of a page's file in tests/docs.
pub struct Coverage {
    subjects: Vec<Subject>,
}

struct Subject {
    chapter: String,
    name: String,
    tests: Vec<String>,
}

impl Coverage {
    pub fn of(page: &Page) -> Coverage {
        let name = page.path.trim_start_matches("docs/").trim_end_matches(".md");
        let path = root().join("tests/docs").join(name).with_extension("txt");
        Coverage::parse(&fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}")))
    }

    fn parse(text: &str) -> Coverage {
        let mut subjects: Vec<Subject> = vec![];
        let mut chapter = "";
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(name) = line.strip_prefix("## ") {
                chapter = name;
            } else if let Some(test) = line.strip_prefix("    ") {
                subjects.last_mut().expect("a test of no subject").tests.push(test.to_owned());
            } else {
                let (chapter, name) = (chapter.to_owned(), line.to_owned());
                subjects.push(Subject { chapter, name, tests: vec![] });
            }
        }
        Coverage { subjects }
    }

    pub fn tests(&self, chapter: &str, subject: &str) -> &[String] {
        let is_meant = |found: &&Subject| found.chapter == chapter && found.name == subject;
        self.subjects.iter().find(is_meant).map_or(&[], |found| &found.tests)
    }

    fn names(&self) -> Vec<(String, String)> {
        self.subjects.iter().map(|found| (found.chapter.clone(), found.name.clone())).collect()
    }

    /// Subjects of these chapters without tests, subjects that the page does not have, and tests
    /// that do not exist.
    fn gaps(&self, page: &Page, chapters: &[String]) -> Vec<String> {
        let (written, covered) = (page.subjects(chapters), self.names());
        let mut gaps = repeats(&covered);
        gaps.extend(repeats(&written));
        let missing = |name: &&(String, String), of: &[(String, String)]| !of.contains(name);
        let uncovered = written.iter().filter(|name| missing(name, &covered));
        gaps.extend(uncovered.map(|name| format!("has no tests: {name:?}")));
        let unwritten = covered.iter().filter(|name| missing(name, &written));
        gaps.extend(unwritten.map(|name| format!("is not in the page: {name:?}")));
        for subject in &self.subjects {
            if subject.tests.is_empty() {
                gaps.push(format!("has no tests: {:?}", subject.name));
            }
            let unknown = subject.tests.iter().filter(|test| !is_test(test));
            gaps.extend(unknown.map(|test| format!("there is no test {test}: {}", subject.name)));
        }
        gaps
    }

    fn lacks(&self, tests: impl IntoIterator<Item = String>) -> Vec<String> {
        let named: BTreeSet<&String> =
            self.subjects.iter().flat_map(|subject| &subject.tests).collect();
        tests.into_iter().filter(|test| !named.contains(test)).collect()
    }
}

/// The names that occur more than once.
fn repeats(names: &[(String, String)]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let repeated = names.iter().filter(|name| !seen.insert(*name));
    repeated.map(|name| format!("is there twice: {name:?}")).collect()
}

impl Page {
    fn chapters(&self) -> Vec<String> {
        self.prose().lines().filter_map(|line| Some(line.strip_prefix("## ")?.to_owned())).collect()
    }

    /// Chapter and subject of each row, or of each list item if a chapter has no rows. Consecutive
    /// rows with the same first cell are one subject.
    fn subjects(&self, chapters: &[String]) -> Vec<(String, String)> {
        let mut subjects: Vec<(String, String)> = vec![];
        for chapter in chapters {
            let rows = self.rows(Some(chapter)).into_iter().map(|row| row[0].clone());
            let rows: Vec<String> = rows.collect();
            let names = if rows.is_empty() { self.items(chapter) } else { rows };
            subjects.extend(names.into_iter().map(|name| (chapter.clone(), name)));
        }
        subjects.dedup();
        subjects
    }

    /// The list items of a chapter, each joined into one line.
    fn items(&self, chapter: &str) -> Vec<String> {
        let mut items: Vec<String> = vec![];
        let prose = self.prose();
        let of_chapter = prose.lines().skip_while(|line| line.strip_prefix("## ") != Some(chapter));
        for line in of_chapter.skip(1).take_while(|line| !line.starts_with("## ")) {
            if let Some(item) = line.strip_prefix("* ") {
                items.push(item.to_owned());
            } else if let (Some(rest), Some(item)) = (line.strip_prefix("  "), items.last_mut()) {
                item.extend([" ", rest]);
            }
        }
        items
    }
}

// --- tests by name ---

/// The tests of a source file: functions below `#[test]`, and the cases of `peers!`.
fn tests_in(source: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = BTreeSet::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        match line.strip_prefix("fn ").filter(|_| is_test) {
            Some(rest) => {
                found.insert(rest.split('(').next().unwrap().to_owned());
                is_test = false;
            }
            None => is_test = line == "#[test]" || is_test && line.starts_with("#["),
        }
    }
    for list in source.split("peers! {").skip(1) {
        let names = list.split('}').next().unwrap().split(',').map(|name| name.trim().to_owned());
        found.extend(names.filter(|name| !name.is_empty()));
    }
    found
}

/// The script tests/packages with its parts.
pub fn packages_script() -> String {
    let parts = ["packages", "packages.d/fresh", "packages.d/units", "packages.d/userlands"];
    let files = parts.into_iter().chain(["tiers/packages.sh"]);
    files.map(|file| fs::read_to_string(root().join("tests").join(file)).unwrap()).collect()
}

/// Whether a test of this path exists: `upgrade::NAME`, `differences::tap::NAME`. The module's path
/// starts below `tests`, or below `src` if that is its first word; `packages::NAME` is a function
/// of the script tests/packages or of its parts.
pub fn is_test(path: &str) -> bool {
    let (module, name) = path.rsplit_once("::").unwrap_or(("", path));
    if module == "packages" {
        return packages_script().contains(&format!("\ntest_{name}() "));
    }
    if module == "runtimes" {
        return root().join("tests/runtimes").join(name).exists();
    }
    let module = module.trim_end_matches("::tests");
    let dir = if module.starts_with("src::") { root() } else { root().join("tests") };
    let base = dir.join(module.replace("::", "/"));
    let candidates = [base.with_extension("rs"), base.join("mod.rs"), base.join("tests.rs")];
    candidates
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .any(|source| tests_in(&source).contains(name))
}

/// The tests of a module and of its submodules.
fn tests_below(module: &str) -> Vec<String> {
    let dir = root().join("tests").join(module.replace("::", "/"));
    let mut found = vec![];
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        let path = match name.strip_suffix(".rs") {
            None => {
                found.extend(tests_below(&format!("{module}::{name}")));
                continue;
            }
            Some("mod") => module.to_owned(),
            Some(name) => format!("{module}::{name}"),
        };
        let source = fs::read_to_string(entry.path()).unwrap();
        found.extend(tests_in(&source).iter().map(|test| format!("{path}::{test}")));
    }
    found
}

// --- pages ---

/// Every row of the page has its test, and every test below the directory its row.
#[track_caller]
fn assert_covers(page: &Page, tests: &str) {
    let coverage = Coverage::of(page);
    assert_eq!(coverage.gaps(page, &page.chapters()), [""; 0]);
    let lacking = coverage.lacks(tests_below(tests));
    assert_eq!(lacking, [""; 0], "{} has no row for these tests of tests/{tests}", page.path);
}

#[test]
fn every_difference_has_its_test_and_every_test_its_difference() {
    let page = Page::read("docs/differences.md");
    for row in page.rows(None) {
        assert!(
            row.len() == 4 && row.iter().all(|cell| !cell.is_empty()),
            "an empty cell, such as the reason: {row:?}"
        );
    }
    assert_covers(&page, "differences");
}

#[test]
fn what_upgrade_says_is_tested_has_its_tests() {
    let page = Page::read("docs/upgrade.md");
    let chapters = ["What is tested".to_owned()];
    assert_eq!(Coverage::of(&page).gaps(&page, &chapters), [""; 0]);
}

#[test]
fn the_rows_of_status_and_gc_have_their_tests() {
    let page = Page::read("docs/status-and-gc.md");
    let chapters = ["STATUS", "GC"].map(str::to_owned);
    assert_eq!(Coverage::of(&page).gaps(&page, &chapters), [""; 0]);
}

#[test]
fn every_file_of_tests_has_its_page() {
    for entry in fs::read_dir(root().join("tests/docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let page = root().join("docs").join(path.file_name().unwrap()).with_extension("md");
            assert!(page.exists(), "{path:?} has no page");
        }
    }
}

#[test]
fn wide_rows_are_split() {
    for path in ["docs/differences.md", "docs/status-and-gc.md", "docs/security-tests.md"] {
        let prose = Page::read(path).prose();
        let wide = |line: &&str| line.starts_with('|') && line.chars().count() > WIDEST_ROW;
        let wide: Vec<&str> = prose.lines().filter(wide).collect();
        assert_eq!(wide, [""; 0], "{path}: wider than {WIDEST_ROW} characters");
    }
}

#[test]
fn gaps_between_page_and_tests_are_found() {
    const TEST: &str = "docs::coverage::gaps_between_page_and_tests_are_found";
    const ROWS: &str = "| b | x |\n| b | y |\n| c | z |\n";
    let gaps = |rows: &str, tests: &str| {
        let text =
            format!("# P\n\n## A\n\n| what | why |\n|---|---|\n{rows}\n## L\n\n* one\n  item\n");
        let page = Page { path: "docs/p.md".to_owned(), text };
        Coverage::parse(tests).gaps(&page, &page.chapters())
    };
    let whole = format!("## A\n\nb\n    {TEST}\n\nc\n    {TEST}\n\n## L\n\none item\n    {TEST}\n");
    assert_eq!(gaps(ROWS, &whole), [""; 0]);
    let cases = [
        (gaps(&format!("{ROWS}| d | z |\n"), &whole), r#"has no tests: ("A", "d")"#),
        (gaps(&ROWS[..20], &whole), r#"is not in the page: ("A", "c")"#),
        (gaps(&format!("{ROWS}| b | z |\n"), &whole), r#"is there twice: ("A", "b")"#),
        (gaps(ROWS, &whole.replace(TEST, "docs::none")), "there is no test docs::none: b"),
        (gaps(ROWS, &whole.replace(&format!("c\n    {TEST}"), "c")), r#"has no tests: "c""#),
        (gaps(ROWS, &whole.replace("one item", "one")), r#"has no tests: ("L", "one item")"#),
    ];
    for (found, expected) in cases {
        assert_eq!(found.first().map(String::as_str), Some(expected));
    }
}

/// Tests named in other pages exist as well.
#[test]
fn tests_that_the_pages_name_exist() {
    let modules = [
        "differences::",
        "gc::",
        "status::",
        "upgrade::",
        "schema::",
        "validate::",
        "runtime::",
        "install::",
        "hostile::",
        "hostile_host::",
        "packages::",
        "parallel::",
        "plugins::",
        "protocol::",
        "security::",
        "traces::",
        "callers::",
        "src::",
    ];
    for page in Page::all() {
        let spans = code_spans(&page.prose());
        // A prefix of test names is an argument of `tests/run`; tests/tiers.rs checks those.
        for span in spans
            .iter()
            .filter(|span| modules.iter().any(|module| span.starts_with(module) && span != module))
            .filter(|span| !span.ends_with(['_', ':']))
        {
            assert!(is_test(span), "{}: there is no test {span}", page.path);
        }
    }
}

/// Each unit and each row of the plugins has its tests.
#[test]
fn what_repairs_says_of_units_and_plugins_has_its_tests() {
    let page = Page::read("docs/repairs.md");
    let chapters = [
        "Connections through a published port",
        "After nftables and firewalld",
        "What plugins repair",
    ];
    assert_eq!(Coverage::of(&page).gaps(&page, &chapters.map(str::to_owned)), [""; 0]);
}
