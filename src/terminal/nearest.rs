//! Finds the word that was probably meant.

/// The nearest of `words`, if it is near enough to be what was meant: at most one letter in three
/// may differ.
pub fn nearest<'a>(word: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let may_differ = |other: &str| (word.len().max(other.len()) / 3).max(1);
    let found = words
        // The lengths must not differ too much already: a word may be as long as a file.
        .filter(|other| word.len().abs_diff(other.len()) <= may_differ(other))
        .map(|other| (distance(&word, &other.to_ascii_lowercase()), other))
        .min_by_key(|(distance, _)| *distance);
    let (distance, other) = found?;
    (distance <= may_differ(other) && distance < other.len()).then_some(other)
}

/// The edit distance: the number of letters to add, remove, replace or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let a = a.as_bytes();
    let b = b.as_bytes();
    let width = b.len() + 1;
    // One number for each prefix of `a`, row by row, and each of `b`.
    let mut table: Vec<usize> = (0..width).collect();
    for i in 1..=a.len() {
        table.push(i);
        for j in 1..=b.len() {
            let at = i * width + j;
            let changed = table[at - width - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(table[at - width] + 1).min(table[at - 1] + 1);
            // The same two letters in opposite orders.
            if i > 1 && j > 1 && a[i - 2] == b[j - 1] && a[i - 1] == b[j - 2] {
                least = least.min(table[at - 2 * width - 2] + 1);
            }
            table.push(least);
        }
    }
    table[a.len() * width + b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "acb", 1),
            ("gate", "gates", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn only_what_was_meant_is_near() {
        let keys = ["isGateway", "isDefaultGateway", "ipMasq", "mtu", "vlan"];
        for (word, expected) in [
            ("isGateWayy", Some("isGateway")),
            ("isgatway", Some("isGateway")),
            ("ip_masq", Some("ipMasq")),
            ("mut", Some("mtu")),
            ("vlanId", Some("vlan")),
            ("podman_labels", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, keys.into_iter()), expected, "{word}");
        }
    }
}
