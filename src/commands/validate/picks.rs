//! Which of a directory's files a runtime takes, by the rules of each.

use std::path::{Path, PathBuf};

use super::network::Network;
use crate::cni::json::Value;

/// What runtimes read, as far as they read directories of networks.
const EXTENSIONS: [&str; 3] = ["conflist", "conf", "json"];

/// What a runtime does with a file.
pub struct Pick {
    /// The runtime.
    pub runtime: &'static str,
    network: String,
    file: String,
    /// In words, with the file and the network.
    pub reason: String,
}

impl Pick {
    /// For tools.
    pub fn to_value(&self) -> Value {
        Value::object(vec![
            ("runtime", Value::text(self.runtime)),
            ("network", Value::text(&self.network)),
            ("file", Value::text(&self.file)),
            ("reason", Value::text(&self.reason)),
        ])
    }
}

/// The file's extension, if a runtime reads such files.
pub fn extension(file: &Path) -> Option<&'static str> {
    let name = file.as_os_str().as_encoded_bytes();
    let is = |extension: &&str| name.strip_suffix(extension.as_bytes()).is_some_and(|stem| stem.ends_with(b"."));
    EXTENSIONS.into_iter().find(is)
}

/// The picks from the files of a directory, which are sorted by name, each with its network where it is JSON at all.
pub fn of_dir(files: &[(PathBuf, Option<usize>)], networks: &[Network]) -> Vec<Pick> {
    let files: Vec<(String, Option<&Network>, bool)> = files
        .iter()
        .map(|(file, network)| {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, network.and_then(|network| networks.get(network)), extension(file) == Some("conflist"))
        })
        .collect();
    let mut picks = vec![];
    let mut push = |runtime, file: &str, network: &str, reason: String| {
        picks.push(Pick { runtime, network: network.to_owned(), file: file.to_owned(), reason });
    };

    // go-cni: all kinds sorted together, and the first max_conf_num of them, which is 1.
    match files.first() {
        None => return picks,
        Some((file, Some(network), _)) if network.loads => {
            let reason = format!("{:?} of {file}: the first file by name", network.name);
            push("containerd", file, &network.name, reason);
        }
        Some((file, ..)) => {
            push("containerd", file, "", format!("none: {file} is the first file by name, and does not load"));
        }
    }

    // ocicni: the same order, but what does not load or is not served is passed over.
    let served = |network: &&Network| network.loads && network.is_served;
    match files.iter().find_map(|(file, network, _)| Some((file, network.filter(served)?))) {
        Some((file, network)) => {
            let reason = format!(
                "{:?} of {file}: the first file whose plugins are all there, unless cni_default_network names another",
                network.name
            );
            push("CRI-O", file, &network.name, reason);
        }
        None => push("CRI-O", "", "", "none: there is no file that loads and whose plugins are all there".to_owned()),
    }

    // libcni: by name, lists before single plugins; the first that does not load ends the search.
    let mut seen: Vec<(&str, &str)> = vec![];
    for (file, network, is_list) in files.iter().filter(|file| file.2).chain(files.iter().filter(|file| !file.2)) {
        let by_name = if *is_list { "cnitool, podman" } else { "cnitool" }; // podman reads lists only
        let Some(network) = network.filter(|network| network.loads) else {
            push(by_name, file, "", format!("{file} does not load, and no network behind it is found"));
            break;
        };
        let name = network.name.as_str();
        match seen.iter().find(|(other, _)| *other == name) {
            Some((_, first)) => push(by_name, file, name, format!("{file} is ignored: {name:?} is in {first}")),
            None => {
                push(by_name, file, name, format!("{name:?}: {file}"));
                seen.push((name, file));
            }
        }
    }
    picks
}
