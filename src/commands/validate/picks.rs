//! Which of a directory's files each runtime uses, by its own rules.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::checker::{Network, push};
use crate::cni::attachment::NetworkName;
use crate::terminal::visible::visible;

/// The file extensions that runtimes read in network directories.
const EXTENSIONS: [&str; 3] = ["conflist", "conf", "json"];

/// What a runtime does with a file.
#[derive(Serialize)]
pub struct Pick {
    /// The runtime.
    pub runtime: &'static str,
    /// The directory, as on the command line.
    pub directory: String,
    /// The network's name; empty if there is none.
    pub network: String,
    /// The file; empty if there is none.
    pub file: String,
    /// The reason in words, with the file and the network.
    pub reason: String,
}

impl Pick {
    /// Writes the pick for people.
    pub fn tell(&self, out: &mut String) {
        let blanks = "          ".get(self.runtime.len()..).unwrap_or_default();
        push(out, &["  ", self.runtime, blanks, "  ", &visible(&self.reason), "\n"]);
    }
}

/// The file's extension, if runtimes read such files.
pub fn extension(file: &Path) -> Option<&'static str> {
    let name = file.as_os_str().as_encoded_bytes();
    EXTENSIONS.into_iter().find(|extension| {
        name.strip_suffix(extension.as_bytes()).is_some_and(|stem| stem.ends_with(b"."))
    })
}

/// A file as a runtime finds it.
struct Loaded<'a> {
    /// The name of the file.
    file: String,
    /// Its network, if it loads.
    network: Option<&'a Network>,
}

impl Loaded<'_> {
    /// The network's name; empty if the file does not load.
    fn name(&self) -> &str {
        self.network.map_or("", |network| &network.name)
    }

    fn is_list(&self) -> bool {
        self.file.ends_with("list")
    }

    fn is_served(&self) -> bool {
        self.network.is_some_and(|network| network.is_served)
    }

    /// What a runtime does with the file.
    fn pick(&self, runtime: &'static str, reason: &[&str]) -> Pick {
        Pick {
            runtime,
            directory: String::new(),
            network: self.name().to_owned(),
            file: self.file.clone(),
            reason: reason.concat(),
        }
    }
}

/// The picks from the files of a directory, which are sorted by name, each with its network if it
/// is JSON.
pub fn of_dir(dir: &Path, files: &[(PathBuf, Option<usize>)], networks: &[Network]) -> Vec<Pick> {
    let loaded = |(file, index): &'_ (PathBuf, Option<usize>)| {
        let file = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let network = index.and_then(|index| networks.get(index)).filter(|network| network.loads);
        Loaded { file, network }
    };
    let files: Vec<Loaded<'_>> = files.iter().map(loaded).collect();
    let Some(first) = files.first() else { return vec![] };
    let mut picks = vec![containerd(first), crio(&files)];
    picks.extend(podman(&files));
    picks.extend(cnitool(&files));
    let directory = dir.to_string_lossy().into_owned();
    picks.iter_mut().for_each(|pick| pick.directory.clone_from(&directory));
    picks
}

/// go-cni: sorts all kinds of files together and loads the first max_conf_num, which is 1.
fn containerd(first: &Loaded<'_>) -> Pick {
    let file = &first.file;
    let loaded: &[&str] = &["\"", first.name(), "\" of ", file, ": the first file by name"];
    let not_loaded: &[&str] = &["none: ", file, " is the first file by name, but does not load"];
    first.pick("containerd", if first.network.is_some() { loaded } else { not_loaded })
}

/// ocicni: the same order, but skips files that do not load or whose plugins are not all available.
fn crio(files: &[Loaded<'_>]) -> Pick {
    let Some(first) = files.iter().find(|file| file.is_served()) else {
        let none = Loaded { file: String::new(), network: None };
        let reason = "none: no file loads and has all of its plugins available";
        return none.pick("CRI-O", &[reason]);
    };
    let why = ": the first file with all of its plugins available, unless cni_default_network names another";
    first.pick("CRI-O", &["\"", first.name(), "\" of ", &first.file, why])
}

/// Podman: lists only; skips files that do not load or cannot be used.
fn podman(files: &[Loaded<'_>]) -> Vec<Pick> {
    let mut seen = FirstOfNames { runtime: "podman", seen: vec![] };
    let mut picks = vec![];
    for file in files.iter().filter(|file| file.is_list()) {
        let problem = if file.network.is_none() {
            " is ignored: it does not load"
        } else if NetworkName::parse(file.name()).is_err() {
            " is ignored: the network's name is invalid"
        } else if !file.is_served() {
            " is ignored: some of its plugins are missing or do not support its version"
        } else {
            picks.push(seen.pick(file));
            continue;
        };
        picks.push(file.pick("podman", &[&file.file, problem]));
    }
    picks
}

/// libcni: searches by name, lists before single plugins; the first file that does not load ends
/// the search.
fn cnitool(files: &[Loaded<'_>]) -> Vec<Pick> {
    let mut seen = FirstOfNames { runtime: "cnitool", seen: vec![] };
    let mut picks = vec![];
    let (lists, singles): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.is_list());
    for file in lists.into_iter().chain(singles) {
        if file.network.is_none() {
            let end = " does not load, which ends the search";
            picks.push(file.pick("cnitool", &[&file.file, end]));
            break;
        }
        picks.push(seen.pick(file));
    }
    picks
}

/// A runtime that takes the first file of each name.
struct FirstOfNames<'a> {
    runtime: &'static str,
    seen: Vec<&'a Loaded<'a>>,
}

impl<'a> FirstOfNames<'a> {
    fn pick(&mut self, file: &'a Loaded<'a>) -> Pick {
        let name = file.name();
        if let Some(first) = self.seen.iter().find(|other| other.name() == name) {
            let reason = &[&file.file, " is ignored: \"", name, "\" is in ", &first.file];
            return file.pick(self.runtime, reason);
        }
        self.seen.push(file);
        file.pick(self.runtime, &["\"", name, "\": ", &file.file])
    }
}
