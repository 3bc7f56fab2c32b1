//! Commands read the fields of errors and never parse their texts; otherwise no text could be
//! improved without breaking a command.

use super::{code, is_of_word, root, sources};

/// Fields and variables that hold error texts.
const TEXTS: [&str; 7] = ["msg", "details", "problem", "expected", "sentence", "message", "advice"];

/// Variable names of errors; their `to_string` is such a text.
const ERRORS: [&str; 6] = ["error", "err", "e", "failure", "mistake", "refusal"];

/// Functions that inspect a text.
const MATCHERS: [&str; 22] = [
    "split",
    "split_once",
    "rsplit",
    "rsplit_once",
    "splitn",
    "rsplitn",
    "split_at",
    "split_whitespace",
    "split_terminator",
    "strip_prefix",
    "strip_suffix",
    "trim_matches",
    "trim_start_matches",
    "trim_end_matches",
    "starts_with",
    "ends_with",
    "contains",
    "find",
    "rfind",
    "matches",
    "match_indices",
    "eq_ignore_ascii_case",
];

/// Methods of a mistake's fields that return data, not text.
const DATA: [&str; 2] = ["ranges", "words"];

/// Enum variants that hold a text.
const TEXT_VARIANTS: [&str; 2] = ["Problem", "Expected"];

/// The words and punctuation of the code.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = vec![];
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match is_of_word(first) {
            true => rest.find(|c| !is_of_word(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// The index of the bracket that closes the one at `open`.
fn close(tokens: &[&str], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => (),
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}

/// The chain of methods called on the token at `at`, and the index where the chain ends.
fn chain<'a>(tokens: &[&'a str], at: usize) -> (Vec<&'a str>, usize) {
    let (mut methods, mut at) = (vec![], at + 1);
    loop {
        match tokens.get(at) {
            Some(&"(") => at = close(tokens, at) + 1,
            Some(&"?") => at += 1,
            Some(&".") => {
                methods.extend(tokens.get(at + 1));
                at += 2;
            }
            _ => return (methods, at),
        }
    }
}

fn is_field(tokens: &[&str], at: usize) -> bool {
    at > 0 && tokens[at - 1] == "."
}

/// Whether the token at `at` is an error text.
fn is_text(tokens: &[&str], at: usize, bound: &[&str]) -> bool {
    let is_named =
        TEXTS.contains(&tokens[at]) || bound.contains(&tokens[at]) && !is_field(tokens, at);
    let is_of_error = tokens[at] == "to_string"
        && at > 1
        && is_field(tokens, at)
        && ERRORS.contains(&tokens[at - 2]);
    is_named || is_of_error
}

/// Whether these tokens contain a field with an error text.
fn has_field(tokens: &[&str]) -> bool {
    (0..tokens.len()).any(|at| {
        let is_of_error = is_text(tokens, at, &[]) && is_field(tokens, at);
        is_of_error && !chain(tokens, at).0.iter().any(|method| DATA.contains(method))
    })
}

/// The variable that the `let` at `at` binds to an error text.
fn bound<'a>(tokens: &[&'a str], at: usize) -> Option<&'a str> {
    let name = *tokens[at + 1..].iter().find(|token| !["mut", "("].contains(token))?;
    let end = tokens[at..].iter().position(|token| *token == ";")? + at;
    has_field(&tokens[at..end]).then_some(name)
}

/// Whether the `match` at `at` has an error text as its subject. Problems and expectations are
/// enums until they are converted to text.
fn is_match_on_text(tokens: &[&str], at: usize) -> bool {
    let end = tokens[at..].iter().position(|token| *token == "{").unwrap_or(0) + at;
    let subject = &tokens[at..end];
    let is_enum = ["problem", "expected"].iter().any(|field| subject.contains(field))
        && !subject.contains(&"to_string");
    tokens[at] == "match" && has_field(subject) && !is_enum
}

/// Whether the variant at `at` is the text of a problem or of an expectation.
fn is_text_variant(tokens: &[&str], at: usize) -> bool {
    tokens[at] == "Text" && at > 2 && TEXT_VARIANTS.contains(&tokens[at - 3])
}

/// Whether the method at `at` searches another text for an error text.
fn looks_for_text(tokens: &[&str], at: usize) -> bool {
    MATCHERS.contains(&tokens[at])
        && tokens.get(at + 1) == Some(&"(")
        && has_field(&tokens[at + 2..close(tokens, at + 1)])
}

/// Whether the error text at `at` is inspected or compared.
fn is_looked_into(tokens: &[&str], at: usize, bound: &[&str]) -> bool {
    if !is_text(tokens, at, bound) {
        return false;
    }
    let (methods, end) = chain(tokens, at);
    if !methods.is_empty() {
        let is_data = methods.iter().any(|method| DATA.contains(method));
        return !is_data && methods.iter().any(|method| MATCHERS.contains(method));
    }
    let is_own = is_field(tokens, at) || bound.contains(&tokens[at]);
    let is_with_variant = tokens.get(end + 2).is_some_and(|next| TEXT_VARIANTS.contains(next));
    is_own && matches!(tokens.get(end..end + 2), Some(["=" | "!", "="])) && !is_with_variant
}

/// Every place that matches on an error text.
fn matches_on_texts(text: &str) -> Vec<String> {
    let code = code(text);
    let tokens = tokens(&code);
    let (mut found, mut bound_names) = (vec![], vec![]);
    for at in 0..tokens.len() {
        match tokens[at] {
            "fn" => bound_names.clear(),
            "let" => bound_names.extend(bound(&tokens, at)),
            _ => (),
        }
        if is_match_on_text(&tokens, at)
            || is_text_variant(&tokens, at)
            || looks_for_text(&tokens, at)
            || is_looked_into(&tokens, at, &bound_names)
        {
            found.push(tokens[at.saturating_sub(3)..tokens.len().min(at + 8)].concat());
        }
    }
    found
}

#[test]
fn commands_do_not_match_on_texts_of_errors() {
    let found: Vec<String> = sources(&root().join("src/commands"))
        .iter()
        .flat_map(|(path, text)| {
            matches_on_texts(text).into_iter().map(move |found| format!("{path}: {found}"))
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Proves that the rule can fail.
#[test]
fn each_way_to_match_on_a_text_is_found() {
    for text in [
        "let Some((_, list)) = problem.rsplit_once(\"expected \") else { return vec![] };",
        "if error.msg.contains(key) {}",
        "keys.filter(|key| error.msg.contains(key))",
        "match error.msg.trim_start_matches(\"error parsing configuration: \") {}",
        "match error.msg.as_str() { \"missing 'type'\" => () }",
        "match mistake.problem.to_string().as_str() { \"missing\" => () }",
        "problem\n    .strip_suffix(\"\\\" is missing\")\n    .and_then(|key| key.strip_prefix('\"'))",
        "let text = error.details.clone(); let is = text.starts_with(\"a\");",
        "let told = error.to_string(); told.split_once(\": \")",
        "error.to_string().find(\"at line\")",
        "error.advice.is_empty() || error.advice.ends_with(\"x\")",
        "mistake.expected.to_string().split(\" or \")",
        "known.iter().any(|known| known.starts_with(&error.msg))",
        "if error.msg == \"no name\" {}",
        "if error.details != *text {}",
        "if let Problem::Text(text) = &mistake.problem {}",
        "let Expected::Text(text) = &mistake.expected else { return };",
    ] {
        assert!(!matches_on_texts(text).is_empty(), "{text}");
    }
}

#[test]
fn reading_fields_is_no_match_on_a_text() {
    for text in [
        "self.tell(Note { message: &[&error.msg], hint: &[&error.advice], ..NOTHING });",
        "if mistake.problem == Problem::Missing { required.push(key); }",
        "match &mistake.problem { Problem::Found(_) => (), _ => () }",
        "let least = mistake.expected.ranges().first().map(|range| *range.start());",
        "let words = mistake.expected.words(); words.contains(&\"l2\")",
        "if error.details.is_empty() {}",
        "if mistake.path.starts_with(\"runtimeConfig\") {}",
        "// error.msg.contains(\"x\")",
        "let text = error.msg.clone(); } fn next(text: &str) { text.split(',') }",
    ] {
        assert_eq!(matches_on_texts(text), [""; 0], "{text}");
    }
}
