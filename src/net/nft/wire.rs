//! Writing nf_tables' netlink attributes: numbers in network byte order, nests, expressions.

/// NLA_F_NESTED.
const NESTED: u16 = 0x8000;

/// Attributes under construction.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// The bytes written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// An attribute of raw bytes.
    pub fn raw(&mut self, kind: u16, value: &[u8]) -> &mut Attributes {
        self.0.extend((value.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// A number.
    pub fn be32(&mut self, kind: u16, value: u32) -> &mut Attributes {
        self.raw(kind, &value.to_be_bytes())
    }

    /// A long number.
    pub fn be64(&mut self, kind: u16, value: u64) -> &mut Attributes {
        self.raw(kind, &value.to_be_bytes())
    }

    /// Text, with the NUL at its end.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Attributes {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.raw(kind, &bytes)
    }

    /// Attributes inside an attribute.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) -> &mut Attributes {
        let start = self.0.len();
        self.0.extend([0; 4]);
        fill(self);
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0[start + 2..start + 4].copy_from_slice(&(kind | NESTED).to_ne_bytes());
        self
    }

    /// What nft(8) shows as `comment`: its user data, type 0, at most 255 bytes with the NUL.
    pub fn comment(&mut self, kind: u16, text: &str) -> &mut Attributes {
        let end = (0..=text.len().min(254)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let mut bytes = vec![0, end as u8 + 1];
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
        if *kind == 0 {
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
