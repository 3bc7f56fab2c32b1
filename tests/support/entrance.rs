//! Starting programs in the namespaces of a lab without `nsenter` between, and making more of them.
//!
//! `nsenter` would be every third program that the tests start, and under emulation starting programs is most of a
//! test's time.

use std::fs::File;
use std::io;
use std::process::{Child, Command};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use super::netns::is_root;
use super::programs::located;

/// The namespaces that a command line of [`Namespace::enter`](super::netns::Namespace) enters.
struct Entrance {
    mount: File,
    net: File,
}

impl Entrance {
    /// The entrance at the start of a command line, and the program's line after it. None for other lines, for
    /// namespaces that cannot be opened, which nsenter then reports, and for an ordinary user: a process with
    /// threads cannot enter a user namespace.
    fn of(line: &[String]) -> Option<(Entrance, &[String])> {
        let [nsenter, target, mount, net, end, rest @ ..] = line else { return None };
        let known = nsenter.ends_with("/nsenter") && mount == "--mount" && end == "--";
        let pid = target.strip_prefix("--target=").filter(|_| known && is_root())?;
        let net = match net.strip_prefix("--net=") {
            Some(path) => path.to_owned(),
            None => format!("/proc/{pid}/ns/net"),
        };
        let mount = File::open(format!("/proc/{pid}/ns/mnt")).ok()?;
        Some((Entrance { mount, net: File::open(net).ok()? }, rest))
    }

    /// Moves this thread into the namespaces; it must end afterwards.
    #[expect(clippy::disallowed_methods, reason = "this is the thread that ends")]
    fn enter_for_good(&self) -> io::Result<()> {
        unshare(CloneFlags::CLONE_FS)?; // root and working directory are shared among threads otherwise
        setns(&self.net, CloneFlags::CLONE_NEWNET)?;
        setns(&self.mount, CloneFlags::CLONE_NEWNS)?;
        Ok(())
    }
}

/// Starts the program of a command line whose start may enter a lab's namespaces; `prepare` adds what the process
/// gets besides its arguments.
#[track_caller]
pub fn start(line: &[String], prepare: impl FnOnce(&mut Command) + Send) -> Child {
    let started = match Entrance::of(line) {
        Some((entrance, rest)) => start_inside(&entrance, rest, prepare),
        None => command(line, prepare).spawn(),
    };
    started.unwrap_or_else(|e| panic!("{}: {e}", line.join(" ")))
}

/// A child gets the namespaces of the thread that starts it.
fn start_inside(
    entrance: &Entrance,
    line: &[String],
    prepare: impl FnOnce(&mut Command) + Send,
) -> io::Result<Child> {
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let mut command = command(line, prepare);
            entrance.enter_for_good().and_then(|()| command.spawn())
        });
        inside.join().unwrap()
    })
}

fn command(line: &[String], prepare: impl FnOnce(&mut Command)) -> Command {
    let mut command = Command::new(located(&line[0]));
    command.args(&line[1..]);
    prepare(&mut command);
    command
}

/// Makes a network namespace at `path`, a new file of the mount namespace that `line` enters, and runs `prepare` in
/// it; false where that needs programs.
#[track_caller]
pub fn make_netns(line: &[String], path: &str, prepare: impl FnOnce() + Send) -> bool {
    let Some((entrance, _)) = Entrance::of(line) else { return false };
    let make = || {
        entrance.enter_for_good()?;
        unshare_net()?;
        prepare();
        File::create_new(path)?;
        let bind = MsFlags::MS_BIND;
        mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, bind, None::<&str>)?;
        io::Result::Ok(())
    };
    let made = thread::scope(|scope| scope.spawn(make).join().unwrap());
    made.unwrap_or_else(|e| panic!("make the network namespace {path}: {e}"));
    true
}

#[expect(clippy::disallowed_methods, reason = "this is the thread that ends")]
fn unshare_net() -> io::Result<()> {
    Ok(unshare(CloneFlags::CLONE_NEWNET)?)
}
