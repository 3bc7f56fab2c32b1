//! D25x: the table of connections, without which no address is translated.

use super::faults::{CONNTRACK_FULL, CONNTRACK_NEARLY_FULL};
use super::finding::{Finding, Findings, Object};
use super::node::{Node, Reader};
use crate::error::{Error, Result};
use crate::net::sysctl::Sysctl;

const COUNT: &str = "net.netfilter.nf_conntrack_count";
const MAX: &str = "net.netfilter.nf_conntrack_max";

pub fn examine(_: &Node<'_>, findings: &mut Findings) {
    let values = number(COUNT).and_then(|count| Ok((count, number(MAX)?)));
    let (Some(count), Some(max)) = Reader(findings).keep(values) else { return };
    let fault = match () {
        () if max == 0 => return, // no limit
        () if count >= max => &CONNTRACK_FULL,
        () if count >= max - max / 10 => &CONNTRACK_NEARLY_FULL,
        () => return,
    };
    let evidence = format!("{count} of {max} connections; new ones are dropped beyond that");
    let fix = format!("sudo sysctl -w {MAX}={}", max.saturating_mul(2));
    findings.add(Finding::new(fault, Object::Node, evidence).fix(fix));
}

/// The value of a setting; None without connection tracking.
fn number(name: &str) -> Result<Option<u64>> {
    let Some(setting) = Sysctl::parse(name) else { return Ok(None) };
    if !setting.exists()? {
        return Ok(None);
    }
    let text = setting.read()?;
    text.parse().map(Some).map_err(|_| Error::check(format!("sysctl {setting} is {text:?}")))
}
