//! What must be true when the faults of a schedule stop.

use std::net::IpAddr;
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{Claimed, Versioned};
use super::super::held::{Blocks, State};
use super::super::machine::Event;
use super::super::pool::Pool;
use super::node::{Node, addresses};
use super::wish::{Ask, Wish, name_of};
use super::world::World;

/// The longest time until every daemon has met the store again and rests.
const QUIET: u32 = 120;

/// Waits until every daemon rests, or does not come to rest.
pub fn rest(world: &mut World) {
    for _ in 0..QUIET {
        world.run(Duration::from_secs(1));
        let rests = |node: &Node| node.machine.as_ref().is_none_or(|machine| machine.is_at_rest());
        if world.nodes.iter().all(rests) {
            break;
        }
    }
}

/// No block is used by two networks, not even after a restore that lost a claim.
pub fn require_no_overlap(world: &World) -> Result<(), String> {
    for (number, node) in world.nodes.iter().enumerate() {
        let twice = (0..node.nets.len()).find_map(|net| world.used_twice(number, net, &[]));
        twice.map_or(Ok(()), Err)?;
    }
    Ok(())
}

/// Ends the conflicts, as an operator does: by detaching what is in them.
fn end_conflicts(world: &mut World) {
    let mut is_any = false;
    for (node, net) in places(world) {
        let net_now = &world.nodes[node].nets[net];
        let bad = net_now.blocks.blocks.iter();
        let bad = bad.filter(|held| matches!(held.state, State::Conflict | State::Lost));
        let bad: Vec<Block> = bad.map(|held| held.block).collect();
        is_any |= !bad.is_empty();
        let leases = net_now.leases.clone();
        for ip in leases.into_iter().filter(|ip| bad.iter().any(|block| block.contains(*ip))) {
            world.del(node, net, ip);
        }
    }
    if is_any {
        world.run(Duration::from_secs(60));
    }
}

fn places(world: &World) -> Vec<(usize, usize)> {
    let of_node = |node: usize| (0..world.nodes[node].nets.len()).map(move |net| (node, net));
    (0..world.nodes.len()).flat_map(of_node).collect()
}

/// One node can get every address that is free, and the name of each that has one.
pub fn require_reachable(world: &mut World) -> Result<(), String> {
    end_conflicts(world);
    let node = world.below(world.nodes.len() as u64) as usize;
    let net = world.below(world.nodes[node].nets.len() as u64) as usize;
    require_names_again(world, node, net)?;
    let Blocks { pools, names, .. } = world.nodes[node].nets[net].blocks.clone();
    for (set, pool) in pools.iter().enumerate() {
        for _ in 0..free_in(world, pool, true) {
            require_address(world, node, Wish { net, set, ask: Ask::Any })?;
        }
    }
    for (set, pool) in names.iter().enumerate() {
        for number in 0..free_in(world, pool, false) {
            let ask = Ask::Name(name_of(set, &format!("new-{number}")));
            require_address(world, node, Wish { net, set, ask })?;
        }
    }
    Ok(())
}

/// How many addresses of a pool have no lease; for any attachment, those of names are none.
fn free_in(world: &World, pool: &Pool, is_for_any: bool) -> usize {
    let all = (0..pool.count()).filter_map(|place| pool.block(place)).flat_map(addresses);
    let is_named = |ip: &IpAddr| {
        let named = |(block, key): (&Block, &Versioned<_>)| is_sticky(key) && block.contains(*ip);
        is_for_any && world.store.blocks.iter().any(named)
    };
    let free = all.filter(|ip| pool.allocates(*ip) && !is_leased(world, *ip));
    free.filter(|ip| !is_named(ip)).count()
}

/// Whether any attachment has the address. After a restore two may have, of which one was detached.
fn is_leased(world: &World, ip: IpAddr) -> bool {
    world.nodes.iter().flat_map(|node| &node.nets).any(|net| net.leases.contains(&ip))
}

fn is_sticky(key: &Versioned<Claimed>) -> bool {
    key.value.sticky.is_some()
}

/// On every node, a name gets the address again that its last attachment had. If the store executed a claim
/// after the daemon had ended, no attachment ever had the address, and the daemon may release the key.
fn require_names_again(world: &mut World, node: usize, net: usize) -> Result<(), String> {
    let own = &world.nodes[node].nets[net];
    let prefix = format!("{}/", own.name);
    let names = own.blocks.names.clone();
    let idle_name = |(block, key): (&Block, &Versioned<Claimed>)| {
        let (name, ip) = (key.value.sticky.as_ref()?, block.first());
        let is_idle = world.named.contains(&(name.clone(), ip)) && !is_leased(world, ip);
        Some((*block, name.strip_prefix(&prefix)?.to_owned())).filter(|_| is_idle)
    };
    let idle: Vec<(Block, String)> = world.store.blocks.iter().filter_map(idle_name).collect();
    for (block, name) in idle {
        let Some(set) = names.iter().position(|pool| pool.meets(block)) else { continue };
        require_address(world, node, Wish { net, set, ask: Ask::Name(name.clone()) })?;
        if world.last_served != Some(block.first()) {
            return Err(format!("{name} got {:?} instead of {block}", world.last_served));
        }
    }
    Ok(())
}

/// Adds until an ADD gets the address, for ten seconds. The node of a name that has sent no heartbeat
/// yet counts as gone, and the ADD fails with code 11 before the node reads the want: then the runtime
/// tries again.
fn require_address(world: &mut World, node: usize, wish: Wish) -> Result<(), String> {
    let (served, mut elsewhere) = (world.served, world.elsewhere);
    world.add(node, wish.clone());
    for _ in 0..100 {
        if world.served > served || world.violation.is_some() {
            break;
        }
        if world.elsewhere > elsewhere {
            elsewhere = world.elsewhere;
            world.add(node, wish.clone());
        }
        world.run(Duration::from_millis(100));
    }
    world.verdict()?;
    if world.served > served { Ok(()) } else { Err(format!("n{node} does not get {wish:?}")) }
}

/// After the last DEL and without pools, neither the store nor a disk has anything of the networks.
pub fn require_nothing_left(world: &mut World) -> Result<(), String> {
    for node in 0..world.nodes.len() {
        for net in 0..world.nodes[node].nets.len() {
            let leases = world.nodes[node].nets[net].leases.clone();
            leases.into_iter().for_each(|ip| world.del(node, net, ip));
        }
        world.crash(node);
        world.start(node);
        for net in 0..world.nodes[node].nets.len() {
            let none = Blocks::new(world.realm.clone(), vec![], 0);
            let network = world.nodes[node].nets[net].name.clone();
            world.give(node, Event::Configured { network, blocks: none });
        }
    }
    world.run(Duration::from_secs(420));
    world.verdict()?;
    let on_disks: usize =
        world.nodes.iter().flat_map(|node| &node.nets).map(|net| net.blocks.blocks.len()).sum();
    let store = &world.store;
    if !store.blocks.is_empty()
        || !store.names.is_empty()
        || on_disks > 0
        || !store.notes.is_empty()
    {
        return Err(format!(
            "the store still has {:?} and {:?}, disks have {on_disks}, notes: {:?}",
            store.blocks, store.names, store.notes
        ));
    }
    Ok(())
}
