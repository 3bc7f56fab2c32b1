//! `macspoofchk`: a container can send only with its own hardware address.
//!
//! ```text
//! table bridge cni_multi_spoofcheck {
//!   set ports { type ifname; elements = { "veth1f2e3d4c" comment "…" } }
//!   set allowed { type ifname . ether_addr; elements = { "veth1f2e3d4c" . 0a:58:0a:01:00:07 comment "…" } }
//!   set attachments { … }                       # the owner of each element
//!   chain admin { }                             # the administrator's: we only jump to it
//!   chain prerouting {
//!     type filter hook prerouting priority dstnat; policy accept;
//!     jump admin
//!     iifname @ports iifname . ether saddr != @allowed drop
//!   }
//! }
//! ```

use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::nft::batch::{Batch, Holds, Hook, KeyType, Set, Table};
use crate::net::nft::expr::{Header, Meta, Verdict};
use crate::net::nft::owned::{Layout, OwnedElement, Search, jump_to_admin};
use crate::net::nft::wire::link_name;
use crate::net::nft::{NfFamily, Nft};
use crate::plugin::owned::Owned;
use crate::plugin::part::{Part, Target};
use crate::plugin::{Context, Detachment, Handles};
use crate::rollback::Rollback;
use crate::steps::nft_owner;
use crate::steps::rules::ReferenceRules;

/// The table.
pub const LAYOUT: Layout = Layout {
    table: Table { family: NfFamily::Bridge, name: "cni_multi_spoofcheck" },
    comment: "cni-multi: containers send with their own hardware address",
    sets: &[&PORTS, &ALLOWED],
    lay_out,
    reliance: None,
};

const PORTS: Set = Set { name: "ports", key: &[KeyType::IfName], holds: Holds::Keys };
const ALLOWED: Set =
    Set { name: "allowed", key: &[KeyType::IfName, KeyType::Ether], holds: Holds::Keys };
const BASE_CHAIN: &str = "prerouting";
/// Priority dstnat of the bridge family, as in the reference.
const HOOK: Hook = Hook { kind: "filter", number: 0, priority: -300 };

/// The reference has a rule per attachment, which leads to two chains of the attachment.
const REFERENCE: ReferenceRules = ReferenceRules {
    table: Table { family: NfFamily::Bridge, name: "nat" },
    chain: "PREROUTING",
    jumps: 0,
    deletion: "delete the spoof check of the reference plugins",
};

/// STATUS: fails with code 50 if the kernel cannot do it.
pub fn status(handles: &Handles) -> Result<()> {
    handles
        .require_nft()
        .and_then(|nft| LAYOUT.on(nft).require())
        .map_err(|e| of_spoofcheck(e).with_code(Code::NOT_AVAILABLE))
}

/// Frames that arrive by a port of the bridge have the hardware address of the container's interface.
pub struct Port<'a> {
    /// The port's name.
    pub name: &'a str,
    /// The hardware address.
    pub mac: MacAddr,
}

fn of_spoofcheck(error: Error) -> Error {
    error.context("macspoofchk")
}

impl<'a> Part<'a> for Port<'_> {
    fn what(&self) -> String {
        format!("drop frames of other addresses from {:?}", self.name)
    }

    fn make(&self, Target { cx, at }: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let handles = cx.handles();
        let elements = self.elements();
        let nft = handles.require_nft().map_err(of_spoofcheck)?;
        LAYOUT.on(nft).of(&nft_owner::of(&at.key)).take(&elements).map_err(of_spoofcheck)?;
        rb.undo("delete the spoof check", move || release(handles, &at.key));
        Ok(())
    }

    fn compare(&self, Target { cx, at }: Target<'a>) -> Result<()> {
        let (nft, elements) = (cx.handles().require_nft()?, self.elements());
        match LAYOUT.on(nft).of(&nft_owner::of(&at.key)).missing(&elements)?.first() {
            Some(_) if has_chain(nft, &chains_of_reference(&at.key)[0])? => Ok(()),
            Some(element) => Err(Error::check(format!(
                "macspoofchk of port {:?}: no element in set {:?}",
                self.name, element.set
            ))),
            None => LAYOUT.on(nft).verify().map_err(of_spoofcheck),
        }
    }
}

fn release(handles: &Handles, key: &Key) -> Result<()> {
    let released = nft_owner::release(handles, &LAYOUT, &nft_owner::of(key), Search::Ledger);
    released.map(drop).map_err(of_spoofcheck)
}

/// The spoof checks of attachments, ours and the reference's. GC leaves the latter to DEL: they do not
/// name their network.
pub struct SpoofChecks;

impl Owned for SpoofChecks {
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        let handles = cx.handles();
        ErrorList::of([release(handles, &at.key), delete_of_reference(handles, &at.key)])
    }

    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        let network = &cx.config.name;
        let released = nft_owner::release_invalid(cx.handles(), &LAYOUT, network, valid);
        released.map(drop).map_err(of_spoofcheck)
    }
}

/// Whether the table of the reference has this chain.
fn has_chain(nft: &Nft, name: &str) -> Result<bool> {
    let Table { family, name: table } = REFERENCE.table;
    Ok(nft.chain(family, table, name)?.is_some())
}

fn chains_of_reference(key: &Key) -> [String; 2] {
    let Key { container_id, ifname, .. } = key;
    ["", "-mac"].map(|end| format!("cni-br-iface-{container_id}-{ifname}{end}"))
}

/// Removes the reference's rule and chains for the same attachment.
fn delete_of_reference(handles: &Handles, key: &Key) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let chains = chains_of_reference(key);
    if !has_chain(nft, &chains[0])? {
        return Ok(());
    }
    let comment = format!("macspoofchk-{}-{}", key.container_id, key.ifname);
    let mut batch = Batch::default();
    for rule in REFERENCE.find(nft, |found| found == comment)? {
        batch.delete_rule(REFERENCE.table, REFERENCE.chain, rule.handle);
    }
    for chain in chains {
        batch.delete_chain(REFERENCE.table, &chain);
    }
    nft.commit(&batch, REFERENCE.deletion)
}

impl Port<'_> {
    /// The fields of a key are padded to four bytes.
    fn elements(&self) -> [OwnedElement; 2] {
        let name = link_name(self.name);
        let mut allowed = [&name, self.mac.octets()].concat();
        allowed.resize(allowed.len().next_multiple_of(4), 0);
        [OwnedElement::of(&PORTS, name), OwnedElement::of(&ALLOWED, allowed)]
    }
}

fn lay_out(batch: &mut Batch, table: Table) {
    batch.base_chain(table, BASE_CHAIN, HOOK).flush_chain(table, BASE_CHAIN);
    jump_to_admin(batch, table, BASE_CHAIN);
    batch.rule(table, BASE_CHAIN, |rule| {
        // The name fills register 1, so that the hardware address in register 2 directly follows
        // it.
        rule.meta(Meta::IifName, 1).in_set(PORTS.name, 1, false);
        rule.meta(Meta::IifName, 1).payload(Header::Link, 6, 6, 2).in_set(ALLOWED.name, 1, true);
        rule.verdict(&Verdict::Drop);
    });
}
