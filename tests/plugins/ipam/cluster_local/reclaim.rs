//! `ipam reclaim`: the blocks of a node that is off, and the node if it comes back.

use super::daemon::{SMALL, add_all, etcd};
use crate::support::etcd::Etcd;
use crate::support::node::Node;

/// The keys of the blocks of the realm, each with its value.
pub fn blocks(etcd: &Etcd) -> String {
    etcd.members[0].ctl("get --prefix /cni-multi/v2/test/b/default/")
}

/// The commands that a page has for a test.
pub fn of_page(page: &str, test: &str) -> String {
    let fence = format!("```sh run by plugins::ipam::cluster_local::{test}\n");
    let block = page.split(&fence).nth(1).unwrap_or_else(|| panic!("no block of {test}"));
    block.split("```").next().unwrap().to_owned()
}

/// What the page promises of the node that returns: another node's blocks are lost, and it claims
/// others with a new uid.
#[test]
fn the_page_of_operations_reclaims_a_lost_node() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    let old: Vec<String> = ["a", "b", "c"].map(|id| one.add(SMALL, id)).into();
    two.add(SMALL, "d");
    one.kill();
    let page = include_str!("../../../../docs/cluster-operations.md");
    let test = "reclaim::the_page_of_operations_reclaims_a_lost_node";
    let printed = two.run_commands(&of_page(page, test));
    assert!(printed.starts_with("node \"n1\" is reclaimed; blocks freed: "), "{printed}");
    assert!(printed.contains(&format!("default  {}/32", old[0])), "{printed}");
    assert!(!blocks(&etcd).contains("\"node\":\"n1\""), "{}", blocks(&etcd));
    let again = two.ipam("reclaim n1");
    let nothing = "node \"n1\" has nothing in the cluster\n";
    assert_eq!((again.status, again.stdout.as_str()), (0, nothing), "{again:?}");

    let ids = ["e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];
    assert_eq!(add_all(&two, SMALL, &ids).len(), 12, "each address but that of d");
    one.start();
    one.wait_until(|node| node.ipam("blocks").stdout.matches(" lost ").count() == 3);
    let check = one.check(SMALL, "a", &old[0]).err();
    assert_eq!(check.code, 103, "{check:?}");
    ["a", "b", "c"].iter().for_each(|id| one.del(SMALL, id));
    two.del(SMALL, "e");
    one.wait_until(|node| node.try_add(SMALL, "q").status == 0);
    assert!(!one.ipam("blocks").stdout.contains(" lost "), "{:?}", one.ipam("blocks"));
}

#[test]
fn a_living_node_is_not_reclaimed() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    one.add(SMALL, "a");
    let before = blocks(&etcd);
    let refused = two.ipam("reclaim n1");
    assert_eq!((refused.status, refused.stdout.as_str()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("a living node would answer in the next "), "{refused:?}");
    assert!(refused.stderr.contains("node \"n1\" lives: nothing was freed\n"), "{refused:?}");
    assert_eq!(blocks(&etcd), before);
    one.add(SMALL, "b");
}

#[test]
fn a_node_that_trusts_its_reboot_is_reclaimed_once_it_is_destroyed() {
    let Some(etcd) = etcd() else { return };
    let one = Node::configured(&etcd, 1, &serde_json::json!({"trustReboot": true}));
    one.start();
    one.add(SMALL, "a");
    let two = Node::join(&etcd, 2);
    let refused = two.ipam("reclaim n1");
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stderr.contains("add --destroyed"), "{refused:?}");
}

#[test]
fn wrong_names_and_configurations_name_the_next_step() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    one.add(SMALL, "a");
    two.add(SMALL, "b");
    let files = r#"cd /run; set -e
        cp /etc/cni-multi/ipam.json open.json; chmod 644 open.json
        sed s/10.78.0.254:2379/10.78.0.254:9/ /etc/cni-multi/ipam.json >away.json; chmod 600 away.json
        echo '{"cluster":' >torn.json; chmod 600 torn.json"#;
    two.lab.host.sh(files);
    for (line, said) in [
        ("reclaim n2", "NODE: \"n2\" is the node that this command runs on, expected another"),
        ("reclaim a/b", "NODE: \"a/b\" is not a valid name, expected lower-case letters"),
        ("reclaim n1 --config /run/none.json", "/run/none.json: no such file or directory"),
        ("reclaim n1 --config /run/none.json", "name the file with --config"),
        ("reclaim n1 --config /run/open.json", "mode 0644 of user 0, expected 0600"),
        ("reclaim n1 --config /run/torn.json", "/run/torn.json"),
        ("recover", "stop the daemon first"),
        ("join", "stop the daemon first"),
        ("blocks --all --config /run/away.json", "connect to http://10.78.0.254:9"),
    ] {
        let refused = two.ipam(line);
        assert_eq!((refused.status, refused.stdout.as_str()), (1, ""), "{line}: {refused:?}");
        assert!(refused.stderr.contains(said), "{line}: {refused:?}");
    }
    let unknown = two.ipam("reclaim n11");
    let said = "node \"n11\" has nothing in the cluster; did you mean \"n1\"?\n";
    assert_eq!((unknown.status, unknown.stdout.as_str()), (0, said), "{unknown:?}");
    assert_eq!(two.ipam("reclaim").status, 2);
}

#[test]
fn records_that_were_edited_by_hand_are_named_and_left_alone() {
    let Some(etcd) = etcd() else { return };
    let two = Node::join(&etcd, 2);
    two.add(SMALL, "b");
    etcd.members[0].ctl("put /cni-multi/v2/test/b/default/4-0b000000-26 mine");
    etcd.members[0].ctl("put /cni-multi/v2/test/n/n9 mine");
    let broken = two.ipam("reclaim n9");
    assert!(broken.stderr.contains("the node's record cannot be read"), "{broken:?}");
    let listed = two.ipam("blocks --all -o json").ok();
    let problem = listed.as_array().unwrap().iter().find(|row| row["block"] == "11.0.0.0/26");
    let problem = problem.unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(problem["state"], "unreadable", "{listed}");
}
