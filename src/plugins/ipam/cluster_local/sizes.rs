//! `blockSize` of a configuration.

use super::block::{shortest, width};
use super::pool::BlockSize;
use crate::error::{Error, Result};
use crate::family::Family;

/// How many more bits an IPv6 address has.
const MORE_BITS: u8 = 96;

/// The prefix length of IPv4 blocks; None for `auto`, which the empty text is, too.
pub fn read(text: &str) -> Result<Option<u8>> {
    if matches!(text, "" | "auto") {
        return Ok(None);
    }
    let length = text.strip_prefix('/').and_then(|digits| digits.parse().ok());
    let is_possible = |length: &u8| (shortest(Family::V4)..=width(Family::V4)).contains(length);
    length.filter(is_possible).map(Some).ok_or_else(|| no_size(text))
}

fn no_size(text: &str) -> Error {
    Error::config("ipam.blockSize", format_args!("{text:?} is not a size of blocks"))
        .expecting("auto, or a prefix length from /8 to /32")
}

/// The size of the blocks of a family: IPv6 blocks have as many addresses as IPv4 blocks.
pub fn of(length: Option<u8>, family: Family) -> BlockSize {
    match (length, family) {
        (None, _) => BlockSize::Auto,
        (Some(length), Family::V4) => BlockSize::Length(length),
        (Some(length), Family::V6) => BlockSize::Length(length + MORE_BITS),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_auto_or_a_prefix_length() {
        assert_eq!(read("").unwrap(), None);
        assert_eq!(read("auto").unwrap(), None);
        assert_eq!(read("/26").unwrap(), Some(26));
        assert_eq!(of(Some(26), Family::V4), BlockSize::Length(26));
        assert_eq!(of(Some(26), Family::V6), BlockSize::Length(122));
        for text in ["26", "/7", "/33", "/x", "Auto", "/-1", "/999"] {
            let error = read(text).unwrap_err();
            assert_eq!(error.code.0, 7, "{text}");
        }
    }
}
