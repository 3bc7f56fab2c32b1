//! `ipam import` on a node of a cluster: the daemon claims a block for each address, as for an ADD
//! that requests one. The command writes the leases once the node has every block.
//!
//! It first requests the addresses in blocks of other nodes, so that in most cases an import fails before it
//! has claimed a block. The daemon releases the blocks of a failed import like all blocks without leases: at
//! once if another node wants addresses, and otherwise after minutes.

use std::collections::HashSet;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::super::add::announced;
use super::super::block::Block;
use super::super::client;
use super::super::conf::{self, Conf};
use super::super::held::{Blocks, State};
use super::super::need::{Lack, Wish};
use super::super::node::CONFIGURATION;
use super::super::room::Disjoint;
use super::holders::{Holders, lease_words};
use super::session::Session;
use crate::cni::attachment::NetworkName;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::plugin::Context;
use crate::plugin::leases::{Holding, Incoming};
use crate::service::wire::is_not_running;
use crate::steps::allocation::Owner;
use crate::sys::clock::id_of_boot;
use crate::sys::clock::since_boot;

/// The shortest time that a claim waits for other nodes, whatever `patience` is: it is an operator who waits.
const LEAST_PATIENCE: Duration = Duration::from_secs(5);
/// The pause before the next request for a block.
const PAUSE: Duration = Duration::from_millis(50);
/// The largest number of blocks or addresses in a note.
const MOST_NAMED: usize = 10;

/// Claims the blocks that the leases need and the network lacks.
pub fn claim(cx: &Context<'_>, conf: &Conf, incoming: &Incoming<'_>) -> Result<()> {
    let place = conf::place(cx);
    let owner = Owner::new("", "");
    let wish = Wish { place: &place, conf, owner: &owner, names: vec![] };
    let boot = id_of_boot()?;
    let (own, taken) = announced(&wish)?;
    let lacking = lacking(&wish, (&usable(Some(&own), &boot), &taken), incoming.leases)?;
    if lacking.is_empty() {
        return Ok(());
    }
    let session = Session::open(CONFIGURATION.as_ref())?;
    let mut import = Import { wish: &wish, network: &cx.config.name, session, boot };
    import.claim_all(lacking, incoming.tell)
}

/// What [`claim`] would do, as far as this node can know without claims. Fails where it knows that [`claim`]
/// would fail.
pub fn preview(cx: &Context<'_>, conf: &Conf, leases: &[Holding]) -> Result<Vec<String>> {
    let place = conf::place(cx);
    let owner = Owner::new("", "");
    let wish = Wish { place: &place, conf, owner: &owner, names: vec![] };
    let own = Blocks::read(place.dir())?;
    let taken = place.list()?.into_iter().map(|listed| listed.ip).collect();
    let usable = usable(own.as_ref(), &id_of_boot()?);
    let lacking = lacking(&wish, (&usable, &taken), leases)?;
    if lacking.is_empty() {
        return Ok(vec![]);
    }
    client::require_connected(cx.deadline())?;
    let holders = Holders::of(&mut Session::open(CONFIGURATION.as_ref())?, &wish)?;
    let (asked, free) = holders.contested(lacking)?;
    let planned = planned(&wish, &free, &holders);
    let mut notes = claims_note(&planned);
    notes.extend(asked.iter().take(MOST_NAMED).map(|lease| holders.asks(lease)));
    let more = asked.len().saturating_sub(MOST_NAMED);
    notes.extend((more > 0).then(|| format!("and {more} more such addresses")));
    Ok(notes)
}

/// The leases that are missing here and whose addresses are in no block that the network allocates from.
fn lacking<'l>(
    wish: &Wish<'_>,
    has: (&Disjoint, &HashSet<IpAddr>),
    leases: &'l [Holding],
) -> Result<Vec<&'l Holding>> {
    let (usable, taken) = has;
    let is_lacking =
        |lease: &&Holding| !taken.contains(&lease.address) && !usable.has(lease.address);
    let lacking: Vec<&Holding> = leases.iter().filter(is_lacking).collect();
    match lacking.iter().find(|lease| wish.pool_of(lease.address).is_none()) {
        Some(excluded) => Err(is_excluded(excluded)),
        None => Ok(lacking),
    }
}

fn is_excluded(lease: &Holding) -> Error {
    let msg = format!("{}: the network's configuration excludes it", lease_words(lease));
    Error::new(Code::CONFLICT, msg)
        .with_details("no lease was written: change `exclude`, or leave the lease out")
}

/// The blocks that the network allocates from in this boot.
fn usable(own: Option<&Blocks>, boot: &str) -> Disjoint {
    let own = own.filter(|own| own.is_confirmed(boot, since_boot()));
    Disjoint::new(own.into_iter().flat_map(Blocks::active).map(|held| held.block))
}

/// The blocks that the daemon would claim for the addresses in no node's block.
fn planned(wish: &Wish<'_>, free: &[&Holding], holders: &Holders) -> Vec<Block> {
    let mut claimed = Disjoint::new(holders.blocks());
    let ips = free.iter().map(|lease| lease.address);
    ips.filter_map(|ip| claimed.claim_around(wish.pool_of(ip)?, ip)).collect()
}

fn claims_note(planned: &[Block]) -> Vec<String> {
    if planned.is_empty() {
        return vec![];
    }
    let named = planned.iter().take(MOST_NAMED).map(|block| block.prefix().to_string());
    let named = named.collect::<Vec<_>>().join(", ");
    let more = planned.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    vec![format!("would claim in the cluster: {named}{more}")]
}

/// The import into one network.
struct Import<'a> {
    wish: &'a Wish<'a>,
    network: &'a NetworkName,
    session: Session,
    /// The id of this boot.
    boot: String,
}

impl Import<'_> {
    fn claim_all(&mut self, lacking: Vec<&Holding>, tell: &dyn Fn(usize, usize)) -> Result<()> {
        let holders = Holders::of(&mut self.session, self.wish)?;
        let (asked, free) = holders.contested(lacking)?;
        let all = asked.len() + free.len();
        let mut usable = usable(self.own()?.as_ref(), &self.boot);
        for (done, lease) in asked.into_iter().chain(free).enumerate() {
            tell(done, all);
            if !usable.has(lease.address) {
                usable = self.claim(lease)?;
            }
        }
        Ok(())
    }

    fn own(&self) -> Result<Option<Blocks>> {
        Blocks::read(self.wish.place.dir())
    }

    /// Asks the daemon for a block with the address, and waits until the network may allocate from it. Returns
    /// the blocks that the network allocates from then.
    fn claim(&mut self, lease: &Holding) -> Result<Disjoint> {
        let patience = self.wish.conf.patience.max(LEAST_PATIENCE);
        let end = Instant::now() + patience + self.session.settings.settle;
        loop {
            let asked = self.ask(lease, Deadline::after(patience));
            let own = self.own()?;
            let usable = usable(own.as_ref(), &self.boot);
            if usable.has(lease.address) {
                return Ok(usable);
            }
            let settles = own.is_some_and(|own| settles(&own, lease.address));
            let waits = asked.as_ref().map_or_else(|e| settles && !is_not_running(e), |()| true);
            if !waits || Instant::now() >= end {
                return Err(self.failure(lease, asked.err()));
            }
            thread::sleep(PAUSE);
        }
    }

    fn ask(&self, lease: &Holding, deadline: Deadline) -> Result<()> {
        let mut sets = self.wish.sets();
        let set = sets.find(|(_, set)| set.contains(lease.address));
        let number = set.map(|(number, _)| number).ok_or_else(|| is_excluded(lease))?;
        client::ask_for(self.network, number, &Lack::Address(lease.address), deadline)
    }

    /// Why the network has no block with the address. Names the node or network that has it.
    fn failure(&mut self, lease: &Holding, error: Option<Error>) -> Error {
        let unusable = || {
            let msg =
                format!("the network does not allocate from the block of {} yet", lease.address);
            Error::new(Code::TRY_AGAIN, msg).with_details("run the command again")
        };
        let error = error.unwrap_or_else(unusable).context(lease_words(lease));
        if error.code != Code::ADDRESS_UNAVAILABLE {
            return error;
        }
        let holders = Holders::of(&mut self.session, self.wish).ok();
        holders.and_then(|holders| holders.refusal(lease)).unwrap_or(error)
    }
}

/// Whether the block with the address settles because the store was restored. Other blocks are no reason to wait.
fn settles(own: &Blocks, ip: IpAddr) -> bool {
    own.blocks.iter().any(|held| held.state == State::Settling && held.block.contains(ip))
}
