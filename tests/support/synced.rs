//! A network of chained plugins that `cni-multi net` has attached a container to, and repairs.

use serde_json::{Value, json};

use super::call::{Call, Outcome};
use super::netns::{Container, Lab};
use super::snapshot::{Change, Watch, last_of, lines};

/// The status of `net sync --dry-run` if there is something to do.
const TO_DO: i32 = 3;

/// A container on the network `pods`.
pub struct Synced<'a> {
    pub lab: &'a Lab,
    pub container: Container,
}

/// Attaches a new container to a network of these plugins; `options` are those of `net add`.
#[track_caller]
pub fn attach<'a>(lab: &'a Lab, plugins: &[Value], options: &str) -> Synced<'a> {
    lab.configure(&json!({"cniVersion": "1.1.0", "name": "pods", "plugins": plugins}));
    attach_another(lab, options)
}

/// Attaches one more container to the network.
#[track_caller]
pub fn attach_another<'a>(lab: &'a Lab, options: &str) -> Synced<'a> {
    let synced = Synced { lab, container: lab.container() };
    synced.net(&format!("add pods {} {options}", synced.container.netns)).ok();
    synced
}

/// Prepares `cni-multi net LINE` on the pretend host.
pub fn net(lab: &Lab, line: &str) -> Call {
    let plugins = lab.peer.dir().display();
    let line = format!("net {line} --conf-dir /run/net.d --plugin-path {plugins}");
    Call::cni_multi(&lab.host.enter, line.split_whitespace())
}

impl Synced<'_> {
    pub fn net(&self, line: &str) -> Outcome {
        net(self.lab, line).run()
    }

    /// The addresses of the container.
    pub fn ips(&self) -> Vec<String> {
        let with_prefix = self.container.addresses("eth0");
        with_prefix.iter().map(|ip| ip.split('/').next().unwrap().to_owned()).collect()
    }

    /// The outcome of CHECK.
    pub fn check(&self) -> Outcome {
        self.net(&format!("check pods {}", self.container.netns))
    }

    #[track_caller]
    pub fn del(&self) {
        self.net(&format!("del pods {}", self.container.netns)).ok();
    }

    /// Makes a fault and repairs it: the dry run shows the changes, which contain these texts, and
    /// changes nothing; the repair makes the same, after which host and container are as before,
    /// except for facts that `is_new` expects to be new; a second repair has nothing to do.
    #[track_caller]
    pub fn assert_repaired_but(
        &self,
        fault: impl FnOnce(),
        changes: &[&str],
        is_new: impl Fn(&str) -> bool,
    ) {
        let before = Watch::start(self.lab, &[&self.container]);
        fault();
        let broken = Watch::start(self.lab, &[&self.container]);
        let look = self.net("sync pods --dry-run");
        assert_eq!(look.status, TO_DO, "{look:?}");
        broken.assert_unchanged("a look");
        let repair = self.net("sync pods");
        assert_eq!(repair.status, 0, "{repair:?}");
        for change in changes {
            let counts = [&look, &repair].map(|outcome| outcome.stdout.matches(change).count());
            assert_eq!(counts, [1, 1], "{change:?} in {look:?} and {repair:?}");
        }
        self.check().ok();
        let is_left = |change: &Change| {
            let (Change::Gone(fact) | Change::New(fact)) = change;
            !is_new(fact)
        };
        let left = last_of(std::time::Duration::from_millis(50), || {
            before.each_change_now().into_iter().filter(is_left).collect()
        });
        assert!(left.is_empty(), "not as before the fault:\n{}", lines(&left));
        let again = self.net("sync pods");
        assert_eq!(again.status, 0, "{again:?}");
        assert!(!changes.iter().any(|change| again.stdout.contains(change)), "{again:?}");
        assert_eq!(self.net("sync pods --dry-run").status, 0);
    }

    /// As [`Synced::assert_repaired_but`], for a fault of the host that leaves nothing new.
    #[track_caller]
    pub fn assert_repaired(&self, fault: &str, changes: &[&str]) {
        self.assert_repaired_but(|| drop(self.lab.host.sh(fault)), changes, |_| false);
    }
}
