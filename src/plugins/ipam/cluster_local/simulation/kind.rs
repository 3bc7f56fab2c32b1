//! The kinds of faults.

use std::time::Duration;

/// What may happen in a schedule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Requests and answers are lost.
    pub net: bool,
    /// How late a request may be executed that has timed out.
    pub late: Duration,
    /// Requests are executed twice.
    pub twice: bool,
    /// Daemons end at any step, and writes to the disk fail.
    pub crashes: bool,
    /// Machines lose power.
    pub power: bool,
    /// Machines that are off are reclaimed.
    pub reclaims: bool,
    /// Machines that are on are, too; and two reclaims run at once.
    pub hasty_reclaims: bool,
    /// Daemons and reclaims stall.
    pub stalls: bool,
    /// Ranges of nodes have blocks of other sizes.
    pub sizes: bool,
    /// ADDs have names.
    pub names: bool,
    /// The store is restored: once, or several times.
    pub restores: u8,
    /// How long it is away then; None if it is not.
    pub outage: Option<Duration>,
    /// A data directory is copied to another machine; with its node's name, too.
    pub clones: bool,
    pub same_name: bool,
    /// A disk is restored, or emptied.
    pub disks: bool,
    /// A data directory is replaced under its containers.
    pub replaces: bool,
    /// A machine is resumed from its memory: beside itself, or in its place.
    pub resumes: bool,
    /// Another store answers.
    pub other_store: bool,
    /// Nodes begin with leases that `ipam join` has found.
    pub joins: bool,
    /// Nodes allocate after a boot before they reach the store.
    pub trusts_reboot: bool,
}

/// The kinds of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Network,
    Crashes,
    Reclaims,
    Sizes,
    Names,
    Restore,
    Restores,
    RestoreOfSizes,
    RoughRestore,
    RestoredDisk,
    Clone,
    CloneOfName,
    ReplacedDirectory,
    ResumedMemory,
    OtherStore,
    Joined,
    TrustedReboot,
}

impl Kind {
    pub fn faults(self) -> Faults {
        let net = Faults { net: true, ..Faults::default() };
        let late = Faults { late: Duration::from_secs(60), ..net };
        let crashes = Faults { crashes: true, power: true, ..late };
        let outage = Some(Duration::from_secs(40));
        let restore = Faults { restores: 1, outage, power: true, ..net };
        match self {
            Kind::Network => Faults { twice: true, ..late },
            Kind::Crashes => crashes,
            Kind::Reclaims => {
                Faults { reclaims: true, hasty_reclaims: true, stalls: true, ..crashes }
            }
            Kind::Sizes => Faults { reclaims: true, sizes: true, ..crashes },
            Kind::Names => Faults { reclaims: true, names: true, ..crashes },
            Kind::Restore => restore,
            Kind::Restores => Faults { restores: 3, crashes: true, ..restore },
            Kind::RestoreOfSizes => Faults { restores: 3, sizes: true, ..restore },
            Kind::RoughRestore => Faults { outage: None, ..restore },
            Kind::RestoredDisk => Faults { disks: true, ..crashes },
            Kind::Clone => Faults { clones: true, power: true, ..net },
            Kind::CloneOfName => Faults { clones: true, same_name: true, power: true, ..net },
            Kind::ReplacedDirectory => Faults { replaces: true, crashes: true, ..net },
            Kind::ResumedMemory => Faults { resumes: true, ..net },
            Kind::OtherStore => Faults { other_store: true, ..net },
            Kind::Joined => Faults { joins: true, ..crashes },
            Kind::TrustedReboot => Faults { trusts_reboot: true, reclaims: true, ..crashes },
        }
    }
}
