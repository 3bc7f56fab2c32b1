//! `ipam recover`: accepts another store than the one that this node has claimed its blocks in.

use clap::ArgMatches;

use super::super::confirmed;
use super::super::daemon::identity::{self, Identity};
use super::super::held::Blocks;
use super::super::store::{Key, Value};
use super::super::wire::SOCKET;
use super::{Verb, config, data_dir, open, read, value, without_daemon};
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::steps::allocation::files::{Place, operator};
use crate::terminal::Streams;

/// The command.
pub const VERB: Verb = Verb {
    name: "recover",
    about: "Accept another store: this node claims its blocks there once its daemon starts",
    arguments: || vec![data_dir(), config()],
    run,
    examples: &[(
        "cni-multi ipam recover",
        "Claim this node's blocks again in the store that is there now.",
    )],
};

/// Writes the store's id into the node's record. A daemon creates it where there is none.
fn run(matches: &ArgMatches, _: &mut Streams<'_>) -> Result<String> {
    let data_dir = value(matches, "data-dir");
    let journal = without_daemon(&data_dir)?;
    let (settings, mut store) = open(&value(matches, "config"))?;
    let file = identity::read(&data_dir)?.filter(|file| file.store.is_some());
    let Some(mut file) = file else {
        return Ok("this node has claimed nothing in any store: nothing is to be done\n".to_owned());
    };
    let id = match read(store.get(&Key::Meta))?.map(|stored| stored.record.value) {
        None => None,
        Some(Value::Meta(id)) => Some(id),
        Some(_) => return Err(Error::new(Code::CONFLICT, "the store's id cannot be read")),
    };
    if file.store == id {
        return Ok("the store is the one that this node knows: nothing is to be done\n".to_owned());
    }
    file.store = id;
    // The confirmation is of the record's file: blocks that the node holds stay in use.
    let (path, confirmation) =
        (confirmed::path(SOCKET.as_ref()), identity::confirmation(settings.node)?);
    Identity::new(journal, &data_dir, path, confirmation)?.write(&file)?;
    let mut blocks = 0;
    for network in operator::networks(&data_dir) {
        let place = Place::new(&data_dir, &network, Deadline::default());
        blocks += Blocks::read(place.dir())?.map_or(0, |held| held.blocks.len());
    }
    let id = id.map_or("an empty store".to_owned(), |id| format!("store {id}"));
    Ok(format!(
        "{id} is accepted; once the daemon starts, this node claims its {blocks} blocks there\n\
         a block that another node has by then is lost, and its containers run on: \
         see `cni-multi ipam blocks`\n"
    ))
}
