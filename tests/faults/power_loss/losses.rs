//! The disks that an unfinished operation may leave.
//!
//! A killed process leaves everything it has done. After a power loss any unsynced part may be
//! missing: a change of a name, even if later changes survived, and the content of a file with a
//! surviving name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::disk::{Change, Content, Disk};
use super::recording::Recording;

/// A disk that an operation may leave.
pub struct State {
    pub disk: Disk,
    /// Which of them it is, for messages.
    pub what: String,
}

/// The share of the possible disks after a power loss that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Each damage, to all files at once.
    Together,
    /// Each damage, to all files at once and to each file. With a change missing: all files whole,
    /// or all files empty.
    Usual,
    /// Each damage, to all files at once and to each file, with and without each missing change.
    All,
}

/// The damage to a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// No content.
    Empty,
    /// The first half only.
    Half,
    /// The full length, all zeros.
    Zeros,
    /// The first half of the new content and the second half of the old.
    Mixed,
}

const DAMAGES: [Damage; 4] = [Damage::Empty, Damage::Half, Damage::Zeros, Damage::Mixed];

impl Damage {
    fn of(self, content: &[u8], before: Option<&[u8]>) -> Vec<u8> {
        let half = content.len() / 2;
        match (self, before) {
            (Damage::Empty, _) => vec![],
            (Damage::Zeros, _) => vec![0; content.len()],
            (Damage::Mixed, Some(before)) => {
                [&content[..half], before.get(half..).unwrap_or_default()].concat()
            }
            (Damage::Half | Damage::Mixed, _) => content[..half].to_vec(),
        }
    }
}

impl Recording {
    /// The disk after the first `changes` changes, without the missing one.
    pub fn after(&self, changes: usize, missing: Option<usize>) -> Disk {
        let mut disk = self.before.clone();
        let made =
            self.changes[..changes].iter().enumerate().filter(|(at, _)| Some(*at) != missing);
        made.for_each(|(_, change)| disk.apply(change));
        disk
    }

    /// The disks after a kill at each change: the kernel lives on, and so does every change.
    pub fn killed(&self) -> Vec<State> {
        let mut states = States::default();
        for count in 0..=self.changes.len() {
            states.add(self.after(count, None), || format!("killed after {}", self.told(count)));
        }
        states.found
    }

    /// The disks after a power loss at each change.
    pub fn without_power(&self, depth: Depth) -> Vec<State> {
        let mut states = States::default();
        for count in 0..=self.changes.len() {
            self.lose(count, depth, &mut states);
        }
        states.found
    }

    /// The disks after a power loss after the last change.
    pub fn without_power_at_last(&self, depth: Depth) -> Vec<State> {
        let mut states = States::default();
        self.lose(self.changes.len(), depth, &mut states);
        states.found
    }

    /// The disks after a power loss after `count` changes.
    fn lose(&self, count: usize, depth: Depth, states: &mut States) {
        let is_undoable = |at: &usize| depth > Depth::Together && !self.is_durable(*at, count);
        let undoable = (0..count).filter(is_undoable);
        for missing in std::iter::once(None).chain(undoable.map(Some)) {
            let mut disk = self.after(count, missing);
            reboot(&mut disk);
            let what = || {
                let without = missing.map(|at| format!(" without {:?}", self.changes[at]));
                let without = without.unwrap_or_default();
                format!("no power after {}{without}", self.told(count))
            };
            for (files, damage) in damages(&disk, depth, missing.is_some()) {
                let damaged = damaged(&disk, &files, damage);
                states.add(damaged, || format!("{}, {damage:?} {files:?}", what()));
            }
            states.add(disk, what);
        }
    }

    /// Whether a change is surely on the disk: the changed file or its directory was synced
    /// afterwards.
    fn is_durable(&self, at: usize, count: usize) -> bool {
        let to = match &self.changes[at] {
            Change::Create(name, _)
            | Change::MakeDir(name, _)
            | Change::Write(name, ..)
            | Change::SetLen(name, _) => name,
            Change::Link(_, name) | Change::Rename(_, name) | Change::Remove(name) => name,
            Change::SetTime(name, ..) | Change::Sync(name) => name,
        };
        let is_of = |synced: &Path| synced == to || to.parent() == Some(synced);
        let is_sync = |change: &Change| matches!(change, Change::Sync(synced) if is_of(synced));
        self.changes[at..count].iter().any(is_sync)
    }

    fn told(&self, count: usize) -> String {
        let last = count.checked_sub(1).map(|last| format!(", {:?}", self.changes[last]));
        format!("{count} changes{}", last.unwrap_or_default())
    }
}

/// The modification times that the index of leases sets belong to one boot.
fn reboot(disk: &mut Disk) {
    for node in disk.nodes.values_mut() {
        if let Content::Dir(Some((seconds, _))) = &mut node.content {
            *seconds += 2;
        }
    }
}

/// The files to damage, and how: all of them at once, and each by itself. Together with a missing
/// change, one damage is enough.
fn damages(disk: &Disk, depth: Depth, is_one_missing: bool) -> Vec<(Vec<PathBuf>, Damage)> {
    let is_in_danger = |name: &&Path| disk.node(name).is_some_and(|node| !node.is_synced);
    let files: Vec<PathBuf> =
        disk.files().into_iter().filter(is_in_danger).map(Path::to_owned).collect();
    if is_one_missing && depth < Depth::All {
        return vec![(files, Damage::Empty)];
    }
    let mut sets = vec![files.clone()];
    if depth > Depth::Together {
        sets.extend(files.into_iter().map(|file| vec![file]));
    }
    sets.into_iter().flat_map(|files| DAMAGES.map(|damage| (files.clone(), damage))).collect()
}

fn damaged(disk: &Disk, files: &[PathBuf], damage: Damage) -> Disk {
    let mut damaged = disk.clone();
    for file in files {
        // Hard links are damaged as one file.
        let node = &disk.nodes[&disk.names[file]];
        let Content::File(content) = &node.content else { continue };
        let content = damage.of(content, node.before.as_deref());
        damaged.nodes.get_mut(&disk.names[file]).unwrap().content = Content::File(content);
    }
    damaged
}

/// The distinct states, however they came about.
#[derive(Default)]
struct States {
    known: BTreeSet<Vec<(PathBuf, PathBuf, u32, Content)>>,
    found: Vec<State>,
}

impl States {
    fn add(&mut self, disk: Disk, what: impl FnOnce() -> String) {
        if self.known.insert(disk.told()) {
            self.found.push(State { disk, what: what() });
        }
    }
}
