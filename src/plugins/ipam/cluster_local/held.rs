//! `blocks.json`: what a network of this node has borrowed. The daemon writes the blocks, the plugin
//! what is configured. Both do so under the lock of the network's leases.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::block::Block;
use super::name::Name;
use super::pool::Pool;
use super::store::Token;
use crate::error::{Code, Error, Result};
use crate::plain_file;

/// The file's name.
const BLOCKS: &str = "blocks.json";
/// The version of the file's format; a file of another version is not read.
const VERSION: u64 = 2;
/// The longest file: some 200 bytes a block.
const LIMIT: usize = 16 << 20;

/// The state of a block. Addresses are allocated from active blocks only; leases stay in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It has leases, and no claim of it is confirmed. What a daemon claims for an ADD is on the disk
    /// once it is active.
    Claiming,
    /// Claimed, and not used yet: the store may have lost the claim of an earlier owner.
    Settling,
    /// Claimed: addresses are allocated from it.
    Active,
    /// It is about to be given back.
    Returning,
    /// Another node has it: nothing new is allocated from it.
    Lost,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A block that the node has borrowed, or is about to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The block.
    pub block: Block,
    /// The token of its claim.
    pub token: Token,
    /// Its state.
    pub state: State,
    /// When it entered the state, in seconds since 1970; of a name's, when the name was used last.
    pub since: u64,
    /// Another node has leases in it: nothing is allocated from it, and CHECK of its leases fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contested: bool,
    /// The name that a block of one address is kept for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Held {
    /// Whether addresses may be allocated from it.
    pub fn is_usable(&self) -> bool {
        self.state == State::Active && !self.contested
    }
}

/// What a daemon that has just started must know of a network, and the plugin of its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The blocks, each once.
    pub blocks: Vec<Held>,
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
fn path(network: &Path) -> PathBuf {
    network.join(BLOCKS)
}

impl Blocks {
    /// A network without blocks.
    pub fn new(realm: Name, pools: Vec<Pool>, spare: u32) -> Blocks {
        Blocks { realm, pools, names: vec![], spare, blocks: vec![] }
    }

    /// The blocks from which addresses may be allocated.
    pub fn usable(&self) -> impl Iterator<Item = &Held> {
        self.blocks.iter().filter(|held| held.is_usable())
    }

    /// Whether the address is in a block from which addresses may be allocated.
    pub fn has(&self, ip: IpAddr) -> bool {
        self.usable().any(|held| held.block.contains(ip))
    }

    /// Reads the file of a network; None if there is none. A file that cannot be understood is an
    /// error: to go on without it could allocate an address twice.
    pub fn read(network: &Path) -> Result<Option<Blocks>> {
        let path = path(network);
        let text = plain_file::read_if_any(&path, LIMIT).map_err(Error::at_path("read", &path))?;
        let parsed = text.map(|text| parse(&text)).transpose();
        parsed.map_err(|why| {
            let msg = format!("read {}: {why}", path.display());
            Error::new(Code::DECODE, msg).with_details(
                "nothing is allocated without it: restore the file, or remove it once no attachment of the network is left",
            )
        })
    }

    /// Writes the file of a network, whose directory exists, and returns once it is on the disk.
    pub fn write(&self, network: &Path) -> Result<()> {
        write(&path(network), &Written { version: VERSION, blocks: self })
    }
}

/// The time in seconds since 1970, as files have it.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Writes a file, and returns once it is on the disk.
pub fn write(path: &Path, content: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(content)
        .map_err(|e| Error::new(Code::BUG, format!("write {}: {e}", path.display())))?;
    plain_file::put_durably(path, &text).map_err(Error::at_path("write", path))
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
    let mut all: Vec<Block> = blocks.blocks.iter().map(|held| held.block).collect();
    all.sort_unstable(); // a block that contains others is directly before one of them
    match all.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        Some(pair) => Err(format!("{} and {} overlap", pair[0], pair[1])),
        None => Ok(blocks),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn held(block: &str, state: State) -> Held {
        let block = block.parse().unwrap();
        let since = 1_795_000_000;
        Held { block, token: Token(0xab), state, since, contested: false, name: None }
    }

    fn blocks() -> Blocks {
        let pool = r#"{"length":26,"spans":["10.88.1.0-10.88.1.250"]}"#;
        let mut blocks =
            Blocks::new("default".parse().unwrap(), vec![serde_json::from_str(pool).unwrap()], 1);
        blocks.blocks =
            vec![held("4-0a580100-26", State::Active), held("4-0a580140-26", State::Settling)];
        blocks
    }

    #[test]
    fn what_is_written_is_read_and_only_usable_blocks_are_used() {
        let dir = Scratch::new();
        assert_eq!(Blocks::read(dir.path()).unwrap(), None);
        let mut blocks = blocks();
        for state in [State::Claiming, State::Returning, State::Lost, State::Active] {
            blocks.blocks[1].state = state;
            blocks.blocks[1].contested = state == State::Active;
            blocks.write(dir.path()).unwrap();
            let read = Blocks::read(dir.path()).unwrap().unwrap();
            assert_eq!(read, blocks);
            assert_eq!(read.usable().count(), 1);
        }
    }

    #[test]
    fn the_file_has_the_members_of_the_design() {
        let dir = Scratch::new();
        blocks().write(dir.path()).unwrap();
        let text = std::fs::read_to_string(path(dir.path())).unwrap();
        assert!(text.starts_with(concat!(
            r#"{"version":2,"realm":"default","pools":[{"length":26,"spans":["10.88.1.0-10.88.1.250"]}],"#,
            r#""spare":1,"blocks":[{"block":"4-0a580100-26","token":"000000000000000000000000000000ab","#,
            r#""state":"active","since":1795000000}"#,
        )), "{text}");
    }

    #[test]
    fn a_file_that_is_not_understood_is_an_error_with_the_next_step() {
        let dir = Scratch::new();
        let good = serde_json::to_string(&Written { version: 2, blocks: &blocks() }).unwrap();
        for (text, reason) in [
            (String::new(), "EOF while parsing"),
            (good.replace("\"version\":2", "\"version\":1"), "it is not of version 2"),
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
