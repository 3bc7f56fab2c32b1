//! ADD: an address of a block that the network holds, by local files alone; else of one that the daemon
//! claims for it.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::announced::{announced, is_of};
use super::client;
use super::conf::Conf;
use super::held::{Blocks, Held};
use super::node;
use super::pool::{Pool, Span, candidates};
use super::wire::Needed;
use crate::cni::attachment::NetworkName;
use crate::cni::result::IpConfig;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::steps::allocation::files::lease::{self, Content};
use crate::steps::allocation::files::{FileStore, Place};
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::{self, Need, Owner, Policy};

/// The pause before an ADD looks again for what the daemon has claimed.
const PAUSE: Duration = Duration::from_millis(50);
/// The code of blocks that the daemon has to confirm.
const UNCONFIRMED: Code = Code::TRY_AGAIN;

/// The addresses that an ADD asks for: the attachment, its names, and the place of the leases.
pub struct Wish<'a> {
    /// The parent of the networks' directories.
    pub data_dir: PathBuf,
    /// Where the leases are.
    pub place: Place,
    /// The network.
    pub network: &'a NetworkName,
    /// Its configuration.
    pub conf: &'a Conf,
    /// The attachment.
    pub owner: Owner,
    /// Its name for each set, if it keeps its addresses.
    pub names: Vec<String>,
    /// The operation's deadline.
    pub deadline: Deadline,
}

/// Reserves the addresses of an attachment: all of them or none.
pub fn addresses(wish: &Wish<'_>) -> Result<Vec<IpConfig>> {
    let patience = wish.deadline.limit(wish.conf.patience);
    let end = Instant::now() + patience;
    let mut is_asked = false;
    loop {
        let (mut files, held) = open(wish)?;
        let own = held.own.as_ref();
        if is_asked || own.is_some_and(|own| is_of(own, &wish.conf.terms)) {
            let usable = held.require_usable();
            let is_usable = usable.is_ok();
            let wanted = held.wanted();
            match usable.and_then(|()| allocate(wish, &mut files, &held, &wanted, || Ok(()))) {
                Err(e) if !is_usable && e.code == Code::IO => return Err(e),
                // The daemon may claim what the blocks lack.
                Err(e) if !is_asked && (!is_usable || e.code == Code::ADDRESS_UNAVAILABLE) => (),
                // Another ADD was faster, or the daemon is about to confirm the blocks.
                Err(e) if is_asked && may_pass(&e) && Instant::now() < end => (),
                tried => return tried,
            }
        }
        drop(files);
        if is_asked {
            thread::sleep(PAUSE);
        }
        ask_for_lacks(wish, Deadline::after(patience))?;
        is_asked = true;
    }
}

fn may_pass(error: &Error) -> bool {
    error.code == Code::ADDRESS_UNAVAILABLE || error.code == UNCONFIRMED
}

/// Reserves addresses, those `wanted` where a set contains any, and calls `then`. What is wanted beside the
/// requested addresses is that of the attachment's name: fails if another attachment has it.
pub fn allocate(
    wish: &Wish<'_>,
    files: &mut FileStore,
    policy: &impl Policy,
    wanted: &[IpAddr],
    then: impl FnOnce() -> Result<()>,
) -> Result<Vec<IpConfig>> {
    for (number, set) in wish.sets() {
        if let Some(name) = wish.name_in(number, set)
            && let Some(ip) = wanted.iter().find(|ip| set.contains(**ip))
            && let Some(Content::Owned(owner)) = lease::read(wish.place.dir(), *ip)?
            && owner != wish.owner
        {
            let msg = format!("{ip} of {name:?} is held by container {}", owner.container_id);
            return Err(Error::new(Code::TRY_AGAIN, msg).with_details(
                "it is free after the DEL of that container: detach it, and try again",
            ));
        }
    }
    let sets = &wish.conf.allocation.sets;
    allocation::allocate(&Need { sets, requested: wanted, owner: &wish.owner }, files, policy, then)
}

/// Writes what is configured into the file of the network's blocks, where the daemon reads it, and asks
/// the daemon for all that the network lacks.
fn ask_for_lacks(wish: &Wish<'_>, deadline: Deadline) -> Result<()> {
    let lacks = {
        let (_files, held) = open(wish)?;
        let own = announced(held.own.clone(), &wish.conf.terms, &held.taken)?;
        if held.own.as_ref() != Some(&own) {
            own.write(wish.place.dir())?;
        }
        wish.lacks(&own, &held.taken)?
    };
    if lacks.is_empty() {
        client::standing(deadline)?; // a daemon that verifies is about to confirm the blocks
    }
    lacks.into_iter().try_for_each(|needed| client::ask_for(wish.network, needed, deadline))
}

impl Wish<'_> {
    /// The range sets, with their numbers.
    pub fn sets(&self) -> impl Iterator<Item = (usize, &RangeSet)> {
        self.conf.allocation.sets.iter().enumerate()
    }

    /// The address of the set that the runtime or the user requests.
    fn requested(&self, set: &RangeSet) -> Option<IpAddr> {
        self.conf.allocation.requested.iter().copied().find(|ip| set.contains(*ip))
    }

    /// The name, if it has the address of this set.
    pub fn name_in(&self, number: usize, set: &RangeSet) -> Option<&str> {
        self.names.get(number).map(String::as_str).filter(|_| self.requested(set).is_none())
    }

    /// Whether an attachment may request the address, or have it for its name.
    pub fn allocates(&self, ip: IpAddr) -> bool {
        let terms = &self.conf.terms;
        terms.pools.iter().chain(&terms.names).any(|pool| pool.allocates(ip))
    }

    /// The addresses of a set that any attachment may get.
    pub fn spans_of(&self, set: &RangeSet) -> Vec<Span> {
        let spans = self.conf.terms.pools.iter().flat_map(Pool::spans);
        spans.filter(|span| set.contains(span.first())).copied().collect()
    }

    /// What these blocks lack.
    fn lacks(&self, own: &Blocks, taken: &HashSet<IpAddr>) -> Result<Vec<Needed>> {
        let (network, terms) = (NetworkName::parse(self.place.name())?, &self.conf.terms);
        let needed =
            |set| Needed { network: network.clone(), set, address: None, patience: 0, name: None };
        if own.realm != terms.realm {
            return Ok(vec![needed(0)]); // the daemon reads the file for it, and gives blocks back
        }
        let mut lacks = vec![];
        for ((number, set), pool) in self.sets().zip(&terms.pools) {
            let Some(place) = own.pools.iter().position(|of| of == pool) else { continue };
            if let Some(ip) = self.requested(set) {
                if self.allocates(ip) && !own.has(ip) {
                    lacks.push(Needed { address: Some(ip), ..needed(place) });
                }
            } else if let Some(name) = self.names.get(number) {
                if held_for(own, name, set).is_none() {
                    lacks.push(Needed { name: Some(name.clone()), ..needed(place) });
                }
            } else if free(own, pool.spans(), taken, None).is_empty() {
                lacks.push(needed(place));
            }
        }
        Ok(lacks)
    }
}

/// The blocks of a network, which limit what is allocated.
struct HeldBlocks<'a> {
    /// What the network holds; None if it has never held a block.
    own: Option<Blocks>,
    /// The addresses with leases.
    taken: HashSet<IpAddr>,
    wish: &'a Wish<'a>,
}

/// Locks the leases, and reads them and the blocks.
fn open<'a>(wish: &'a Wish<'a>) -> Result<(FileStore, HeldBlocks<'a>)> {
    let files = FileStore::create(&wish.place, &wish.owner)?;
    let (own, taken) = (Blocks::read(wish.place.dir())?, files.taken()?);
    Ok((files, HeldBlocks { own, taken, wish }))
}

impl HeldBlocks<'_> {
    /// Fails if the blocks are in another realm, if they may have become another node's while this one
    /// was off, and if the address of a name has just become another's.
    fn require_usable(&self) -> Result<()> {
        let is_moving = |own: &&Blocks| own.realm != self.wish.conf.terms.realm;
        if let Some(own) = self.own.as_ref().filter(is_moving) {
            let msg = format!("the blocks of realm {:?} are being given back", own.realm.as_str());
            return Err(Error::new(Code::TRY_AGAIN, msg)
                .with_details("the network changes its realm once it has none: try again"));
        }
        if !node::is_confirmed(&self.wish.data_dir)? {
            let msg = "the daemon has not confirmed the blocks of this node in this boot";
            return Err(Error::new(UNCONFIRMED, msg).with_details(
                "the daemon confirms them once it reaches the cluster: see its log",
            ));
        }
        if self.own.is_none() || !self.of_names().all(|ip| ip.is_some()) {
            return Err(Error::new(Code::ADDRESS_UNAVAILABLE, "the address of the name has moved"));
        }
        Ok(())
    }

    /// The address of the attachment's name in each set where it has one; None if the blocks lack it.
    fn of_names(&self) -> impl Iterator<Item = Option<IpAddr>> {
        self.wish.sets().filter_map(|(number, set)| {
            let name = self.wish.name_in(number, set)?;
            Some(held_for(self.own.as_ref()?, name, set).map(|held| held.block.first()))
        })
    }

    /// The addresses to take where a set contains any: those requested, and those of the name.
    fn wanted(&self) -> Vec<IpAddr> {
        let requested = self.wish.conf.allocation.requested.iter().copied();
        requested.chain(self.of_names().flatten()).collect()
    }
}

impl<'w> Policy for HeldBlocks<'w> {
    /// The free ones only.
    fn candidates<'s>(
        &self,
        set: &'s RangeSet,
        last: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + use<'s, 'w> {
        let of_set = self.wish.spans_of(set);
        let free = self.own.as_ref().map(|own| free(own, &of_set, &self.taken, last));
        free.unwrap_or_default().into_iter()
    }

    fn allows(&self, ip: IpAddr) -> bool {
        let is_ours = |name: &String| self.wish.names.contains(name);
        let usable = self.own.iter().flat_map(Blocks::usable);
        let mut around = usable.filter(|held| held.block.contains(ip));
        around.any(|held| held.name.as_ref().is_none_or(is_ours)) && self.wish.allocates(ip)
    }
}

/// The block of a name in the set.
fn held_for<'b>(own: &'b Blocks, name: &str, set: &RangeSet) -> Option<&'b Held> {
    let is_of_name = |held: &&Held| held.name.as_deref() == Some(name);
    own.usable().filter(is_of_name).find(|held| set.contains(held.block.first()))
}

/// The free addresses of these spans that any attachment may get: those of the block with the most
/// leases first, so that other blocks become free; of equal ones in the order of a round robin that
/// continues after `last`.
pub fn free(
    own: &Blocks,
    spans: &[Span],
    taken: &HashSet<IpAddr>,
    last: Option<IpAddr>,
) -> Vec<IpAddr> {
    let mut blocks: Vec<(Reverse<usize>, bool, Vec<IpAddr>)> = vec![];
    for held in own.usable().filter(|held| held.name.is_none()) {
        let parts: Vec<Span> = spans.iter().filter_map(|span| span.within(held.block)).collect();
        let (leased, free): (Vec<_>, Vec<_>) =
            candidates(&parts, last).partition(|ip| taken.contains(ip));
        if let Some(first) = free.first() {
            let is_before = last.is_some_and(|last| *first <= last);
            blocks.push((Reverse(leased.len()), is_before, free));
        }
    }
    blocks.sort_unstable();
    blocks.into_iter().flat_map(|(_, _, free)| free).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::held::State;
    use super::super::store::Token;
    use super::*;

    fn held(block: &str, change: fn(&mut Held)) -> Held {
        let block = block.parse().unwrap();
        let (token, state) = (Token(1), State::Active);
        let mut held = Held { block, token, state, since: 0, contested: false, name: None };
        change(&mut held);
        held
    }

    fn order(blocks: Vec<Held>, spans: &[&str], taken: &[u8], last: Option<u8>) -> Vec<u8> {
        let ip = |last: u8| IpAddr::from([10, 1, 0, last]);
        let own = Blocks { blocks, ..Blocks::new("default".parse().unwrap(), vec![], 1) };
        let spans: Vec<Span> = spans.iter().map(|span| span.parse().unwrap()).collect();
        let taken = taken.iter().map(|last| ip(*last)).collect();
        let last_octet = |ip| match ip {
            IpAddr::V4(ip) => u32::from(ip) as u8,
            IpAddr::V6(_) => 0,
        };
        free(&own, &spans, &taken, last.map(ip)).into_iter().map(last_octet).collect()
    }

    #[test]
    fn the_fullest_block_comes_first_and_then_the_round_robin() {
        // 10.1.0.0/29, /29 and /29, without the first two and the last addresses.
        let blocks = ["4-0a010000-29", "4-0a010008-29", "4-0a010010-29"];
        let spans = ["10.1.0.5-10.1.0.10", "10.1.0.18-10.1.0.19"];
        for (taken, last, expected) in [
            (&[][..], None, &[5, 6, 7, 8, 9, 10, 18, 19][..]),
            (&[9], None, &[8, 10, 5, 6, 7, 18, 19]),
            (&[9, 18], None, &[8, 10, 19, 5, 6, 7]),
            (&[5, 7, 9], Some(18), &[6, 8, 10, 19, 18]),
            (&[], Some(6), &[7, 5, 6, 8, 9, 10, 18, 19]),
            (&[], Some(9), &[10, 8, 9, 18, 19, 5, 6, 7]),
            (&[], Some(19), &[5, 6, 7, 8, 9, 10, 18, 19]),
            (&[5, 6, 7, 8, 9, 10], Some(10), &[18, 19]),
        ] {
            let blocks = blocks.map(|block| held(block, |_| ())).to_vec();
            assert_eq!(order(blocks, &spans, taken, last), expected, "{taken:?} {last:?}");
        }
    }

    #[test]
    fn single_addresses_take_turns() {
        let blocks = || ["4-0a010004-32", "4-0a010002-32", "4-0a010003-32"];
        for (last, expected) in [(None, [2, 3, 4]), (Some(2), [3, 4, 2]), (Some(4), [2, 3, 4])] {
            let blocks = blocks().map(|block| held(block, |_| ())).to_vec();
            assert_eq!(order(blocks, &["10.1.0.2-10.1.0.9"], &[], last), expected, "{last:?}");
        }
    }

    #[test]
    fn blocks_that_may_be_another_nodes_give_no_address() {
        let blocks = vec![
            held("4-0a010002-32", |held| held.state = State::Settling),
            held("4-0a010003-32", |held| held.state = State::Lost),
            held("4-0a010004-32", |held| held.contested = true),
            held("4-0a010005-32", |held| held.name = Some("a".to_owned())),
            held("4-0a010006-32", |_| ()),
        ];
        assert_eq!(order(blocks, &["10.1.0.2-10.1.0.9"], &[], None), [6]);
    }
}
