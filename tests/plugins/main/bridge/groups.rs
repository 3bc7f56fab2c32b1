//! `groupFwdMask`: the reserved multicast addresses to which the bridge forwards frames.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::netns::Lab;
use crate::support::networks::bridge::conf;

fn mask(lab: &Lab) -> Value {
    lab.host.json("ip -d -j link show br0")[0]["linkinfo"]["info_data"]["group_fwd_mask"].clone()
}

/// 16384 is for 01:80:c2:00:00:0e, of PTP and LLDP.
#[test]
fn a_bridge_forwards_the_groups_of_each_of_its_networks() {
    for_ours("bridge", |lab| {
        let of = |bits: u32| with(&conf(), json!({"groupFwdMask": bits}));
        let first = lab.attach(&lab.container(), &of(16384));
        let result = first.add();
        assert_eq!(mask(lab), "0x4000");
        lab.attach(&lab.container(), &of(8)).add();
        lab.attach(&lab.container(), &conf()).add();
        assert_eq!(mask(lab), "0x4008");
        first.check(&result).ok();
        lab.host.sh("ip link set br0 type bridge group_fwd_mask 8");
        let error = first.check(&result).err();
        let msg = r#"bridge "br0" lacks bits 0x4000 of group_fwd_mask"#;
        assert_eq!((error.code, error.msg.as_str()), (103, msg));
    });
}
