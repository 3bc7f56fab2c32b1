//! Modules of a folder must not import each other in a circle. The folder's own module counts as
//! well: what its children need from it belongs in one of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{after, code, is_of_word, root, sources};

/// Folders of src that must stay free of circles.
const WITHOUT_CIRCLES: [&str; 24] = [
    "cni",
    "cni/decode",
    "cni/json",
    "cni/result",
    "commands/doctor/examination",
    "commands/install",
    "commands/validate",
    "net/netlink",
    "net/nft",
    "net/nft/owned",
    "plugins/ipam/dhcp",
    "plugins/ipam/dhcp/client",
    "plugins/ipam/dhcp/client/dhcpv4",
    "plugins/ipam/dhcp/client/dhcpv6",
    "plugins/ipam/dhcp/daemon",
    "plugins/ipam/dhcp/v4",
    "plugins/ipam/dhcp/v6",
    "plugins/meta",
    "plugins/meta/bandwidth",
    "plugins/meta/firewall",
    "plugins/meta/portmap",
    "plugins/meta/tuning",
    "runtime",
    "runtime/cache",
];

/// The name of the folder's own module.
const OWN: &str = "mod";

/// The path of a file's module: `["commands", "validate"]` of `commands/validate/mod.rs`.
fn module_of(file: &str) -> Vec<&str> {
    let path = file.trim_end_matches(".rs");
    path.strip_suffix("/mod").unwrap_or(path).split('/').collect()
}

/// The word at the start of a text.
fn word(text: &str) -> &str {
    &text[..text.find(|c| !is_of_word(c)).unwrap_or(text.len())]
}

/// Expands an import tree into its paths: `a::{b, c::d}` into `a::b` and `a::c::d`.
fn expand<'a>(text: &'a str, path: &[&'a str], found: &mut Vec<Vec<&'a str>>) {
    if let Some(list) = text.strip_prefix('{') {
        for branch in branches(list) {
            expand(branch.trim_start(), path, found);
        }
        return;
    }
    let name = word(text);
    let path = [path, &[name]].concat();
    match text[name.len()..].strip_prefix("::") {
        Some(rest) => expand(rest, &path, found),
        None => found.push(path),
    }
}

/// The parts between the commas of a list, up to its closing bracket.
fn branches(list: &str) -> Vec<&str> {
    let (mut branches, mut depth, mut start) = (vec![], 0, 0);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                branches.push(&list[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches.push(&list[start..at]);
                start = at + 1;
            }
            _ => (),
        }
    }
    branches.retain(|branch| !branch.trim().is_empty());
    branches
}

/// Every path that the code of a module names, absolute from the crate root.
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

/// The first circle found; its first module is also its last.
fn circle(imports: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    imports.keys().find_map(|start| way(imports, start, start, &mut BTreeSet::new()))
}

/// The modules on the path from one module to another.
fn way(
    imports: &BTreeMap<String, BTreeSet<String>>,
    from: &str,
    to: &str,
    seen: &mut BTreeSet<String>,
) -> Option<Vec<String>> {
    for next in imports.get(from)? {
        if next == to {
            return Some(vec![from.to_owned(), to.to_owned()]);
        }
        if seen.insert(next.clone())
            && let Some(rest) = way(imports, next, to, seen)
        {
            return Some([vec![from.to_owned()], rest].concat());
        }
    }
    None
}

#[test]
fn modules_of_a_folder_do_not_import_each_other_in_a_circle() {
    let files = sources(&root().join("src"));
    for folder in WITHOUT_CIRCLES {
        let imports = imports(folder, &files);
        assert!(imports.len() > 1, "{folder} has modules");
        assert_eq!(circle(&imports), None, "{folder}");
    }
}

/// The circle in a folder `a/b` with these files.
fn circle_of(files: &[(&str, &str)]) -> Option<String> {
    let files: Vec<(String, String)> =
        files.iter().map(|(file, text)| (format!("a/b/{file}"), (*text).to_owned())).collect();
    circle(&imports("a/b", &files)).map(|circle| circle.join(" "))
}

/// Proves that the rule can fail.
#[test]
fn circles_are_found() {
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[("x.rs", "use super::y::Y;"), ("y.rs", "use super::x;")], "x y x"),
        (
            &[
                ("x.rs", "use crate::a::b::{y::Y, Z};"),
                ("y.rs", "fn f() -> super::z::Z {}"),
                ("z.rs", "use super::{other, x::{self, X}};"),
            ],
            "x y z x",
        ),
        (&[("mod.rs", "pub use self::x::X;"), ("x.rs", "use super::Own;")], "mod x mod"),
        (&[("mod.rs", "mod x; fn f() { x::g() }"), ("x.rs", "use super::Own;")], "mod x mod"),
        (&[("x/mod.rs", "use super::y;"), ("y.rs", "use super::x::z::Z;")], "x y x"),
        (&[("x/z.rs", "use super::super::y;"), ("y.rs", "use super::x::Z;")], "x y x"),
    ];
    for (files, expected) in cases {
        assert_eq!(circle_of(files).as_deref(), Some(expected), "{files:?}");
    }
}
