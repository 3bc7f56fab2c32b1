//! Deliberate differences of host-local and static from the reference.

use serde_json::{Value, json};

use super::differ;
use crate::plugins::ipam::host_local::ranges;
use crate::support::attachment::{Attachment, for_ours, with};
use crate::support::netns::{Container, Lab};

/// An empty reservation, as after a crash of the node, has no owner. Subdirectories do not belong to the network.
const ROWS: &str = r#"
never allocates the address of an empty reservation again | {"ipam": {"ranges": [[{"subnet": "10.0.0.0/30"}]]}} | mkdir -p $store; : >$store/10.0.0.2; try ADD | 0 | 1
has no STATUS | {"cniVersion": "1.1.0", "ipam": {"dataDir": "/run/file"}} | : >/run/file; try STATUS | 1 | 0
releases the addresses of the first ADD when a second one fails | {"ipam": {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24"}]]}} | add; with '"runtimeConfig":{"ips":["10.0.0.50"]}'; try ADD; ls $store|grep ^10 | 1 10.0.0.2 10.1.0.2 | 1
does not compare a requested address with the attachment's own, and then holds two | {} | add; with '"runtimeConfig":{"ips":["10.0.0.50"]}'; try ADD | 1 | 0
decodes ranges in DEL that it does not need | {"ipam": {"ranges": null, "subnet": "10.0.0.0/24"}} | add; conf=$(printf %s "$conf"|sed 's/"subnet"/"ranges":[],"subnet"/'); conf=$(printf %s "$conf"|sed 's/,"subnet":"[^"]*"//'); try DEL; ls $store|grep ^10 | 0 | 1 10.0.0.2
does not compare the start of a range with its end | {"ipam": {"ranges": [[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.255"}]]}} | try ADD | 1 | 0
reads a mapped address as IPv4 and its prefix length as IPv6 | {"ipam": {"ranges": [[{"subnet": "::ffff:10.0.0.0/104"}]]}} | try ADD && grep -o '"10[^"]*/8"' /run/ADD | 0 "10.0.0.2/8" | 1
makes the directory of a network in DEL | {} | del; [ ! -e $store ] || echo made |  | made
removes files in deeper directories | {} | add; mkdir $store/backup; cp $store/10.0.0.2 $store/backup; del; ls $store/backup | 10.0.0.2
asks in CHECK whether the container has any address | {} | add; sed -i 's/10\.0\.0\.2/10.0.0.99/' /run/ADD; check | 1 | 0
takes a result without the configured address in CHECK | {"type": "static", "ipam": {"type": "static", "ranges": null, "addresses": [{"address": "10.10.0.7/24"}]}} | echo '{"cniVersion":"1.0.0","ips":[{"address":"10.10.0.8/24"}]}' >/run/ADD; check | 1 | 0
"#;

fn alone(lab: &Lab, changes: Value) -> (Container, Attachment<'_>) {
    let container = lab.container();
    let conf = ranges(json!([[{"subnet": "10.0.0.0/24"}]]));
    let attachment = lab.attach(&container, &with(&conf, changes));
    (container, attachment)
}

#[test]
fn host_local_and_static_differ_where_the_table_says_so() {
    differ("host-local", ROWS, alone);
}

/// Of several addresses requested from one range set the first counts; the reference takes any.
#[test]
fn requested_addresses_count_in_their_order() {
    for_ours("host-local", |lab| {
        for number in 0..8 {
            let wanted = [format!("10.0.0.{}", 100 - number), format!("10.0.1.{}", 100 - number)];
            let conf = ranges(json!([[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]]));
            let conf = with(&conf, json!({"runtimeConfig": {"ips": wanted}}));
            let error = lab.attach(&lab.container(), &conf).try_add().err();
            assert_eq!(error.msg, format!("failed to allocate all requested IPs: {}", wanted[1]));
        }
    });
}
