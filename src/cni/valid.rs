//! The attachments that GC must keep, and the record of what it removes.
//!
//! A runtime's GC removes everything that its list does not contain. `cni-multi net gc` first asks
//! the same code what it would remove: every removal goes through [`ValidAttachments::remove`], so
//! the preview and the removal cannot differ.

use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::attachment::{ContainerId, Hash8, IfName, Key, NetworkName, attachment_hash, unhex8};
use super::json::Value;
use crate::error::{Code, Error, Mistake, Problem, Result};

/// The key of GC's list, and its name in the text of version 1.1.0; libcni writes both.
const KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// One valid attachment, as GC lists it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ValidAttachment {
    /// The container's id.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface's name in the container.
    pub ifname: String,
}

/// Whether a GC only previews or removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Record what would be removed, and remove nothing.
    Look,
    /// Remove everything stale.
    Detach,
}

/// The owner of an object on the host, as far as the object itself shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The hash of the attachment within its network.
    pub hash: Option<Hash8>,
    /// The container's id; empty if unknown.
    pub container_id: String,
    /// Whether the id is cut off at the maximum length of a comment.
    pub is_cut: bool,
    /// The interface's name; empty if unknown.
    pub ifname: String,
}

impl Holder {
    /// The holder for an attachment.
    pub fn of(key: &Key) -> Holder {
        Holder {
            hash: Some(key.attachment_hash()),
            container_id: key.container_id.to_string(),
            is_cut: false,
            ifname: key.ifname.to_string(),
        }
    }

    /// The holder for a container with any interface.
    pub fn of_container(container_id: &str) -> Holder {
        Holder { container_id: container_id.to_owned(), ..Holder::default() }
    }

    /// The holder for a [`Key::comment`]; without the words after the identity it is known by its
    /// hash alone.
    pub fn of_comment(comment: &str) -> Holder {
        Holder {
            hash: comment.get(17..33).and_then(unhex8),
            container_id: word_after(", id: ", comment).to_owned(),
            is_cut: comment.len() >= Key::COMMENT_MAX,
            ifname: word_after(", if: ", comment).to_owned(),
        }
    }

    /// The names, if all of them are known.
    pub fn names(&self) -> Option<ValidAttachment> {
        if self.is_cut || self.container_id.is_empty() || self.ifname.is_empty() {
            return None;
        }
        let container_id = self.container_id.clone();
        Some(ValidAttachment { container_id, ifname: self.ifname.clone() })
    }
}

/// What a comment says behind a name, up to the next comma; empty if it lacks the name.
fn word_after<'a>(name: &str, comment: &'a str) -> &'a str {
    let behind = comment.split_once(name).map(|(_, behind)| behind).unwrap_or_default();
    behind.split(", ").next().unwrap_or_default()
}

/// An object on the host that belongs to no valid attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// A description, such as `lease 10.1.2.3`.
    pub what: String,
    /// The attachment or container that owns it.
    pub holder: Holder,
    /// The container's addresses that it concerns.
    pub addresses: Vec<IpAddr>,
    /// The path of the container's namespace, if it was recorded.
    pub netns_path: String,
    /// Whether the object exists only as long as the namespace: the host's end of a veth pair.
    pub is_alive: bool,
    /// Whether the object is useless without the host's link of its attachment.
    pub needs_link: bool,
    /// Whether it was left half-written by a killed process: no attachment needs it.
    pub is_torn: bool,
    /// Whether it stands for the GC of an external plugin, which decides itself what it removes.
    pub is_call: bool,
}

/// The attachments that GC must keep.
#[derive(Clone, Debug, Default)]
pub struct ValidAttachments {
    /// Sorted by container and interface, so that each lookup is a binary search.
    listed: Vec<ValidAttachment>,
    /// The hashes of all, computed on first use.
    hashes: OnceCell<HashSet<Hash8>>,
    /// Attachments kept although they are not listed; for some only the hash may be known.
    spared: Vec<Holder>,
    /// The record of what is removed, if requested, and the extent of the GC.
    watch: Option<Watch>,
}

#[derive(Clone, Debug)]
struct Watch {
    extent: Extent,
    stale: RefCell<Vec<Stale>>,
}

impl ValidAttachments {
    /// A set of these attachments; duplicates are allowed.
    pub fn new(mut listed: Vec<ValidAttachment>) -> ValidAttachments {
        listed.sort_unstable();
        ValidAttachments { listed, ..ValidAttachments::default() }
    }

    /// The list of a configuration, under either name of its key; an attachment in one of them is
    /// valid. None means that the runtime sent no list, so that nothing is known to be stale.
    ///
    /// `null` is an empty list: libcni's GCNetworkList writes its caller's nil slice this way when
    /// no container is left, and has by then detached every attachment it has a record of. For a
    /// caller without a list libcni omits the key. If `null` counted as no list, the last
    /// containers of a node would never be collected.
    ///
    /// An entry that names no attachment is code 7: its container cannot be known, and may be any
    /// that is alive. Go's decoder takes `null` and `{}` for an attachment with empty names, so the
    /// one meant would be detached.
    pub fn of_config(config: &Value) -> Result<Option<ValidAttachments>> {
        let Value::Object(members) = config else { return Ok(None) };
        let mut listed = vec![];
        let mut is_said = false;
        for key in KEYS {
            is_said |= members.iter().any(|(name, _)| name.eq_ignore_ascii_case(key));
            let value = config.get(key);
            // The same list under both names is read once.
            if let Some(value) = value.filter(|_| key == KEYS[0] || config.get(KEYS[0]) != value) {
                listed.extend(read_list(key, value)?);
            }
        }
        Ok(is_said.then(|| ValidAttachments::new(listed)))
    }

    /// The same set with more attachments to keep.
    #[must_use]
    pub fn sparing(self, spared: Vec<Holder>) -> ValidAttachments {
        ValidAttachments { spared, hashes: OnceCell::new(), ..self }
    }

    /// The same set with a record of everything that is removed.
    #[must_use]
    pub fn watched(self, extent: Extent) -> ValidAttachments {
        ValidAttachments { watch: Some(Watch { extent, stale: RefCell::default() }), ..self }
    }

    /// Whether this attachment is valid.
    pub fn contains(&self, container_id: &str, ifname: &str) -> bool {
        self.is_listed(container_id, ifname)
            || !self.spared.is_empty() && self.contains_hash(&attachment_hash(container_id, ifname))
    }

    /// Whether this is an attachment to the network that is not valid.
    pub fn is_stale(&self, network: &NetworkName, key: &Key) -> bool {
        key.network == *network && !self.contains(key.container_id.as_str(), key.ifname.as_str())
    }

    fn is_listed(&self, container_id: &str, ifname: &str) -> bool {
        let names = (container_id, ifname);
        let compare =
            |it: &ValidAttachment| (it.container_id.as_str(), it.ifname.as_str()).cmp(&names);
        self.listed.binary_search_by(compare).is_ok()
    }

    /// Whether any attachment of this container is valid.
    pub fn contains_container(&self, container_id: &str) -> bool {
        let first = self.listed.partition_point(|valid| valid.container_id.as_str() < container_id);
        self.listed.get(first).is_some_and(|valid| valid.container_id == container_id)
            || self.spared_containers().any(|spared| spared == container_id)
    }

    /// The containers of the attachments that are kept, as far as they are known whole.
    fn spared_containers(&self) -> impl Iterator<Item = &str> {
        let whole = self.spared.iter().filter(|holder| !holder.is_cut);
        whole.map(|holder| holder.container_id.as_str())
    }

    /// Whether the attachment with this [`Key::attachment_hash`] is valid.
    pub fn contains_hash(&self, hash: &Hash8) -> bool {
        let all = || {
            let hash = |at: &ValidAttachment| attachment_hash(&at.container_id, &at.ifname);
            let spared = self.spared.iter().filter_map(|holder| holder.hash);
            self.listed.iter().map(hash).chain(spared).collect()
        };
        self.hashes.get_or_init(all).contains(hash)
    }

    /// Whether the attachment is valid whose [`Key::identity`] the text begins with.
    pub fn contains_identity(&self, text: &str) -> bool {
        text.get(17..33).and_then(unhex8).is_some_and(|hash| self.contains_hash(&hash))
    }

    /// Every valid attachment with known names.
    pub fn names(&self) -> Vec<ValidAttachment> {
        let mut names = self.listed.clone();
        for valid in self.spared.iter().filter_map(Holder::names) {
            if !self.is_listed(&valid.container_id, &valid.ifname)
                && !names[self.listed.len()..].contains(&valid)
            {
                names.push(valid);
            }
        }
        names
    }

    /// The container of each valid attachment.
    pub fn containers(&self) -> impl Iterator<Item = &str> {
        let listed = self.listed.iter().map(|valid| valid.container_id.as_str());
        listed.chain(self.spared_containers())
    }

    /// Removes an object, unless this GC is a preview. It is recorded once it is removed.
    pub fn remove<T: Default>(
        &self,
        stale: impl FnOnce() -> Stale,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(watch) = &self.watch else { return work() };
        let done = if watch.extent == Extent::Look { T::default() } else { work()? };
        watch.stale.borrow_mut().push(stale());
        Ok(done)
    }

    /// Has another program run its GC, with the names of the valid attachments in its
    /// configuration. Refuses if only the hash of one to keep is known, because the program would
    /// remove it.
    pub fn call(&self, program: &Path, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let names = self.names();
        let is_named =
            |holder: &Holder| names.iter().any(|valid| valid.container_id == holder.container_id);
        if !self.spared.iter().all(is_named) {
            let why = "what is spared has names that are not known whole; \
                       `net gc --unrecorded` takes it";
            let msg = format!("{} was not called", program.display());
            return Err(Error::new(Code::CONFLICT, msg).with_details(why));
        }
        let what = || format!("GC of {}", program.display());
        self.remove(|| Stale { what: what(), is_call: true, ..Stale::default() }, work)
    }

    /// Whether this GC is a preview.
    pub fn is_look(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.extent == Extent::Look)
    }

    /// Whether this GC records what it removes.
    pub fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// The objects removed, or to be removed, since the last call.
    pub fn take_stale(&self) -> Vec<Stale> {
        self.watch.as_ref().map(|watch| watch.stale.take()).unwrap_or_default()
    }
}

/// Reads a list in which every entry names an attachment. A wrong type is code 7 here, as is any
/// other mistake in the list, and a name must not be missing: the decoder would give code 6 and an
/// empty name.
fn read_list(key: &'static str, value: &Value) -> Result<Vec<ValidAttachment>> {
    let Value::Array(entries) = value else {
        let found = Mistake::of(Problem::Found(value.kind().to_owned()));
        return Err(found.at(key).expecting("a list of attachments").into());
    };
    let mut listed = vec![];
    for (index, entry) in entries.iter().enumerate() {
        listed.push(read_entry(entry).map_err(|problem| {
            Error::new(Code::INVALID_CONFIG, format!("{key}[{index}]{problem}")).with_details(
                "nothing was removed, since the entry may be of a container that lives",
            )
        })?);
    }
    Ok(listed)
}

/// The error is the member and what is wrong with it.
fn read_entry(entry: &Value) -> Result<ValidAttachment, String> {
    let Value::Object(_) = entry else {
        let expected = "is not an attachment, expected containerID and ifname";
        return Err(format!(": {} {expected}", entry.kind()));
    };
    let read = |key| match entry.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        None => Err(format!(".{key}: missing, expected a name")),
        Some(other) => Err(format!(".{key}: expected a string, found {}", other.kind())),
    };
    let (container_id, ifname) = (read("containerID")?, read("ifname")?);
    ContainerId::parse(&container_id)
        .map_err(|e| format!(".containerID: {container_id:?} names no attachment: {e}"))?;
    IfName::parse(&ifname).map_err(|e| format!(".ifname: {ifname:?} names no attachment: {e}"))?;
    Ok(ValidAttachment { container_id, ifname })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<ValidAttachments>> {
        ValidAttachments::of_config(&Value::parse(text.as_bytes()).unwrap())
    }

    fn names(text: &str) -> Option<Vec<(String, String)>> {
        let valid = read(text).unwrap()?;
        Some(valid.names().into_iter().map(|valid| (valid.container_id, valid.ifname)).collect())
    }

    #[test]
    fn gc_s_list_has_two_names_and_three_ways_to_be_empty() {
        assert_eq!(names(r#"{"name":"n"}"#), None);
        for empty in ["null", "[]"] {
            assert_eq!(names(&format!(r#"{{"cni.dev/valid-attachments":{empty}}}"#)), Some(vec![]));
            assert_eq!(names(&format!(r#"{{"cni.dev/attachments":{empty}}}"#)), Some(vec![]));
        }
        let list = read(r#"{"CNI.dev/attachments":[{"containerID":"a","ifname":"eth0"}]}"#)
            .unwrap()
            .unwrap();
        assert!(
            list.contains("a", "eth0")
                && !list.contains("a", "eth1")
                && list.contains_container("a")
        );
    }

    #[test]
    fn gc_s_list_is_read_as_go_reads_it() {
        let a = Some(vec![("a".to_owned(), "eth0".to_owned())]);
        assert_eq!(
            names(r#"{"cni.dev/attachments":[{"ContainerId":"a","IFNAME":"eth0","x":1}]}"#),
            a
        );
        assert_eq!(
            names(r#"{"cni.dev/attachments":[{"ifname":"x","containerID":"a","ifname":"eth0"}]}"#),
            a
        );
        let twice = r#"[{"containerID":"a","ifname":"eth0"},{"containerID":"a","ifname":"eth0"}]"#;
        assert_eq!(names(&format!(r#"{{"cni.dev/attachments":{twice}}}"#)).unwrap().len(), 2);
    }

    #[test]
    fn an_attachment_under_either_key_is_valid() {
        let a = r#"[{"containerID":"a","ifname":"eth0"}]"#;
        let b = r#"[{"containerID":"b","ifname":"eth0"}]"#;
        let of = |first: &str, second: &str| {
            names(&format!(
                r#"{{"cni.dev/valid-attachments":{first},"cni.dev/attachments":{second}}}"#
            ))
            .unwrap()
            .len()
        };
        assert_eq!(
            (of(a, a), of(a, b), of(a, "null"), of("null", b), of("[]", b)),
            (1, 2, 1, 1, 1)
        );
    }

    #[test]
    fn an_entry_that_names_no_attachment_is_code_7_with_its_place() {
        for (entry, problem) in [
            (r#"{"containerID":"a"}"#, ".ifname: missing, expected a name"),
            (r#"{"ifname":"eth0"}"#, ".containerID: missing, expected a name"),
            (r#"{"containerID":"a","ifname":null}"#, ".ifname: missing, expected a name"),
            (
                r#"{"containerID":"a","ifname":""}"#,
                ".ifname: \"\" names no attachment: interface name is empty",
            ),
            (
                r#"{"containerID":"","ifname":"e"}"#,
                ".containerID: \"\" names no attachment: missing containerID",
            ),
            (r#"{"containerID":7,"ifname":"e"}"#, ".containerID: expected a string, found number"),
            (
                r#"{"containerID":"../x","ifname":"e"}"#,
                ".containerID: \"../x\" names no attachment: invalid characters in containerID; ../x",
            ),
            ("{}", ".containerID: missing, expected a name"),
            ("null", ": null is not an attachment, expected containerID and ifname"),
            (r#""a""#, ": string is not an attachment, expected containerID and ifname"),
        ] {
            for key in KEYS {
                let text =
                    format!(r#"{{"{key}":[{{"containerID":"a","ifname":"eth0"}},{entry}]}}"#);
                let error = read(&text).unwrap_err();
                assert_eq!(
                    (error.code, error.msg.as_str()),
                    (Code::INVALID_CONFIG, format!("{key}[1]{problem}").as_str())
                );
            }
        }
        for other in ["{}", "\"\"", "7", "false"] {
            let error = read(&format!(r#"{{"cni.dev/valid-attachments":{other}}}"#)).unwrap_err();
            assert!(
                error.code == Code::INVALID_CONFIG
                    && error.msg.starts_with("cni.dev/valid-attachments: "),
                "{error}"
            );
        }
        let hidden = r#"{"cni.dev/valid-attachments":[],"cni.dev/attachments":[{}]}"#;
        assert_eq!(read(hidden).unwrap_err().code, Code::INVALID_CONFIG);
    }

    #[test]
    fn what_is_spared_is_known_by_name_hash_and_container() {
        let key = Key::parse("net", "id", "eth0").unwrap();
        let spared = ValidAttachments::default().sparing(vec![Holder::of_comment(&key.comment())]);
        assert!(spared.contains("id", "eth0") && spared.contains_identity(&key.identity()));
        assert!(
            spared.contains_container("id")
                && !spared.contains("id", "eth1")
                && !spared.contains("other", "eth0")
        );
        assert_eq!(spared.names().len(), 1);
        let long = Key::parse("net", &"x".repeat(120), "eth0").unwrap();
        let cut = Holder::of_comment(&long.comment());
        assert!(cut.is_cut && cut.hash == Some(long.attachment_hash()) && cut.names().is_none());
    }

    /// The limit is generous, for a debug build in an emulated machine: comparing each with each
    /// takes ten thousand times as long.
    #[test]
    fn a_list_of_200_000_is_read_once_and_each_question_is_one_look() {
        let id = |number: u32| format!("{number:032}");
        let entries: Vec<String> = (0..200_000)
            .map(|number| format!(r#"{{"containerID":"{}","ifname":"eth0"}}"#, id(number)))
            .collect();
        let text = format!(r#"{{"cni.dev/valid-attachments":[{}]}}"#, entries.join(","));
        let begun = std::time::Instant::now();
        let valid = read(&text).unwrap().unwrap();
        for number in 100_000..300_000 {
            let id = id(number);
            let is_valid = number < 200_000;
            assert_eq!(valid.contains(&id, "eth0"), is_valid);
            assert_eq!(valid.contains_container(&id), is_valid);
            assert_eq!(valid.contains_hash(&attachment_hash(&id, "eth0")), is_valid);
        }
        assert!(begun.elapsed().as_secs() < 600, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_look_does_nothing_and_notes_what_the_work_would() {
        let stale = || Stale { what: "lease".to_owned(), ..Stale::default() };
        for (extent, done) in [(Extent::Look, 0), (Extent::Detach, 7)] {
            let valid = ValidAttachments::default().watched(extent);
            assert_eq!(valid.remove(stale, || Ok(7)), Ok(done));
            assert!(
                valid.remove(stale, || Err::<u8, _>(Error::new(Code::BUG, "x"))).is_ok()
                    == (done == 0)
            );
            assert_eq!(valid.take_stale().len(), if done == 0 { 2 } else { 1 });
        }
        assert_eq!(ValidAttachments::default().remove(stale, || Ok(7)), Ok(7));
    }
}
