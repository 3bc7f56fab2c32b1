//! Flowtables: packets of a flow that is in one go from link to link, past the rules.

use super::batch::{Batch, Table};
use super::socket::{Nft, Query};
use super::uapi::*;
use super::wire::Attributes;
use crate::error::Result;
use crate::net::netlink::attr::{Attrs, read_text};
use crate::net::nfnetlink::NLM_F_CREATE;

/// How many links a request may have: NFT_NETDEVICE_MAX less one. A flowtable may have more.
pub const LINKS_OF_REQUEST: usize = 255;

impl Batch {
    /// Adds a flowtable unless it exists, and these links to it, which it may have already. Kernels
    /// before 5.8 refuse a flowtable without links, and add none to an existing one.
    pub fn flowtable(&mut self, table: Table, name: &str, links: &[String]) -> &mut Batch {
        self.push(table.message(NFT_MSG_NEWFLOWTABLE).with(NLM_F_CREATE), |body| {
            flowtable_name(body, table, name);
            hook(body, links);
        })
    }

    /// Removes a link from a flowtable.
    pub fn delete_flowtable_link(
        &mut self,
        table: Table,
        flowtable: &str,
        link: &str,
    ) -> &mut Batch {
        self.push(table.message(NFT_MSG_DELFLOWTABLE), |body| {
            flowtable_name(body, table, flowtable);
            hook(body, &[link.to_owned()]);
        })
    }

    /// Removes a flowtable that no rule uses, which ends its flows.
    pub fn delete_flowtable(&mut self, table: Table, name: &str) -> &mut Batch {
        self.push(table.message(NFT_MSG_DELFLOWTABLE), |body| flowtable_name(body, table, name))
    }
}

fn flowtable_name(body: &mut Attributes, table: Table, name: &str) {
    body.text(NFTA_FLOWTABLE_TABLE, table.name).text(NFTA_FLOWTABLE_NAME, name);
}

/// Hook `ingress` with priority `filter`, on these links.
fn hook(body: &mut Attributes, links: &[String]) {
    body.nest(NFTA_FLOWTABLE_HOOK, |hook| {
        hook.be32(NFTA_FLOWTABLE_HOOK_NUM, NF_NETDEV_INGRESS);
        hook.be32(NFTA_FLOWTABLE_HOOK_PRIORITY, 0);
        if !links.is_empty() {
            write_links(hook, links);
        }
    });
}

fn write_links(hook: &mut Attributes, links: &[String]) {
    hook.nest(NFTA_FLOWTABLE_HOOK_DEVS, |devices| {
        for link in links {
            devices.text(NFTA_DEVICE_NAME, link);
        }
    });
}

impl Nft {
    /// The links of a flowtable; none if it does not exist.
    pub fn links_of_flowtable(&self, table: Table, name: &str) -> Result<Vec<String>> {
        let what = format_args!("list flowtable {name:?}");
        let query = Query::new(NFT_MSG_GETFLOWTABLE, table.family, what, |body| {
            body.text(NFTA_FLOWTABLE_TABLE, table.name);
        });
        self.dump(&query, |attrs, links| {
            let is_of_table = attrs.is_text(NFTA_FLOWTABLE_TABLE, table.name);
            if is_of_table && attrs.is_text(NFTA_FLOWTABLE_NAME, name) {
                links.extend(links_in(attrs));
            }
        })
    }
}

/// The links of a flowtable that the kernel lists.
pub(super) fn links_in(flowtable: Attrs<'_>) -> impl Iterator<Item = String> {
    let devices = flowtable.within(NFTA_FLOWTABLE_HOOK).within(NFTA_FLOWTABLE_HOOK_DEVS);
    let names = devices.iter().filter(|(kind, _)| *kind == NFTA_DEVICE_NAME);
    names.map(|(_, name)| read_text(name))
}

/// The requests that make a flowtable again: each has as many links as a request may have.
pub(super) fn requests(flowtable: Attrs<'_>) -> Vec<Vec<u8>> {
    let links: Vec<String> = links_in(flowtable).collect();
    let mut parts: Vec<&[String]> = links.chunks(LINKS_OF_REQUEST).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    parts.into_iter().map(|links| request(flowtable, links)).collect()
}

fn request(flowtable: Attrs<'_>, links: &[String]) -> Vec<u8> {
    let mut body = Attributes::default();
    for kind in [NFTA_FLOWTABLE_TABLE, NFTA_FLOWTABLE_NAME, NFTA_FLOWTABLE_FLAGS] {
        if let Some(value) = flowtable.bytes(kind) {
            body.raw(kind, value);
        }
    }
    body.nest(NFTA_FLOWTABLE_HOOK, |hook| {
        for (kind, value) in flowtable.within(NFTA_FLOWTABLE_HOOK).iter() {
            if kind != NFTA_FLOWTABLE_HOOK_DEVS {
                hook.raw(kind, value);
            }
        }
        if !links.is_empty() {
            write_links(hook, links);
        }
    });
    body.bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::nfnetlink::NfFamily;

    /// The kernel refuses a request with 256 links.
    #[test]
    fn a_flowtable_of_many_links_is_made_by_several_requests() {
        let table = Table { family: NfFamily::Inet, name: "t" };
        for (count, expected) in [(0, vec![0]), (255, vec![255]), (256, vec![255, 1])] {
            let links: Vec<String> = (0..count).map(|number| format!("veth{number}")).collect();
            let mut listed = Attributes::default();
            flowtable_name(&mut listed, table, "f");
            hook(&mut listed, &links);
            let parts = requests(Attrs::of(listed.bytes()));
            let counts: Vec<usize> =
                parts.iter().map(|part| links_in(Attrs::of(part)).count()).collect();
            assert_eq!(counts, expected);
            let all: Vec<String> =
                parts.iter().flat_map(|part| links_in(Attrs::of(part))).collect();
            assert_eq!(all, links);
        }
    }
}
