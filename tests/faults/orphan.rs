//! A program started by a plugin that survives SIGKILL of the plugin: DEL waits for it to end.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::call::Outcome;
use crate::support::dhcp::wait_until;
use crate::support::list::List;
use crate::support::netns::Lab;
use crate::support::networks::bridge;
use crate::support::networks::portmap::{portmap, web};
use crate::support::snapshot::Watch;

/// Slow wrappers of the restore programs that signal when they begin and end.
const SLOW: &str = r#"mkdir -p /run/slow && cd /run/slow && for name in iptables-restore ip6tables-restore; do
    cat >$name <<END
#!/bin/sh
cat >/run/told; touch /run/began; sleep 1
$(command -v $name) "\$@" </run/told; status=\$?
rm /run/told; touch /run/ended; exit \$status
END
    chmod +x $name
done"#;

/// Kills the last plugin's ADD while its program runs, and calls every DEL at once.
fn kill_and_delete(lab: &Lab, chain: &[Value]) {
    let container = lab.container();
    let mut plugins = List::of(lab, &container, chain);
    let last = plugins.0.pop().unwrap();
    let result = plugins.add();
    let mut child = last.call("ADD", Some(&result)).with_programs("/run/slow").spawn();
    wait_until("the program is at work", 10, || lab.path("/run/began").exists());
    child.kill().unwrap();
    assert_eq!(Outcome::of(child).status, -1);
    last.del();
    plugins.del(&Value::Null);
    wait_until("the program has ended", 10, || lab.path("/run/ended").exists());
    lab.host.sh("rm /run/began /run/ended");
}

#[test]
fn del_waits_for_the_program_of_an_add_that_was_killed() {
    let main = with(&bridge::conf(), json!({"isGateway": true}));
    let masqueraded = with(&main, json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
    let chains = [
        vec![masqueraded],
        vec![main.clone(), portmap(Some("iptables"), json!([web()]))],
        vec![main, json!({"type": "firewall", "backend": "iptables"})],
    ];
    for_ours("bridge", |lab| {
        lab.host.sh(SLOW);
        // Creates the iptables chains that stay.
        chains.iter().for_each(|chain| kill_and_delete(lab, chain));
        let before = Watch::start(lab, &[]);
        for chain in &chains {
            kill_and_delete(lab, chain);
            before.assert_unchanged(&format!("a kill of {}", chain.last().unwrap()["type"]));
        }
    });
}
