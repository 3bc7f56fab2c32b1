//! Deliberate differences of dhcp from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differs};
use crate::support::attachment::with;
use crate::support::dhcp::scripted::{DISCOVER, RELEASE, REQUEST, Scripted, option};
use crate::support::dhcp::{Daemon, Kind, SOCKET, wait_until};
use crate::support::netns::Lab;
use crate::support::networks::dhcp;
use crate::support::peers::tests;

/// Makes one observation on a network with a scripted server and a daemon.
fn differs_in_dhcp<T: PartialEq + std::fmt::Debug>(
    script: Value,
    ours: T,
    reference: T,
    observe: impl Fn(&Lab, &Scripted, &mut Daemon) -> T,
) {
    differs("dhcp", ours, reference, |lab| {
        lab.lan(Kind::Macvlan);
        let server = Scripted::start(lab, script.clone());
        observe(lab, &server, &mut Daemon::start(lab))
    });
}

/// Leases of eight seconds, renewed after one.
fn renewed_soon() -> Value {
    json!({"lease": 8, "t1": 1, "t2": 6})
}

/// Waits long enough to show that something does not happen.
fn for_a_while() {
    std::thread::sleep(std::time::Duration::from_millis(2500));
}

tests! {
    leases_outlive_the_daemon = differs_in_dhcp(renewed_soon(), true, false, |lab, server, daemon| {
        lab.attach(&lab.container(), &dhcp::conf()).add();
        daemon.end_by("TERM");
        daemon.start_again();
        let before = server.heard_of(REQUEST).len();
        for_a_while();
        server.heard_of(REQUEST).len() > before
    });

    del_of_a_lease_needs_no_daemon = differs_in_dhcp(json!({}), OK, FAILED, |lab, _, daemon| {
        let attachment = lab.attach(&lab.container(), &dhcp::conf());
        attachment.add();
        daemon.kill();
        attachment.try_del().status
    });

    /// The reference broadcasts RELEASE from 0.0.0.0, which ordinary sockets do not receive.
    the_server_hears_that_a_lease_is_given_back =
        differs_in_dhcp(json!({}), 1, 0, |lab, server, _| {
        let attachment = lab.attach(&lab.container(), &dhcp::conf());
        attachment.add();
        attachment.del();
        for_a_while();
        server.heard_of(RELEASE).len()
    });

    check_of_a_lease_asks_no_server =
        differs_in_dhcp(json!({}), (FAILED, 1), (OK, 2), |lab, server, daemon| {
        let attachment = lab.attach(&lab.container(), &dhcp::conf());
        let result = attachment.add();
        daemon.end_by("TERM");
        lab.host.sh("rm -rf /run/cni/dhcp.*"); // so that the next daemon does not know the lease
        daemon.start_again();
        let status = attachment.check(&result).status;
        (status, server.heard_of(DISCOVER).len())
    });

    /// The reference's STATUS always succeeds.
    status_asks_for_the_dhcp_daemon = differs_in_dhcp(json!({}), FAILED, OK, |lab, _, daemon| {
        daemon.end_by("TERM");
        lab.attach(&lab.container(), &with(&dhcp::conf(), json!({"type": "dhcp", "master": null})))
            .status()
            .status
    });

    /// A bridge port vanishes with the namespace of its peer. The reference's daemon keeps the
    /// namespace open in a thread as long as the lease.
    the_dhcp_daemon_keeps_no_namespace_alive = differs("dhcp", 1, 2, |lab| {
        lab.lan(Kind::Bridge);
        let server = Scripted::start(lab, json!({"lease": 3, "t1": 1, "t2": 2}));
        let _daemon = Daemon::start(lab);
        let container = lab.container();
        lab.attach(&container, &Kind::Bridge.conf()).add();
        server.wait_for(REQUEST, 2, 5);
        container.vanish();
        for_a_while();
        lab.host.json("ip -j link show master br0").as_array().unwrap().len()
    });
}

/// The server may soon give an expired address to another client. The container keeps its other
/// addresses.
#[test]
fn an_expired_lease_takes_the_address_and_not_the_link() {
    // The reference retries each step for more than a minute, and then sets the link down.
    differs_in_dhcp(
        json!({"lease": 3, "t1": 1, "t2": 2}),
        (true, true),
        (false, true),
        |lab, server, _| {
            let container = lab.container();
            lab.attach(&container, &dhcp::conf()).add();
            server.change(json!({"discover": "silence", "renew": "silence", "rebind": "silence", "request": "silence"}));
            let is_up = || container.sh("ip link show eth0").contains(",UP");
            let is_over = || container.addresses("eth0").is_empty() || !is_up();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(6);
            while !is_over() && std::time::Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            (container.addresses("eth0").is_empty(), is_up())
        },
    );
}

tests! {
    /// The reference broadcasts it. RFC 2131, 4.4.5, asks for unicast to the server.
    a_renewal_is_unicast =
        differs_in_dhcp(renewed_soon(), json!("unicast"), json!("broadcast"), |lab, server, _| {
        lab.attach(&lab.container(), &dhcp::conf()).add();
        server.wait_for(REQUEST, 2, 10)[1]["to"].clone()
    });

    /// The reference's daemon does not start where a dead one has left its socket.
    a_socket_of_a_dead_daemon_is_replaced =
        differs_in_dhcp(json!({}), false, true, |lab, _, daemon| {
        daemon.kill();
        let mut second = Daemon::launch(lab, &[], std::process::Stdio::null());
        wait_until("the second one listens or ends", 5, || {
            second.has_ended() || std::os::unix::net::UnixStream::connect(lab.path(SOCKET)).is_ok()
        });
        second.has_ended()
    });

    the_dhcp_socket_is_root_s_only =
        differs_in_dhcp(json!({}), "600\n".to_owned(), "755\n".to_owned(), |lab, _, _| {
        lab.host.sh(&format!("stat -c %a {SOCKET}"))
    });

    /// The reference's flag has had no effect since 1.6.0. An ipvlan without an address receives no
    /// unicast answer.
    the_flag_broadcast_has_an_effect = differs("dhcp", json!(0x8000), json!(0), |lab| {
        lab.lan(Kind::Macvlan);
        let server = Scripted::start(lab, json!({}));
        let _daemon = Daemon::with_flags(lab, &["-broadcast"]);
        lab.attach(&lab.container(), &dhcp::conf()).add();
        server.heard_of(DISCOVER)[0]["flags"].clone()
    });

    /// RFC 2132 has address classes and does not mention host bits, which the kernel refuses. The
    /// reference's ADD fails.
    a_static_route_of_option_33_has_no_host_bits =
        differs_in_dhcp(json!({"options": {"33": "0a0100000a3c0007"}}), OK, FAILED, |lab, _, _| {
        lab.attach(&lab.container(), &dhcp::conf()).try_add().status
    });
}

#[test]
fn name_servers_and_mtu_of_the_dhcp_server_are_in_the_result() {
    let script = json!({"options": {"6": "0a3c0035", "26": "0578"}});
    let told = (json!("10.60.0.53"), json!(1400));
    differs_in_dhcp(script, told, (Value::Null, Value::Null), |lab, _, _| {
        let result = lab.attach(&lab.container(), &dhcp::conf()).add();
        (result["dns"]["nameservers"][0].clone(), result["routes"][0]["mtu"].clone())
    });
}

tests! {
    an_address_that_another_machine_has_is_declined =
        differs_in_dhcp(json!({}), json!("10.60.0.51/24"), json!("10.60.0.50/24"), |lab, _, _| {
        lab.outside.sh("ip addr add 10.60.0.50/24 dev lan");
        lab.attach(&lab.container(), &dhcp::conf()).add()["ips"][0]["address"].clone()
    });

    /// The interface would have to change its address, and the runtime would not be informed. The
    /// reference accepts the offer while the container keeps the old address, which another may get.
    a_lease_of_another_address_is_none =
        differs_in_dhcp(json!({"lease": 8, "t1": 1, "t2": 2}), 0, 1, |lab, server, _| {
        let container = lab.container();
        lab.attach(&container, &dhcp::conf()).add();
        server.change(json!({"renew": "nak", "rebind": "nak", "address": "10.60.0.99"}));
        for_a_while();
        for_a_while();
        container.addresses("eth0").len()
    });

    /// The reference knows these options by number only.
    options_of_routes_and_names_have_names = differs_in_dhcp(
        json!({}),
        (OK, Some("770301".to_owned())),
        (FAILED, None),
        |lab, server, _| {
            let conf =
                with(&dhcp::conf(), json!({"ipam": {"request": [{"option": "domain-search"}]}}));
            let status = lab.attach(&lab.container(), &conf).try_add().status;
            (status, server.heard_of(DISCOVER).first().and_then(|packet| option(packet, 55)))
        },
    );

    /// The reference panics.
    dhcp_without_ipam_is_a_mistake_of_the_configuration =
        differs_in_dhcp(json!({}), FAILED, 2, |lab, _, _| {
        let conf = with(&dhcp::conf(), json!({"type": "dhcp", "master": null, "ipam": null}));
        lab.attach(&lab.container(), &conf).try_add().status
    });
}
