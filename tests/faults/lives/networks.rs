//! The networks of the random attachments: every plugin, alone and in chains of up to five.

use serde_json::{Value, json};

use crate::support::netns::Lab;

/// The way in which a network's plugins are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// One process per plugin, as runtimes with libcni do it.
    Plugins,
    /// `cni-multi net`, which has its own locks and cache.
    Net,
}

impl Driver {
    /// Distinguishes the networks of the two drivers: GC of one does not know the attachments of
    /// the other.
    fn zone(self) -> u8 {
        match self {
            Driver::Plugins => 1,
            Driver::Net => 2,
        }
    }
}

pub struct Network {
    pub name: String,
    pub driver: Driver,
    /// The plugins of the list, with `capabilities` as in a file.
    pub plugins: Vec<Value>,
    /// Whether it provides the default route. A container has at most one such network.
    pub is_main: bool,
    /// The fixed name of the interface, if any.
    pub ifname: Option<&'static str>,
    /// The address that answers the container's pings.
    pub gateway: Option<String>,
    /// The worker that owns the network, if it takes one attachment at a time.
    pub worker: Option<usize>,
}

impl Network {
    /// The type of the IPAM plugin.
    pub fn ipam(&self) -> &str {
        self.plugins[0]["ipam"]["type"].as_str().unwrap_or_default()
    }

    /// Ports and addresses that no other concurrent attachment requests.
    pub fn capabilities(&self, worker: usize, number: usize) -> Value {
        let has = |capability: &str| {
            self.plugins.iter().any(|plugin| plugin["capabilities"][capability] == true)
        };
        let mut known = json!({});
        if has("portMappings") {
            let port = 10_000 + worker * 1000 + number % 500 * 2;
            known["portMappings"] = json!([
                {"hostPort": port, "containerPort": 80, "protocol": "tcp"},
                {"hostPort": port + 1, "containerPort": 53, "protocol": "udp"},
            ]);
        }
        if has("ips") {
            known["ips"] =
                json!([format!("10.{}6.{worker}.{}/16", self.driver.zone(), 2 + number % 250)]);
        }
        known
    }

    /// Retries until the devices that a container takes from the host exist or its VLAN ID is free:
    /// the kernel releases both some time after the namespace that held them.
    pub fn make_ready(&self, lab: &Lab) {
        let Some(worker) = self.worker else { return };
        let links = self.plugins[0]["links"].as_array().into_iter().flatten();
        let devices = links.map(|link| &link["name"]).chain([&self.plugins[0]["device"]]);
        for (number, device) in devices.filter_map(Value::as_str).enumerate() {
            let address = format!("02:00:00:00:d{number}:{worker:02x}");
            let far = format!("type veth peer name {device} netns outside");
            let add = format!("ip link add {device} address {address} {far}");
            await_success(lab, &format!("ip link show {device} || {add}"));
        }
        if let Some(id) = self.plugins[0]["vlanId"].as_u64() {
            let add = format!("ip link add link uplink name uplink.{id} type vlan id {id}");
            await_success(lab, &format!("{add} && ip link del uplink.{id}"));
        }
    }

    /// The network configuration list, as in a file.
    pub fn list(&self) -> Value {
        json!({"cniVersion": "1.1.0", "name": self.name, "plugins": self.plugins})
    }

    /// The configuration of one plugin, as runtimes derive it from the list and the attachment's
    /// capabilities.
    pub fn derive(&self, plugin: &Value, capabilities: &Value) -> Value {
        let mut conf = plugin.clone();
        conf["name"] = self.name.as_str().into();
        conf["cniVersion"] = "1.1.0".into();
        let taken = conf.as_object_mut().unwrap().remove("capabilities").unwrap_or_default();
        for capability in taken.as_object().into_iter().flat_map(|object| object.keys()) {
            if let Some(value) = capabilities.get(capability) {
                conf["runtimeConfig"][capability] = value.clone();
            }
        }
        conf
    }
}

fn await_success(lab: &Lab, commands: &str) {
    lab.host.sh(&format!(
        "for n in $(seq 1000); do ({commands}) >/dev/null 2>&1 && exit; sleep 0.02; done; exit 1"
    ));
}

/// A list under construction.
struct Zone {
    driver: Driver,
    networks: Vec<Network>,
}

impl Zone {
    fn new(driver: Driver) -> Zone {
        Zone { driver, networks: vec![] }
    }

    fn bridge(&self, number: u8) -> String {
        format!("lives{}{number}", self.driver.zone())
    }

    fn subnet(&self, number: u8) -> String {
        format!("10.{}{number}.0.0/26", self.driver.zone())
    }

    /// The range is so small that addresses are soon reused.
    fn leases(&self, number: u8) -> Value {
        json!({"type": "host-local", "subnet": self.subnet(number)})
    }

    /// A few addresses of a worker's own.
    fn few(&self, number: u8, worker: usize) -> Value {
        let subnet = format!("10.{}{number}.{worker}.0/29", self.driver.zone());
        json!({"type": "host-local", "subnet": subnet})
    }

    fn dual(&self, number: u8) -> Value {
        let zone = self.driver.zone();
        let v6 = format!("2001:db8:{zone}{number}::/122");
        json!({"type": "host-local", "ranges": [[{"subnet": self.subnet(number)}], [{"subnet": v6}]]})
    }

    fn gateway(&self, number: u8) -> Option<String> {
        Some(format!("10.{}{number}.0.1", self.driver.zone()))
    }

    fn add(&mut self, name: &str, plugins: Vec<Value>) -> &mut Network {
        let (name, driver) = (format!("{name}-{}", self.driver.zone()), self.driver);
        let (is_main, ifname, gateway, worker) = (false, None, None, None);
        self.networks.push(Network { name, driver, plugins, is_main, ifname, gateway, worker });
        self.networks.last_mut().unwrap()
    }
}

fn portmap(backend: &str) -> Value {
    json!({"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}})
}

fn bandwidth() -> Value {
    let (rate, burst) = (50_000_000, 5_000_000);
    json!({"type": "bandwidth", "ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst})
}

/// The optional features of this machine.
pub struct Able {
    pub taps: bool,
    pub limits: bool,
    pub leases: bool,
}

/// Networks of links that every kernel supports.
pub fn usual(driver: Driver, workers: &[usize], able: &Able) -> Vec<Network> {
    let mut zone = Zone::new(driver);
    let limits = || able.limits.then(bandwidth);

    let (bridge, ipam) = (zone.bridge(1), zone.dual(1));
    let mut five = vec![
        json!({"type": "bridge", "bridge": bridge, "isDefaultGateway": true, "hairpinMode": true, "ipMasq": true,
            "ipMasqBackend": "nftables", "ipam": ipam}),
        portmap("nftables"),
        json!({"type": "firewall", "backend": "nftables"}),
        json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "517"}}),
    ];
    five.extend(limits());
    let gateway = zone.gateway(1);
    let network = zone.add("five", five);
    (network.is_main, network.gateway) = (true, gateway);

    let (bridge, ipam) = (zone.bridge(2), zone.dual(2));
    let programs = vec![
        json!({"type": "bridge", "bridge": bridge, "isDefaultGateway": true, "ipMasq": true,
            "ipMasqBackend": "iptables", "ipam": ipam}),
        portmap("iptables"),
        json!({"type": "firewall", "backend": "iptables"}),
    ];
    let gateway = zone.gateway(2);
    let network = zone.add("programs", programs);
    (network.is_main, network.gateway) = (true, gateway);

    let (bridge, ipam, gateway) = (zone.bridge(3), zone.leases(3), zone.gateway(3));
    let alone = json!({"type": "bridge", "bridge": bridge, "isGateway": true, "ipam": ipam});
    zone.add("bridge", vec![alone]).gateway = gateway;

    let (ipam, gateway) = (zone.leases(4), zone.gateway(4));
    let ptp = json!({"type": "ptp", "ipMasq": true, "ipam": ipam});
    zone.add("ptp", vec![ptp, portmap("nftables"), json!({"type": "sbr"})]).gateway = gateway;

    let macvlan = json!({"type": "macvlan", "master": "uplink", "ipam": zone.leases(5)});
    let tuning = json!({"type": "tuning", "allmulti": true, "mtu": 1300});
    zone.add("macvlan", vec![macvlan, tuning]);

    let bridge = json!({"type": "bridge", "bridge": zone.bridge(6), "isGateway": true,
        "capabilities": {"ips": true}, "ipam": {"type": "static"}});
    zone.add("static", std::iter::once(bridge).chain(limits()).collect());

    zone.add("loopback", vec![json!({"type": "loopback"})]).ifname = Some("lo");

    if able.leases {
        let dhcp = json!({"type": "macvlan", "master": "lan", "ipam": {"type": "dhcp"}});
        let network = zone.add("dhcp", vec![dhcp]);
        (network.is_main, network.gateway) = (true, Some(crate::support::dhcp::SERVER.to_owned()));
    }
    if able.taps {
        let tap = json!({"type": "tap", "ipam": zone.leases(7)});
        zone.add("tap", vec![tap]);
    }
    for worker in workers {
        let (device, ipam) = (format!("device{worker}"), zone.few(8, *worker));
        let device = json!({"type": "host-device", "device": device, "ipam": ipam});
        let tuning = json!({"type": "tuning", "mtu": 1450, "txQLen": 77});
        zone.add(&format!("device{worker}"), vec![device, tuning]).worker = Some(*worker);
    }
    zone.networks
}

/// Networks of links that need kernel modules.
pub fn of_modules(driver: Driver, workers: &[usize]) -> Vec<Network> {
    let mut zone = Zone::new(driver);
    let tuning = || json!({"type": "tuning", "mtu": 1300});
    zone.add("ipvlan", vec![json!({"type": "ipvlan", "master": "uplink", "ipam": zone.leases(1)})]);
    for worker in workers {
        // A VLAN of a master belongs to one container.
        let (id, ipam) = (100 + worker, zone.few(2, *worker));
        let vlan = json!({"type": "vlan", "master": "uplink", "vlanId": id, "ipam": ipam});
        zone.add(&format!("vlan{worker}"), vec![vlan, tuning()]).worker = Some(*worker);
        let ipam = zone.few(9, *worker);
        let links = ["a", "b"].map(|which| json!({"name": format!("port{worker}{which}")}));
        let bond = json!({"type": "bond", "mode": "active-backup", "links": links, "ipam": ipam});
        zone.add(&format!("bond{worker}"), vec![bond, tuning()]).worker = Some(*worker);
    }
    let dummy = json!({"type": "dummy", "ipam": zone.leases(3)});
    zone.add("dummy", vec![dummy, tuning(), json!({"type": "sbr"})]);
    let bridge = json!({"type": "bridge", "bridge": zone.bridge(4), "isGateway": true, "ipam": zone.dual(4)});
    let vrf = json!({"type": "vrf", "vrfname": "red"});
    zone.add("vrf", vec![bridge, vrf, json!({"type": "firewall"})]);
    let tagged = json!({"type": "bridge", "bridge": zone.bridge(5), "vlan": 77, "macspoofchk": true,
        "ipam": zone.leases(5)});
    zone.add("tagged", vec![tagged]);
    zone.networks
}
