//! What a process may do of all that root may (capabilities(7)), and giving up the rest for good.

use nix::errno::Errno;
use nix::libc;

/// A right of root's, by its number in linux/capability.h. Those that something here needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Capability {
    /// Files and directories whatever their modes say.
    DacOverride = 1,
    /// The same for reading and for finding what is in them.
    DacReadSearch = 2,
    /// Ports below 1024.
    NetBindService = 10,
    /// Links, addresses, routes, rules.
    NetAdmin = 12,
    /// Packet sockets and raw ones.
    NetRaw = 13,
    /// Namespaces that are named by a process.
    SysPtrace = 19,
    /// Entering namespaces.
    SysAdmin = 21,
}

impl Capability {
    /// As the manual calls it.
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

/// `__user_cap_header_struct`; no process is this one.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// `__user_cap_data_struct`: of 32 capabilities each.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Which of these this thread has not got; all of them where the kernel does not tell.
pub fn missing(wanted: &[Capability]) -> Vec<Capability> {
    let effective = get().map_or(0, |data| both_halves(data.map(|half| half.effective)));
    wanted.iter().copied().filter(|capability| effective & capability.bit() == 0).collect()
}

/// Gives up all capabilities but these, and what would bring them back: no program that is executed
/// gets more.
pub fn keep_only(kept: &[Capability]) -> Result<(), Errno> {
    let kept = kept.iter().fold(0, |all, capability| all | capability.bit());
    limit_bounding_set(kept)?;
    let has = both_halves(get()?.map(|half| half.permitted)) & kept;
    let half = |bits: u64| Data { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
    set(&[half(has), half(has >> 32)])?; // the ambient set goes with the inheritable one
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map(drop)
}

fn limit_bounding_set(kept: u64) -> Result<(), Errno> {
    for number in 0..u64::BITS {
        match prctl(libc::PR_CAPBSET_READ, number.into()) {
            Ok(1) if kept & (1 << number) == 0 => match prctl(libc::PR_CAPBSET_DROP, number.into())
            {
                // without CAP_SETPCAP it stays; no_new_privs makes it mean nothing
                Err(Errno::EPERM) => break,
                dropped => dropped?,
            },
            Ok(_) => continue,
            Err(_) => break, // the kernel has no more
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
    // SAFETY: in this version the kernel reads and writes a header, and writes two of the data.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, &raw mut data) };
    Errno::result(got).map(|_| data)
}

fn set(data: &[Data; 2]) -> Result<(), Errno> {
    let mut header = Header { version: VERSION, pid: 0 };
    // SAFETY: in this version the kernel reads and writes a header, and reads two of the data.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, &raw const *data) };
    Errno::result(set).map(drop)
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> Result<libc::c_int, Errno> {
    let none: libc::c_ulong = 0;
    // SAFETY: none of the options that are used here has a pointer.
    Errno::result(unsafe { libc::prctl(option, argument, none, none, none) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &str) -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned()
    }

    /// Whoever runs the test, with which capabilities ever. They are a thread's, so this one ends
    /// with what it has lost.
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
        })
        .join()
        .unwrap();
    }
}
