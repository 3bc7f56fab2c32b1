//! What a container puts in the place of its resolv.conf: nothing of it is opened but a regular file,
//! and a file system that never answers costs a deadline.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::dns::Program;
use super::site::Site;
use crate::support::attachment::skip;
use crate::support::patience;

/// The commands that read a container's file; `{}` is the container.
const COMMANDS: [&str; 4] =
    ["doctor", "doctor {}", "doctor {} --bundle /run/bundle", "metrics --findings"];

fn run_all(site: &Site, netns: &str) {
    for line in COMMANDS {
        let output = site.run(&line.replace("{}", netns));
        site.lab.host.sh("rm -f /run/bundle");
        assert!(matches!(output.status.code(), Some(0 | 1)), "{line}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!text.contains('\x1b'), "{line}: {text}");
    }
}

/// A device node of the host's watchdog would reset it.
#[test]
fn nothing_but_a_regular_file_of_a_container_is_opened() {
    let site = Site::with_bridge("10.182.8.0/24");
    let container = site.attached("pods");
    // The file that is watched, and how the container makes it.
    for (watched, make) in [
        ("etc/resolv.conf", "mknod /etc/resolv.conf c 1 5"),
        ("etc/node", "mknod /etc/node c 1 5; ln -s node /etc/resolv.conf"),
        ("etc/resolv.conf", "mknod /etc/resolv.conf b 7 0"),
        ("etc/resolv.conf", "mkfifo /etc/resolv.conf"),
        ("etc/fifo", "mkfifo /etc/fifo; ln -s ../../etc/fifo /etc/resolv.conf"),
        ("etc/resolv.conf", "mkdir /etc/resolv.conf"),
        ("etc/resolv.conf", "truncate -s 4E /etc/resolv.conf"),
    ] {
        let program = Program::start(&container, "");
        let id = program.id();
        let made = format!("nsenter -t {id} -m sh -ec 'rm /etc/resolv.conf; {make}'");
        if !container.try_sh(&made).status.success() {
            skip("mknod");
            continue;
        }
        let watched = PathBuf::from(format!("/proc/{id}/root")).join(watched);
        let opened = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        opened.add_watch(&watched, AddWatchFlags::IN_OPEN).unwrap();
        run_all(&site, &container.netns);
        assert_eq!(opened.read_events().err(), Some(Errno::EAGAIN), "{make}: it was opened");
        if open(&watched).is_ok() {
            assert_eq!(opened.read_events().unwrap().len(), 1, "{make}: it is watched");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// A file system on /etc of a program whose server never answers; until this is dropped, or for a
/// minute.
struct Silent {
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Silent {
    /// None if this kernel has no FUSE. `takes` the questions, or leaves them in the queue: a process
    /// whose question was taken is not ended by SIGKILL.
    fn mount(process: u32, takes: bool) -> Option<Silent> {
        let (sender, receiver) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let server = thread::spawn(move || {
            let fuse = mount_fuse(process);
            sender.send(fuse.as_ref().map(|_| ()).map_err(|e| e.to_string())).unwrap();
            if let Ok(fuse) = fuse {
                serve(fuse, takes, &stopped);
            }
        });
        let mounted = receiver.recv().unwrap();
        let silent = Silent { stop, server: Some(server) };
        if let Err(why) = mounted {
            skip(&format!("FUSE: {why}"));
            return None;
        }
        Some(silent)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.server.take().unwrap().join().unwrap();
    }
}

#[expect(clippy::disallowed_methods, reason = "the thread of the server ends")]
fn mount_fuse(process: u32) -> io::Result<File> {
    let namespace = File::open(format!("/proc/{process}/ns/mnt"))?;
    unshare(CloneFlags::CLONE_FS)?;
    setns(&namespace, CloneFlags::CLONE_NEWNS)?;
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let fd = fuse.as_raw_fd();
    let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
    mount(Some("x"), "/etc", Some("fuse"), MsFlags::MS_NOSUID, Some(options.as_str()))?;
    Ok(fuse)
}

/// Answers FUSE_INIT alone, and nothing unless it `takes` the questions.
fn serve(mut fuse: File, takes: bool, stopped: &AtomicBool) {
    let end = Instant::now() + Duration::from_secs(60);
    let mut is_first = true;
    while Instant::now() < end && !stopped.load(Ordering::Relaxed) {
        if !takes {
            thread::sleep(Duration::from_millis(50));
            continue;
        }
        let mut polled = [PollFd::new(fuse.as_fd(), PollFlags::POLLIN)];
        if poll(&mut polled, 50u16).unwrap() == 0 {
            continue;
        }
        let mut question = vec![0; 1 << 20];
        let length = fuse.read(&mut question).unwrap();
        assert!(length >= 40, "a question begins with its header");
        if std::mem::take(&mut is_first) {
            let mut answer = [0; 80];
            answer[0] = 80; // len
            answer[8..16].copy_from_slice(&question[8..16]); // unique
            answer[16] = 7; // major
            answer[20] = 31; // minor
            answer[37] = 16; // max_write
            fuse.write_all(&answer).unwrap();
        }
    }
}

#[test]
fn a_file_system_that_never_answers_costs_a_deadline() {
    let site = Site::with_bridge("10.182.9.0/24");
    let (container, other) = (site.attached("pods"), site.attached("pods"));
    for takes in [false, true] {
        let program = Program::start(&container, "nameserver 10.182.9.1");
        let _other = Program::start(&other, "nameserver 127.0.0.53");
        let Some(_silent) = Silent::mount(program.id(), takes) else { return };
        let begin = Instant::now();
        let findings = site.findings(&container.netns);
        assert_eq!(findings.len(), 1, "{findings:#?}");
        assert_eq!(findings[0]["code"], "D201");
        assert_eq!(findings[0]["container"], container.netns.rsplit('/').next().unwrap());
        let evidence = findings[0]["evidence"].as_str().unwrap();
        let expected = "the container's /etc/resolv.conf did not answer within 1s";
        assert!(evidence.ends_with(expected), "{evidence}");
        let codes = site.codes("");
        assert!(codes.contains(&"D602".to_owned()), "the other container is examined: {codes:?}");
        run_all(&site, &container.netns);
        assert!(begin.elapsed() < patience(30), "{:?}", begin.elapsed());
    }
}
