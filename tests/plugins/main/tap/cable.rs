//! A program behind a tap, such as a virtual machine, that reads and writes its frames.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::support::netns::{Lab, Namespace};

/// Opens queues of a tap and relays frames to another tap over a socket that preserves their
/// boundaries. Exits when its stdin is closed.
const RELAY: &str = r#"
use strict; use Socket;
my ($node, $tap, $queues, $role, $path) = @ARGV;
my ($TUNSETIFF, $IFF_TAP, $IFF_MULTI_QUEUE, $IFF_NO_PI) = (0x400454ca, 0x0002, 0x0100, 0x1000);
my $flags = $IFF_TAP | $IFF_NO_PI | ($queues > 1 ? $IFF_MULTI_QUEUE : 0);
my @taps;
for (1 .. $queues) {
    open(my $queue, '+<', $node) or die "$node: $!\n";
    my $request = pack('a16 S x22', $tap, $flags);
    ioctl($queue, $TUNSETIFF, $request) or die "$tap: $!\n";
    push @taps, $queue;
}
$| = 1;
if ($role eq 'open') { print "ready\n"; <STDIN>; exit 0 }
socket(my $far, AF_UNIX, SOCK_SEQPACKET, 0) or die $!;
if ($role eq 'listen') {
    bind($far, sockaddr_un($path)) && listen($far, 1) or die $!;
    print "ready\n";
    accept(my $accepted, $far) or die $!;
    $far = $accepted;
} else {
    connect($far, sockaddr_un($path)) or die $!;
    print "ready\n";
}
my $turn = 0;
while (1) {
    my $wanted = '';
    vec($wanted, fileno($_), 1) = 1 for @taps, $far, \*STDIN;
    select(my $ready = $wanted, undef, undef, undef);
    exit 0 if vec($ready, fileno(STDIN), 1);
    for my $from (@taps, $far) {
        next unless vec($ready, fileno($from), 1);
        my $length = sysread($from, my $frame, 70000) or exit 0;
        syswrite($from == $far ? $taps[$turn++ % @taps] : $far, $frame); # a tap that is down takes none
    }
}
"#;

/// One running relay.
struct Relay {
    child: Child,
    _stdin: ChildStdin,
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

fn start(mut command: Command, arguments: [&str; 5]) -> Result<Relay, String> {
    command
        .args(["-e", RELAY])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    if said == "ready\n" {
        return Ok(Relay { child, _stdin: stdin });
    }
    let output = child.wait_with_output().unwrap();
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Connects the taps `eth0` of two containers until it is dropped.
pub struct Cable {
    _ends: [Relay; 2],
}

impl Cable {
    #[track_caller]
    pub fn join(lab: &Lab, a: &Namespace, b: &Namespace, queues: usize) -> Cable {
        let path = "/run/cable";
        lab.host.sh(&format!("rm -f {path}"));
        let end = |at: &Namespace, role| {
            start(at.command("perl"), ["/dev/net/tun", "eth0", &queues.to_string(), role, path])
                .unwrap()
        };
        Cable { _ends: [end(a, "listen"), end(b, "connect")] }
    }
}

/// Whether a process of this user and group can open the tap `eth0`; the kernel's error if not.
pub fn open_as(lab: &Lab, at: &Namespace, user: u32, group: u32) -> Result<(), String> {
    // The machine's own node may be accessible to root only.
    lab.host.sh("[ -e /run/tun ] || mknod -m 666 /run/tun c 10 200");
    let mut command = at.command("setpriv");
    command.args([
        &format!("--reuid={user}"),
        &format!("--regid={group}"),
        "--clear-groups",
        "perl",
    ]);
    start(command, ["/run/tun", "eth0", "1", "open", ""]).map(drop)
}
