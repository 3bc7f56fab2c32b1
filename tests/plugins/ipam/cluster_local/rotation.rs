//! Certificates and passwords that are replaced while the daemon runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;

use super::etcd_access::{OF_ROOT, PASSWORD, enable_users, start_secure, with_certificates};
use crate::support::call::Outcome;
use crate::support::etcd::Etcd;
use crate::support::node::Node;

/// Blocks of one: each ADD needs a claim.
const SINGLE: &str = "10.1.0.0/24";
/// The daemon's word for files that it has read again.
const AGAIN: &str = "certificates and password were read again";

/// Gives the node another file, in one step.
pub fn put(etcd: &Etcd, node: &Node, from: &str, to: &str) {
    let dir = etcd.scratch.text();
    node.lab.host.sh(&format!(
        "cp {dir}/{from} /etc/cni-multi/.new && chmod 600 /etc/cni-multi/.new && \
         mv /etc/cni-multi/.new /etc/cni-multi/{to}"
    ));
}

pub fn put_client(etcd: &Etcd, node: &Node, client: &str) {
    for suffix in ["crt", "key"] {
        put(etcd, node, &format!("{client}.{suffix}"), &format!("client.{suffix}"));
    }
}

/// A node with this CA and this client certificate, beside an etcd with mutual TLS. Its daemon does not run
/// yet.
pub fn configured(etcd: &Etcd, ca: &str, client: &str) -> Node {
    let store = json!({"endpoints": ["https://10.78.0.254:2379"], "ca": "/etc/cni-multi/ca.crt",
        "cert": "/etc/cni-multi/client.crt", "key": "/etc/cni-multi/client.key"});
    let node = Node::configured(etcd, 1, json!({"etcd": store}));
    put(etcd, &node, &format!("{ca}.crt"), "ca.crt");
    put_client(etcd, &node, client);
    node
}

/// An etcd with mutual TLS, and a node whose daemon runs.
pub fn secure() -> Option<(Etcd, Node)> {
    let mut etcd = with_certificates()?;
    start_secure(&mut etcd, "server");
    let node = configured(&etcd, "ca", "client");
    node.start();
    Some((etcd, node))
}

/// The member starts again with its data, so that every connection is new.
fn restart(etcd: &mut Etcd, server: &str) {
    etcd.members.clear();
    start_secure(etcd, server);
}

/// Adds containers, each of which needs a claim.
#[track_caller]
fn claim_more(node: &Node) {
    for _ in 0..3 {
        claim_until(node, |outcome, _| outcome.status == 0);
    }
}

/// Adds containers, until something is true of the outcome and the node.
#[track_caller]
fn claim_until(node: &Node, is_it: impl Fn(&Outcome, &Node) -> bool) {
    static ADDED: AtomicU32 = AtomicU32::new(0);
    node.wait_until(|node| {
        let id = format!("c{}", ADDED.fetch_add(1, Ordering::Relaxed));
        is_it(&node.try_add(SINGLE, &id), node)
    });
}

#[test]
fn rotated_certificates_are_used_without_a_restart() {
    let Some((mut etcd, node)) = secure() else { return };
    claim_more(&node);
    assert!(!node.log().contains(AGAIN), "{}", node.log());
    // Another CA for the member's certificate and the client's: first both are trusted.
    let dir = etcd.scratch.text();
    etcd.lab.host.sh(&format!("cd {dir} && cat ca.crt other.crt >both.crt && cp other.crt ca.crt"));
    put(&etcd, &node, "both.crt", "ca.crt");
    claim_more(&node);
    assert!(node.log().contains(AGAIN), "{}", node.log());
    restart(&mut etcd, "foreign-server");
    put_client(&etcd, &node, "foreign");
    claim_until(&node, |outcome, _| outcome.status == 0);
    claim_more(&node);
}

#[test]
fn a_broken_new_file_keeps_what_was_read_before() {
    let Some((mut etcd, node)) = secure() else { return };
    claim_more(&node);
    put(&etcd, &node, "ca.key", "client.crt");
    restart(&mut etcd, "server");
    let broken = "/etc/cni-multi/client.crt: no certificate in it";
    claim_until(&node, |_, node| node.log().contains(broken));
    claim_more(&node);
    let log = node.log();
    let line = log.lines().find(|line| line.contains(broken)).unwrap();
    assert!(line.ends_with("what was read before stays in use"), "{line}");
    assert_eq!(log.matches(broken).count(), 1, "{log}");
    assert!(!log.contains(AGAIN), "{log}");
    // The certificate of another key, and then its key.
    put(&etcd, &node, "named.crt", "client.crt");
    restart(&mut etcd, "server");
    claim_until(&node, |_, node| node.log().contains("not the key of the certificate in"));
    put(&etcd, &node, "named.key", "client.key");
    restart(&mut etcd, "server");
    claim_until(&node, |_, node| node.log().contains(AGAIN));
    claim_more(&node);
}

/// A certificate for twelve seconds.
const SHORT: &str = "\
    openssl x509 -x509toreq -in client.crt -signkey client.key -out short.csr && cp client.key short.key && \
    openssl ca -batch -notext -config ca.conf -cert ca.crt -keyfile ca.key -in short.csr -out short.crt \
        -extfile client.ext -startdate 20200101000000Z -enddate $(date -u -d '+12 seconds' +%Y%m%d%H%M%SZ)";

#[test]
fn an_expired_certificate_that_is_replaced_recovers() {
    let Some(mut etcd) = with_certificates() else { return };
    start_secure(&mut etcd, "server");
    let dir = etcd.scratch.text().to_owned();
    etcd.lab.host.sh(&format!("cd {dir} && ({SHORT}) >>openssl.log 2>&1"));
    let node = configured(&etcd, "ca", "short");
    node.start();
    claim_more(&node);
    etcd.lab.host.sh(&format!(
        "cd {dir}; while openssl x509 -checkend 0 -noout -in short.crt; do sleep 0.2; done"
    ));
    restart(&mut etcd, "server");
    claim_until(&node, |outcome, _| {
        outcome.status != 0 && outcome.err().msg.contains("not have expired")
    });
    // The member's alert does not say why: its log does.
    let log = etcd.members[0].log();
    assert!(log.contains("certificate has expired") && !log.contains("unknown authority"), "{log}");
    assert_eq!(node.status(SINGLE).err().code, 50);
    assert!(!node.log().contains(AGAIN), "{}", node.log());
    put_client(&etcd, &node, "client");
    claim_until(&node, |outcome, _| outcome.status == 0);
    assert!(node.log().contains(AGAIN), "{}", node.log());
    claim_more(&node);
}

/// A token lives for a second, unless it is used.
#[test]
fn a_changed_password_is_read_again_and_an_expired_token_renewed() {
    let Some(etcd) = Etcd::one_with("--auth-token-ttl 1") else { return };
    enable_users(&etcd, "");
    let login = json!({"user": "cni", "passwordFile": "/etc/cni-multi/password"});
    let node = Node::configured(&etcd, 1, json!({"etcd": login}));
    let set = |password: &str| {
        node.lab.host.sh(&format!(
            "umask 077; echo {password} >/etc/cni-multi/.new && mv /etc/cni-multi/.new /etc/cni-multi/password"
        ))
    };
    set(PASSWORD);
    node.start();
    claim_more(&node);
    std::thread::sleep(Duration::from_millis(3500));
    claim_more(&node);
    assert!(!node.log().contains("refused"), "{}", node.log());
    // The member forgets the user's tokens with the password.
    etcd.members[0].ctl(&format!(
        "--user root:{OF_ROOT} user passwd cni --interactive=false <<END\nanother\nEND"
    ));
    claim_until(&node, |outcome, _| outcome.status != 0);
    set("another");
    claim_until(&node, |outcome, node| outcome.status == 0 && node.log().contains(AGAIN));
    claim_more(&node);
}
