//! Tables of cases in text: a case is a line, and ` | ` separates its cells.

/// The cells of each line; those at its end may be left out.
pub fn cells<const N: usize>(table: &'static str) -> Vec<[&'static str; N]> {
    let of_line = |line: &'static str| {
        let mut cells = line.split(" | ");
        let row = [(); N].map(|()| cells.next().unwrap_or_default());
        assert_eq!(cells.next(), None, "{line} has a cell too many");
        row
    };
    table.lines().filter(|line| !line.is_empty()).map(of_line).collect()
}
