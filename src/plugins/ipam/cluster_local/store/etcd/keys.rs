//! The keys of etcd, below `/cni-multi/v2/CLUSTER/`.

use super::super::super::name::Name;
use super::super::Key;
use super::gateway::encode;

/// The keys of one cluster.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// The keys of a cluster.
    pub fn of(cluster: &Name) -> Keys {
        Keys { prefix: format!("/cni-multi/v2/{cluster}/") }
    }

    /// The text of a key, or what those of a folder begin with.
    pub fn below(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// The text of a key.
    pub fn text(&self, key: &Key) -> String {
        self.below(&match key {
            Key::Meta => "c/meta".to_owned(),
            Key::Node(node) => format!("n/{node}"),
            Key::Block(realm, block) => format!("b/{realm}/{block}"),
            Key::Want(node) => format!("c/want/{node}"),
            Key::Conflict(realm, block) => format!("c/conflict/{realm}/{block}"),
        })
    }

    /// The text of a key in base64.
    pub fn encoded(&self, key: &Key) -> String {
        encode(self.text(key))
    }

    /// The key of a text; None if it is none of the cluster's.
    pub fn key(&self, text: &str) -> Option<Key> {
        let parts: Vec<&str> = text.strip_prefix(&self.prefix)?.split('/').collect();
        Some(match parts.as_slice() {
            ["c", "meta"] => Key::Meta,
            ["n", node] => Key::Node(node.parse().ok()?),
            ["b", realm, block] => Key::Block(realm.parse().ok()?, block.parse().ok()?),
            ["c", "want", node] => Key::Want(node.parse().ok()?),
            ["c", "conflict", realm, block] => {
                Key::Conflict(realm.parse().ok()?, block.parse().ok()?)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::of(&"prod".parse().unwrap())
    }

    #[test]
    fn each_key_is_read_from_the_text_that_it_is_written_as() {
        let (node, realm): (Name, Name) = ("n1".parse().unwrap(), "default".parse().unwrap());
        let block = "4-0a580140-26".parse().unwrap();
        let table = [
            (Key::Meta, "/cni-multi/v2/prod/c/meta"),
            (Key::Node(node.clone()), "/cni-multi/v2/prod/n/n1"),
            (Key::Block(realm.clone(), block), "/cni-multi/v2/prod/b/default/4-0a580140-26"),
            (Key::Want(node), "/cni-multi/v2/prod/c/want/n1"),
            (Key::Conflict(realm, block), "/cni-multi/v2/prod/c/conflict/default/4-0a580140-26"),
        ];
        for (key, text) in table {
            assert_eq!(keys().text(&key), text);
            assert_eq!(keys().key(text), Some(key));
        }
    }

    #[test]
    fn other_texts_are_no_keys() {
        for text in [
            "",
            "/cni-multi/v2/prod/",
            "/cni-multi/v2/prod2/n/n1",
            "/cni-multi/v1/prod/n/n1",
            "/cni-multi/v2/prod/n/N1",
            "/cni-multi/v2/prod/n/n1/x",
            "/cni-multi/v2/prod/b/default",
            "/cni-multi/v2/prod/b/default/4-0a580141-26",
            "/cni-multi/v2/prod/c/want",
            "/cni-multi/v2/prod/c/meta/",
        ] {
            assert_eq!(keys().key(text), None, "{text}");
        }
    }
}
