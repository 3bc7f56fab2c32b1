//! Splits the server's bytes into JSON objects, which follow each other without a separator.

/// The longest object: a node with its most ports has a tenth of this.
const LIMIT: usize = 32 * 1024 * 1024;

/// The bytes that have arrived, and how far they are understood.
#[derive(Debug, Default)]
pub struct Values {
    bytes: Vec<u8>,
    /// The bytes that were looked at.
    seen: usize,
    /// The brackets that are open there.
    depth: usize,
    is_text: bool,
    is_escaped: bool,
}

impl Values {
    /// Takes bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole object; None if more bytes are needed.
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        while let Some(byte) = self.bytes.get(self.seen) {
            self.seen += 1;
            if self.ends_with(*byte)? {
                let rest = self.bytes.split_off(self.seen);
                self.seen = 0;
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
        }
        match self.bytes.len() > LIMIT {
            true => Err(format!("an object of more than {LIMIT} bytes")),
            false => Ok(None),
        }
    }

    /// Whether an object ends with this byte.
    fn ends_with(&mut self, byte: u8) -> Result<bool, String> {
        if self.is_text {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_text = false,
                _ => (),
            }
            return Ok(false);
        }
        match byte {
            b'{' | b'[' if self.depth > 0 || byte == b'{' => self.depth += 1,
            _ if self.depth == 0 && byte.is_ascii_whitespace() => (),
            _ if self.depth == 0 => return Err("something else than JSON objects".to_owned()),
            b'"' => self.is_text = true,
            b'}' | b']' => self.depth -= 1,
            _ => (),
        }
        Ok(self.depth == 0 && byte == b'}')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All objects of these bytes, which arrive in pieces of this length.
    fn split(text: &str, piece: usize) -> Result<Vec<String>, String> {
        let (mut values, mut found) = (Values::default(), vec![]);
        for bytes in text.as_bytes().chunks(piece) {
            values.push(bytes);
            while let Some(value) = values.next()? {
                found.push(String::from_utf8(value).unwrap());
            }
        }
        Ok(found)
    }

    #[test]
    fn objects_are_found_in_pieces_of_any_length() {
        let texts = [r#"{"a":"}\"]"}"#, r#"{"b":[{"c":"\\"}]}"#, "\n {}", r#"{"é":1}"#];
        let text = texts.concat();
        for piece in 1..=text.len() {
            assert_eq!(split(&text, piece).unwrap(), texts, "{piece}");
        }
    }

    #[test]
    fn what_begins_no_object_is_refused_at_once() {
        for text in ["[1]", "HTTP/1.1 400", "}", "\"", "null", "{}x"] {
            assert!(split(text, 1).is_err(), "{text}");
        }
    }

    #[test]
    fn an_object_without_an_end_is_refused() {
        let mut values = Values::default();
        values.push(b"{\"a\":\"");
        for _ in 0..=LIMIT / 1_000_000 {
            assert_eq!(values.next(), Ok(None));
            values.push(&[b'x'; 1_000_000]);
        }
        assert_eq!(values.next().unwrap_err(), "an object of more than 33554432 bytes");
    }
}
