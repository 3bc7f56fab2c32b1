//! An attachment as a member of the bridge.

use super::conf::Conf;
use crate::plugin::{Attachment, Context};

/// A container's interface and the bridge that it is, or is to be, connected to.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// The call.
    pub cx: &'a Context<'a>,
    /// The bridge and the port, as the configuration wants them.
    pub conf: &'a Conf,
    /// The interface.
    pub at: &'a Attachment,
}
