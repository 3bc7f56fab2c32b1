//! The names that identify an attachment, checked once: network, container id, interface name.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha512};

use crate::error::{Code, Error, Result};
pub use crate::hex::encode as hex;

/// Matches `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`: such a text is safe as a path element, in a rule's
/// comment and in a chain's name.
fn is_plain(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

/// The maximum length of a name that becomes a file name.
const NAME_MAX: usize = 255;

/// A text that its `parse` has checked.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<$name> {
                $name::parse(&text)
            }
        }
    };
}

checked_text! {
    /// A network's name.
    NetworkName
}

impl NetworkName {
    /// Checks the name; code 7 unless it is plain.
    pub fn parse(name: &str) -> Result<NetworkName> {
        if name.is_empty() {
            return Err(Error::new(Code::INVALID_CONFIG, "missing network name"));
        }
        if !is_plain(name) {
            let msg = "invalid characters found in network name";
            return Err(Error::new(Code::INVALID_CONFIG, msg).with_details(name));
        }
        if name.len() > NAME_MAX {
            return Err(Error::config("name", format_args!("{} bytes are too long", name.len()))
                .expecting(format_args!("at most {NAME_MAX}")));
        }
        Ok(NetworkName(name.to_owned()))
    }
}

checked_text! {
    /// A container's id.
    ContainerId
}

impl ContainerId {
    /// Checks the id; code 4 unless it is plain.
    pub fn parse(id: &str) -> Result<ContainerId> {
        if id.is_empty() {
            return Err(Error::new(Code::UNKNOWN_CONTAINER, "missing containerID"));
        }
        if !is_plain(id) {
            return Err(Error::new(Code::INVALID_ENVIRONMENT, "invalid characters in containerID")
                .with_details(id));
        }
        Ok(ContainerId(id.to_owned()))
    }
}

checked_text! {
    /// A link's name, by the kernel's rules and the reference's.
    IfName
}

impl IfName {
    /// Checks the name; code 4 unless the kernel would accept it.
    pub fn parse(name: &str) -> Result<IfName> {
        let invalid = |msg: &str| Err(Error::new(Code::INVALID_ENVIRONMENT, msg));
        if name.is_empty() {
            return invalid("interface name is empty");
        }
        if name.len() > 15 {
            return invalid("interface name is too long")
                .map_err(|e| e.with_details("interface name should be less than 16 characters"));
        }
        if name == "." || name == ".." {
            return invalid("interface name is . or ..");
        }
        if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
            return invalid("interface name contains / or : or whitespace characters");
        }
        Ok(IfName(name.to_owned()))
    }

    /// Whether the kernel would give the link another name: it expands `eth%d` to the first free
    /// name, and ends a name at NUL. That link could not be found again.
    pub fn is_pattern(&self) -> bool {
        self.0.contains(['%', '\0'])
    }
}

/// The identity of an attachment. Every object created for it on the host carries this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The network's name.
    pub network: NetworkName,
    /// The container's id.
    #[serde(rename = "containerID")]
    pub container_id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
}

/// The first bytes of a SHA-512, in place of a name that is too long.
pub type Hash8 = [u8; 8];

/// The first eight bytes of the text's SHA-512.
pub fn hash8(text: &str) -> Hash8 {
    let digest = Sha512::digest(text.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    first
}

/// Parses the `hex` text of eight bytes.
pub fn unhex8(text: &str) -> Option<Hash8> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(text, 16).ok().map(u64::to_be_bytes)).flatten()
}

/// The hash of an attachment within its network.
pub fn attachment_hash(container_id: &str, ifname: &str) -> Hash8 {
    hash8(&format!("{ifname}:{container_id}"))
}

impl Key {
    /// The number of bytes that nft(8) allows in a comment.
    pub const COMMENT_MAX: usize = 128;

    /// Parses and checks each of the names.
    pub fn parse(network: &str, container_id: &str, ifname: &str) -> Result<Key> {
        Ok(Key {
            network: NetworkName::parse(network)?,
            container_id: ContainerId::parse(container_id)?,
            ifname: IfName::parse(ifname)?,
        })
    }

    /// The hash of a network: the first half of the identity at the start of the reference's
    /// nftables comments.
    pub fn network_hash(network: &NetworkName) -> Hash8 {
        hash8(network.as_str())
    }

    /// The hash of the attachment within its network: the second half.
    pub fn attachment_hash(&self) -> Hash8 {
        attachment_hash(self.container_id.as_str(), self.ifname.as_str())
    }

    /// `<network>-<attachment>` in hex, the start of comments.
    pub fn identity(&self) -> String {
        format!("{}-{}", hex(&Key::network_hash(&self.network)), hex(&self.attachment_hash()))
    }

    /// The comment of rules and elements, at most 128 bytes as `nft` allows. It equals the
    /// reference's, so that the reference plugins find our rules as they find theirs.
    pub fn comment(&self) -> String {
        let mut text = format!(
            "{}, net: {}, if: {}, id: {}",
            self.identity(),
            self.network,
            self.ifname,
            self.container_id
        );
        text.retain(|c| c != '"');
        let mut ends = (0..=text.len().min(Key::COMMENT_MAX)).rev();
        let end = ends.find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text
    }

    /// See [`iptables_chain`].
    pub fn iptables_chain(&self) -> String {
        iptables_chain(self.network.as_str(), self.container_id.as_str())
    }
}

/// The name of the reference's iptables chain for a container in a network: `CNI-` and hex, 28
/// letters. It does not depend on the interface's name (nerdctl and Nomad compute the same).
pub fn iptables_chain(network: &str, container_id: &str) -> String {
    let digest = hex(&Sha512::digest(format!("{network}{container_id}").as_bytes()));
    format!("CNI-{}", &digest[..24])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(network: &str, id: &str, ifname: &str) -> Key {
        Key::parse(network, id, ifname).unwrap()
    }

    #[test]
    fn identities_are_the_reference_s() {
        assert_eq!(key("unit-test", "one", "eth0").identity(), "6fd94d501e58f0aa-287fc69eff0574a2");
        assert_eq!(
            key("alternate", "three", "net1").identity(),
            "82783ef24bdc7036-acb19d111858e348"
        );
        assert_eq!(key("mynet", "cid1", "eth0").iptables_chain(), "CNI-a631aa8e1549a3b129110fd2");
        assert_eq!(
            key("testalongnamethatdoesnotmakesense", "1234", "e").iptables_chain(),
            "CNI-374f33fe84ab0ed84dcdebe3"
        );
    }

    #[test]
    fn comments_are_cut_at_128_bytes_on_a_letter() {
        let comment = key("n", &"x".repeat(200), "ä").comment();
        assert_eq!(comment.len(), 128);
        assert!(comment.starts_with(&key("n", &"x".repeat(200), "ä").identity()));
    }

    #[test]
    fn names_that_could_leave_a_directory_are_refused() {
        for bad in ["", "../x", "a/b", ".hidden", "-x", "a b", "a%b", "ä", "a\n"] {
            assert!(NetworkName::parse(bad).is_err(), "{bad:?}");
            assert!(ContainerId::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(ContainerId::parse("").unwrap_err().code, Code::UNKNOWN_CONTAINER);
        assert_eq!(ContainerId::parse("1234%%%").unwrap_err().details(), "1234%%%");
        assert!(
            ContainerId::parse("a51debf7e1eb").is_ok() && NetworkName::parse("a_b.c-d").is_ok()
        );
        assert!(NetworkName::parse(&"n".repeat(256)).is_err());
    }

    #[test]
    fn interface_names_follow_the_kernel_s_rules() {
        for bad in [
            "",
            "1234567890123456",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "a\u{a0}b",
            "a\u{3000}b",
            "a\u{85}b",
            "äääääääää",
        ] {
            assert_eq!(
                IfName::parse(bad).map_err(|e| e.code),
                Err(Code::INVALID_ENVIRONMENT),
                "{bad:?}"
            );
        }
        assert!(IfName::parse("123456789012345").is_ok());
    }
}
