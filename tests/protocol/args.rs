//! CNI_ARGS: strict for ADD and CHECK, lenient for DEL, where strictness would only leak.

use super::{
    assert_silent_success, has_user_namespaces, host_local_conf, in_own_namespace, static_conf,
};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::peers::peers;
use crate::support::scratch::Scratch;

peers! {
    accepted_arguments,
    refused_arguments,
    value_that_does_not_parse_is_refused,
    known_argument_takes_effect,
    del_releases_whatever_the_arguments,
    bridge_is_deleted_whatever_the_arguments,
    version_and_plugins_without_arguments_ignore_them,
}

const ACCEPTED: [&str; 11] = [
    "",
    "IP=10.1.2.9/24",
    "IP=",
    "IgnoreUnknown=1",
    "IgnoreUnknown=true;Unk=nown",
    "IgnoreUnknown=True;Unk=nown",
    "IgnoreUnknown=TRUE;Unk=nown",
    "Unk=nown;IgnoreUnknown=1",
    "IgnoreUnknown=0;IgnoreUnknown=1;Unk=nown",
    "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_INFRA_CONTAINER_ID=de2c;K8S_POD_UID=uid-a",
    "IgnoreUnknown=1;=",
];

const REFUSED: [(&str, &str); 13] = [
    ("IP", r#"ARGS: invalid pair "IP""#),
    ("nonsense", r#"ARGS: invalid pair "nonsense""#),
    ("IgnoreUnknown=1;", r#"ARGS: invalid pair """#),
    (";IgnoreUnknown=1", r#"ARGS: invalid pair """#),
    (";", r#"ARGS: invalid pair """#),
    ("IgnoreUnknown=1;a=b=c", r#"ARGS: invalid pair "a=b=c""#),
    ("Unk=nown", r#"ARGS: unknown args ["Unk=nown"]"#),
    ("A=b;C=d", r#"ARGS: unknown args ["A=b" "C=d"]"#),
    ("ip=10.1.2.9/24", r#"ARGS: unknown args ["ip=10.1.2.9/24"]"#),
    ("IgnoreUnknown=0;Unk=nown", r#"ARGS: unknown args ["Unk=nown"]"#),
    ("IgnoreUnknown=False;Unk=nown", r#"ARGS: unknown args ["Unk=nown"]"#),
    ("ignoreunknown=1", r#"ARGS: unknown args ["ignoreunknown=1"]"#),
    (
        "IgnoreUnknown=yes",
        r#"ARGS: error parsing value of pair "IgnoreUnknown=yes": boolean unmarshal error: invalid input yes"#,
    ),
];

fn add(peer: &Peer, plugin: &str, args: &str, data: &Scratch) -> Outcome {
    let conf =
        if plugin == "static" { static_conf("1.1.0") } else { host_local_conf("1.1.0", data) };
    Call::new(peer, plugin, "ADD", conf).env("CNI_ARGS", args).run()
}

fn accepted_arguments(peer: &Peer) {
    for plugin in ["static", "host-local"] {
        for args in ACCEPTED {
            if plugin == "static" && args == "IP=" {
                continue; // static requires a CIDR
            }
            let outcome = add(peer, plugin, args, &Scratch::new());
            assert_eq!(outcome.status, 0, "{plugin} {args:?}: {outcome:?}");
        }
    }
}

/// Ours reports code 4, an invalid environment variable, and names it; the reference has no code
/// for it.
#[track_caller]
fn assert_refused(peer: &Peer, outcome: &Outcome, msg: &str) {
    let error = outcome.err();
    assert_eq!(outcome.status, 1);
    if *peer == Peer::Ours {
        assert_eq!((error.code, error.msg), (4, format!("CNI_{msg}")), "{outcome:?}");
    } else {
        assert_eq!((error.code, error.msg.as_str()), (999, msg), "{outcome:?}");
    }
}

fn refused_arguments(peer: &Peer) {
    for (args, msg) in REFUSED {
        let data = Scratch::new();
        for plugin in ["static", "host-local"] {
            assert_refused(peer, &add(peer, plugin, args, &data), msg);
        }
        let check = Call::new(peer, "host-local", "CHECK", host_local_conf("1.1.0", &data));
        assert_refused(peer, &check.env("CNI_ARGS", args).run(), msg);
    }
}

fn value_that_does_not_parse_is_refused(peer: &Peer) {
    let error = add(peer, "host-local", "IP=nonsense", &Scratch::new()).err();
    assert_eq!(error.code, if *peer == Peer::Ours { 4 } else { 999 }, "{error:?}");
    assert!(error.msg.contains("ARGS: ") && error.msg.contains("IP=nonsense"), "{error:?}");
}

fn known_argument_takes_effect(peer: &Peer) {
    let data = Scratch::new();
    let result = add(peer, "host-local", "IP=10.1.2.77", &data).ok();
    assert_eq!(result["ips"][0]["address"], "10.1.2.77/24");
    let last = add(peer, "host-local", "IP=10.1.2.77;IP=10.1.2.78", &Scratch::new()).ok();
    assert_eq!(last["ips"][0]["address"], "10.1.2.78/24");

    let result = add(peer, "static", "IP=10.9.9.9/16,fd00::9/64;GATEWAY=10.9.0.1", &data).ok();
    let addresses: Vec<_> =
        result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].clone()).collect();
    assert_eq!(addresses, ["10.1.2.3/24", "10.9.9.9/16", "fd00::9/64"]);
    assert_eq!(result["ips"][1]["gateway"], "10.9.0.1");
}

/// DEL of ours ignores the arguments; the reference refuses them.
#[track_caller]
fn assert_ignored_by_ours(peer: &Peer, del: &Outcome, msg: &str) {
    if *peer == Peer::Ours {
        assert_silent_success(del);
    } else {
        assert_refused(peer, del, msg);
    }
}

/// The reference refuses, and the address stays allocated: the runtime will repeat the same
/// arguments.
fn del_releases_whatever_the_arguments(peer: &Peer) {
    for (args, msg) in REFUSED {
        let data = Scratch::new();
        let lease = data.join("net-1/10.1.2.2");
        add(peer, "host-local", "", &data).ok();
        assert!(lease.exists());

        let del = Call::new(peer, "host-local", "DEL", host_local_conf("1.1.0", &data))
            .env("CNI_ARGS", args)
            .run();
        assert_ignored_by_ours(peer, &del, msg);
        assert_eq!(lease.exists(), *peer != Peer::Ours, "{args:?}");
    }
}

/// `bridge` knows the argument MAC, and the reference checks CNI_ARGS even on a DEL that does not
/// use it.
fn bridge_is_deleted_whatever_the_arguments(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for (args, msg) in [
        ("nonsense", r#"ARGS: invalid pair "nonsense""#),
        ("IP=10.1.2.3", r#"ARGS: unknown args ["IP=10.1.2.3"]"#),
    ] {
        let conf = r#"{"cniVersion":"1.1.0","name":"net-1","bridge":"br-1"}"#;
        let del = in_own_namespace(Call::new(peer, "bridge", "DEL", conf))
            .without("CNI_NETNS")
            .env("CNI_ARGS", args)
            .run();
        assert_ignored_by_ours(peer, &del, msg);
    }
}

fn version_and_plugins_without_arguments_ignore_them(peer: &Peer) {
    for command in ["VERSION", "GC", "STATUS"] {
        let outcome =
            Call::new(peer, "host-local", command, host_local_conf("1.1.0", &Scratch::new()));
        assert_eq!(outcome.env("CNI_ARGS", "nonsense").run().status, 0);
    }
    let del =
        Call::new(peer, "static", "DEL", static_conf("1.1.0")).env("CNI_ARGS", "nonsense").run();
    assert_silent_success(&del);
}
