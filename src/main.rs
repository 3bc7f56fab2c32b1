//! The process: its arguments, environment and streams handed to the library, its exit status taken from there.

use std::process::ExitCode;

use cni_multi::cli::{self, Invocation};
use cni_multi::cni::env::Environment;
use cni_multi::runner::Streams;

fn main() -> ExitCode {
    // A panic is reported once, as an error object; the default hook would put it on stderr as well.
    std::panic::set_hook(Box::new(|_| ()));
    let (mut stdin, mut stdout, mut stderr) = (std::io::stdin().lock(), std::io::stdout().lock(), std::io::stderr().lock());
    let io = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    cli::run(Invocation { args: std::env::args_os().collect(), env: Environment::of_process(), io }).into()
}
