//! `cni-multi doctor [NETNS|CONTAINER]`: why a container, or this node, has no network.
//!
//! [`node`] reads the facts once, with those of each [`attachment`]; each examination looks at them
//! and adds a [`finding`] for each fault; [`report`] prints them. To add one, write its module, its
//! faults in [`faults`], and add it to [`EXAMINATIONS`]. Nothing is changed.

mod addresses;
mod attachment;
mod bundle;
mod cluster;
mod configuration;
mod conntrack;
mod dns;
mod duplicates;
mod faults;
mod file_reader;
mod finding;
mod follower;
mod forwarding;
mod gateway;
mod kernel;
mod leftovers;
mod links;
mod lower_links;
mod neighbours;
mod node;
mod others;
mod outside;
mod packet_filters;
mod path;
mod plugin_dirs;
mod plugins;
mod policy;
mod ranges;
mod records;
mod report;
mod request;
mod resolver;
mod routes;
mod shared;
mod source_check;
mod status;
mod storage;
mod strays;
mod wiring;

use std::collections::BTreeMap;

pub use self::faults::FAULTS;
pub use self::finding::text_of;
use self::finding::{Finding, Findings};
use self::node::Node;
pub use self::request::Request;
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::runtime::find::{self, Name};
use crate::terminal::style::Style;

/// Everything that is examined, in the order of the codes.
const EXAMINATIONS: [fn(&Node<'_>, &mut Findings); 24] = [
    configuration::examine,
    records::examine,
    kernel::examine,
    lower_links::examine,
    cluster::examine,
    forwarding::examine,
    storage::examine,
    plugin_dirs::examine,
    conntrack::examine,
    packet_filters::examine,
    leftovers::examine,
    source_check::examine,
    links::examine,
    policy::examine,
    addresses::examine,
    strays::examine,
    ranges::examine,
    routes::examine,
    status::examine,
    cluster::examine_blocks, // it says no more of a daemon than STATUS has
    plugins::examine,        // it adds what no other has found
    dns::examine,
    duplicates::examine,
    path::examine,
];

/// How the findings are printed.
#[derive(Clone, Copy)]
pub enum Format {
    /// In columns, for people.
    Text(Style),
    /// As one object, for programs.
    Json,
}

/// Examines the node, or one container; returns the output, and whether nothing was found.
pub fn run(request: &Request<'_>, format: Format) -> Result<(String, bool)> {
    let (node, findings) = examine(request)?;
    if let Some(file) = &request.bundle {
        let text = bundle::text(&node, &report::text(&node, &findings, Style::PLAIN));
        plain_file::create(file, text.as_bytes()).map_err(Error::at_path("create", file))?;
    }
    let text = match format {
        Format::Text(style) => report::text(&node, &findings, style),
        Format::Json => report::json(&findings),
    };
    Ok((text, findings.is_empty()))
}

/// How many findings of each kind there are, by code and severity.
pub type Counts = BTreeMap<(&'static str, &'static str), u64>;

/// Examines as [`run`] does, and counts the findings.
pub fn count(request: &Request<'_>) -> Result<Counts> {
    let (_, findings) = examine(request)?;
    let mut counts = Counts::new();
    for Finding { fault, .. } in findings {
        *counts.entry((fault.code, fault.severity.word())).or_default() += 1;
    }
    Ok(counts)
}

/// The facts, and the findings of all examinations.
fn examine<'a>(request: &'a Request<'a>) -> Result<(Node<'a>, Vec<Finding>)> {
    let mut findings = Findings::default();
    let node = Node::read(request, &mut findings)?;
    require_subject(&node)?;
    EXAMINATIONS.iter().for_each(|examination| examination(&node, &mut findings));
    Ok((node, findings.sorted()))
}

/// Fails if neither a container nor a namespace, by name, path or process, has the name.
fn require_subject(node: &Node<'_>) -> Result<()> {
    let subject = &node.request.subject;
    if subject.is_empty() || !node.attachments.is_empty() || Name::parse(subject)?.is_there() {
        return Ok(());
    }
    let all = find::recorded(&find::caches(&node.request.cache)?)?;
    let mut names: Vec<String> = all.iter().map(|recorded| recorded.at.name()).collect();
    names.dedup();
    let msg = format!("no container or network namespace is named {subject:?}");
    Err(Error::new(Code::UNKNOWN_CONTAINER, msg)
        .with_details(format_args!("attached containers: {}", find::listed(&names))))
}
