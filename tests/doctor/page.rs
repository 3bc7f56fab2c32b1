//! The tables of codes in docs/findings.md and docs/validate.md come from the code.

use std::collections::BTreeSet;

use cni_multi::commands::doctor::FAULTS;
use cni_multi::commands::fault::Fault;
use cni_multi::commands::validate;

use crate::docs::Page;

#[test]
fn the_tables_of_codes_are_those_of_the_code() {
    for hundred in '1'..='6' {
        let mut table =
            "| code | severity | what is wrong | cause | fix |\n|---|---|---|---|---|\n".to_owned();
        for it in FAULTS.iter().filter(|it| it.code.starts_with(&format!("D{hundred}"))) {
            let Fault { code, severity, title, cause, fix } = it;
            let severity = severity.word();
            table += &format!("| `{code}` | {severity} | {title} | {cause} | {fix} |\n");
        }
        Page::read("docs/findings.md").assert_generated(&format!("D{hundred}xx"), &table);
    }
    let mut table = "| code | severity | finding |\n|---|---|---|\n".to_owned();
    for Fault { code, severity, title, .. } in &validate::FAULTS {
        table += &format!("| `{code}` | {} | {title} |\n", severity.word());
    }
    Page::read("docs/validate.md").assert_generated("findings", &table);
}

#[test]
fn each_code_has_one_meaning_and_an_explanation() {
    let codes: Vec<&str> = FAULTS.iter().chain(&validate::FAULTS).map(|it| it.code).collect();
    assert_eq!(codes.iter().collect::<BTreeSet<_>>().len(), codes.len());
    assert!(
        FAULTS.is_sorted_by_key(|it| it.code) && validate::FAULTS.is_sorted_by_key(|it| it.code)
    );
    assert!(FAULTS.iter().all(|it| !it.cause.is_empty() && !it.fix.is_empty()));
}
