//! Which of a directory's files each runtime uses, by its own rules.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::network::Network;
use crate::cni::attachment::NetworkName;

/// The file extensions that runtimes read in network directories.
const EXTENSIONS: [&str; 3] = ["conflist", "conf", "json"];

/// What a runtime does with a file.
#[derive(Serialize)]
pub struct Pick {
    /// The runtime.
    pub runtime: &'static str,
    /// The network's name; empty if there is none.
    pub network: String,
    /// The file; empty if there is none.
    pub file: String,
    /// The reason in words, with the file and the network.
    pub reason: String,
}

/// The file's extension, if runtimes read such files.
pub fn extension(file: &Path) -> Option<&'static str> {
    let name = file.as_os_str().as_encoded_bytes();
    EXTENSIONS.into_iter().find(|extension| {
        name.strip_suffix(extension.as_bytes()).is_some_and(|stem| stem.ends_with(b"."))
    })
}

/// A file's name, and its network if it loads.
type Loaded<'a> = (&'a str, Option<&'a Network>);

/// The picks from the files of a directory, which are sorted by name, each with its network if it
/// is JSON.
pub fn of_dir(files: &[(PathBuf, Option<usize>)], networks: &[Network]) -> Vec<Pick> {
    let mut picks: Vec<Pick> = vec![];
    let files: Vec<(Cow<'_, str>, Option<&Network>)> = files
        .iter()
        .map(|(file, network)| {
            let network =
                network.and_then(|network| networks.get(network)).filter(|network| network.loads);
            (file.file_name().unwrap_or_default().to_string_lossy(), network)
        })
        .collect();
    let files: Vec<Loaded<'_>> =
        files.iter().map(|(file, network)| (file.as_ref(), *network)).collect();
    let Some(first) = files.first() else { return picks };
    push_containerd(&mut picks, first);
    push_crio(&mut picks, &files);
    push_podman(&mut picks, &files);
    push_cnitool(&mut picks, &files);
    picks
}

/// go-cni: sorts all kinds of files together and loads the first max_conf_num, which is 1.
fn push_containerd(picks: &mut Vec<Pick>, (file, network): &Loaded<'_>) {
    let name = network.map_or("", |network| &network.name);
    let loaded: &[&str] = &["\"", name, "\" of ", file, ": the first file by name"];
    let not_loaded: &[&str] = &["none: ", file, " is the first file by name, and does not load"];
    push(picks, "containerd", file, name, if network.is_some() { loaded } else { not_loaded });
}

/// ocicni: the same order, but skips files that do not load or whose plugins are not all available.
fn push_crio(picks: &mut Vec<Pick>, files: &[Loaded<'_>]) {
    match files
        .iter()
        .find_map(|(file, network)| Some((file, network.filter(|network| network.is_served)?)))
    {
        Some((file, network)) => {
            let why = ": the first file whose plugins are all there, unless cni_default_network names another";
            push(picks, "CRI-O", file, &network.name, &["\"", &network.name, "\" of ", file, why]);
        }
        None => push(
            picks,
            "CRI-O",
            "",
            "",
            &["none: there is no file that loads and whose plugins are all there"],
        ),
    }
}

/// Podman: lists only; skips files that do not load or cannot be used.
fn push_podman(picks: &mut Vec<Pick>, files: &[Loaded<'_>]) {
    let mut seen: Vec<(&str, &str)> = vec![];
    for &(file, network) in files.iter().filter(|(file, _)| is_list(file)) {
        let name = network.map_or("", |network| &network.name);
        let problem = match network {
            None => " is ignored: it does not load",
            Some(_) if NetworkName::parse(name).is_err() => {
                " is ignored: no network can have its name"
            }
            Some(network) if !network.is_served => {
                " is ignored: not all of its plugins are there and speak its version"
            }
            Some(_) => {
                push_first(picks, &mut seen, "podman", (name, file));
                continue;
            }
        };
        push(picks, "podman", file, name, &[file, problem]);
    }
}

/// libcni: searches by name, lists before single plugins; the first file that does not load ends
/// the search.
fn push_cnitool(picks: &mut Vec<Pick>, files: &[Loaded<'_>]) {
    let mut seen: Vec<(&str, &str)> = vec![];
    let (lists, singles): (Vec<_>, Vec<_>) = files.iter().partition(|(file, _)| is_list(file));
    for (file, network) in lists.into_iter().chain(singles) {
        let Some(network) = network else {
            push(
                picks,
                "cnitool",
                file,
                "",
                &[file, " does not load, and no network behind it is found"],
            );
            break;
        };
        push_first(picks, &mut seen, "cnitool", (&network.name, file));
    }
}

fn is_list(file: &str) -> bool {
    file.ends_with("list")
}

/// Adds the first file of each name.
fn push_first<'a>(
    picks: &mut Vec<Pick>,
    seen: &mut Vec<(&'a str, &'a str)>,
    runtime: &'static str,
    (name, file): (&'a str, &'a str),
) {
    match seen.iter().find(|(other, _)| *other == name) {
        Some((_, first)) => {
            push(picks, runtime, file, name, &[file, " is ignored: \"", name, "\" is in ", first])
        }
        None => {
            push(picks, runtime, file, name, &["\"", name, "\": ", file]);
            seen.push((name, file));
        }
    }
}

fn push(picks: &mut Vec<Pick>, runtime: &'static str, file: &str, network: &str, reason: &[&str]) {
    picks.push(Pick {
        runtime,
        network: network.to_owned(),
        file: file.to_owned(),
        reason: reason.concat(),
    });
}
