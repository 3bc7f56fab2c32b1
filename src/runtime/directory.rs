//! Networks in a directory of configuration files, found as libcni finds them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, FileType};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::list::{NetworkList, PluginConfig};
use crate::cni::attachment::NetworkName;
use crate::error::{Code, Error, Result};
use crate::plain_file;

/// The network of this name in the directory. A `.conflist` takes precedence over a single plugin's
/// file with the same network name. The first unreadable file ends the search, whichever network it
/// is of.
pub fn find(dir: &Path, name: &str) -> Result<NetworkList> {
    let files = files(dir)?;
    if files.is_empty() {
        return Err(missing(format!("no net configurations found in {}", dir.display())));
    }
    find_among(&files, name)?.ok_or_else(|| {
        missing(format!("no net configuration with name \"{name}\" in {}", dir.display()))
    })
}

/// As [`find`], but None if no file has the network. An unreadable file may have it.
pub fn find_if_there(dir: &Path, name: &str) -> Result<Option<NetworkList>> {
    find_among(&files(dir)?, name)
}

/// The first network of this name.
fn find_among(files: &[PathBuf], name: &str) -> Result<Option<NetworkList>> {
    for file in files {
        let list = load(file)?;
        if list.name == name {
            return Ok(Some(list));
        }
    }
    Ok(None)
}

fn missing(problem: String) -> Error {
    Error::new(Code::INVALID_CONFIG, problem)
}

/// The configuration files of the directory, in search order.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files_ending(dir, &[".conflist"])?;
    files.extend(files_ending(dir, &[".conf", ".json"])?);
    Ok(files)
}

/// Reads one file: a `.conflist` as a list, with the plugins in the directory named after the
/// network, else a single plugin.
pub fn load(file: &Path) -> Result<NetworkList> {
    let text = read(file)?;
    let dir = file.parent().unwrap_or(Path::new("."));
    let list = if ends_with(file.as_os_str(), ".conflist") {
        of_document(text, dir)
    } else {
        NetworkList::of_single(text)
    };
    list.map_err(|error| in_file(error, file))
}

fn in_file(error: Error, file: &Path) -> Error {
    error.with_details(format_args!("the file is {}", file.display()))
}

/// The network of a document that is not in a file, such as the cached document of an ADD, with the
/// plugins in the directory below `dir` that is named after it: a document does not contain those,
/// so a DEL by the document alone would skip them.
pub fn of_document(text: Vec<u8>, dir: &Path) -> Result<NetworkList> {
    let mut list = NetworkList::parse(text)?;
    // The plugins that packages install in `<dir>/<network>/`. A name that does not parse is not a
    // network's name, and as a path it could lead anywhere.
    let own = NetworkName::parse(&list.name).ok().filter(|_| !list.only_inlined);
    if let Some(own) = own.map(|name| dir.join(name.as_str())) {
        let files = files_ending(&own, &[".conf"]).map_err(|error| {
            error.context(format_args!("failed to read plugin config files in {}", own.display()))
        })?;
        for file in files {
            let plugin = PluginConfig::parse(&read(&file)?);
            list.plugins.push(plugin.map_err(|error| in_file(error, &file))?);
        }
    }
    if list.plugins.is_empty() {
        return Err(Error::new(Code::INVALID_CONFIG, "no plugin configs found"));
    }
    Ok(list)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let read = plain_file::read_configuration(file);
    read.map_err(|e| Error::io(format_args!("error reading {0}: open {0}", file.display()), &e))
}

/// The files of the directory with one of these endings, sorted. A missing directory is empty.
fn files_ending(dir: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    let names = file_names(dir).map_err(Error::at_path("open", dir))?;
    let ends_so = |name: &OsString| endings.iter().any(|ending| ends_with(name, ending));
    Ok(names.into_iter().filter(ends_so).map(|name| dir.join(name)).collect())
}

/// Whether the name has Go's idea of this extension: a file named `.conflist` has one.
fn ends_with(name: &OsStr, ending: &str) -> bool {
    name.as_encoded_bytes().ends_with(ending.as_bytes())
}

/// The names of the directory's entries that are not directories, sorted; empty if the directory is
/// missing.
pub fn file_names(dir: &Path) -> io::Result<Vec<OsString>> {
    names(dir, |kind| !kind.is_dir())
}

/// The names of the directory's entries of the wanted type, sorted.
pub(super) fn names(dir: &Path, is_wanted: fn(FileType) -> bool) -> io::Result<Vec<OsString>> {
    let mut names = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => vec![],
        entries => names_among(entries?, is_wanted)?,
    };
    names.sort_unstable(); // a cache may have ten thousand
    Ok(names)
}

fn names_among(entries: fs::ReadDir, is_wanted: fn(FileType) -> bool) -> io::Result<Vec<OsString>> {
    let mut names = vec![];
    for entry in entries {
        let entry = entry?;
        if is_wanted(entry.file_type()?) {
            names.push(entry.file_name());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn kinds(list: &NetworkList) -> Vec<&str> {
        list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect()
    }

    const SINGLE: &str = r#"{"name":"some-net","type":"single"}"#;
    const LIST: &str = r#"{"name":"some-net","plugins":[{"type":"first"}]}"#;

    #[test]
    fn a_list_goes_before_a_single_configuration_of_its_name() {
        for ending in ["conf", "json"] {
            let dir = Scratch::new();
            let single = format!("00-a.{ending}");
            dir.write(&single, SINGLE);
            assert_eq!(kinds(&find(dir.path(), "some-net").unwrap()), ["single"]);
            dir.write("99-z.conflist", LIST);
            assert_eq!(kinds(&find(dir.path(), "some-net").unwrap()), ["first"]);
            dir.write("99-z.conflist", &LIST.replace("some-net", "other"));
            assert_eq!(
                kinds(&find(dir.path(), "some-net").unwrap()),
                ["single"],
                "no list of that name"
            );
        }
    }

    #[test]
    fn directory_is_searched_for_files_of_three_extensions() {
        let dir = Scratch::new();
        for name in ["a.CONFLIST", "a.conflist.bak", "a.txt", "sub/a.conflist", "dir.conflist/x"] {
            dir.write(name, "not even JSON");
        }
        let at = dir.path().display();
        assert_eq!(
            find(dir.path(), "n").unwrap_err().to_string(),
            format!("no net configurations found in {at}")
        );
        assert_eq!(
            find(&dir.path().join("none"), "n").unwrap_err().to_string(),
            format!("no net configurations found in {at}/none")
        );
        dir.write("b.conflist", LIST);
        assert_eq!(
            find(dir.path(), "n").unwrap_err().to_string(),
            format!("no net configuration with name \"n\" in {at}")
        );
        dir.write(".conflist", &LIST.replace("some-net", "hidden"));
        assert!(find(dir.path(), "hidden").is_ok());
    }

    #[test]
    fn a_broken_file_before_the_match_ends_the_search() {
        let dir = Scratch::new();
        dir.write("50.conflist", LIST);
        dir.write("99.conflist", "");
        assert!(find(dir.path(), "some-net").is_ok(), "what comes after the match is not read");
        dir.write("00.conflist", "");
        let error = find(dir.path(), "some-net").unwrap_err();
        assert_eq!(
            error.msg,
            "error parsing configuration list: EOF while parsing a value at line 1 column 0"
        );
        assert_eq!(error.details(), format!("the file is {}/00.conflist", dir.path().display()));
        std::os::unix::fs::symlink("/nonexistent", dir.path().join("-.conflist")).unwrap();
        let file = dir.path().join("-.conflist");
        let error = find(dir.path(), "some-net").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("error reading {0}: open {0}: no such file or directory", file.display())
        );
    }

    /// cnitool waits for a FIFO, and reads a file of any size.
    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = Scratch::new();
        nix::unistd::mkfifo(&dir.path().join("n.conflist"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(find(dir.path(), "n").unwrap_err().msg.ends_with("n.conflist: not a regular file"));
    }

    #[test]
    fn a_list_in_a_conf_file_is_no_plugin() {
        let dir = Scratch::new();
        dir.write("00.conf", LIST);
        assert_eq!(
            find(dir.path(), "some-net").unwrap_err().msg,
            "error parsing configuration: missing 'type'"
        );
    }

    #[test]
    fn plugins_of_the_network_s_directory_follow_the_inlined() {
        let dir = Scratch::new();
        let load = |keys: &str| {
            dir.write("n.conflist", &format!(r#"{{"name":"some-net"{keys}}}"#));
            find(dir.path(), "some-net")
                .map(|list| kinds(&list).join(" "))
                .map_err(|error| error.msg.clone())
        };
        let inlined = r#","plugins":[{"type":"first"}]"#;
        assert_eq!(load(""), Err("no plugin configs found".into()));
        assert_eq!(load(inlined), Ok("first".into()), "the directory may be missing");
        dir.write("some-net/20.conf", r#"{"type":"third"}"#);
        dir.write("some-net/10.conf", r#"{"type":"second"}"#);
        dir.write("some-net/30.json", "{");
        assert_eq!(load(""), Ok("second third".into()));
        assert_eq!(load(inlined), Ok("first second third".into()));
        assert_eq!(
            load(&format!(r#"{inlined},"loadOnlyInlinedPlugins":"TRUE""#)),
            Ok("first".into())
        );
        dir.write("some-net/40.conf", "{}");
        assert_eq!(load(inlined), Err("error parsing configuration: missing 'type'".into()));
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_told() {
        let dir = Scratch::new();
        dir.write("n.conflist", LIST);
        dir.write("some-net", "a file where the directory should be");
        let expected = format!(
            "failed to read plugin config files in {0}/some-net: open {0}/some-net: not a directory",
            dir.path().display()
        );
        assert_eq!(find(dir.path(), "some-net").unwrap_err().msg, expected);
        let only_inlined = LIST.replacen('{', r#"{"loadOnlyInlinedPlugins":true,"#, 1);
        dir.write("n.conflist", &only_inlined);
        assert!(find(dir.path(), "some-net").is_ok());
    }

    #[test]
    fn a_single_configuration_has_no_directory() {
        let dir = Scratch::new();
        dir.write("n.conf", SINGLE);
        dir.write("some-net/10.conf", r#"{"type":"second"}"#);
        assert_eq!(kinds(&find(dir.path(), "some-net").unwrap()), ["single"]);
    }

    #[test]
    fn a_name_that_is_a_path_leads_nowhere() {
        let dir = Scratch::new();
        dir.write("plugins/00.conf", r#"{"type":"outside"}"#);
        dir.write("net.d/n.conflist", r#"{"name":"../plugins","plugins":[{"type":"first"}]}"#);
        assert_eq!(kinds(&load(&dir.path().join("net.d/n.conflist")).unwrap()), ["first"]);
    }
}
