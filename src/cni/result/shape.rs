//! The versions of results, by the shape that they share.

/// The version of a document without `cniVersion`.
const OLDEST: &str = "0.1.0";
/// The version of an [`AddResult`], which has room for every field.
pub(super) const NEWEST: &str = "1.1.0";

/// The three shapes of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 0.1.0, 0.2.0 and no version: [`v02::Result`].
    V02,
    /// 0.3.0, 0.3.1 and 0.4.0: [`v04::Result`].
    V04,
    /// 1.0.0 and 1.1.0: [`v1::Result`].
    V1,
}

impl Shape {
    const ALL: [Shape; 3] = [Shape::V02, Shape::V04, Shape::V1];

    /// The shape of a version, by exact text: `0.4` has none.
    pub fn of(version: &str) -> Option<Shape> {
        Shape::ALL.into_iter().find(|shape| shape.versions().contains(&version))
    }

    /// The versions of this shape, oldest first.
    pub fn versions(self) -> &'static [&'static str] {
        match self {
            Shape::V02 => &["", OLDEST, "0.2.0"],
            Shape::V04 => &["0.3.0", "0.3.1", "0.4.0"],
            Shape::V1 => &["1.0.0", NEWEST],
        }
    }

    /// The version of a result without a label: the newest of its shape.
    pub(super) fn newest(self) -> &'static str {
        match self {
            Shape::V02 => "0.2.0",
            Shape::V04 => "0.4.0",
            Shape::V1 => NEWEST,
        }
    }
}

/// The version, or 0.1.0 for none.
pub(super) fn or_oldest(version: &str) -> &str {
    if version.is_empty() { OLDEST } else { version }
}
