//! The `name` of the configuration, validated before the command.

use super::{PLUGINS, VERSIONS, assert_error, static_conf};
use crate::support::call::{Call, Peer};
use crate::support::peers::peers;

peers! { missing_name_is_refused, name_characters, name_is_judged_before_the_version }

const COMMANDS: [&str; 5] = ["ADD", "CHECK", "DEL", "GC", "STATUS"];

fn missing_name_is_refused(peer: &Peer) {
    for plugin in PLUGINS {
        for command in COMMANDS {
            for rest in ["", r#","name":"""#, r#","name":null"#] {
                let outcome =
                    Call::new(peer, plugin, command, format!(r#"{{"cniVersion":"1.1.0"{rest}}}"#))
                        .run();
                assert_error(peer, &outcome, "1.1.0", 7, "missing network name", "");
            }
        }
    }
    for version in VERSIONS {
        let outcome =
            Call::new(peer, "static", "ADD", format!(r#"{{"cniVersion":"{version}"}}"#)).run();
        assert_error(peer, &outcome, version, 7, "missing network name", "");
    }
}

fn name_characters(peer: &Peer) {
    let add = |name: &str| {
        let conf = static_conf("1.1.0").replace("net-1", name);
        Call::new(peer, "static", "ADD", conf).run()
    };
    for name in ["n", "0", "dbnet", "a_b.c-d", "A", &"a".repeat(200)] {
        add(name).ok();
    }
    for name in ["te%%st", "../x", "..", "-a", "_a", "a b", "a/b", "ä", " a", "a<b>&c"] {
        let msg = "invalid characters found in network name";
        assert_error(peer, &add(name), "1.1.0", 7, msg, name);
    }
}

fn name_is_judged_before_the_version(peer: &Peer) {
    for command in COMMANDS {
        let error = Call::new(peer, "bridge", command, r#"{"cniVersion":"9.9.9"}"#).run().err();
        assert_eq!((error.code, error.msg.as_str()), (7, "missing network name"));
    }
}
