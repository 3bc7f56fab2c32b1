//! The file that the original keeps for each attachment. Ours is the same, so that the original can
//! detach what was attached here; nothing here needs it, except to know ports of the original.

use std::path::PathBuf;

use super::conf::Conf;
use crate::cni::attachment::Key;
use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::json::{self, Value};
use crate::cni::valid::{Holder, Stale};
use crate::error::{Error, ErrorList, Result};
use crate::plain_file;

/// The directory of the files.
const DIR: &str = "/var/lib/cni/ovs-cni/cache";
/// The longest file.
const LIMIT: usize = 1024 * 1024;

/// The file of an attachment.
pub struct Kept(PathBuf);

impl Kept {
    /// The file of this attachment.
    pub fn of(key: &Key) -> Kept {
        Kept::named(&format!("{}-{}", key.container_id, key.ifname))
    }

    fn named(name: &str) -> Kept {
        Kept(PathBuf::from(DIR).join(name))
    }

    /// The draft. Names may have points, and no container's id begins with one.
    fn draft(&self) -> PathBuf {
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        self.0.with_file_name(format!(".{name}.draft"))
    }

    /// The text of the file, if it is there.
    pub fn text(&self) -> Result<Option<Vec<u8>>> {
        match plain_file::read_if_any(&self.0, LIMIT) {
            // no file that the original or this plugin has written
            Err(e) if plain_file::is_no_file(e.raw_os_error()) => Ok(None),
            text => text.map_err(Error::at_path("read", &self.0)),
        }
    }

    /// The configuration of the ADD; None without a file, or if it was torn.
    pub fn configuration(&self) -> Result<Option<Value>> {
        let Some(text) = self.text()? else { return Ok(None) };
        Ok(Value::parse(&text).ok().and_then(|value| value.get("Netconf").cloned()))
    }

    /// Whether the file is of an attachment to the configuration's network.
    fn is_of(&self, config: &Config) -> Result<bool> {
        let netconf = self.configuration()?;
        let network = netconf.as_ref().and_then(|netconf| netconf.get("name")?.as_str());
        Ok(network == Some(config.name.as_str()))
    }

    /// Writes what [`text_of`] has made.
    pub fn write(&self, text: &[u8]) -> Result<()> {
        plain_file::make_private_directory(DIR.as_ref())
            .and_then(|()| plain_file::put_by(&self.draft(), &self.0, text))
            .map_err(Error::at_path("write", &self.0))
    }

    /// Undoes [`Kept::write`]: `earlier` is [`Kept::text`] of before.
    pub fn restore(&self, earlier: Option<Vec<u8>>) -> Result<()> {
        match earlier {
            Some(text) => self.write(&text),
            None => self.remove(),
        }
    }

    /// Removes the file, and the draft of one.
    pub fn remove(&self) -> Result<()> {
        let removed = plain_file::remove(&self.0).map_err(Error::at_path("remove", &self.0));
        ErrorList::of([self.remove_draft(), removed])
    }

    fn remove_draft(&self) -> Result<()> {
        plain_file::remove(&self.draft()).map_err(Error::at_path("remove", &self.0))
    }
}

/// The text of a file: the configuration with the bridge and the socket as they are used.
pub fn text_of(config: &Config, conf: &Conf) -> Result<Vec<u8>> {
    let mut netconf = config.value.clone();
    for key in ["prevResult", "runtimeConfig"] {
        netconf.remove(key);
    }
    netconf.set("bridge", Value::text(conf.bridge()?));
    netconf.set("socket_file", Value::text(&*conf.socket_file));
    let kept = Value::object([
        ("Netconf", netconf),
        ("OrigIfName", Value::text("")),
        ("UserspaceMode", Value::Bool(false)),
        ("VdpaType", Value::text("")),
    ]);
    Ok(json::text(&kept).into_bytes())
}

/// Removes the files of this network's attachments that are not valid, and drafts of such
/// attachments, which do not tell their network: an ADD makes its draft again.
pub fn collect_garbage(config: &Config, valid: &ValidAttachments) -> Result<()> {
    let mut errors = ErrorList::default();
    for path in plain_file::entries(DIR.as_ref()).map_err(Error::at_path("list", DIR.as_ref()))? {
        let listed = path.file_name().unwrap_or_default().to_string_lossy();
        let draft = listed.strip_prefix('.').and_then(|name| name.strip_suffix(".draft"));
        let name = draft.unwrap_or(&listed);
        if is_valid(name, valid) {
            continue;
        }
        let kept = Kept::named(name);
        if draft.is_some() {
            let torn = || Stale { is_torn: true, ..stale(name) };
            errors.push(valid.remove(torn, || kept.remove_draft()));
        } else if errors.push(kept.is_of(config)) == Some(true) {
            errors.push(valid.remove(|| stale(name), || kept.remove()));
        }
    }
    errors.finish()
}

/// Whether a file may belong to a valid attachment. Both names may have the separator.
fn is_valid(name: &str, valid: &ValidAttachments) -> bool {
    let mut separators = name.match_indices('-');
    separators.any(|(at, _)| valid.contains(&name[..at], &name[at + 1..]))
}

fn stale(name: &str) -> Stale {
    let (container_id, ifname) = name.rsplit_once('-').unwrap_or((name, ""));
    let holder = Holder {
        container_id: container_id.to_owned(),
        ifname: ifname.to_owned(),
        ..Holder::default()
    };
    Stale { what: "kept configuration".to_owned(), holder, ..Stale::default() }
}
