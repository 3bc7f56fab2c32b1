//! A DHCP server with scripted behaviour: silence, refusals, malformed answers, leases of seconds.
//! It records every packet that it receives.
//!
//! It runs in the namespace outside as a second process of this test program. Its script comes on
//! stdin, one whole JSON object per line, and each packet goes to stderr. It has its own encoder
//! and decoder, so that the code under test does not check itself.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::{SERVER, wait_until};
use crate::support::again::{self, Again};
use crate::support::attachment::with;
use crate::support::call::Peer;
use crate::support::netns::Lab;

/// The test below, which acts as the server.
const TEST: &str = "support::dhcp::scripted::the_scripted_server_keeps_to_its_script";

pub const DISCOVER: u64 = 1;
pub const OFFER: u64 = 2;
pub const REQUEST: u64 = 3;
pub const DECLINE: u64 = 4;
pub const ACK: u64 = 5;
pub const NAK: u64 = 6;
pub const RELEASE: u64 = 7;

/// The default script.
///
/// `discover`, `request`, `renew` and `rebind` name the answer to each kind of packet: `offer`,
/// `ack`, `nak` or `silence`. `addresses` are handed out in this order, one per client id;
/// `address`, if set, goes to every client instead. `options` are hexadecimal. `delay` is the time
/// before each answer in milliseconds, `before` the malformed answers (see `spoil`) that are sent
/// first.
fn usual() -> Value {
    let addresses: Vec<String> = (50..250).map(|last| format!("10.60.0.{last}")).collect();
    json!({
        "server": SERVER, "addresses": addresses, "address": null, "lease": 60, "t1": null, "t2": null,
        "options": {"1": "ffffff00", "3": "0a3c0001"},
        "discover": "offer", "request": "ack", "renew": "ack", "rebind": "ack", "delay": 0, "before": [],
    })
}

/// The server, as seen by the test.
pub struct Scripted {
    process: Again,
    script: Mutex<Value>,
    heard: Arc<Mutex<Vec<Value>>>,
}

impl Scripted {
    /// Starts the server with these changes to the default script.
    pub fn start(lab: &Lab, script: Value) -> Scripted {
        let mut process = Again::start(&lab.outside, TEST, "serve");
        let said = BufReader::new(process.child.stderr.take().unwrap()).lines();
        let heard = Arc::new(Mutex::new(vec![]));
        let ears = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in said.map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(packet) => ears.lock().unwrap().push(packet),
                    Err(_) => eprintln!("the scripted server: {line}"),
                }
            }
        });
        let server = Scripted { process, script: Mutex::new(usual()), heard };
        server.change(script);
        server
    }

    /// Changes the script; the change is in force when this returns.
    #[track_caller]
    pub fn change(&self, changes: Value) {
        let mut script = self.script.lock().unwrap();
        *script = with(&script, changes);
        let number = script["number"].as_u64().unwrap_or(0) + 1;
        script["number"] = json!(number);
        writeln!(&self.process.stdin, "{script}").unwrap();
        wait_until("the server has taken its script", 10, || {
            self.heard.lock().unwrap().iter().any(|line| line["script"] == number)
        });
    }

    /// Every packet so far, in order. It includes every packet that was answered before this call:
    /// the server reports a packet before it answers, and this call waits for a reply of the
    /// server.
    pub fn heard(&self) -> Vec<Value> {
        self.change(json!({}));
        self.told()
    }

    /// The received packets of one type.
    pub fn heard_of(&self, kind: u64) -> Vec<Value> {
        of_type(self.heard(), kind)
    }

    /// Waits until this many packets of a type have been received since the start.
    #[track_caller]
    pub fn wait_for(&self, kind: u64, count: usize, seconds: u64) -> Vec<Value> {
        let told = || of_type(self.told(), kind);
        wait_until(&format!("{count} packets of type {kind}"), seconds, || told().len() >= count);
        told()
    }

    /// The packets reported so far.
    fn told(&self) -> Vec<Value> {
        self.heard.lock().unwrap().iter().filter(|line| line["script"].is_null()).cloned().collect()
    }
}

fn of_type(packets: Vec<Value>, kind: u64) -> Vec<Value> {
    packets.into_iter().filter(|packet| packet["type"] == kind).collect()
}

/// Waits for the first RELEASE of our daemon. The reference sends its RELEASE without a source
/// address, and no socket receives such a packet.
#[track_caller]
pub fn wait_for_release(lab: &Lab, server: &Scripted) {
    if lab.peer == Peer::Ours {
        server.wait_for(RELEASE, 1, 5);
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.told().iter().for_each(|packet| eprintln!("the scripted server heard {packet}"));
        }
    }
}

/// An option of a received packet, in hexadecimal.
pub fn option(packet: &Value, code: u8) -> Option<String> {
    packet["options"][code.to_string()].as_str().map(str::to_owned)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn the_scripted_server_keeps_to_its_script() {
    if again::role() == "serve" {
        return serve();
    }
    let lab = Lab::new(Peer::Ours);
    lab.lan(super::Kind::Macvlan);
    let server = Scripted::start(&lab, json!({"discover": "silence"}));
    // A DISCOVER of an unknown client, sent by the shell.
    let discover =
        [&[1, 1, 6, 0, 1, 2, 3, 4][..], &[0; 228], &[99, 130, 83, 99, 53, 1, 1, 255], &[0; 56]]
            .concat();
    let escaped: String = discover.iter().map(|byte| format!("\\{byte:03o}")).collect();
    lab.host.sh(&format!(
        "ip addr add 10.60.0.9/24 dev lan; printf '{escaped}' | socat -u - UDP-SENDTO:255.255.255.255:67,broadcast,bind=10.60.0.9:68,so-bindtodevice=lan"
    ));
    let heard = server.wait_for(DISCOVER, 1, 5);
    assert_eq!(heard[0]["xid"], "01020304");
    assert_eq!(heard[0]["to"], "broadcast");
}

// --- the server's own process ---

/// The state that all server threads share.
struct Room {
    script: Mutex<Value>,
    given: Mutex<BTreeMap<String, Ipv4Addr>>,
    start: Instant,
}

/// Unicast arrives on the socket of the server's address, broadcast on that of the broadcast
/// address, so the destination of each packet is known.
fn serve() {
    let mut lines = BufReader::new(std::io::stdin()).lines();
    let mut next =
        move || lines.next()?.ok().map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let Some(script) = next() else { return };
    let server: Ipv4Addr = script["server"].as_str().unwrap().parse().unwrap();
    let unicast = UdpSocket::bind((server, 67)).unwrap();
    unicast.set_broadcast(true).unwrap();
    let broadcast = UdpSocket::bind((Ipv4Addr::BROADCAST, 67)).unwrap();
    say(json!({"script": script["number"]}));
    let room = Arc::new(Room {
        script: Mutex::new(script),
        given: Mutex::default(),
        start: Instant::now(),
    });
    for (name, socket) in [("unicast", unicast.try_clone().unwrap()), ("broadcast", broadcast)] {
        let (room, answers) = (Arc::clone(&room), unicast.try_clone().unwrap());
        std::thread::spawn(move || listen(&room, &socket, name, &answers));
    }
    while let Some(script) = next() {
        let number = script["number"].clone();
        *room.script.lock().unwrap() = script;
        say(json!({"script": number}));
    }
    std::process::abort(); // stdin has closed: the test process is gone
}

fn say(line: Value) {
    eprintln!("{line}");
}

fn listen(room: &Room, socket: &UdpSocket, name: &str, answers: &UdpSocket) {
    let mut buffer = [0; 2048];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue }; // an earlier answer's error
        let bytes = &buffer[..length];
        let mut packet = decode(bytes);
        packet["at"] = json!(room.start.elapsed().as_millis() as u64);
        packet["from"] = json!(from.ip().to_string());
        packet["to"] = json!(name);
        say(packet.clone());
        let script = room.script.lock().unwrap().clone();
        let Some(answer) = answer(room, &script, &packet, bytes) else { continue };
        std::thread::sleep(Duration::from_millis(script["delay"].as_u64().unwrap()));
        let to: SocketAddr = match packet["ciaddr"].as_str().unwrap() {
            "0.0.0.0" => (Ipv4Addr::BROADCAST, 68).into(),
            ciaddr => (ciaddr.parse::<Ipv4Addr>().unwrap(), 68).into(),
        };
        for kind in script["before"].as_array().unwrap() {
            let _ = answers.send_to(&spoil(kind.as_str().unwrap(), &answer), to); // an empty one may be refused
        }
        let _ = answers.send_to(&answer.encode(), to); // the client may be gone
    }
}

/// Decodes a packet; a missing part is null.
fn decode(bytes: &[u8]) -> Value {
    let mut packet = json!({"length": bytes.len()});
    if bytes.len() < 240 {
        return packet;
    }
    let ip = |at: usize| {
        Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).to_string()
    };
    packet["op"] = json!(bytes[0]);
    packet["xid"] = json!(hex(&bytes[4..8]));
    packet["secs"] = json!(u16::from_be_bytes([bytes[8], bytes[9]]));
    packet["flags"] = json!(u16::from_be_bytes([bytes[10], bytes[11]]));
    packet["ciaddr"] = json!(ip(12));
    packet["chaddr"] = json!(hex(&bytes[28..34]));
    let (mut options, mut order, mut at) = (Map::new(), vec![], 240);
    while at + 1 < bytes.len() && bytes[at] != 255 {
        let (code, length) = (bytes[at], usize::from(bytes[at + 1]));
        if code == 0 {
            at += 1;
            continue;
        }
        let value = hex(bytes.get(at + 2..at + 2 + length).unwrap_or_default());
        let longer =
            options.get(&code.to_string()).and_then(Value::as_str).unwrap_or_default().to_owned()
                + &value;
        options.insert(code.to_string(), json!(longer));
        order.push(code);
        at += 2 + length;
    }
    packet["type"] = json!(options.get("53").and_then(Value::as_str).map(first_of));
    packet["ended"] = json!(bytes.get(at) == Some(&255));
    packet["options"] = options.into();
    packet["order"] = json!(order);
    packet
}

fn first_of(hex: &str) -> u64 {
    bytes(hex).first().copied().unwrap_or_default().into()
}

/// An answer to be sent.
#[derive(Clone)]
struct Answer {
    op: u8,
    xid: [u8; 4],
    chaddr: [u8; 6],
    yiaddr: Ipv4Addr,
    kind: u8,
    server: Ipv4Addr,
    options: BTreeMap<u8, Vec<u8>>,
}

impl Answer {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 236];
        bytes[..3].copy_from_slice(&[self.op, 1, 6]);
        bytes[4..8].copy_from_slice(&self.xid);
        bytes[16..20].copy_from_slice(&self.yiaddr.octets());
        bytes[28..34].copy_from_slice(&self.chaddr);
        bytes.extend([99, 130, 83, 99, 53, 1, self.kind, 54, 4]);
        bytes.extend(self.server.octets());
        for (code, value) in &self.options {
            // RFC 3396: a value longer than 255 bytes continues in another option of the same code.
            for part in value.chunks(255) {
                bytes.extend([*code, part.len() as u8]);
                bytes.extend(part);
            }
        }
        bytes.push(255);
        bytes
    }
}

fn answer(room: &Room, script: &Value, packet: &Value, bytes: &[u8]) -> Option<Answer> {
    let client =
        option(packet, 61).unwrap_or_else(|| packet["chaddr"].as_str().unwrap().to_owned());
    let stage = match packet["type"].as_u64()? {
        DISCOVER => "discover",
        REQUEST if packet["ciaddr"] == "0.0.0.0" => "request",
        REQUEST if packet["to"] == "unicast" => "renew",
        REQUEST => "rebind",
        RELEASE => {
            room.given.lock().unwrap().remove(&client);
            return None;
        }
        DECLINE => {
            // DECLINE means another host uses the address: keep it taken.
            let mut given = room.given.lock().unwrap();
            let bad = given.remove(&client)?;
            given.insert(format!("declined {bad}"), bad);
            return None;
        }
        _ => return None,
    };
    let kind = match script[stage].as_str().unwrap() {
        "offer" => OFFER,
        "ack" => ACK,
        "nak" => NAK,
        _ => return None,
    };
    let address = match script["address"].as_str() {
        Some(address) => address.parse().unwrap(),
        None => address_for(room, script, packet, &client)?,
    };
    Some(Answer {
        op: 2,
        xid: bytes[4..8].try_into().unwrap(),
        chaddr: bytes[28..34].try_into().unwrap(),
        yiaddr: if kind == NAK { Ipv4Addr::UNSPECIFIED } else { address },
        kind: kind as u8,
        server: script["server"].as_str().unwrap().parse().unwrap(),
        options: if kind == NAK { BTreeMap::new() } else { options(script) },
    })
}

/// A client keeps its address; a new one gets the address it asks for if that is free, else the
/// next free one.
fn address_for(room: &Room, script: &Value, packet: &Value, client: &str) -> Option<Ipv4Addr> {
    let mut given = room.given.lock().unwrap();
    if let Some(address) = given.get(client) {
        return Some(*address);
    }
    let wanted = match packet["ciaddr"].as_str().unwrap() {
        "0.0.0.0" => option(packet, 50).map(|hex| <[u8; 4]>::try_from(bytes(&hex)).unwrap().into()),
        ciaddr => Some(ciaddr.parse().unwrap()),
    };
    let free = |address: &Ipv4Addr| !given.values().any(|taken| taken == address);
    let pool = || {
        script["addresses"].as_array().unwrap().iter().map(|a| a.as_str().unwrap().parse().unwrap())
    };
    let address = pool()
        .find(|address| Some(*address) == wanted && free(address))
        .or_else(|| pool().find(free))?;
    given.insert(client.to_owned(), address);
    Some(address)
}

fn options(script: &Value) -> BTreeMap<u8, Vec<u8>> {
    let given = script["options"].as_object().unwrap().iter();
    let mut options: BTreeMap<u8, Vec<u8>> = given
        .map(|(code, value)| (code.parse().unwrap(), bytes(value.as_str().unwrap())))
        .collect();
    for (code, key) in [(51, "lease"), (58, "t1"), (59, "t2")] {
        if let Some(seconds) = script[key].as_u64() {
            options.insert(code, u32::try_from(seconds).unwrap().to_be_bytes().to_vec());
        }
    }
    options
}

/// The kinds of malformed answer. Each carries an address that no client may accept.
pub const NONSENSE: &str = "empty|short|garbage|request|cookie|xid|chaddr|no end|cut option|no type|other server|other type";

fn spoil(kind: &str, answer: &Answer) -> Vec<u8> {
    let mut spoiled = Answer { yiaddr: Ipv4Addr::new(10, 60, 0, 251), ..answer.clone() };
    match kind {
        "xid" => spoiled.xid[0] ^= 0xff,
        "chaddr" => spoiled.chaddr[5] ^= 0xff,
        "request" => spoiled.op = 1,
        // An offer of another server is valid; an acknowledgement of a server that was not chosen
        // is not.
        "other server" if answer.kind == ACK as u8 => spoiled.server = [10, 60, 0, 252].into(),
        "other server" => spoiled.xid[3] ^= 0xff,
        "other type" => spoiled.kind = 13, // DHCPLEASEACTIVE, unknown to every client
        _ => {}
    }
    let mut bytes = spoiled.encode();
    match kind {
        "empty" => bytes.clear(),
        "short" => bytes.truncate(100),
        "garbage" => (0..).zip(&mut bytes).for_each(|(at, byte)| *byte = (at * 37 + 11) as u8),
        "cookie" => bytes[236] = 0,
        "no end" => bytes.truncate(bytes.len() - 1),
        "cut option" => {
            bytes.truncate(bytes.len() - 1);
            bytes.extend([12, 200, b'x', 255]);
        }
        "no type" => bytes.drain(240..243).for_each(drop),
        _ => {}
    }
    bytes
}
