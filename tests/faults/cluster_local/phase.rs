//! The phases of the daemon of cluster-local in which a sweep injects faults.

/// The phase of the daemon in which the fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// The first start of a daemon on the machine.
    FirstStart,
    /// A start with a block and a lease.
    Start,
    /// The same start after a reboot.
    StartAfterBoot,
    Claim,
    Return,
}

impl During {
    pub fn words(self) -> &'static str {
        match self {
            During::FirstStart => "first start",
            During::Start => "start",
            During::StartAfterBoot => "start after a boot",
            During::Claim => "claim",
            During::Return => "return",
        }
    }

    /// Whether the phase begins with the first system call of the daemon.
    pub fn is_start(self) -> bool {
        matches!(self, During::FirstStart | During::Start | During::StartAfterBoot)
    }
}
