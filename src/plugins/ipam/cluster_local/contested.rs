//! Refuses CHECK and repair of addresses in blocks that another node owns, or may own.

use std::net::IpAddr;
use std::path::Path;

use super::held::{Blocks, Held, State};
use crate::error::{Error, Result};

/// Fails if one of the addresses is in a block that another node has, or may have.
pub fn refuse(network: &Path, held: &[IpAddr]) -> Result<()> {
    let Some(blocks) = Blocks::read(network)? else { return Ok(()) };
    for ip in held {
        let mut around = blocks.blocks.iter().filter(|block| block.block.contains(*ip));
        around.find_map(|block| reason(block, *ip)).map_or(Ok(()), Err)?;
    }
    Ok(())
}

fn reason(held: &Held, ip: IpAddr) -> Option<Error> {
    let why = match held.state {
        State::Conflict => "another node has, too",
        State::Lost => "may be another node's: this node was reclaimed, or its name is taken",
        State::Claiming | State::Settling | State::Active | State::Returning => return None,
    };
    let problem = format!("{ip} is in block {}, which {why}", held.block.prefix());
    Some(Error::check(problem).with_details("detach the container and attach it again"))
}
