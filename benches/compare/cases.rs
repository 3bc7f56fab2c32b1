//! The cases that are measured. A group's lanes run in alternation, so its rows are comparable with
//! each other.

use std::path::Path;

use serde_json::{Value, json};

use crate::Result;
use crate::call::{self, Attachment, Plugins, bridge, conf, ipam, merge, with_previous};
use crate::floor;
use crate::names::{self, Side};
use crate::namespaces::{Netns, Pool, SCRATCH};
use crate::process::{Invocation, find_program};
use crate::schedule::{Act, Lane, Round};

/// The input to the groups.
pub struct Bench {
    pub plugins: Vec<Plugins>,
    pub runs: usize,
    pub quick: bool,
}

impl Bench {
    /// The sides that have all these plugins; prints a note for a side that lacks one.
    pub fn sides(&self, wanted: &[&str]) -> Vec<&Plugins> {
        let complete = |plugins: &&Plugins| {
            let absent = wanted.iter().find(|plugin| !plugins.has(plugin));
            if let Some(absent) = absent {
                eprintln!("note: {} has no {absent}", plugins.side.name());
            }
            absent.is_none()
        };
        self.plugins.iter().filter(complete).collect()
    }

    /// The numbers of leases in the store when host-local is measured.
    pub fn lease_counts(&self) -> [usize; 3] {
        if self.quick { [10, 100, 1_000] } else { [10, 1_000, 30_000] }
    }

    /// The numbers of existing mappings with which one more is measured.
    pub fn mapping_counts(&self) -> [usize; 3] {
        if self.quick { [10, 50, 100] } else { [10, 1_000, 10_000] }
    }

    /// The numbers of attached containers when one more is attached.
    pub fn densities(&self) -> [usize; 2] {
        if self.quick { [0, 40] } else { [0, 2000] }
    }

    /// The numbers of attached containers when datagrams are measured, and of hosts with them. Two
    /// hosts with the same rules differ by up to a fifth, one way in this run and the other way in
    /// the next.
    pub fn packet_hosts(&self) -> [(usize, usize); 3] {
        if self.quick { [(1, 1), (20, 1), (40, 1)] } else { [(1, 5), (100, 5), (1000, 1)] }
    }

    /// The numbers of attached containers with `fastPath` when datagrams are measured.
    pub fn fast_path_counts(&self) -> [usize; 2] {
        if self.quick { [1, 20] } else { [1, 100] }
    }

    /// The number of attached containers when connections are measured.
    pub fn full_host(&self) -> usize {
        if self.quick { 40 } else { 400 }
    }

    /// The number of moments at which the chain's ADD is killed; each plugin gets the same part.
    pub fn kills(&self) -> usize {
        if self.quick { 5 } else { 20 }
    }

    pub fn crowd_size(&self) -> usize {
        if self.quick { 40 } else { 200 }
    }

    pub fn lane(&self, case: impl Into<String>, side: Side, act: Act) -> Result<Lane> {
        Ok(Lane::new(case, side, Netns::create()?, self.runs, act))
    }
}

/// A network name for one side: both keep their files in the same directories.
pub fn network(plugins: &Plugins, case: &str) -> String {
    format!("{case}-{}", plugins.side.name())
}

pub fn version(bench: &Bench) -> Result<Vec<Lane>> {
    let mut lanes = vec![];
    for plugins in bench.sides(&["bridge"]) {
        let call = plugins.bare("bridge", Some("VERSION"));
        lanes.push(bench.lane(names::VERSION, plugins.side, repeat("", call))?.short());
    }
    if let Some(program) = floor::build("return0") {
        lanes.push(
            bench.lane(names::VERSION, Side::Floor, repeat("", Invocation::new(program)))?.short(),
        );
    }
    Ok(lanes)
}

pub fn about(bench: &Bench) -> Result<Vec<Lane>> {
    let lane = |plugins: &Plugins| {
        let call = plugins.bare("bridge", None);
        Ok(bench.lane("about text", plugins.side, repeat("", call))?.short())
    };
    bench.sides(&["bridge"]).into_iter().map(lane).collect()
}

/// Repeats the same call in every run.
fn repeat(operation: &'static str, call: Invocation) -> Act {
    Box::new(move |round| round.timed(operation, &call).map(drop))
}

pub fn loopback(bench: &Bench) -> Result<Vec<Lane>> {
    let lane =
        |plugins: &Plugins| attach(bench, plugins, "loopback", conf("lo", "loopback", &json!({})));
    bench.sides(&["loopback"]).into_iter().map(lane).collect()
}

/// IPv4 alone, the same in C, and both families: one group, because the budgets compare them with
/// each other.
pub fn bridges(bench: &Bench) -> Result<Vec<Lane>> {
    let mut lanes = vec![];
    for plugins in bench.sides(&["bridge", "host-local"]) {
        lanes.push(attach(bench, plugins, names::BRIDGE, bridge(&network(plugins, "bridge")))?);
        let mut dual = bridge(&network(plugins, "dual"));
        dual["ipam"] = ipam(&["10.88.0.0/16", "fd00:88::/64"]);
        lanes.push(attach(bench, plugins, names::DUAL, dual)?);
    }
    if let Some(program) = floor::build("bridge_add") {
        lanes.push(bench.lane(names::BRIDGE, Side::Floor, bridge_in_c(bench, &program)?)?);
    }
    Ok(lanes)
}

fn bridge_in_c(bench: &Bench, program: &Path) -> Result<Act> {
    let containers = Pool::new(bench.runs)?;
    let leases = format!("{SCRATCH}/floor-leases");
    let call = calls_of(program);
    Ok(Box::new(move |round| {
        let address = format!("10.88.{}.{}", round.number >> 8, round.number & 255);
        let veth = format!("veth{:08x}", round.number);
        let netns = containers.path(round.number);
        round.timed("ADD", &call(&["add", &netns, &veth, &leases, &address, "10.88.255.254"]))?;
        round.timed("DEL", &call(&["del", &veth, &leases, &address])).map(drop)
    }))
}

/// Builds calls of a C program from their arguments.
fn calls_of(program: &Path) -> impl Fn(&[&str]) -> Invocation + use<> {
    let program = program.to_owned();
    move |args| {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Invocation { args, ..Invocation::new(&program) }
    }
}

pub fn bridge_nftables(bench: &Bench) -> Result<Vec<Lane>> {
    // On DEL the reference also removes iptables rules if it finds iptables, and fails on the chain
    // that it never created.
    let nft_only = |plugins: &Plugins| plugins.with_programs(&["nft"]);
    // The reference got this backend in the release that added 1.1.0; earlier releases use iptables
    // whatever the configuration says.
    let knows_nftables = |plugins: &&Plugins| {
        let knows = plugins.speak("1.1.0");
        if !knows {
            eprintln!("note: {} is too old for the nftables backend", plugins.side.name());
        }
        knows
    };
    let plugins = bench.plugins.iter().filter(knows_nftables).cloned().collect();
    let bench = &Bench { plugins, ..*bench };
    masquerading(
        bench,
        names::MASQUERADE,
        &json!({"ipMasq": true, "ipMasqBackend": "nftables"}),
        nft_only,
    )
}

pub fn bridge_iptables(bench: &Bench) -> Result<Vec<Lane>> {
    masquerading(
        bench,
        names::IPTABLES,
        &json!({"ipMasq": true, "ipMasqBackend": "iptables"}),
        |plugins| Ok(plugins.clone()),
    )
}

fn masquerading(
    bench: &Bench,
    case: &str,
    own: &Value,
    on_host: impl Fn(&Plugins) -> Result<Plugins>,
) -> Result<Vec<Lane>> {
    let lane = |plugins: &Plugins| {
        let plugins = &on_host(plugins)?;
        let mut conf = bridge(&network(plugins, "masq"));
        merge(&mut conf, own);
        attach(bench, plugins, case, conf)
    };
    bench.sides(&["bridge", "host-local"]).into_iter().map(lane).collect()
}

pub fn ptp(bench: &Bench) -> Result<Vec<Lane>> {
    let lane = |plugins: &Plugins| {
        let own = json!({"ipam": ipam(&["10.89.0.0/16"])});
        attach(bench, plugins, "ptp+host-local", conf(&network(plugins, "ptp"), "ptp", &own))
    };
    bench.sides(&["ptp", "host-local"]).into_iter().map(lane).collect()
}

pub fn macvlan(bench: &Bench) -> Result<Vec<Lane>> {
    let mut lanes = on_master(bench, "macvlan", names::MACVLAN, &json!({}))?;
    if let Some(program) = floor::build("macvlan_add") {
        lanes.push(with_master(bench.lane(
            names::MACVLAN,
            Side::Floor,
            macvlan_in_c(bench, &program)?,
        )?)?);
    }
    Ok(lanes)
}

fn macvlan_in_c(bench: &Bench, program: &Path) -> Result<Act> {
    let containers = Pool::new(bench.runs)?;
    let leases = format!("{SCRATCH}/floor-leases-macvlan");
    let call = calls_of(program);
    Ok(Box::new(move |round| {
        let address = format!("10.90.{}.{}", round.number >> 8, round.number & 255);
        let passing = format!("cni{:08x}", round.number);
        let netns = containers.path(round.number);
        round.timed(
            "ADD",
            &call(&["add", &netns, MASTER, &passing, &leases, &address, "10.90.255.254"]),
        )?;
        round.timed("DEL", &call(&["del", &netns, &leases, &address])).map(drop)
    }))
}

pub fn ipvlan(bench: &Bench) -> Result<Vec<Lane>> {
    on_master(bench, "ipvlan", "ipvlan+host-local", &json!({}))
}

pub fn vlan(bench: &Bench) -> Result<Vec<Lane>> {
    on_master(bench, "vlan", "vlan+host-local", &json!({"vlanId": 100}))
}

/// The host's link under the containers' links.
const MASTER: &str = "master0";

fn on_master(bench: &Bench, plugin: &str, case: &str, own: &Value) -> Result<Vec<Lane>> {
    let lane = |plugins: &Plugins| {
        let mut conf = conf(&network(plugins, plugin), plugin, own);
        merge(&mut conf, &json!({"master": MASTER, "ipam": ipam(&["10.90.0.0/16"])}));
        with_master(attach(bench, plugins, case, conf)?)
    };
    bench.sides(&[plugin, "host-local"]).into_iter().map(lane).collect()
}

fn with_master(lane: Lane) -> Result<Lane> {
    let host = &lane.host;
    let made = host.ip(&format!("link add {MASTER} up type veth peer name wire0"))?
        && host.ip("link set wire0 up")?;
    if made { Ok(lane) } else { Err(format!("make the link {MASTER}: the kernel refuses")) }
}

/// ADD and DEL of one plugin, with a fresh container in every run.
fn attach(bench: &Bench, plugins: &Plugins, case: &str, conf: Value) -> Result<Lane> {
    let containers = Pool::new(bench.runs)?;
    let plugin = conf["type"].as_str().unwrap_or_default().to_owned();
    let side = plugins.side;
    let plugins = plugins.clone();
    let act = move |round: &mut Round| {
        let at = attachment(&plugins, &containers, round.number);
        call::result(&round.timed("ADD", &at.call(&plugin, "ADD", &conf))?)?;
        round.timed("DEL", &at.call(&plugin, "DEL", &conf)).map(drop)
    };
    bench.lane(case, side, Box::new(act))
}

pub fn attachment<'a>(plugins: &'a Plugins, containers: &Pool, number: usize) -> Attachment<'a> {
    Attachment {
        plugins,
        netns: containers.path(number),
        container_id: format!("container-{number}"),
    }
}

/// CHECK of one attachment. Its ADD and DEL are not timed.
pub fn check(bench: &Bench) -> Result<Vec<Lane>> {
    let lane = |plugins: &Plugins| {
        let containers = Pool::new(bench.runs)?;
        let conf = bridge(&network(plugins, "check"));
        let side = plugins.side;
        let plugins = plugins.clone();
        let act = move |round: &mut Round| {
            let at = attachment(&plugins, &containers, round.number);
            let result = call::result(&round.untimed(&at.call("bridge", "ADD", &conf))?)?;
            round.timed("CHECK", &at.call("bridge", "CHECK", &with_previous(&conf, &result)))?;
            round.untimed(&at.call("bridge", "DEL", &conf)).map(drop)
        };
        bench.lane(names::BRIDGE, side, Box::new(act))
    };
    bench.sides(&["bridge", "host-local"]).into_iter().map(lane).collect()
}

pub fn tuning(bench: &Bench) -> Result<Vec<Lane>> {
    after_bridge(bench, "tuning", &tuned())
}

fn tuned() -> Value {
    json!({"sysctl": {"net.core.somaxconn": "1024"}, "mtu": 1400})
}

pub fn bandwidth(bench: &Bench) -> Result<Vec<Lane>> {
    let mut lanes = after_bridge(bench, "bandwidth", &rates())?;
    if let (Some(program), Some(ip)) = (floor::build("link_del"), find_program("ip")) {
        let ifb_in_c = ifb_in_c(calls_of(&ip), calls_of(&program));
        lanes.push(bench.lane(names::BANDWIDTH, Side::Floor, ifb_in_c)?);
    }
    Ok(lanes)
}

/// Deletes an ifb that is up.
fn ifb_in_c(
    ip: impl Fn(&[&str]) -> Invocation + 'static,
    link_del: impl Fn(&[&str]) -> Invocation + 'static,
) -> Act {
    Box::new(move |round| {
        round.untimed(&ip(&["link", "add", "ifb-floor", "up", "type", "ifb"]))?;
        round.timed("DEL", &link_del(&["ifb-floor"])).map(drop)
    })
}

fn rates() -> Value {
    let (rate, burst) = (100_000_000, 10_000_000);
    json!({"ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst})
}

pub fn sbr(bench: &Bench) -> Result<Vec<Lane>> {
    after_bridge(bench, "sbr", &json!({}))
}

pub fn vrf(bench: &Bench) -> Result<Vec<Lane>> {
    after_bridge(bench, "vrf", &json!({"vrfname": "blue"}))
}

/// ADD and DEL of a plugin chained after bridge; the bridge's calls are not timed.
fn after_bridge(bench: &Bench, plugin: &'static str, own: &Value) -> Result<Vec<Lane>> {
    let lane = |plugins: &Plugins| {
        let containers = Pool::new(bench.runs)?;
        let network = network(plugins, plugin);
        let (first, second) = (bridge(&network), conf(&network, plugin, own));
        let side = plugins.side;
        let plugins = plugins.clone();
        let act = move |round: &mut Round| {
            let at = attachment(&plugins, &containers, round.number);
            let result = call::result(&round.untimed(&at.call("bridge", "ADD", &first))?)?;
            let result =
                call::result(&round.timed("ADD", &chained(&at, "ADD", &second, &result))?)?;
            round.timed("DEL", &chained(&at, "DEL", &second, &result))?;
            round.untimed(&at.call("bridge", "DEL", &first)).map(drop)
        };
        bench.lane(format!("{plugin} after bridge"), side, Box::new(act))
    };
    bench.sides(&[plugin, "bridge", "host-local"]).into_iter().map(lane).collect()
}

/// The five calls that an engine makes for one container, as a sum; each side uses its default
/// firewall backend.
pub fn chain(bench: &Bench) -> Result<Vec<Lane>> {
    let lane = |plugins: &Plugins| {
        let containers = Pool::new(bench.runs)?;
        let confs = chain_confs(&network(plugins, "chain"));
        let side = plugins.side;
        let plugins = plugins.clone();
        let act = move |round: &mut Round| {
            let at = attachment(&plugins, &containers, round.number);
            let mut result = Value::Null;
            for conf in &confs {
                result = call::result(&round.timed("ADD", &chained(&at, "ADD", conf, &result))?)?;
            }
            for conf in confs.iter().rev() {
                round.timed("DEL", &chained(&at, "DEL", conf, &result))?;
            }
            Ok(())
        };
        Ok(bench.lane(names::CHAIN, side, Box::new(act))?.slow(bench.runs.div_ceil(2)))
    };
    bench
        .sides(&["bridge", "host-local", "portmap", "firewall", "tuning", "bandwidth"])
        .into_iter()
        .map(lane)
        .collect()
}

pub fn chain_confs(network: &str) -> Vec<Value> {
    let mut first = bridge(network);
    first["ipMasq"] = json!(true);
    let ports = json!({"runtimeConfig": {"portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
    ]}});
    vec![
        first,
        conf(network, "portmap", &ports),
        conf(network, "firewall", &json!({})),
        conf(network, "tuning", &tuned()),
        conf(network, "bandwidth", &rates()),
    ]
}

/// The same five as a network that cnitool attaches: one process of ours, or six with the
/// reference's cnitool (`CNI_TOOL`). The floor is the first of the five in C.
pub fn cnitool(bench: &Bench) -> Result<Vec<Lane>> {
    let mut lanes = vec![];
    for plugins in
        bench.sides(&["bridge", "host-local", "portmap", "firewall", "tuning", "bandwidth"])
    {
        match (plugins.side, std::env::var_os("CNI_TOOL")) {
            (Side::Ours, _) => {
                lanes.push(with_cnitool(bench, plugins, &plugins.binary()?, &["cnitool"])?);
            }
            (_, Some(tool)) => lanes.push(with_cnitool(bench, plugins, Path::new(&tool), &[])?),
            (_, None) => eprintln!("note: CNI_TOOL names no cnitool of the reference"),
        }
    }
    if let Some(program) = floor::build("bridge_add") {
        let lane = bench.lane(names::CNITOOL, Side::Floor, bridge_in_c(bench, &program)?)?;
        lanes.push(lane.slow(bench.runs.div_ceil(2)));
    }
    Ok(lanes)
}

fn with_cnitool(
    bench: &Bench,
    plugins: &Plugins,
    tool: &Path,
    first: &'static [&str],
) -> Result<Lane> {
    let containers = Pool::new(bench.runs)?;
    let name = network(plugins, "cnitool");
    let env = [
        ("NETCONFPATH".to_owned(), write_network(&name)?),
        ("CNI_PATH".to_owned(), plugins.dir.to_string_lossy().into_owned()),
        ("PATH".to_owned(), std::env::var("PATH").unwrap_or_default()),
    ];
    let call = calls_of(tool);
    let act = move |round: &mut Round| {
        let netns = containers.path(round.number);
        for (operation, verb) in [("ADD", "add"), ("DEL", "del")] {
            let call = call(&[first, &[verb, name.as_str(), netns.as_str()]].concat());
            round.timed(operation, &Invocation { env: env.to_vec(), ..call })?;
        }
        Ok(())
    };
    Ok(bench.lane(names::CNITOOL, plugins.side, Box::new(act))?.slow(bench.runs.div_ceil(2)))
}

/// Writes the network of five under this name and returns its directory.
fn write_network(name: &str) -> Result<String> {
    let dir = format!("{SCRATCH}/networks-{name}");
    let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": chain_confs(name)});
    std::fs::create_dir_all(&dir).map_err(|e| format!("create {dir:?}: {e}"))?;
    std::fs::write(format!("{dir}/{name}.conflist"), list.to_string())
        .map_err(|e| format!("write {dir:?}: {e}"))?;
    Ok(dir)
}

pub fn chained(at: &Attachment, command: &str, conf: &Value, previous: &Value) -> Invocation {
    let plugin = conf["type"].as_str().unwrap_or_default();
    let conf = if previous.is_null() { conf.clone() } else { with_previous(conf, previous) };
    at.call(plugin, command, &conf)
}

/// One allocation in a store that is already filled: costs that grow with the number of containers
/// show here.
pub fn host_local(bench: &Bench) -> Result<Vec<Lane>> {
    let mut lanes = vec![];
    for count in bench.lease_counts() {
        for plugins in bench.sides(&["host-local"]) {
            let network = network(plugins, &format!("leases-{count}"));
            call::fill_store(Path::new(&format!("/var/lib/cni/networks/{network}")), count)?;
            let own =
                json!({"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/14"}]]}});
            let lane =
                attach(bench, plugins, &names::leases(count), conf(&network, "host-local", &own))?;
            // The reference reads every file of the store: more than a second for each run at 30
            // 000.
            lanes.push(if count > 1_000 && plugins.side == Side::Reference {
                lane.slow(10)
            } else {
                lane
            });
        }
    }
    Ok(lanes)
}
