//! Keys with their values as the state machine knows them.

use serde::de::DeserializeOwned;

use super::super::block::Block;
use super::super::engine::{
    ClusterState, Found, Name, NodeRecord, NodeState, RealmState, Rival, Versioned,
};
use super::keys::{Keys, Of, Part};
use super::reply::KeyValue;
use super::write::Subject;

/// A key whose value only we write, and which has another.
pub type Unreadable = String;

/// A block's key as found; None of any other key.
pub fn block(keys: &Keys, realm: &Name, kv: &KeyValue) -> Option<Found> {
    let Some(Part::Block(block)) = keys.part(realm, &kv.key) else { return None };
    let claimed = serde_json::from_slice(&kv.value.0).ok();
    Some(Found { block, claimed, revision: kv.mod_revision.0 })
}

/// Adds a key to those of a realm, and returns whether it could be read. A want or a note that
/// cannot be read is of no node.
pub fn add_to_realm(state: &mut RealmState, keys: &Keys, realm: &Name, kv: &KeyValue) -> bool {
    match keys.part(realm, &kv.key) {
        Some(Part::Block(_)) => {
            let found = block(keys, realm, kv);
            let is_read = found.as_ref().is_some_and(|found| found.claimed.is_some());
            state.blocks.extend(found);
            is_read
        }
        Some(Part::Want(node)) => add(&mut state.wants, node, kv),
        Some(Part::Note(block)) => add(&mut state.notes, block, kv),
        Some(Part::Pool(hash)) => add(&mut state.pools, hash, kv),
        None => false,
    }
}

/// Adds a value under its name, if it can be read.
fn add<N, T: DeserializeOwned>(all: &mut Vec<(N, T)>, name: N, kv: &KeyValue) -> bool {
    let read = serde_json::from_slice(&kv.value.0).ok();
    let is_read = read.is_some();
    all.extend(read.map(|value| (name, value)));
    is_read
}

/// Adds a key to those of the cluster. One that cannot be read is only named.
pub fn add_to_cluster(state: &mut ClusterState, keys: &Keys, kv: &KeyValue) {
    let is_read = match keys.of_key(&kv.key) {
        Some(Of::Epoch) => value(kv).map(|epoch| state.epoch = epoch).is_ok(),
        Some(Of::Node(node)) => {
            let member = state.nodes.entry(node).or_default();
            member.record = record_of(kv).ok();
            member.record.is_some()
        }
        Some(Of::Alive(node)) => {
            let boot = String::from_utf8_lossy(&kv.value.0).into_owned();
            state.nodes.entry(node).or_default().alive = Some(boot);
            true
        }
        Some(Of::Sticky) => value::<Block>(kv).is_ok(),
        Some(Of::Realm(realm)) => {
            let of_realm = state.realms.entry(realm.clone()).or_default();
            add_to_realm(of_realm, keys, &realm, kv)
        }
        None => false,
    };
    if !is_read {
        state.unreadable.push(String::from_utf8_lossy(&kv.key.0).into_owned());
    }
}

/// The keys of a realm that overlap a block.
pub fn overlapping<'a>(
    keys: &Keys,
    of: (&Name, Block),
    kvs: impl Iterator<Item = &'a KeyValue>,
) -> RealmState {
    let (realm, block) = of;
    let mut state = RealmState::default();
    for kv in kvs {
        add_to_realm(&mut state, keys, realm, kv);
    }
    state.blocks.sort_by_key(|found| found.block);
    state.notes.retain(|(noted, _)| noted.overlaps(block));
    state
}

/// The blocks among keys, in their order and each once.
pub fn blocks<'a>(
    keys: &Keys,
    realm: &Name,
    kvs: impl Iterator<Item = &'a KeyValue>,
) -> Vec<Found> {
    let mut found: Vec<Found> = kvs.filter_map(|kv| block(keys, realm, kv)).collect();
    found.sort_by_key(|found| found.block);
    found.dedup_by_key(|found| found.block);
    found
}

/// What keys say of a node and of the epoch.
pub fn node<'a>(
    keys: &Keys,
    node: Option<&Name>,
    kvs: impl Iterator<Item = &'a KeyValue>,
) -> Result<NodeState, Unreadable> {
    let mut state = NodeState::default();
    let of_node = node.map(|node| (keys.node(node), keys.alive(node)));
    for kv in kvs {
        let key = kv.key.text().unwrap_or_default();
        match &of_node {
            Some((record, _)) if key == record => state.record = Some(record_of(kv)?),
            Some((_, alive)) if key == alive => {
                state.alive = Some(String::from_utf8_lossy(&kv.value.0).into_owned());
            }
            _ if key == keys.epoch() => state.epoch = value(kv)?,
            _ => (),
        }
    }
    Ok(state)
}

/// What a lost write found.
pub fn rival(keys: &Keys, of: Subject<'_>, kvs: &[&KeyValue]) -> Result<Rival, Unreadable> {
    let realm = of.block.map(|(realm, _)| realm);
    let node = node(keys, of.node, kvs.iter().copied())?;
    let blocks = realm.map(|realm| blocks(keys, realm, kvs.iter().copied())).unwrap_or_default();
    let name = realm.zip(of.name).map(|(realm, name)| keys.name(realm, name));
    let named = kvs.iter().find(|kv| name.is_some() && kv.key.text() == name.as_deref());
    Ok(Rival { node, blocks, named: named.map(|kv| value(kv)).transpose()? })
}

fn record_of(kv: &KeyValue) -> Result<Versioned<NodeRecord>, Unreadable> {
    Ok(Versioned { value: value(kv)?, revision: kv.mod_revision.0 })
}

fn value<T: DeserializeOwned>(kv: &KeyValue) -> Result<T, Unreadable> {
    serde_json::from_slice(&kv.value.0).map_err(|error| {
        let key = String::from_utf8_lossy(&kv.key.0);
        format!("the value of {key:?} in etcd cannot be read: {error}; was it edited by hand?")
    })
}
