//! What must be true after each step, and how a trace shows it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::held::Held;
use super::super::store::{Key, Value};
use super::world::{World, ms};

impl World {
    /// Whether the promise does not hold between two machines.
    fn is_excluded(&self, one: usize, other: usize) -> bool {
        let is_rough = self.restores > 0 && self.faults.outage.is_none();
        let is_quiet = self.quiet_since.checked_add(ms(100_000)).is_some_and(|at| self.now >= at);
        let is_resumed =
            self.faults.resumes && (self.nodes[one].is_odd || self.nodes[other].is_odd);
        is_rough && !is_quiet || is_resumed
    }

    /// No address is leased twice, and no block is used twice or without its key.
    pub fn check(&mut self) {
        let takes = |node: &super::node::Node| !node.before.is_empty() && !node.taken.is_empty();
        if self.nodes.iter().filter(|node| takes(node)).count() > 1 {
            return self.fail("I8 a machine and its resumed copy both take new blocks".to_owned());
        }
        let mut seen: BTreeMap<IpAddr, usize> = BTreeMap::new();
        let is_rough = self.restores > 0 && self.faults.outage.is_none();
        for (number, node) in self.nodes.iter().enumerate() {
            for ip in node.alive.values() {
                let before = seen.insert(*ip, number);
                // What was leased twice in a rough restore stays so; `ipam join` takes what it finds.
                let is_promised = !is_rough && !self.joined.contains(ip);
                if is_promised && before.is_some_and(|before| !self.is_excluded(before, number)) {
                    return self.fail(format!("I1 {ip} is leased twice"));
                }
            }
        }
        let mut usable: Vec<(usize, Held)> = vec![];
        for (number, node) in self.nodes.iter().enumerate() {
            usable.extend(node.usable().into_iter().map(|(_, held)| (number, held)));
        }
        for (place, (number, held)) in usable.iter().enumerate() {
            for (before, other) in &usable[..place] {
                if held.block.overlaps(other.block) && !self.is_excluded(*before, *number) {
                    let (one, two) = (held.block.prefix(), other.block.prefix());
                    let what = format!("I2 {one} of n{number} and {two} of n{before} are usable");
                    return self.fail(what);
                }
            }
        }
        let may_lack_keys = self.restores > 0
            || self.faults.other_store
            || self.faults.resumes
            || self.faults.hasty_reclaims;
        if may_lack_keys {
            return;
        }
        let lacking = usable.iter().find(|(_, held)| {
            let key = Key::Block("default".parse().unwrap(), held.block);
            match self.store.0.get(&key).map(|stored| &stored.record.value) {
                Some(Value::Claim(claim)) => claim.token != held.token,
                _ => true,
            }
        });
        if let Some((number, held)) = lacking {
            self.fail(format!("I3 {} of n{number} is usable without its key", held.block.prefix()));
        }
    }
}

/// A value as one line of a trace, without what does not matter there.
pub fn short(value: &dyn std::fmt::Debug) -> String {
    let mut text = format!("{value:?}");
    let noise = [
        ("NetworkName", ""),
        ("Name(\"default\")", "default"),
        ("Record { key: ", ""),
        ("Stored { record: ", ""),
        ("is_v6: false, network: 167772", ""),
        (", length: ", "/"),
        ("Block { ", "{"),
        ("version: \"0.1.0\", trusts_reboot: false, mark: None, ended: false", ""),
        ("taken: None, ", ""),
        ("contested: false, ", ""),
        ("version: Version", "v"),
        ("name: None", ""),
        ("NodeRecord", ""),
        ("value: ", ""),
        ("since: 1800000", ""),
    ];
    for (from, to) in noise {
        text = text.replace(from, to);
    }
    let mut parts = text.split("Token(");
    let mut line = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_once(')').unwrap_or((part, ""));
        line += &format!("T{}{rest}", &digits[digits.len().saturating_sub(4)..]);
    }
    line
}
