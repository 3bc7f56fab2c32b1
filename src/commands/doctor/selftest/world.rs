//! The host in the private namespaces: an uplink to a machine outside, containers, and a runtime
//! that runs this binary's plugins.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

use super::snapshot::Snapshot;
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachment;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::result::Document;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{AddressOptions, Netlink, PeerSpec, VethSpec};
use crate::net::netns::Netns;
use crate::net::private;
use crate::net::sysctl::Sysctl;
use crate::registry::PLUGINS;
use crate::runtime::chain::{OnFailure, Runtime};
use crate::runtime::check::Until;
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::Parameters;
use crate::sys::process::Child;

/// The host's end of the cable to the machine outside.
pub const UPLINK: &str = "uplink";
/// The host's address on the uplink.
pub const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
/// The address of the machine outside, which has no route to containers.
pub const OUTSIDE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));
const UPLINK_PREFIX: u8 = 24;
/// The interface of every container.
pub const IFNAME: &str = "eth0";

/// How addresses are added: usable at once, with a route to their subnet.
pub const ON_LINK: AddressOptions =
    AddressOptions { detect_duplicates: false, subnet_on_link: true };
/// CNI_PATH of plugins that run in this process, where no plugin is looked for.
const NO_PLUGINS: &str = "/run/cni-multi";

/// The host and all around it.
pub struct World<'a> {
    /// The host's namespace.
    pub host: Netns,
    /// The machine outside.
    pub outside: Container,
    /// The first container.
    pub red: Container,
    /// The second container.
    pub blue: Container,
    /// The host and both containers before the first ADD.
    pub untouched: Snapshot,
    /// The environment of plugins that are programs.
    pub env: &'a Environment,
}

/// A namespace, as runtimes make them.
pub struct Container {
    /// The name, which is its container id as well.
    pub name: &'static str,
    /// The file that keeps the namespace.
    pub path: String,
    /// The namespace.
    pub netns: Netns,
}

impl Container {
    /// Makes a namespace with its loopback interface up.
    pub fn make(name: &'static str) -> Result<Container> {
        let container = Container::make_bare(name)?;
        set_up(container.netns.netlink()?, "lo")?;
        Ok(container)
    }

    /// Makes a namespace whose loopback interface is down, as the kernel makes it.
    pub fn make_bare(name: &'static str) -> Result<Container> {
        let path = private::create_netns(name)?;
        let netns = Netns::open(&path)?;
        Ok(Container { name, path, netns })
    }

    /// As GC lists its attachment.
    pub fn valid(&self) -> ValidAttachment {
        ValidAttachment { container_id: self.name.to_owned(), ifname: IFNAME.to_owned() }
    }
}

impl<'a> World<'a> {
    /// Makes the host and the machine outside.
    pub fn make(env: &'a Environment) -> Result<World<'a>> {
        let host = Netns::current()?;
        let [outside, red, blue] =
            [Container::make("outside")?, Container::make("red")?, Container::make("blue")?];
        let untouched = Snapshot::default();
        let mut world = World { host, outside, red, blue, untouched, env };
        set_up(world.host.netlink()?, "lo")?;
        world.connect_uplink()?;
        world.untouched = world.snapshot(&[&world.red, &world.blue])?;
        Ok(world)
    }

    /// What the host and these containers have, and the files.
    pub fn snapshot(&self, containers: &[&Container]) -> Result<Snapshot> {
        let containers = containers.iter().map(|container| (container.name, &container.netns));
        let namespaces: Vec<_> = [("host", &self.host)].into_iter().chain(containers).collect();
        Snapshot::take(&namespaces)
    }

    fn connect_uplink(&self) -> Result<()> {
        let host = self.host.netlink()?;
        let outside = self.outside.netns.netlink()?;
        let netns = Some(self.outside.netns.fd());
        let peer = PeerSpec { name: IFNAME, mac: MacAddr::random(), netns };
        host.create_veth(&VethSpec { name: UPLINK, mac: MacAddr::random(), peer, mtu: None })?;
        address(host, UPLINK, HOST)?;
        address(outside, IFNAME, OUTSIDE)?;
        set_up(host, UPLINK)?;
        set_up(outside, IFNAME)
    }

    /// ADD; returns the result.
    pub fn add(&self, network: &Network, container: &Container) -> Result<Document> {
        let at = network.parameters(container)?;
        self.runtime(&mut io::sink()).add(&network.list, &at, OnFailure::Undo)
    }

    /// CHECK.
    pub fn check(&self, network: &Network, container: &Container) -> Result<()> {
        let at = network.parameters(container)?;
        self.runtime(&mut io::sink()).check(&network.list, &at, Until::End)?.finish().map(drop)
    }

    /// DEL.
    pub fn del(&self, network: &Network, container: &Container) -> Result<()> {
        let at = network.parameters(container)?;
        self.runtime(&mut io::sink()).del(&network.list, &at).map(drop)
    }

    /// GC, as a runtime calls it: with the attachments that it knows.
    pub fn gc(&self, network: &Network, valid: &[ValidAttachment]) -> Result<()> {
        self.runtime(&mut io::sink()).gc(&network.list, Some(valid))
    }

    /// A runtime whose plugins run in this process.
    fn runtime<'b>(&'b self, stderr: &'b mut dyn io::Write) -> Runtime<'b> {
        Runtime { path: NO_PLUGINS.to_owned(), ..Runtime::of(PLUGINS, self.env, stderr) }
    }
}

/// A network and what a runtime passes besides.
pub struct Network {
    /// The configuration.
    pub list: NetworkList,
    /// The capability arguments.
    pub capability_args: Value,
}

impl Network {
    /// A network of these plugins: the text of a JSON array.
    pub fn new(name: &str, plugins: &str) -> Result<Network> {
        let document = format!(r#"{{"cniVersion":"1.1.0","name":"{name}","plugins":{plugins}}}"#);
        let list = NetworkList::parse(document.into_bytes())?;
        Ok(Network { list, capability_args: Value::Object(vec![]) })
    }

    /// The same network with capability arguments: the text of a JSON object.
    pub fn with_capabilities(mut self, text: &str) -> Result<Network> {
        self.capability_args = Value::parse(text.as_bytes())?;
        Ok(self)
    }

    /// The parameters of a container's attachment.
    pub fn parameters(&self, container: &Container) -> Result<Parameters> {
        Ok(Parameters {
            key: Key::parse(&self.list.name, container.name, IFNAME)?,
            netns: container.path.clone(),
            args: vec![],
            capability_args: self.capability_args.clone(),
        })
    }
}

/// Sets a link up.
pub fn set_up(netlink: &Netlink, name: &str) -> Result<()> {
    netlink.set_up(&netlink.link(name)?)
}

/// Adds an address of the uplink's subnet.
fn address(netlink: &Netlink, name: &str, ip: IpAddr) -> Result<()> {
    let net = IpNet::new_assert(ip, UPLINK_PREFIX);
    netlink.add_address(&netlink.link(name)?, net, ON_LINK)
}

/// The addresses of a result, in its order.
pub fn addresses(result: &Document) -> Result<Vec<IpAddr>> {
    let value = result.to_value();
    let address = |ip: &Value| {
        let text = ip.get("address").and_then(Value::as_str).unwrap_or_default();
        let net: Result<IpNet, _> = text.parse();
        let problem = || format!("{text:?} is not an address with its prefix");
        net.map(|net| net.addr()).map_err(|_| Error::new(Code::BUG, problem()))
    };
    value.get("ips").map(Value::items).unwrap_or_default().iter().map(address).collect()
}

/// An attachment to be probed.
pub struct Attached<'a> {
    /// Where it is.
    pub world: &'a World<'a>,
    /// Its container.
    pub container: &'a Container,
    /// The addresses of the result.
    pub addresses: Vec<IpAddr>,
}

impl Attached<'_> {
    /// Its first address.
    pub fn address(&self) -> Result<IpAddr> {
        let first = self.addresses.first().copied();
        first.ok_or_else(|| Error::check("the result has no address"))
    }
}

/// What a plugin needs to be kept running.
pub type Running = Vec<Child>;

/// Whether links of a new namespace have IPv6: the kernel may lack it, or its parameter
/// `ipv6.disable_ipv6` may have switched it off.
pub fn has_ipv6() -> bool {
    let disabled = Sysctl::ipv6_conf("default", "disable_ipv6").read_if_readable();
    disabled.is_ok_and(|value| value.as_deref() == Some("0"))
}
