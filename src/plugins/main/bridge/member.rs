//! An attachment as a member of the bridge.

use super::conf::Conf;
use crate::error::Result;
use crate::net::netlink::Netlink;
use crate::plugin::{Attachment, Context};

/// A container's interface and the bridge that it is, or will be, connected to.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// The call.
    pub cx: &'a Context<'a>,
    /// The configuration of the bridge and the port.
    pub conf: &'a Conf,
    /// The interface.
    pub at: &'a Attachment,
}

impl<'a> Member<'a> {
    /// The netlink socket of the host.
    pub fn host(self) -> Result<&'a Netlink> {
        self.cx.host()
    }
}
