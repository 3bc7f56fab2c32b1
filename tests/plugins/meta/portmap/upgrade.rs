//! portmap when a node is upgraded or rolled back with published containers running.

use std::path::PathBuf;

use super::*;

/// Debian's package: an older reference beside the one that `CNI_REFERENCE` names.
const PACKAGED: &str = "/usr/lib/cni";

fn mappings() -> Value {
    json!([web(), {"hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "198.51.100.1"}])
}

/// Each reference with each backend that it supports.
fn references() -> Vec<(Peer, Option<&'static str>)> {
    let packaged = Peer::Reference(PathBuf::from(PACKAGED));
    let is_there = packaged.dir().join("portmap").exists();
    let all = Peer::reference().into_iter().chain(is_there.then_some(packaged));
    let mut found: Vec<(Peer, Option<&str>)> = vec![];
    for peer in all.filter(|peer| peer.dir().join("portmap").exists()) {
        let is_new = Call::new(&peer, "portmap", "VERSION", "").run().stdout.contains("\"1.1.0\"");
        let backends: &[Option<&str>] =
            if is_new { &[None, Some("iptables"), Some("nftables")] } else { &[None] };
        found.extend(backends.iter().map(|backend| (peer.clone(), *backend)));
    }
    found
}

/// Publishes by `from`. An ADD and DEL go first, so that the snapshot has the chains that `from`
/// always leaves.
fn published_by<'a>(lab: &'a Lab, from: &Peer, backend: Option<&str>) -> (Chain<'a>, Watch<'a>) {
    let chained = portmap(backend, mappings());
    let warm = lab.chain(&network(), &chained);
    (*warm).clone().by(from).add();
    (*warm).clone().by(from).del();
    warm.main.del();
    let chain = lab.chain(&network(), &chained);
    let before = Watch::start(lab, &[]);
    (*chain).clone().by(from).add();
    let _server = TcpServer::start(&chain.container, 80);
    assert_eq!(is_open(lab, 8080), [true, true], "{from:?}");
    (chain, before)
}

fn for_each_reference(case: impl Fn(&Lab, &Peer, Option<&str>)) {
    if references().is_empty() {
        return not_compared("portmap");
    }
    for_ours("portmap", |_| {
        for (reference, backend) in references() {
            eprintln!("{reference:?}, {backend:?}:");
            case(&Lab::new(Peer::Ours).without_dad(), &reference, backend);
        }
    });
}

/// With all that ADD had, and without, by each backend.
#[test]
fn ours_deletes_what_the_reference_added() {
    for_each_reference(|lab, reference, backend| {
        let (chain, before) = published_by(lab, reference, backend);
        chain.del();
        before.assert_unchanged("the reference's ADD");
        chain.del();
        chain.main.del();
        for now in [None, Some("nftables"), Some("iptables")] {
            let (chain, before) = published_by(lab, reference, backend);
            chain.bare().conf(json!({"backend": now})).del();
            before.assert_unchanged(&format!("the reference's ADD, DEL with {now:?}"));
            chain.main.del();
        }
    });
}

/// A container from before the upgrade keeps working beside a new one, and its port counts as
/// taken.
#[test]
fn containers_from_before_and_after_the_upgrade_coexist() {
    for_each_reference(|lab, reference, backend| {
        let (old, _) = published_by(lab, reference, backend);
        let refused = lab.chain(&network(), &portmap(None, json!([web()])));
        refused.try_add().fails(102, &old.container_id);
        let new =
            publish(lab, None, json!([{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]));
        let _servers = [TcpServer::start(&old.container, 80), TcpServer::start(&new.container, 80)];
        assert_eq!((is_open(lab, 8080), is_open(lab, 9090)), ([true, true], [true, true]));
        new.del();
        assert_eq!(is_open(lab, 8080), [true, true]);
        old.del();
        assert_eq!(is_open(lab, 8080), [false, false]);
    });
}

/// Both peers use the same iptables rules, so each CHECK accepts the other's.
#[test]
fn each_checks_and_removes_what_the_other_added_through_iptables() {
    for_each_reference(|lab, reference, backend| {
        if backend == Some("nftables") {
            return;
        }
        let (chain, before) = published_by(lab, reference, backend);
        (*chain).clone().conf(json!({"backend": "iptables"})).check(&chain.result).ok();
        // The reference's nftables rules name the container but not the network, so GC cannot tell that they are stale.
        let gc = chain.bare().conf(json!({"cniVersion": "1.1.0"}));
        gc.gc(&[(&chain.container_id, "eth0")]).ok();
        assert!(!before.changes_now().is_empty(), "what is valid stays");
        gc.gc(&[]).ok();
        before.assert_unchanged("the reference's ADD");
        chain.main.del();
        let (chain, before) = published_by(lab, &Peer::Ours, Some("iptables"));
        let by_reference = (*chain).clone().by(reference);
        if *reference == reference_with("portmap").unwrap_or(Peer::Ours) {
            by_reference.check(&chain.result).ok();
        }
        by_reference.del();
        // It does not know our guard, and leaves `route_localnet` on behind it.
        assert_localnet_is_guarded(&lab.host);
        chain.bare().conf(json!({"cniVersion": "1.1.0"})).gc(&[]).ok();
        before.assert_unchanged("our ADD");
    });
}

/// A rollback: the reference's DEL cannot know our elements, and succeeds. GC after the next
/// upgrade removes them.
#[test]
fn our_gc_finds_elements_that_the_reference_s_del_left() {
    for_each_reference(|lab, reference, backend| {
        let (chain, before) = published_by(lab, &Peer::Ours, None);
        (*chain).clone().conf(json!({"backend": backend})).by(reference).del();
        lab.host.sh("for f in ip ip6; do nft delete table $f nat 2>/dev/null || true; done"); // the reference's DEL creates them
        chain.bare().conf(json!({"cniVersion": "1.1.0"})).gc(&[]).ok();
        before.assert_unchanged("our ADD");
    });
}
