//! D25x: the table of connections, without which no address is translated.

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object};
use super::node::{Node, Reader};
use crate::error::{Error, Result};
use crate::net::sysctl::Sysctl;

const FULL: Fault = Fault::error("D250", "the table of connections is full");
const NEARLY_FULL: Fault = Fault::warning("D251", "the table of connections is nearly full");

/// The examination.
pub const EXAMINATION: Examination = Examination { faults: || vec![&FULL, &NEARLY_FULL], examine };

const COUNT: &str = "net.netfilter.nf_conntrack_count";
const MAX: &str = "net.netfilter.nf_conntrack_max";

fn examine(_: &Node<'_>, findings: &mut Findings) {
    let values = number(COUNT).and_then(|count| Ok((count, number(MAX)?)));
    let (Some(count), Some(max)) = Reader(findings).keep(values) else { return };
    let fault = match () {
        () if max == 0 => return, // no limit
        () if count >= max => &FULL,
        () if count >= max - max / 10 => &NEARLY_FULL,
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
