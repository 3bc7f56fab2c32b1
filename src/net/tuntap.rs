//! Tap interfaces (Documentation/networking/tuntap.rst), created by ioctl on /dev/net/tun.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::libc;

use crate::error::{Error, Result};
use crate::net::module;

/// The device whose ioctls create interfaces.
pub const DEVICE: &str = "/dev/net/tun";

/// The size of a name in ifreq, including the NUL at its end.
const IFNAMSIZ: usize = 16;

// linux/if_tun.h
const IFF_TAP: libc::c_int = 0x0002;
const IFF_NO_PI: libc::c_int = 0x1000;
const IFF_MULTI_QUEUE: libc::c_int = 0x0100;
/// Fail if an interface of that name exists, instead of opening it.
const IFF_TUN_EXCL: libc::c_int = 0x8000;

/// ioctl_tun(2): the requests and what they take.
mod ioctl {
    use nix::libc::{self, c_int};
    use nix::{ioctl_write_int_bad, ioctl_write_ptr_bad, request_code_write};

    const LENGTH: usize = size_of::<c_int>();

    ioctl_write_ptr_bad!(
        /// TUNSETIFF: creates or opens the interface of that name.
        set_iff, request_code_write!(b'T', 202, LENGTH), libc::ifreq);
    ioctl_write_int_bad!(
        /// TUNSETPERSIST: makes the interface outlive the descriptor.
        set_persist, request_code_write!(b'T', 203, LENGTH));
    ioctl_write_int_bad!(
        /// TUNSETOWNER.
        set_owner, request_code_write!(b'T', 204, LENGTH));
    ioctl_write_int_bad!(
        /// TUNSETGROUP.
        set_group, request_code_write!(b'T', 206, LENGTH));
}

/// A tap interface to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapSpec {
    /// Its name, at most 15 bytes.
    pub name: String,
    /// The user that may open it without privileges. With neither owner nor group every user may,
    /// if the mode of the device allows it.
    pub owner: Option<u32>,
    /// The group that may open it without privileges.
    pub group: Option<u32>,
    /// Whether it can be opened several times, with a queue each.
    pub multi_queue: bool,
}

/// Creates a tap interface in the namespace of this thread, without packet information before its
/// frames. It persists while no process has it open. Fails with EBUSY if an interface of that name
/// exists.
pub fn create_tap(spec: &TapSpec) -> Result<()> {
    let tun = open()?;
    let created = attach(&tun, spec, IFF_TUN_EXCL);
    created.map_err(|e| Error::kernel(format_args!("create tap {:?}", spec.name), e))?;
    if let Some(owner) = spec.owner {
        set_owner(&tun, owner)?;
    }
    if let Some(group) = spec.group {
        set_group(&tun, group)?;
    }
    // Last, so that the interface goes with the descriptor if an earlier step failed.
    // SAFETY: TUNSETPERSIST takes a number.
    let persisted = unsafe { ioctl::set_persist(tun.as_raw_fd(), 1) };
    persisted
        .map_err(|e| Error::kernel(format_args!("make tap {:?} persistent", spec.name), e))
        .map(drop)
}

/// Opens an existing tap interface of this thread's namespace: each read of the file is a frame
/// that leaves by it, each write one that arrives.
pub fn open_tap(name: &str) -> Result<File> {
    let spec = TapSpec { name: name.to_owned(), owner: None, group: None, multi_queue: false };
    let tun = open()?;
    attach(&tun, &spec, 0).map_err(|e| Error::kernel(format_args!("open tap {name:?}"), e))?;
    Ok(tun)
}

/// Fails if tap interfaces cannot be created at all.
pub fn require_device() -> Result<()> {
    open().map(drop)
}

fn open() -> Result<File> {
    OpenOptions::new().read(true).write(true).open(DEVICE).map_err(|e| {
        let error = Error::io(format_args!("open {DEVICE}"), &e);
        if error.is_not_found() { error.with_details(module::advice(module::TUN)) } else { error }
    })
}

fn attach(tun: &File, spec: &TapSpec, extra: libc::c_int) -> Result<(), Errno> {
    let queues = if spec.multi_queue { IFF_MULTI_QUEUE } else { 0 };
    let ifru_flags = (IFF_TAP | IFF_NO_PI | queues | extra) as libc::c_short;
    if spec.name.len() >= IFNAMSIZ {
        return Err(Errno::ENAMETOOLONG);
    }
    let mut ifr_name = [0; IFNAMSIZ];
    for (to, byte) in ifr_name.iter_mut().zip(spec.name.bytes()) {
        *to = libc::c_char::from_ne_bytes([byte]);
    }
    let request = libc::ifreq { ifr_name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags } };
    // SAFETY: TUNSETIFF reads an ifreq, and writes the name into the kernel's copy only.
    unsafe { ioctl::set_iff(tun.as_raw_fd(), &request) }.map(drop)
}

fn set_owner(tun: &File, id: u32) -> Result<()> {
    // SAFETY: TUNSETOWNER takes a number.
    let set = unsafe { ioctl::set_owner(tun.as_raw_fd(), id.cast_signed()) };
    set.map(drop).map_err(|e| not_set("owner", id, e))
}

fn set_group(tun: &File, id: u32) -> Result<()> {
    // SAFETY: TUNSETGROUP takes a number.
    let set = unsafe { ioctl::set_group(tun.as_raw_fd(), id.cast_signed()) };
    set.map(drop).map_err(|e| not_set("group", id, e))
}

/// EINVAL means that the user namespace does not map the id.
fn not_set(field: &str, id: u32, errno: Errno) -> Error {
    match errno {
        Errno::EINVAL => Error::config(field, format_args!("{id} is unknown here"))
            .expecting("a numeric id that exists"),
        errno => Error::kernel(format_args!("set the {field} of a tap to {id}"), errno),
    }
}
