//! The layering of the source: which layer may know which (`src/lib.rs` has the map), which words
//! are confined to which files, and that the modules of a folder import each other in no circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cni_multi::registry::PLUGINS;

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

/// The parts between the commas of a list, up to its closing bracket.
fn branches(list: &str) -> Vec<&str> {
    let (mut branches, mut depth, mut start) = (vec![], 0, 0);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' | ',' if depth == 0 => {
                branches.push(list[start..at].trim_start());
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => (),
        }
    }
    branches
}

/// Expands what follows a path into whole paths: `{b, c::d}` after `a` into `a::b` and `a::c::d`.
fn expand<'a>(text: &'a str, path: &[&'a str], found: &mut Vec<Vec<&'a str>>) {
    if let Some(list) = text.strip_prefix('{') {
        return branches(list).into_iter().for_each(|branch| expand(branch, path, found));
    }
    let name = &text[..text.find(|c| !is_of_word(c)).unwrap_or(text.len())];
    let path = [path, &[name]].concat();
    match text[name.len()..].strip_prefix("::") {
        Some(rest) => expand(rest, &path, found),
        None => found.push(path),
    }
}

/// Every path that the code of a module names by `crate`, `super` or `self`, from the crate root.
fn named<'a>(code: &'a str, module: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut paths = vec![];
    for head in ["crate", "super", "self"] {
        for rest in after(code, head).filter_map(|rest| rest.strip_prefix("::")) {
            expand(rest, &[head], &mut paths);
        }
    }
    let absolute = |path: Vec<&'a str>| {
        let mut base = if path[0] == "crate" { vec![] } else { module.to_vec() };
        for step in path {
            match step {
                "crate" | "self" => (),
                "super" => drop(base.pop()),
                step => base.push(step),
            }
        }
        base
    };
    paths.into_iter().map(absolute).collect()
}

/// `plugins/main/bridge/mod.rs` is the module `plugins::main::bridge`.
fn module_of(path: &str) -> Vec<&str> {
    let path = path.trim_end_matches(".rs");
    path.strip_suffix("/mod").unwrap_or(path).split('/').collect()
}

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|layers| layers.contains(&layer))
}

/// The plugin that is another one by another name.
const ALIAS: [&str; 2] = ["whereabouts", "cluster_local"];

/// The rules that a file breaks.
fn violations(path: &str, text: &str) -> Vec<String> {
    let (code, module) = (code(text), module_of(path));
    let layer = module[0];
    let confined = CONFINED.iter().filter(|(word, places)| {
        after(&code, word).next().is_some() && !places.iter().any(|place| path.starts_with(place))
    });
    let mut broken: Vec<String> =
        confined.map(|(word, _)| format!("{path}: {word} has no place here")).collect();
    if matches!(layer, "lib" | "main") {
        return broken; // they name all layers
    }
    let Some(own) = rank(layer) else {
        broken.push(format!("{path}: {layer} is no layer of LAYERS"));
        return broken;
    };
    let paths = named(&code, &module);
    let by_crate = after(&code, "crate").filter_map(|rest| rest.strip_prefix("::"));
    let mut of_crate = vec![];
    by_crate.for_each(|rest| expand(rest, &[], &mut of_crate));
    let layers = paths.iter().map(|path| path.first().copied().unwrap_or_default());
    let known = layers.filter(|name| rank(name).is_some());
    let imports: BTreeSet<&str> = of_crate.iter().map(|path| path[0]).chain(known).collect();
    for import in imports.iter().filter(|import| **import != layer) {
        if rank(import).is_none_or(|rank| rank >= own) {
            broken.push(format!("{path}: {layer} must not know {import}"));
        }
    }
    // Plugins do not import each other: what two of them need is a step.
    if let ["plugins", group, name, ..] = module[..] {
        let is_plugin = |name: &str| {
            PLUGINS.iter().any(|entry| entry.name.replace('-', "_") == name)
                && [module[2], name] != ALIAS
        };
        let is_other = |path: &&Vec<&str>| match path[..] {
            ["plugins", of, other, ..] => (of, other) != (group, name) && is_plugin(other),
            _ => false,
        };
        let others = paths.iter().filter(is_other);
        broken.extend(others.map(|_| format!("{path}: plugins must not know each other")));
    }
    // Even a link in a comment counts: the layers above have to stay replaceable.
    if ["steps", "plugins"].contains(&layer) {
        let above = ABOVE_PLUGINS.iter().filter(|above| text.contains(&format!("crate::{above}")));
        broken.extend(above.map(|above| format!("{path}: names {above}")));
    }
    // The command line gets plugins from the registry: a plugin brings its own commands.
    if layer == "cli" {
        let quoted = PLUGINS.iter().map(|entry| entry.name);
        let quoted = quoted.filter(|name| text.contains(&format!("\"{name}\"")));
        let named = imports.get("plugins").copied().into_iter().chain(quoted);
        broken.extend(named.map(|name| format!("{path}: cli must not know {name}")));
    }
    broken
}

#[test]
fn every_layer_knows_only_those_below_it() {
    let sources = sources(&root().join("src"));
    let broken: Vec<String> =
        sources.iter().flat_map(|(path, text)| violations(path, text)).collect();
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
            "plugins/ipam/dhcp/v4/mod.rs",
            "use super::super::super::host_local::C;",
            "plugins must not know each other",
        ),
        ("cli.rs", "use crate::plugins::main::tap::labelled;", "cli must not know plugins"),
        ("cli.rs", "if first == \"dhcp\" {}", "cli must not know dhcp"),
        ("utils.rs", "", "utils is no layer of LAYERS"),
        ("steps/x.rs", "unsafe { f() }", "unsafe has no place here"),
    ];
    for (path, text, expected) in cases {
        assert_eq!(violations(path, text), [format!("{path}: {expected}")], "{text}");
    }
}

// --- circles ---

/// Folders whose modules still import each other in circles.
const WITH_CIRCLES: [&str; 12] = [
    "commands/doctor",
    "commands/doctor/selftest/plugins",
    "commands/ipam",
    "net",
    "net/packet_socket",
    "net/xtables_legacy",
    "plugin",
    "plugins/main/bond",
    "plugins/main/bridge",
    "plugins/meta/sbr/source_routing",
    "plugins/meta/vrf/membership",
    "steps/allocation",
];

/// The name of the folder's own module. What its children need from it belongs in one of them.
const OWN: &str = "mod";

/// For each module of the folder, the modules of the folder that it imports.
fn imports(folder: &str, files: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let folder: Vec<&str> = folder.split('/').collect();
    let inside = |path: &[&str]| {
        let rest = path.strip_prefix(folder.as_slice())?;
        Some(rest.first().map_or(OWN.to_owned(), |name| (*name).to_owned()))
    };
    let modules: Vec<String> =
        files.iter().filter_map(|(file, _)| inside(&module_of(file))).collect();
    let known = |name: String| if modules.contains(&name) { name } else { OWN.to_owned() };
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in files {
        let module = module_of(file);
        let Some(own) = inside(&module) else { continue };
        let code = code(text.split("#[cfg(test)]").next().unwrap());
        let imported = imports.entry(own.clone()).or_default();
        imported.extend(named(&code, &module).iter().filter_map(|path| inside(path)).map(known));
        if own == OWN {
            let is_used = |name: &&String| after(&code, name).any(|rest| rest.starts_with("::"));
            imported.extend(modules.iter().filter(is_used).cloned());
        }
        imported.remove(&own);
    }
    imports
}

/// The modules that are left when those without imports are taken away, again and again.
fn circle(mut imports: BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    loop {
        let left: BTreeSet<String> = imports.keys().cloned().collect();
        imports.retain(|_, imported| imported.iter().any(|module| left.contains(module)));
        if imports.len() == left.len() {
            return left;
        }
    }
}

#[test]
fn modules_of_a_folder_import_each_other_in_no_circle() {
    let files = sources(&root().join("src"));
    let folders: BTreeSet<&str> =
        files.iter().filter_map(|(file, _)| Some(file.rsplit_once('/')?.0)).collect();
    let is_free = |folder: &&str| {
        !WITH_CIRCLES.contains(folder) && !folder.starts_with("plugins/ipam/cluster_local")
    };
    for folder in folders.into_iter().filter(is_free) {
        let circle = circle(imports(folder, &files));
        assert!(circle.is_empty(), "{folder}: among {circle:?} is a circle");
    }
    for folder in WITH_CIRCLES {
        assert!(!circle(imports(folder, &files)).is_empty(), "{folder} has no circle any more");
    }
}
