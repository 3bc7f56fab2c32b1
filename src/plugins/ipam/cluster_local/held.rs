//! What a node has borrowed for one network: the file `blocks.json` beside the network's leases.
//!
//! The daemon writes it, and without a daemon the plugin does. Plugins read it under the network's
//! lock and allocate from its active blocks alone. A change is on the disk before the operation that
//! depends on it is sent.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::block::Block;
use super::engine::Name;
pub use super::engine::Token;
use super::pool::Pool;
use super::sticky::MOST_IDLE;
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::sys::clock::Moment;

/// The file's name.
pub const BLOCKS: &str = "blocks.json";
/// The version of the file's format; a file of another version is not read.
const VERSION: u64 = 1;
/// The longest file: some 200 bytes a block.
const LIMIT: usize = 16 << 20;

/// The state of a block. Addresses are allocated from active blocks only; leases stay in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A claim is about to be sent, or its outcome is unknown.
    Claiming,
    /// Claimed, and not used yet: the cluster's store may have lost the claim of an earlier owner.
    Settling,
    /// Claimed: addresses are allocated from it.
    Active,
    /// It is about to be given back, or the outcome is unknown.
    Returning,
    /// The store no longer has the claim, or the node was fenced: nothing new is allocated from it.
    Lost,
    /// Another node has it, too: nothing is allocated from it, and CHECK of its leases fails.
    Conflict,
}

/// The block whose key a split replaces by those of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The block.
    pub block: Block,
    /// The token of its claim.
    pub token: Token,
    /// The revision at which its key was written.
    pub mod_revision: u64,
    /// The incarnation of the node that claimed it.
    pub incarnation: u64,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Claiming => "claiming",
            State::Settling => "settling",
            State::Active => "active",
            State::Returning => "returning",
            State::Lost => "lost",
            State::Conflict => "conflict",
        })
    }
}

/// A block that the node has borrowed, or is about to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The block.
    pub block: Block,
    /// The token of its claim.
    pub token: Token,
    /// The revision of the store at which its key was written; 0 while unknown.
    pub mod_revision: u64,
    /// Its state.
    pub state: State,
    /// When it entered the state, in seconds since 1970; for people.
    pub since: u64,
    /// The incarnation of the node that claimed it.
    #[serde(default)]
    pub incarnation: u64,
    /// The block that it is a part of, until the store knows of the split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Origin>,
    /// The name that a block of one address is kept for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<String>,
}

/// What a daemon that has just started must know of a network, and the plugin of its blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// The realm in which addresses exclude each other.
    pub realm: Name,
    /// The pools, one a range set.
    pub pools: Vec<Pool>,
    /// The addresses of each set that are kept for names; empty if the network keeps none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<Pool>,
    /// How many free blocks a pool keeps.
    pub spare: u32,
    /// The id of the boot in which the daemon last saw that the node was not reclaimed. In a later
    /// boot nothing is allocated before it did so again: the node may have been off for long.
    #[serde(default)]
    pub confirmed: String,
    /// When the confirmation ends, in seconds since boot: some time after that, other nodes may reclaim this
    /// one. None if only an operator may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// A node that has other pools for this network, as the daemon last saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<Name>,
    /// The blocks, each once.
    pub blocks: Vec<Held>,
}

/// Whether the daemon's confirmation of the blocks still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// It does: addresses may be allocated.
    Valid,
    /// It is of an earlier boot: the node may have been off for long.
    OfEarlierBoot,
    /// The store has accepted no heartbeat for so long that other nodes may soon reclaim this one.
    Ended,
}

/// The file's content.
#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    #[serde(flatten)]
    blocks: &'a Blocks,
}

/// The member that is read first.
#[derive(Deserialize)]
struct Head {
    version: Option<u64>,
}

/// The path of the file of a network whose leases are in this directory.
pub fn path(network: &Path) -> PathBuf {
    network.join(BLOCKS)
}

/// Whether a limit in seconds since boot has passed. Zero is no time but a clock that cannot be read.
pub fn is_over(until: u64, now: Moment) -> bool {
    now.is_zero() || until <= now.as_secs()
}

impl Blocks {
    /// A network without blocks.
    pub fn new(realm: Name, pools: Vec<Pool>, spare: u32) -> Blocks {
        Blocks {
            realm,
            pools,
            names: vec![],
            spare,
            confirmed: String::new(),
            until: None,
            differs: None,
            blocks: vec![],
        }
    }

    /// The blocks from which addresses may be allocated.
    pub fn active(&self) -> impl Iterator<Item = &Held> {
        self.blocks.iter().filter(|held| held.state == State::Active)
    }

    /// Whether the daemon's confirmation holds in this boot and at this time. Blocks of a machine without a
    /// cluster need none.
    pub fn confirmation(&self, boot: &str, now: Moment) -> Confirmation {
        if !self.confirmed.is_empty() && self.confirmed != boot {
            return Confirmation::OfEarlierBoot;
        }
        match self.until {
            Some(until) if is_over(until, now) => Confirmation::Ended,
            _ => Confirmation::Valid,
        }
    }

    /// Whether addresses may be allocated from the active blocks now.
    pub fn is_confirmed(&self, boot: &str, now: Moment) -> bool {
        self.confirmation(boot, now) == Confirmation::Valid
    }

    /// Whether the address is in a block from which addresses may be allocated.
    pub fn has(&self, ip: IpAddr) -> bool {
        self.active().any(|held| held.block.contains(ip))
    }

    /// The addresses of names without a lease that are too many of their set, those whose names
    /// were used longest ago. These names are in use.
    pub fn forgettable(&self, taken: &HashSet<IpAddr>, used: &[String]) -> BTreeSet<Block> {
        let of_pool = |pool: &Pool| {
            let idle = self.active().filter(|held| {
                held.sticky.as_ref().is_some_and(|name| !used.contains(name))
                    && pool.meets(held.block)
                    && !taken.contains(&held.block.first())
            });
            let mut idle: Vec<(u64, Block)> = idle.map(|held| (held.since, held.block)).collect();
            idle.sort_unstable();
            idle.truncate(idle.len().saturating_sub(MOST_IDLE));
            idle.into_iter().map(|(_, block)| block).collect::<Vec<Block>>()
        };
        self.names.iter().flat_map(of_pool).collect()
    }

    /// Drops them.
    pub fn forget(&mut self, taken: &HashSet<IpAddr>, used: &[String]) {
        let forgettable = self.forgettable(taken, used);
        self.blocks.retain(|held| !forgettable.contains(&held.block));
    }

    /// Reads the file of a network; None if there is none. A file that cannot be understood is an
    /// error: to go on without it could allocate an address twice.
    pub fn read(network: &Path) -> Result<Option<Blocks>> {
        let path = path(network);
        match plain_file::read(&path, LIMIT) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::at_path("read", &path)(e)),
            Ok(text) => parse(&text).map(Some).map_err(|why| unfit(&path, &why)),
        }
    }

    /// Writes the file of a network, whose directory exists, and returns once it is on the disk.
    pub fn write(&self, network: &Path) -> Result<()> {
        let path = path(network);
        let text = serde_json::to_vec(&Written { version: VERSION, blocks: self })
            .map_err(|e| Error::new(Code::BUG, format!("write {}: {e}", path.display())))?;
        plain_file::put_durably(&path, &text).map_err(Error::at_path("write", &path))
    }
}

fn parse(text: &[u8]) -> Result<Blocks, String> {
    // Our own files begin so: they are read once, and not for their version first.
    if !text.starts_with(format!("{{\"version\":{VERSION},").as_bytes()) {
        let head: Head = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        if head.version != Some(VERSION) {
            return Err(format!("it is not of version {VERSION}"));
        }
    }
    let blocks: Blocks = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    blocks.verify().map(|()| blocks)
}

impl Blocks {
    /// Checks what the types cannot express.
    fn verify(&self) -> Result<(), String> {
        let mut all: Vec<Block> = self.blocks.iter().map(|held| held.block).collect();
        all.sort_unstable(); // a block that contains others is directly before one of them
        match all.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
            Some(pair) => Err(format!("{} and {} overlap", pair[0], pair[1])),
            None => Ok(()),
        }
    }
}

fn unfit(path: &Path, why: &str) -> Error {
    Error::new(Code::DECODE, format!("read {}: {why}", path.display())).with_details(
        "nothing is allocated without it: restore the file, or remove it once no attachment of the network is left",
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn held(block: &str, state: State) -> Held {
        Held {
            block: block.parse().unwrap(),
            token: Token(0xab),
            mod_revision: 17,
            state,
            since: 1_795_000_000,
            incarnation: 1,
            of: None,
            sticky: None,
        }
    }

    fn blocks() -> Blocks {
        let pool = r#"{"length":26,"spans":["10.88.1.0-10.88.1.250"]}"#;
        let mut blocks =
            Blocks::new("default".parse().unwrap(), vec![serde_json::from_str(pool).unwrap()], 1);
        blocks.blocks =
            vec![held("4-0a580100-26", State::Active), held("4-0a580140-26", State::Settling)];
        blocks
    }

    /// The clock reads as zero if the kernel refuses clock_gettime(2).
    #[test]
    fn a_confirmation_with_an_end_is_over_without_a_clock() {
        let mut blocks = Blocks::new("default".parse().unwrap(), vec![], 1);
        blocks.confirmed = "boot".to_owned();
        for (until, seconds, expected) in [
            (None, 0, Confirmation::Valid),
            (Some(5), 4, Confirmation::Valid),
            (Some(5), 5, Confirmation::Ended),
            (Some(5), 0, Confirmation::Ended),
        ] {
            blocks.until = until;
            let found = blocks.confirmation("boot", Moment::from_secs(seconds));
            assert_eq!(found, expected, "{until:?} at {seconds}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_only_active_blocks_are_used() {
        let dir = Scratch::new();
        assert_eq!(Blocks::read(dir.path()).unwrap(), None);
        let mut blocks = blocks();
        for state in [State::Claiming, State::Returning, State::Lost, State::Conflict] {
            blocks.blocks[1].state = state;
            blocks.write(dir.path()).unwrap();
            let read = Blocks::read(dir.path()).unwrap().unwrap();
            assert_eq!(read, blocks);
            assert_eq!(read.active().count(), 1);
        }
    }

    #[test]
    fn the_file_has_the_members_of_the_design() {
        let dir = Scratch::new();
        blocks().write(dir.path()).unwrap();
        let text = std::fs::read_to_string(path(dir.path())).unwrap();
        assert!(text.starts_with(concat!(
            r#"{"version":1,"realm":"default","pools":[{"length":26,"spans":["10.88.1.0-10.88.1.250"]}],"#,
            r#""spare":1,"confirmed":"","blocks":[{"block":"4-0a580100-26","token":"000000000000000000000000000000ab","#,
            r#""mod_revision":17,"state":"active","since":1795000000,"incarnation":1}"#,
        )), "{text}");
    }

    #[test]
    fn the_names_used_longest_ago_are_forgotten_first() {
        let pool = r#"{"length":32,"spans":["10.88.0.0-10.88.255.255"]}"#;
        let pool: Pool = serde_json::from_str(pool).unwrap();
        let mut blocks = Blocks::new("default".parse().unwrap(), vec![], 1);
        blocks.names = vec![pool.clone()];
        let address = |number: u64| IpAddr::from([10, 88, (number >> 8) as u8, number as u8]);
        for number in 0..MOST_IDLE as u64 + 10 {
            let block = Block::around(address(number), 32).unwrap();
            let sticky = Some(format!("name {number}"));
            let since = 1000 - number; // the last is the oldest
            blocks.blocks.push(Held {
                block,
                sticky,
                since,
                ..held("4-0a590000-26", State::Active)
            });
        }
        let oldest = MOST_IDLE as u64 + 9;
        let taken = HashSet::from([address(oldest)]);
        let used = [format!("name {}", oldest - 1)];
        blocks.forget(&taken, &used);
        let left: HashSet<IpAddr> = blocks.blocks.iter().map(|held| held.block.first()).collect();
        let expected = (0..MOST_IDLE as u64).chain([oldest - 1, oldest]).map(address).collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn a_file_that_is_not_understood_is_an_error_with_the_next_step() {
        let dir = Scratch::new();
        let good = serde_json::to_string(&Written { version: 1, blocks: &blocks() }).unwrap();
        for (text, reason) in [
            (String::new(), "EOF while parsing"),
            (good.replace("\"version\":1", "\"version\":2"), "it is not of version 1"),
            (good.replace("0a580140", "0a580100"), "4-0a580100-26 and 4-0a580100-26 overlap"),
            (good.replace("active", "idle"), "unknown variant `idle`"),
            (good.replace("00ab", "zz"), "expected 32 hex digits"),
        ] {
            dir.write(BLOCKS, &text);
            let error = Blocks::read(dir.path()).unwrap_err();
            assert!(error.msg.contains(reason), "{}", error.msg);
            assert!(error.details().contains("restore the file"));
        }
    }
}
