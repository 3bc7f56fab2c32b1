//! The process: hands its arguments, environment and streams to the library and exits with the
//! status that it returns.

#![no_main]

use std::ffi::OsString;
use std::io::{self, Write};
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
        (io::stdin().lock(), Whole(io::stdout()), io::stderr().lock());
    let io = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    cli::run(Invocation { args, env: Environment::of_process(), io })
}

/// A stream without buffering. std's stdout holds back what follows the last newline, so a
/// document, which ends without one, would arrive in two pieces.
struct Whole<T>(T);

impl<T: AsFd> Write for Whole<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
