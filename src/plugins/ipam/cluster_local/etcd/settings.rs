//! `/etc/cni-multi/ipam.json`: the identity of this node and the way to the store, for every network
//! of the node. It may name passwords' files, so it is root's alone.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::super::engine::Name;
use super::super::machine::contact::ALIVE;
use super::client::Store;
use super::endpoint::Endpoint;
use super::login::Login;
use super::tls::{Files, Tls};
use crate::cni::decode;
use crate::cni::json::Value;
use crate::error::{Code, Error, Mistake, Result};
use crate::plain_file;

/// The path of the file.
pub const PATH: &str = "/etc/cni-multi/ipam.json";

/// The longest password.
const LONGEST_PASSWORD: usize = 4096;
/// How long a new claim waits before it is used, by default.
const SETTLE: u64 = 30;
/// The longest times, in seconds: a year.
const LONGEST: u64 = 366 * 86_400;

/// The shortest `reclaimAfter`, in seconds: ten times as long as a heartbeat lasts. Plugins stop
/// allocating after an outage of etcd of three quarters of `reclaimAfter`, so with a short one each outage
/// of etcd would make ADD fail.
const SHORTEST_ABSENCE: u64 = 10 * ALIVE as u64;

/// The keys of the file.
const KEYS: [&str; 6] = ["cluster", "node", "etcd", "settle", "reclaimAfter", "onFence"];
/// The keys of `etcd`.
const ETCD_KEYS: [&str; 7] =
    ["endpoints", "ca", "cert", "key", "user", "passwordFile", "acceptControlPlane"];

/// The settings of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name of the cluster.
    pub cluster: Name,
    /// The name of this node.
    pub node: Name,
    /// The members.
    pub endpoints: Vec<Endpoint>,
    /// Certificates.
    pub files: Files,
    /// The user, and the file of the password.
    pub user: Option<(String, PathBuf)>,
    /// Whether the etcd of a Kubernetes control plane is accepted.
    pub accept_control_plane: bool,
    /// How long a new claim waits before it is used.
    pub settle: Duration,
    /// After how long without a heartbeat the daemons reclaim a node; None if only an operator does.
    pub reclaim_after: Option<Duration>,
    /// What happens to containers in the blocks of a node that was reclaimed.
    pub on_fence: OnFence,
}

/// What happens to the containers of a node that was reclaimed and still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFence {
    /// They keep their networks: an operator deletes them.
    #[default]
    Keep,
    /// Their host ends are set down.
    Down,
}

/// The file as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    /// The name of the cluster. Required.
    cluster: String,
    /// The name of the node. Default: the host name.
    node: String,
    /// The store. Required.
    etcd: Etcd,
    /// Seconds that a new claim waits before it is used. Default: 30.
    settle: Option<u64>,
    /// Seconds without a heartbeat after which a node is reclaimed. Default: never.
    reclaim_after: Option<u64>,
    /// What happens to the containers of this node if it was reclaimed: `down` cuts them off.
    /// Default: they keep their networks.
    on_fence: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Etcd {
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
        Err(Error::config(format_args!("{parent}{key}"), "unknown key".to_owned())
            .expecting(known.join(", ").as_str()))
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
        let etcd = &written.etcd;
        let settings = Settings {
            cluster: name("cluster", &written.cluster)?,
            node: node(&written.node)?,
            endpoints: endpoints(&etcd.endpoints)?,
            files: Files { ca: etcd.ca.clone(), cert: etcd.cert.clone(), key: etcd.key.clone() },
            user: (!etcd.user.is_empty()).then(|| (etcd.user.clone(), etcd.password_file.clone())),
            accept_control_plane: etcd.accept_control_plane,
            settle: seconds("settle", written.settle.unwrap_or(SETTLE))?,
            reclaim_after: written.reclaim_after.map(absence).transpose()?,
            on_fence: written.on_fence.as_deref().map_or(Ok(OnFence::Keep), on_fence)?,
        };
        settings.require_files(etcd)?;
        Ok(settings)
    }

    /// The store, with the certificates and the password that the files have now.
    pub fn store(&self, now: SystemTime) -> Result<Store> {
        let tls = Tls::load(&self.files, now)?;
        let login = self
            .user
            .as_ref()
            .map(|(user, file)| Ok::<_, Error>(Login::new(user.clone(), password(file)?)));
        let (cluster, endpoints) = (self.cluster.clone(), self.endpoints.clone());
        Ok(Store { cluster, endpoints, tls, login: login.transpose()? })
    }

    fn require_files(&self, etcd: &Etcd) -> Result<()> {
        let is_missing = |path: &Path| path.as_os_str().is_empty();
        let has_tls = self.endpoints.iter().any(|endpoint| endpoint.tls);
        let needs = [
            ("ca", &etcd.ca, has_tls, "etcd.endpoints has https"),
            ("key", &etcd.key, !is_missing(&etcd.cert), "etcd.cert is given"),
            ("cert", &etcd.cert, !is_missing(&etcd.key), "etcd.key is given"),
            ("passwordFile", &etcd.password_file, !etcd.user.is_empty(), "etcd.user is given"),
        ];
        for (key, path, is_needed, why) in needs {
            let place = format!("etcd.{key}");
            if is_needed && is_missing(path) {
                return Err(Error::missing(place, format_args!("the path of a file, as {why}")));
            }
            if !is_missing(path) && !path.is_absolute() {
                let found = format_args!("{:?}", path).to_string();
                return Err(Error::config(place, found).expecting("an absolute path"));
            }
        }
        Ok(())
    }
}

fn name(key: &str, text: &str) -> Result<Name> {
    if text.is_empty() {
        return Err(Error::missing(key, "a name of letters, digits, '.', '_' and '-'"));
    }
    text.parse().map_err(|no_name| Error::config(key, no_name))
}

fn node(text: &str) -> Result<Name> {
    if !text.is_empty() {
        return name("node", text);
    }
    let path = Path::new("/proc/sys/kernel/hostname");
    let host = std::fs::read_to_string(path).map_err(Error::at_path("read", path))?;
    let named = host.trim().parse();
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

fn seconds(key: &str, number: u64) -> Result<Duration> {
    match number {
        0..=LONGEST => Ok(Duration::from_secs(number)),
        _ => Err(Error::out_of_range(key, number, 0..=LONGEST.cast_signed())),
    }
}

fn absence(number: u64) -> Result<Duration> {
    let allowed = SHORTEST_ABSENCE.cast_signed()..=LONGEST.cast_signed();
    if !(SHORTEST_ABSENCE..=LONGEST).contains(&number) {
        return Err(Error::out_of_range("reclaimAfter", number, allowed).with_details(
            format_args!(
                "a heartbeat lasts {ALIVE} s, and a node without etcd stops allocating before \
             reclaimAfter ends; without the key only `cni-multi ipam reclaim` frees blocks"
            ),
        ));
    }
    Ok(Duration::from_secs(number))
}

fn on_fence(word: &str) -> Result<OnFence> {
    match word {
        "keep" => Ok(OnFence::Keep),
        "down" => Ok(OnFence::Down),
        _ => {
            Err(Error::config("onFence", format_args!("{word:?}"))
                .expecting("\"keep\" or \"down\""))
        }
    }
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
    let [mode, owner] = mode_and_owner(&metadata);
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

fn mode_and_owner(metadata: &Metadata) -> [u32; 2] {
    [metadata.mode() & 0o7777, metadata.uid()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"cluster": "prod", "node": "n1", "settle": 5, "reclaimAfter": 600, "onFence": "down", "etcd": {
        "endpoints": ["https://10.0.0.1:2379", "https://etcd-2"], "ca": "/a/ca.crt", "cert": "/a/c.crt",
        "key": "/a/c.key", "user": "cni", "passwordFile": "/a/password", "acceptControlPlane": true}}"#;

    #[test]
    fn each_key_is_read() {
        let settings = Settings::parse(WHOLE.as_bytes()).unwrap();
        assert_eq!((settings.cluster.as_str(), settings.node.as_str()), ("prod", "n1"));
        assert_eq!(settings.endpoints[1].to_string(), "https://etcd-2:2379");
        assert_eq!(settings.files.key, Path::new("/a/c.key"));
        assert_eq!(settings.user, Some(("cni".into(), "/a/password".into())));
        assert!(settings.accept_control_plane);
        assert_eq!(settings.settle, Duration::from_secs(5));
        assert_eq!(settings.reclaim_after, Some(Duration::from_secs(600)));
        assert_eq!(settings.on_fence, OnFence::Down);
    }

    #[test]
    fn defaults_are_the_host_name_and_half_a_minute() {
        let text = br#"{"cluster": "c", "etcd": {"endpoints": ["http://127.0.0.1"]}}"#;
        let settings = Settings::parse(text).unwrap();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(settings.node.as_str(), host.trim());
        assert_eq!(settings.settle, Duration::from_secs(30));
        assert_eq!(settings.reclaim_after, None, "never");
        assert_eq!(settings.on_fence, OnFence::Keep);
        assert!(settings.user.is_none() && !settings.accept_control_plane);
    }

    #[test]
    fn each_mistake_has_its_place_value_and_expectation() {
        let cases = [
            (r#"{}"#, "cluster: missing, expected a name of letters, digits, '.', '_' and '-'"),
            (
                r#"{"cluster": "c", "onfence": "down"}"#,
                "onfence: unknown key, expected cluster, node, etcd, settle, reclaimAfter, onFence",
            ),
            (
                r#"{"cluster": "c", "node": "n", "onFence": "up", "etcd": {"endpoints": ["http://a"]}}"#,
                "onFence: \"up\", expected \"keep\" or \"down\"",
            ),
            (
                r#"{"cluster": "c", "etcd": {"endpoint": "http://a"}}"#,
                "etcd.endpoint: unknown key, expected endpoints, ca, cert, key, user, passwordFile, acceptControlPlane",
            ),
            (r#"{"cluster": 7}"#, "cluster: expected a string, found integer 7"),
            (
                r#"{"cluster": "a/b"}"#,
                "cluster: \"a/b\" is not a valid name, expected letters, digits, '.', '_' and '-', a letter or digit first",
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
                r#"{"cluster": "c", "node": "n", "reclaimAfter": 599, "etcd": {"endpoints": ["http://a"]}}"#,
                "reclaimAfter: 599 is out of range, expected 600 to 31622400",
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
}
