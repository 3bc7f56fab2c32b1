//! Sorting in little code.
//!
//! What is sorted here are the routes of a link, the words of a rule: short lists. Std's `sort` is made for long
//! ones and adds four kilobytes to the binary for each type.

/// Sorts a list. Items of which neither comes before the other stay as they are.
pub fn sort<T>(items: &mut [T], comes_before: impl Fn(&T, &T) -> bool) {
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 && comes_before(&items[at], &items[at - 1]) {
            items.swap(at, at - 1);
            at -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_stay_in_their_order() {
        let mut seed = 7_u32;
        for length in 0..60 {
            let mut items: Vec<(u32, usize)> = vec![];
            for i in 0..length {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                items.push((seed >> 28, i));
            }
            let mut expected = items.clone();
            expected.sort_by_key(|item| item.0);
            sort(&mut items, |a, b| a.0 < b.0);
            assert_eq!(items, expected);
        }
    }
}
