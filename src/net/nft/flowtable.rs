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
            hook.nest(NFTA_FLOWTABLE_HOOK_DEVS, |devices| {
                for link in links {
                    devices.text(NFTA_DEVICE_NAME, link);
                }
            });
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
