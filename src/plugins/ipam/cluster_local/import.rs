//! Claims the blocks of leases that come from another machine, before the leases are written.

use super::add::{Site, claim_for};
use super::conf::{self, Conf};
use super::node;
use crate::error::{Code, Error, Result};
use crate::plugin::Context;
use crate::plugin::leases::Holding;

/// Claims a block for each lease. On a node of a cluster only the daemon claims, for each ADD.
pub fn claim(cx: &Context<'_>, conf: &Conf, leases: &[Holding]) -> Result<()> {
    if node::is_of_cluster() {
        let msg = "import into a network of a cluster";
        return Err(Error::new(Code::CONFLICT, msg).with_details(format_args!(
            "the leases have no claims there: by {} the addresses are the cluster's",
            node::CONFIGURATION
        )));
    }
    let data_dir = conf::directory(cx);
    let place = conf::place(cx);
    let site = Site { data_dir: &data_dir, network: &cx.config.name, deadline: cx.deadline() };
    let ips: Vec<_> = leases.iter().map(|lease| lease.address).collect();
    claim_for(&ips, &place, conf, &site)
}
