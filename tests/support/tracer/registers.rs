//! What the registers of a stopped task say of its system call (syscall(2), "Architecture calling conventions").

use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// Whether the task has stopped before its system call, not after it.
pub fn is_entry(task: Pid) -> nix::Result<bool> {
    Ok(ptrace::syscall_info(task)?.op == libc::PTRACE_SYSCALL_INFO_ENTRY)
}

/// The registers of a task.
pub struct Registers {
    task: Pid,
    registers: user_regs_struct,
}

impl Registers {
    pub fn of(task: Pid) -> nix::Result<Registers> {
        Ok(Registers { task, registers: ptrace::getregs(task)? })
    }

    /// Writes them back.
    pub fn write(&self) -> nix::Result<()> {
        ptrace::setregs(self.task, self.registers)
    }
}

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// The call's number, as in `libc::SYS_*`.
    pub fn call(&self) -> i64 {
        self.registers.orig_rax.cast_signed()
    }

    pub fn args(&self) -> [u64; 6] {
        let all = &self.registers;
        [all.rdi, all.rsi, all.rdx, all.r10, all.r8, all.r9]
    }

    /// What the call has returned, at its exit.
    pub fn answer(&self) -> i64 {
        self.registers.rax.cast_signed()
    }

    pub fn set_answer(&mut self, answer: i64) {
        self.registers.rax = answer.cast_unsigned();
    }

    /// Makes the call that is about to be made none, so that the kernel does nothing.
    pub fn skip(&mut self) -> nix::Result<()> {
        self.registers.orig_rax = u64::MAX;
        self.write()
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    /// The call's number, as in `libc::SYS_*`.
    pub fn call(&self) -> i64 {
        self.registers.regs[8].cast_signed()
    }

    pub fn args(&self) -> [u64; 6] {
        *self.registers.regs.first_chunk().unwrap()
    }

    /// What the call has returned, at its exit.
    pub fn answer(&self) -> i64 {
        self.registers.regs[0].cast_signed()
    }

    pub fn set_answer(&mut self, answer: i64) {
        self.registers.regs[0] = answer.cast_unsigned();
    }

    /// Makes the call that is about to be made none, so that the kernel does nothing. The number that counts is in no
    /// general register by now.
    pub fn skip(&mut self) -> nix::Result<()> {
        const NT_ARM_SYSTEM_CALL: libc::c_int = 0x404;
        let mut none: libc::c_int = -1;
        let mut part =
            libc::iovec { iov_base: (&raw mut none).cast(), iov_len: size_of_val(&none) };
        // SAFETY: the kernel reads the four bytes of `none` by `part`, which outlive the call.
        let status = unsafe {
            libc::ptrace(
                libc::PTRACE_SETREGSET,
                self.task.as_raw(),
                NT_ARM_SYSTEM_CALL,
                &raw mut part,
            )
        };
        nix::errno::Errno::result(status).map(drop)
    }
}
