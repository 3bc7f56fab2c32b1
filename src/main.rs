//! The process: hands its arguments, environment and streams to the library and exits with the
//! status that it returns.

#![no_main]

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use cni_multi::cli::{self, Invocation};
use cni_multi::cni::env::Environment;
use cni_multi::terminal::Streams;

cni_multi::c_main!(run);

fn run(args: Vec<OsString>) -> u8 {
    // A panic is reported once, as an error object; the default hook would put it on stderr as
    // well.
    std::panic::set_hook(Box::new(|_| ()));
    let (mut stdin, mut stdout, mut stderr) =
        (io::stdin().lock(), Whole { stream: io::stdout(), last: b'\n' }, io::stderr().lock());
    let io = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    let env = Environment::of_process();
    let is_person = env.get("CNI_COMMAND").is_empty();
    let status = cli::run(Invocation { args, env, io });
    if is_person {
        stdout.end_line();
    }
    status
}

/// A stream without buffering. std's stdout holds back what follows the last newline, so a
/// document, which ends without one, would arrive in two pieces.
struct Whole<T> {
    stream: T,
    /// The last byte that was written; a newline at the start.
    last: u8,
}

impl<T: AsFd + IsTerminal> Whole<T> {
    /// Ends the last line, if a person sees it.
    fn end_line(&mut self) {
        if self.last != b'\n' && self.stream.is_terminal() {
            let _ = self.write_all(b"\n"); // the terminal is gone
        }
    }
}

impl<T: AsFd> Write for Whole<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = nix::unistd::write(&self.stream, bytes)?;
        self.last = bytes[..written].last().copied().unwrap_or(self.last);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
