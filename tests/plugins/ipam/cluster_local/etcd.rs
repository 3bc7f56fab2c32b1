//! The engine's operations on a real etcd.

use cni_multi::plugins::ipam::cluster_local::block::Block;
use cni_multi::plugins::ipam::cluster_local::engine::{
    Answer, Change, Claimed, ConflictNote, Found, Ground, Identity, Name, NodeRecord, NodeState,
    Operation, Outcome, PoolNote, RealmState, Rival, Seen, Standing, Versioned, Want,
};
use cni_multi::plugins::ipam::cluster_local::etcd::client::{Event, Inspection};
use cni_multi::plugins::ipam::cluster_local::held::Token;
use cni_multi::sys::clock::since_boot;

use crate::support::etcd::{Driver, Etcd, ONE};

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn realm() -> Name {
    name("default")
}

pub fn block(text: &str) -> Block {
    text.parse().unwrap()
}

pub fn claimed(node: &str, token: u128) -> Claimed {
    let owner = Identity { node: name(node), uid: Token(7), incarnation: 1 };
    Claimed { owner, token: Token(token), sticky: None, vacant: false }
}

fn record(incarnation: u64) -> NodeRecord {
    let (uid, standing) = (Token(7), Standing::Live);
    NodeRecord { uid, incarnation, standing, version: "0.1.0".into(), reclaim_after: None }
}

/// A node with its record: the ground of its writes.
pub fn register(driver: &mut Driver, node: &str) -> Ground {
    let operation = Operation::Register { node: name(node), record: record(1), seen: 0 };
    Ground { node_revision: written(&driver.run(operation)), epoch: 0 }
}

pub fn claim(node: &str, at: &str, ground: Ground) -> Operation {
    Operation::Claim { realm: realm(), block: block(at), claimed: claimed(node, 1), ground }
}

/// The revision of a write that was done.
#[track_caller]
pub fn written(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Done { revision, answer: Answer::Written } => *revision,
        other => panic!("not written: {other:?}"),
    }
}

#[track_caller]
pub fn rival(outcome: Outcome) -> Rival {
    match outcome {
        Outcome::Lost { rival, .. } => *rival,
        other => panic!("not lost: {other:?}"),
    }
}

#[track_caller]
pub fn realm_state(outcome: Outcome) -> (u64, RealmState) {
    match outcome {
        Outcome::Done { revision, answer: Answer::Realm(state) } => (revision, state),
        other => panic!("no list: {other:?}"),
    }
}

#[track_caller]
pub fn node_state(outcome: Outcome) -> NodeState {
    match outcome {
        Outcome::Done { answer: Answer::Node(state), .. } => state,
        other => panic!("no node: {other:?}"),
    }
}

fn list(driver: &mut Driver) -> RealmState {
    realm_state(driver.run(Operation::List { realm: realm() })).1
}

fn names(found: &[Found]) -> Vec<String> {
    found.iter().map(|found| found.block.to_string()).collect()
}

#[test]
fn a_block_is_claimed_split_and_released() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let ground = register(&mut driver, "n1");
        let revision = written(&driver.run(claim("n1", "4-0a580100-26", ground)));
        let whole =
            Found { block: block("4-0a580100-26"), claimed: Some(claimed("n1", 1)), revision };
        assert_eq!(list(&mut driver).blocks, [whole]);

        let seen =
            |at: &str, revision| Seen { block: block(at), claimed: claimed("n1", 1), revision };
        let kept = vec![block("4-0a580100-28"), block("4-0a580120-27")];
        let replace = |seen| Operation::Replace {
            realm: realm(),
            seen,
            kept: kept.clone(),
            claimed: claimed("n1", 1),
            ground,
        };
        let stale = rival(driver.run(replace(seen("4-0a580100-26", revision - 1))));
        assert_eq!(names(&stale.blocks), ["4-0a580100-26"]);
        let split = written(&driver.run(replace(seen("4-0a580100-26", revision))));
        assert_eq!(names(&list(&mut driver).blocks), ["4-0a580100-28", "4-0a580120-27"]);

        let release = |seen| Operation::Release { realm: realm(), seen };
        let other = Seen { claimed: claimed("n1", 2), ..seen("4-0a580100-28", split) };
        rival(driver.run(release(other)));
        written(&driver.run(release(seen("4-0a580100-28", split))));
        rival(driver.run(release(seen("4-0a580100-28", split))));
        assert_eq!(names(&list(&mut driver).blocks), ["4-0a580120-27"]);
    });
}

#[test]
fn blocks_that_overlap_exclude_each_other() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let ground = register(&mut driver, "n1");
        written(&driver.run(claim("n1", "4-0a580140-26", ground)));
        for (other, overlaps) in [
            ("4-0a580140-26", true),
            ("4-0a580100-24", true),
            ("4-0a580100-25", true),
            ("4-0a000000-08", true),
            ("4-0a580150-28", true),
            ("4-0a58017f-32", true),
            ("4-0a580180-26", false),
            ("4-0a580100-26", false),
            ("4-0a58013f-32", true),
            ("6-0000000000000000000000000a580140-122", false),
            ("6-0000000000000000000000000a58017f-128", true),
        ] {
            let outcome = driver.run(claim("n1", other, ground));
            match overlaps {
                false => assert!(written(&outcome) > 0, "{other}"),
                true => assert!(
                    rival(outcome).blocks.iter().all(|it| it.block.overlaps(block(other))),
                    "{other}"
                ),
            }
            let read = driver.run(Operation::ReadBlock { realm: realm(), block: block(other) });
            let found = realm_state(read).1.blocks;
            assert!(
                !found.is_empty() && found.iter().all(|it| it.block.overlaps(block(other))),
                "{other}"
            );
        }
    });
}

#[test]
fn of_two_claimers_exactly_one_wins() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut drivers = [Driver::of(&[ONE]), Driver::of(&[ONE])];
        let nodes = ["n1", "n2"];
        let grounds: Vec<Ground> =
            drivers.iter_mut().zip(nodes).map(|(driver, node)| register(driver, node)).collect();
        for number in 0..60 {
            // The second one wants all of the block, a half of it or twice of it.
            let first = format!("4-0a58{number:02x}40-26");
            let second = ["40-26", "60-27", "00-25"].map(|it| format!("4-0a58{number:02x}{it}"))
                [number % 3]
                .clone();
            let ids = [
                drivers[0].submit(claim(nodes[0], &first, grounds[0])),
                drivers[1].submit(claim(nodes[1], &second, grounds[1])),
            ];
            let won = [0, 1].map(|it| matches!(drivers[it].outcome(ids[it]), Outcome::Done { .. }));
            assert!(won[0] != won[1], "{first} and {second}: {won:?}");
        }
    });
}

#[test]
fn a_fenced_node_and_one_of_another_epoch_claim_nothing() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let ground = register(&mut driver, "n1");
        let state = node_state(driver.run(Operation::ReadNode { node: name("n1") }));
        assert_eq!((state.epoch, state.alive), (0, None));
        let seen = state.record.unwrap();
        assert_eq!(seen, Versioned { value: record(1), revision: ground.node_revision });

        written(&driver.run(Operation::Recover { seen: 0 }));
        rival(driver.run(Operation::Recover { seen: 0 }));
        assert_eq!(rival(driver.run(claim("n1", "4-0a580100-26", ground))).node.epoch, 1);
        let ground = Ground { epoch: 1, ..ground };
        written(&driver.run(claim("n1", "4-0a580100-26", ground)));

        written(&driver.run(Operation::Fence { node: name("n1"), seen: seen.clone() }));
        rival(driver.run(Operation::Fence { node: name("n1"), seen }));
        let lost = rival(driver.run(claim("n1", "4-0a580140-26", ground)));
        let fenced = lost.node.record.unwrap();
        assert_eq!((fenced.value.standing, fenced.value.incarnation), (Standing::Fenced, 2));
        assert_eq!(names(&lost.blocks), [""; 0]);
    });
}

#[test]
fn a_heartbeat_lasts_as_long_as_it_is_kept() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let ground = register(&mut driver, "n1");
        let beat = |lease, node_revision| Operation::Heartbeat {
            node: name("n1"),
            boot: "boot-1".into(),
            lease,
            ttl: 60,
            node_revision,
        };
        rival(driver.run(beat(None, ground.node_revision + 5)));
        let first = driver.run(beat(None, ground.node_revision));
        let Outcome::Done { answer: Answer::Lease(lease), .. } = first else { panic!("{first:?}") };
        let kept = driver.run(beat(Some(lease), ground.node_revision));
        assert!(
            matches!(kept, Outcome::Done { answer: Answer::Lease(same), .. } if same == lease),
            "{kept:?}"
        );
        let state = node_state(driver.run(Operation::ReadNode { node: name("n1") }));
        assert_eq!(state.alive.as_deref(), Some("boot-1"));
        let fence = Operation::Fence { node: name("n1"), seen: state.record.unwrap() };
        assert_eq!(rival(driver.run(fence)).node.alive.as_deref(), Some("boot-1"), "it is alive");

        etcd.members[0].ctl(&format!("lease revoke {:x}", lease.0));
        assert_eq!(rival(driver.run(beat(Some(lease), ground.node_revision))).node.alive, None);
    });
}

#[test]
fn notes_and_wants_are_written_and_deleted() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let wanted =
            Want { count: 2, spans: vec!["10.1.0.1-10.1.0.9".parse().unwrap()], names: vec![] };
        let want = |want| Operation::Want { realm: realm(), node: name("n1"), want, ttl: 30 };
        written(&driver.run(want(Some(wanted.clone()))));
        assert_eq!(list(&mut driver).wants, [(name("n1"), wanted)]);
        assert!(etcd.members[0].ctl("lease list").contains("found 1 leases"));
        written(&driver.run(want(None)));
        assert_eq!(list(&mut driver).wants, []);

        let note = PoolNote { by: name("n1"), network: "a".into(), spans: vec![], length: 26 };
        let pool =
            || Operation::NotePool { realm: realm(), hash: "abc".into(), note: note.clone() };
        written(&driver.run(pool()));
        rival(driver.run(pool()));
        let by = claimed("n1", 1).owner;
        let conflict =
            |note| Operation::NoteConflict { realm: realm(), block: block("4-0a580100-26"), note };
        let told = ConflictNote { by, leases: 3 };
        written(&driver.run(conflict(Some(told.clone()))));
        let noted = vec![(block("4-0a580100-26"), told)];
        assert_eq!(list(&mut driver).notes, noted);
        for (at, notes) in
            [("4-0a580101-32", noted.clone()), ("4-0a580000-16", noted), ("4-0a580140-26", vec![])]
        {
            let read = driver.run(Operation::ReadBlock { realm: realm(), block: block(at) });
            assert_eq!(realm_state(read).1.notes, notes, "{at}");
        }
        let keys = "get --prefix --keys-only /cni-multi/v1/test/r/default/x/";
        assert!(etcd.members[0].ctl(keys).contains("x/4-0a580100-26"));
        written(&driver.run(conflict(None)));
        assert_eq!(etcd.members[0].ctl(keys).trim(), "");
    });
}

#[test]
fn a_sticky_address_changes_hands_by_its_key() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let grounds = [register(&mut driver, "n1"), register(&mut driver, "n2")];
        let sticky = |node, vacant| Claimed {
            sticky: Some("ns/pod/eth0".into()),
            vacant,
            ..claimed(node, 1)
        };
        let at = block("4-0a58ff07-32");
        let claim =
            |claimed, ground| Operation::Claim { realm: realm(), block: at, claimed, ground };
        let hold = |from, revision, to: Claimed, ground| {
            let seen = Seen { block: at, claimed: from, revision };
            Operation::Hold { realm: realm(), seen, claimed: to, ground }
        };
        let revision = written(&driver.run(claim(sticky("n1", false), grounds[0])));
        let vacated = written(&driver.run(hold(
            sticky("n1", false),
            revision,
            sticky("n1", true),
            grounds[0],
        )));
        let lost = driver.run(hold(sticky("n1", false), revision, sticky("n2", false), grounds[1]));
        assert_eq!(rival(lost).blocks[0].claimed, Some(sticky("n1", true)));
        written(&driver.run(hold(sticky("n1", true), vacated, sticky("n2", false), grounds[1])));
        let found = list(&mut driver).blocks;
        assert_eq!(found[0].claimed, Some(sticky("n2", false)));
        let other = block("4-0a58ff08-32");
        let (claimed, ground) = (sticky("n1", false), grounds[0]);
        let claim = Operation::Claim { realm: realm(), block: other, claimed, ground };
        assert_eq!(rival(driver.run(claim.clone())).named, Some(at), "a name has one address");
        let (claimed, revision) = (sticky("n2", false), found[0].revision);
        let renamed = Claimed { sticky: Some("ns/other/eth0".into()), ..claimed.clone() };
        let renaming = written(&driver.run(hold(claimed, revision, renamed.clone(), grounds[1])));
        written(&driver.run(claim));
        let seen = Seen { block: at, claimed: renamed, revision: renaming };
        written(&driver.run(Operation::Release { realm: realm(), seen }));
        let keys = etcd.members[0].ctl("get --prefix /cni-multi/v1/test/r/default/s/");
        assert_eq!(keys.trim(), "/cni-multi/v1/test/r/default/s/ns/pod/eth0\n\"4-0a58ff08-32\"");
    });
}

/// 3500 keys are four pages.
#[test]
fn a_list_of_many_pages_is_of_one_revision() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let puts: Vec<String> = (0..3500)
            .map(|number| format!("put /cni-multi/v1/test/r/default/b/4-0a{number:04x}00-24 x"))
            .collect();
        // A transaction has room for 128.
        for some in puts.chunks(120) {
            let script = format!("\n{}\n\n\n", some.join("\n"));
            std::fs::write(etcd.scratch.join("txn"), script).unwrap();
            etcd.members[0].ctl(&format!("txn < {}", etcd.scratch.join("txn").display()));
        }
        let listing = driver.submit(Operation::List { realm: realm() });
        etcd.members[0].ctl("put /cni-multi/v1/test/r/default/b/4-0a0dac00-24 late");
        let (revision, state) = realm_state(driver.outcome(listing));
        assert!(state.blocks.iter().all(|found| found.revision <= revision));
        assert!(state.blocks.is_sorted_by_key(|found| found.block));
        assert_eq!(state.blocks[0].block, block("4-0a000000-24"));
        assert!(matches!(state.blocks.len(), 3500 | 3501), "{}", state.blocks.len());
    });
}

#[test]
fn changes_arrive_and_a_compacted_watch_ends() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let ground = register(&mut driver, "n1");
        let (revision, _) = realm_state(driver.run(Operation::List { realm: realm() }));
        let watch = driver.submit(Operation::Watch { realm: realm(), from: revision + 1 });
        let claimed_at = written(&driver.run(claim("n1", "4-0a580100-26", ground)));
        let is_change = |event: &Event| matches!(event, Event::Change(..));
        let found = Found {
            block: block("4-0a580100-26"),
            claimed: Some(claimed("n1", 1)),
            revision: claimed_at,
        };
        assert_eq!(driver.wait_for(is_change), Event::Change(watch, Change::Claimed(found)));
        let seen =
            Seen { block: block("4-0a580100-26"), claimed: claimed("n1", 1), revision: claimed_at };
        written(&driver.run(Operation::Release { realm: realm(), seen }));
        assert_eq!(
            driver.wait_for(is_change),
            Event::Change(watch, Change::Released(block("4-0a580100-26")))
        );
        let want = |want| Operation::Want { realm: realm(), node: name("n2"), want, ttl: 30 };
        written(&driver.run(want(Some(Want::default()))));
        let wanted = Change::Wanted(name("n2"), Some(Want::default()));
        assert_eq!(driver.wait_for(is_change), Event::Change(watch, wanted));
        written(&driver.run(want(None)));
        assert_eq!(
            driver.wait_for(is_change),
            Event::Change(watch, Change::Wanted(name("n2"), None))
        );

        etcd.members[0].ctl(&format!("compaction {claimed_at}"));
        let late = driver.run(Operation::Watch { realm: realm(), from: revision });
        assert_eq!(late, Outcome::Compacted { revision: claimed_at });
        driver.client.forget(watch);
        assert_eq!(driver.aside, [], "the forgotten watch has no outcome");
    });
}

#[test]
fn the_control_plane_s_etcd_is_recognized() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let is_found = |event: &Event| matches!(event, Event::Inspected(_));
        driver.client.inspect(since_boot());
        assert_eq!(driver.wait_for(is_found), Event::Inspected(Inspection::Separate));
        etcd.members[0].ctl("put /registry/secrets/default/a x");
        driver.client.inspect(since_boot());
        assert_eq!(driver.wait_for(is_found), Event::Inspected(Inspection::ControlPlane));
    });
}

#[test]
fn a_record_that_was_edited_by_hand_is_refused() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        etcd.members[0].ctl("put /cni-multi/v1/test/n/n1 oops");
        let outcome = driver.run(Operation::ReadNode { node: name("n1") });
        let Outcome::Refused { reason } = outcome else { panic!("{outcome:?}") };
        assert!(
            reason.starts_with("the value of \"/cni-multi/v1/test/n/n1\" in etcd cannot be read"),
            "{reason}"
        );
    });
}
