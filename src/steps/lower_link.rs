//! The lower link of a macvlan, ipvlan or vlan: `master` of the configuration.

use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, LinkKind, LinkSpec, Netlink};
use crate::plugin::{Attachment, Context};
use crate::steps::container_link::NetnsOf;

/// The smallest MTU of a link.
const MTU_LEAST: i64 = 68;

/// A lower link as the configuration names it, and its namespace.
#[derive(Clone, Copy, Debug)]
pub struct LowerLink<'a> {
    /// Its name or altname; empty for the link of the default route.
    pub name: &'a str,
    /// The namespace that it is in.
    pub place: NetnsOf,
}

impl<'a> LowerLink<'a> {
    /// The lower link that `master` and `linkInContainer` name.
    pub fn new(master: &'a str, link_in_container: bool) -> LowerLink<'a> {
        LowerLink {
            name: master,
            place: if link_in_container { NetnsOf::Container } else { NetnsOf::Host },
        }
    }

    /// Finds the link. Reports a mistake in `master` if there is none.
    pub fn find(&self, cx: &Context<'_>, at: &Attachment) -> Result<Link> {
        match self.place {
            NetnsOf::Host => self.find_on_host(cx),
            NetnsOf::Container => {
                self.find_in("container", at.netlink()?, || at.run(Netlink::open))
            }
        }
    }

    fn find_on_host(&self, cx: &Context<'_>) -> Result<Link> {
        self.find_in("host", cx.host()?, Netlink::open)
    }

    fn find_in(
        &self,
        place: &str,
        netlink: &Netlink,
        another: impl Fn() -> Result<Netlink>,
    ) -> Result<Link> {
        let name = self.name;
        if !name.is_empty() {
            return netlink.find_link(name)?.ok_or_else(|| {
                Error::config("master", format_args!("{name:?} is not a link of the {place}"))
                    .expecting("the name of one")
                    .saying(format_args!("failed to lookup master {name:?}: Link not found"))
            });
        }
        let index = another()?.into_default_link()?;
        let link = index.map(|index| netlink.find_link_by_index(index)).transpose()?.flatten();
        link.ok_or_else(|| {
            Error::config("master", format_args!("the {place} has no default route"))
                .expecting("one or the name of a link")
                .saying("no default route interface found")
        })
    }

    /// CHECK: the named link exists and is the lower link of `upper`. An omitted name cannot be
    /// checked later: the default route may have moved to another link.
    pub fn verify(&self, cx: &Context<'_>, at: &Attachment, upper: &Link) -> Result<()> {
        if self.name.is_empty() {
            return Ok(());
        }
        let lower = self.find(cx, at).map_err(|e| e.with_code(Code::CHECK_FAILED))?;
        // If `lower` is of the same kind, the kernel puts the new link on the lower link of `lower`.
        if upper.lower.is_some_and(|index| index == lower.index || Some(index) == lower.lower) {
            return Ok(());
        }
        let (upper, lower) = (&upper.name, self.name);
        Err(Error::check(format!("interface {upper:?} does not stand on {lower:?}")))
    }

    /// STATUS: whether the lower link exists, where that can be checked without a container.
    pub fn status(&self, cx: &Context<'_>) -> Result<()> {
        if self.place == NetnsOf::Container {
            return Ok(());
        }
        self.find_on_host(cx).map(drop).map_err(|e| e.with_code(Code::NOT_AVAILABLE))
    }
}

/// A link of this kind on top of the lower link, with `mtu` of a configuration, limited by the lower
/// link's MTU; 0 leaves it to the kernel, which takes the lower link's.
pub fn upper(lower: &Link, kind: LinkKind, mtu: i64) -> Result<LinkSpec> {
    let most = lower.mtu;
    let mtu = match u32::try_from(mtu) {
        Ok(0) => None,
        Ok(fitting) if (MTU_LEAST..=i64::from(most)).contains(&mtu) => Some(fitting),
        _ => {
            let expected = format_args!("{MTU_LEAST} to {most}, the MTU of {:?}, or 0", lower.name);
            return Err(Error::out_of_range("mtu", mtu, expected)
                .saying(format_args!("invalid MTU {mtu}, must be [0, master MTU({most})]")));
        }
    };
    Ok(LinkSpec { lower: Some(lower.index), mtu, ..LinkSpec::of(kind) })
}
