//! Capabilities of a process (capabilities(7)), and dropping them permanently.

use nix::errno::Errno;
use nix::libc;

/// A capability that some code here needs, by its number in linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Capability {
    /// Bypass the permissions of files and directories.
    DacOverride = 1,
    /// Bypass them for reading files and searching directories.
    DacReadSearch = 2,
    /// Bind to ports below 1024.
    NetBindService = 10,
    /// Configure links, addresses, routes and rules.
    NetAdmin = 12,
    /// Open packet sockets and raw sockets.
    NetRaw = 13,
    /// Open the namespaces of other processes.
    SysPtrace = 19,
    /// Enter namespaces.
    SysAdmin = 21,
}

impl Capability {
    /// The name in capabilities(7).
    pub fn name(self) -> &'static str {
        match self {
            Capability::DacOverride => "CAP_DAC_OVERRIDE",
            Capability::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Capability::NetBindService => "CAP_NET_BIND_SERVICE",
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
        }
    }

    fn bit(self) -> u64 {
        1 << self as u32
    }
}

/// _LINUX_CAPABILITY_VERSION_3 of linux/capability.h.
const VERSION: u32 = 0x2008_0522;

/// `__user_cap_header_struct`; pid 0 is the calling thread.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// `__user_cap_data_struct`, with 32 capabilities each.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

impl Data {
    /// The lower half of these capabilities.
    fn of(bits: u64) -> Data {
        Data { effective: bits as u32, permitted: bits as u32, inheritable: 0 }
    }
}

/// The capabilities that this thread lacks; all of them if the kernel does not report any.
pub fn missing(wanted: &[Capability]) -> Vec<Capability> {
    let effective = get().map_or(0, |data| both_halves(data.map(|half| half.effective)));
    wanted.iter().copied().filter(|capability| effective & capability.bit() == 0).collect()
}

/// Drops all other capabilities, and every way to regain them: executed programs get no more.
pub fn keep_only(kept: &[Capability]) -> Result<(), Errno> {
    let kept = kept.iter().fold(0, |all, capability| all | capability.bit());
    limit_bounding_set(kept)?;
    let now = get()?;
    let has = both_halves(now.map(|half| half.permitted)) & kept;
    let wanted = [Data::of(has), Data::of(has >> 32)];
    // The systemd unit leaves nothing to drop, and does not allow capset(2). No ambient capability
    // exists without an inheritable one; capset(2) clears both.
    if now != wanted {
        set(&wanted)?;
    }
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map(drop)
}

fn limit_bounding_set(kept: u64) -> Result<(), Errno> {
    for number in 0..u64::BITS {
        match prctl(libc::PR_CAPBSET_READ, number.into()) {
            Ok(1) if kept & (1 << number) == 0 => match prctl(libc::PR_CAPBSET_DROP, number.into())
            {
                // fails without CAP_SETPCAP; harmless with no_new_privs
                Err(Errno::EPERM) => break,
                dropped => dropped?,
            },
            Ok(_) => continue,
            Err(_) => break, // no capabilities beyond this one
        };
    }
    Ok(())
}

fn both_halves([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn get() -> Result<[Data; 2], Errno> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: in this version the kernel reads and writes a header, and writes two data structs.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, &raw mut data) };
    Errno::result(got).map(|_| data)
}

fn set(data: &[Data; 2]) -> Result<(), Errno> {
    let mut header = Header { version: VERSION, pid: 0 };
    // SAFETY: in this version the kernel reads and writes a header, and reads two data structs.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, &raw const *data) };
    Errno::result(set).map(drop)
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> Result<libc::c_int, Errno> {
    let none: libc::c_ulong = 0;
    // SAFETY: none of the options used here takes a pointer.
    Errno::result(unsafe { libc::prctl(option, argument, none, none, none) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &str) -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned()
    }

    /// Works for any user with any capabilities. They belong to a thread, so this one ends with its
    /// loss.
    #[test]
    fn what_is_given_up_is_gone_for_good() {
        std::thread::spawn(|| {
            let kept = [Capability::NetAdmin, Capability::SysAdmin];
            let had = u64::from_str_radix(&line("CapPrm:"), 16).unwrap();
            keep_only(&kept).unwrap();
            let expected = format!("{:016x}", had & (1 << 12 | 1 << 21));
            assert_eq!([line("CapPrm:"), line("CapEff:")], [expected.clone(), expected.clone()]);
            let none = "0".repeat(16);
            assert_eq!(
                [line("CapInh:"), line("CapAmb:"), line("NoNewPrivs:")],
                [&none, &none, "1"]
            );
            assert!(had & 1 << 8 == 0 || line("CapBnd:") == expected, "who has CAP_SETPCAP can");
            let lost = [Capability::NetRaw, Capability::DacOverride];
            assert_eq!(missing(&lost), lost);
            // The second time there is nothing to set.
            crate::sys::seccomp::hide(libc::SYS_capset).unwrap();
            keep_only(&kept).unwrap();
            assert_eq!(set(&[Data::default(); 2]), Err(Errno::ENOSYS));
        })
        .join()
        .unwrap();
    }
}
