//! The witnesses find planted leaks and losses, so their silence means something.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;

use super::calls::End;
use super::networks::{Able, Driver, usual};
use super::witness::{
    assert_is_attached, assert_leases_are_those_of_the_living, assert_names_are_those_of_the_living,
};
use super::world::{LO, Life, World};
use crate::support::call::Peer;
use crate::support::netns::Lab;
use crate::support::snapshot::Snapshot;

/// The command that plants a leak or a loss, and the command that reverts it.
const PLANTED: [(&str, &str); 8] = [
    ("printf 'life-999999\\r\\neth0' >10.13.0.60", "rm 10.13.0.60"),
    ("mv 10.13.0.2 10.13.0.3", "mv 10.13.0.3 10.13.0.2"),
    ("printf 'life-000001\\r\\neth1' >10.13.0.2", "printf 'life-000001\\r\\neth0' >10.13.0.2"),
    ("touch /run/cni/life-999999", "rm /run/cni/life-999999"),
    ("ip link add left type veth && ip link set left alias life-999999", "ip link del left"),
    ("nft 'add table inet left { comment \"life-999999\"; }'", "nft delete table inet left"),
    ("ip -n c2 link set eth0 down", "ip -n c2 link set eth0 up"),
    ("ip -n c2 addr del 10.13.0.2/26 dev eth0", "ip -n c2 addr add 10.13.0.2/26 dev eth0"),
];

#[test]
fn what_is_planted_is_found() {
    let lab = Lab::new(Peer::Ours);
    let able = Able { taps: false, limits: false, leases: false };
    let networks =
        usual(Driver::Plugins, &[], &able).into_iter().filter(|network| network.name == "bridge-1");
    let mut world = World::new(&lab, networks.collect(), LO);
    world.patience = 0;
    let container = world.container();
    assert_eq!(container.netns, "/run/netns/c2");
    let (id, ifname, netns) =
        ("life-000001".to_owned(), "eth0".to_owned(), container.netns.clone());
    let mut life = Life { network: 0, id, ifname, netns, capabilities: json!({}), result: None };
    let End::Whole(result) = world.add(&life, None) else { panic!("ADD failed") };
    life.result = Some(result);
    world.live(&life);

    let living = BTreeSet::from([life.id.clone()]);
    let look = || {
        assert_is_attached(&world, &container, &life, false);
        assert_leases_are_those_of_the_living(&world);
        assert_names_are_those_of_the_living(&world, &living);
    };
    look();
    let on_disk =
        |script: &str| lab.host.sh(&format!("cd /var/lib/cni/networks/bridge-1 && {script}"));
    for (plant, mend) in PLANTED {
        on_disk(plant);
        let found = catch_unwind(AssertUnwindSafe(look)).expect_err(plant);
        let text = found.downcast_ref::<String>().unwrap();
        assert!(text.contains("LEAKED") || text.contains("REMOVED"), "{plant}: {text}");
        on_disk(mend);
        look();
    }
    let other = Life { id: "life-000002".to_owned(), result: life.result.clone(), ..life };
    let found =
        catch_unwind(AssertUnwindSafe(|| world.live(&other))).expect_err("a double address");
    assert!(found.downcast_ref::<String>().unwrap().contains("DOUBLE"));
    assert!(!world.pristine.difference(&Snapshot::of(&container)).is_empty());
}
