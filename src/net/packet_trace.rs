//! Follows packets by the trace events `net` and `skb` of the kernel (Documentation/trace/events.rst),
//! in a tracefs instance of our own: which links saw a packet, and which function dropped it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process;

use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;

use super::private::leave;
use crate::error::{Error, Result};

/// Where tracefs is mounted; below debugfs the kernel mounts it itself.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// How the names of our instances begin.
const PREFIX: &str = "cni-multi-";
/// The events of packets with a length.
const WITH_LENGTH: [&str; 3] = ["net/net_dev_queue", "net/net_dev_xmit", "net/netif_receive_skb"];
/// The events of all packets: one is dropped, or was of use.
const ENDS: [&str; 2] = ["skb/kfree_skb", "skb/consume_skb"];
/// The event of a drop, and the stack that the kernel shall print with it: for packets of IPv4, of IPv6
/// and with a VLAN, as others are no probes (linux/if_ether.h).
const DROP: &str = "events/skb/kfree_skb";
const STACK: &str = "stacktrace if protocol == 2048 || protocol == 34525 || protocol == 33024";
/// The same packets.
const IS_IP: &str = "protocol == 2048 || protocol == 34525 || protocol == 33024";
/// What is added to the length on the way out: nothing, the header of Ethernet, that with a VLAN.
const HEADERS: [u32; 3] = [0, 14, 18];

/// A trace of packets, on the whole machine, until it is dropped.
pub struct PacketTrace {
    instance: PathBuf,
    length: u32,
}

/// What has happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link has received, queued or sent the packet.
    Seen {
        /// The link's name, in whichever namespace.
        link: String,
    },
    /// The kernel has dropped the packet.
    Freed {
        /// The function, without the suffixes of the compiler; empty if the kernel prints no name.
        function: String,
        /// The reason, as the kernel names it (Linux 5.17).
        reason: Option<String>,
        /// The packet's protocol (ETH_P_…).
        protocol: Option<u32>,
    },
}

impl PacketTrace {
    /// Traces the packets of a length, from the header of IP on, which is one of these that no other
    /// trace of ours has. None without tracefs.
    pub fn begin(lengths: Range<u32>) -> Result<Option<PacketTrace>> {
        let place =
            || PLACES.iter().map(|it| Path::new(it).join("instances")).find(|it| it.is_dir());
        let Some(instances) = place().or_else(|| mount_here().ok().and_then(|()| place())) else {
            return Ok(None);
        };
        let id = process::id();
        let first = id % (lengths.end - lengths.start);
        for length in lengths.clone().cycle().skip(first as usize).take(lengths.len()) {
            if owners(&instances, length).next().is_some() {
                continue;
            }
            let instance = instances.join(format!("{PREFIX}{id}-{length}"));
            match fs::create_dir(&instance) {
                // lockdown
                Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(None),
                made => made.map_err(Error::at_path("create", &instance))?,
            }
            let trace = PacketTrace { instance, length };
            if owners(&instances, length).any(|owner| owner < id) {
                continue; // another has begun with it at the same time
            }
            trace.follow()?;
            return Ok(Some(trace));
        }
        Ok(None)
    }

    /// The length of the packets.
    pub fn length(&self) -> u32 {
        self.length
    }

    fn follow(&self) -> Result<()> {
        let length = self.length;
        let lengths: Vec<String> =
            HEADERS.iter().map(|header| format!("len == {}", length + header)).collect();
        for event in WITH_LENGTH {
            self.put(&format!("events/{event}/filter"), &lengths.join(" || "))?;
            self.put(&format!("events/{event}/enable"), "1")?;
        }
        // Before Linux 6.4 the event has an address or its hash (%p), but a stack has names.
        let format = self.instance.join(DROP).join("format");
        let text = fs::read_to_string(&format).map_err(Error::at_path("read", &format))?;
        if !text.contains("location=%pS") {
            let _ = self.put(&format!("{DROP}/trigger"), STACK); // needs CONFIG_STACKTRACE
        }
        self.put(&format!("{DROP}/filter"), IS_IP)?;
        for event in ENDS {
            self.put(&format!("events/{event}/enable"), "1")?;
        }
        Ok(())
    }

    fn put(&self, file: &str, text: &str) -> Result<()> {
        let path = self.instance.join(file);
        fs::write(&path, text).map_err(Error::at_path("write", &path))
    }

    /// The events of each packet of the length since the last call, in order, with the packet's
    /// name: an address, which the kernel uses again for later packets.
    pub fn events(&self) -> Result<Vec<(String, Event)>> {
        let path = self.instance.join("trace");
        self.put("tracing_on", "0")?; // or a busy machine would write on
        let mut text = vec![];
        let read_all = File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut text));
        read_all.map_err(Error::at_path("read", &path))?;
        self.put("trace", "")?; // empties the file
        self.put("tracing_on", "1")?;
        Ok(read(&String::from_utf8_lossy(&text))) // names of processes have any bytes
    }
}

/// Mounts tracefs for this thread, and those that it starts, alone.
fn mount_here() -> nix::Result<()> {
    leave(CloneFlags::CLONE_NEWNS)?;
    let nothing: Option<&str> = None;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_SLAVE, nothing)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tracefs"), PLACES[0], Some("tracefs"), flags, nothing)
}

impl Drop for PacketTrace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance); // the next run removes it
    }
}

/// The processes that trace packets of this length. Removes the instances of those that are gone.
fn owners(instances: &Path, length: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(instances).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let (id, its) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let (id, its): (u32, u32) = (id.parse().ok()?, its.parse().ok()?);
        if !Path::new("/proc").join(id.to_string()).exists() {
            let _: io::Result<()> = fs::remove_dir(entry.path());
            return None;
        }
        (its == length).then_some(id)
    })
}

/// How long after a link saw a packet the kernel may drop it, in microseconds. Some frees have no event,
/// and the kernel then uses the address for another packet.
const HASTE: u64 = 100_000;
/// Reasons of drops after a wait, and the function where there is no such reason (IPv6, before Linux 5.17).
const PATIENT: [&str; 3] = ["NEIGH_FAILED", "QDISC_DROP", "neigh_invalidate"];

/// How a line before a stack ends.
const BEFORE_STACK: &str = ": <stack trace>";
/// How a line of a stack begins: a caller, the innermost first.
const CALLER: &str = " => ";
/// How the names of functions begin that are between a drop and its event.
const FREEING: [&str; 5] =
    ["kfree_skb", "__traceiter_", "trace_event_", "event_triggers_", "stacktrace_trigger"];

/// How many bytes of a trace are read.
const MOST: u64 = 64 << 20;

/// Where a packet was seen last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// The link has queued it.
    Queue,
    /// The link has sent it. The driver frees it, which is not a drop.
    Wire,
    /// A link has received it.
    Host,
}

/// A line of a trace: `PROCESS-ID [CPU] FLAGS TIME: EVENT: FIELDS`, or `<stack trace>` for event and fields.
/// The process chooses its name, newlines included, so the last event in the line counts.
struct Line<'t> {
    cpu: &'t str,
    /// In microseconds.
    time: u64,
    event: &'t str,
    fields: &'t str,
}

impl<'t> Line<'t> {
    fn parse(text: &'t str) -> Option<Line<'t>> {
        let names = WITH_LENGTH.iter().chain(&ENDS).filter_map(|event| event.rsplit('/').next());
        let events = names.filter_map(|name| {
            let marker = format!(": {name}: ");
            text.rfind(&marker).map(|at| (at, name, &text[at + marker.len()..]))
        });
        let stack = text.strip_suffix(BEFORE_STACK).map(|head| (head.len(), BEFORE_STACK, ""));
        let (at, event, fields) = events.chain(stack).max()?;
        let mut words = text[..at].rsplit(' ');
        let time = words.next().and_then(microseconds).unwrap_or_default();
        let cpu = words.find(|word| word.starts_with('['))?;
        Some(Line { cpu, time, event, fields })
    }
}

/// Reads the lines of a trace; returns the events of packets that a link saw with the length. A stack is
/// that of the last event on its CPU: lines of other CPUs may be in between.
fn read(text: &str) -> Vec<(String, Event)> {
    let mut ours: Vec<(String, u64, At)> = vec![];
    let mut events = vec![];
    // The drops without a function, by their place in `events`: each CPU's last event, and that of a stack.
    let mut nameless: HashMap<&str, usize> = HashMap::new();
    let mut in_stack = None;
    for text in text.lines() {
        // A name of a process that looks like a caller has other words behind it.
        if let Some(caller) = text.strip_prefix(CALLER).filter(|caller| !caller.contains(' ')) {
            let name = caller.split(['+', '.']).next().unwrap_or_default();
            let is_freeing = FREEING.iter().any(|prefix| name.starts_with(prefix));
            if let Some(drop) = in_stack.take_if(|_| !is_freeing)
                && let Some((_, Event::Freed { function, .. }, _)) = events.get_mut(drop)
            {
                *function = name.to_owned();
            }
            continue;
        }
        in_stack = None;
        let Some(Line { cpu, time, event, fields }) = Line::parse(text) else { continue };
        let last = nameless.remove(cpu);
        if event == BEFORE_STACK {
            in_stack = last;
            continue;
        }
        let field = |name: &str| {
            let value = fields.split(' ').find_map(|field| field.strip_prefix(name));
            value.filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let Some(skb) = field("skbaddr=") else { continue };
        let known = ours.iter().position(|(known, ..)| *known == skb);
        let known = known.map(|at| ours.swap_remove(at));
        if let Some(link) = field("dev=") {
            let at = match (event, known) {
                ("net_dev_queue", _) => At::Queue,
                // The other end of a pair may have it before this end says that it is sent.
                ("net_dev_xmit", Some((.., At::Queue))) => At::Wire,
                ("net_dev_xmit", Some((.., at))) => at,
                _ => At::Host,
            };
            ours.push((skb.clone(), time, at));
            events.push((skb, Event::Seen { link }, true));
            continue;
        }
        let Some((_, seen, at)) = known else { continue }; // of another length
        let reason = fields.split_once("reason: ").map(|(_, reason)| reason.trim().to_owned());
        let protocol = field("protocol=").and_then(|it| it.parse().ok());
        if event == "kfree_skb" && at != At::Wire {
            // An address has no offset behind it.
            let function = field("location=").unwrap_or_default();
            let function = function.split_once('+').and_then(|(name, _)| name.split('.').next());
            let function = function.unwrap_or_default().to_owned();
            if function.is_empty() {
                nameless.insert(cpu, events.len());
            }
            events.push((
                skb,
                Event::Freed { function, reason, protocol },
                time.saturating_sub(seen) < HASTE,
            ));
        }
    }
    let counts = |event: &Event, is_soon| match event {
        Event::Seen { .. } => true,
        Event::Freed { function, reason, .. } => {
            let names = [Some(function), reason.as_ref()];
            is_soon || names.into_iter().flatten().any(|name| PATIENT.contains(&name.as_str()))
        }
    };
    let events = events.into_iter().filter(|(_, event, is_soon)| counts(event, *is_soon));
    events.map(|(skb, event, _)| (skb, event)).collect()
}

/// A time as in `7.304000`, of seconds.
fn microseconds(time: &str) -> Option<u64> {
    let (seconds, fraction) = time.split_once('.')?;
    let fraction: u64 = format!("{fraction:0<6}").parse().ok()?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000 + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_each_event_is_read() {
        let text = "\
# tracer: nop
 cni-multi-12 [000] b..2. 7.1: net_dev_queue: dev=eth0 skbaddr=00000000a1 len=613
 cni-multi-12 [000] b..2. 7.2: net_dev_xmit: dev=eth0 skbaddr=00000000a1 len=613 rc=0
 <idle>-0 [001] ..s1. 7.3: netif_receive_skb: dev=veth9 skbaddr=00000000a1 len=599
 <idle>-0 [001] ..s1. 7.3: kfree_skb: skbaddr=00000000b2 protocol=2048 location=ip_rcv+0x10 reason: NO_SOCKET
 <idle>-0 [001] ..s1. 7.304: kfree_skb: skbaddr=00000000a1 rx_sk=0 protocol=2048 location=nft_do_chain+0x3f/0x50 reason: NETFILTER_DROP
 <idle>-0 [001] ..s1. 7.6: kfree_skb: skbaddr=00000000a1 protocol=2048 location=00000000fe
";
        let late = text.replace("7.304", "7.9");
        assert_eq!(read(&late).len(), 3, "the address is another packet's by then");
        let used = text
            .replace(" kfree_skb: skbaddr=00000000a1 rx", " consume_skb: skbaddr=00000000a1 rx");
        assert_eq!(read(&used).len(), 3, "it was of use");
        let sent = text.replace("netif_receive_skb: dev=veth9 skbaddr=00000000a1", "x: dev=y");
        assert_eq!(read(&sent).len(), 2, "a driver frees what it has sent");
        let named = text.replace("<idle>-0", "a: net_dev_xmit: ");
        assert_eq!(read(&named), read(text), "a process chooses its name");
        let seen = |link: &str| Event::Seen { link: link.to_owned() };
        let events: Vec<Event> = read(text).into_iter().map(|(_, event)| event).collect();
        let (function, reason) = ("nft_do_chain".to_owned(), Some("NETFILTER_DROP".to_owned()));
        let freed = Event::Freed { function, reason, protocol: Some(2048) };
        assert_eq!(events, [seen("eth0"), seen("eth0"), seen("veth9"), freed]);
    }

    /// A source address that strict rp_filter refuses, on Linux 5.10.
    const ADDRESS: &str = "\
            ping-366     [000] ..s1   110.107008: netif_receive_skb: dev=lab0 skbaddr=ffff8c64d422a500 len=1415
            ping-366     [000] ..s1   110.107325: kfree_skb: skbaddr=ffff8c64d422a500 protocol=2048 location=ffffffffabbb25ee
            ping-366     [000] ..s1   110.107408: <stack trace>
 => trace_event_raw_event_kfree_skb
 => kfree_skb
 => ip_rcv_finish_core.constprop.0
 => ip_rcv_finish
";
    /// A rule that drops, on Linux 6.1.
    const HASH: &str = "\
            ping-184     [000] ..s1.    24.618379: netif_receive_skb: dev=lab0 skbaddr=00000000227f9873 len=1215
            ping-184     [000] ..s1.    24.618765: kfree_skb: skbaddr=00000000227f9873 protocol=2048 location=00000000ed61d9be reason: NETFILTER_DROP
            ping-184     [000] ..s1.    24.618904: <stack trace>
 => trace_event_raw_event_kfree_skb
 => kfree_skb_reason
 => nf_hook_slow
 => ip_forward
";

    /// The function that has dropped the packet of a trace.
    fn dropped_by(text: &str) -> String {
        match read(text).pop() {
            Some((_, Event::Freed { function, .. })) => function,
            other => panic!("{other:?} is no drop"),
        }
    }

    #[test]
    fn a_stack_names_the_function_of_the_last_drop_on_its_cpu() {
        assert_eq!(dropped_by(ADDRESS), "ip_rcv_finish_core");
        assert_eq!(dropped_by(HASH), "nf_hook_slow");
        let late = ADDRESS.replace("110.1074", "113.1074").replace("110.1073", "113.1073");
        assert_eq!(read(&late).len(), 1, "the address is another packet's by then");
        let waited = late.replace("ip_rcv_finish_core.constprop.0", "neigh_invalidate");
        assert_eq!(dropped_by(&waited), "neigh_invalidate");
        let stack = "            ping-184     [000] ..s1.    24.618904: <stack trace>\n";
        assert_eq!(dropped_by(&HASH.replace(stack, "")), "", "callers of nothing");
        assert_eq!(dropped_by(&HASH.replace(stack, &stack.replace("[000]", "[001]"))), "");
        for (cpu, function) in [("[000]", ""), ("[001]", "nf_hook_slow")] {
            let other = format!(
                "  <idle>-0 {cpu} ..s. 24.618800: consume_skb: skbaddr=000000008d422ad0\n{stack}"
            );
            assert_eq!(dropped_by(&HASH.replace(stack, &other)), function, "between: {cpu}");
        }
    }

    #[test]
    fn a_name_of_a_process_is_no_caller() {
        for name in ["\n => mine", "=> mine\n", "=> mine"] {
            let other = format!(" {name}-7     [001] ..s1.    24.6188: consume_skb: skbaddr=08\n");
            let stack = "            ping-184     [000] ..s1.    24.618904: <stack trace>\n";
            let between = HASH.replace(stack, &format!("{other}{stack}"));
            assert_eq!(dropped_by(&between), "nf_hook_slow", "{name:?}");
            let own = HASH.replace("            ping", &format!(" {name}"));
            assert_eq!(dropped_by(&own), "nf_hook_slow", "{name:?}");
        }
    }
}
