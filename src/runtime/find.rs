//! Finds attachments by what people call a container: the name or the path of its namespace, a
//! process in it, its id or the beginning of that, or the namespace and the name of its pod.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::cache::{self, Cache, Found};
use super::parameters::{self, Parameters};
use crate::cni::attachment::{ContainerId, Key, NetworkName};
use crate::error::{Code, Error, Result};
use crate::net::netns::{FileId, Netns};
use crate::net::private::NETNS_DIR;
use crate::plain_file;

/// The same directory by the older path of `/run`.
const OLDER_NETNS_DIR: &str = "/var/run/netns";

/// How many names an error lists.
pub const MOST_LISTED: usize = 10;

/// The length of a truncated id.
const SHORT_ID: usize = 12;

/// An attachment with a record.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The cache that has the record.
    pub cache: Cache,
    /// The attachment, with the parameters of its ADD.
    pub at: Parameters,
    /// The file of the record.
    pub found: Found,
}

/// `own`, and every cache below /var/lib/cni: libcni's callers choose the directory. cri-dockerd
/// has /var/lib/cni/cache.
pub fn caches(own: &Cache) -> Result<Vec<Cache>> {
    let usual = Path::new(cache::DEFAULT_DIR);
    let mut caches = vec![own.clone()];
    if own.dir() != usual {
        caches.push(Cache::new(usual));
    }
    match fs::read_dir(usual) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => (),
        entries => {
            for entry in entries.map_err(Error::at_path("open", usual))? {
                let dir = entry.map_err(Error::at_path("open", usual))?.path();
                if dir.join("results").is_dir() && dir != own.dir() {
                    caches.push(Cache::new(dir));
                }
            }
        }
    }
    Ok(caches)
}

/// The attachment with these names, by the file that its record should be in; None if that file is
/// not there, is unreadable, or is another attachment's.
pub fn of_key(caches: &[Cache], key: &Key) -> Option<Recorded> {
    let mut recorded = caches.iter().filter_map(|cache| of_file(cache, cache.found(key), &[]));
    recorded.find(|recorded| recorded.at.key == *key)
}

/// Every attachment with a record in these caches. Files that do not name their attachment are left
/// out: unreadable ones, and bare results of libcni 0.7.
pub fn recorded(caches: &[Cache]) -> Result<Vec<Recorded>> {
    recorded_of(caches, &[])
}

/// As [`recorded`], with the bare results of libcni 0.7 that are of one of the networks.
pub fn recorded_of(caches: &[Cache], networks: &[NetworkName]) -> Result<Vec<Recorded>> {
    let mut all = vec![];
    for cache in caches {
        let found = cache.all()?.into_iter();
        all.extend(found.filter_map(|found| of_file(cache, found, networks)));
    }
    Ok(all)
}

fn of_file(cache: &Cache, found: Found, networks: &[NetworkName]) -> Option<Recorded> {
    let named = found.record.as_ref().ok()?.at.clone();
    let at = named.or_else(|| networks.iter().find_map(|network| found.attachment(network)))?;
    Some(Recorded { cache: cache.clone(), at, found })
}

impl Recorded {
    /// The network's document at the time of ADD; empty if the file does not keep it.
    pub fn document(&self) -> &[u8] {
        self.found.record.as_ref().map_or(&[], |record| &record.document)
    }
}

/// Every recorded attachment of the container with this name; none if no container has it. Fails if
/// the name is the beginning of several ids.
pub fn of_container(caches: &[Cache], name: &str) -> Result<Vec<Recorded>> {
    Name::parse(name)?.only_of(recorded(caches)?, |recorded| Some(&recorded.at))
}

impl Parameters {
    /// What a person calls the container: the name of its namespace in `ip netns`, else its pod,
    /// else the beginning of its id. A name that a runtime has generated is not one of a person.
    pub fn name(&self) -> String {
        let of_netns = netns_name(&self.netns).filter(|name| !is_generated(name));
        let of_netns = of_netns.map(str::to_owned);
        let id = self.key.container_id.as_str();
        of_netns.or_else(|| self.pod()).unwrap_or_else(|| short_id(id).to_owned())
    }
}

/// What a person calls a container.
#[derive(Debug)]
pub struct Name {
    text: String,
    /// The path of the namespace that the text may mean.
    netns: String,
    /// The id that cnitool derives from the path.
    id_of_netns: ContainerId,
    /// The namespace, if there is one.
    namespace: Option<FileId>,
    /// The length of the shortest beginning of an id that counts.
    shortest: usize,
}

/// How a name fits an attachment, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Namespace,
    Id,
    Pod,
    BeginningOfId,
}

impl Name {
    /// Parses a name: `red`, `/run/netns/red`, `4711` (a process), an id, the beginning of an id, or
    /// `namespace/pod`. Nothing need have it.
    pub fn parse(text: &str) -> Result<Name> {
        let netns = parameters::absolute(&netns_path(text))?;
        // The namespace at the path, or else that of the process with this number.
        let identity = |path: &str| Netns::open_if_there(path).ok()??.identity().ok();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let of_process = || is_number.then(|| identity(&format!("/proc/{text}/ns/net"))).flatten();
        Ok(Name {
            id_of_netns: parameters::container_id(&netns)?,
            namespace: identity(&netns).or_else(of_process),
            text: text.to_owned(),
            netns,
            shortest: 1,
        })
    }

    /// The same name, for which shorter beginnings of ids do not count.
    #[must_use]
    pub fn at_least(self, shortest: usize) -> Name {
        Name { shortest, ..self }
    }

    /// Whether it is the name, the path or the process of a namespace that exists.
    pub fn is_there(&self) -> bool {
        self.namespace.is_some()
    }

    /// Those of the items that the name fits best. `at` is the attachment of an item.
    pub fn best_of<T>(&self, items: Vec<T>, at: fn(&T) -> Option<&Parameters>) -> Vec<T> {
        let fits: Vec<Option<Fit>> =
            items.iter().map(|item| at(item).and_then(|at| self.fit(at))).collect();
        let best = fits.iter().flatten().min().copied();
        let rated = items.into_iter().zip(fits);
        rated.filter(|(_, fit)| fit.is_some() && *fit == best).map(|(item, _)| item).collect()
    }

    /// As [`Name::best_of`], but fails if the name is the beginning of several ids.
    pub fn only_of<T>(&self, items: Vec<T>, at: fn(&T) -> Option<&Parameters>) -> Result<Vec<T>> {
        let best = self.best_of(items, at);
        let mut beginning: Vec<&str> = best
            .iter()
            .filter_map(at)
            .filter(|at| self.fit(at) == Some(Fit::BeginningOfId))
            .map(|at| at.key.container_id.as_str())
            .collect();
        beginning.sort_unstable();
        beginning.dedup();
        if beginning.len() > 1 {
            let msg = format!("several container ids begin with {:?}", self.text);
            return Err(Error::new(Code::UNKNOWN_CONTAINER, msg).with_details(listed(&beginning)));
        }
        Ok(best)
    }

    fn fit(&self, at: &Parameters) -> Option<Fit> {
        let id = at.key.container_id.as_str();
        // Two paths may lead to one namespace, and a namespace that is gone has its path alone.
        let is_same = self.namespace.is_some() && plain_file::identity(&at.netns) == self.namespace;
        if is_same
            || without_var(&at.netns) == without_var(&self.netns)
            || at.key.container_id == self.id_of_netns
        {
            Some(Fit::Namespace)
        } else if id == self.text {
            Some(Fit::Id)
        } else if at.pod().is_some_and(|pod| pod == self.text) {
            Some(Fit::Pod)
        } else if self.text.len() >= self.shortest && id.starts_with(&self.text) {
            Some(Fit::BeginningOfId)
        } else {
            None
        }
    }
}

/// The path of a namespace. A word that is not a file here is a name from `ip netns`, whether or
/// not that namespace still exists, since DEL must compute the same container id as ADD.
pub fn netns_path(argument: &str) -> PathBuf {
    let path = Path::new(argument);
    if argument.contains('/') || path.is_file() {
        path.to_owned()
    } else {
        Path::new(NETNS_DIR).join(path)
    }
}

/// The name of a namespace that `ip netns` lists; None for a namespace elsewhere.
pub fn netns_name(path: &str) -> Option<&str> {
    let dirs = [NETNS_DIR, OLDER_NETNS_DIR];
    let name = dirs.iter().find_map(|dir| path.strip_prefix(dir)?.strip_prefix('/'))?;
    Some(name).filter(|name| !name.is_empty() && !name.contains('/'))
}

/// The beginning of an id, long enough to identify its container on most hosts.
pub fn short_id(id: &str) -> &str {
    id.get(..SHORT_ID).unwrap_or(id)
}

/// Whether a runtime has generated the name: it ends with a UUID, as those of containerd, CRI-O and
/// podman do.
fn is_generated(name: &str) -> bool {
    const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
    let groups: Vec<&str> = name.rsplitn(GROUPS.len() + 1, '-').take(GROUPS.len()).collect();
    let is_hex = |group: &str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    groups.iter().rev().map(|group| group.len()).eq(GROUPS) && groups.into_iter().all(is_hex)
}

/// The path without the older path of `/run`.
fn without_var(path: &str) -> &str {
    if path.starts_with("/var/run/") { &path["/var".len()..] } else { path }
}

/// The names, separated by commas; of many, the first and the number of the others.
pub fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.len().checked_sub(MOST_LISTED) {
        None if names.is_empty() => "nothing".to_owned(),
        None | Some(0) => names.join(", "),
        Some(others) => format!("{} and {others} more", names[..MOST_LISTED].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::Value;

    fn at(id: &str, netns: &str, args: &[(&str, &str)]) -> Parameters {
        Parameters {
            key: Key::parse("lab", id, "eth0").unwrap(),
            netns: netns.into(),
            args: args.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            capability_args: Value::Object(vec![]),
        }
    }

    fn ids(name: &str, all: &[Parameters]) -> String {
        let found = Name::parse(name).unwrap().only_of(all.to_vec(), |at| Some(at));
        found.map_or_else(
            |error| error.to_string(),
            |found| {
                let ids: Vec<&str> = found.iter().map(|at| at.key.container_id.as_str()).collect();
                ids.join(" ")
            },
        )
    }

    #[test]
    fn a_container_is_found_by_each_of_its_names() {
        let pod = [("K8S_POD_NAMESPACE", "kube-system"), ("K8S_POD_NAME", "dns-1")];
        let all = [
            at("3f2a91c0", "/var/run/netns/red", &[]),
            at("3f2b0000", "/run/netns/blue", &pod),
            at("3f", "/run/netns/green", &[]),
        ];
        let cases = [
            ("red", "3f2a91c0"),
            ("/run/netns/red", "3f2a91c0"),
            ("/var/run/netns/blue", "3f2b0000"),
            ("3f2a91c0", "3f2a91c0"),
            ("3f2b", "3f2b0000"),
            ("kube-system/dns-1", "3f2b0000"),
            ("3f", "3f"),
            ("3f2", "several container ids begin with \"3f2\"; 3f2a91c0, 3f2b0000"),
            ("dns-1", ""),
            ("4f", ""),
        ];
        for (name, expected) in cases {
            assert_eq!(ids(name, &all), expected, "{name}");
        }
    }

    #[test]
    fn a_namespace_is_found_by_any_path_and_by_its_processes() {
        let own = format!("/proc/{}/ns/net", std::process::id());
        let all = [at("own", &own, &[]), at("other", "/nonexistent", &[])];
        let pid = std::process::id().to_string();
        for name in ["/proc/self/ns/net", "/proc/thread-self/ns/net", &own, &pid] {
            assert_eq!(ids(name, &all), "own", "{name}");
        }
    }

    #[test]
    fn short_beginnings_of_ids_can_be_excluded() {
        let all = vec![at("3f2a91c07b1e", "", &[])];
        let found = |text: &str, shortest| {
            Name::parse(text).unwrap().at_least(shortest).best_of(all.clone(), |at| Some(at)).len()
        };
        assert_eq!((found("3f2a", 4), found("3f2", 4), found("3f2a91c07b1e", 99)), (1, 0, 1));
    }

    #[test]
    fn names_are_those_that_ip_netns_lists() {
        assert_eq!(netns_name("/run/netns/red"), Some("red"));
        assert_eq!(netns_name("/var/run/netns/red"), Some("red"));
        for path in ["/run/netns/", "/run/netns", "/run/netns/a/b", "/proc/1/ns/net", ""] {
            assert_eq!(netns_name(path), None, "{path}");
        }
    }

    #[test]
    fn a_container_is_called_as_a_person_calls_it() {
        let pod = [("K8S_POD_NAMESPACE", "shop"), ("K8S_POD_NAME", "till")];
        let id = "3f2a91c07b1e5d77";
        let generated = "/run/netns/cni-0fd9a1b2-93b1-4ac0-a52b-01c7bb2f3e4d";
        let cases = [
            ("/run/netns/red", &pod[..], "red"),
            ("/proc/1/ns/net", &pod, "shop/till"),
            (generated, &pod, "shop/till"),
            (&generated.replace("cni-", ""), &pod, "shop/till"),
            (&generated.replace("cni-", "netns-"), &[], "3f2a91c07b1e"),
            (&generated.replace("93b1-", ""), &pod, "cni-0fd9a1b2-4ac0-a52b-01c7bb2f3e4d"),
            (&generated.replace("0fd9", "0fdx"), &[], "cni-0fdxa1b2-93b1-4ac0-a52b-01c7bb2f3e4d"),
            ("", &pod[..1], "3f2a91c07b1e"),
        ];
        for (netns, args, expected) in cases {
            assert_eq!(at(id, netns, args).name(), expected, "{netns}");
        }
        assert_eq!((at("web", "", &[]).name().as_str(), short_id("äöüäöüä")), ("web", "äöüäöü"));
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(listed(&names[..10]), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9");
        assert_eq!(listed(&names), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
        assert_eq!(listed::<&str>(&[]), "nothing");
    }
}
