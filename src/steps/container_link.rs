//! A link that is entirely in the container: macvlan, ipvlan, vlan, dummy, tap. No part of it is on
//! the host, so it disappears with the container's namespace at the latest.
//!
//! A link that must be created from the host may have a final name that is taken on the host, and
//! kernels before 6.13 refuse that. So it is created with a temporary name, which belongs to the
//! attachment as well.
//!
//! STATUS: whether the kernel can create the links that ADD needs.

use std::cell::Cell;
use std::rc::Rc;

use super::addresses::{DuplicateDetection, Inside, Wiring};
use super::ipam::{self, Ipam};
use super::link_record::{self, PluginLinks};
use super::records::Site;
use super::settings::AcceptRa;
use super::{interface, link_alias, prev_result};
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::module;
use crate::net::netlink::{Link, LinkChange, LinkSpec, Netlink};
use crate::plugin::part::{Part, Target};
use crate::plugin::{Attachment, Context};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};

/// The namespace that a link's lower link is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetnsOf {
    /// The host's.
    Host,
    /// The container's.
    Container,
}

/// A link that is to be created in the container.
pub struct Plan {
    /// The links that it is one of.
    pub links: PluginLinks,
    /// The namespace that it is created from.
    pub created_from: NetnsOf,
    /// Its kind, its lower link and their properties.
    pub spec: LinkSpec,
    /// Whether it accepts router advertisements.
    pub accept_ra: AcceptRa,
}

impl Plan {
    /// Creates the link, down, with the name in CNI_IFNAME.
    pub fn create<'a>(
        &self,
        cx: &'a Context<'a>,
        at: &'a Attachment,
        rb: &mut Rollback<'a>,
    ) -> Result<Link> {
        require_free_name(at)?;
        self.links.forget(at)?;
        let container = at.netlink()?;
        let (from, name, netns) = match self.created_from {
            NetnsOf::Container => (container, at.ifname().to_owned(), None),
            NetnsOf::Host => {
                let site = Site { key: &at.key, netns: at.netns()? };
                let leftover = self.links.find_leftover(site)?; // of an earlier ADD
                link_record::delete_if_any(container, leftover)?;
                (cx.host()?, link_record::temporary_name(&at.key), Some(at.netns()?.fd()))
            }
        };
        from.create_link(&name, netns, &self.spec).map_err(|e| {
            // The kernel often refuses a link because of what is already on its lower link.
            let error = e.worded(format_args!("failed to create {}", self.spec.kind.name()));
            match self.spec.lower.map(|index| from.find_link_by_index(index)) {
                Some(Ok(Some(lower))) => {
                    error.with_details(format_args!("on link {:?}", lower.name))
                }
                _ => error,
            }
        })?;
        let link = own(at, self.links, name, rb)?;
        self.accept_ra.make(Target { cx, at }, rb)?;
        Ok(link)
    }
}

/// Gives a link that was just created its name and our alias, and records which link it is.
pub fn own<'a>(
    at: &'a Attachment,
    links: PluginLinks,
    first_name: String,
    rb: &mut Rollback<'a>,
) -> Result<Link> {
    let container = at.netlink()?;
    // The undo deletes by ifindex once that is known, and by name before.
    let index = Rc::new(Cell::new(None));
    let (known, name) = (Rc::clone(&index), first_name.clone());
    rb.undo(format_args!("delete link {first_name:?}"), move || match known.get() {
        Some(index) => link_record::delete_link(container, index),
        None => container.delete_link_by_name(&name),
    });
    let born = container.link(&first_name)?;
    index.set(Some(born.index));
    let name = Some(at.ifname()).filter(|name| *name != born.name);
    let alias = link_alias::of(&at.key);
    let change = LinkChange { name, alias: Some(&alias), ..LinkChange::default() };
    container.change_link(&born, &change)?;
    let owned = Link { name: at.ifname().to_owned(), alias, ..born };
    links.remember(at, &owned, rb)?;
    Ok(owned)
}

/// Requires CNI_IFNAME to be a free name that a new interface of the container can have; called
/// before any change.
pub fn require_free_name(at: &Attachment) -> Result<()> {
    refuse_pattern(at)?;
    refuse_taken_name(at.netlink()?, at.ifname())
}

/// Refuses a name that is a pattern: the kernel would choose a name for it.
pub fn refuse_pattern(at: &Attachment) -> Result<()> {
    if !at.key.ifname.is_pattern() {
        return Ok(());
    }
    let msg = format!(
        "CNI_IFNAME: {:?} is a pattern, expected the name of an interface without % and NUL",
        at.ifname()
    );
    Err(Error::new(Code::INVALID_ENVIRONMENT, msg))
}

/// Refuses a name that an interface of the container already has: such an interface is never taken
/// over.
pub fn refuse_taken_name(container: &Netlink, ifname: &str) -> Result<()> {
    let Some(link) = container.find_link(ifname)? else { return Ok(()) };
    let (kind, mac) = (link.kind_text(), link.mac());
    let msg = format!("interface {ifname:?} exists in the container already");
    Err(Error::new(Code::CONFLICT, msg)
        .with_details(format_args!("it is a {kind} with address {mac}")))
}

/// How the container's interface gets its addresses.
pub struct Addressing<'a> {
    cx: &'a Context<'a>,
    source: Source<'a>,
    detection: DuplicateDetection,
}

/// Where the addresses are from.
enum Source<'a> {
    /// The IPAM plugin.
    Ipam(Ipam<'a>),
    /// The result of the plugin before this one.
    Previous(AddResult),
    /// It has none: the network is a layer 2 network.
    Nowhere,
}

impl<'a> Addressing<'a> {
    /// By the IPAM plugin, which must accept the configuration before anything is changed.
    pub fn by_ipam(cx: &'a Context<'a>, detection: DuplicateDetection) -> Result<Addressing<'a>> {
        let source = Source::Ipam(Ipam::require_valid(cx)?);
        Ok(Addressing { cx, source, detection })
    }

    /// As [`Addressing::by_ipam`], but without `ipam.type` the interface has no addresses.
    pub fn by_ipam_if_any(
        cx: &'a Context<'a>,
        detection: DuplicateDetection,
    ) -> Result<Addressing<'a>> {
        let source = Ipam::find_valid(cx)?.map_or(Source::Nowhere, Source::Ipam);
        Ok(Addressing { cx, source, detection })
    }

    /// With the addresses of the plugin before this one.
    pub fn taken_over(
        cx: &'a Context<'a>,
        previous: AddResult,
        detection: DuplicateDetection,
    ) -> Addressing<'a> {
        Addressing { cx, source: Source::Previous(previous), detection }
    }

    /// Sets the link up, with its addresses and routes. Returns a result with this one interface.
    pub fn set_up(
        &self,
        at: &'a Attachment,
        link: &Link,
        rb: &mut Rollback<'a>,
    ) -> Result<AddResult> {
        let result = self.result(at, &link.mac(), rb)?;
        let has_addresses = !matches!(self.source, Source::Nowhere);
        let wiring = has_addresses.then(|| Wiring::to_subnet(self.detection));
        let inside = Inside { result: &result, wiring, found: Some((link, 0)) };
        inside.make(Target { cx: self.cx, at }, rb)?;
        Ok(result)
    }

    /// Creates the planned link with its addresses and routes. A failure undoes everything.
    pub fn attach(&self, at: &'a Attachment, plan: &Plan) -> Result<AddResult> {
        transaction(|rb| {
            let link = plan.create(self.cx, at, rb)?;
            self.set_up(at, &link, rb)
        })
    }

    /// The result with the container's interface and its addresses, which are allocated now. There
    /// is no more to do for a device that is not a link.
    pub fn result(
        &self,
        at: &'a Attachment,
        mac: &MacAddr,
        rb: &mut Rollback<'a>,
    ) -> Result<AddResult> {
        let mut result = match &self.source {
            Source::Ipam(ipam) => ipam.add(at, rb)?,
            Source::Previous(previous) => previous.clone(),
            Source::Nowhere => AddResult::default(),
        };
        result.interfaces = vec![interface::in_container(at, mac)];
        interface::assign_addresses(&mut result, 0);
        Ok(result)
    }
}

/// Compares the container's link with the result: kind, hardware address, addresses and routes.
/// `properties` compares what the plugin itself has set.
pub fn compare(
    on: Target<'_>,
    result: Result<AddResult>,
    kind: Option<&str>,
    properties: impl FnOnce(&Link) -> Result<()>,
) -> Result<()> {
    let mut found = ErrorList::default();
    if let Some(result) = found.push(result)
        && let Some((link, index)) = prev_result::see(on.at, &result, kind, &mut found)
    {
        found.push(properties(&link));
        // Without addresses it is up or down as the container wants.
        if !result.ips.is_empty() || !result.routes.is_empty() {
            let inside = Inside { result: &result, wiring: None, found: Some((&link, index)) };
            found.push(inside.compare(on));
        }
    }
    found.finish()
}

/// CHECK of a plugin that creates only a link in the container: checks the lease, if any, and reports
/// what the plugin has `compared`.
pub fn check(
    cx: &Context<'_>,
    at: &Attachment,
    compared: impl FnOnce(Target<'_>) -> Result<()>,
) -> Result<()> {
    ErrorList::of([ipam::check_if_any(cx, at), compared(Target { cx, at })])
}

/// Repairs the lease, if any. What the plugin has `compared` is in the container and stays.
pub fn repair(
    cx: &Context<'_>,
    at: &Attachment,
    repairs: &Repairs,
    compared: impl FnOnce(Target<'_>) -> Result<()>,
) -> Result<()> {
    let compared = || compared(Target { cx, at });
    ErrorList::of([ipam::repair_if_any(cx, at, repairs), repairs.leave(compared())])
}

/// Fails with code 50 if the kernel has no links of this kind.
///
/// Asks the kernel as ADD would, so that the module which ADD needs is loaded: a look at the loaded
/// modules alone would call a host unable before its first container, and a runtime that waits for
/// STATUS would never start one.
pub fn require_kind(cx: &Context<'_>, kind: &str) -> Result<()> {
    let has_kind = cx.host()?.has_kind(kind).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
    if has_kind {
        return Ok(());
    }
    Err(Error::new(Code::NOT_AVAILABLE, format!("the kernel has no links of type {kind}"))
        .with_details(module::advice(module::of_links(kind))))
}
