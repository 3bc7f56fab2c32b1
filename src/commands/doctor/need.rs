//! What a plugin needs of the machine.

use std::fmt;
use std::fs::OpenOptions;
use std::io;

use crate::error::Result;
use crate::net::netlink::Netlink;
use crate::net::nft::Nft;
use crate::net::tuntap;

/// A feature of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A kind of link, by the kernel's name.
    Link(&'static str),
    /// A queueing discipline, by the kernel's name.
    Qdisc(&'static str),
    /// nf_tables.
    NfTables,
    /// The device that tap interfaces are made with.
    Tun,
    /// A program in PATH.
    Program(&'static str),
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Link(kind) | Need::Qdisc(kind) => f.write_str(kind),
            Need::NfTables => f.write_str("nf_tables"),
            Need::Tun => f.write_str("tun"),
            Need::Program(name) => f.write_str(name),
        }
    }
}

/// What a machine lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// A module of the kernel.
    Module(String),
    /// The device may not be opened; why.
    Device(String),
    /// A program.
    Program(&'static str),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::Module(name) => write!(f, "not in this kernel: {name}"),
            Lack::Device(problem) => f.write_str(problem),
            Lack::Program(name) => write!(f, "not installed: {name}"),
        }
    }
}

/// The first of these needs that the machine lacks.
pub fn lacking(needs: &[Need], netlink: &Netlink) -> Result<Option<Lack>> {
    for need in needs {
        if let Some(lack) = need.lacking(netlink)? {
            return Ok(Some(lack));
        }
    }
    Ok(None)
}

impl Need {
    /// What is missing; None if it is there.
    pub fn lacking(self, netlink: &Netlink) -> Result<Option<Lack>> {
        let (is_there, lack) = match self {
            Need::Link("vlan") => (netlink.has_kind("vlan")?, Lack::Module("8021q".to_owned())),
            Need::Link(kind) => (netlink.has_kind(kind)?, Lack::Module(kind.to_owned())),
            Need::Qdisc(kind) => (netlink.has_qdisc(kind)?, Lack::Module(format!("sch_{kind}"))),
            Need::NfTables => {
                (Nft::open_if_there()?.is_some(), Lack::Module("nf_tables".to_owned()))
            }
            Need::Tun => {
                // This user may be unable to make a tap interface.
                let opened = OpenOptions::new().read(true).write(true).open(tuntap::DEVICE);
                let problem = |error: io::Error| {
                    Lack::Device(format!("{}: {}", tuntap::DEVICE, error.kind()))
                };
                return Ok(opened.err().map(problem));
            }
            Need::Program(name) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                let is_there = std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
                (is_there, Lack::Program(name))
            }
        };
        Ok((!is_there).then_some(lack))
    }
}
