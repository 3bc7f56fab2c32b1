//! Reads files of containers in a child process.
//!
//! A file system of a container may never answer (FUSE), and what waits for one that has taken the
//! question is not even ended by SIGKILL: a thread that waits so would keep the whole process.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::sys::process::Child;

/// How long a container's file system may take. It is halved each time that one takes longer: how
/// many do is up to the containers.
const PATIENCE: Duration = Duration::from_secs(1);
/// The least.
const LEAST_PATIENCE: Duration = Duration::from_millis(10);

/// The status of a file that is not there, or that is no regular file.
const NONE: i32 = -1;

/// Reads one file of each container.
pub struct FileReader {
    path: &'static str,
    limit: usize,
    patience: Duration,
    started: Option<Started>,
}

struct Started {
    child: Child,
    socket: UnixStream,
}

impl FileReader {
    /// Reads the file at this path of a container, of at most `limit` bytes.
    pub fn new(path: &'static str, limit: usize) -> FileReader {
        FileReader { path, limit, patience: PATIENCE, started: None }
    }

    /// The file below the root directory of a process; None if it is not there, or is no regular
    /// file, or the process has exited.
    pub fn read(&mut self, root: &Path) -> Result<Option<Vec<u8>>> {
        let mut started = match self.started.take() {
            Some(started) => started,
            None => self.start()?,
        };
        let file = root.join(self.path);
        match started.ask(root, self.patience) {
            Ok((0, text)) => {
                self.started = Some(started);
                Ok(Some(text))
            }
            Ok((errno, _)) => {
                self.started = Some(started);
                let error = io::Error::from_raw_os_error(errno);
                if errno == NONE { Ok(None) } else { Err(Error::at_path("read", &file)(error)) }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                started.child.abandon();
                let error = self.late(&file);
                self.patience = (self.patience / 2).max(LEAST_PATIENCE);
                Err(error)
            }
            Err(e) => Err(Error::at_path("read", &file)(e)),
        }
    }

    fn late(&self, file: &Path) -> Error {
        let (file, path) = (file.display(), self.path);
        let msg = format!("read {file}: the container's /{path} did not answer");
        Error::new(Code::TRY_AGAIN, format!("{msg} within {:?}", self.patience))
    }

    fn start(&self) -> Result<Started> {
        let (socket, theirs) = UnixStream::pair().map_err(|e| Error::io("make a socket", &e))?;
        let child = Child::start(|| u8::from(serve(&theirs, self.path, self.limit).is_err()))?;
        Ok(Started { child, socket })
    }
}

impl Started {
    /// The number of the error, and what was read.
    fn ask(&mut self, root: &Path, patience: Duration) -> io::Result<(i32, Vec<u8>)> {
        self.socket.set_read_timeout(Some(patience))?;
        self.socket.write_all(format!("{}\n", root.display()).as_bytes())?;
        let (mut errno, mut size) = ([0; 4], [0; 4]);
        self.socket.read_exact(&mut errno)?;
        self.socket.read_exact(&mut size)?;
        let mut text = vec![0; u32::from_ne_bytes(size) as usize];
        self.socket.read_exact(&mut text)?;
        Ok((i32::from_ne_bytes(errno), text))
    }
}

/// Reads the file below each root that it is sent. What keeps an abandoned child alive is not to
/// keep the readers of our output waiting.
fn serve(socket: &UnixStream, path: &str, limit: usize) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    for root in BufReader::new(socket).lines() {
        let read = plain_file::read_below(&PathBuf::from(root?), Path::new(path), limit);
        let (errno, text) = match read {
            Ok(text) => (0, text),
            Err(e) if is_none(&e) => (NONE, vec![]),
            Err(e) => (e.raw_os_error().unwrap_or(NONE), vec![]),
        };
        let size = text.len() as u32; // `limit` is far less
        let answer = [&errno.to_ne_bytes(), &size.to_ne_bytes(), &text[..]].concat();
        let mut socket = socket;
        socket.write_all(&answer)?;
    }
    Ok(())
}

/// Whether there is no such file, or its process has exited.
pub fn is_none(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || plain_file::is_no_file(e.raw_os_error())
}
