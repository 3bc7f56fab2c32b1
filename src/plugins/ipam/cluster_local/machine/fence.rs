//! A node that was reclaimed while it was gone: its old blocks are others'. It allocates nothing from
//! them, and registers again once no lease of them is left.

use std::time::Duration;

use super::super::engine::Revision;
use super::super::held::{Held, State};
use super::contact::Contact;
use super::interface::{Line, Mark, NodeFile, Turn};
use super::network::{Step, Tracked};
use super::{At, Machine};

/// The wait before a fenced node looks again at its leases.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Machine {
    /// The node's record is of a later incarnation than its own, or fenced.
    pub(super) fn on_fenced(&mut self, incarnation: u64, seen: Revision, turn: &mut Turn<'_>) {
        if self.lose_blocks_before(incarnation, turn) {
            self.tell(Line::Fenced, "fenced", turn);
            self.relation.contact = Contact::Fenced { retry: turn.after(LOOK_AGAIN) };
        } else if self.file.incarnation < incarnation {
            // On the disk first: blocks of this incarnation are not old after a crash.
            self.write_node_file(NodeFile { incarnation, ..self.file }, turn);
            self.relation.contact = Contact::Fenced { retry: turn.after(Duration::ZERO) };
        } else {
            self.register(seen, turn);
        }
    }

    /// Marks the blocks of earlier incarnations as lost, and returns whether any is left.
    pub(super) fn lose_blocks_before(&mut self, incarnation: u64, turn: &mut Turn<'_>) -> bool {
        let old: Vec<(At, Held)> = self.old_blocks(incarnation);
        for (at, held) in &old {
            let rests = self.tracked(at).is_some_and(|tracked| tracked.step == Step::Rest);
            if rests && held.state != State::Lost {
                let lost = Held { state: State::Lost, of: None, since: turn.wall, ..held.clone() };
                self.mark(&at.network, vec![Mark::Put(lost)], vec![], turn);
            }
        }
        !old.is_empty()
    }

    fn old_blocks(&self, incarnation: u64) -> Vec<(At, Held)> {
        let mut old = vec![];
        for (name, network) in &self.networks {
            for Tracked { held, .. } in network.blocks.values() {
                if held.incarnation < incarnation {
                    old.push((At { network: name.clone(), block: held.block }, held.clone()));
                }
            }
        }
        old
    }
}
