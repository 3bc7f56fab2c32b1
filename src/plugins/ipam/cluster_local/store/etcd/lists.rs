//! Lists of keys, read in pages at the revision of the first one.

use serde_json::{Value as Json, json};

use super::super::super::block::Block;
use super::super::super::name::Name;
use super::super::{Key, Selection, Stored, Value};
use super::gateway::{Verdict, decode, encode};
use super::{Etcd, RANGE, TXN, one, prefix, stored};

/// The keys of one page: some 500 bytes each in the reply.
const PAGE: usize = 1000;
/// The most keys of a list, as a limit of memory.
const MOST_KEYS: usize = 1_000_000;
/// How often a list starts again because its revision was compacted.
pub(super) const RESTARTS: usize = 3;
impl Etcd {
    /// The records below some paths, at one revision, which is the second.
    pub fn pages(
        &mut self,
        paths: &[&str],
        are_hints: bool,
        keep: impl Fn(&Value) -> bool,
    ) -> Result<(Vec<Stored>, u64), Verdict> {
        for _ in 0..RESTARTS {
            match self.pages_once(paths, are_hints, &keep) {
                Err(Verdict::Compacted) => (),
                pages => return pages,
            }
        }
        self.pages_once(paths, are_hints, &keep)
    }

    fn pages_once(
        &mut self,
        paths: &[&str],
        are_hints: bool,
        keep: &impl Fn(&Value) -> bool,
    ) -> Result<(Vec<Stored>, u64), Verdict> {
        let (mut found, mut revision, mut count) = (vec![], 0, 0);
        for path in paths {
            let mut from = self.keys.below(path).into_bytes();
            let mut range = prefix(&self.keys.below(path));
            range["limit"] = json!(PAGE.to_string());
            range["serializable"] = json!(are_hints);
            loop {
                range["key"] = json!(encode(&from));
                range["revision"] = json!(revision.to_string());
                let page = self.ask(RANGE, &range)?;
                revision = if revision == 0 { page.header.revision.0 } else { revision };
                let records = page.kvs.iter().filter_map(|kv| stored(&self.keys, kv));
                found.extend(records.filter(|stored| keep(&stored.record.value)));
                count += page.kvs.len();
                if !page.more {
                    break;
                }
                let last = page.kvs.last().and_then(|last| decode(&last.key));
                let next = last.filter(|last| *last >= from && count <= MOST_KEYS);
                let endless = || Verdict::Unknown("the response has a page without an end".into());
                from = next.ok_or_else(endless)?;
                from.push(0);
            }
        }
        Ok((found, revision))
    }

    /// The records of a selection.
    pub fn select(&mut self, selection: &Selection) -> Result<Vec<Stored>, Verdict> {
        let of_realm = |realm: &Name| format!("b/{realm}/");
        let found = match selection {
            Selection::Node(node) => {
                self.pages(&["b/", "c/conflict/"], false, |value| match value {
                    Value::Claim(claim) => claim.node == *node,
                    Value::Conflict(of) => of == node,
                    _ => false,
                })
            }
            Selection::Confirm { realm, blocks, .. } => return self.confirm(realm, blocks),
            Selection::Named(realm, name) => self.pages(
                &[&of_realm(realm)],
                false,
                |value| matches!(value, Value::Claim(claim) if claim.name.as_ref() == Some(name)),
            ),
            Selection::Realm(realm) => self.pages(&[&of_realm(realm)], true, |_| true),
            Selection::Nodes => self.pages(&["n/"], false, |_| true),
            Selection::All => self.pages(&[""], false, |_| true),
        };
        found.map(|(found, _)| found)
    }

    /// Reads blocks and conflicts in one transaction. A transaction of reads is linearizable, too.
    fn confirm(&mut self, realm: &Name, blocks: &[Block]) -> Result<Vec<Stored>, Verdict> {
        let keys = blocks.iter().map(|block| self.keys.text(&Key::Block(realm.clone(), *block)));
        let conflicts = prefix(&self.keys.below(&format!("c/conflict/{realm}/")));
        let ranges = keys.map(|key| one(&key)).chain([conflicts]);
        let reads: Vec<Json> = ranges.map(|range| json!({"requestRange": range})).collect();
        let reply = self.ask(TXN, &json!({"success": reads}))?;
        let kvs = reply.responses.iter().flat_map(|part| &part.response_range.kvs);
        Ok(kvs.filter_map(|kv| stored(&self.keys, kv)).collect())
    }
}
