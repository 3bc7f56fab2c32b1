//! What a plugin needs of the machine.

use std::fmt;
use std::fs::OpenOptions;

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
        match self {
            Need::Link(kind) => Ok(unless(netlink.has_kind(kind)?, module_of(kind))),
            Need::Qdisc(kind) => Ok(unless(netlink.has_qdisc(kind)?, &format!("sch_{kind}"))),
            Need::NfTables => Ok(unless(Nft::open_if_there()?.is_some(), "nf_tables")),
            Need::Tun => Ok(tun_problem()),
            Need::Program(name) => Ok((!is_in_path(name)).then_some(Lack::Program(name))),
        }
    }
}

fn unless(is_there: bool, module: &str) -> Option<Lack> {
    (!is_there).then(|| Lack::Module(module.to_owned()))
}

/// The module that has the kind of link.
fn module_of(kind: &str) -> &str {
    if kind == "vlan" { "8021q" } else { kind }
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Why this user cannot make a tap interface.
fn tun_problem() -> Option<Lack> {
    let opened = OpenOptions::new().read(true).write(true).open(tuntap::DEVICE);
    opened.err().map(|error| Lack::Device(format!("{}: {}", tuntap::DEVICE, error.kind())))
}
