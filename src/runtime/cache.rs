//! What is known of each attachment from ADD to DEL, in libcni's files: other programs (libcni itself, ocicni, podman,
//! Multus) read, list and edit them.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::libc;

use super::parameters::Parameters;
use super::{go_json, list};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::cni::result::Document;
use crate::error::{Code, Error, Result};

/// Where libcni keeps its cache.
pub const DEFAULT_DIR: &str = "/var/lib/cni";

/// What tells such a file from the bare result that libcni 0.7 wrote under the same name.
const KIND: &str = "cniCacheV1";

/// The longest a file's name may be.
const NAME_MAX: usize = 255;

/// A directory of results.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// A file of the cache.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it is.
    pub file: PathBuf,
    /// When it was written last: at ADD, unless somebody has edited it since.
    pub written: Option<SystemTime>,
    /// What is in it, or why that cannot be told.
    pub record: Result<Record>,
}

/// What a file of the cache tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The attachment, with what ADD was given. None in a file of libcni 0.7: of the attachment it has only the name, and
    /// that may be read in more than one way.
    pub at: Option<Parameters>,
    /// The network's document as it was at ADD, without what its directory had besides; empty where it was not kept.
    pub document: Vec<u8>,
    /// What ADD returned, in the version of then.
    pub result: Result<Option<Document>>,
    /// The interfaces that are in a namespace, with its path, as the result has them.
    sandboxes: Vec<(String, String)>,
}

impl Cache {
    /// The cache in `<dir>/results`; it need not be there yet.
    pub fn new(dir: impl Into<PathBuf>) -> Cache {
        Cache { dir: dir.into() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn results(&self) -> PathBuf {
        self.dir.join("results")
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.results().join(file_name(key))
    }

    /// Writes what ADD was given and what it returned; an older file of the attachment is replaced at once or not at
    /// all.
    pub fn write(&self, at: &Parameters, document: &[u8], result: &Document) -> Result<()> {
        let text = go_json::text(&to_value(at, document, result)?);
        let file = self.file(&at.key);
        let written = create_dir(&self.results()).and_then(|()| replace(&file, &self.temporary(), text.as_bytes()));
        written.map_err(|e| Error::io(format_args!("write {}", file.display()), &e))
    }

    /// Where a file is written before it has its name: not among the results, whose readers list whatever is there.
    fn temporary(&self) -> PathBuf {
        self.dir.join(format!(".result.{}", std::process::id()))
    }

    /// An attachment whose file could have no name, or has one that is another's, could not be kept; better to know
    /// before it is made.
    pub(super) fn require_name(&self, key: &Key) -> Result<()> {
        let name = file_name(key);
        if self.is_another_s(key) {
            let msg = format!("the result of another attachment is kept under the same name, {name}");
            return Err(Error::new(Code::INVALID_CONFIG, msg).with_details("expected another container id or network"));
        }
        if name.len() <= NAME_MAX {
            return Ok(());
        }
        let msg = format!("the names of network, container and interface make {} bytes together", name.len());
        Err(Error::new(Code::INVALID_CONFIG, msg).with_details(format_args!("expected at most {NAME_MAX}: {name}")))
    }

    /// Whether there is anything for the attachment.
    pub fn contains(&self, key: &Key) -> bool {
        self.file(key).exists() && !self.is_another_s(key)
    }

    /// Whether the attachment's file is of another whose names come to the same: `a-b` and `c`, `a` and `b-c`.
    fn is_another_s(&self, key: &Key) -> bool {
        read(&self.file(key)).is_ok_and(|text| names_another(&text, key))
    }

    /// What the attachment's ADD returned, in this version; None where there is nothing that can be read.
    pub fn result(&self, key: &Key, version: &str) -> Result<Option<Document>> {
        let Ok(text) = read(&self.file(key)) else { return Ok(None) };
        if names_another(&text, key) {
            return Ok(None);
        }
        let Some(result) = result_of(&text)? else { return Ok(None) };
        let failed =
            |e| Error::new(Code::DECODE, format!("failed to convert cached result to config version {version:?}: {e}"));
        result.convert(version).map(Some).map_err(failed)
    }

    /// Forgets the attachment.
    pub fn delete(&self, key: &Key) -> Result<()> {
        if self.is_another_s(key) {
            return Ok(());
        }
        let file = self.file(key);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io(format_args!("remove {}", file.display()), &error))
            }
            _ => Ok(()),
        }
    }

    /// What is known of one attachment; None where there is nothing. Runtimes that may have lost a network's
    /// configuration detach by this.
    pub fn record(&self, key: &Key) -> Result<Option<Record>> {
        match read(&self.file(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Ok(text) if names_another(&text, key) => Ok(None),
            read => record_of(&self.file(key), read).map(Some),
        }
    }

    /// Every file of the cache, in the order of their names; none where there is no cache. What cannot be read is among
    /// them, since it may be of a container that lives.
    pub fn all(&self) -> Result<Vec<Found>> {
        let dir = self.results();
        let names = list::names(&dir, |_| true).map_err(|e| Error::io(format_args!("open {}", dir.display()), &e))?;
        let found = |file: PathBuf| {
            let written = fs::metadata(&file).and_then(|metadata| metadata.modified()).ok();
            let record = record_of(&file, read(&file));
            Found { file, written, record }
        };
        Ok(names.into_iter().map(|name| dir.join(name)).map(found).collect())
    }

    /// Every attachment to the network. Files that do not tell theirs are passed over.
    pub fn attachments(&self, network: &NetworkName) -> Result<Vec<Parameters>> {
        let attachments = self.all()?.into_iter().filter_map(|found| found.attachment(network));
        Ok(attachments.filter(|at| at.key.network == *network).collect())
    }
}

impl Found {
    /// The attachment that the file is of. A bare result's is one to `network`, if its name can be read so, and if the
    /// result tells the namespace of such an interface. Where a `-` belongs is certain for the ids of libcni 0.7's time
    /// only: a file that is taken for another network's would be lost to that.
    pub fn attachment(&self, network: &NetworkName) -> Option<Parameters> {
        let record = self.record.as_ref().ok()?;
        let is_certain = |id: &str| !id.strip_prefix("cnitool-").unwrap_or(id).contains('-');
        let read = || {
            let keys = self.readings(network).into_iter().filter(|key| is_certain(key.container_id.as_str()));
            let mut told = keys.filter_map(|key| Some((record.sandbox(&key)?, key)));
            told.next().map(|(netns, key)| Parameters {
                key,
                netns,
                args: vec![],
                capability_args: Value::Object(vec![]),
            })
        };
        record.at.clone().or_else(read)
    }

    /// Every attachment to the network that the file's name may stand for.
    pub(super) fn readings(&self, network: &NetworkName) -> Vec<Key> {
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let Some(rest) = name.strip_prefix(network.as_str()).and_then(|rest| rest.strip_prefix('-')) else {
            return vec![];
        };
        let read = |(at, _)| Key::parse(network.as_str(), &rest[..at], &rest[at + 1..]).ok();
        rest.match_indices('-').filter_map(read).collect()
    }
}

impl Record {
    /// The namespace of the attachment's interface, as the result has it.
    fn sandbox(&self, key: &Key) -> Option<String> {
        let own = self.sandboxes.iter().find(|(link, _)| link == key.ifname.as_str());
        own.map(|(_, sandbox)| sandbox.clone())
    }
}

fn file_name(key: &Key) -> String {
    format!("{}-{}-{}", key.network, key.container_id, key.ifname)
}

pub(super) fn create_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Reads a file, also where a link leads to it. Nobody waits for who writes to a FIFO.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = vec![];
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// Whether the file tells whose it is, and that it is not this attachment's.
fn names_another(text: &[u8], key: &Key) -> bool {
    let Some(value) = Value::parse(text).ok().filter(is_ours) else { return false };
    let own = [
        ("networkName", key.network.as_str()),
        ("containerId", key.container_id.as_str()),
        ("ifName", key.ifname.as_str()),
    ];
    own.iter().any(|(member, name)| value.get(member).and_then(Value::as_str).is_some_and(|told| told != *name))
}

/// Writes `temporary` and gives it the name `file`.
fn replace(file: &Path, temporary: &Path, text: &[u8]) -> io::Result<()> {
    let _ = fs::remove_file(temporary); // of a process that was killed and had the same id
    let mut open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    open.write_all(text).and_then(|()| fs::rename(temporary, file)).inspect_err(|_| {
        let _ = fs::remove_file(temporary); // the error is why it cannot stay
    })
}

/// In the order of libcni's struct; what is empty is left out there.
fn to_value(at: &Parameters, document: &[u8], result: &Document) -> Result<Value> {
    let text = |text: &str| Value::String(text.to_owned());
    let pair = |(key, value): &(String, String)| Value::Array(vec![text(key), text(value)]);
    let is_set = |(_, value): &(&str, Value)| match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(pairs) => !pairs.is_empty(),
        _ => false,
    };
    let members = [
        ("kind", text(KIND)),
        ("containerId", text(at.key.container_id.as_str())),
        ("config", Value::String(STANDARD.encode(document))),
        ("ifName", text(at.key.ifname.as_str())),
        ("networkName", text(at.key.network.as_str())),
        ("netns", text(&at.netns)),
        ("cniArgs", Value::Array(at.args.iter().map(pair).collect())),
        ("capabilityArgs", go_json::normal(at.capability_args.clone())),
        ("result", go_json::normal(Value::parse(result.to_compact_text().as_bytes())?)),
    ];
    Ok(Value::Object(members.into_iter().filter(is_set).map(|(key, value)| (key.to_owned(), value)).collect()))
}

/// The result in a file's text: a member of ours, or the whole of what libcni 0.7 wrote.
fn result_of(text: &[u8]) -> Result<Option<Document>> {
    let invalid =
        |problem: String| Error::new(Code::DECODE, format!("decoding version from network config: {problem}"));
    let value = Value::parse(text).map_err(|e| invalid(e.to_string()))?;
    let result = if is_ours(&value) { value.get("result") } else { Some(&value) };
    match result {
        None => Ok(None),
        Some(result @ Value::Object(_)) => {
            Document::parse(result, "").map(Some).map_err(|e| Error::new(Code::DECODE, e.to_string()))
        }
        Some(other) => Err(invalid(format!("expected an object, found {}", other.kind()))),
    }
}

fn is_ours(value: &Value) -> bool {
    value.get("kind").and_then(Value::as_str) == Some(KIND)
}

/// What was read from a file, or could not be. The messages are libcni's, with the file for the network.
fn record_of(file: &Path, read: io::Result<Vec<u8>>) -> Result<Record> {
    let text = read.map_err(|e| Error::io(format_args!("read {}", file.display()), &e))?;
    let record = Value::parse(&text).and_then(|value| match value.get("kind") {
        None => Ok(Record { at: None, document: vec![], result: Ok(result_of(&text)?), sandboxes: sandboxes(&value) }),
        Some(_) if is_ours(&value) => of_value(&value, result_of(&text)),
        Some(other) => Err(Error::new(Code::DECODE, format!("wrong kind {}", other.to_text()))),
    });
    record.map_err(|error| error.context(format_args!("read {}", file.display())))
}

/// A file that does not tell the namespace is of an older libcni; the result tells it.
fn of_value(value: &Value, result: Result<Option<Document>>) -> Result<Record> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let key = Key::parse(text("networkName"), text("containerId"), text("ifName"))?;
    let args = match value.get("cniArgs") {
        Some(Value::Array(pairs)) => pairs.iter().filter_map(pair).collect(),
        _ => vec![],
    };
    let capability_args = value.get("capabilityArgs").cloned().unwrap_or(Value::Object(vec![]));
    let document = STANDARD.decode(text("config")).map_err(|_| Error::new(Code::DECODE, "config is no base64"))?;
    let sandboxes = value.get("result").map(sandboxes).unwrap_or_default();
    let mut record = Record { at: None, document, result, sandboxes };
    let netns = match text("netns") {
        "" => record.sandbox(&key).unwrap_or_default(),
        path => path.to_owned(),
    };
    record.at = Some(Parameters { key, netns, args, capability_args });
    Ok(record)
}

fn sandboxes(result: &Value) -> Vec<(String, String)> {
    let Some(Value::Array(links)) = result.get("interfaces") else { return vec![] };
    let text = |link: &Value, key: &str| link.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let links = links.iter().map(|link| (text(link, "name"), text(link, "sandbox")));
    links.filter(|(_, sandbox)| !sandbox.is_empty()).collect()
}

fn pair(value: &Value) -> Option<(String, String)> {
    let Value::Array(pair) = value else { return None };
    let [Value::String(key), Value::String(value)] = pair.as_slice() else { return None };
    Some((key.clone(), value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::PermissionsExt;

    fn key(network: &str, ifname: &str) -> Key {
        Key::parse(network, "cnitool-20c433bb2b1d6ede56d6", ifname).unwrap()
    }

    fn parameters(network: &str, ifname: &str) -> Parameters {
        Parameters {
            key: key(network, ifname),
            netns: "/var/run/netns/t".into(),
            args: vec![("IgnoreUnknown".into(), "1".into()), ("A".into(), "<b>".into())],
            capability_args: Value::parse(
                br#"{"mac":"y","portMappings":[{"hostPort":80,"containerPort":8080}],"mac":"x"}"#,
            )
            .unwrap(),
        }
    }

    fn document(text: &str) -> Document {
        Document::parse(&Value::parse(text.as_bytes()).unwrap(), "").unwrap()
    }

    const RESULT: &str =
        r#"{"cniVersion":"0.4.0","ips":[{"version":"4","interface":0,"address":"10.1.2.3/24"}],"dns":{}}"#;

    #[test]
    fn the_file_is_libcni_s_to_the_byte() {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path().join("new"));
        cache.write(&parameters("mynet", "eth0"), br#"{"cniVersion":"0.4.0"}"#, &document(RESULT)).unwrap();
        let file = dir.path().join("new/results/mynet-cnitool-20c433bb2b1d6ede56d6-eth0");
        let expected = concat!(
            r#"{"kind":"cniCacheV1","containerId":"cnitool-20c433bb2b1d6ede56d6","config":"eyJjbmlWZXJzaW9uIjoiMC40LjAifQ==","ifName":"eth0","#,
            r#""networkName":"mynet","netns":"/var/run/netns/t","cniArgs":[["IgnoreUnknown","1"],["A","\u003cb\u003e"]],"#,
            r#""capabilityArgs":{"mac":"x","portMappings":[{"containerPort":8080,"hostPort":80}]},"#,
            r#""result":{"cniVersion":"0.4.0","dns":{},"ips":[{"address":"10.1.2.3/24","interface":0,"version":"4"}]}}"#
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), expected);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&file), mode(&dir.path().join("new/results")), mode(&dir.path().join("new"))),
            (0o600, 0o700, 0o700)
        );
        assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn what_is_empty_is_left_out() {
        let at = Parameters {
            netns: String::new(),
            args: vec![],
            capability_args: Value::Object(vec![]),
            ..parameters("n", "eth0")
        };
        let value = to_value(&at, b"", &document(r#"{"cniVersion":"1.0.0"}"#)).unwrap();
        assert!(
            !["netns", "cniArgs", "capabilityArgs", "config"]
                .iter()
                .any(|key| value.to_text().contains(&format!("{key:?}:"))),
            "{value:?}"
        );
    }

    #[test]
    fn a_result_comes_back_in_the_version_asked_for() {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path());
        let at = parameters("n", "eth0");
        assert_eq!(cache.result(&at.key, "1.0.0"), Ok(None));
        cache.write(&at, b"", &document(RESULT)).unwrap();
        assert_eq!(cache.result(&at.key, "0.4.0").unwrap().unwrap().to_compact_text(), RESULT);
        let newer = cache.result(&at.key, "1.0.0").unwrap().unwrap().to_compact_text();
        assert_eq!(newer, r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24","interface":0}]}"#);
        let error = cache.result(&at.key, "1.0.1").unwrap_err().msg.clone();
        assert_eq!(
            error,
            "failed to convert cached result to config version \"1.0.1\": no converter for CNI result version 0.4.0 to 1.0.1"
        );
        assert!(cache.contains(&at.key));
        assert_eq!((cache.delete(&at.key), cache.delete(&at.key)), (Ok(()), Ok(())));
        assert_eq!(cache.result(&at.key, "0.4.0"), Ok(None));
    }

    #[test]
    fn files_of_libcni_0_7_are_bare_results() {
        let dir = Scratch::new();
        let (cache, key) = (Cache::new(dir.path()), key("n", "eth0"));
        let file = format!("results/{}", file_name(&key));
        dir.write(&file, RESULT);
        assert_eq!(cache.result(&key, "0.4.0").unwrap().unwrap().to_compact_text(), RESULT);
        dir.write(&file, r#"{"ip4":{"ip":"10.1.2.3/24"}}"#);
        assert_eq!(cache.result(&key, "0.2.0").unwrap().unwrap().cni_version(), "0.2.0");
    }

    #[test]
    fn a_file_that_is_no_result_is_an_error() {
        let dir = Scratch::new();
        let (cache, key) = (Cache::new(dir.path()), key("n", "eth0"));
        for (text, msg) in [
            ("", "decoding version from network config: EOF"),
            (r#"{"kind":"cniCacheV1","result":"#, "decoding version from network config: EOF"),
            ("[]", "decoding version from network config: expected an object"),
            (
                r#"{"kind":"cniCacheV1","result":{"cniVersion":"0.4567.0"}}"#,
                "unsupported CNI result version \"0.4567.0\"",
            ),
        ] {
            dir.write(&format!("results/{}", file_name(&key)), text);
            let error = cache.result(&key, "0.4.0").unwrap_err();
            assert!(error.msg.starts_with(msg), "{text}: {error}");
        }
        dir.write(&format!("results/{}", file_name(&key)), r#"{"kind":"cniCacheV1"}"#);
        assert_eq!(cache.result(&key, "0.4.0"), Ok(None));
    }

    #[test]
    fn the_attachments_of_a_network_are_listed_and_foreign_files_are_not() {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path());
        let network = NetworkName::parse("n").unwrap();
        assert_eq!(cache.attachments(&network), Ok(vec![]));
        for (network, ifname) in [("n", "eth1"), ("n", "eth0"), ("other", "eth0")] {
            cache.write(&parameters(network, ifname), b"", &document(RESULT)).unwrap();
        }
        dir.write("results/n-legacy-eth0", RESULT);
        dir.write("results/n-torn-eth0", r#"{"kind":"cniCacheV1","con"#);
        dir.write(
            "results/n-wicked",
            r#"{"kind":"cniCacheV1","containerId":"../../x","ifName":"eth0","networkName":"n"}"#,
        );
        dir.write("results/dir/x", "");
        assert_eq!(cache.attachments(&network).unwrap(), [as_read("n", "eth0"), as_read("n", "eth1")]);
    }

    /// What [`parameters`] are once they have been in a file.
    fn as_read(network: &str, ifname: &str) -> Parameters {
        let at = parameters(network, ifname);
        Parameters { capability_args: go_json::normal(at.capability_args.clone()), ..at }
    }

    #[test]
    fn every_file_is_told_of_and_what_is_wrong_with_it() {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path());
        assert!(cache.all().unwrap().is_empty());
        cache.write(&parameters("n", "eth0"), br#"{"name":"n"}"#, &document(RESULT)).unwrap();
        dir.write("results/n-bare-eth0", RESULT);
        dir.write("results/n-newer-eth0", r#"{"kind":"cniCacheV2"}"#);
        dir.write("results/n-torn-eth0", "");
        dir.write(
            "results/n-future-eth0",
            r#"{"kind":"cniCacheV1","containerID":"future","ifName":"eth0","networkName":"n","result":{"cniVersion":"9.0.0"}}"#,
        );
        let told: Vec<String> = cache
            .all()
            .unwrap()
            .into_iter()
            .map(|found| match found.record {
                Ok(Record { at: Some(at), document, result, .. }) => {
                    let document = String::from_utf8(document).unwrap();
                    format!("{} {document} {}", at.key.container_id, result.is_ok())
                }
                Ok(record) => format!("bare {}", record.result.unwrap().unwrap().cni_version()),
                Err(error) => error.msg.replace(dir.path().to_str().unwrap(), ""),
            })
            .collect();
        assert_eq!(
            told,
            [
                "bare 0.4.0",
                r#"cnitool-20c433bb2b1d6ede56d6 {"name":"n"} true"#,
                "future  false",
                "read /results/n-newer-eth0: wrong kind \"cniCacheV2\"",
                "read /results/n-torn-eth0: EOF while parsing a value at line 1 column 0",
            ]
        );
        assert!(cache.all().unwrap().iter().all(|found| found.written.is_some()));
    }

    #[test]
    fn a_bare_result_s_attachment_is_told_by_its_interface_where_the_id_is_certain() {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path());
        let result = r#"{"cniVersion":"0.3.1","interfaces":[{"name":"br0"},{"name":"net-1","sandbox":"/run/netns/x"}],"dns":{}}"#;
        let read = |file: &str, result: &str| {
            dir.write(&format!("results/{file}"), result);
            let attachments = cache.attachments(&NetworkName::parse("n").unwrap()).unwrap();
            std::fs::remove_dir_all(dir.path().join("results")).unwrap();
            attachments.iter().map(|at| format!("{} {} {}", at.key.container_id, at.key.ifname, at.netns)).collect()
        };
        let none: [String; 0] = [];
        let told = |file: &str, result: &str| -> Vec<String> { read(file, result) };
        assert_eq!(told("n-id-net-1", result), ["id net-1 /run/netns/x"]);
        assert_eq!(told("n-cnitool-12ab-net-1", result), ["cnitool-12ab net-1 /run/netns/x"]);
        assert_eq!(told("n-other-id-net-1", result), none, "it may be of the network n-other");
        assert_eq!(told("n-id-eth0", result), none, "no such interface");
        assert_eq!(told("n-id-eth0", RESULT), none, "no namespace");
        assert_eq!(told("m-id-net-1", result), none);
    }

    #[test]
    fn a_file_that_does_not_tell_the_namespace_has_a_result_that_does() {
        let text = r#"{"kind":"cniCacheV1","containerId":"id","ifName":"eth0","networkName":"n","result":
            {"cniVersion":"1.0.0","interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/run/netns/x"}]}}"#;
        let record = record_of(Path::new("f"), Ok(text.into())).unwrap();
        assert_eq!(record.at.unwrap().netns, "/run/netns/x");
    }

    #[test]
    fn one_attachment_s_record_has_what_a_runtime_needs_for_del() {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path());
        let at = parameters("n", "eth0");
        assert_eq!(cache.record(&at.key), Ok(None));
        cache.write(&at, b"{}", &document(RESULT)).unwrap();
        let record = cache.record(&at.key).unwrap().unwrap();
        assert_eq!((record.at, record.document), (Some(as_read("n", "eth0")), b"{}".to_vec()));
        assert_eq!(record.result.unwrap().unwrap().to_compact_text(), RESULT);
        let names = r#""containerId":"cnitool-20c433bb2b1d6ede56d6","ifName":"eth0","networkName":"n""#;
        dir.write(
            &format!("results/{}", file_name(&at.key)),
            &format!(r#"{{"kind":"cniCacheV1",{names},"config":"%"}}"#),
        );
        let error = cache.record(&at.key).unwrap_err();
        assert!(error.code == Code::DECODE && error.msg.ends_with(": config is no base64"), "{error}");
    }

    /// `n-x` and `y` come to the file name of `n` and `x-y`.
    #[test]
    fn a_file_that_is_another_attachment_s_is_left_alone() {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path());
        let key = |network: &str, id: &str| Key::parse(network, id, "eth0").unwrap();
        let (own, other) = (key("n-x", "y"), key("n", "x-y"));
        cache.write(&Parameters { key: other.clone(), ..parameters("n", "eth0") }, b"", &document(RESULT)).unwrap();
        assert_eq!(
            (cache.contains(&own), cache.result(&own, "0.4.0"), cache.record(&own)),
            (false, Ok(None), Ok(None))
        );
        assert_eq!(cache.delete(&own), Ok(()));
        let error = cache.require_name(&own).unwrap_err().msg.clone();
        assert_eq!(error, "the result of another attachment is kept under the same name, n-x-y-eth0");
        assert!(cache.contains(&other) && cache.require_name(&other).is_ok());
        assert!(cache.result(&other, "0.4.0").unwrap().is_some() && cache.record(&other).unwrap().is_some());
        assert_eq!((cache.delete(&other), cache.contains(&other)), (Ok(()), false));
    }

    #[test]
    fn what_is_no_file_is_told_of_and_not_waited_for() {
        let dir = Scratch::new();
        let (cache, results) = (Cache::new(dir.path()), dir.path().join("results"));
        dir.write("results/n-dir-eth0/x", "");
        nix::unistd::mkfifo(&results.join("n-fifo-eth0"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("nowhere", results.join("n-link-eth0")).unwrap();
        dir.write("elsewhere", RESULT);
        std::os::unix::fs::symlink("../elsewhere", results.join("n-there-eth0")).unwrap();
        let told = cache.all().unwrap().into_iter().map(|found| match found.record {
            Ok(record) => record.result.unwrap().unwrap().cni_version().to_owned(),
            Err(error) => error.msg.replace(results.to_str().unwrap(), ""),
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                "read /n-dir-eth0: not a regular file",
                "read /n-fifo-eth0: not a regular file",
                "read /n-link-eth0: no such file or directory",
                "0.4.0",
            ]
        );
        let key = |id: &str| Key::parse("n", id, "eth0").unwrap();
        assert_eq!((cache.result(&key("fifo"), "0.4.0"), cache.record(&key("fifo")).is_err()), (Ok(None), true));
        assert!(cache.record(&key("there")).unwrap().is_some());
    }

    #[test]
    fn names_that_make_no_file_name_are_told_before() {
        let long = "x".repeat(200);
        let cache = Cache::new("/nonexistent");
        assert_eq!(cache.require_name(&Key::parse(&long, &"y".repeat(49), "eth0").unwrap()), Ok(()));
        let error = cache.require_name(&Key::parse(&long, &"y".repeat(50), "eth0").unwrap()).unwrap_err();
        assert_eq!(error.msg, "the names of network, container and interface make 256 bytes together");
    }

    #[test]
    fn a_directory_that_cannot_be_is_an_error() {
        let dir = Scratch::new();
        dir.write("results", "");
        let error = Cache::new(dir.path()).write(&parameters("n", "eth0"), b"", &document(RESULT)).unwrap_err();
        assert_eq!(error.code, Code::IO);
    }
}
