//! Deliberate differences of firewall from the reference.

use serde_json::Value;

use super::{differ, differs};
use crate::support::attachment::{Attachment, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::firewall;

const ROWS: &str = r#"
takes any unknown backend for autodetection | {"backend": "ipfw"} | try ADD | 1 | 0
leaves its tables of iptables after the last DEL | {} | add; del; nft list tables|grep -o 'table ip filter' |  | table ip filter
makes chains again in CHECK | {} | iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP; add; iptables -F; iptables -X; check; iptables -S|grep -o 'N CNI-FORWARD' | 1 | 1 N CNI-FORWARD
"#;

fn admitted(lab: &Lab, changes: Value) -> (Container, Attachment<'_>) {
    let chain = lab.chain(&firewall::network(), &with(&firewall::firewall(None), changes));
    let attachment = Attachment::clone(&chain);
    (chain.container, attachment)
}

#[test]
fn firewalls_differ_where_the_table_says_so() {
    differ("firewall", ROWS, admitted);
}

/// The reference's DEL goes by the address alone, even if it has a new owner.
#[test]
fn a_late_del_does_not_cut_off_the_address_s_new_owner() {
    differs("firewall", true, false, |lab| {
        lab.host.sh(firewall::DROPPING);
        let first = firewall::admit(lab, &firewall::firewall(None));
        // The same result: it has the addresses now.
        let second = lab.attach(&lab.container(), &first.conf);
        second.add();
        first.del();
        lab.host.sh("iptables -S").contains(&format!("-s {}/32", first.ips()[0]))
    });
}
