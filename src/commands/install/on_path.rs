//! The command for people: links to the installed binary in a directory of PATH.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, io};

use clap::{Arg, ArgMatches};

use super::layout::{
    BINARY, ON_PATH, ON_PATH_DRAFT, absolute, attempt, exists, lines_of, record, target,
};
use crate::commands::CNITOOL;
use crate::error::{Code, Error, Result};
use crate::terminal::arguments::{flag, option};

/// The names of the links.
pub const NAMES: [&str; 2] = [BINARY, CNITOOL];

/// The directory of PATH for what an administrator installs.
const DEFAULT: &str = "/usr/local/bin";

/// The plugin directories of this host's runtimes. Another directory may belong to another root, or
/// to a user, and gets links only if `--path` names a directory.
const OF_THIS_HOST: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// `--path` and `--no-path`.
pub fn arguments() -> [Arg; 2] {
    let path = "Link cni-multi and cnitool into this directory of PATH [/usr/local/bin, for a plugin \
                directory of this host's runtimes]";
    [
        option("path", "DIR", path).conflicts_with("no-path"),
        flag("no-path", "Do not link them into a directory of PATH"),
    ]
}

/// The directory for the links.
pub struct OnPath {
    /// The directory; empty for none.
    pub dir: String,
    /// Whether the user has named it: that it cannot be used is an error then.
    pub is_named: bool,
}

impl OnPath {
    /// The directory that the options choose; `plugins` is the plugin directory.
    pub fn of(matches: &ArgMatches, plugins: &str) -> OnPath {
        let named = matches.get_one::<String>("path").map(String::as_str);
        let has_default = !matches.get_flag("no-path") && OF_THIS_HOST.contains(&plugins);
        let dir = named.map_or_else(String::new, absolute);
        let dir = if named.is_none() && has_default { DEFAULT.to_owned() } else { dir };
        OnPath { dir, is_named: named.is_some() }
    }

    /// The paths of the links.
    pub fn links(&self) -> impl Iterator<Item = String> {
        let names = if self.dir.is_empty() { &[][..] } else { &NAMES[..] };
        names.iter().map(|name| [self.dir.as_str(), "/", name].concat())
    }
}

/// The link's target, in the plugin directory `plugins`.
fn binary_in(plugins: &str) -> String {
    [plugins, "/", BINARY].concat()
}

/// Whether the path is a link to the binary in the plugin directory.
pub fn is_ours(link: &str, plugins: &str) -> bool {
    target(link) == binary_in(plugins)
}

/// The links to the binary that an uninstallation removes: the recorded ones, and those that an
/// installation with the same options would make.
pub fn present(path: &OnPath, plugins: &str) -> Vec<String> {
    let mut links = recorded();
    links.extend(path.links());
    links.retain(|link| is_ours(link, plugins));
    links.into_iter().collect()
}

fn recorded() -> BTreeSet<String> {
    lines_of(ON_PATH).ok().flatten().unwrap_or_default().into_iter().collect()
}

/// Links the path to the binary in the plugin directory, and records the link first. symlink(2)
/// fails if the path exists, so a file that was created in between is kept.
pub fn link(link: &str, plugins: &str) -> Result<()> {
    let mut links = recorded();
    if links.insert(link.to_owned()) {
        record(ON_PATH, ON_PATH_DRAFT, &Vec::from_iter(links))?;
    }
    let dir = Path::new(link).parent().unwrap_or(Path::new("/"));
    let made = fs::create_dir_all(dir).and_then(|()| symlink(binary_in(plugins), link));
    attempt("link", link, made)
}

/// Whether the link must be made. Fails if another file has its path, or if the directory, or the
/// one in which that would be made, cannot be written.
pub fn is_wanted(link: &str, plugins: &str) -> Result<bool> {
    if is_ours(link, plugins) {
        return Ok(false);
    }
    if exists(link) {
        let problem = format!("{link} is not a link to {} and stays", binary_in(plugins));
        let advice = format!("to replace it: ln -sf {} {link}", binary_in(plugins));
        return Err(Error::new(Code::CONFLICT, problem).with_details(advice));
    }
    let mut parents = Path::new(link).ancestors().skip(1);
    let parent = parents.find(|path| path.exists()).unwrap_or(Path::new("/"));
    let writable = nix::unistd::access(parent, nix::unistd::AccessFlags::W_OK);
    attempt("link", link, writable.map_err(io::Error::from)).map(|()| true)
}
