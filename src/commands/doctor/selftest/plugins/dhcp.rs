//! What dhcp needs: its daemon, which is this binary's, and a server for it (RFC 2131).

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::net::{Ipv4Addr, UdpSocket};

use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::dup2_stderr;

use super::super::world::{ON_LINK, Running, World, set_up};
use crate::error::{Code, Error, Result};
use crate::net::netlink::BridgeSpec;
use crate::plugin::OperatorCommand;
use crate::registry::PLUGINS;
use crate::sys::process::Child;
use crate::terminal::Streams;

/// The only address that the server has.
pub const LEASED: &str = "10.89.0.50";
const LEASED_OCTETS: [u8; 4] = [10, 89, 0, 50];
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 89, 0, 1);
const MASK: [u8; 4] = [255, 255, 255, 0];
const BRIDGE: &str = "selftest0";
/// Where the daemon listens, and where it keeps its leases.
const SOCKET: &str = "/run/cni/dhcp.sock";
const JOURNAL: &str = "/var/lib/cni/dhcp";
/// Seconds of a lease.
const LEASE: [u8; 4] = 3600_u32.to_be_bytes();

/// Makes the server's bridge, and starts server and daemon.
pub fn prepare(world: &World<'_>) -> Result<Running> {
    let host = world.host.netlink()?;
    host.create_bridge(&BridgeSpec { name: BRIDGE, ..BridgeSpec::default() })?;
    let net = ipnet::IpNet::new_assert(SERVER.into(), 24);
    host.add_address(&host.link(BRIDGE)?, net, ON_LINK)?;
    set_up(host, BRIDGE)?;
    let socket = listen()?;
    let server = Child::start(|| u8::from(serve(&socket).is_err()))?;
    Ok(vec![server, start_daemon(world)?])
}

/// Removes the bridge, and what the daemon has left: its socket and its journal.
pub fn clean_up(world: &World<'_>) -> Result<()> {
    let _ = fs::remove_file(SOCKET); // the daemon may have removed it
    let _ = fs::remove_dir_all(JOURNAL);
    world.host.netlink()?.delete_link_by_name(BRIDGE)
}

// ---- the daemon ----

/// Starts the daemon and waits until it listens.
fn start_daemon(world: &World<'_>) -> Result<Child> {
    let command = PLUGINS.iter().find_map(|entry| entry.own_command());
    let command = command.ok_or_else(|| Error::new(Code::BUG, "no plugin has a daemon"))?;
    let failed = |e: io::Error| Error::io("start the DHCP daemon", &e);
    let (log, stderr) = io::pipe().map_err(failed)?;
    let daemon = Child::start(|| match dup2_stderr(&stderr) {
        Ok(()) => run_daemon(command, world),
        Err(_) => 1,
    })?;
    drop(stderr);
    // The log up to the line about the socket; the error has the last line if it ends before.
    let mut last = String::new();
    for line in BufReader::new(log).lines() {
        last = line.map_err(failed)?;
        if last.contains("listening socket=") {
            return Ok(daemon);
        }
    }
    Err(failed(io::Error::other(format!("it ended: {last}"))))
}

fn run_daemon(command: &OperatorCommand, world: &World<'_>) -> u8 {
    let line = (command.command_line)().try_get_matches_from([command.name, "daemon"]);
    let (mut stdin, mut stdout, mut stderr) = (io::empty(), io::sink(), io::sink());
    let mut io = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    line.map_or(2, |matches| (command.run)(&matches, world.env, &mut io))
}

// ---- the server ----

// RFC 2131, section 2, and RFC 2132.
const REPLY: u8 = 2;
const YOUR_ADDRESS: std::ops::Range<usize> = 16..20;
/// The fixed fields and the magic cookie; options follow.
const FIXED: usize = 240;
const OPTION_MASK: u8 = 1;
const OPTION_ROUTER: u8 = 3;
const OPTION_LEASE: u8 = 51;
const OPTION_TYPE: u8 = 53;
const OPTION_SERVER: u8 = 54;
const OPTION_END: u8 = 255;
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const PAD: u8 = 0;

/// A socket that hears the bridge only.
fn listen() -> Result<UdpSocket> {
    let failed = |e: io::Error| Error::io("listen on port 67", &e);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).map_err(failed)?;
    socket.set_broadcast(true).map_err(failed)?;
    setsockopt(&socket, sockopt::BindToDevice, &BRIDGE.into()).map_err(|e| failed(e.into()))?;
    Ok(socket)
}

/// Answers until this process is ended.
fn serve(socket: &UdpSocket) -> io::Result<()> {
    let mut message = [0; 1500];
    loop {
        let length = socket.recv(&mut message)?;
        if let Some(reply) = reply_to(&message[..length]) {
            socket.send_to(&reply, (Ipv4Addr::BROADCAST, 68))?;
        }
    }
}

/// The answer to DISCOVER and REQUEST: the client's own message with the address and new options.
fn reply_to(message: &[u8]) -> Option<Vec<u8>> {
    let kind = match option(message.get(FIXED..)?, OPTION_TYPE)? {
        [DISCOVER] => OFFER,
        [REQUEST] => ACK,
        _ => return None,
    };
    let mut reply = message[..FIXED].to_vec();
    reply[0] = REPLY;
    reply[YOUR_ADDRESS].copy_from_slice(&LEASED_OCTETS);
    reply.extend([OPTION_TYPE, 1, kind]);
    let server = SERVER.octets();
    let options = [
        (OPTION_SERVER, server),
        (OPTION_LEASE, LEASE),
        (OPTION_MASK, MASK),
        (OPTION_ROUTER, server),
    ];
    for (code, value) in options {
        reply.extend([code, 4]);
        reply.extend(value);
    }
    reply.push(OPTION_END);
    Some(reply)
}

/// The value of an option.
fn option(mut options: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        match *options {
            [PAD, ref rest @ ..] => options = rest,
            [OPTION_END, ..] => return None,
            [code, length, ref rest @ ..] => {
                let value = rest.get(..usize::from(length))?;
                if code == wanted {
                    return Some(value);
                }
                options = &rest[value.len()..];
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8) -> Vec<u8> {
        let mut message = vec![0; FIXED];
        message[0] = 1;
        message.extend([PAD, 12, 2, b'a', b'b', OPTION_TYPE, 1, kind, OPTION_END]);
        message
    }

    #[test]
    fn discover_is_offered_the_address() {
        let reply = reply_to(&message(DISCOVER)).unwrap();
        assert_eq!((reply[0], &reply[YOUR_ADDRESS]), (REPLY, &LEASED_OCTETS[..]));
        assert_eq!(option(&reply[FIXED..], OPTION_TYPE), Some(&[OFFER][..]));
        assert_eq!(option(&reply[FIXED..], OPTION_LEASE), Some(&LEASE[..]));
    }

    #[test]
    fn other_messages_have_no_answer() {
        assert_eq!(reply_to(&message(7)), None);
        assert_eq!(reply_to(&message(DISCOVER)[..FIXED + 3]), None);
        assert_eq!(reply_to(&[]), None);
    }
}
