//! The VLANs of a port.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::cni::decode;
use crate::error::{Error, Result, Word};
use crate::steps::vlan_trunk::{Trunk, VLAN_MAX};

/// How a trunk treats its native VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanMode {
    /// Frames of the native VLAN leave the port without a tag.
    NativeUntagged,
    /// Frames of the native VLAN leave the port with its tag.
    NativeTagged,
}

impl VlanMode {
    /// The word of configurations and of the database.
    pub fn as_str(self) -> &'static str {
        match self {
            VlanMode::NativeUntagged => "native-untagged",
            VlanMode::NativeTagged => "native-tagged",
        }
    }
}

impl Word for VlanMode {
    const WORDS: &'static [&'static str] = &["native-untagged", "native-tagged"];

    fn of(word: &str) -> Option<VlanMode> {
        [VlanMode::NativeUntagged, VlanMode::NativeTagged]
            .into_iter()
            .find(|mode| mode.as_str() == word)
    }
}

impl<'de> Deserialize<'de> for VlanMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VlanMode, D::Error> {
        decode::word(deserializer)
    }
}

/// The VLANs of a port, in the columns of its row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlans {
    /// `vlan_mode`.
    pub mode: Option<&'static str>,
    /// `tag`.
    pub tag: Option<u16>,
    /// `trunks`, sorted.
    pub trunks: Vec<u16>,
}

impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mode.unwrap_or("no vlan_mode"))?;
        if let Some(tag) = self.tag {
            write!(f, ", tag {tag}")?;
        }
        match self.trunks.len() {
            0 => Ok(()),
            _ => write!(f, ", trunks {:?}", self.trunks),
        }
    }
}

/// Checks the keys of VLANs.
pub fn validate(vlan: Option<i64>, mode: Option<VlanMode>, trunk: &[Trunk]) -> Result<()> {
    if let Some(vlan) = vlan.filter(|vlan| !(0..=VLAN_MAX).contains(vlan)) {
        return Err(Error::out_of_range("vlan", vlan, 0..=VLAN_MAX));
    }
    for (index, entry) in trunk.iter().enumerate() {
        let path = format!("trunk[{index}]");
        entry.validate(&path)?;
        if entry.ids().next().is_none() {
            return Err(Error::missing(path, "id, or minID and maxID")
                .saying("trunk parameter is misconfigured"));
        }
    }
    match mode.filter(|_| vlan.is_none()) {
        Some(mode) => {
            let expected = format_args!("the native VLAN of vlan_mode {}", mode.as_str());
            Err(Error::missing("vlan", expected))
        }
        None => Ok(()),
    }
}

/// The VLANs of the port by these keys.
pub fn plan(vlan: Option<i64>, mode: Option<VlanMode>, trunk: &[Trunk]) -> Vlans {
    let trunks: BTreeSet<u16> = trunk.iter().flat_map(Trunk::ids).collect();
    let trunks = Vec::from_iter(trunks);
    let tag = vlan.and_then(|vlan| u16::try_from(vlan).ok());
    match mode {
        Some(mode) => Vlans { mode: Some(mode.as_str()), tag, trunks },
        // As in the original: the trunk takes precedence, and the tag is not set.
        None if !trunks.is_empty() => Vlans { mode: Some("trunk"), tag: None, trunks },
        None => Vlans { mode: tag.map(|_| "access"), tag, trunks },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::Value;
    use crate::plugins::main::ovs::Conf;

    fn read(keys: &str) -> Result<Conf> {
        decode::from_value(&Value::parse(format!("{{{keys}}}").as_bytes()).unwrap())
    }

    #[test]
    fn each_mode_has_its_columns() {
        let trunk = r#""trunk":[{"minID":30,"maxID":32},{"id":31},{"id":7}]"#;
        for (keys, mode, tag, trunks) in [
            (String::new(), None, None, vec![]),
            (r#""vlan":0"#.to_owned(), Some("access"), Some(0), vec![]),
            (r#""vlan":100"#.to_owned(), Some("access"), Some(100), vec![]),
            (trunk.to_owned(), Some("trunk"), None, vec![7, 30, 31, 32]),
            (format!(r#"{trunk},"vlan":9"#), Some("trunk"), None, vec![7, 30, 31, 32]),
            (
                format!(r#"{trunk},"vlan":9,"vlan_mode":"native-tagged""#),
                Some("native-tagged"),
                Some(9),
                vec![7, 30, 31, 32],
            ),
            (
                r#""vlan":9,"vlan_mode":"native-untagged""#.to_owned(),
                Some("native-untagged"),
                Some(9),
                vec![],
            ),
        ] {
            let read = read(&keys).unwrap();
            read.validate_keys().unwrap();
            assert_eq!(read.vlans(), Vlans { mode, tag, trunks }, "{keys}");
        }
    }

    #[test]
    fn reserved_and_missing_vlans_are_named() {
        for (keys, msg) in [
            (r#""vlan":4095"#, "vlan: 4095 is out of range, expected 0 to 4094"),
            (r#""vlan":-1"#, "vlan: -1 is out of range, expected 0 to 4094"),
            (r#""trunk":[{"id":0}]"#, "incorrect trunk id parameter"),
            (r#""trunk":[{"id":1},{"id":4095}]"#, "incorrect trunk id parameter"),
            (
                r#""trunk":[{"minID":2,"maxID":1}]"#,
                "minID is greater than maxID in trunk parameter",
            ),
            (r#""trunk":[{}]"#, "trunk parameter is misconfigured"),
            (
                r#""vlan_mode":"native-tagged""#,
                "vlan: missing, expected the native VLAN of vlan_mode native-tagged",
            ),
        ] {
            assert_eq!(read(keys).unwrap().validate_keys().unwrap_err().msg, msg, "{keys}");
        }
        let place = read(r#""trunk":[{"id":1},{"id":4095}]"#).unwrap().validate_keys().unwrap_err();
        assert_eq!(place.details(), "trunk[1].id: 4095 is out of range, expected 1 to 4094");
        let error = read(r#""vlan_mode":"trunk""#).unwrap_err();
        assert!(error.msg.contains("native-untagged"), "{error}");
    }
}
