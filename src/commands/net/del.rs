//! `net del`: detaches a namespace, also from a network without a configuration file.

use std::io::Write;

use super::operator::Operator;
use super::{network, subject};
use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::runtime::directory;
use crate::runtime::list::NetworkList;

/// Detaches what the arguments name. What is not attached is a success that is reported.
pub fn run(operator: &Operator<'_>, stderr: &mut dyn Write) -> Result<()> {
    let list = list_of(operator, stderr)?;
    let mut runtime = operator.runtime(stderr)?;
    let mut subject = subject::find(operator, NetworkName::parse(&list.name)?, &list)?;
    runtime.cache = subject.cache.clone();
    if subject.is_at_recorded_path && runtime.is_in_host(&subject.at)? {
        // DEL gets no namespace: the recorded path, such as `/proc/4711/ns/net`, leads to the host's
        // by now, and nothing in there is the container's.
        let netns = std::mem::take(&mut subject.at.netns);
        let note = format!("{netns:?} is the host's own namespace; detaching as if it were gone");
        operator.note(&note, runtime.stderr);
    }
    let done = runtime.del(&list, &subject.at);
    if !done.map_err(|error| runtime.explain(&list, error))? {
        subject::tell_not_attached(operator, &subject.at, runtime.stderr)?;
    }
    Ok(())
}

/// The network by its file, or by the attachment's record if it has no file any more.
fn list_of(operator: &Operator<'_>, stderr: &mut dyn Write) -> Result<NetworkList> {
    let name = NetworkName::parse(operator.argument("network"))?;
    let dir = operator.conf_dir();
    if let Some(list) = directory::find_if_there(&dir, name.as_str())? {
        return Ok(list);
    }
    let Some(list) = subject::recorded_network(operator, name)? else {
        return network::of(operator); // its error lists the networks
    };
    let note = format!(
        "network {:?} has no configuration in {}; detaching by the one recorded at add",
        list.name,
        dir.display()
    );
    operator.note(&note, stderr);
    Ok(list)
}
