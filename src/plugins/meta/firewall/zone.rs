//! A zone of firewalld, as a configuration names it and as our table records it.

use serde::{Deserialize, Deserializer};

use crate::error::{Mistake, Result};

/// IFNAMSIZ.
pub const IFNAME: usize = 16;
/// The longest zone name that can be recorded: in two fields for names of links. firewalld's own
/// limit is 17.
pub const ZONE_MAX: usize = 2 * IFNAME;

/// The name of a firewalld zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(pub String);

impl Default for Zone {
    fn default() -> Zone {
        Zone("trusted".to_owned())
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Zone, D::Error> {
        let name = String::deserialize(deserializer)?;
        match mistake_in_zone_name(&name) {
            Some(mistake) => Err(mistake.refuse()),
            None => Ok(Zone(name)),
        }
    }
}

/// Returns why a text cannot be the name of a zone, if it cannot.
fn mistake_in_zone_name(name: &str) -> Option<Mistake> {
    let is_of_zone = |c: char| c.is_ascii_alphanumeric() || "_-/".contains(c);
    if name.len() > ZONE_MAX {
        let mistake = Mistake::new(format_args!("zone {name:?} has {} bytes", name.len()));
        Some(mistake.expecting(format_args!("at most {ZONE_MAX}")))
    } else if !name.chars().all(is_of_zone) {
        let mistake = Mistake::new(format_args!("zone {name:?}"));
        Some(mistake.expecting("letters, digits, \"_\", \"-\" and \"/\""))
    } else {
        None
    }
}
