//! A database that does not answer: what needs none is done all the same.

use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::json;

use super::on_a_node;
use crate::support::attachment::{interface, with};
use crate::support::networks::ovs::{conf, ports, serve, stop};
use crate::support::snapshot::Watch;

#[test]
fn del_does_the_rest_and_the_next_del_or_gc_removes_the_port() {
    on_a_node(|lab| {
        for next in ["DEL", "GC"] {
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let ovs = lab.attach(&container, &conf());
            let port = interface(&ovs.add(), 0);
            stop(lab);
            let error = ovs.try_del().err();
            assert_eq!(error.code, 11, "{error:?}");
            assert!(error.msg.starts_with("failed to connect to ovsdb socket"), "{error:?}");
            assert!(lab.host.link(&port).is_none() && container.link("eth0").is_none());
            lab.host.sh("! ls /var/lib/cni/networks/net1 | grep '^10'");
            assert_eq!(ovs.gc(&[]).err().code, 11);
            serve(lab);
            assert_eq!(ports(lab), [port]);
            match next {
                "DEL" => ovs.del(),
                _ => drop(ovs.gc(&[]).ok()),
            }
            before.assert_unchanged(next);
        }
    });
}

#[test]
fn add_is_undone_and_may_be_repeated() {
    on_a_node(|lab| {
        let container = lab.container();
        let ovs = lab.attach(&container, &conf());
        stop(lab);
        let before = Watch::start(lab, &[&container]);
        let error = ovs.try_add().err();
        assert_eq!(error.code, 11, "{error:?}");
        assert!(error.details.contains("is ovsdb-server running"), "{error:?}");
        before.assert_unchanged("the failed ADD");
        serve(lab);
        ovs.add();
    });
}

/// A stopped process holds its socket open.
#[test]
fn a_server_that_hangs_is_not_waited_for_long() {
    on_a_node(|lab| {
        let ovs = lab.attach(&lab.container(), &conf());
        lab.host.sh("kill -STOP $(cat /run/openvswitch/ovsdb.pid)");
        let begin = Instant::now();
        let error = ovs.try_add().err();
        assert!(begin.elapsed() < Duration::from_secs(20), "{error:?}");
        assert!(error.code == 11 && error.msg.contains("no answer within 5 s"), "{error:?}");
        lab.host.sh("kill -CONT $(cat /run/openvswitch/ovsdb.pid)");
        ovs.add();
    });
}

/// Answers the first client's request in this way, and then closes the connection.
fn answer(listener: UnixListener, answer: &'static str) -> JoinHandle<()> {
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(answer.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        // What is closed with the request unread is a reset in place of an end.
        io::copy(&mut client, &mut io::sink()).unwrap();
    })
}

#[test]
fn a_server_that_answers_something_else_is_named() {
    on_a_node(|lab| {
        for (index, (text, code)) in [
            ("HTTP/1.1 400 Bad Request", 105),
            (r#"{"id":1,"error":null,"result":[{"rows":7},{"rows":[]}]}"#, 105),
            (
                r#"{"id":1,"error":null,"result":[{"rows":[{}]},{"rows":[{"_uuid":["uuid"]}]}]}"#,
                105,
            ),
            (r#"{"id":1,"error":"unknown method","result":null}"#, 105),
            ("", 11),
        ]
        .into_iter()
        .enumerate()
        {
            let socket = format!("/run/answer-{index}.sock");
            let server = answer(UnixListener::bind(lab.path(&socket)).unwrap(), text);
            let keys = json!({"socket_file": socket});
            let error = lab.attach(&lab.container(), &with(&conf(), keys)).try_add().err();
            assert_eq!(error.code, code, "{text}: {error:?}");
            server.join().unwrap();
        }
    });
}

#[test]
fn a_database_behind_tcp_is_used() {
    on_a_node(|lab| {
        lab.host.sh(
            "ovs-appctl -t /run/openvswitch/ovsdb.ctl ovsdb-server/add-remote ptcp:6640:127.0.0.1",
        );
        for socket in ["tcp:127.0.0.1:6640", "tcp:127.0.0.1", "unix:/run/openvswitch/db.sock"] {
            let ovs = lab.attach(&lab.container(), &with(&conf(), json!({"socket_file": socket})));
            let result = ovs.add();
            ovs.check(&result).ok();
            // DEL knows the socket by the kept file, whatever the configuration says by now.
            ovs.conf(json!({"socket_file": "/nonexistent"})).del();
            assert_eq!(ports(lab), [""; 0]);
        }
    });
}
