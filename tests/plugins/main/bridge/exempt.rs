//! What an administrator exempts from masquerading: by a key, by IPsec, by rules of its own.

use serde_json::{Value, json};

use super::masquerade::conf;
use crate::support::attachment::{for_ours, ips, skip, with};
use crate::support::networks::bridge::warm_up;
use crate::support::networks::flannel;
use crate::support::snapshot::Watch;
use crate::support::traffic::{assert_masqueraded, assert_not_masqueraded};

const BACKENDS: [&str; 2] = ["nftables", "iptables"];

/// The networks of the peer outside, with host bits, twice, and one more.
fn exempt() -> Value {
    json!(["198.51.100.9/24", "192.0.2.0/24", "2001:db8:ffff::/64", "198.51.100.0/24"])
}

fn with_exemptions(conf: &Value) -> Value {
    with(conf, json!({"nonMasqueradeCIDRs": exempt()}))
}

#[test]
fn issue_40_exempt_networks_see_the_container() {
    for plugin in ["bridge", "ptp"] {
        for backend in BACKENDS {
            for_ours(plugin, |lab| {
                let plain = with(
                    &conf(Some(backend)),
                    json!({"type": plugin, "ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}),
                );
                warm_up(lab, &plain);
                let before = Watch::start(lab, &[]);
                let (a, b) = (lab.container(), lab.container());
                let exempted = lab.attach(&a, &with_exemptions(&plain));
                let other = lab.attach(&b, &plain);
                let results = [exempted.add(), other.add()];
                ips(&results[0]).iter().for_each(|ip| assert_not_masqueraded(lab, &a, ip));
                ips(&results[1]).iter().for_each(|ip| assert_masqueraded(lab, &b, ip));
                exempted.check(&results[0]).ok();
                other.check(&results[1]).ok();
                exempted.clone().netns(None).conf(json!({"nonMasqueradeCIDRs": null})).del();
                other.check(&results[1]).ok();
                other.del();
                before.assert_unchanged(&format!("{plugin} with {backend}"));
            });
        }
    }
}

/// flannel hands the key on, as it does with `ipMasq`.
#[test]
fn issue_40_flannel_takes_exemptions_in_its_delegate() {
    for_ours("flannel", |lab| {
        flannel::node(lab);
        let conf = with(
            &flannel::conf(),
            json!({"cniVersion": "1.0.0", "name": "cbr0", "delegate": {"nonMasqueradeCIDRs": exempt()}}),
        );
        let container = lab.container();
        let result = lab.attach(&container, &conf).add();
        ips(&result).iter().for_each(|ip| assert_not_masqueraded(lab, &container, ip));
    });
}

/// The configuration was changed while the container runs.
#[test]
fn issue_40_other_exemptions_fail_check() {
    for (backend, words) in
        [("nftables", "of other nonMasqueradeCIDRs"), ("iptables", "of chain CNI-")]
    {
        for_ours("bridge", |lab| {
            let container = lab.container();
            let attachment = lab.attach(&container, &conf(Some(backend)));
            let result = attachment.add();
            attachment.check(&result).ok();
            let changed = attachment.clone().conf(json!({"nonMasqueradeCIDRs": exempt()}));
            let error = changed.check(&result).err();
            assert_eq!(error.code, 103, "{error:?}");
            assert!(error.text().contains(words), "{error:?}");
        });
    }
}

#[test]
fn issue_40_a_wrong_exemption_is_named() {
    for_ours("bridge", |lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let changes = json!({"nonMasqueradeCIDRs": ["192.0.2.0/24", "192.0.2.0/33"]});
        let error = lab.attach(&container, &with(&conf(None), changes)).try_add().err();
        assert!([6, 7].contains(&error.code), "{error:?}");
        assert!(error.text().contains("nonMasqueradeCIDRs[1]"), "{error:?}");
        assert!(error.text().contains("192.0.2.0/33"), "{error:?}");
        before.assert_unchanged("the refused ADD");
    });
}

/// The two ends of a tunnel for the containers' packets.
const TUNNEL: &str = "
    state='proto esp spi 0x40 reqid 40 mode tunnel aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128'
    set -e
    for at in '' '-n outside'; do
        ip $at xfrm state add src 198.51.100.1 dst 198.51.100.2 $state
        ip $at xfrm state add src 2001:db8:ffff::1 dst 2001:db8:ffff::2 $state
    done
    ip xfrm policy add src 10.10.0.0/16 dst 198.51.100.0/24 dir out \
        tmpl src 198.51.100.1 dst 198.51.100.2 proto esp reqid 40 mode tunnel
    ip xfrm policy add src 2001:db8:10::/48 dst 2001:db8:ffff::/64 dir out \
        tmpl src 2001:db8:ffff::1 dst 2001:db8:ffff::2 proto esp reqid 40 mode tunnel";

#[test]
fn issue_40_packets_of_ipsec_keep_their_source() {
    for_ours("bridge", |lab| {
        let (a, b) = (lab.container(), lab.container());
        let one = lab.attach(&a, &conf(Some("nftables")));
        let result = one.add();
        ips(&result).iter().for_each(|ip| assert_masqueraded(lab, &a, ip));
        if !lab.host.try_sh(TUNNEL).status.success() {
            return skip("IPsec in the kernel (xfrm_user, esp4, esp6)");
        }
        ips(&lab.attach(&b, &conf(Some("nftables"))).add())
            .iter()
            .for_each(|ip| assert_not_masqueraded(lab, &b, ip));
        one.check(&result).ok();
    });
}
