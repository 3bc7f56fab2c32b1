//! What sysfs reports about the links of a namespace (sysfs(5)), read from a private mount that no
//! path leads to: the one at `/sys` has the links of the namespace that it was mounted in.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;

use crate::error::{Error, Result};

/// The directory of the links.
const LINKS: &str = "class/net";
/// The prefix of the directories of links without hardware.
const VIRTUAL: &str = "devices/virtual/";

// linux/mount.h
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const MOUNT_ATTR_RDONLY: libc::c_uint = 1;

/// A sysfs mount with the links of one namespace.
#[derive(Debug)]
pub struct Sysfs(OwnedFd);

/// A link as sysfs describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysfsLink {
    /// The inode of its directory. The kernel numbers inodes consecutively, so a link keeps its own
    /// for life, whatever its name, ifindex and namespace, and no other link gets it before the
    /// next boot (since Linux 5.5, on 64-bit machines).
    pub inode: u64,
    /// ifindex.
    pub index: u32,
    /// The directory of its hardware, such as `devices/pci0000:00/0000:00:1f.6`; None without
    /// hardware.
    pub hardware: Option<String>,
    /// Which port of the hardware it is, from 0.
    pub port: u32,
}

impl Sysfs {
    /// Mounts sysfs for the namespace of this thread; None if that is refused: before Linux 5.2, by
    /// a security module, or in a user namespace.
    pub fn open() -> Result<Option<Sysfs>> {
        use Errno::{EACCES, ENODEV, ENOSYS, EOPNOTSUPP, EPERM};
        match mount() {
            Ok(mount) => Ok(Some(Sysfs(mount))),
            Err(ENOSYS | EPERM | EACCES | ENODEV | EOPNOTSUPP) => Ok(None),
            Err(errno) => Err(Error::kernel("mount sysfs", errno)),
        }
    }

    /// The link of this name, if it exists.
    pub fn link(&self, name: &str) -> Result<Option<SysfsLink>> {
        let what = || format!("read {LINKS}/{name} of sysfs");
        none_if_gone(self.read_link(name)).map_err(|e| Error::io(what(), &e))
    }

    /// The link whose directory has this inode, if it is in the namespace.
    pub fn link_of_inode(&self, inode: u64) -> Result<Option<SysfsLink>> {
        let find_name = || -> io::Result<Option<String>> {
            for entry in fs::read_dir(self.path(LINKS))? {
                let name = entry?.file_name();
                let Some(name) = name.to_str() else { continue }; // link names are bytes; iproute2 makes only UTF-8 ones
                let found = none_if_gone(fs::metadata(self.path(LINKS).join(name)))?;
                if found.is_some_and(|found| found.ino() == inode) {
                    return Ok(Some(name.to_owned()));
                }
            }
            Ok(None)
        };
        let found = find_name().map_err(|e| Error::io(format_args!("read {LINKS} of sysfs"), &e));
        let Some(name) = found? else { return Ok(None) };
        // Another link may have taken the name since.
        Ok(self.link(&name)?.filter(|link| link.inode == inode))
    }

    /// The names of the links of this hardware; None if the hardware no longer exists.
    pub fn links_of_hardware(&self, hardware: &str) -> Result<Option<Vec<String>>> {
        let read = || -> io::Result<Option<Vec<String>>> {
            if none_if_gone(fs::metadata(self.path(hardware)))?.is_none() {
                return Ok(None);
            }
            let Some(entries) = none_if_gone(fs::read_dir(self.path(hardware).join("net")))? else {
                return Ok(Some(vec![])); // all its links are in other namespaces
            };
            entries
                .map(|entry| Ok(Some(entry?.file_name().to_string_lossy().into_owned())))
                .collect()
        };
        read().map_err(|e| Error::io(format_args!("read {hardware} of sysfs"), &e))
    }

    fn read_link(&self, name: &str) -> io::Result<SysfsLink> {
        let path = self.path(LINKS).join(name);
        // Read everything through the open directory: another link may take the name in between.
        let directory =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(&path)?;
        let hardware = hardware_of(&fs::read_link(&path)?);
        let port = none_if_gone(read_number(&directory, "dev_port"))?.unwrap_or_default();
        Ok(SysfsLink {
            inode: directory.metadata()?.ino(),
            index: read_number(&directory, "ifindex")?,
            hardware,
            port,
        })
    }

    fn path(&self, below: &str) -> PathBuf {
        path_of(&self.0).join(below)
    }
}

fn path_of(fd: &impl std::os::fd::AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()))
}

fn read_number(directory: &File, file: &str) -> io::Result<u32> {
    let text = fs::read_to_string(path_of(directory).join(file))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The hardware in the target of a link's entry: `../../devices/pci0000:00/0000:00:1f.6/net/eth0`.
fn hardware_of(target: &Path) -> Option<String> {
    let place = target.strip_prefix("../..").ok()?.to_str()?;
    let hardware = place.rsplit_once("/net/")?.0;
    (!place.starts_with(VIRTUAL)).then(|| hardware.to_owned())
}

fn none_if_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    let Err(e) = &result else { return result.map(Some) };
    match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR) => Ok(None),
        _ => result.map(Some),
    }
}

fn mount() -> Result<OwnedFd, Errno> {
    // SAFETY: the kernel reads a text that ends with a NUL.
    let context =
        owned(unsafe { libc::syscall(libc::SYS_fsopen, c"sysfs".as_ptr(), FSOPEN_CLOEXEC) })?;
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes neither a key nor a value.
    let made = unsafe {
        libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, none, none, 0)
    };
    Errno::result(made)?;
    // SAFETY: no argument is a pointer.
    owned(unsafe {
        libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY)
    })
}

fn owned(answer: libc::c_long) -> Result<OwnedFd, Errno> {
    let fd = Errno::result(answer)?;
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd as libc::c_int) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_is_the_directory_that_a_virtual_link_lacks() {
        let of = |target: &str| hardware_of(Path::new(target));
        let card = "../../devices/pci0000:00/0000:00:1f.6/net/eth0";
        assert_eq!(of(card).as_deref(), Some("devices/pci0000:00/0000:00:1f.6"));
        assert_eq!(of("../../devices/virtual/net/dummy0"), None);
        assert_eq!(of("elsewhere"), None);
    }

    #[test]
    fn loopback_has_one_inode_and_no_hardware() {
        let Some(sysfs) = Sysfs::open().unwrap() else { return };
        let lo = sysfs.link("lo").unwrap().unwrap();
        assert_eq!((lo.index, &lo.hardware), (1, &None));
        assert_eq!(sysfs.link_of_inode(lo.inode).unwrap().unwrap(), lo);
        assert_eq!(sysfs.link("nonesuch").unwrap(), None);
        assert_eq!(sysfs.links_of_hardware("devices/nonesuch").unwrap(), None);
    }
}
