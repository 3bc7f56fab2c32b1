//! What an examination is.

use super::finding::{Fault, Findings};
use super::node::Node;

/// One subject that is looked into.
pub struct Examination {
    /// Every kind of fault that it can find.
    pub faults: fn() -> Vec<&'static Fault>,
    /// Adds what it finds. It reads only.
    pub examine: fn(&Node<'_>, &mut Findings),
}
