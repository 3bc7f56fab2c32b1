//! Classic BPF (Documentation/networking/filter.rst): the programs that decide in the kernel about
//! a socket's packets, and about a thread's system calls.

use nix::errno::Errno;
use nix::libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD,
    BPF_LDX, BPF_MSH, BPF_RET, BPF_W, sock_filter, sock_fprog,
};

/// How many bytes of the input are loaded.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Width {
    /// One.
    Byte = BPF_B,
    /// Two.
    Half = BPF_H,
    /// Four.
    Word = BPF_W,
}

/// A condition for the loaded value.
#[derive(Clone, Copy, Debug)]
pub enum Test {
    /// It is this number.
    Is(u32),
    /// It has at least one of these bits.
    HasAny(u32),
}

/// A program. It ends at its first answer; what the number means, the filter's user defines.
#[derive(Debug, Default)]
pub struct Program(Vec<sock_filter>);

impl Test {
    fn instruction(self) -> sock_filter {
        let (test, k) = match self {
            Test::Is(number) => (BPF_JEQ, number),
            Test::HasAny(bits) => (BPF_JSET, bits),
        };
        sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: 0, jf: 0, k }
    }
}

impl Program {
    /// Loads a value from the input. A packet that is too short for it is dropped.
    pub fn load(&mut self, width: Width, at: u32) -> &mut Program {
        self.push(BPF_LD | width as u32 | BPF_ABS, at)
    }

    /// Like [`Program::load`], but counts from the end of the IPv4 header that the input begins
    /// with.
    pub fn load_after_ipv4_header(&mut self, width: Width, at: u32) -> &mut Program {
        self.push(BPF_LDX | BPF_B | BPF_MSH, 0); // the length of the header
        self.push(BPF_LD | width as u32 | BPF_IND, at)
    }

    /// Clears all other bits of the loaded value.
    pub fn mask(&mut self, bits: u32) -> &mut Program {
        self.push(BPF_ALU | BPF_AND | BPF_K, bits)
    }

    /// Ends with this answer.
    pub fn answer(&mut self, answer: u32) -> &mut Program {
        self.push(BPF_RET | BPF_K, answer)
    }

    /// Ends with this answer if the loaded value meets the condition.
    pub fn answer_if(&mut self, test: Test, answer: u32) -> &mut Program {
        self.branch(test, 0, 1).answer(answer)
    }

    /// Ends with this answer unless the loaded value meets the condition.
    pub fn answer_unless(&mut self, test: Test, answer: u32) -> &mut Program {
        self.branch(test, 1, 0).answer(answer)
    }

    /// Continues with `steps` if the loaded value meets the condition, and behind them otherwise.
    /// EINVAL if they are more than a jump can skip.
    pub fn when(&mut self, test: Test, steps: Program) -> Result<&mut Program, Errno> {
        let length = u8::try_from(steps.0.len()).map_err(|_| Errno::EINVAL)?;
        self.branch(test, 0, length).0.extend(steps.0);
        Ok(self)
    }

    /// The program as system calls take it; they read it at the program's address. EINVAL if it is
    /// too long.
    pub fn as_fprog(&self) -> Result<sock_fprog, Errno> {
        let len = u16::try_from(self.0.len()).map_err(|_| Errno::EINVAL)?;
        Ok(sock_fprog { len, filter: self.0.as_ptr().cast_mut() })
    }

    /// Skips as many instructions as the result of the test says.
    fn branch(&mut self, test: Test, if_met: u8, if_not: u8) -> &mut Program {
        let filter = sock_filter { jt: if_met, jf: if_not, ..test.instruction() };
        self.0.push(filter);
        self
    }

    fn push(&mut self, code: u32, k: u32) -> &mut Program {
        self.0.push(sock_filter { code: code as u16, jt: 0, jf: 0, k });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `tcpdump -dd` prints it.
    fn printed(program: &Program) -> Vec<String> {
        let line =
            |of: &sock_filter| format!("{:#04x} {} {} {:#010x}", of.code, of.jt, of.jf, of.k);
        program.0.iter().map(line).collect()
    }

    #[test]
    fn programs_have_the_codes_of_tcpdump() {
        let mut program = Program::default();
        program.load(Width::Half, 12).answer_unless(Test::Is(0x800), 0);
        program.load(Width::Byte, 14).mask(0xf0).answer_if(Test::Is(0x60), 0);
        program.load(Width::Word, 20).answer_if(Test::HasAny(0x1fff), 0);
        program.load_after_ipv4_header(Width::Half, 16).answer(0x40000);
        let expected = [
            "0x28 0 0 0x0000000c",
            "0x15 1 0 0x00000800",
            "0x06 0 0 0x00000000",
            "0x30 0 0 0x0000000e",
            "0x54 0 0 0x000000f0",
            "0x15 0 1 0x00000060",
            "0x06 0 0 0x00000000",
            "0x20 0 0 0x00000014",
            "0x45 0 1 0x00001fff",
            "0x06 0 0 0x00000000",
            "0xb1 0 0 0x00000000",
            "0x48 0 0 0x00000010",
            "0x06 0 0 0x00040000",
        ];
        assert_eq!(printed(&program), expected);
    }

    #[test]
    fn steps_of_a_condition_are_skipped_as_a_whole() {
        let steps = |count: usize| {
            let mut steps = Program::default();
            for _ in 0..count {
                steps.load(Width::Word, 0);
            }
            steps
        };
        let mut program = Program::default();
        program.when(Test::Is(7), steps(2)).unwrap().answer(1);
        let expected = [
            "0x15 0 2 0x00000007",
            "0x20 0 0 0x00000000",
            "0x20 0 0 0x00000000",
            "0x06 0 0 0x00000001",
        ];
        assert_eq!(printed(&program), expected);
        assert_eq!(program.when(Test::Is(7), steps(256)).err(), Some(Errno::EINVAL));
    }
}
