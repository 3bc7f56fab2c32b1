//! The lower link of a macvlan, ipvlan or vlan: `master` of the configuration.

use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, LinkKind, LinkSpec, Netlink};
use crate::plugin::{Attachment, Context};
use crate::steps::container_link::Birthplace;

/// The smallest MTU of a link.
const MTU_LEAST: i64 = 68;

/// A lower link as the configuration names it, and its namespace.
#[derive(Clone, Copy, Debug)]
pub struct LowerLink<'a> {
    /// Its name or altname; empty for the link of the default route.
    pub name: &'a str,
    /// The namespace that it is in.
    pub place: Birthplace,
}

impl<'a> LowerLink<'a> {
    /// The lower link that `master` and `linkInContainer` name.
    pub fn new(master: &'a str, link_in_container: bool) -> LowerLink<'a> {
        LowerLink {
            name: master,
            place: if link_in_container { Birthplace::Container } else { Birthplace::Host },
        }
    }

    /// Finds the link. Reports a mistake in `master` if there is none.
    pub fn find(&self, cx: &Context<'_>, at: &Attachment) -> Result<Link> {
        match self.place {
            Birthplace::Host => self.find_on_host(cx),
            Birthplace::Container => self.find_in_container(at),
        }
    }

    fn find_in_container(&self, at: &Attachment) -> Result<Link> {
        self.find_in(at.netlink()?, || at.run(Netlink::open))
    }

    fn find_on_host(&self, cx: &Context<'_>) -> Result<Link> {
        self.find_in(cx.host()?, Netlink::open)
    }

    fn find_in(&self, netlink: &Netlink, another: impl Fn() -> Result<Netlink>) -> Result<Link> {
        if self.name.is_empty() {
            self.find_default(netlink, another()?)
        } else {
            netlink.find_link(self.name)?.ok_or_else(|| self.not_found())
        }
    }

    fn find_default(&self, netlink: &Netlink, another: Netlink) -> Result<Link> {
        let index = another.into_default_link()?.ok_or_else(|| self.no_default_route())?;
        netlink.find_link_by_index(index)?.ok_or_else(|| self.no_default_route())
    }

    fn not_found(&self) -> Error {
        let name = self.name;
        let problem = format!("{name:?} is not a link of the {}", self.place_text());
        Error::config("master", problem)
            .expecting("the name of one")
            .saying(format_args!("failed to lookup master {name:?}: Link not found"))
    }

    fn no_default_route(&self) -> Error {
        Error::config("master", format_args!("the {} has no default route", self.place_text()))
            .expecting("one or the name of a link")
            .saying("no default route interface found")
    }

    fn place_text(&self) -> &'static str {
        match self.place {
            Birthplace::Host => "host",
            Birthplace::Container => "container",
        }
    }

    /// CHECK: the named link exists and is the lower link of `upper`. An omitted name cannot be
    /// checked later: the default route may have moved to another link.
    pub fn verify(&self, cx: &Context<'_>, at: &Attachment, upper: &Link) -> Result<()> {
        if self.name.is_empty() {
            return Ok(());
        }
        let lower = self.find(cx, at).map_err(|e| e.with_code(Code::CHECK_FAILED))?;
        if is_on(upper, &lower) { Ok(()) } else { Err(self.not_under(upper)) }
    }

    fn not_under(&self, upper: &Link) -> Error {
        Error::check(format!("interface {:?} does not stand on {:?}", upper.name, self.name))
    }

    /// STATUS: whether the lower link exists, where that can be checked without a container.
    pub fn status(&self, cx: &Context<'_>) -> Result<()> {
        if self.place == Birthplace::Container {
            return Ok(());
        }
        self.find_on_host(cx).map(drop).map_err(|e| e.with_code(Code::NOT_AVAILABLE))
    }
}

/// Whether the kernel has put the link on this one. If `lower` is of the same kind, the kernel puts
/// the new link on the lower link of `lower`.
fn is_on(upper: &Link, lower: &Link) -> bool {
    upper.lower.is_some_and(|index| index == lower.index || Some(index) == lower.lower)
}

/// A link of this kind on top of the lower link, with `mtu` of the configuration.
pub fn upper(lower: &Link, kind: LinkKind, mtu: i64) -> Result<LinkSpec> {
    let mtu = mtu_within(mtu, lower)?;
    Ok(LinkSpec { lower: Some(lower.index), mtu, ..LinkSpec::of(kind) })
}

/// `mtu` of a configuration, limited by the lower link's MTU; 0 leaves it to the kernel, which
/// takes the lower link's.
fn mtu_within(mtu: i64, lower: &Link) -> Result<Option<u32>> {
    match u32::try_from(mtu) {
        Ok(0) => Ok(None),
        Ok(fitting) if (MTU_LEAST..=i64::from(lower.mtu)).contains(&mtu) => Ok(Some(fitting)),
        _ => Err(unfitting(mtu, lower)),
    }
}

fn unfitting(mtu: i64, lower: &Link) -> Error {
    let most = lower.mtu;
    let expected = format_args!("{MTU_LEAST} to {most}, the MTU of {:?}, or 0", lower.name);
    Error::out_of_range("mtu", mtu, expected)
        .saying(format_args!("invalid MTU {mtu}, must be [0, master MTU({most})]"))
}
