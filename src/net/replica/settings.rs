//! The sysctls of a replica.

use crate::error::Result;
use crate::net::netns::Netns;
use crate::net::sysctl::{self, Sysctl};

/// Sets what differs: those of all links first, since the kernel sets those of each link with them.
/// A read-only setting is left out. One that all namespaces share does not differ.
pub fn replicate(original: &Netns, replica: &Netns) -> Result<()> {
    let wanted = original.enter(|| Ok(sysctl::all()))?;
    replica.enter(|| {
        for is_of_all in [true, false] {
            let present = sysctl::all();
            let differing =
                wanted.iter().filter(|(name, value)| present.get(*name) != Some(*value));
            let differing = differing.filter(|(name, _)| is_first(name) == is_of_all);
            for (name, value) in differing {
                let _ = Sysctl::from_text(name).map(|setting| setting.write(value)); // as said above
            }
        }
        Ok(())
    })
}

fn is_first(name: &str) -> bool {
    name.contains("/all/") || name.ends_with("/ip_forward")
}
