//! Any text as the output of iptables-save: chains and rules are found as they are written there.

use std::fmt::Write as _;

use cni_multi::net::iptables::Saved;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let saved = Saved::parse(&text);
    let mut written = String::new();
    for (chain, rules) in saved.chains() {
        assert_eq!(saved.chain(chain), Some(rules));
        let _ = writeln!(written, ":{chain} - [0:0]");
        for rule in rules {
            assert!(saved.has(chain, rule));
            let _ = writeln!(written, "-A {chain} {rule}");
        }
    }
    assert_eq!(Saved::parse(&written), saved);
    for (chain, rule) in saved.leading_to("CNI-FORWARD") {
        assert!(saved.has(chain, rule));
    }
}
