//! The facts that several examinations need, each read once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::iter;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread;

use super::attachment::{self, Attachment, Lists};
use super::faults::FACT_UNREADABLE;
use super::finding::{Finding, Findings, Object, text_of};
use super::others::Beside;
use super::request::Request;
use crate::commands::ipam::networks::{Host, Leased};
use crate::error::Result;
use crate::family::Family;
use crate::net::netlink::{Address, FoundRoute, Link, Netlink};
use crate::net::netns::{self, FileId};
use crate::net::nft::Nft;
use crate::plugin::leases::Holdings;
use crate::runtime::directory;
use crate::runtime::list::NetworkList;

/// A network as runtimes find it by name.
pub struct Network {
    /// Its file.
    pub file: PathBuf,
    /// Its plugins.
    pub list: NetworkList,
}

impl Network {
    /// Whether one of its plugins, or of their IPAM plugins, has this name.
    pub fn has(&self, kind: &str) -> bool {
        self.kinds().any(|known| known == kind)
    }

    /// The names of its plugins, each followed by that of its IPAM plugin.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.list.plugins.iter().flat_map(|plugin| {
            let ipam = plugin.value.get("ipam").and_then(|ipam| ipam.get("type")?.as_str());
            iter::once(plugin.kind.as_str()).chain(ipam)
        })
    }
}

/// The leases of a network.
pub struct Leases {
    /// The network and its store.
    pub network: Leased,
    /// What the store says.
    pub holdings: Holdings,
}

/// The host with everything that is attached to it.
pub struct Node<'a> {
    /// What was asked.
    pub request: &'a Request<'a>,
    /// The host's netlink socket.
    pub netlink: Netlink,
    /// Its links.
    pub links: Vec<Link>,
    /// Where a link is among them, by its index.
    places: HashMap<u32, usize>,
    /// The same by each of its names.
    named: HashMap<String, usize>,
    /// The addresses of all links.
    pub addresses: Vec<Address>,
    /// The routes of all tables but `local`.
    pub routes: Vec<FoundRoute>,
    /// nftables; None if the kernel lacks it.
    pub nft: Option<Nft>,
    /// The networks, in the order in which runtimes search; those that do not load are left out.
    pub networks: Vec<Network>,
    /// The leases of each network that has a store.
    pub leases: Vec<Leases>,
    /// The recorded attachments that were asked for.
    pub attachments: Vec<Attachment>,
    /// Beside a container that was asked for: the other attachments of its networks and bridges.
    pub others: Vec<Attachment>,
    /// The name servers of each namespace, as the examination of names has read them.
    pub servers: RefCell<HashMap<FileId, Vec<IpAddr>>>,
    /// How many packets were sent.
    pub sent: Cell<usize>,
    /// What the output says of them besides; may be empty.
    pub note: RefCell<String>,
}

impl<'a> Node<'a> {
    /// Reads the facts. Those that cannot be read are findings; without netlink there is nothing to
    /// examine.
    pub fn read(request: &'a Request<'a>, findings: &mut Findings) -> Result<Node<'a>> {
        let mut reader = Reader(findings);
        let mut lists = Lists::new(request);
        let host = netns::of_host()?;
        let (asked, beside) = attachments(request, &mut reader, &mut lists, &host)?;
        let (node, inside) = thread::scope(|scope| {
            let inside = scope.spawn(|| beside.look_inside(&host)); // the longest part
            let node = Node::of_host(request, asked, &mut reader);
            (node, inside.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        Ok(Node { others: beside.attachments(inside, &mut lists), ..node? })
    }

    /// The facts of the host.
    fn of_host(
        request: &'a Request<'a>,
        attachments: Vec<Attachment>,
        reader: &mut Reader<'_>,
    ) -> Result<Node<'a>> {
        let netlink = Netlink::open()?;
        let links = reader.keep(netlink.links());
        Ok(Node {
            places: links.iter().enumerate().map(|(at, link)| (link.index, at)).collect(),
            named: named(&links),
            links,
            addresses: reader.keep(netlink.all_addresses()),
            routes: reader.keep(netlink.routes()),
            nft: reader.keep(Nft::open_if_there()),
            networks: reader.keep(networks(request)),
            leases: leases(request, reader),
            attachments,
            others: vec![],
            servers: RefCell::default(),
            sent: Cell::new(0),
            note: RefCell::default(),
            request,
            netlink,
        })
    }

    /// The host's link with this index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(*self.places.get(&index)?)
    }

    /// The host's link with this name, which may be an alternative one.
    pub fn link_named(&self, name: &str) -> Option<&Link> {
        self.links.get(*self.named.get(name)?)
    }

    /// The link of the host's default route of the family; None without one, or with several links.
    pub fn uplink(&self, family: Family) -> Option<&Link> {
        let defaults = self.routes.iter().filter(|route| route.is_default(family));
        let mut links = defaults.map(|route| route.link);
        let first = links.next()??;
        links.all(|other| other == Some(first)).then(|| self.link(first))?
    }
}

/// Where the link with a name is, for all names of all links.
fn named(links: &[Link]) -> HashMap<String, usize> {
    let names_of = |(at, link): (usize, &Link)| {
        let names = iter::once(&link.name).chain(&link.alternative_names);
        names.map(|name| (name.clone(), at)).collect::<Vec<_>>()
    };
    links.iter().enumerate().flat_map(names_of).collect()
}

/// Keeps what can be read; an error is a finding about the node.
pub struct Reader<'f>(pub &'f mut Findings);

impl Reader<'_> {
    /// The fact, or nothing.
    pub fn keep<T: Default>(&mut self, read: Result<T>) -> T {
        self.keep_of(Object::Node, read)
    }

    /// The same; an error is a finding about the object.
    pub fn keep_of<T: Default>(&mut self, object: Object, read: Result<T>) -> T {
        read.unwrap_or_else(|error| {
            let finding = Finding::new(&FACT_UNREADABLE, object, text_of(&error));
            self.0.add(finding.fix("sudo cni-multi doctor"));
            T::default()
        })
    }
}

/// The networks that load, those behind another of their name left out.
fn networks(request: &Request<'_>) -> Result<Vec<Network>> {
    let mut networks: Vec<Network> = vec![];
    for file in directory::files(&request.conf_dir)? {
        let Ok(list) = directory::load(&file) else { continue }; // the examination of the configuration reports it
        if !networks.iter().any(|known| known.list.name == list.name) {
            let list = list.with_own_names(request.plugins, &request.plugin_dirs());
            networks.push(Network { file, list });
        }
    }
    Ok(networks)
}

/// Where the networks with leases are.
pub fn host<'r>(request: &Request<'r>) -> Host<'r> {
    Host {
        conf_dir: request.conf_dir.clone(),
        cache: request.cache.clone(),
        plugins: request.plugins,
        env: request.env,
        plugin_dirs: request.plugin_dirs(),
    }
}

fn leases(request: &Request<'_>, reader: &mut Reader<'_>) -> Vec<Leases> {
    let host = host(request);
    let leased = reader.keep(host.leased(None));
    let read = |network: Leased| Leases { holdings: reader.keep(network.holdings(&host)), network };
    leased.into_iter().map(read).collect()
}

/// The attachments that were asked for, and the records beside them. A name that stands for several
/// containers is an error.
fn attachments(
    request: &Request<'_>,
    reader: &mut Reader<'_>,
    lists: &mut Lists<'_>,
    host: &[FileId],
) -> Result<(Vec<Attachment>, Beside)> {
    let recorded = attachment::recorded(request);
    let recorded = if request.subject.is_empty() { reader.keep(recorded) } else { recorded? };
    let (asked, rest) = recorded;
    let mut asked: Vec<Attachment> =
        asked.into_iter().map(|recorded| Attachment::of(recorded, lists)).collect();
    asked.iter_mut().for_each(|attachment| reader.keep(attachment.look_inside(host)));
    let beside = Beside::of(&asked, rest, lists);
    Ok((asked, beside))
}
