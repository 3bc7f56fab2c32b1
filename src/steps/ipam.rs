//! Addresses from the IPAM plugin that `ipam.type` names (specification, section 4).
//!
//! [`delegation`](super::delegation) finds and runs it.

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::cni::version;
use crate::error::{Code, Error, ErrorList, Result};
use crate::plugin::owned::{Owned, Removal, Rest};
use crate::plugin::{Attachment, Call, Context, Detachment, Kind};
use crate::repair::Repairs;
use crate::rollback::Rollback;
use crate::steps::delegation::{Delegate, Named};

/// The IPAM plugin of a configuration.
pub struct Ipam<'a> {
    cx: &'a Context<'a>,
    delegate: Delegate,
}

impl<'a> Ipam<'a> {
    /// The plugin that `ipam.type` names; None where the configuration names no plugin.
    pub fn find(cx: &'a Context<'a>) -> Result<Option<Ipam<'a>>> {
        let name = cx.config.ipam_type()?;
        if name.is_empty() {
            return Ok(None);
        }
        let named = Named { path: "ipam.type", name: &name, kind: Kind::Ipam };
        let delegate = Delegate::find(cx, &named)?;
        Ok(Some(Ipam { cx, delegate }))
    }

    /// The plugin that `ipam.type` names, which is required.
    pub fn require(cx: &'a Context<'a>) -> Result<Ipam<'a>> {
        Ipam::find(cx)?.ok_or_else(missing)
    }

    /// For ADD: the plugin that `ipam.type` names, which is required and must accept the
    /// configuration before anything is changed.
    pub fn require_valid(cx: &'a Context<'a>) -> Result<Ipam<'a>> {
        let ipam = Ipam::require(cx)?;
        ipam.delegate.validate(cx)?;
        Ok(ipam)
    }

    /// For ADD: as [`Ipam::require_valid`], but without `ipam.type` the network is a layer 2
    /// network, see [`require_type_or_layer_two`].
    pub fn find_unless_layer_two(cx: &'a Context<'a>) -> Result<Option<Ipam<'a>>> {
        let ipam = Ipam::find(cx)?;
        ipam.as_ref().map_or(Ok(()), |ipam| ipam.delegate.validate(cx))?;
        Ok(ipam)
    }

    /// ADD: allocates at least one address, which is released if a later step fails.
    pub fn add(&self, at: &'a Attachment, rb: &mut Rollback<'a>) -> Result<AddResult>
    where
        Self: 'a,
    {
        let result = self.delegate.add(self.cx, at, rb)?;
        if result.ips.is_empty() {
            let msg = "IPAM plugin returned missing IP config";
            return Err(Error::new(Code::ADDRESS_UNAVAILABLE, msg)
                .with_details(format_args!("the plugin is {}", self.delegate.name())));
        }
        Ok(result)
    }

    /// CHECK.
    pub fn check(&self, at: &Attachment) -> Result<()> {
        self.delegate.run(self.cx, Call::Check(at))
    }

    /// STATUS.
    pub fn status(&self) -> Result<()> {
        self.delegate.run(self.cx, Call::Status)
    }

    /// Repairs the lease, if the plugin is ours.
    pub fn repair(&self, at: &Attachment, repairs: &Repairs) -> Result<()> {
        self.delegate.repair(self.cx, at, repairs)
    }

    /// Whether the plugin sends packets over the interface.
    pub fn needs_link(&self) -> bool {
        self.delegate.needs_link()
    }
}

fn missing() -> Error {
    Error::missing("ipam.type", "the name of an ipam plugin").saying("no plugin name provided")
}

/// Requires the configuration to name an IPAM plugin.
pub fn require_type(cx: &Context<'_>) -> Result<()> {
    if cx.config.ipam_type()?.is_empty() { Err(missing()) } else { Ok(()) }
}

/// For ADD: without an IPAM plugin the network is a layer 2 network, whose result the oldest
/// versions cannot express.
pub fn require_type_or_layer_two(cx: &Context<'_>) -> Result<()> {
    let version = &cx.config.version;
    if !cx.config.ipam_type()?.is_empty()
        || version::Number::parse(version)? >= version::WITH_MANY_ADDRESSES
    {
        return Ok(());
    }
    Err(Error::new(Code::INVALID_CONFIG, "cannot convert: no valid IP addresses").with_details(
        format_args!("a result without addresses has no form in cniVersion {version}"),
    ))
}

/// CHECK of the IPAM plugin, if the configuration names one.
pub fn check_if_any(cx: &Context<'_>, at: &Attachment) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.check(at))
}

/// Repairs the lease of the IPAM plugin, if the configuration names one.
pub fn repair_if_any(cx: &Context<'_>, at: &Attachment, repairs: &Repairs) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.repair(at, repairs))
}

/// Repairs the lease, if the configuration names an IPAM plugin, and then the rest. If the address has
/// another owner by now, skips the rest: it would connect two containers with one address.
pub fn repair_before(
    cx: &Context<'_>,
    at: &Attachment,
    repairs: &Repairs,
    rest: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match repair_if_any(cx, at, repairs) {
        Err(error) if error.code == Code::CONFLICT => Err(error),
        lease => ErrorList::of([lease, rest()]),
    }
}

/// The leases of attachments at the IPAM plugin, if any. What else they own is removed first, since
/// the next ADD may be allocated the same addresses; unless the plugin needs the link to release them.
pub struct Leases;

impl Owned for Leases {
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.delegate.run(cx, Call::Del(at)))
    }

    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.delegate.run(cx, Call::Gc(valid)))
    }

    fn surround(&self, cx: &Context<'_>, removal: Removal<'_>, rest: Rest<'_>) -> Result<()> {
        let mut errors = ErrorList::default();
        let ipam = errors.push(Ipam::find(cx)).flatten();
        let needs_link = ipam.as_ref().is_some_and(Ipam::needs_link);
        if !needs_link {
            errors.push(rest());
        }
        errors.push(ipam.map_or(Ok(()), |ipam| match removal {
            Removal::Del(at) => ipam.delegate.run(cx, Call::Del(at)),
            Removal::Gc(valid) => ipam.delegate.run(cx, Call::Gc(valid)),
        }));
        if needs_link {
            errors.push(rest());
        }
        errors.finish()
    }
}

/// STATUS of the IPAM plugin, if any.
pub fn status_if_any(cx: &Context<'_>) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.status())
}
