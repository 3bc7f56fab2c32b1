//! The daemon's command line: the reference's flags, in the syntax of Go's flag package.

use std::path::PathBuf;
use std::time::Duration;

use crate::plugins::ipam::dhcp::wire::DEFAULT_SOCKET;

/// The daemon's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    /// The file for its process id; none if empty.
    pub pidfile: PathBuf,
    /// A prefix for the socket's path and for every namespace path.
    pub hostprefix: String,
    /// The path of its socket.
    pub socketpath: PathBuf,
    /// Whether to ask servers to broadcast their answers.
    pub broadcast: bool,
    /// How long to wait for a server's first answer.
    pub timeout: Duration,
    /// The longest wait for an answer before a retransmission.
    pub resendmax: Duration,
    /// How long to try to get a lease, from when it is requested. The reference's default, 208 s,
    /// is longer than kubelet waits for an ADD.
    pub resendtimeout: Duration,
}

impl Default for Flags {
    fn default() -> Flags {
        Flags {
            pidfile: PathBuf::new(),
            hostprefix: String::new(),
            socketpath: PathBuf::from(DEFAULT_SOCKET),
            broadcast: false,
            timeout: Duration::from_secs(10),
            resendmax: Duration::from_secs(62),
            resendtimeout: Duration::from_secs(50),
        }
    }
}

/// Every flag, with the kind of its value and its purpose.
pub const FLAGS: [(&str, &str, &str); 7] = [
    ("broadcast", "", "ask servers to broadcast their answers"),
    ("hostprefix", "string", "prefix of the socket's path and of namespaces' paths"),
    ("pidfile", "string", "file for the process id, an absolute path"),
    ("resendmax", "duration", "longest wait for an answer before asking again (default 1m2s)"),
    ("resendtimeout", "duration", "how long to try to get a lease (default 50s)"),
    ("socketpath", "string", "where to listen (default \"/run/cni/dhcp.sock\")"),
    ("timeout", "duration", "first wait for an answer (default 10s)"),
];

/// Why the daemon does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// `-h`: not an error.
    Help,
    /// The command line is invalid, in these words.
    Mistake(String),
}

/// The longest search for a lease: an ADD waits for it.
const LONGEST_SEARCH: Duration = Duration::from_secs(30 * 60);
/// The shortest search: with 0, a client would give up before its first message.
const SHORTEST_SEARCH: Duration = Duration::from_millis(1);

impl Flags {
    /// Parses `-x v`, `--x v`, `-x=v` and `--x=v`; a boolean flag may stand alone. As in Go,
    /// arguments after `--` or after the first word that is not a flag are ignored.
    pub fn parse(args: &[String]) -> Result<Flags, Refused> {
        let mistake = |text: String| Err(Refused::Mistake(text));
        let mut flags = Flags::default();
        let mut args = args.iter();
        while let Some(arg) = args.next()
            && let Some(word) = arg.strip_prefix("--").or(arg.strip_prefix('-'))
            && !word.is_empty()
        {
            let (name, given) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            if name.is_empty() || name.starts_with('-') {
                return mistake(format!("bad flag syntax: {arg}"));
            }
            if ["h", "help"].contains(&name) {
                return Err(Refused::Help);
            }
            let Some((_, kind, _)) = FLAGS.iter().find(|known| known.0 == name) else {
                return mistake(format!("flag provided but not defined: -{name}"));
            };
            let next = if kind.is_empty() { Some("true") } else { None };
            let Some(value) = given.or(next).or_else(|| args.next().map(String::as_str)) else {
                return mistake(format!("flag needs an argument: -{name}"));
            };
            if let Err(why) = flags.set(name, value) {
                return mistake(format!("invalid value {value:?} for flag -{name}: {why}"));
            }
        }
        Ok(flags)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        let time = || duration(value).ok_or("expected a duration such as 10s or 3m28s");
        match name {
            "broadcast" => {
                // as in Go's strconv.ParseBool
                self.broadcast = match value {
                    "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                    "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                    _ => return Err("expected true or false"),
                }
            }
            "hostprefix" => value.clone_into(&mut self.hostprefix),
            "pidfile" => self.pidfile = PathBuf::from(value),
            "socketpath" => self.socketpath = PathBuf::from(value),
            "resendtimeout" => {
                let time = time()?;
                if time > LONGEST_SEARCH {
                    return Err("expected a duration of at most 30m");
                }
                self.resendtimeout = time.max(SHORTEST_SEARCH);
            }
            "timeout" => self.timeout = time()?,
            _ => self.resendmax = time()?,
        }
        Ok(())
    }
}

/// The usage text, printed if the command line is invalid.
pub fn usage() -> String {
    let mut text = "Usage of dhcp daemon:\n".to_owned();
    for (name, kind, about) in FLAGS {
        let blank = if kind.is_empty() { "" } else { " " };
        text.push_str(&format!("  -{name}{blank}{kind}\n    \t{about}\n"));
    }
    text
}

/// The units of durations, in seconds.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// Parses a duration like Go's `time.ParseDuration`, without negative ones: `1h2m3.5s`, `300ms`,
/// `0`.
fn duration(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let (number, more) = rest.split_at(rest.find(|c| !is_of_number(c))?);
        let (unit, more) = more.split_at(more.find(is_of_number).unwrap_or(more.len()));
        let (_, factor) = UNITS.iter().find(|known| known.0 == unit)?;
        seconds += number.parse::<f64>().ok()? * factor;
        rest = more;
    }
    let time = Duration::try_from_secs_f64(seconds).ok()?;
    // Go's durations are nanoseconds in 63 bits.
    (!text.is_empty() && time.as_nanos() <= i64::MAX as u128).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, Refused> {
        Flags::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_read_in_every_way_that_go_has() {
        let expected = Flags {
            pidfile: PathBuf::from("/p"),
            hostprefix: "/host".to_owned(),
            socketpath: PathBuf::from("/s"),
            broadcast: true,
            timeout: Duration::from_secs(2),
            resendmax: Duration::from_secs(62),
            resendtimeout: Duration::from_millis(62_500),
        };
        let line = "-pidfile /p --hostprefix /host -socketpath=/s --broadcast -timeout=2s --resendtimeout 1m2.5s x -y";
        assert_eq!(parse(line).unwrap(), expected);
        assert_eq!(parse("").unwrap(), Flags::default());
        assert_eq!(parse("-broadcast=true -broadcast=F -- -x").unwrap(), Flags::default());
    }

    #[test]
    fn mistakes_are_told_in_go_s_words() {
        let cases = [
            ("-x", "flag provided but not defined: -x"),
            ("-timeout", "flag needs an argument: -timeout"),
            ("---timeout 1s", "bad flag syntax: ---timeout"),
            ("-=1", "bad flag syntax: -=1"),
            ("-broadcast=2", "invalid value \"2\" for flag -broadcast: expected true or false"),
            (
                "-timeout 10",
                "invalid value \"10\" for flag -timeout: expected a duration such as 10s or 3m28s",
            ),
            (
                "-resendtimeout 30m1s",
                "invalid value \"30m1s\" for flag -resendtimeout: expected a duration of at most 30m",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line), Err(Refused::Mistake(expected.to_owned())), "{line}");
        }
        assert_eq!(parse("-timeout 1s --help"), Err(Refused::Help));
    }

    #[test]
    fn durations_are_go_s() {
        let cases = [
            ("0", 0),
            ("10s", 10_000),
            ("1m2s", 62_000),
            ("3m28s", 208_000),
            ("1.5h", 5_400_000),
            ("+7ms", 7),
        ];
        for (text, millis) in cases {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "s",
            "1",
            "-1s",
            "1x",
            "1s2",
            ".s",
            "1..s",
            "99999999999999999999h",
            "9300000000s",
            "+",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
