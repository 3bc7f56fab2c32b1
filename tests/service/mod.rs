//! The service layer runs a daemon that has nothing to do with DHCP.

mod counter;

use std::fs::File;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command};

use cni_multi::deadline::Deadline;
use cni_multi::error::{Code, Result};
use serde::de::DeserializeOwned;

use self::counter::{COUNTER, Request, feed_of};
use crate::support::dhcp::wait_until;
use crate::support::scratch::Scratch;

/// The variable with the path of the socket, for the daemon's process.
const SOCKET: &str = "COUNTER_SOCKET";

/// Not a test: the daemon's process, which runs this test binary again.
#[test]
fn process_of_the_counter() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        counter::run(socket).unwrap();
    }
}

/// A directory with the daemon's socket, journal and log.
struct Bench {
    scratch: Scratch,
    process: Option<Child>,
}

impl Bench {
    fn new() -> Bench {
        Bench { scratch: Scratch::new(), process: None }
    }

    /// A bench with a listening daemon.
    fn started() -> Bench {
        let mut bench = Bench::new();
        bench.start();
        bench
    }

    fn socket(&self) -> PathBuf {
        self.scratch.join("counter.sock")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("log")).unwrap()
    }

    fn start(&mut self) {
        self.process = Some(self.spawn());
        let listens = || UnixStream::connect(self.socket()).is_ok();
        wait_until("the counter listens", 10, listens);
    }

    /// Blocks the signals before the test harness starts its threads, so that all threads have them
    /// blocked, as in a standalone daemon.
    fn spawn(&self) -> Child {
        let log = File::options().create(true).append(true).open(self.scratch.join("log")).unwrap();
        let mut command = Command::new("env");
        command.args(["--block-signal=TERM,INT"]).arg(std::env::current_exe().unwrap());
        command.args(["service::process_of_the_counter", "--exact", "--nocapture"]);
        command.env(SOCKET, self.socket()).stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().unwrap()
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Whether it exits successfully on SIGTERM.
    fn terminate(&mut self) -> bool {
        let mut process = self.process.take().unwrap();
        let pid = process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        wait_until("the counter ends", 10, || process.try_wait().unwrap().is_some());
        process.wait().unwrap().success()
    }

    fn ask<A: DeserializeOwned>(&self, request: &Request) -> Result<A> {
        let socket = self.socket();
        let connected = COUNTER
            .connect(&socket, Deadline::default())
            .map_err(|e| COUNTER.unreached(&socket, &e))?;
        connected.ask(request)?.answer()?
    }

    fn add(&self, name: &str, by: u64) -> Result<u64> {
        self.ask(&Request::Add { name: name.to_owned(), by })
    }

    fn get(&self, name: &str) -> Result<u64> {
        self.ask(&Request::Get { name: name.to_owned() })
    }

    fn feed(&self, name: &str) {
        let sender = UnixDatagram::unbound().unwrap();
        // It binds its feed after the socket that `start` waits for.
        let feed = feed_of(&self.socket());
        wait_until("the feed is there", 10, || sender.send_to(name.as_bytes(), &feed).is_ok());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- the counter:\n{}", self.log()); // shown when the case fails
        }
    }
}

#[test]
fn a_request_is_answered_and_an_error_is_one() {
    let bench = Bench::started();
    assert_eq!((bench.add("a", 2), bench.add("a", 3), bench.get("a")), (Ok(2), Ok(5), Ok(5)));
    let error = bench.get("b").unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (Code::UNKNOWN_CONTAINER, "no count \"b\""));
    assert!(bench.log().contains("count=a value=5"), "{}", bench.log());
}

#[test]
fn the_journal_outlives_kill_9() {
    let mut bench = Bench::started();
    bench.add("a", 7).unwrap();
    bench.kill();
    let error = bench.get("a").unwrap_err();
    assert!(error.msg.starts_with("connect to the counter at "), "{error}");
    assert_eq!(error.details(), "it does not run: start counter.service");
    bench.start();
    assert_eq!(bench.add("a", 1), Ok(8));
}

#[test]
fn a_request_may_be_answered_by_the_timer() {
    let bench = Bench::started();
    let later = |name: &str, millis| Request::Later { name: name.to_owned(), by: 4, millis };
    assert_eq!(bench.ask(&later("a", 300)), Ok(4));
    // The request of a client that hangs up is dropped.
    drop(COUNTER.connect(&bench.socket(), Deadline::default()).unwrap().ask(&later("b", 100)));
    assert_eq!(bench.ask(&later("a", 300)), Ok(8));
    assert_eq!(bench.get("b").map_err(|e| e.code), Err(Code::UNKNOWN_CONTAINER));
}

#[test]
fn a_descriptor_of_the_service_wakes_it() {
    let bench = Bench::started();
    bench.feed("a");
    bench.feed("a");
    wait_until("both are counted", 10, || bench.get("a") == Ok(2));
    bench.add("a", 1).unwrap();
    let metrics: String = bench.ask(&Request::Metrics).unwrap();
    for line in ["{by=\"feed\"} 2", "{by=\"op\"} 1"] {
        let line = format!("counter_additions_total{line}");
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    assert!(metrics.contains("# TYPE counter_waiting gauge\ncounter_waiting 0\n"), "{metrics}");
}

#[test]
fn sigterm_ends_it_and_its_files_go_with_it() {
    let mut bench = Bench::started();
    bench.add("a", 1).unwrap();
    let pid = std::fs::read_to_string(bench.scratch.join("counter.pid")).unwrap();
    assert_eq!(pid, bench.process.as_ref().unwrap().id().to_string());
    assert!(bench.terminate(), "{}", bench.log());
    assert!(!bench.socket().exists() && !bench.scratch.join("counter.pid").exists());
    assert!(bench.scratch.join("counter.counts/a.json").exists());
}

#[test]
fn a_second_one_is_refused_by_name() {
    let bench = Bench::started();
    assert!(!bench.spawn().wait().unwrap().success());
    let holder = bench.process.as_ref().unwrap().id();
    let why = format!("the counter with process id {holder} has it");
    assert!(bench.log().contains(&why), "{}", bench.log());
    assert!(bench.log().contains("give this one another COUNTER_SOCKET"), "{}", bench.log());
    assert_eq!(bench.add("a", 1), Ok(1), "the first is still there");
}

#[test]
fn it_can_do_nothing_that_it_does_not_need() {
    let bench = Bench::started();
    let restricted = !bench.log().contains("system calls are not restricted");
    let found: Vec<String> = bench.ask(&Request::Probe).unwrap();
    assert!(found.is_empty() || !restricted, "{found:?}");
}

#[test]
fn another_protocol_is_refused() {
    let bench = Bench::started();
    let socket = bench.socket();
    let asked =
        cni_multi::plugins::ipam::dhcp::wire::DAEMON.connect(&socket, Deadline::default()).unwrap();
    let error = asked.ask(&Request::Probe).unwrap().answer::<()>().unwrap_err();
    assert_eq!(
        error.msg,
        format!("ask the DHCP daemon at {socket:?}: the daemon speaks protocol 3, this client 1")
    );
}
