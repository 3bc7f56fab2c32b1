//! A worker that attaches and detaches its own containers beside the other workers.

use std::sync::atomic::Ordering;

use serde_json::Value;

use super::calls::{End, Event, Fault, Manner};
use super::chance::Chance;
use super::networks::Driver;
use super::witness::{assert_is_attached, assert_is_pristine};
use super::world::{Life, World};
use crate::support::attachment::ips;
use crate::support::netns::Container;

/// The maximum number of containers of a worker, and of attachments of a container.
const CONTAINERS: usize = 2;
const INTERFACES: usize = 3;

/// A container and its attachments.
pub struct Place {
    pub container: Container,
    pub id: String,
    pub lives: Vec<Life>,
    /// The number of interfaces created so far.
    interfaces: usize,
}

pub struct Worker<'a> {
    world: &'a World<'a>,
    number: usize,
    driver: Driver,
    chance: Chance,
    pub places: Vec<Place>,
    /// The number of attachments begun so far.
    begun: usize,
}

impl<'a> Worker<'a> {
    pub fn new(world: &'a World<'a>, seed: u64, number: usize, driver: Driver) -> Worker<'a> {
        let chance = Chance::new(seed, number);
        Worker { world, number, driver, chance, places: vec![], begun: 0 }
    }

    /// Runs until `until` attachments have been begun.
    pub fn go_on(&mut self, until: usize) {
        while self.begun < until && !self.world.is_stopped() {
            match self.chance.below(20) {
                0..10 => self.begin_one(),
                10..13 => self.look_at_one(),
                13..19 => self.end_one(),
                _ if self.world.collects() => self.collect(),
                _ => self.look_at_one(),
            }
        }
    }

    /// Ends all attachments and containers.
    pub fn end_all(&mut self) {
        while let Some(place) = self.places.last()
            && !self.world.is_stopped()
        {
            if place.lives.is_empty() {
                assert_is_pristine(self.world, &place.container, &place.id);
                place.container.vanish();
                self.places.pop();
            } else {
                self.end_one();
            }
        }
    }

    fn tell(&self, life: &Life, what: &str) {
        let network = &self.world.network(life).name;
        let Life { id, ifname, .. } = life;
        self.world.tell(format!("worker {}: {what} {network} {id} {ifname}", self.number));
    }

    fn begin_one(&mut self) {
        let Some(at) = self.room() else { return self.end_one() };
        let Some(life) = self.conceive(at) else { return self.end_one() };
        self.begun += 1;
        self.world.expect(&life);
        match self.chance.below(100) {
            0..15 => self.add_killed(at, life),
            15..20 if self.places[at].lives.is_empty() => self.add_while_it_vanishes(at, life),
            _ => self.add(at, life),
        }
    }

    /// The index of a random container if it has room. May create a container.
    fn room(&mut self) -> Option<usize> {
        if self.places.len() < CONTAINERS && self.chance.one_in(3) || self.places.is_empty() {
            let id = format!("life-{:06}", self.world.made.fetch_add(1, Ordering::Relaxed));
            let container = self.world.container();
            self.places.push(Place { container, id, lives: vec![], interfaces: 0 });
        }
        let at = self.chance.below(self.places.len());
        (self.places[at].lives.len() < INTERFACES).then_some(at)
    }

    /// A random attachment that the container can have in addition to its others.
    fn conceive(&mut self, at: usize) -> Option<Life> {
        let place = &self.places[at];
        let networks = &self.world.networks;
        let has_main = place.lives.iter().any(|life| networks[life.network].is_main);
        let all = self.places.iter().flat_map(|place| &place.lives);
        let own: Vec<usize> = all.map(|life| life.network).collect();
        let is_taken = |number: usize| networks[number].worker.is_some() && own.contains(&number);
        let fits = |number: &usize| {
            let network = &networks[*number];
            network.driver == self.driver
                && network.worker.is_none_or(|worker| worker == self.number)
                && !(has_main && network.is_main)
                && !is_taken(*number)
                && place.lives.iter().all(|life| life.network != *number)
        };
        let fitting: Vec<usize> = (0..networks.len()).filter(fits).collect();
        let network = *fitting.get(self.chance.below(fitting.len().max(1)))?;
        let next = || format!("eth{}", place.interfaces);
        let ifname = networks[network].ifname.map_or_else(next, str::to_owned);
        let (id, netns) = (place.id.clone(), place.container.netns.clone());
        let capabilities = networks[network].capabilities(self.number, self.begun);
        networks[network].make_ready(self.world.lab);
        self.places[at].interfaces += 1;
        Some(Life { network, id, ifname, netns, capabilities, result: None })
    }

    /// At one of the calls of this network.
    fn a_fault<'e>(&mut self, event: Event<'e>, network: usize) -> Fault<'e> {
        let at = self.chance.below(self.world.networks[network].plugins.len());
        Fault { event, at, moment: 1.1 * self.chance.fraction() }
    }

    fn add(&mut self, at: usize, life: Life) {
        self.tell(&life, "ADD");
        match self.world.add(&life, None) {
            End::Whole(result) => self.is_born(at, life, result),
            end => panic!("ADD of {} failed: {end:?}", life.id),
        }
    }

    fn is_born(&mut self, at: usize, mut life: Life, result: Value) {
        life.result = Some(result);
        let ips = life.result.as_ref().filter(|result| result["ips"].is_array()).map(ips);
        self.tell(&life, &format!("lives with {ips:?}:"));
        self.world.live(&life);
        self.world.tally.count("attachments");
        self.places[at].lives.push(life);
    }

    fn add_killed(&mut self, at: usize, life: Life) {
        let fault = self.a_fault(Event::Kill, life.network);
        let when = format!("at plugin {} after {:.2} of it,", fault.at, fault.moment);
        self.tell(&life, &format!("ADD, killed {when}"));
        match self.world.add(&life, Some(fault)) {
            End::Whole(result) => self.is_born(at, life, result), // it ended before the kill
            End::Killed => self.after_the_kill(at, life),
            end @ End::Failed(_) => panic!("ADD of {} failed: {end:?}", life.id),
        }
    }

    fn after_the_kill(&mut self, at: usize, life: Life) {
        match self.chance.below(5) {
            0 => self.del(&life, true),
            1 | 2 => {
                self.del(&life, true);
                self.world.expect(&life);
                self.add(at, life);
            }
            3 => {
                self.tell(&life, "ADD again, without a DEL,");
                match self.world.add(&life, None) {
                    End::Whole(result) => {
                        self.world.tally.count("ADDs that go on after a killed one");
                        self.is_born(at, life, result);
                    }
                    End::Failed(_) => {
                        self.world.tally.count("ADDs that are refused after a killed one");
                        self.del(&life, true);
                        self.world.expect(&life);
                        self.add(at, life);
                    }
                    End::Killed => panic!("nobody killed it"),
                }
            }
            _ => {
                self.places[at].lives.push(life);
                self.vanish(at);
            }
        }
    }

    fn add_while_it_vanishes(&mut self, at: usize, mut life: Life) {
        let place = self.places.remove(at);
        let fault = self.a_fault(Event::Vanish(&place.container), life.network);
        let when = format!("at plugin {} after {:.2} of it,", fault.at, fault.moment);
        self.tell(&life, &format!("ADD, namespace gone {when}"));
        match self.world.add(&life, Some(fault)) {
            End::Whole(result) => life.result = Some(result),
            End::Failed(_) => self.world.tally.count("ADDs that fail for want of their namespace"),
            End::Killed => panic!("nobody killed it"),
        }
        self.del_or_abandon(life);
    }

    fn look_at_one(&mut self) {
        let by_packets = self.chance.one_in(3);
        let (at, number) = (self.chance.below(CONTAINERS), self.chance.below(INTERFACES));
        if let Some(place) = self.places.get(at)
            && let Some(life) = place.lives.get(number)
        {
            self.look_at(place, life, by_packets);
        }
    }

    /// Asserts what CHECK says and what the kernel says.
    pub fn look_at(&self, place: &Place, life: &Life, by_packets: bool) {
        self.tell(life, "CHECK");
        self.world.tally.count("CHECKs");
        match self.world.check(life) {
            End::Whole(Value::Null) => (),
            end => panic!("REMOVED, by CHECK of {} {}: {end:?}", life.id, life.ifname),
        }
        assert_is_attached(self.world, &place.container, life, by_packets);
    }

    fn end_one(&mut self) {
        if self.places.is_empty() {
            return;
        }
        let at = self.chance.below(self.places.len());
        if self.chance.one_in(6) {
            return self.vanish(at);
        }
        if self.places[at].lives.is_empty() {
            return;
        }
        let number = self.chance.below(self.places[at].lives.len());
        let life = self.places[at].lives.remove(number);
        self.del(&life, true);
        if self.places[at].lives.is_empty() && self.chance.one_in(4) {
            assert_is_pristine(self.world, &self.places[at].container, &self.places[at].id);
        }
    }

    /// Deletes the container with its namespace; its attachments are deleted afterwards.
    fn vanish(&mut self, at: usize) {
        let mut place = self.places.remove(at);
        place.lives.iter().for_each(|life| self.world.release(life));
        self.world.tell(format!("worker {}: {} vanishes", self.number, place.id));
        self.world.tally.count("vanished namespaces");
        match self.chance.below(4) {
            // `cni-multi net gc` keeps a namespace as long as its path exists.
            0 if self.driver == Driver::Plugins => place.container.go_stale(),
            _ => place.container.vanish(),
        }
        self.chance.shuffle(&mut place.lives);
        place.lives.into_iter().for_each(|life| self.del_or_abandon(life));
    }

    fn del_or_abandon(&mut self, life: Life) {
        if self.chance.one_in(2) && self.world.may_abandon(&life) {
            self.tell(&life, "left to GC:");
            self.world.tally.count("attachments left to GC");
            self.world.forget(&life);
        } else {
            if self.chance.one_in(2) {
                self.world.forget(&life); // a GC may clean up first
            }
            self.del(&life, false);
        }
    }

    fn manner(&mut self, life: &Life, is_there: bool) -> Manner {
        let mut order: Vec<usize> = (0..self.world.network(life).plugins.len()).rev().collect();
        if order.len() > 1 && self.chance.one_in(4) {
            self.chance.shuffle(&mut order);
            self.world.tally.count("DELs in any order");
        }
        let has_result = life.result.is_some() && !self.chance.one_in(3);
        let has_netns = is_there || self.chance.one_in(2);
        if !has_result {
            self.world.tally.count("DELs without a result");
        }
        Manner { order, has_result, has_netns }
    }

    /// DEL, possibly killed or repeated, until it succeeds.
    fn del(&mut self, life: &Life, is_there: bool) {
        self.world.release(life);
        let times = if self.chance.one_in(4) { 2 } else { 1 };
        let mut fault = self.chance.one_in(6).then(|| self.a_fault(Event::Kill, life.network));
        for time in 0..times {
            loop {
                let manner = self.manner(life, is_there);
                let (Manner { order, has_result, .. }, at) =
                    (&manner, fault.map(|fault| (fault.at, fault.moment)));
                self.tell(
                    life,
                    &format!("DEL {order:?}, killed at {at:.2?}, result {has_result},"),
                );
                match self.world.del(life, &manner, fault.take()) {
                    End::Whole(Value::Null) => break,
                    End::Killed => (),
                    end => panic!("DEL of {} {} failed: {end:?}", life.id, life.ifname),
                }
            }
            self.world.tally.count(if time == 0 { "DELs" } else { "repeated DELs" });
        }
        self.world.forget(life);
    }

    fn collect(&mut self) {
        let own = |number: &usize| {
            let network = &self.world.networks[*number];
            network.driver == self.driver
                && network.worker.is_none_or(|worker| worker == self.number)
        };
        let networks: Vec<usize> = (0..self.world.networks.len()).filter(own).collect();
        let network = networks[self.chance.below(networks.len())];
        let fault = self.chance.one_in(5).then(|| self.a_fault(Event::Kill, network));
        self.world.tally.count("GCs");
        match self.world.gc(network, fault) {
            End::Whole(_) => self.world.collected(network),
            End::Killed => (),
            end @ End::Failed(_) => panic!("GC failed: {end:?}"),
        }
    }
}
