//! `install --uninstall` and `--rollback` to the reference: what its DEL looks for is there, and what
//! is printed can be done.

use serde_json::json;

use super::with_reference;
use crate::support::attachment::{for_ours, has_programs, with};
use crate::support::call::binary;
use crate::support::netns::Lab;
use crate::support::networks::bridge;
use crate::support::synced::{attach, net};

const CHAINS: &str = "for p in iptables ip6tables; do $p -t nat -S; done | grep -c '^-N CNI-' || :";

/// Installs into a directory of the pretend host, and goes back by the binary `by`; returns stdout
/// and stderr.
#[track_caller]
fn go_back(lab: &Lab, by: &str, how: &str) -> String {
    lab.host.sh(&format!(
        "mkdir -p /run/bin && {{ [ -e /run/bin/tap ] || ln -s /bin/true /run/bin/tap; }} &&
         {} install --dir /run/bin >/dev/null && {by} install --{how} --dir /run/bin 2>&1",
        binary().display()
    ))
}

/// Of three attachments one has its names in the comment of its elements, one has them in a record
/// alone, and of one nothing has them.
#[test]
fn going_back_makes_the_chains_of_masqueraded_attachments() {
    if !has_programs(&["iptables"]) {
        return;
    }
    for_ours("bridge", |lab| {
        let conf = with(&bridge::dual_stack(), json!({"ipMasq": true}));
        let synced = attach(lab, std::slice::from_ref(&conf), "");
        let [long, lost] = ["l", "m"].map(|letter| letter.repeat(100));
        let (recorded, nameless) = (lab.container(), lab.container());
        let line = format!("pods {} --container-id {long}", recorded.netns);
        net(lab, &format!("add {line}")).run().ok();
        let other = json!({"bridge": "br2", "ipam": {"ranges": [[{"subnet": "10.20.0.0/24"}]]}});
        let nameless = lab.attach(&nameless, &with(&conf, other)).id(&lost);
        nameless.add();
        let by = binary().display().to_string();
        for how in ["uninstall", "rollback"] {
            assert_eq!(lab.host.sh(CHAINS), "0\n");
            let said = go_back(lab, &by, how);
            assert_eq!(lab.host.sh(CHAINS), "4\n", "{said}");
            assert!(said.contains("for the reference's DEL: 4\n"), "{said}");
            assert!(said.contains("1 masqueraded attachments have no record"), "{said}");
            let again = go_back(lab, &by, how);
            assert!(!again.contains("for the reference's DEL:"), "{again}");
            lab.host.sh("for p in iptables ip6tables; do $p -t nat -X; done");
        }
        let nowhere = format!("{by} install --uninstall --dir /run/nowhere");
        let said = lab.host.sh(&nowhere); // as packages call it
        assert_eq!(lab.host.sh(CHAINS), "4\n", "{said}");
        synced.check().ok();
        synced.del();
        net(lab, &format!("del {line}")).run().ok();
        assert_eq!(lab.host.sh(CHAINS), "0\n", "our DEL removes them, too");
    });
}

/// The first one, not a second one.
#[test]
fn the_reference_s_first_del_succeeds_after_an_uninstall() {
    with_reference(|lab, reference| {
        for plugin in ["bridge", "ptp"] {
            let changes = json!({"type": plugin, "name": plugin, "ipMasq": true});
            let container = lab.container();
            let attachment = lab.attach(&container, &with(&bridge::dual_stack(), changes));
            attachment.add();
            go_back(lab, &binary().display().to_string(), "uninstall");
            attachment.by(reference).del();
            assert!(container.link("eth0").is_none(), "{plugin}");
            assert_eq!(lab.host.sh(CHAINS), "0\n");
        }
    });
}
