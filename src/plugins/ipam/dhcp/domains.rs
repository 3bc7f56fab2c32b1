//! Domain names in options: as text (RFC 2132), and as in DNS messages (RFC 1035, section 4.1.4).

/// The longest DNS name.
const LONGEST_NAME: usize = 253;

/// The domain, if it is a valid name: it goes to resolv.conf, where a line break would begin
/// another setting.
pub fn domain(value: &[u8]) -> Option<String> {
    let text = str::from_utf8(value).ok()?.trim_end_matches('\0').trim_end_matches('.');
    let is_name = |label: &str| !label.is_empty() && label.bytes().all(is_of_label);
    (text.len() <= LONGEST_NAME && text.split('.').all(is_name)).then(|| text.to_owned())
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

/// The name at `at`, and the offset of the next one. A pointer (RFC 1035, section 4.1.4) must lead
/// to an earlier offset than the last, so the loop ends.
fn name(value: &[u8], at: usize) -> Option<(String, usize)> {
    let (mut name, mut at, mut end, mut before) = (String::new(), at, None, at);
    loop {
        let length = *value.get(at)?;
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..64 => {
                let label = value.get(at + 1..=at + usize::from(length))?;
                if !label.iter().copied().all(is_of_label)
                    || name.len() + label.len() >= LONGEST_NAME
                {
                    return None;
                }
                name.push_str(if name.is_empty() { "" } else { "." });
                name.push_str(str::from_utf8(label).ok()?);
                at += 1 + usize::from(length);
            }
            192.. => {
                end = end.or(Some(at + 2));
                at = usize::from(length & 63) << 8 | usize::from(*value.get(at + 1)?);
                if at >= before {
                    return None;
                }
                before = at;
            }
            64..192 => return None,
        }
    }
}
