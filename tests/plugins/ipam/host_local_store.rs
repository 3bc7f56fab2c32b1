//! Our host-local and the reference's share one data directory, in turn and at once, as in an
//! upgrade or a rollback with running pods.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::attachment::{ips, not_compared};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::scratch::Scratch;

/// A data directory of the test's own.
struct DataDir(Scratch);

impl DataDir {
    fn call(&self, peer: &Peer, command: &str, id: &str) -> Outcome {
        Call::new(peer, "host-local", command, config_of(self)).env("CNI_CONTAINERID", id).run()
    }

    #[track_caller]
    fn add(&self, peer: &Peer, id: &str) -> Vec<String> {
        ips(&self.call(peer, "ADD", id).ok())
    }

    #[track_caller]
    fn del(&self, peer: &Peer, id: &str) {
        self.call(peer, "DEL", id).ok();
    }

    fn dir(&self) -> PathBuf {
        self.0.join("net")
    }

    /// Every file of the network with its content and mode, sorted.
    fn files(&self) -> Vec<(String, String, u32)> {
        let entry = |path: &Path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let mode = fs::metadata(path).unwrap().permissions().mode() & 0o7777;
            (name, fs::read_to_string(path).unwrap(), mode)
        };
        let mut files: Vec<_> =
            fs::read_dir(self.dir()).unwrap().map(|e| entry(&e.unwrap().path())).collect();
        files.sort();
        files
    }

    fn leases(&self) -> usize {
        self.files().iter().filter(|(name, ..)| name.parse::<std::net::IpAddr>().is_ok()).count()
    }
}

#[test]
fn the_same_calls_leave_the_same_files() {
    let Some(reference) = Peer::reference() else { return not_compared("host-local") };
    let [ours, theirs] = [Peer::Ours, reference].map(|peer| {
        let data = DataDir(Scratch::new());
        for id in ["a", "b", "c", "d"] {
            data.add(&peer, id);
        }
        data.del(&peer, "b");
        data.del(&peer, "unknown");
        data.add(&peer, "e");
        data.files()
    });
    assert_eq!(ours, theirs);
}

#[test]
fn leases_survive_an_upgrade_and_a_rollback() {
    let Some(reference) = Peer::reference() else { return not_compared("host-local") };
    let data = DataDir(Scratch::new());
    let peers = [Peer::Ours, reference];
    for round in 0..12 {
        let (peer, other) = (&peers[round % 2], &peers[(round + 1) % 2]);
        let [first, second] = [format!("first-{round}"), format!("second-{round}")];
        let number = 2 + 2 * round;
        assert_eq!(
            data.add(peer, &first),
            [format!("10.1.0.{number}"), format!("fd00:1::{number:x}")]
        );
        data.add(other, &second);
        for id in [&first, &second] {
            for peer in &peers {
                data.call(peer, "CHECK", id).ok();
                let refused = data.call(peer, "ADD", id).err().msg;
                assert!(refused.contains("duplicate allocation is not allowed"), "{refused}");
            }
        }
        assert_eq!(data.leases(), 4 + round * 2);
        data.del(other, &first);
        assert_ne!(data.call(peer, "CHECK", &first).status, 0);
        assert_eq!(data.leases(), 2 + round * 2);
    }
    for round in 0..12 {
        data.del(&peers[round / 6], &format!("second-{round}"));
    }
    assert_eq!(data.leases(), 0);
}

#[test]
fn both_at_once_give_no_address_twice() {
    let data = DataDir(Scratch::new());
    let peers = Peer::all();
    let mut ips: Vec<String> = std::thread::scope(|scope| {
        let add = |worker: usize| {
            let (data, peer) = (&data, &peers[worker % peers.len()]);
            move || {
                let run = |number: usize| {
                    let id = format!("w{worker}-{number}");
                    let ips = data.add(peer, &id);
                    if number.is_multiple_of(3) {
                        data.del(peer, &id);
                        return vec![];
                    }
                    ips
                };
                (0..15).flat_map(run).collect::<Vec<_>>()
            }
        };
        let workers: Vec<_> = (0..8).map(|worker| scope.spawn(add(worker))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let given = ips.len();
    ips.sort();
    ips.dedup();
    assert_eq!((ips.len(), data.leases()), (given, given));
    for worker in 0..8 {
        for number in 0..15 {
            data.del(&Peer::Ours, &format!("w{worker}-{number}"));
        }
    }
    assert_eq!(data.leases(), 0);
}

fn config_of(data: &DataDir) -> String {
    let data_dir = data.0.text();
    format!(
        r#"{{"cniVersion":"1.0.0","name":"net","ipam":{{"type":"host-local","dataDir":{data_dir:?},"ranges":[[{{"subnet":"10.1.0.0/16"}}],[{{"subnet":"fd00:1::/64"}}]]}}}}"#
    )
}
