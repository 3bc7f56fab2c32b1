//! Attributes of nf_tables: those of every netlink family, addresses, and comments.

use super::uapi::NFTNL_UDATA_COMMENT;
pub use crate::net::netlink::attr::read_ip;
pub use crate::net::netlink::attributes::{Attributes, octets};

impl Attributes {
    /// User data that nft(8) shows as `comment`, at most 255 bytes with the NUL.
    pub fn comment(&mut self, kind: u16, text: &str) -> &mut Attributes {
        let end =
            (0..=text.len().min(254)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let mut bytes = vec![NFTNL_UDATA_COMMENT, end as u8 + 1];
        bytes.extend(text[..end].bytes());
        bytes.push(0);
        self.raw(kind, &bytes)
    }
}

/// The comment in user data, if there is one.
pub fn read_comment(user_data: &[u8]) -> Option<String> {
    let mut rest = user_data;
    while let [kind, length, more @ ..] = rest {
        let value = more.get(..usize::from(*length))?;
        if *kind == NFTNL_UDATA_COMMENT {
            let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
            return Some(String::from_utf8_lossy(&value[..end]).into_owned());
        }
        rest = &more[usize::from(*length)..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_comes_back_and_a_long_one_is_cut() {
        let read = |text: &str| {
            let mut attributes = Attributes::default();
            attributes.comment(7, text);
            read_comment(&attributes.bytes()[4..])
        };
        assert_eq!(read("net: a").as_deref(), Some("net: a"));
        assert_eq!(read(&"ä".repeat(200)), Some("ä".repeat(127)));
        assert_eq!(read_comment(&[1, 1, 9, 0, 2, b'x', 0]).as_deref(), Some("x"));
        assert_eq!(read_comment(&[0, 9, b'x']), None);
    }
}
