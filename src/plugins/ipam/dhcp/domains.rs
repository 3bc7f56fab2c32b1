//! Domain names in options: as text (RFC 2132), and as in DNS messages (RFC 1035, section 4.1.4).

/// The longest DNS name.
const LONGEST_NAME: usize = 253;

/// The domain, if it is a valid name: it goes to resolv.conf, where a line break would begin
/// another setting.
pub fn domain(value: &[u8]) -> Option<String> {
    let text = str::from_utf8(value).ok()?.trim_end_matches('\0').trim_end_matches('.');
    let is_name = text.len() <= LONGEST_NAME && text.split('.').all(is_label);
    is_name.then(|| text.to_owned())
}

fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_of_label)
}

fn is_of_label(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// The search list of RFC 3397: names as in DNS messages, one after the other. `None` if any of
/// them is invalid.
pub fn search(value: &[u8]) -> Option<Vec<String>> {
    let mut at = 0;
    let mut names = vec![];
    while at < value.len() {
        let (name, next) = name(value, at)?;
        names.extend(domain(name.as_bytes()));
        at = next;
    }
    Some(names)
}

/// The name at `at`, and the offset of the next one.
fn name(value: &[u8], at: usize) -> Option<(String, usize)> {
    let mut reading = Reading { value, name: String::new(), at, end: None, before: at };
    loop {
        match *value.get(reading.at)? {
            0 => return Some((reading.name, reading.end.unwrap_or(reading.at + 1))),
            length @ 1..64 => reading.take_label(length.into())?,
            192.. => reading.follow_pointer()?,
            64..192 => return None,
        }
    }
}

/// A name of which a part has been read.
struct Reading<'a> {
    value: &'a [u8],
    name: String,
    /// The offset of the unread part.
    at: usize,
    /// The offset after the first pointer.
    end: Option<usize>,
    /// The next pointer must lead to an earlier offset than this.
    before: usize,
}

impl Reading<'_> {
    fn take_label(&mut self, length: usize) -> Option<()> {
        let end = self.at + length;
        let label = str::from_utf8(self.value.get(self.at + 1..=end)?).ok()?;
        if !is_label(label) || self.name.len() + length >= LONGEST_NAME {
            return None;
        }
        self.name.push_str(if self.name.is_empty() { "" } else { "." });
        self.name.push_str(label);
        self.at = end + 1;
        Some(())
    }

    /// Follows a pointer (RFC 1035, section 4.1.4). It must lead to an earlier offset than the last,
    /// so the loop ends.
    fn follow_pointer(&mut self) -> Option<()> {
        let pointer = self.value.get(self.at..)?.first_chunk()?;
        self.end.get_or_insert(self.at + 2);
        self.at = usize::from(u16::from_be_bytes(*pointer) & 0x3fff);
        if self.at >= self.before {
            return None;
        }
        self.before = self.at;
        Some(())
    }
}
