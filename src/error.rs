//! The one error type: what the runtime reads as the error object of the CNI specification, section
//! 5.
//!
//! `msg` says what was attempted and names the object, in the reference plugin's sentence where it
//! has one. `details` gives the place and cause in more words, what the reader can do and what was
//! undone. The runtime prepends the plugin's name, so messages do not.

use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd as _;
use std::path::Path;

use nix::errno::Errno;

pub use self::aspect::Aspect;
pub use self::mistake::{Expected, Kind, Mistake, Problem, Word};

mod aspect;
mod mistake;

/// The result type of nearly every function in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error code. The specification reserves 0 to 99; ours begin at 100. The comment of each is its
/// row in docs/errors.md: the cause, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// No plugin supports `cniVersion`, or it is too old for the command: CHECK and GET need 0.4.0,
    /// GC and STATUS 1.1.0.
    ///
    /// Correct `cniVersion`, or install a newer cni-multi.
    pub const INCOMPATIBLE_VERSION: Code = Code(1);
    /// GET: the attachment is unknown.
    ///
    /// Nothing: there is nothing to clean up.
    pub const UNKNOWN_CONTAINER: Code = Code(3);
    /// A variable such as `CNI_IFNAME` is missing or wrong, or `CNI_NETNS` cannot be opened.
    ///
    /// Inspect the runtime; the message names the variable.
    pub const INVALID_ENVIRONMENT: Code = Code(4);
    /// A file could not be read or written, such as a lease of host-local.
    ///
    /// Check permissions, space and read-only mounts.
    pub const IO: Code = Code(5);
    /// The configuration or `prevResult` is not JSON, or a value has the wrong type.
    ///
    /// Correct the value at the path in the message.
    pub const DECODE: Code = Code(6);
    /// The configuration decodes, and is invalid.
    ///
    /// Correct the value at the path in the message.
    pub const INVALID_CONFIG: Code = Code(7);
    /// `CNI_NETNS` is the plugin's own namespace, or DEL may not open it; nothing has changed.
    ///
    /// Inspect the runtime. Tests can set `CNI_NETNS_OVERRIDE=1`.
    pub const INVALID_NETNS: Code = Code(8);
    /// A condition that passes, such as a lock that another process holds.
    ///
    /// Retry; `details` names the owner of a lock if it is known.
    pub const TRY_AGAIN: Code = Code(11);
    /// STATUS: no ADD can be served.
    ///
    /// Provide what `msg` says is missing.
    pub const NOT_AVAILABLE: Code = Code(50);
    /// STATUS of an IPAM plugin of another vendor: attached containers may be impaired too.
    ///
    /// See that plugin.
    pub const LIMITED_CONNECTIVITY: Code = Code(51);
    /// The kernel refused an operation.
    ///
    /// `details` names a missing module, with its `modprobe`, or a missing capability.
    pub const KERNEL: Code = Code(100);
    /// No address is free, the requested one is not, or the IPAM plugin returned none.
    ///
    /// Free the leases of gone containers with `cni-multi net gc`; `cni-multi ipam ls` lists all.
    /// Else enlarge the range, or request another address.
    pub const ADDRESS_UNAVAILABLE: Code = Code(101);
    /// Something of that name or value has another owner: an interface, an address, a port, a lease
    /// of the same attachment.
    ///
    /// Remove it, or choose another name; `details` names it, and for a lease the DEL that frees
    /// it.
    pub const CONFLICT: Code = Code(102);
    /// CHECK found a difference.
    ///
    /// Run `cni-multi net sync`, or detach and attach again.
    pub const CHECK_FAILED: Code = Code(103);
    /// A delegated plugin was not found, could not be run, or failed without an error object.
    ///
    /// Check `ipam.type` and the directories in `msg`.
    pub const DELEGATE: Code = Code(104);
    /// A host program that the configuration requires is missing or failed, such as iptables.
    ///
    /// Install it, or remove the key.
    pub const HOST_PROGRAM: Code = Code(105);
    /// A bug of cni-multi; its changes have been undone.
    ///
    /// Report it with `msg`.
    pub const BUG: Code = Code(106);
}

/// An error as the runtime sees it. Boxed, because every result has room for one and every `?`
/// moves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Report>);

/// What an [`Error`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The code of the error object.
    pub code: Code,
    /// What was attempted, with the object, in the reference plugin's sentence where it has one.
    pub msg: String,
    /// Our own sentence, where `msg` is the reference plugin's; else empty.
    own_msg: String,
    /// What the reader can do, further causes, what was undone; may be empty.
    pub advice: String,
    /// The errno, where the error came from the system.
    pub errno: Option<i32>,
    /// The errors that this one reports together, the first one included; empty if it is a single
    /// error. See [`ErrorList::finish`].
    parts: Vec<Error>,
    /// The configuration mistake and its place, where that is the reason.
    pub mistake: Option<Mistake>,
    /// What a difference that CHECK has found is about, if a caller may know its cause.
    pub aspect: Option<Aspect>,
    /// Whether changes had been made and were undone.
    pub was_undone: bool,
}

impl Error {
    /// An error without details.
    pub fn new(code: Code, msg: impl Into<String>) -> Error {
        Error(Box::new(Report {
            code,
            msg: msg.into(),
            own_msg: String::new(),
            advice: String::new(),
            errno: None,
            parts: vec![],
            mistake: None,
            aspect: None,
            was_undone: false,
        }))
    }

    /// The value at `path` (`ipam.ranges[0][1].subnet`) is invalid; `problem` says why.
    /// [`Error::expecting`] adds what was expected.
    pub fn config(path: impl fmt::Display, problem: impl fmt::Display) -> Error {
        Mistake::new(problem).at(path).into()
    }

    /// The value at `path` is missing.
    pub fn missing(path: impl fmt::Display, expected: impl Into<Expected>) -> Error {
        Mistake::of(Problem::Missing).at(path).expecting(expected).into()
    }

    /// The number at `path` is outside all of the ranges.
    pub fn out_of_range(
        path: impl fmt::Display,
        number: impl fmt::Display,
        ranges: impl Into<Expected>,
    ) -> Error {
        Error::config(path, format_args!("{number} is out of range")).expecting(ranges)
    }

    /// Both keys are given, but they are mutually exclusive.
    pub fn exclusive(path: impl fmt::Display, other: impl fmt::Display) -> Error {
        Mistake::of(Problem::Excludes(other.to_string())).at(path).into()
    }

    /// A difference found by CHECK.
    pub fn check(msg: impl Into<String>) -> Error {
        Error::new(Code::CHECK_FAILED, msg)
    }

    /// A system error while doing `what`; the errno text follows it.
    pub fn system(code: Code, what: impl fmt::Display, errno: i32) -> Error {
        let mut error = Error::new(code, format!("{what}: {}", errno_text(errno)));
        error.errno = Some(errno);
        error
    }

    /// A failed kernel operation.
    pub fn kernel(what: impl fmt::Display, errno: Errno) -> Error {
        Error::system(Code::KERNEL, what, errno as i32)
    }

    /// A failed file operation.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Error {
        match error.raw_os_error() {
            Some(errno) => Error::system(Code::IO, what, errno),
            None => Error::new(Code::IO, format!("{what}: {error}")),
        }
    }

    /// For `map_err`: a failed operation on the file or directory at a path.
    pub fn at_path(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::io(format_args!("{verb} {}", path.display()), &error)
    }

    /// The same error with more details appended, to each of the errors that it reports together.
    #[must_use]
    pub fn with_details(self, more: impl fmt::Display) -> Error {
        let more = more.to_string();
        self.each(&|error| error.advice = joined(&error.advice, &more))
    }

    /// The same error, changed in the same way as each of the errors that it reports together.
    fn each(mut self, change: &dyn Fn(&mut Error)) -> Error {
        change(&mut self);
        self.parts.iter_mut().for_each(change);
        self
    }

    /// The same difference, with what it is about.
    #[must_use]
    pub fn about(self, aspect: &Aspect) -> Error {
        self.each(&|error| error.aspect = Some(aspect.clone()))
    }

    /// The same error with another code.
    #[must_use]
    pub fn with_code(mut self, code: Code) -> Error {
        self.code = code;
        self
    }

    /// The same error with what was being done prepended to its message, and to those of the errors
    /// that it reports together.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Error {
        self.each(&|error| error.msg = format!("{what}: {}", error.msg))
    }

    /// The same mistake with what was expected instead. Call it before any other change of the
    /// message.
    #[must_use]
    pub fn expecting(mut self, expected: impl Into<Expected>) -> Error {
        let report = &mut *self.0;
        if let Some(mistake) = &mut report.mistake {
            mistake.expected = expected.into();
            report.msg = mistake.to_string();
        }
        self
    }

    /// The same mistake, of a value that a runtime supplies with ADD by this capability.
    #[must_use]
    pub fn supplied_by(mut self, capability: &'static str) -> Error {
        if let Some(mistake) = &mut self.0.mistake {
            mistake.capability = capability;
        }
        self
    }

    /// The same error in the reference plugin's sentence, which tools may match. The previous
    /// message moves to the start of the details.
    #[must_use]
    pub fn saying(mut self, sentence: impl fmt::Display) -> Error {
        let own = std::mem::replace(&mut self.msg, sentence.to_string());
        self.own_msg = joined(&own, &self.own_msg);
        self
    }

    /// The same mistake in a library's words, which say everything.
    #[must_use]
    pub fn phrased(mut self, sentence: impl fmt::Display) -> Error {
        self.msg = sentence.to_string();
        self
    }

    /// The same error with its mistake moved to the object at `parent`. The message stays.
    #[must_use]
    pub fn within(mut self, parent: impl fmt::Display) -> Error {
        if let Some(mistake) = &mut self.mistake {
            let point = if mistake.path.is_empty() { "" } else { "." };
            mistake.path = format!("{parent}{point}{}", mistake.path);
        }
        self
    }

    /// The same system error, prefixed with the reference plugin's words for what failed, which
    /// tools may match.
    #[must_use]
    pub fn worded(mut self, what: impl fmt::Display) -> Error {
        let Some(errno) = self.errno else { return self.context(what) };
        self.msg = format!("{what}: {}", errno_text(errno));
        self
    }

    /// The same error, after its changes were undone.
    #[must_use]
    pub fn undone(mut self) -> Error {
        self.was_undone = true;
        self
    }

    /// The details of the error object: our own sentence, where the message is another, and the
    /// advice.
    pub fn details(&self) -> String {
        joined(&self.own_msg, &self.advice)
    }

    /// Whether the cause is temporary, such as a busy system or a lack of resources: a retry may
    /// succeed.
    pub fn may_pass(&self) -> bool {
        use Errno::{EAGAIN, EBUSY, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM};
        [EAGAIN, EBUSY, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM]
            .iter()
            .any(|errno| self.has_errno(*errno))
    }

    /// Whether the system reported that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        use Errno::{EADDRNOTAVAIL, ENODEV, ENOENT, ENXIO, ESRCH};
        self.is_one_of(&[ENOENT, ENODEV, ESRCH, ENXIO, EADDRNOTAVAIL])
    }

    /// Whether the system reported that the object exists.
    pub fn is_exists(&self) -> bool {
        self.is_errno(Errno::EEXIST)
    }

    /// Whether the system has no route to an address.
    pub fn is_unreachable(&self) -> bool {
        self.is_one_of(&[Errno::ENETUNREACH, Errno::EHOSTUNREACH])
    }

    /// Whether RTM_GETROUTE has found no way to an address: no route, or one of the types unreachable,
    /// blackhole (EINVAL), prohibit (EACCES) or throw (EAGAIN).
    pub fn is_no_route(&self) -> bool {
        let of_types = [Errno::EINVAL, Errno::EACCES, Errno::EAGAIN];
        self.is_unreachable() || self.is_one_of(&of_types)
    }

    /// Whether the system's reason was `errno`; for a list of errors, in every one.
    pub fn is_errno(&self, errno: Errno) -> bool {
        self.is_one_of(&[errno])
    }

    /// Whether the system's reason was `errno`; for a list of errors, in any one.
    pub fn has_errno(&self, errno: Errno) -> bool {
        self.reasons().any(|reason| reason == Some(errno as i32))
    }

    fn is_one_of(&self, errnos: &[Errno]) -> bool {
        self.reasons().all(|reason| errnos.iter().any(|errno| reason == Some(*errno as i32)))
    }

    fn reasons(&self) -> impl Iterator<Item = Option<i32>> {
        let further = self.parts.iter().skip(1).map(|part| part.errno);
        std::iter::once(self.errno).chain(further)
    }

    /// Each of the errors that this one reports together, without repetitions; the error itself if
    /// it is a single one.
    pub fn into_parts(self) -> Vec<Error> {
        let mut parts = self.split();
        parts.dedup();
        parts
    }

    fn split(mut self) -> Vec<Error> {
        match std::mem::take(&mut self.parts) {
            none if none.is_empty() => vec![self],
            parts => parts,
        }
    }
}

/// Code 7, with the mistake's sentence.
impl From<Mistake> for Error {
    fn from(mistake: Mistake) -> Error {
        let mut error = Error::new(Code::INVALID_CONFIG, mistake.to_string());
        error.mistake = Some(mistake);
        error
    }
}

impl Deref for Error {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.0
    }
}

impl DerefMut for Error {
    fn deref_mut(&mut self) -> &mut Report {
        &mut self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.msg, &self.details()))
    }
}

impl std::error::Error for Error {}

/// Both sentences, or the one that is not empty.
fn joined(one: &str, other: &str) -> String {
    let semicolon = if one.is_empty() || other.is_empty() { "" } else { "; " };
    [one, semicolon, other].concat()
}

/// The system's text for an errno, spelled as in Go's libraries: lower case, no number. go-cni
/// ignores a DEL failure that contains "no such file or directory" or "not found", so the spelling
/// matters.
pub fn errno_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    let text = text.rsplit_once(" (os error").map_or(text.as_str(), |(text, _)| text);
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// Prints a warning on stderr. The output is best effort and works on any thread: `eprintln!`
/// panics when stderr is closed and waits for main's lock on the stream.
pub fn warn(text: impl fmt::Display) {
    let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let _ = stderr.and_then(|mut stderr| stderr.write_all(format!("{text}\n").as_bytes())); // see above
}

/// The failures of a teardown, or the differences that a CHECK finds: both go on as far as they can
/// and report everything at the end.
#[derive(Debug, Default)]
pub struct ErrorList(Vec<Error>);

impl ErrorList {
    /// The errors among the results, as [`ErrorList::finish`] reports them.
    pub fn of(results: impl IntoIterator<Item = Result<()>>) -> Result<()> {
        ErrorList(results.into_iter().filter_map(Result::err).collect()).finish()
    }

    /// Records a failure, if it is one.
    pub fn push<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    /// Records a failure.
    pub fn add(&mut self, error: Error) {
        self.0.push(error);
    }

    /// Success, or one error that reports everything: the first error's code and message, the
    /// others in the details. Identical consecutive errors appear once. The result keeps the errno
    /// of each: a permanent first error does not hide a temporary one behind it, and "not found"
    /// for one object does not stand for the others.
    pub fn finish(self) -> Result<()> {
        let mut all = self.0;
        if all.len() < 2 {
            return all.pop().map_or(Ok(()), Err);
        }
        let mut together = all[0].clone();
        for pair in all.windows(2) {
            let [before, next] = [&pair[0], &pair[1]].map(Error::to_string);
            if next != before {
                together = together.with_details(format_args!("also: {next}"));
            }
        }
        together.parts = all.into_iter().flat_map(Error::split).collect();
        Err(together)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_texts_are_spelled_as_in_go() {
        assert_eq!(errno_text(Errno::ENOENT as i32), "no such file or directory");
        assert_eq!(errno_text(Errno::EOPNOTSUPP as i32), "operation not supported");
        assert_eq!(errno_text(Errno::EPERM as i32), "operation not permitted");
    }

    #[test]
    fn context_leads_and_details_follow() {
        let error = Error::kernel("create link \"a\"", Errno::EEXIST)
            .context("create bridge")
            .with_details("one")
            .with_details("two");
        assert_eq!(error.to_string(), "create bridge: create link \"a\": file exists; one; two");
        assert!(error.is_exists() && !error.is_not_found());
    }

    #[test]
    fn a_mistake_keeps_its_place_in_other_words() {
        let error = Error::out_of_range("vlan", 5000, 0..=4094)
            .with_details("try 5")
            .saying("invalid VLAN ID 5000");
        assert_eq!(
            error.to_string(),
            "invalid VLAN ID 5000; vlan: 5000 is out of range, expected 0 to 4094; try 5"
        );
        assert_eq!(
            (error.mistake.as_ref().unwrap().path.as_str(), error.advice.as_str()),
            ("vlan", "try 5")
        );
        assert_eq!(Error::config("vlan", "odd").with_details("try 5").advice, "try 5");
        assert_eq!(Error::check("gone").saying("not found").to_string(), "not found; gone");
    }

    #[test]
    fn words_of_the_reference_lead_the_system_s_reason() {
        let error = Error::kernel("create link \"a\"", Errno::EEXIST)
            .with_details("on \"b\"")
            .worded("failed to create vlan");
        assert_eq!(error.to_string(), "failed to create vlan: file exists; on \"b\"");
        assert!(error.is_exists());
        assert_eq!(
            Error::check("gone").worded("failed to look").to_string(),
            "failed to look: gone"
        );
    }

    #[test]
    fn an_error_list_reports_everything() {
        let mut list = ErrorList::default();
        assert_eq!(list.push(Ok(1)), Some(1));
        list.push::<()>(Err(Error::new(Code::IO, "first")));
        list.push::<()>(Err(Error::new(Code::KERNEL, "second")));
        list.push::<()>(Err(Error::new(Code::KERNEL, "second")));
        let error = list.finish().unwrap_err();
        assert_eq!((error.code, error.to_string()), (Code::IO, "first; also: second".to_owned()));
        assert!(ErrorList::default().finish().is_ok());

        let mut nested = ErrorList::default();
        nested.push::<()>(Err(error));
        nested.push::<()>(Err(Error::new(Code::KERNEL, "third")));
        let parts = nested.finish().unwrap_err().into_parts();
        let texts: Vec<String> = parts.iter().map(Error::to_string).collect();
        assert_eq!(texts, ["first", "second", "third"]);
        let both = ErrorList::of(["a", "b"].map(|text| Err(Error::check(text)))).unwrap_err();
        let changed = both.context("look").with_details("see x").into_parts();
        let texts: Vec<String> = changed.iter().map(Error::to_string).collect();
        assert_eq!(texts, ["look: a; see x", "look: b; see x"], "changes reach each part");
        assert_eq!(Error::new(Code::IO, "x").into_parts(), [Error::new(Code::IO, "x")]);
    }

    #[test]
    fn an_error_list_decides_by_the_reason_of_each_error() {
        let of = |errnos: &[Errno]| {
            let mut list = ErrorList::default();
            for errno in errnos {
                list.push::<()>(Err(Error::kernel("delete", *errno)));
            }
            list.finish().unwrap_err()
        };
        let nested = |first: Errno, rest: &[Errno]| {
            let mut list = ErrorList::default();
            list.push::<()>(Err(of(&[first])));
            list.push::<()>(Err(of(rest)));
            list.finish().unwrap_err()
        };
        assert!(
            of(&[Errno::EINVAL, Errno::EMFILE]).may_pass()
                && !of(&[Errno::EINVAL, Errno::EPERM]).may_pass()
        );
        assert!(nested(Errno::EINVAL, &[Errno::EPERM, Errno::ENOMEM]).may_pass());
        assert!(of(&[Errno::ENOENT, Errno::ENODEV]).is_not_found());
        assert!(!of(&[Errno::ENOENT, Errno::EPERM]).is_not_found());
        assert!(!nested(Errno::ENOENT, &[Errno::ENOENT, Errno::EIO]).is_not_found());
        let mixed = of(&[Errno::EEXIST, Errno::EPERM]);
        assert!(
            mixed.has_errno(Errno::EEXIST) && !mixed.is_exists() && mixed.has_errno(Errno::EPERM)
        );
    }
}
