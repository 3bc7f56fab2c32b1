//! `/etc/cni-multi/ipam.json`: the identity of this node and the way to the store, for every network
//! of the node. It may name passwords' files, so it is root's alone.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::super::name::Name;
use super::Store;
use super::etcd::Etcd;
use super::http::endpoint::Endpoint;
use super::http::tls::{self, Tls};
use crate::cni::decode;
use crate::cni::json::Value;
use crate::error::{Code, Error, Mistake, Result};
use crate::plain_file;

/// The longest password.
const LONGEST_PASSWORD: usize = 4096;
/// The longest time, in seconds: a year.
const LONGEST: i64 = 366 * 86_400;

/// The keys of the file.
const KEYS: [&str; 5] = ["cluster", "node", "etcd", "settle", "trustReboot"];
/// The keys of `etcd`.
const ETCD_KEYS: [&str; 7] =
    ["endpoints", "ca", "cert", "key", "user", "passwordFile", "acceptControlPlane"];

/// Takes a line for the log.
pub type Note = Box<dyn Fn(String) + Send>;

/// The settings of this node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Settings {
    /// The name of the cluster. Required.
    pub cluster: Name,
    /// The name of this node. Default: the host name in lower case.
    pub node: Name,
    /// The way to etcd. Required.
    #[serde(default)]
    pub etcd: Access,
    /// How long a claim made in doubt waits before it is used, in seconds. Default: 60, twice a beat.
    #[serde(default = "default_settle", deserialize_with = "seconds")]
    pub settle: Duration,
    /// Whether plugins allocate after a boot before the store is reached. Default: false.
    #[serde(default, rename = "trustReboot")]
    pub trusts_reboot: bool,
}

/// The way to etcd. A path or user is empty if there is none, which is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Access {
    /// URLs of the members. Required.
    pub endpoints: Vec<Endpoint>,
    /// The certificates of the CAs that members' certificates are signed by. Required for https.
    pub ca: PathBuf,
    /// The client certificate, followed by those of intermediate CAs.
    pub cert: PathBuf,
    /// The private key of the client certificate.
    pub key: PathBuf,
    /// The user.
    pub user: String,
    /// The file of the password. Required for a user.
    #[serde(rename = "passwordFile")]
    pub password_file: PathBuf,
    /// Whether the etcd of a Kubernetes control plane is accepted. Default: false.
    #[serde(rename = "acceptControlPlane")]
    pub accepts_control_plane: bool,
}

/// What tells the content of a file from another without reading it: device, inode, length, and
/// the times of the last change of content and of the inode, in nanoseconds.
pub type Stamp = ([u64; 3], [i64; 4]);

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
        let mut value = Value::parse(text)?;
        require_known("", &value, &KEYS)?;
        require_known("etcd.", value.get("etcd").unwrap_or(&Value::Null), &ETCD_KEYS)?;
        let is_missing = |key| value.get(key).is_none_or(|it| it.as_str() == Some(""));
        if is_missing("cluster") {
            let name = "a name of lower-case letters, digits, '.' and '-'";
            return Err(Error::missing("cluster", name));
        }
        let mut advice = "";
        if is_missing("node") {
            let path = Path::new("/proc/sys/kernel/hostname");
            let host = std::fs::read_to_string(path).map_err(Error::at_path("read", path))?;
            value.set("node", Value::text(host.trim().to_ascii_lowercase()));
            advice = "it is the host name: set node";
        }
        let settings: Settings = decode::from_value(&value).map_err(|e| match &e.mistake {
            Some(mistake) if mistake.path == "node" => e.with_details(advice),
            _ => e,
        })?;
        settings.etcd.require_files()?;
        Ok(settings)
    }

    /// The store. It connects when it has something to ask.
    pub fn open(&self, note: Note) -> Result<Box<dyn Store + Send>> {
        Ok(Box::new(Etcd::open(&self.cluster, self.etcd.clone(), note)?))
    }
}

/// Fails for a key that would be without effect.
fn require_known(parent: &str, value: &Value, known: &[&str]) -> Result<()> {
    let Value::Object(members) = value else { return Ok(()) };
    let unknown = members.iter().find(|(key, _)| !known.contains(&key.as_str()));
    unknown.map_or(Ok(()), |(key, _)| {
        let problem = Error::config(format_args!("{parent}{key}"), "unknown key");
        Err(problem.expecting(known.join(", ").as_str()))
    })
}

fn default_settle() -> Duration {
    Duration::from_secs(60)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let number = i64::deserialize(deserializer)?;
    match u64::try_from(number) {
        Ok(seconds) if number <= LONGEST => Ok(Duration::from_secs(seconds)),
        _ => {
            let mistake = Mistake::new(format_args!("{number} is out of range"));
            Err(mistake.expecting(0..=LONGEST).refuse())
        }
    }
}

impl Access {
    /// Fails if a file is missing that another key needs.
    fn require_files(&self) -> Result<()> {
        if self.endpoints.is_empty() {
            return Err(Error::missing("etcd.endpoints", "a list of URLs: https://10.0.0.1:2379"));
        }
        let is_given = |path: &Path| !path.as_os_str().is_empty();
        let has_tls = self.endpoints.iter().any(|it| it.tls);
        for (key, path, is_needed, why) in [
            ("ca", &self.ca, has_tls, "etcd.endpoints has https"),
            ("key", &self.key, is_given(&self.cert), "etcd.cert is given"),
            ("cert", &self.cert, is_given(&self.key), "etcd.key is given"),
            ("passwordFile", &self.password_file, !self.user.is_empty(), "etcd.user is given"),
        ] {
            let place = format!("etcd.{key}");
            if is_needed && !is_given(path) {
                return Err(Error::missing(place, format_args!("the path of a file, as {why}")));
            }
            if is_given(path) && !path.is_absolute() {
                let found = format_args!("{path:?}").to_string();
                return Err(Error::config(place, found).expecting("an absolute path"));
            }
        }
        Ok(())
    }

    /// What the files of certificates and password are now. They are replaced while the daemon runs:
    /// it looks before each request. None of a missing file; a symlink counts as what it leads to.
    pub fn stamps(&self) -> [Option<Stamp>; 4] {
        [&self.ca, &self.cert, &self.key, &self.password_file].map(|path| {
            let data = path.metadata().ok()?;
            let times = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
            Some(([data.dev(), data.ino(), data.len()], times))
        })
    }

    /// Reads certificates and password, which is empty without a user.
    pub fn read(&self) -> Result<(Tls, String)> {
        let tls = tls::load(self)?;
        if self.user.is_empty() {
            return Ok((tls, String::new()));
        }
        let path = &self.password_file;
        let read = || {
            require_private(path)?;
            plain_file::read_of_others(path, LONGEST_PASSWORD).map_err(Error::at_path("read", path))
        };
        let text = read().map_err(|error: Error| error.context("etcd.passwordFile"))?;
        match str::from_utf8(&text).unwrap_or_default().trim_end_matches(['\r', '\n']) {
            "" => {
                let problem = format_args!("{}: empty or not UTF-8", path.display()).to_string();
                let error = Error::config("etcd.passwordFile", problem);
                Err(error.expecting("a password on one line"))
            }
            password => Ok((tls, password.to_owned())),
        }
    }
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
        assert_eq!(settings.etcd.key, Path::new("/a/c.key"));
        assert_eq!(settings.etcd.user, "cni");
        assert_eq!(settings.etcd.password_file, Path::new("/a/password"));
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
        assert!(settings.etcd.user.is_empty() && !settings.etcd.accepts_control_plane);
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
            (
                r#"{"cluster": "c", "node": "n", "settle": -1}"#,
                "settle: -1 is out of range, expected 0 to 31622400",
            ),
        ];
        for (text, expected) in cases {
            let error = Settings::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.msg, expected, "{text}");
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

    #[test]
    fn a_file_that_was_replaced_or_written_has_another_stamp() {
        use std::fs;
        let dir = crate::scratch::Scratch::new();
        let [cert, key] = ["cert", "link"].map(|name| dir.path().join(name));
        let access = Access { cert: cert.clone(), key: key.clone(), ..Access::default() };
        let mut seen = access.stamps();
        let mut has_changed =
            move || access.stamps() != std::mem::replace(&mut seen, access.stamps());
        assert!(!has_changed());
        fs::write(&cert, "one").unwrap();
        assert!(has_changed() && !has_changed());
        fs::write(dir.path().join("new"), "two").unwrap();
        fs::rename(dir.path().join("new"), &cert).unwrap();
        assert!(has_changed() && !has_changed(), "another inode");
        std::os::unix::fs::symlink(&cert, &key).unwrap();
        assert!(has_changed() && !has_changed());
        fs::write(dir.path().join("other"), "two").unwrap();
        fs::remove_file(&key).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &key).unwrap();
        assert!(has_changed(), "the link leads elsewhere");
        fs::remove_file(&cert).unwrap();
        assert!(has_changed() && !has_changed());
    }
}
