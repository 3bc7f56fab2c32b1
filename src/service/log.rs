//! A daemon's log: lines of `key=value`.

use std::fmt;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;

use crate::error::warn;

/// Writes the log to stderr.
pub struct Log {
    /// Whether to write timestamps, because the reader adds none.
    timestamps: bool,
}

impl Log {
    /// Creates a log. systemd's journal, which JOURNAL_STREAM identifies by device and inode, adds
    /// its own timestamps.
    pub fn new(variable: impl Fn(&str) -> String) -> Log {
        let stream = fstat(io::stderr()).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
        Log { timestamps: stream.map_or(true, |stream| stream != variable("JOURNAL_STREAM")) }
    }

    /// Writes a line. If the reader has stopped, the line is lost: the daemon does not block.
    pub fn line(&self, text: impl fmt::Display) {
        if self.timestamps {
            warn_unless_blocked(format_args!("{} {text}", timestamp(SystemTime::now())))
        } else {
            warn_unless_blocked(text)
        }
    }

    /// Writes a line about one of the daemon's objects, such as `lease=NAME`.
    pub fn about(&self, kind: &str, name: &str, text: impl fmt::Display) {
        self.line(format_args!("{kind}={} {text}", name.escape_debug()));
    }
}

/// Prints a line on stderr. If the reader has stopped, the line is lost.
pub fn warn_unless_blocked(text: impl fmt::Display) {
    if is_writable() {
        warn(text);
    }
}

/// Whether a write to stderr would not block.
fn is_writable() -> bool {
    let stderr = io::stderr();
    let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut ready, PollTimeout::ZERO) == Ok(1)
}

/// Formats a time as RFC 3339, in UTC.
pub fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (year, month, day) = date((seconds / 86400) as u32);
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date `days` after 1970-01-01. Years begin in March, so that the leap day is their last.
fn date(days: u32) -> (u32, u32, u32) {
    let days = days + 719_468; // since 0000-03-01
    let era = days / 146_097;
    let day = days % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let year = era * 400 + year;
    let day = day - (153 * month + 2) / 5 + 1;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_rfc_3339_has_them() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_341_600, "2026-11-22T10:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
