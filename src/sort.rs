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

/// The indices of `count` items in the order that they are sorted in, for long lists: a heap's sort, once for all types.
/// Items of which neither comes before the other stay as they are.
pub fn order(count: usize, comes_before: &dyn Fn(usize, usize) -> bool) -> Vec<usize> {
    let mut heap: Vec<usize> = (0..count).collect();
    let is_less = |a: usize, b: usize| comes_before(a, b) || a < b && !comes_before(b, a);
    for root in (0..count / 2).rev() {
        sink(&mut heap, root, &is_less);
    }
    for end in (1..count).rev() {
        heap.swap(0, end); // the greatest
        sink(&mut heap[..end], 0, &is_less);
    }
    heap
}

/// Makes what stands at `root` go down until nothing below is greater.
fn sink(heap: &mut [usize], mut root: usize, is_less: &dyn Fn(usize, usize) -> bool) {
    loop {
        let mut child = 2 * root + 1;
        if child + 1 < heap.len() && is_less(heap[child], heap[child + 1]) {
            child += 1;
        }
        if child >= heap.len() || !is_less(heap[root], heap[child]) {
            return;
        }
        heap.swap(root, child);
        root = child;
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
            let ordered = order(length, &|a, b| items[a].0 < items[b].0);
            assert_eq!(ordered.into_iter().map(|at| items[at]).collect::<Vec<_>>(), expected);
            sort(&mut items, |a, b| a.0 < b.0);
            assert_eq!(items, expected);
        }
    }
}
