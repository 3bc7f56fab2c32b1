//! What the IPAM daemon writes for plugins, without one.

use serde_json::{Value, json};

use super::netns::Lab;

/// The parent of the networks' directories.
pub const DATA: &str = "/var/lib/cni/cluster-local";

impl Lab {
    /// Gives a network active blocks, with changes of each. The plugin has written what is configured.
    pub fn hold(&self, network: &str, blocks: &[(&str, Value)]) {
        let path = self.path(&format!("{DATA}/{network}/blocks.json"));
        let mut file: Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let held = |(block, changes): &(&str, Value)| {
            let mut held = json!({"block": block, "token": "000000000000000000000000000000ab",
                "state": "active", "since": 1_795_000_000});
            held.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            held
        };
        file["blocks"] = blocks.iter().map(held).collect();
        std::fs::write(path, file.to_string()).unwrap();
    }

    /// Confirms the blocks of the node, with the modes that the daemon gives its files.
    pub fn confirm(&self) {
        self.host.sh(&format!(
            r#"umask 077; mkdir -p {DATA}/.node /run/cni-multi
               test -e {DATA}/.node/node.json || echo '{{}}' >{DATA}/.node/node.json
               time=$(stat -c %y {DATA}/.node/node.json)
               nanoseconds=${{time#*.}}
               nanoseconds=$(echo "${{nanoseconds%% *}}" | sed 's/^0*\(.\)/\1/')
               stat -c '{{"boot":"'$(cat /proc/sys/kernel/random/boot_id)'","node":"n1",
                   "machine":"00000000000000000000000000000007","record":[%d,%i,%Y,'$nanoseconds']}}' \
                   {DATA}/.node/node.json >/run/cni-multi/ipam-confirmed.json"#
        ));
    }
}
