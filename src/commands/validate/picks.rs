//! Which of a directory's files a runtime takes, by the rules of each.

use std::path::{Path, PathBuf};

use super::network::Network;

/// What runtimes read, as far as they read directories of networks.
const EXTENSIONS: [&str; 3] = ["conflist", "conf", "json"];

/// What a runtime does with a file.
pub struct Pick {
    /// The runtime.
    pub runtime: &'static str,
    /// The network's name; empty where there is none.
    pub network: String,
    /// The file; empty where there is none.
    pub file: String,
    /// In words, with the file and the network.
    pub reason: String,
}

/// The file's extension, if a runtime reads such files.
pub fn extension(file: &Path) -> Option<&'static str> {
    let name = file.as_os_str().as_encoded_bytes();
    EXTENSIONS
        .into_iter()
        .find(|extension| name.strip_suffix(extension.as_bytes()).is_some_and(|stem| stem.ends_with(b".")))
}

/// The picks from the files of a directory, which are sorted by name, each with its network where it is JSON at all.
pub fn of_dir(files: &[(PathBuf, Option<usize>)], networks: &[Network]) -> Vec<Pick> {
    let mut picks: Vec<Pick> = vec![];
    let mut push = |runtime, file: &str, network: &str, reason: &[&str]| {
        picks.push(Pick { runtime, network: network.to_owned(), file: file.to_owned(), reason: reason.concat() });
    };
    let files: Vec<(&str, Option<&Network>)> = files
        .iter()
        .map(|(file, network)| {
            let network = network.and_then(|network| networks.get(network)).filter(|network| network.loads);
            (file.file_name().and_then(|name| name.to_str()).unwrap_or_default(), network)
        })
        .collect();

    // go-cni: all kinds sorted together, and the first max_conf_num of them, which is 1.
    match files.first() {
        None => return picks,
        Some((file, Some(network))) => {
            push("containerd", file, &network.name, &["\"", &network.name, "\" of ", file, ": the first file by name"]);
        }
        Some((file, None)) => {
            push("containerd", file, "", &["none: ", file, " is the first file by name, and does not load"]);
        }
    }

    // ocicni: the same order, but what does not load or is not served is passed over.
    match files.iter().find_map(|(file, network)| Some((file, network.filter(|network| network.is_served)?))) {
        Some((file, network)) => {
            let why = ": the first file whose plugins are all there, unless cni_default_network names another";
            push("CRI-O", file, &network.name, &["\"", &network.name, "\" of ", file, why]);
        }
        None => push("CRI-O", "", "", &["none: there is no file that loads and whose plugins are all there"]),
    }

    // libcni: by name, lists before single plugins; the first that does not load ends the search. Podman reads lists only.
    let mut seen: Vec<(&str, &str)> = vec![];
    for (is_list, runtime) in [(true, "cnitool, podman"), (false, "cnitool")] {
        for (file, network) in files.iter().filter(|(file, _)| file.ends_with("list") == is_list) {
            let Some(network) = network else {
                push(runtime, file, "", &[file, " does not load, and no network behind it is found"]);
                return picks;
            };
            let name = network.name.as_str();
            match seen.iter().find(|(other, _)| *other == name) {
                Some((_, first)) => push(runtime, file, name, &[file, " is ignored: \"", name, "\" is in ", first]),
                None => {
                    push(runtime, file, name, &["\"", name, "\": ", file]);
                    seen.push((name, file));
                }
            }
        }
    }
    picks
}
