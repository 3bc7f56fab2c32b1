//! The files of a replica. Every file system becomes read-only, so that nothing is written by an
//! oversight; copies of directories, on overlayfs, take what plugins write. /run has no sockets.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::error::{Error, Result};

const NOTHING: Option<&str> = None;
/// Where the copies are made before they are mounted in their places.
const STAGE: &str = "/sys";
const RUN: &str = "/run";
/// Directories of the kernel, whose files are no state of the disk.
const OF_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Directories of /run with sockets of daemons, which a rehearsal must not talk to.
const DAEMONS: [&str; 3] = ["cni", "dbus", "systemd"];

/// Replaces what this process sees of the machine's files.
pub fn replicate(writable: &[PathBuf]) -> Result<()> {
    let all = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NOTHING, "/", NOTHING, all, NOTHING).map_err(|e| failed("/", e))?;
    let writable = places(writable);
    make_read_only()?;
    let stage = mount(Some("tmpfs"), STAGE, Some("tmpfs"), MsFlags::empty(), Some("mode=755"));
    stage.map_err(|e| failed(STAGE, e))?;
    let copied = writable.iter().enumerate().try_for_each(|(number, dir)| copy(number, dir));
    let copied = copied.and_then(|()| replace_run());
    umount2(STAGE, MntFlags::MNT_DETACH).map_err(|e| failed(STAGE, e))?;
    copied
}

fn failed(path: impl AsRef<Path>, errno: Errno) -> Error {
    Error::kernel(format_args!("mount on {:?} for a rehearsal", path.as_ref()), errno)
}

/// The directories to copy, those that do not exist by the nearest one above. A file system that is
/// read-only stays so, since an ADD would fail there. Nothing below another one is listed.
fn places(writable: &[PathBuf]) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = writable.iter().filter_map(|dir| existing(dir)).collect();
    places.sort();
    places.dedup();
    let all = places.clone();
    places.retain(|dir| !all.iter().any(|other| dir != other && dir.starts_with(other)));
    places.retain(|dir| !is_read_only(dir) && dir != Path::new(RUN)); // /run is replaced as a whole
    places
}

fn existing(dir: &Path) -> Option<PathBuf> {
    let there = dir.ancestors().find(|dir| dir.is_dir())?;
    fs::canonicalize(there).ok()
}

fn is_read_only(dir: &Path) -> bool {
    statvfs(dir).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
}

/// Makes each mount read-only, apart from the kernel's own.
fn make_read_only() -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|e| Error::io("read /proc/self/mountinfo", &e))?;
    for (path, flags) in mounts.lines().filter_map(mounted) {
        if OF_KERNEL.iter().any(|dir| path.starts_with(dir)) || flags.contains(MsFlags::MS_RDONLY) {
            continue;
        }
        let flags = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        match mount(NOTHING, &path, NOTHING, flags, NOTHING) {
            // No path leads to it, so nothing can be written there.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES) => (),
            // Another mount is on top of it.
            Err(Errno::EINVAL) => (),
            Err(errno) => return Err(failed(&path, errno)),
        }
    }
    Ok(())
}

/// The path and the flags of a line of mountinfo: `36 35 98:0 /root /path rw,noatime …`.
fn mounted(line: &str) -> Option<(PathBuf, MsFlags)> {
    let mut words = line.split(' ').skip(4);
    let path = PathBuf::from(words.next()?.replace("\\040", " "));
    let flags = words.next()?.split(',').filter_map(flag);
    Some((path, flags.fold(MsFlags::empty(), MsFlags::union)))
}

fn flag(word: &str) -> Option<MsFlags> {
    Some(match word {
        "ro" => MsFlags::MS_RDONLY,
        "nosuid" => MsFlags::MS_NOSUID,
        "nodev" => MsFlags::MS_NODEV,
        "noexec" => MsFlags::MS_NOEXEC,
        "noatime" => MsFlags::MS_NOATIME,
        "nodiratime" => MsFlags::MS_NODIRATIME,
        "relatime" => MsFlags::MS_RELATIME,
        _ => return None,
    })
}

/// Mounts a copy of a directory in its place. It shares the files until they are written.
fn copy(number: usize, dir: &Path) -> Result<()> {
    let stage = Path::new(STAGE).join(number.to_string());
    let changes = [stage.join("upper"), stage.join("work")];
    let made = changes.iter().try_for_each(fs::create_dir_all);
    made.map_err(Error::at_path("create", &stage))?;
    overlay(dir, &changes, dir)
}

fn overlay(lower: &Path, [upper, work]: &[PathBuf; 2], on: &Path) -> Result<()> {
    let lower = File::open(lower).map_err(Error::at_path("open", lower))?;
    // The options of a mount have no quotes for a path, so name it by its number.
    let options = format!(
        "lowerdir=/proc/self/fd/{},upperdir={},workdir={}",
        lower.as_raw_fd(),
        upper.display(),
        work.display()
    );
    let mounted = mount(Some("overlay"), on, Some("overlay"), MsFlags::empty(), Some(&*options));
    mounted.map_err(|e| failed(on, e).with_details("is the module overlay available?"))
}

/// Mounts a /run that has the directories of the machine's, without sockets of daemons.
fn replace_run() -> Result<()> {
    let stage = Path::new(STAGE).join("run");
    fs::create_dir(&stage).map_err(Error::at_path("create", &stage))?;
    for entry in fs::read_dir(RUN).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_wanted = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_wanted && !DAEMONS.iter().any(|daemon| name == *daemon) {
            bind(&entry.path(), &stage.join(name))?;
        }
    }
    copy_state(&stage.join("cni"))?;
    bind_on(&stage, Path::new(RUN))
}

/// The state of plugins below /run.
fn copy_state(on: &Path) -> Result<()> {
    fs::create_dir(on).map_err(Error::at_path("create", on))?;
    let own = Path::new(RUN).join("cni");
    if !own.is_dir() {
        return Ok(());
    }
    let changes = ["run-upper", "run-work"].map(|name| Path::new(STAGE).join(name));
    let made = changes.iter().try_for_each(fs::create_dir);
    made.map_err(Error::at_path("create", &changes[0]))?;
    overlay(&own, &changes, on)
}

fn bind(from: &Path, on: &Path) -> Result<()> {
    fs::create_dir(on).map_err(Error::at_path("create", on))?;
    bind_on(from, on)
}

fn bind_on(from: &Path, on: &Path) -> Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    let mounted = mount(Some(from), on, NOTHING, flags, NOTHING);
    mounted.map_err(|e| failed(on, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_has_a_path_and_flags() {
        let line = "36 35 98:0 / /mnt/a\\040b rw,nosuid,relatime master:1 - ext4 /dev/sda rw";
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_RELATIME;
        assert_eq!(mounted(line), Some((PathBuf::from("/mnt/a b"), flags)));
        assert_eq!(mounted("torn"), None);
    }

    #[test]
    fn a_directory_that_is_missing_is_copied_with_the_one_above() {
        let wanted = ["/proc/self/nothing/below", "/tmp"].map(PathBuf::from);
        let own = PathBuf::from(format!("/proc/{}", std::process::id()));
        assert_eq!(places(&wanted), [own, fs::canonicalize("/tmp").unwrap()]);
    }
}
