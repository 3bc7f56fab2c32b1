//! No tier runs examples of doc comments, so none may look as if it were run.

use super::{root, sources};

/// The language of each code block in the doc comments of a source; empty for Rust, which rustdoc would run.
fn languages(text: &str) -> Vec<&str> {
    let comments = text.lines().map(str::trim_start);
    let comments =
        comments.filter_map(|line| line.strip_prefix("///").or(line.strip_prefix("//!")));
    let fences = comments.filter_map(|line| line.trim_start().strip_prefix("```"));
    fences.step_by(2).collect() // every second fence ends a block
}

#[test]
fn no_code_block_of_a_doc_comment_is_an_example_in_rust() {
    assert_eq!(languages("/// ```\n/// let a = 1;\n/// ```\n//! ```text\n//! ```"), ["", "text"]);
    let mut found = 0;
    for (path, text) in sources(&root().join("src")) {
        for language in languages(&text) {
            assert!(["text", "json"].contains(&language), "{path}: a code block of {language:?}");
            found += 1;
        }
    }
    assert!(found > 5, "{found} code blocks");
}
