//! `/etc/cni-multi/ipam.json`: the identity of this node and the way to the store, for every network
//! of the node. It may name passwords' files, so it is root's alone.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::super::name::Name;
use super::Store;
use super::etcd::Etcd;
use super::http::endpoint::Endpoint;
use super::http::tls::{Files, Tls};
use crate::cni::decode;
use crate::cni::json::Value;
use crate::error::{Code, Error, Mistake, Result};
use crate::plain_file;

/// The path of the file.
pub const PATH: &str = "/etc/cni-multi/ipam.json";

/// The longest password.
const LONGEST_PASSWORD: usize = 4096;
/// How long a claim made in doubt waits before it is used, by default: twice a beat.
const SETTLE: u64 = 60;
/// The longest time, in seconds: a year.
const LONGEST: u64 = 366 * 86_400;

/// The keys of the file.
const KEYS: [&str; 5] = ["cluster", "node", "etcd", "settle", "trustReboot"];
/// The keys of `etcd`.
const ETCD_KEYS: [&str; 7] =
    ["endpoints", "ca", "cert", "key", "user", "passwordFile", "acceptControlPlane"];
/// Keys that there are no more, each with what to do instead.
const FORMER_KEYS: [(&str, &str); 2] = [
    (
        "reclaimAfter",
        "remove the key: `cni-multi ipam reclaim NODE` frees the blocks of a node that is gone",
    ),
    ("onFence", "remove the key: reclaim a node only once its machine is off"),
];

/// Takes a line for the log.
pub type Note = Box<dyn Fn(String) + Send>;

/// The settings of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name of the cluster.
    pub cluster: Name,
    /// The name of this node.
    pub node: Name,
    /// The way to etcd.
    pub etcd: Access,
    /// How long a claim made in doubt waits before it is used.
    pub settle: Duration,
    /// Whether plugins allocate after a boot before the store is reached.
    pub trusts_reboot: bool,
}

/// The way to etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The members.
    pub endpoints: Vec<Endpoint>,
    /// Certificates.
    pub files: Files,
    /// The user, and the file of the password.
    pub user: Option<(String, PathBuf)>,
    /// Whether the etcd of a Kubernetes control plane is accepted.
    pub accepts_control_plane: bool,
}

/// What the files of an [`Access`] have.
#[derive(Debug)]
pub struct Credentials {
    /// Certificates.
    pub tls: Tls,
    /// User and password.
    pub login: Option<[String; 2]>,
}

/// The file as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    /// The name of the cluster. Required.
    cluster: String,
    /// The name of the node. Default: the host name in lower case.
    node: String,
    /// The store. Required.
    etcd: WrittenAccess,
    /// Seconds that a claim made in doubt waits before it is used. Default: 60.
    settle: Option<u64>,
    /// Whether plugins allocate after a boot before the store is reached. Default: false.
    trust_reboot: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WrittenAccess {
    /// URLs of the members. Required.
    endpoints: Vec<String>,
    /// The file of CA certificates. Required for https.
    ca: PathBuf,
    /// The file of the client certificate. Default: none.
    cert: PathBuf,
    /// The file of its private key. Default: none.
    key: PathBuf,
    /// The user. Default: none.
    user: String,
    /// The file of the password. Required for a user.
    password_file: PathBuf,
    /// Whether the etcd of a Kubernetes control plane is accepted. Default: false.
    accept_control_plane: bool,
}

/// Fails for a key that would be without effect.
fn require_known(parent: &str, value: &Value, known: &[&str]) -> Result<()> {
    let Value::Object(members) = value else { return Ok(()) };
    let unknown = members.iter().find(|(key, _)| !known.contains(&key.as_str()));
    unknown.map_or(Ok(()), |(key, _)| {
        let former = FORMER_KEYS.iter().find(|(former, _)| *former == key.as_str());
        Err(Error::config(format_args!("{parent}{key}"), "unknown key")
            .expecting(known.join(", ").as_str())
            .with_details(former.map_or("", |(_, instead)| instead)))
    })
}

impl Settings {
    /// Reads and checks the file at a path.
    pub fn load(path: &Path) -> Result<Settings> {
        let read = || {
            require_private(path)?;
            let text =
                plain_file::read_configuration(path).map_err(Error::at_path("read", path))?;
            Settings::parse(&text)
        };
        // These name the path themselves.
        let names_path = |error: &Error| error.mistake.is_none() && error.code != Code::DECODE;
        read().map_err(|error: Error| match names_path(&error) {
            true => error,
            false => error.context(path.display()),
        })
    }

    /// Reads and checks a text.
    pub fn parse(text: &[u8]) -> Result<Settings> {
        let value = Value::parse(text)?;
        require_known("", &value, &KEYS)?;
        require_known("etcd.", value.get("etcd").unwrap_or(&Value::Null), &ETCD_KEYS)?;
        let written: Written = decode::from_value(&value)?;
        let settle = written.settle.unwrap_or(SETTLE);
        if settle > LONGEST {
            return Err(Error::out_of_range("settle", settle, 0..=LONGEST.cast_signed()));
        }
        Ok(Settings {
            cluster: name("cluster", &written.cluster)?,
            node: node(&written.node)?,
            etcd: Access::of(written.etcd)?,
            settle: Duration::from_secs(settle),
            trusts_reboot: written.trust_reboot,
        })
    }

    /// The store. It connects when it has something to ask.
    pub fn open(&self, note: Note) -> Result<Box<dyn Store + Send>> {
        Ok(Box::new(Etcd::open(&self.cluster, self.etcd.clone(), note)?))
    }
}

impl Access {
    fn of(written: WrittenAccess) -> Result<Access> {
        let endpoints = endpoints(&written.endpoints)?;
        let is_given = |path: &Path| !path.as_os_str().is_empty();
        let [has_tls, has_user] = [endpoints.iter().any(|it| it.tls), !written.user.is_empty()];
        let needs = [
            ("ca", &written.ca, has_tls, "etcd.endpoints has https"),
            ("key", &written.key, is_given(&written.cert), "etcd.cert is given"),
            ("cert", &written.cert, is_given(&written.key), "etcd.key is given"),
            ("passwordFile", &written.password_file, has_user, "etcd.user is given"),
        ];
        for (key, path, is_needed, why) in needs {
            let place = format!("etcd.{key}");
            if is_needed && !is_given(path) {
                return Err(Error::missing(place, format_args!("the path of a file, as {why}")));
            }
            if is_given(path) && !path.is_absolute() {
                let found = format_args!("{path:?}").to_string();
                return Err(Error::config(place, found).expecting("an absolute path"));
            }
        }
        Ok(Access {
            endpoints,
            files: Files { ca: written.ca, cert: written.cert, key: written.key },
            user: has_user.then_some((written.user, written.password_file)),
            accepts_control_plane: written.accept_control_plane,
        })
    }

    /// The files of certificates and password.
    pub fn paths(&self) -> Vec<PathBuf> {
        let Files { ca, cert, key } = &self.files;
        let paths = [ca, cert, key].into_iter().chain(self.user.iter().map(|(_, file)| file));
        paths.filter(|path| !path.as_os_str().is_empty()).cloned().collect()
    }

    /// Reads certificates and password.
    pub fn read(&self) -> Result<Credentials> {
        let read =
            |(user, file): &(String, PathBuf)| -> Result<_> { Ok([user.clone(), password(file)?]) };
        let login = self.user.as_ref().map(read);
        Ok(Credentials { tls: Tls::load(&self.files)?, login: login.transpose()? })
    }
}

fn name(key: &str, text: &str) -> Result<Name> {
    if text.is_empty() {
        return Err(Error::missing(key, "a name of lower-case letters, digits, '.' and '-'"));
    }
    text.parse().map_err(|no_name| Error::config(key, no_name))
}

fn node(text: &str) -> Result<Name> {
    if !text.is_empty() {
        return name("node", text);
    }
    let path = Path::new("/proc/sys/kernel/hostname");
    let host = std::fs::read_to_string(path).map_err(Error::at_path("read", path))?;
    let named = host.trim().to_ascii_lowercase().parse();
    named
        .map_err(|no_name| Error::config("node", format_args!("the host name {no_name}; set node")))
}

fn endpoints(urls: &[String]) -> Result<Vec<Endpoint>> {
    if urls.is_empty() {
        return Err(Error::missing("etcd.endpoints", "a list of URLs: https://10.0.0.1:2379"));
    }
    let parsed = urls.iter().enumerate().map(|(place, url)| {
        let endpoint: Result<Endpoint, Mistake> = Endpoint::parse(url);
        endpoint.map_err(|mistake| mistake.at(format_args!("etcd.endpoints[{place}]")).into())
    });
    parsed.collect()
}

fn password(path: &Path) -> Result<String> {
    let of_key = |error: Error| error.context("etcd.passwordFile");
    require_private(path).map_err(of_key)?;
    let text =
        plain_file::read_of_others(path, LONGEST_PASSWORD).map_err(Error::at_path("read", path));
    let text = String::from_utf8(text.map_err(of_key)?);
    let line = text.ok().map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    line.filter(|line| !line.is_empty()).ok_or_else(|| {
        let empty = format_args!("{}: empty or not UTF-8", path.display()).to_string();
        Error::config("etcd.passwordFile", empty).expecting("a password on one line")
    })
}

/// Refuses a file that others than root can read or write.
fn require_private(path: &Path) -> Result<()> {
    let metadata = path.metadata().map_err(Error::at_path("read", path))?;
    let [mode, owner] = [metadata.mode() & 0o7777, metadata.uid()];
    if owner == 0 && mode & 0o077 == 0 {
        return Ok(());
    }
    let found = format!(
        "{}: mode {mode:04o} of user {owner}, expected 0600 or stricter of root",
        path.display()
    );
    let advice = format!("chown root {0} && chmod 600 {0}", path.display());
    Err(Error::new(Code::INVALID_CONFIG, found).with_details(advice))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"cluster": "prod", "node": "n1", "settle": 5, "trustReboot": true, "etcd": {
        "endpoints": ["https://10.0.0.1:2379", "https://etcd-2"], "ca": "/a/ca.crt", "cert": "/a/c.crt",
        "key": "/a/c.key", "user": "cni", "passwordFile": "/a/password", "acceptControlPlane": true}}"#;

    #[test]
    fn each_key_is_read() {
        let settings = Settings::parse(WHOLE.as_bytes()).unwrap();
        assert_eq!((settings.cluster.as_str(), settings.node.as_str()), ("prod", "n1"));
        assert_eq!(settings.etcd.endpoints[1].to_string(), "https://etcd-2:2379");
        assert_eq!(settings.etcd.files.key, Path::new("/a/c.key"));
        assert_eq!(settings.etcd.user, Some(("cni".into(), "/a/password".into())));
        assert!(settings.etcd.accepts_control_plane);
        assert_eq!(settings.settle, Duration::from_secs(5));
        assert!(settings.trusts_reboot);
    }

    #[test]
    fn defaults_are_the_host_name_and_a_minute() {
        let text = br#"{"cluster": "c", "etcd": {"endpoints": ["http://127.0.0.1"]}}"#;
        let settings = Settings::parse(text).unwrap();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(settings.node.as_str(), host.trim().to_ascii_lowercase());
        assert_eq!(settings.settle, Duration::from_secs(60));
        assert!(settings.etcd.user.is_none() && !settings.etcd.accepts_control_plane);
    }

    #[test]
    fn each_mistake_has_its_place_value_and_expectation() {
        let cases = [
            (
                r#"{}"#,
                "cluster: missing, expected a name of lower-case letters, digits, '.' and '-'",
            ),
            (
                r#"{"cluster": "c", "Settle": 5}"#,
                "Settle: unknown key, expected cluster, node, etcd, settle, trustReboot",
            ),
            (
                r#"{"cluster": "c", "etcd": {"endpoint": "http://a"}}"#,
                "etcd.endpoint: unknown key, expected endpoints, ca, cert, key, user, passwordFile, acceptControlPlane",
            ),
            (r#"{"cluster": 7}"#, "cluster: expected a string, found integer 7"),
            (
                r#"{"cluster": "a/b"}"#,
                "cluster: \"a/b\" is not a valid name, expected lower-case letters, digits, '.' and '-', a letter or digit at both ends",
            ),
            (
                r#"{"cluster": "c", "node": "n"}"#,
                "etcd.endpoints: missing, expected a list of URLs: https://10.0.0.1:2379",
            ),
            (
                r#"{"cluster": "c", "node": "n", "etcd": {"endpoints": ["http://a", "b"]}}"#,
                "etcd.endpoints[1]: \"b\", expected http://HOST:PORT or https://HOST:PORT with an IP address or a name in /etc/hosts",
            ),
            (
                r#"{"cluster": "c", "node": "n", "etcd": {"endpoints": ["https://a"]}}"#,
                "etcd.ca: missing, expected the path of a file, as etcd.endpoints has https",
            ),
            (
                r#"{"cluster": "c", "node": "n", "etcd": {"endpoints": ["http://a"], "cert": "/c"}}"#,
                "etcd.key: missing, expected the path of a file, as etcd.cert is given",
            ),
            (
                r#"{"cluster": "c", "node": "n", "etcd": {"endpoints": ["http://a"], "key": "/c"}}"#,
                "etcd.cert: missing, expected the path of a file, as etcd.key is given",
            ),
            (
                r#"{"cluster": "c", "node": "n", "etcd": {"endpoints": ["http://a"], "user": "u"}}"#,
                "etcd.passwordFile: missing, expected the path of a file, as etcd.user is given",
            ),
            (
                r#"{"cluster": "c", "node": "n", "etcd": {"endpoints": ["http://a"], "ca": "x"}}"#,
                "etcd.ca: \"x\", expected an absolute path",
            ),
            (
                r#"{"cluster": "c", "node": "n", "settle": 99999999, "etcd": {"endpoints": ["http://a"]}}"#,
                "settle: 99999999 is out of range, expected 0 to 31622400",
            ),
        ];
        for (text, expected) in cases {
            let error = Settings::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.msg, expected, "{text}");
        }
    }

    #[test]
    fn former_keys_are_refused_with_what_to_do() {
        for (key, instead) in FORMER_KEYS {
            let text = format!(r#"{{"cluster": "c", "{key}": 600}}"#);
            let error = Settings::parse(text.as_bytes()).unwrap_err();
            assert!(error.msg.starts_with(&format!("{key}: unknown key, expected cluster, ")));
            assert_eq!(error.details(), instead);
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = crate::scratch::Scratch::new();
        dir.write("ipam.json", WHOLE);
        let path = dir.path().join("ipam.json");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = Settings::load(&path).unwrap_err().to_string();
        let owner = path.metadata().unwrap().uid();
        let expected = format!("{0}: mode 0640 of user {owner}, expected 0600", path.display());
        assert!(error.starts_with(&expected), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(Settings::load(&path).is_ok(), owner == 0, "it has to be root's");
        let missing = Settings::load(&dir.path().join("none")).unwrap_err().to_string();
        assert!(missing.ends_with("none: no such file or directory"), "{missing}");
    }
}
