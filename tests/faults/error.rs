//! The error sweep: each system call of a plugin fails, one at a time, in each way that it can.
//!
//! An ADD that fails says so in an error object and leaves everything as it was; one that succeeds all the same is detached. A DEL or GC that
//! fails leaves what the next one can finish. Nothing panics, nothing hangs, and an interrupted call (EINTR) fails nothing.
//!
//! Calls for memory are left out: a process that gets none is ended, and what a killed one leaves is the subject of the kill sweep.

use nix::errno::Errno;
use serde_json::{Value, json};

use super::subject::{Subject, is_long, place_of, test_each_subject};
use super::tell;
use crate::plugins::main::stacked::hasty_container;
use crate::support::attachment::Attachment;
use crate::support::call::{Call, Outcome};
use crate::support::netns::{Lab, Namespace};
use crate::support::probe::Probe;
use crate::support::tracer::{Stop, Then, Traced, trace};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// By itself.
    Call(Errno),
    /// What is asked of netlink is not done, and the kernel's answer is this.
    Refusal(Errno),
}

impl Fault {
    fn errno(self) -> Errno {
        match self {
            Fault::Call(errno) | Fault::Refusal(errno) => errno,
        }
    }
}

/// The ways in which a call can fail.
fn faults(stop: &Stop) -> Vec<Fault> {
    use Errno::*;
    let by_itself: &[Errno] = match stop.call {
        libc::SYS_openat if stop.changes() => &[ENOSPC, EACCES, EIO],
        libc::SYS_openat => &[EACCES, EIO, EMFILE],
        libc::SYS_read => &[EIO, EINTR],
        libc::SYS_write => &[ENOSPC, EIO, EINTR],
        // std takes it for a bug where a directory cannot be closed, and no kernel says so.
        libc::SYS_close if !stop.is_directory(0) => &[EIO],
        libc::SYS_link | libc::SYS_linkat | libc::SYS_mkdir | libc::SYS_mkdirat => &[ENOSPC, EACCES, EIO],
        libc::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 => &[ENOSPC, EACCES, EIO],
        libc::SYS_unlink | libc::SYS_unlinkat | libc::SYS_rmdir => &[EBUSY, EACCES, EIO],
        libc::SYS_ftruncate | libc::SYS_fsync | libc::SYS_fdatasync => &[EIO],
        // One that does not wait is not interrupted.
        libc::SYS_flock if stop.args[1] & libc::LOCK_NB as u64 != 0 => &[ENOLCK, EIO],
        libc::SYS_flock => &[EINTR, ENOLCK],
        libc::SYS_fchmod | libc::SYS_chmod | libc::SYS_mount | libc::SYS_umount2 => &[EACCES, EBUSY],
        libc::SYS_statx | libc::SYS_fstat | libc::SYS_newfstatat => &[EACCES, EIO],
        libc::SYS_readlink | libc::SYS_statfs | libc::SYS_fstatfs | libc::SYS_getdents64 | libc::SYS_lseek => &[EIO],
        libc::SYS_socket => &[EMFILE, EACCES, ENOBUFS],
        libc::SYS_bind | libc::SYS_setsockopt | libc::SYS_getsockname => &[ENOBUFS],
        libc::SYS_connect => &[ECONNREFUSED, EINTR],
        libc::SYS_recvfrom | libc::SYS_recvmsg => &[EINTR],
        libc::SYS_sendmsg => &[ENOBUFS, EINTR],
        // A pipe can always be told not to wait, and std relies on it.
        libc::SYS_ioctl if !stop.descriptor(0).starts_with("pipe:") => &[EBUSY, EACCES],
        libc::SYS_setns | libc::SYS_unshare => &[EACCES, ENOMEM],
        libc::SYS_clone | libc::SYS_clone3 => &[EAGAIN],
        libc::SYS_execve => &[EACCES, ENOMEM],
        libc::SYS_wait4 | libc::SYS_poll => &[EINTR],
        libc::SYS_pipe2 => &[EMFILE],
        libc::SYS_sendto => {
            return vec![
                Fault::Refusal(EPERM),
                Fault::Refusal(EBUSY),
                Fault::Refusal(ENOMEM),
                Fault::Call(ENOBUFS),
                Fault::Call(EINTR),
            ];
        }
        _ => &[],
    };
    by_itself.iter().map(|errno| Fault::Call(*errno)).collect()
}

/// A call that fails: the how-manieth of its program, and in which of its ways.
type Point = (usize, Fault);

/// Runs the call, with a fault where one is asked for. What had the fault is described.
fn run(call: &Call, point: Point) -> (Outcome, Option<String>) {
    let (number, fault) = point;
    let mut described = None;
    let mut refused = None;
    let traced = trace(call, |stop| {
        if stop.result.is_some() {
            return Then::Go;
        }
        if stop.number == number && faults(stop).contains(&fault) {
            described = Some(format!("{} fails with {fault:?}", stop.describe()));
            return match fault {
                Fault::Call(errno) => Then::fail(errno),
                Fault::Refusal(errno) => {
                    refused = Some((stop.args[0], refusal(stop, errno)));
                    Then::Answer(stop.args[2].cast_signed())
                }
            };
        }
        let is_answer = |(socket, _): &mut (u64, Vec<u8>)| stop.call == libc::SYS_recvfrom && *socket == stop.args[0];
        refused.take_if(is_answer).map_or(Then::Go, |(_, answer)| {
            stop.set_memory(stop.args[1], &answer);
            Then::Answer(answer.len() as i64)
        })
    });
    (traced.outcome, described)
}

/// The answer to a netlink message that is about to be sent: nlmsghdr, errno, and the header that is answered.
fn refusal(stop: &Stop, errno: Errno) -> Vec<u8> {
    const ERROR: u16 = 2;
    let request = stop.memory(stop.args[1], 16);
    let mut answer = 36_u32.to_ne_bytes().to_vec();
    answer.extend(ERROR.to_ne_bytes());
    answer.extend([0; 2]);
    answer.extend(&request[8..16]);
    answer.extend((-(errno as i32)).to_ne_bytes());
    answer.extend(request);
    answer
}

/// The points of a call that are tried, and its outcome without any.
fn points(call: &Call) -> (Vec<Point>, Traced) {
    let mut points = vec![];
    // What comes before the program reads its configuration is the loader's and libc's.
    let mut reads = false;
    let traced = trace(call, |stop| {
        reads |= stop.call == libc::SYS_read && stop.args[0] == 0;
        if stop.result.is_none() && reads {
            points.extend(chosen(stop, faults(stop)).into_iter().map(|fault| (stop.number, fault)));
        }
        Then::Go
    });
    (points, traced)
}

/// All faults in the long form. In the short one a fault for each call that changes something, reads what is kept on the disk, or
/// has to do with threads and processes; the calls of a plugin are many, so all faults have their turns.
fn chosen(stop: &Stop, faults: Vec<Fault>) -> Vec<Fault> {
    const OTHERS: [i64; 6] =
        [libc::SYS_flock, libc::SYS_setns, libc::SYS_clone, libc::SYS_clone3, libc::SYS_recvfrom, libc::SYS_wait4];
    let is_kept = |path: String| path.starts_with("/run/cni") || path.starts_with("/var/lib/cni");
    let reads_state = match stop.call {
        libc::SYS_openat => is_kept(stop.text(1)),
        libc::SYS_read | libc::SYS_fstat => is_kept(stop.descriptor(0)),
        call => OTHERS.contains(&call),
    };
    match faults.len() {
        0 => faults,
        // What others' programs do when they have no memory is not ours; that they cannot be started is.
        _ if !stop.is_own && stop.call != libc::SYS_execve => vec![],
        _ if is_long() => faults,
        count if stop.changes() || reads_state => vec![faults[stop.number % count]],
        _ => vec![],
    }
}

/// What is wrong with an outcome, whatever it is about.
fn mistakes(outcome: &Outcome, fault: Fault) -> Option<String> {
    if outcome.status == -1 || outcome.stderr.contains("panicked") {
        return Some("it did not end by itself".to_owned());
    }
    if outcome.status == 0 {
        return None;
    }
    if fault.errno() == Errno::EINTR {
        return Some("an interrupted call is no failure".to_owned());
    }
    let Ok(error) = serde_json::from_str::<Value>(&outcome.stdout) else {
        return Some("it failed without an error object".to_owned());
    };
    let text = format!("{}: {}", error["msg"], error["details"]).to_lowercase();
    if !error["code"].is_u64() || error["msg"].as_str().is_none_or(str::is_empty) {
        return Some("the error object is not whole".to_owned());
    }
    if text.contains("panicked") || text.contains("bug") {
        return Some("a panic".to_owned());
    }
    (!text.contains(&words(fault.errno()))).then(|| "the error does not say why".to_owned())
}

/// The kernel's error in the words of strerror(3), in lower case.
fn words(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string().to_lowercase();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// What a runtime calls, and what it does when that has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Add,
    Check,
    Del,
    Gc,
}

struct Sweep<'a> {
    lab: &'a Lab,
    container: &'a Namespace,
    what: String,
    probe: Probe<'a>,
    /// One of so many points is tried.
    every: usize,
    tried: usize,
    found: Vec<String>,
}

impl Sweep<'_> {
    /// Every fault of an operation. `before` makes what it is about and says what there is then, `after` ends it. How many calls
    /// it makes, and how many faults were tried.
    fn over(
        &mut self,
        operation: Operation,
        before: impl Fn() -> Value,
        call: impl Fn(&Value) -> Call,
        after: impl Fn(),
    ) -> (usize, usize) {
        let (points, traced) = points(&call(&before()));
        traced.outcome.ok();
        after();
        let tried_before = self.tried;
        for point in points.into_iter().step_by(self.every) {
            self.at(operation, &call(&before()), point, &after);
        }
        (traced.calls, self.tried - tried_before)
    }

    /// What tuning and host-device are refused for good when they give back what an interface had they say once, and do not
    /// fail for ever; GC forgets what tuning would give back. The master counts who listens to everything.
    fn is_said_once(&self, operation: Operation, outcome: &Outcome, fault: Fault, what: &str) -> bool {
        let is_for_good = outcome.status != 0 && matches!(fault.errno(), Errno::EPERM | Errno::EACCES);
        let of_links = || what.lines().skip(1).all(|line| line.is_empty() || line.get(1..6) == Some(" link"));
        let is_del = matches!(operation, Operation::Del | Operation::Gc);
        is_del
            && what.starts_with("left after DEL:\n")
            && match self.what.rsplit(": ").next() {
                Some("tuning") => of_links() && (is_for_good || operation == Operation::Gc),
                Some("host-device") => is_for_good,
                _ => false,
            }
    }

    fn at(&mut self, operation: Operation, call: &Call, point: Point, after: &impl Fn()) {
        let (outcome, described) = run(call, point);
        let mut wrong: Vec<String> = mistakes(&outcome, point.1).into_iter().collect();
        let mut compare = |when: &str| {
            let changes = self.probe.changes();
            if !changes.is_empty() {
                wrong.push(format!("{when}:\n{changes}"));
            }
        };
        if operation == Operation::Add && outcome.status != 0 {
            compare("left by the failed ADD");
        }
        after();
        compare("left after DEL");
        if !wrong.is_empty() {
            self.probe = Probe::start(self.lab, &[self.container]); // once is enough
        }
        let Some(described) = described else { return }; // the program has gone another way this time
        self.tried += 1;
        wrong.retain(|what| !self.is_said_once(operation, &outcome, point.1, what));
        if !wrong.is_empty() {
            let about = format!(
                "{} {operation:?}, call {}: {described}: {}\n{outcome:?}",
                self.what,
                point.0,
                wrong.join("; ")
            );
            eprintln!("{about}");
            self.found.push(about);
        }
    }
}

/// The short form has minutes for all networks: fewer points where programs are started, and where the machine is emulated.
fn one_of(subject: &Subject) -> usize {
    match (is_long(), subject.name.contains("iptables") || std::env::var_os("CNI_VM").is_some()) {
        (true, _) => 1,
        (false, true) => 8,
        (false, false) => 2,
    }
}

/// The routes of a container's interface.
struct Routes([String; 2]);

impl Routes {
    fn of(container: &Namespace) -> Routes {
        Routes(["-4", "-6"].map(|family| container.sh(&format!("ip {family} route"))))
    }

    /// sbr and vrf move them to other tables, and leave it to the DEL of the interface to end them.
    fn put_back(&self, container: &Namespace) {
        for (family, routes) in ["-4", "-6"].into_iter().zip(&self.0) {
            // Those of the links come before those that go through them.
            let (through, of_links): (Vec<&str>, Vec<&str>) = routes.lines().partition(|route| route.contains(" via "));
            let batch: String =
                of_links.iter().chain(&through).map(|route| format!("route replace {route}\n")).collect();
            container.sh(&format!("ip {family} -batch - <<'END'\n{batch}END"));
        }
    }
}

fn sweep(lab: &Lab, subject: &Subject) {
    let container = hasty_container(lab);
    let plugins = subject.attach(lab, &container);
    let all = |plugins: &[Attachment<'_>]| {
        plugins
            .iter()
            .fold(Value::Null, |result, plugin| plugin.call("ADD", (!result.is_null()).then_some(&result)).run().ok())
    };
    all(&plugins);
    plugins.iter().rev().for_each(Attachment::del);
    let mut found = vec![];
    for at in 0..plugins.len() {
        let result = all(&plugins[..at]);
        let plugin = &plugins[at];
        let name = plugin.conf["type"].as_str().unwrap();
        let what = format!("{}: {name}", subject.name);
        let mut sweep = Sweep {
            lab,
            container: &container,
            what,
            probe: Probe::start(lab, &[&container]),
            every: one_of(subject),
            tried: 0,
            found: vec![],
        };
        let previous = (!result.is_null()).then_some(&result);
        let attach = || plugin.call("ADD", previous).run().ok();
        let none = plugin.clone().conf(json!({"cni.dev/valid-attachments": []}));
        let routes = Routes::of(&container);
        let detach = || {
            plugin.del();
            if ["sbr", "vrf"].contains(&name) {
                routes.put_back(&container);
            }
        };
        let swept = [
            ("ADD", sweep.over(Operation::Add, || Value::Null, |_| plugin.call("ADD", previous), detach)),
            ("DEL", sweep.over(Operation::Del, attach, |attached| plugin.call("DEL", Some(attached)), detach)),
            ("GC", sweep.over(Operation::Gc, attach, |_| none.call("GC", None), detach)),
            ("CHECK", sweep.over(Operation::Check, attach, |attached| plugin.call("CHECK", Some(attached)), detach)),
        ];
        for (of, (operation, (calls, faults))) in swept.into_iter().enumerate() {
            let order = place_of(subject) * 1000 + at * 10 + of;
            let borne = if sweep.found.is_empty() { "0" } else { "some" };
            tell(&format!("{order:05} | {} | {name} {operation} | {calls} | {faults} | {borne} |", subject.name));
        }
        plugins[..at].iter().rev().for_each(Attachment::del);
        found.extend(sweep.found);
    }
    assert!(found.is_empty(), "{} faults were not borne:\n{}", found.len(), found.join("\n"));
}

test_each_subject!(sweep);
