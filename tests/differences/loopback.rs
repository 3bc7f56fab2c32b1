//! Deliberate differences of loopback from the reference.

use serde_json::json;

use super::differs;

/// The reference prints the 1.0.0 form under the number of the old version.
#[test]
fn loopback_results_have_the_form_of_their_version() {
    differs("loopback", (true, true), (false, false), |lab| {
        let conf = |version: &str| json!({"cniVersion": version, "name": "lo", "type": "loopback"});
        let old = lab.attach(&lab.container(), &conf("0.2.0")).ifname("lo").add();
        let middle = lab.attach(&lab.container(), &conf("0.4.0")).ifname("lo").add();
        (old.get("ip4").is_some(), middle["ips"][0].get("version").is_some())
    });
}
