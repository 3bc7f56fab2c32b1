//! The layering of the source: which layer may know which (`src/lib.rs` has the map), which words
//! are confined to which files, and that each plugin has all its parts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cni_multi::registry::PLUGINS;

mod circles;

/// From the bottom up. Layers on one line do not know each other.
const LAYERS: [&[&str]; 13] = [
    &["error", "family", "hex", "deadline", "timing", "scratch"],
    &["rollback", "repair", "plain_file", "file_lock"],
    &["sys"],
    &["cni", "net", "service"],
    &["terminal"],
    &["plugin"],
    &["steps"],
    &["plugins"],
    &["registry"],
    &["runner"],
    &["runtime"],
    &["commands"],
    &["cli"],
];

/// Words that only source files with one of these path prefixes may contain.
const CONFINED: [(&str, &[&str]); 10] = [
    ("unsafe", &["net/", "sys/"]),
    ("rtnetlink", &["net/"]),
    ("netlink_packet_core", &["net/"]),
    ("netlink_packet_route", &["net/"]),
    ("netlink_sys", &["net/"]),
    ("println!", &[]),
    ("print!", &[]),
    ("eprintln!", &[]),
    ("eprint!", &[]),
    ("process::exit", &[]),
];

/// Modules above the plugins. A plugin never refers to its callers, not even by a link in a
/// comment.
const ABOVE_PLUGINS: [&str; 5] = ["registry", "runner", "runtime", "commands", "cli"];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below a directory: its path relative to the directory, and its text.
pub fn sources(dir: &Path) -> Vec<(String, String)> {
    let mut found = vec![];
    let mut open: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        if path.is_dir() && !path.is_symlink() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// The text without comments and string literals, so that only code is checked.
pub fn code(text: &str) -> String {
    let mut code = String::new();
    for line in text.lines() {
        let mut quoted = false;
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match (quoted, c) {
                (true, '\\') => drop(chars.next()),
                (false, '\'') if chars.clone().nth(1) == Some('\'') => {
                    chars.nth(1);
                }
                (_, '"') => quoted = !quoted,
                (false, '/') if chars.peek() == Some(&'/') => break,
                (false, c) => code.push(c),
                (true, _) => (),
            }
        }
        code.push('\n');
    }
    code
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The code after each occurrence of the whole word `word`.
pub fn after<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let whole = move |at: usize| {
        let (before, behind) = (&code[..at], &code[at + word.len()..]);
        !(before.ends_with(is_of_word)
            || word.ends_with(is_of_word) && behind.starts_with(is_of_word))
    };
    code.match_indices(word)
        .filter(move |(at, _)| whole(*at))
        .map(move |(at, _)| &code[at + word.len()..])
}

/// The names that continue a path: one, or each of a list `{a::b, c}`.
fn names(rest: &str) -> Vec<String> {
    let word = |text: &str| text.chars().take_while(|c| is_of_word(*c)).collect::<String>();
    let Some(list) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let mut names = vec![];
    let (mut depth, mut fresh) = (0, true);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if is_of_word(c) && fresh => {
                names.push(word(&list[at..]));
                fresh = false;
            }
            _ => (),
        }
    }
    names
}

/// The modules of the crate root that this code names: `crate::a::…`, `crate::{a::…, b}`, and
/// `super::a` if `a` is a layer.
fn imports(code: &str) -> BTreeSet<String> {
    let mut named: BTreeSet<String> = after(code, "crate::").flat_map(names).collect();
    named.extend(after(code, "super::").flat_map(names).filter(|name| rank(name).is_some()));
    named
}

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|layers| layers.contains(&layer))
}

/// The layer of a file: its first folder, or its own name.
fn layer_of(path: &str) -> &str {
    path.split('/').next().unwrap().trim_end_matches(".rs")
}

/// The rules that a file breaks.
fn violations(path: &str, text: &str) -> Vec<String> {
    let (code, layer) = (code(text), layer_of(path));
    let mut broken = vec![];
    for (word, places) in CONFINED {
        if after(&code, word).next().is_some()
            && !places.iter().any(|place| path.starts_with(place))
        {
            broken.push(format!("{path}: {word} has no place here"));
        }
    }
    if matches!(layer, "lib" | "main") {
        return broken; // they name all layers
    }
    let Some(own) = rank(layer) else {
        broken.push(format!("{path}: {layer} is no layer of LAYERS"));
        return broken;
    };
    for import in imports(&code).into_iter().filter(|import| import != layer) {
        if rank(&import).is_none_or(|rank| rank >= own) {
            broken.push(format!("{path}: {layer} must not know {import}"));
        }
    }
    broken.extend(match layer {
        "plugins" => other_plugins(path, &code),
        "cli" => plugins_by_name(path, &code, text),
        _ => vec![],
    });
    broken
}

/// The plugins that are another one by another name.
const ALIASES: [(&str, &str); 1] = [("whereabouts", "cluster_local")];

/// Plugins do not import each other: what two of them need is a step. An alias runs the plugin that
/// it stands for.
fn other_plugins(path: &str, code: &str) -> Vec<String> {
    let module = module_of(path);
    let [_, group, own, ..] = module.as_slice() else { return vec![] }; // plugins/main/mod.rs lists them
    let by_name = after(code, "plugins::").map(|rest| format!("plugins::{rest}"));
    let by_super = after(code, "super::").filter_map(|rest| {
        let ups = 1 + rest.split("super::").take_while(|between| between.is_empty()).count();
        let base = &module[..module.len().checked_sub(ups)?];
        let rest = rest.trim_start_matches("super::");
        Some(format!("{}::{rest}", base.join("::")))
    });
    let is_other = |path: &String| {
        let mut names = path.split(|c| !is_of_word(c)).filter(|name| !name.is_empty());
        let named = (names.next(), names.next(), names.next());
        let is_plugin = named.0 == Some("plugins") && named.2.is_some_and(is_plugin_module);
        let is_alias_of = |other| ALIASES.contains(&(*own, other));
        is_plugin
            && named != (Some("plugins"), Some(*group), Some(*own))
            && !named.2.is_some_and(is_alias_of)
    };
    let others = by_name.chain(by_super).filter(is_other);
    others.map(|_| format!("{path}: plugins must not know each other")).collect()
}

fn is_plugin_module(name: &str) -> bool {
    PLUGINS.iter().any(|entry| entry.name.replace('-', "_") == name)
}

/// `plugins/main/bridge/mod.rs` is the module `plugins::main::bridge`.
fn module_of(path: &str) -> Vec<&str> {
    let path = path.trim_end_matches(".rs");
    path.strip_suffix("/mod").unwrap_or(path).split('/').collect()
}

/// The command line gets plugins from the registry: a plugin brings its own commands.
fn plugins_by_name(path: &str, code: &str, text: &str) -> Vec<String> {
    let imported = imports(code).contains("plugins").then(|| "plugins".to_owned());
    let quoted = PLUGINS.iter().map(|entry| entry.name.to_owned());
    let quoted = quoted.filter(|name| text.contains(&format!("\"{name}\"")));
    let named = imported.into_iter().chain(quoted);
    named.map(|name| format!("{path}: cli must not know {name}")).collect()
}

#[test]
fn every_layer_knows_only_those_below_it() {
    let broken: Vec<String> = sources(&root().join("src"))
        .iter()
        .flat_map(|(path, text)| violations(path, text))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Proves that each rule can fail.
#[test]
fn each_rule_can_be_broken() {
    let cases = [
        ("error.rs", "use crate::rollback::Rollback;", "error must not know rollback"),
        ("net/netns.rs", "use crate::{error::Code, cni::env::E};", "net must not know cni"),
        ("plugin.rs", "use super::steps::veth;", "plugin must not know steps"),
        ("net/mac.rs", "fn f(at: &crate::plugin::Attachment) {}", "net must not know plugin"),
        ("plugins/ipam/static.rs", "use super::dhcp::w;", "plugins must not know each other"),
        (
            "plugins/main/ptp.rs",
            "use crate::plugins::main::bridge::C;",
            "plugins must not know each other",
        ),
        (
            "plugins/ipam/dhcp/v4/mod.rs",
            "use super::super::super::host_local::C;",
            "plugins must not know each other",
        ),
        ("cli.rs", "use crate::plugins::main::tap::labelled;", "cli must not know plugins"),
        ("cli.rs", "if first == \"dhcp\" {}", "cli must not know dhcp"),
        ("utils.rs", "", "utils is no layer of LAYERS"),
        ("steps/x.rs", "use rtnetlink::LinkVeth;", "rtnetlink has no place here"),
        ("steps/x.rs", "unsafe { f() }", "unsafe has no place here"),
        ("main.rs", "std::process::exit(1);", "process::exit has no place here"),
    ];
    for (path, text, expected) in cases {
        assert_eq!(violations(path, text), [format!("{path}: {expected}")], "{text}");
    }
}

/// In steps and plugins even a link in a comment counts as knowing a caller, since the layers above
/// have to stay replaceable.
#[test]
fn steps_and_plugins_do_not_even_mention_their_callers() {
    for (path, text) in sources(&root().join("src")) {
        for above in ABOVE_PLUGINS.iter().filter(|_| matches!(layer_of(&path), "steps" | "plugins"))
        {
            assert!(!text.contains(&format!("crate::{above}")), "{path} names {above}");
        }
    }
}

/// `group/type` of every file or folder of a plugin.
fn plugin_files() -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for group in ["main", "ipam", "meta"] {
        let Ok(entries) = fs::read_dir(root().join("src/plugins").join(group)) else { continue }; // no plugin yet
        for entry in entries {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let name = name.trim_end_matches(".rs");
            if name != "mod" {
                files.insert(format!("{group}/{}", name.replace('_', "-")));
            }
        }
    }
    files
}

#[test]
fn every_plugin_has_a_registry_line_and_a_file_of_its_name() {
    let registered =
        PLUGINS.iter().map(|entry| format!("{}/{}", entry.kind.as_str(), entry.name)).collect();
    assert_eq!(plugin_files(), registered);
}

/// `static` is a Rust keyword, so the plugin's module is `static_`.
#[test]
fn every_plugin_has_tests_of_its_name() {
    for plugin in plugin_files() {
        let (group, name) = plugin.split_once('/').unwrap();
        let dir = root().join("tests/plugins").join(group);
        let modules = fs::read_to_string(dir.join("mod.rs")).unwrap();
        let name = name.replace('-', "_");
        let is_there = |module: &str| {
            after(&code(&modules), "mod").any(|rest| rest.trim().starts_with(&format!("{module};")))
        };
        assert!(
            is_there(&name) || is_there(&format!("{name}_")),
            "{dir:?} has no module for {plugin}"
        );
    }
}
