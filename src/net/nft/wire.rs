//! Attributes of nf_tables: those of every netlink family, addresses, and comments.

use super::uapi::{
    NFTA_DATA_VALUE, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_RULE_EXPRESSIONS, NFTNL_UDATA_COMMENT,
};
use crate::net::netlink::attr::{Attrs, read_text};

pub use crate::net::netlink::attr::read_ip;
pub use crate::net::netlink::attr::{Attributes, octets};

impl Attributes {
    /// User data that nft(8) shows as `comment`, at most 255 bytes with the NUL.
    pub fn comment(&mut self, kind: u16, text: &str) -> &mut Attributes {
        let mut ends = (0..=text.len().min(254)).rev();
        let end = ends.find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let text = &text[..end];
        let mut bytes = vec![NFTNL_UDATA_COMMENT, text.len() as u8 + 1];
        bytes.extend(text.bytes());
        bytes.push(0);
        self.raw(kind, &bytes)
    }

    /// A value (NFTA_DATA_VALUE).
    pub fn value(&mut self, kind: u16, bytes: &[u8]) -> &mut Attributes {
        self.nest(kind, |data| {
            data.raw(NFTA_DATA_VALUE, bytes);
        })
    }
}

/// The name of a link as a key: IFNAMSIZ bytes.
pub fn link_name(name: &str) -> Vec<u8> {
    let mut key = name.as_bytes().to_vec();
    key.resize(16, 0);
    key
}

impl<'a> Attrs<'a> {
    /// The bytes of a value (NFTA_DATA_VALUE).
    pub fn value(self, kind: u16) -> Option<&'a [u8]> {
        self.nested(kind)?.bytes(NFTA_DATA_VALUE)
    }

    /// The expressions of a rule.
    pub fn expressions(self) -> impl Iterator<Item = Attrs<'a>> {
        self.within(NFTA_RULE_EXPRESSIONS).iter().map(|(_, expression)| Attrs::of(expression))
    }

    /// Whether these are an expression of this name.
    pub fn is_expression(self, name: &str) -> bool {
        self.is_text(NFTA_EXPR_NAME, name)
    }

    /// The content of an expression of this name.
    pub fn expression(self, name: &str) -> Option<Attrs<'a>> {
        self.nested(NFTA_EXPR_DATA).filter(|_| self.is_expression(name))
    }
}

/// The comment in user data, if there is one.
pub fn read_comment(user_data: &[u8]) -> Option<String> {
    let mut rest = user_data;
    while let [kind, length, more @ ..] = rest {
        let value = more.get(..usize::from(*length))?;
        if *kind == NFTNL_UDATA_COMMENT {
            return Some(read_text(value));
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
