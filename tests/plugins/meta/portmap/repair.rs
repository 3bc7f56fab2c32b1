//! portmap: what `net sync` publishes again after the rules are gone.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use super::*;

/// A network whose containers publish ports with this backend.
fn plugins(backend: Option<&str>) -> [Value; 2] {
    let portmap =
        json!({"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}});
    [network(), portmap]
}

/// An established connection of the peer outside: each word that it sends comes back.
struct Connection {
    server: Child,
    client: Child,
}

impl Connection {
    fn open(from: &Namespace, to: &Namespace) -> Connection {
        let server = to.command("socat").args(["TCP-LISTEN:80,reuseaddr", "PIPE"]).spawn();
        let server = server.unwrap();
        let script = format!(
            "until exec 3<>/dev/tcp/{}/8080; do sleep 0.05; done 2>/dev/null
            trap '' PIPE
            while read word; do answer=; echo $word >&3; read -t 5 -u 3 answer; echo \"$answer\"; done 2>/dev/null",
            UPLINK[0]
        );
        let mut client = from.command("bash");
        client.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Connection { server, client: client.spawn().unwrap() }
    }

    /// What comes back for a word; empty if nothing does.
    fn echo(&mut self, word: &str) -> String {
        writeln!(self.client.stdin.as_mut().unwrap(), "{word}").unwrap();
        let mut answer = String::new();
        let stdout = self.client.stdout.as_mut().unwrap();
        BufReader::with_capacity(1, stdout).read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for child in [&mut self.client, &mut self.server] {
            let _ = child.kill(); // it may have ended by itself
            let _ = child.wait();
        }
    }
}

/// What comes back from a connection that is busy, before the repair and after it. The kernel translates the packets of
/// known connections while any chain of the type `nat` and any rule with `ct` are left. With only one of them the host
/// itself answers, with a reset. `iptables -F` leaves the table with the guard of 127.0.0.0/8. On an idle connection no
/// packet comes while there is no translation.
#[test]
fn a_connection_survives_where_nat_and_ct_are_left_or_it_is_idle() {
    let nat = "type nat hook prerouting priority dstnat;";
    let filter = "type filter hook forward priority filter;";
    let ct = "ct state established accept;";
    let but = |chain: String| {
        let rest = format!("table inet keep {{ chain keep {{ {chain} }}; }}");
        format!("printf 'flush ruleset\\n{rest}\\n' | nft -f -")
    };
    let by_iptables = "for p in iptables ip6tables; do $p -F; $p -t nat -F; done".to_owned();
    for (backend, flush, during, after) in [
        ("nftables", but(format!("{nat} {ct}")), Some("during"), "after"),
        ("nftables", but(nat.to_owned()), Some(""), ""),
        ("nftables", but(format!("{filter} {ct}")), Some(""), ""),
        ("nftables", "nft flush ruleset".to_owned(), None, "after"),
        ("iptables", by_iptables, Some("during"), "after"),
    ] {
        for_ours("portmap", |lab| {
            let synced = attach(lab, &plugins(Some(backend)), "-p 8080:80");
            let mut connection = Connection::open(&lab.outside, &synced.container);
            assert_eq!(connection.echo("before"), "before");
            lab.host.sh(&flush);
            if let Some(during) = during {
                assert_eq!(connection.echo("during"), during, "{flush}");
                assert!(connect(&lab.outside, &at(UPLINK[0], 8080)).is_none(), "a new connection");
            }
            assert_eq!(synced.net("sync pods").status, 0);
            assert_eq!(connection.echo("after"), after, "{flush}");
            drop(connection);
            let mut another = Connection::open(&lab.outside, &synced.container);
            assert_eq!(another.echo("again"), "again", "{flush}");
        });
    }
}

/// After the flush another container got the port.
#[test]
fn a_port_of_another_container_is_left_to_it() {
    for_ours("portmap", |lab| {
        let synced = attach(lab, &plugins(None), "-p 8080:80");
        lab.host.sh("nft flush ruleset");
        let other = attach_another(lab, "-p 8080:80");
        let _server = TcpServer::start(&other.container, 80);
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(format!("{outcome:?}").contains("hostPort 8080/tcp is taken"), "{outcome:?}");
        assert_eq!(is_open(lab, 8080), [true, true]);
        other.check().ok();
    });
}
