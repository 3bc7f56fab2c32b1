//! A container's way to another host, so that what doctor reports is compared with what arrives.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::site::Site;
use crate::support::netns::Container;
use crate::support::patience;
use crate::support::traffic::TcpServer;

/// How long a packet that is not dropped may take, in seconds.
const PATIENCE: u64 = 8;

/// A container with a connection to the peer outside.
pub struct Road {
    pub site: Site,
    pub container: Container,
    _server: TcpServer,
}

impl Road {
    /// A container of the network `pods` with these plugins, with addresses in 10.N.0.0/16.
    pub fn of(number: u8, plugins: &Value) -> Road {
        let site = Site::empty();
        site.configure("pods", plugins);
        let route = format!("ip route add 10.{number}.0.0/16 via 198.51.100.1");
        site.lab.outside.sh(&route);
        let server = TcpServer::start(&site.lab.outside, 8080);
        let container = site.attached("pods");
        Road { site, container, _server: server }
    }

    /// Whether a connection is answered within the time.
    fn is_answered_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let connect = "timeout 1 bash -c 'exec 3<>/dev/tcp/198.51.100.2/8080'";
        loop {
            if self.container.try_sh(connect).status.success() {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Whether the container's connections work.
    pub fn is_open(&self) -> bool {
        self.is_answered_within(patience(PATIENCE))
    }

    /// Whether they do not, next to one that did.
    pub fn is_shut(&self) -> bool {
        !self.is_answered_within(Duration::from_millis(300))
    }

    /// Doctor finds nothing, and packets arrive.
    #[track_caller]
    pub fn assert_healthy(&self, what: &str) {
        assert_eq!(self.site.findings(&self.container.netns), [Value::Null; 0], "{what}");
        assert!(self.is_open(), "{what}: nothing is found, and no packet arrives");
    }

    /// Doctor reports this code, and no packet arrives.
    #[track_caller]
    pub fn assert_faulty(&self, what: &str, code: &str) -> Value {
        let findings = self.site.findings(&self.container.netns);
        let finding = findings.iter().find(|it| it["code"] == code);
        assert!(self.is_shut(), "{what}: packets arrive, and doctor reports {findings:?}");
        finding.unwrap_or_else(|| panic!("{what}: no {code} in {findings:#?}")).clone()
    }
}
