//! The short run: the seeds of a target, then random mutations of them for some seconds. It needs
//! nothing but cargo, and every run has the same inputs in the same order.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest time for one input.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a slow input is repeated, in case the machine was busy.
const CHANCES: usize = 5;
/// The longest input that mutations produce.
const LONGEST: usize = 64 * 1024;

/// Runs a target and returns the number of inputs. The current input is in the file `last`, so that
/// it is still there after a crash.
pub fn run(target: fn(&[u8]), name: &str, seconds: u64, seeds: &[Vec<u8>], words: &[Vec<u8>], last: &Path) -> u64 {
    let file = File::create(last).expect("the file of the input can be made");
    let mut inputs = 0;
    let mut try_out = |input: &[u8]| {
        file.write_all_at(input, 0).and_then(|()| file.set_len(input.len() as u64)).expect("it can be written");
        inputs += 1;
        require_quick(target, input);
    };
    try_out(&[]);
    seeds.iter().for_each(|seed| try_out(seed));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut chance = Chance::of(name);
    while Instant::now() < end {
        try_out(&chance.mutation(seeds, words));
    }
    fs::remove_file(last).expect("it is there");
    inputs
}

fn require_quick(target: fn(&[u8]), input: &[u8]) {
    let times = (0..CHANCES).map(|_| {
        let begin = Instant::now();
        target(input);
        begin.elapsed()
    });
    let shortest =
        times.scan(false, |is_quick, time| (!*is_quick).then(|| (*is_quick = time < PATIENCE, time).1)).min();
    assert!(shortest.is_some_and(|time| time < PATIENCE), "an input took {shortest:?}, at the shortest");
}

/// The contents of the files in a directory, sorted by name.
pub fn files(dir: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut paths = fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    paths.iter().map(fs::read).collect()
}

/// The words of a libFuzzer dictionary: a quoted one on each line, with bytes as `\xAB`.
pub fn words(dictionary: &str) -> Vec<Vec<u8>> {
    let quoted = dictionary.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix('"'));
    quoted.map(unescaped).collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (vec![], text.as_bytes());
    while let [first, more @ ..] = rest {
        let escaped = match more {
            [b'x', high, low, ..] if *first == b'\\' => {
                let digits = [*high, *low].map(char::from).map(|digit| digit.to_digit(16).unwrap_or_default() as u8);
                Some((digits[0] << 4 | digits[1], 3))
            }
            [letter, ..] if *first == b'\\' => Some((*letter, 1)),
            _ => None,
        };
        let (byte, length) = escaped.unwrap_or((*first, 0));
        bytes.push(byte);
        rest = &more[length..];
    }
    bytes
}

/// Random numbers that are the same in every run: xorshift64*, seeded with a name.
struct Chance(u64);

impl Chance {
    fn of(name: &str) -> Chance {
        // FNV-1a, which is never 0 for these names.
        Chance(
            name.bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)),
        )
    }

    fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit.max(1) as u64) as usize
    }

    fn one<'a>(&mut self, list: &'a [Vec<u8>]) -> &'a [u8] {
        list.get(self.below(list.len())).map(Vec::as_slice).unwrap_or_default()
    }

    /// A seed with one to eight mutations.
    fn mutation(&mut self, seeds: &[Vec<u8>], words: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.one(seeds).to_vec();
        for _ in 0..1 + self.below(8) {
            self.change(&mut input, seeds, words);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[Vec<u8>]) {
        let (at, length) = (self.below(input.len() + 1), 1 + self.below(16));
        let end = (at + length).min(input.len());
        match self.below(9) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => drop(input.splice(at..at, vec![self.number() as u8; length])),
            3 => drop(input.splice(at..at, self.one(words).to_vec())),
            4 => {
                // Replace a word with another.
                let word = self.one(words);
                let is_end = |byte: &u8| b",:]}\" \n".contains(byte);
                let end = input[at..].iter().position(is_end).map_or(end, |length| at + length);
                drop(input.splice(at..end, word.to_vec()));
            }
            5 => {
                let other = self.one(seeds);
                let (from, to) = (self.below(other.len() + 1), self.below(other.len() + 1));
                drop(input.splice(at..end, other[from.min(to)..from.max(to)].to_vec()));
            }
            6 => {
                let copy = input[at..end].to_vec();
                let times = 1 + self.below(40);
                drop(input.splice(at..at, copy.repeat(times)));
            }
            7 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (length % 8)),
            _ => {
                let extremes = [0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'"', b'{', b'['];
                let byte = extremes[self.below(extremes.len())];
                input.iter_mut().skip(at).take(if length > 12 { 4 } else { 1 }).for_each(|found| *found = byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_libfuzzer_reads_them() {
        let dictionary = "# a comment\n\"ab\"\n  \"\\x0a\\\"\\\\\"\nname=\"not so\"\n";
        assert_eq!(words(dictionary), [b"ab".to_vec(), b"\n\"\\".to_vec()]);
    }

    #[test]
    fn chance_is_the_same_each_time_and_another_for_another_target() {
        let inputs = |name| {
            let (mut chance, seeds) = (Chance::of(name), [b"{\"a\":1}".to_vec()]);
            (0..100).map(|_| chance.mutation(&seeds, &[])).collect::<Vec<_>>()
        };
        assert_eq!(inputs("a"), inputs("a"));
        assert_ne!(inputs("a"), inputs("b"));
    }

    #[test]
    #[should_panic(expected = "an input took")]
    fn who_never_comes_to_an_end_is_found() {
        require_quick(|_| std::thread::sleep(PATIENCE), b"");
    }
}
