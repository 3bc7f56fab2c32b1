//! Values of the kernel with the words that iproute2 has for them.

use std::fmt;

/// The value of a word.
pub fn named<T: Copy>(table: &[(&str, T)], text: &str) -> Option<T> {
    table.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
}

/// The words of a table.
pub const fn words<T: Copy, const N: usize>(table: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut at = 0;
    while at < N {
        words[at] = table[at].0;
        at += 1;
    }
    words
}

/// Writes the word of a value, or the value if it has none.
pub fn show<T: PartialEq + fmt::Display>(
    table: &[(&str, T)],
    value: T,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match table.iter().find(|(_, known)| *known == value) {
        Some((name, _)) => f.write_str(name),
        None => write!(f, "{value}"),
    }
}
