//! The plugin of the model: ADD and DEL from files, and the requests of ADDs to the daemon.

use std::net::IpAddr;
use std::time::Duration;

use super::super::machine::{Event, Reply, Request, RequestId};
use super::node::{Add, Net, Node, addresses};
use super::wish::{Ask, Wish};
use super::world::World;
use crate::sys::clock::Moment;

/// How long an ADD waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the files have of it.
enum Found {
    Free(IpAddr),
    /// Another attachment or name of this node has it.
    Taken,
    Nothing,
}

impl Node {
    fn find(&self, wish: &Wish, now: Moment) -> Found {
        let net = &self.nets[wish.net];
        let or_taken = |ip: IpAddr, is_ours: bool| match is_ours && !net.leases.contains(&ip) {
            true => Found::Free(ip),
            false => Found::Taken,
        };
        match &wish.ask {
            Ask::Any => {
                let pool = &net.blocks.pools[wish.set];
                let plain = self.usable(wish.net, now).filter(|held| held.sticky.is_none());
                let mut all = plain.flat_map(|held| addresses(held.block));
                let free = all.find(|ip| pool.allocates(*ip) && !net.leases.contains(ip));
                free.map_or(Found::Nothing, Found::Free)
            }
            Ask::Address(ip) => {
                let held = self.usable(wish.net, now).find(|held| held.block.contains(*ip));
                held.map_or(Found::Nothing, |held| or_taken(*ip, held.sticky.is_none()))
            }
            Ask::Name(name) => {
                let pool = &net.blocks.names[wish.set];
                let mut named =
                    self.usable(wish.net, now).filter(|held| held.sticky.as_ref() == Some(name));
                let held = named.find(|held| pool.meets(held.block));
                held.map_or(Found::Nothing, |held| or_taken(held.block.first(), true))
            }
        }
    }
}

impl World {
    /// The plugin's ADD: it allocates from files, or asks the daemon.
    pub fn add(&mut self, node: usize, wish: Wish) {
        let until = self.now + PATIENCE;
        self.allocate(node, wish, until);
    }

    fn allocate(&mut self, node: usize, wish: Wish, until: Moment) {
        match self.nodes[node].find(&wish, self.now) {
            Found::Free(ip) => self.lease(node, &wish, ip),
            Found::Nothing if self.nodes[node].machine.is_some() && self.now < until => {
                self.ask(node, wish, until);
            }
            Found::Taken | Found::Nothing => self.denied += 1,
        }
    }

    fn lease(&mut self, node: usize, wish: &Wish, ip: IpAddr) {
        self.say(|| format!("n{node} ADD {ip} for {wish:?}"));
        let is_forgiven = self.forgiven.iter().any(|block| block.contains(ip));
        let place = (node, wish.net);
        if let Some(other) = self.held.insert(ip, place).filter(|_| !is_forgiven) {
            self.violate(|| format!("{ip} is held by {other:?} and by {place:?}"));
        }
        self.nodes[node].nets[wish.net].leases.insert(ip);
        self.served += 1;
        self.last_served = Some(ip);
        if let Ask::Name(name) = &wish.ask {
            let name = format!("{}/{name}", self.nodes[node].nets[wish.net].name);
            self.named.insert((name, ip));
        }
        self.tell_leases(node, wish.net);
    }

    /// Asks the daemon, after the plugin has written the network's file.
    fn ask(&mut self, node: usize, wish: Wish, until: Moment) {
        self.last += 1;
        let id = RequestId(self.last);
        self.say(|| format!("n{node} ADD waits, {id:?} for {wish:?}"));
        let net = &mut self.nodes[node].nets[wish.net];
        net.is_known = true;
        let (network, blocks) = (net.name.clone(), net.blocks.clone());
        let (address, name) = match &wish.ask {
            Ask::Any => (None, None),
            Ask::Address(ip) => (Some(*ip), None),
            Ask::Name(name) => (None, Some(name.clone())),
        };
        let (number, pool) = (wish.net, wish.set);
        self.nodes[node].adds.push(Add { request: id, wish, until });
        self.give(node, Event::Configured { network: network.clone(), blocks });
        self.tell_leases(node, number);
        self.give(node, Event::Exhausted(Request { id, network, pool, address, name, until }));
    }

    pub fn answer(&mut self, node: usize, request: RequestId, reply: &Reply) {
        let adds = &mut self.nodes[node].adds;
        let Some(place) = adds.iter().position(|add| add.request == request) else { return };
        let Add { wish, until, .. } = adds.remove(place);
        match reply {
            Reply::LookAgain => self.allocate(node, wish, until),
            _ => self.denied += 1,
        }
        self.elsewhere += u64::from(matches!(reply, Reply::Elsewhere(_)));
    }

    /// Tells the daemon of a network's leases as they are.
    pub fn tell_leases(&mut self, node: usize, net: usize) {
        let Net { name, leases, .. } = &self.nodes[node].nets[net];
        let event = Event::Leases { network: name.clone(), leases: leases.clone() };
        self.give(node, event);
    }

    /// The plugin's DEL.
    pub fn del(&mut self, node: usize, net: usize, ip: IpAddr) {
        if !self.nodes[node].nets[net].leases.remove(&ip) {
            return;
        }
        self.say(|| format!("n{node} DEL {ip}"));
        if self.held.get(&ip) == Some(&(node, net)) {
            self.held.remove(&ip);
        }
        if self.nodes[node].machine.is_some() {
            self.tell_leases(node, net);
        }
    }
}
