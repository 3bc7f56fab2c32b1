//! A small D-Bus client for firewalld: one call at a time, strings in, a string or a boolean out; or
//! signals, without their values.
//! <https://dbus.freedesktop.org/doc/dbus-specification.html>

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::UnixAddr;
use nix::unistd::geteuid;

use super::local_stream::LocalStream;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::hex;

/// The timeout of connecting and of a method call to the bus daemon, whatever arrives in between.
const PATIENCE: Duration = Duration::from_secs(5);
/// The timeout of a method call to a program on the bus, the default of libdbus and sd-bus. While
/// firewalld starts or reloads it answers no call, which takes seconds on a busy machine.
const PATIENCE_WITH_PROGRAM: Duration = Duration::from_secs(25);
/// The longest line of the authentication phase, by the specification.
const LINE_MAX: u64 = 16384;
/// The maximum size of a message, by the specification.
const MESSAGE_MAX: usize = 1 << 27;
/// The size of a header before its fields.
const FIXED: usize = 16;
/// The alignment of messages and structures.
const ALIGNMENT: usize = 8;

/// The machine's byte order, as messages declare it.
const OWN_ORDER: u8 = if cfg!(target_endian = "little") { b'l' } else { b'B' };

// Message types.
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;

// Header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// An object whose methods are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// The name of the program on the bus.
    pub destination: &'static str,
    /// The object's path in that program.
    pub path: &'static str,
    /// The interface that has the method.
    pub interface: &'static str,
}

/// The bus daemon.
const BUS: Object = Object {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The call succeeded.
    Done(Body),
    /// The call was refused, for this reason.
    Refused(String),
}

/// The values of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    bytes: Vec<u8>,
    is_little_endian: bool,
}

impl Body {
    /// The first value, if it is a boolean.
    pub fn is_true(&self) -> bool {
        read_u32(&self.bytes, 0, self.is_little_endian) == Some(1)
    }

    /// The first value, if it is a string.
    pub fn text(&self) -> String {
        let length = read_u32(&self.bytes, 0, self.is_little_endian).unwrap_or_default() as usize;
        let text = length.checked_add(4).and_then(|end| self.bytes.get(4..end)).unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

/// A connection to a bus.
pub struct Bus {
    stream: BufReader<LocalStream>,
    serial: u32,
    deadline: Deadline,
}

impl Bus {
    /// Connects to the first of the addresses (`unix:path=…;unix:abstract=…`) that exists; None if
    /// none does.
    pub fn connect(addresses: &str, deadline: Deadline) -> Result<Option<Bus>> {
        for address in addresses.split(';').filter_map(socket_address) {
            match LocalStream::connect(&address, deadline.limit(PATIENCE)) {
                Ok(stream) => return Bus::greet(stream, deadline).map(Some).map_err(failed),
                // No process listens at the address.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    ) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(None)
    }

    /// Talks to a bus over an existing connection.
    pub fn over(socket: UnixStream) -> Result<Bus> {
        Bus::greet(LocalStream::over(socket, PATIENCE), Deadline::default()).map_err(failed)
    }

    fn greet(stream: LocalStream, deadline: Deadline) -> io::Result<Bus> {
        let mut bus = Bus { stream: BufReader::new(stream), serial: 0, deadline };
        let user = hex::encode(geteuid().to_string().as_bytes());
        bus.stream.get_mut().write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes())?;
        let mut line = vec![];
        (&mut bus.stream).take(LINE_MAX).read_until(b'\n', &mut line)?;
        if !line.starts_with(b"OK ") || !line.ends_with(b"\n") {
            let said: String = String::from_utf8_lossy(&line).trim().chars().take(80).collect();
            return Err(io::Error::other(format!("authentication is refused: {said:?}")));
        }
        bus.stream.get_mut().write_all(b"BEGIN\r\n")?;
        bus.exchange(BUS, "Hello", &[])?;
        Ok(bus)
    }

    /// Whether the name has an owner. Does not activate the service.
    pub fn has_owner(&mut self, name: &str) -> Result<bool> {
        match self.call(BUS, "NameHasOwner", &[name])? {
            Answer::Done(body) => Ok(body.is_true()),
            Answer::Refused(why) => Err(failed(io::Error::other(why))),
        }
    }

    /// Calls a method with string arguments.
    pub fn call(&mut self, object: Object, member: &str, args: &[&str]) -> Result<Answer> {
        let patience = if object == BUS { PATIENCE } else { PATIENCE_WITH_PROGRAM };
        self.stream.get_mut().allow(self.deadline.limit(patience));
        self.exchange(object, member, args)
            .map_err(|e| failed(e).with_details(format_args!("calling {member}")))
    }

    /// Requests every signal of this name that the object sends, from now on.
    pub fn subscribe(&mut self, object: Object, signal: &str) -> Result<()> {
        let Object { destination, path, interface } = object;
        let rule = format!(
            "type='signal',sender='{destination}',path='{path}',interface='{interface}',member='{signal}'"
        );
        match self.call(BUS, "AddMatch", &[&rule])? {
            Answer::Done(_) => Ok(()),
            Answer::Refused(why) => Err(failed(io::Error::other(why))),
        }
    }

    /// Waits for the next signal of this name, for any time. Fails if the bus hangs up.
    pub fn wait_for(&mut self, signal: &str) -> Result<()> {
        let mut wait = || loop {
            if self.stream.buffer().is_empty() {
                self.stream.get_ref().wait()?;
            }
            self.stream.get_mut().allow(PATIENCE);
            let Message { kind, fields, body } = self.receive()?;
            let member = field(&fields, MEMBER, body.is_little_endian);
            if kind == SIGNAL && member == Some(signal.as_bytes()) {
                return Ok(());
            }
        };
        wait().map_err(|error: io::Error| match error.kind() {
            // The bus closes its connections when it is stopped.
            io::ErrorKind::UnexpectedEof => {
                Error::new(Code::HOST_PROGRAM, "D-Bus: the bus has closed the connection")
            }
            _ => failed(error),
        })
    }

    fn exchange(&mut self, object: Object, member: &str, args: &[&str]) -> io::Result<Answer> {
        self.serial += 1;
        let message = method_call(self.serial, object, member, args);
        self.stream.get_mut().write_all(&message)?;
        loop {
            let Message { kind, fields, body } = self.receive()?;
            if reply_serial(&fields, body.is_little_endian) != Some(self.serial) {
                continue;
            }
            match kind {
                METHOD_RETURN => return Ok(Answer::Done(body)),
                ERROR => return Ok(Answer::Refused(body.text())),
                _ => (), // a signal
            }
        }
    }

    fn receive(&mut self) -> io::Result<Message> {
        let mut fixed = [0; FIXED];
        self.stream.read_exact(&mut fixed)?;
        let is_little_endian = fixed[0] == b'l';
        let body = length_at(&fixed, 4)?;
        let fields = length_at(&fixed, 12)?;
        let mut rest = vec![0; fields.next_multiple_of(ALIGNMENT) + body];
        self.stream.read_exact(&mut rest)?;
        let bytes = rest.split_off(fields.next_multiple_of(ALIGNMENT));
        rest.truncate(fields);
        Ok(Message { kind: fixed[1], fields: rest, body: Body { bytes, is_little_endian } })
    }
}

/// A length in the fixed part of a header.
fn length_at(fixed: &[u8; FIXED], at: usize) -> io::Result<usize> {
    let length = read_u32(fixed, at, fixed[0] == b'l').unwrap_or_default() as usize;
    if length > MESSAGE_MAX {
        return Err(io::Error::other("a message is too long"));
    }
    Ok(length)
}

struct Message {
    kind: u8,
    /// The fields of the header.
    fields: Vec<u8>,
    body: Body,
}

fn failed(error: io::Error) -> Error {
    Error::io("D-Bus", &error).with_code(Code::HOST_PROGRAM)
}

fn socket_address(address: &str) -> Option<UnixAddr> {
    let mut pairs = address.strip_prefix("unix:")?.split(',');
    pairs.find_map(|pair| match pair.split_once('=')? {
        ("path", value) => UnixAddr::new(value).ok(),
        ("abstract", value) => UnixAddr::new_abstract(value.as_bytes()).ok(),
        _ => None,
    })
}

/// Encodes a method call in the machine's byte order, which the first byte declares.
fn method_call(serial: u32, object: Object, member: &str, args: &[&str]) -> Vec<u8> {
    let mut body = vec![];
    args.iter().for_each(|arg| write_text(&mut body, arg));
    let mut fields = vec![];
    write_field(&mut fields, PATH, b'o', object.path);
    write_field(&mut fields, INTERFACE, b's', object.interface);
    write_field(&mut fields, MEMBER, b's', member);
    write_field(&mut fields, DESTINATION, b's', object.destination);
    if !args.is_empty() {
        write_signature(&mut fields, args.len());
    }
    let mut message = vec![OWN_ORDER, METHOD_CALL, 0, 1];
    for number in [body.len() as u32, serial, fields.len() as u32] {
        message.extend(number.to_ne_bytes());
    }
    message.extend(fields);
    pad(&mut message, ALIGNMENT);
    message.extend(body);
    message
}

fn pad(bytes: &mut Vec<u8>, alignment: usize) {
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
}

fn write_text(bytes: &mut Vec<u8>, text: &str) {
    pad(bytes, 4);
    bytes.extend((text.len() as u32).to_ne_bytes());
    bytes.extend(text.bytes());
    bytes.push(0);
}

fn write_field(fields: &mut Vec<u8>, code: u8, kind: u8, text: &str) {
    pad(fields, ALIGNMENT);
    fields.extend([code, 1, kind, 0]);
    write_text(fields, text);
}

/// Writes the signature of `count` strings.
fn write_signature(fields: &mut Vec<u8>, count: usize) {
    pad(fields, ALIGNMENT);
    fields.extend([SIGNATURE, 1, b'g', 0, count as u8]);
    fields.resize(fields.len() + count, b's');
    fields.push(0);
}

/// The call that a message replies to.
fn reply_serial(fields: &[u8], is_little_endian: bool) -> Option<u32> {
    read_u32(field(fields, REPLY_SERIAL, is_little_endian)?, 0, is_little_endian)
}

/// The value of a header's field. The fields are numbers, strings and signatures.
fn field(fields: &[u8], wanted: u8, is_little_endian: bool) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        at = usize::next_multiple_of(at, ALIGNMENT);
        let [code, 1, kind, 0] = *fields.get(at..at + 4)? else { return None };
        at += 4;
        // The place of the value, without its length.
        let value = match kind {
            b'u' => at..at + 4,
            b'g' => at + 1..at + 1 + usize::from(*fields.get(at)?),
            b's' | b'o' => at + 4..at + 4 + read_u32(fields, at, is_little_endian)? as usize,
            _ => return None,
        };
        at = value.end + usize::from(kind != b'u'); // a text ends with NUL
        if code == wanted {
            return fields.get(value);
        }
    }
}

fn read_u32(bytes: &[u8], at: usize, is_little_endian: bool) -> Option<u32> {
    let number = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(if is_little_endian { u32::from_le_bytes(number) } else { u32::from_be_bytes(number) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::time::Instant;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

    use super::*;

    #[test]
    fn fields_are_walked_to_the_serial_and_torn_ones_end_the_walk() {
        let mut fields = vec![];
        write_field(&mut fields, DESTINATION, b's', ":1.7");
        write_signature(&mut fields, 2);
        pad(&mut fields, ALIGNMENT);
        fields.extend([REPLY_SERIAL, 1, b'u', 0]);
        fields.extend(77_u32.to_le_bytes());
        if cfg!(target_endian = "little") {
            assert_eq!(reply_serial(&fields, true), Some(77));
        }
        for end in 0..fields.len() {
            assert_eq!(reply_serial(&fields[..end], cfg!(target_endian = "little")), None, "{end}");
        }
        assert_eq!(reply_serial(&[4, 1, b's', 0, 255, 255, 255, 255, 0], true), None);
    }

    /// A message in little endian with a member and no body.
    fn message_of(kind: u8, member: &str) -> Vec<u8> {
        let mut fields = vec![];
        write_field(&mut fields, MEMBER, b's', member);
        let mut message = vec![b'l', kind, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0];
        message.extend((fields.len() as u32).to_le_bytes());
        message.extend(fields);
        pad(&mut message, ALIGNMENT);
        message
    }

    /// Other signals and other messages of that name are left out; the last signal ends the wait
    /// although more time has passed than a call has.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_signal_is_waited_for_and_the_end_of_the_bus_is_an_error() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let stream = BufReader::new(LocalStream::over(ours, Duration::ZERO));
        let mut bus = Bus { stream, serial: 0, deadline: Deadline::default() };
        for (kind, member) in
            [(SIGNAL, "NameAcquired"), (METHOD_CALL, "Reloaded"), (SIGNAL, "Reloaded")]
        {
            theirs.write_all(&message_of(kind, member)).unwrap();
        }
        bus.wait_for("Reloaded").unwrap();
        theirs.write_all(&message_of(SIGNAL, "Reloaded")).unwrap();
        bus.wait_for("Reloaded").unwrap();
        drop(theirs);
        assert_eq!(bus.wait_for("Reloaded").unwrap_err().code, Code::HOST_PROGRAM);
    }

    #[test]
    fn values_are_read_in_either_byte_order() {
        let body =
            |bytes: &[u8], is_little_endian| Body { bytes: bytes.to_vec(), is_little_endian };
        assert_eq!(body(&[2, 0, 0, 0, b'a', b'b', 0], true).text(), "ab");
        assert_eq!(body(&[0, 0, 0, 2, b'a', b'b', 0], false).text(), "ab");
        assert_eq!(body(&[255, 255, 255, 255, b'a'], true).text(), "");
        assert!(body(&[0, 0, 0, 1], false).is_true() && !body(&[0, 0, 0, 0], true).is_true());
    }

    #[test]
    fn a_bus_that_is_not_there_is_none() {
        for nowhere in [
            "unix:path=/nonexistent/socket",
            "tcp:host=localhost",
            "",
            "unix:abstract=cni-multi-nobody",
        ] {
            assert!(Bus::connect(nowhere, Deadline::default()).unwrap().is_none(), "{nowhere}");
        }
    }

    #[test]
    fn whoever_hangs_up_is_no_bus() {
        let scratch = crate::scratch::Scratch::new();
        let path = scratch.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || drop(listener.accept()));
        let error = Bus::connect(&format!("unix:path={}", path.display()), Deadline::default())
            .err()
            .unwrap();
        assert_eq!(error.code, Code::HOST_PROGRAM);
        server.join().unwrap();
    }

    /// How long connecting takes, and with which error it fails, when a bus treats the connection
    /// this way.
    fn time_of(serve: fn(UnixStream)) -> (Duration, Error) {
        let scratch = crate::scratch::Scratch::new();
        let path = scratch.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || serve(listener.accept().unwrap().0));
        let begin = Instant::now();
        let error = Bus::connect(&format!("unix:path={}", path.display()), Deadline::default())
            .err()
            .unwrap();
        let time = begin.elapsed();
        server.join().unwrap();
        (time, error)
    }

    #[test]
    fn a_bus_that_never_comes_to_an_end_is_not_waited_for() {
        fn trickle(mut stream: UnixStream) {
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        fn signals(mut stream: UnixStream) {
            let mut line = [0; 64];
            let _ = stream.write_all(b"OK 1\r\n").and_then(|()| stream.read(&mut line));
            while stream.write_all(&[b'l', 4, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        for serve in [trickle, signals] {
            let (time, error) = time_of(serve);
            assert!(time < PATIENCE + Duration::from_secs(3), "{time:?}");
            assert!(error.to_string().contains("no answer within 5 s"), "{error}");
        }
    }

    /// A stopped program accepts no connections, and its queue is full.
    #[test]
    fn a_bus_that_takes_no_connection_is_not_waited_for() {
        use nix::sys::socket::{Backlog, bind, listen};
        let scratch = crate::scratch::Scratch::new();
        let path = scratch.path().join("socket");
        let listener =
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _in_the_queue = UnixStream::connect(&path).unwrap();
        let begin = Instant::now();
        let error = Bus::connect(&format!("unix:path={}", path.display()), Deadline::default())
            .err()
            .unwrap();
        assert!(begin.elapsed() < PATIENCE + Duration::from_secs(3), "{error}");
        assert!(error.to_string().contains("no answer within 5 s"), "{error}");
    }

    #[test]
    fn a_line_without_an_end_is_no_answer() {
        let (time, error) = time_of(|mut stream| while stream.write_all(&[b'x'; 1000]).is_ok() {});
        assert!(time < PATIENCE, "{time:?}");
        assert!(error.to_string().contains("authentication is refused: \"xxx"), "{error}");
    }
}
