//! The input of CHECK: the result of ADD, and the interfaces in it.

use crate::cni::result::{AddResult, Interface};
use crate::error::{Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::Link;
use crate::plugin::{Attachment, Context};

/// prevResult, without which nothing can be verified.
pub fn require(cx: &Context<'_>) -> Result<AddResult> {
    cx.config.prev_result()?.ok_or_else(missing)
}

/// prevResult for a plugin that works on the results of those before it. `sentence` is the
/// reference's message for an ADD without it.
pub fn require_chained(cx: &Context<'_>, sentence: &str) -> Result<AddResult> {
    let missing = || {
        Error::missing("prevResult", "the result of the plugin before this one").saying(sentence)
    };
    cx.config.prev_result()?.ok_or_else(missing)
}

/// The error of a CHECK without the result of ADD.
pub fn missing() -> Error {
    Error::missing("prevResult", "the result of ADD").saying("Required prevResult missing")
}

/// The container's interface in prevResult, and its index there.
pub fn container_interface<'a>(
    result: &'a AddResult,
    at: &Attachment,
) -> Result<(usize, &'a Interface)> {
    let ifname = at.ifname();
    let is_it = |interface: &Interface| interface.name == ifname && !interface.sandbox.is_empty();
    let Some(index) = result.interfaces.iter().position(is_it) else {
        let reason = format!("prevResult has no interface {ifname:?} in a sandbox");
        return Err(not_found(ifname, reason));
    };
    let interface = &result.interfaces[index];
    if interface.sandbox != at.netns_path {
        return Err(Error::check(format!(
            "Sandbox in prevResult {} doesn't match configured netns: {}",
            interface.sandbox, at.netns_path
        )));
    }
    Ok((index, interface))
}

/// The index of the container's interface in prevResult. Results before 0.3 have none.
pub fn index_of(result: &AddResult, at: &Attachment) -> Option<usize> {
    container_interface(result, at).ok().map(|(index, _)| index)
}

/// The container's interface as the kernel has it, and its index in prevResult.
pub fn see(
    at: &Attachment,
    result: &AddResult,
    kind: Option<&str>,
    found: &mut ErrorList,
) -> Option<(Link, usize)> {
    let (index, interface) = found.push(container_interface(result, at))?;
    Some((verify_link(at, interface, kind, found)?, index))
}

/// The hardware address that the container's interface has in prevResult: the container can change
/// that of the link.
pub fn container_mac(result: &AddResult, at: &Attachment) -> Result<MacAddr> {
    let (index, interface) = container_interface(result, at)?;
    interface.mac.parse().map_err(|_| {
        let problem = format!("prevResult.interfaces[{index}].mac is {:?}", interface.mac);
        Error::check(problem).with_details("expected a hardware address")
    })
}

fn not_found(name: &str, reason: String) -> Error {
    Error::check(reason)
        .saying(format_args!("Container Interface name in prevResult: {name} not found"))
}

/// The link in the container that an interface of prevResult names. It is of this kind if one is
/// expected. Another hardware address is a difference, and no obstacle to further ones.
pub fn verify_link(
    at: &Attachment,
    interface: &Interface,
    kind: Option<&str>,
    found: &mut ErrorList,
) -> Option<Link> {
    let Interface { name, mac, .. } = interface;
    let link = found.push(at.netlink().and_then(|netlink| netlink.find_link(name)))?;
    let Some(link) = link else {
        let error = not_found(name, format!("interface {name:?} is not there"));
        return found.push(Err(error));
    };
    if let Some(wanted) = kind.filter(|kind| link.kind != *kind) {
        let kind = if link.kind.is_empty() { "hardware" } else { &link.kind };
        return found.push(Err(Error::check(format!("it is of type {kind}"))
            .saying(format_args!("Error: Container interface {name} not of type {wanted}"))));
    }
    let found_mac = link.mac().to_string();
    if !mac.is_empty() && !mac.eq_ignore_ascii_case(&found_mac) {
        let problem =
            format!("Interface {} Mac {mac} doesn't match container Mac: {found_mac}", link.name);
        found.add(Error::check(problem));
    }
    Some(link)
}
