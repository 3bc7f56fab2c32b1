//! Tests by name, as the pages write them: `upgrade::NAME`, `packages::NAME`.

use std::collections::BTreeSet;
use std::fs;

use super::{Page, code_spans, root};

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

/// A test that a page names exists.
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
