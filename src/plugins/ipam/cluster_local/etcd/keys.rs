//! The keys of a cluster, all below `/cni-multi/v1/<cluster>/`.

use super::super::block::Block;
use super::super::engine::Name;
use super::encoding::Octets;
use super::request::KeyRange;
use crate::family::Family;

/// The keys of one cluster.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

/// What a key below a realm's prefix is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A block.
    Block(Block),
    /// A node's want.
    Want(Name),
    /// The note of a conflict about a block.
    Note(Block),
    /// The note of a pool with this hash.
    Pool(String),
}

/// What a key below the cluster's prefix is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// A node's record.
    Node(Name),
    /// A node's key `alive`, which its heartbeats keep.
    Alive(Name),
    /// The epoch.
    Epoch,
    /// The address of a name in a realm. The block's own key has the name as well.
    Sticky,
    /// A realm.
    Realm(Name),
}

impl Keys {
    /// The keys of the cluster with this name.
    pub fn of(cluster: &Name) -> Keys {
        Keys { prefix: format!("/cni-multi/v1/{cluster}/") }
    }

    /// Every key of the cluster.
    pub fn all(&self) -> KeyRange {
        KeyRange::prefix(&self.prefix)
    }

    /// A node's record.
    pub fn node(&self, node: &Name) -> String {
        format!("{}n/{node}", self.prefix)
    }

    /// A node's key `alive`.
    pub fn alive(&self, node: &Name) -> String {
        format!("{}n/{node}/alive", self.prefix)
    }

    /// The epoch.
    pub fn epoch(&self) -> String {
        format!("{}meta/epoch", self.prefix)
    }

    /// The prefix of a realm.
    pub fn realm(&self, realm: &Name) -> String {
        format!("{}r/{realm}/", self.prefix)
    }

    /// The prefix of a realm's blocks.
    pub fn blocks(&self, realm: &Name) -> String {
        format!("{}b/", self.realm(realm))
    }

    /// A block.
    pub fn block(&self, realm: &Name, block: Block) -> String {
        format!("{}{block}", self.blocks(realm))
    }

    /// The prefix of a realm's wants.
    pub fn wants(&self, realm: &Name) -> String {
        format!("{}want/", self.realm(realm))
    }

    /// A node's want.
    pub fn want(&self, realm: &Name, node: &Name) -> String {
        format!("{}{node}", self.wants(realm))
    }

    /// The prefix of a realm's notes of conflicts.
    pub fn conflicts(&self, realm: &Name) -> String {
        format!("{}x/", self.realm(realm))
    }

    /// The note of a conflict.
    pub fn conflict(&self, realm: &Name, block: Block) -> String {
        format!("{}{block}", self.conflicts(realm))
    }

    /// The prefix of a realm's notes of pools.
    pub fn pools(&self, realm: &Name) -> String {
        format!("{}pool/", self.realm(realm))
    }

    /// The block that a name has: what makes a name one address.
    pub fn name(&self, realm: &Name, name: &str) -> String {
        format!("{}s/{name}", self.realm(realm))
    }

    /// The note of a pool.
    pub fn pool(&self, realm: &Name, hash: &str) -> String {
        format!("{}{hash}", self.pools(realm))
    }

    /// The keys of every block that overlaps a block: one range with all blocks that begin in it,
    /// and one key for each larger block that begins before.
    pub fn overlapping(&self, realm: &Name, block: Block) -> Vec<KeyRange> {
        let prefix = self.blocks(realm);
        let [first, last] = [block.start(), block.end()].map(|at| place(block.family(), at));
        // A dot comes after the hyphen that follows the last address.
        let range_end = Some(Octets::of(&format!("{prefix}{last}.")));
        let inside = KeyRange { key: Octets::of(&format!("{prefix}{first}")), range_end };
        let before = block.ancestors().filter(|ancestor| ancestor.start() != block.start());
        let around = before.map(|ancestor| KeyRange::one(&self.block(realm, ancestor)));
        std::iter::once(inside).chain(around).collect()
    }

    /// A range with the notes of all conflicts about blocks that overlap a block, and with others: a
    /// transaction has no room for a read of each, and there are few.
    pub fn conflicts_around(&self, realm: &Name, block: Block) -> KeyRange {
        let prefix = self.conflicts(realm);
        let largest = block.ancestors().last().unwrap_or(block);
        let [first, last] = [largest.start(), block.end()].map(|at| place(block.family(), at));
        let range_end = Some(Octets::of(&format!("{prefix}{last}.")));
        KeyRange { key: Octets::of(&format!("{prefix}{first}")), range_end }
    }

    /// What a key of a realm is of; None of other keys.
    pub fn part(&self, realm: &Name, key: &Octets) -> Option<Part> {
        let rest = key.text()?.strip_prefix(&self.realm(realm))?;
        match rest.split_once('/')? {
            ("b", block) => block.parse().ok().map(Part::Block),
            ("x", block) => block.parse().ok().map(Part::Note),
            ("want", node) => node.parse().ok().map(Part::Want),
            ("pool", hash) => Some(Part::Pool(hash.to_owned())),
            _ => None,
        }
    }

    /// What a key of the cluster is of; None of keys of other forms.
    pub fn of_key(&self, key: &Octets) -> Option<Of> {
        let rest = key.text()?.strip_prefix(&self.prefix)?;
        let parts: Vec<&str> = rest.split('/').collect();
        match parts[..] {
            ["meta", "epoch"] => Some(Of::Epoch),
            ["n", node] => node.parse().ok().map(Of::Node),
            ["n", node, "alive"] => node.parse().ok().map(Of::Alive),
            ["r", _, "s", _, _, ..] => Some(Of::Sticky),
            ["r", realm, _, _] => realm.parse().ok().map(Of::Realm),
            _ => None,
        }
    }
}

/// An address as it begins a block's key.
fn place(family: Family, at: u128) -> String {
    match family {
        Family::V4 => format!("4-{at:08x}"),
        Family::V6 => format!("6-{at:032x}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn keys() -> (Keys, Name) {
        (Keys::of(&"c".parse().unwrap()), "default".parse().unwrap())
    }

    fn is_in(range: &KeyRange, key: &str) -> bool {
        let key = Octets::of(key);
        range.range_end.as_ref().map_or(range.key == key, |end| range.key <= key && key < *end)
    }

    #[test]
    fn ranges_of_a_block_have_exactly_the_overlapping_blocks() {
        let (keys, realm) = keys();
        let blocks = [
            "4-0a580100-24",
            "4-0a580100-26",
            "4-0a580140-26",
            "4-0a580180-26",
            "4-0a5801c0-26",
            "4-0a580140-32",
            "4-0a58017f-32",
            "4-0a580180-32",
            "4-0a58013f-32",
            "4-0a000000-08",
            "4-0b000000-08",
            "4-ffffffff-32",
            "4-ffffff00-24",
            "6-fd000088000000000000000000000000-122",
            "6-ffffffffffffffffffffffffffffffff-128",
            "6-ffffffffffffffff0000000000000000-064",
        ];
        let blocks: Vec<Block> = blocks.iter().map(|text| text.parse().unwrap()).collect();
        for block in &blocks {
            let ranges = keys.overlapping(&realm, *block);
            for other in &blocks {
                let found = ranges.iter().any(|range| is_in(range, &keys.block(&realm, *other)));
                assert_eq!(found, block.overlaps(*other), "{block} and {other}");
                let noted =
                    is_in(&keys.conflicts_around(&realm, *block), &keys.conflict(&realm, *other));
                assert!(noted || !block.overlaps(*other), "{block} and the note of {other}");
            }
        }
    }

    #[test]
    fn the_smallest_block_has_room_in_a_transaction() {
        let (keys, realm) = keys();
        let smallest = "6-fd000088ffffffffffffffffffffffff-128".parse().unwrap();
        assert!(keys.overlapping(&realm, smallest).len() <= 65);
    }

    #[test]
    fn keys_of_the_cluster_are_told_apart() {
        let (keys, realm) = keys();
        let of = |rest: &str| keys.of_key(&Octets::of(&format!("/cni-multi/v1/c/{rest}")));
        let node: Name = "n1".parse().unwrap();
        assert_eq!(of("n/n1"), Some(Of::Node(node.clone())));
        assert_eq!(of("n/n1/alive"), Some(Of::Alive(node)));
        assert_eq!(of("meta/epoch"), Some(Of::Epoch));
        assert_eq!(of("r/default/b/4-0a580100-26"), Some(Of::Realm(realm)));
        assert_eq!(of("r/default/s/net/shop/till/eth0"), Some(Of::Sticky));
        assert_eq!(of("r/default/s/net/web"), Some(Of::Sticky));
        for other in ["", "n", "n/", "n/-", "n/n1/x", "meta", "r/default", "r/a b/b/x", "r/a/b/c/d"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn keys_are_told_apart() {
        let (keys, realm) = keys();
        let part = |key: &str| keys.part(&realm, &Octets::of(key));
        let block = "4-0a580100-26".parse().unwrap();
        assert_eq!(part("/cni-multi/v1/c/r/default/b/4-0a580100-26"), Some(Part::Block(block)));
        assert_eq!(part("/cni-multi/v1/c/r/default/x/4-0a580100-26"), Some(Part::Note(block)));
        assert_eq!(
            part("/cni-multi/v1/c/r/default/want/n1"),
            Some(Part::Want("n1".parse().unwrap()))
        );
        let pool = Some(Part::Pool("1".to_owned()));
        assert_eq!(part("/cni-multi/v1/c/r/default/pool/1"), pool);
        for other in [
            "/cni-multi/v1/c/r/other/b/4-0a580100-26",
            "/cni-multi/v1/c/r/default/b/x",
            "/cni-multi/v1/c/r/default/b/",
            "",
            "/cni-multi/v1/c/n/n1",
        ] {
            assert_eq!(part(other), None, "{other}");
        }
        assert_eq!(keys.part(&realm, &Octets(vec![0xff])), None);
    }
}
