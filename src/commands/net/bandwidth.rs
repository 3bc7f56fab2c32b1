//! Parses `--bandwidth ingress=10M,egress=5M`: bursts in bits, rates in bits per second.

use crate::cni::json::Value;

/// The largest chunk that TCP sends at once, in bits; a bucket that holds less would break up every
/// one.
const LEAST_BURST: u64 = 64 * 1024 * 8;
/// The maximum that the bandwidth plugin accepts.
const LARGEST_BURST: u64 = u32::MAX as u64 * 8 - 1;
/// The default burst is what the rate allows in a twentieth of a second.
const BURSTS_A_SECOND: u64 = 20;

/// The keys of the option and of the capability; a rate is followed by its burst.
const KEYS: [(&str, &str); 4] = [
    ("ingress", "ingressRate"),
    ("ingressBurst", "ingressBurst"),
    ("egress", "egressRate"),
    ("egressBurst", "egressBurst"),
];

/// The capability `bandwidth`. The plugin refuses a rate without a burst, so a default is added;
/// the maximum burst, which runtimes add, would let the first gigabytes pass unlimited.
pub fn limits(text: &str) -> Result<Value, String> {
    let limits = parse(text).map_err(|problem| format!("{text:?}: {problem}"))?;
    let given = KEYS.iter().zip(limits).filter(|(_, bits)| *bits > 0);
    Ok(Value::object(given.map(|((_, key), bits)| (*key, Value::number(bits)))))
}

/// The number for each of the [`KEYS`]; 0 if not given.
fn parse(text: &str) -> Result<[u64; 4], String> {
    const EXPECTED: &str = "expected ingress=RATE, egress=RATE or both separated by a comma, such as ingress=10M,egress=5M";
    let mut limits = [0; 4];
    for piece in text.split(',') {
        let (name, value) = piece.split_once('=').ok_or(EXPECTED)?;
        let Some(at) = KEYS.iter().position(|(key, _)| *key == name) else {
            return Err(format!(
                "{name:?} is not a limit, expected ingress, egress, ingressBurst or egressBurst"
            ));
        };
        if limits[at] > 0 {
            return Err(format!("{name} is given twice"));
        }
        limits[at] = bits(value)?;
    }
    for rate in [0, 2] {
        match (limits[rate], limits[rate + 1]) {
            (0, 1..) => return Err(format!("{} without {}", KEYS[rate + 1].0, KEYS[rate].0)),
            (bits @ 1.., 0) => {
                limits[rate + 1] = (bits / BURSTS_A_SECOND).clamp(LEAST_BURST, LARGEST_BURST);
            }
            _ => (),
        }
    }
    Ok(limits)
}

/// A whole number, with the suffix k, M or G for powers of 1000, as in the kernel's tools.
fn bits(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['k', 'M', 'G']);
    let factor = match &text[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => 0, // several suffixes
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(bits @ 1..) if !digits.starts_with('+') => Ok(bits),
        _ => Err(format!(
            "{text:?} is not a number of bits, expected a whole number above 0, optionally with k, M or G"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bandwidth(text: &str) -> String {
        limits(text).map_or_else(|problem| problem, |value| value.to_text())
    }

    #[test]
    fn limits_have_units_and_a_burst_of_their_own() {
        assert_eq!(
            bandwidth("ingress=100M,egress=5M"),
            r#"{"ingressRate":100000000,"ingressBurst":5000000,"egressRate":5000000,"egressBurst":524288}"#
        );
        assert_eq!(
            bandwidth("egress=800k,egressBurst=1000000"),
            r#"{"egressRate":800000,"egressBurst":1000000}"#
        );
        assert_eq!(
            bandwidth("ingress=9000G"),
            r#"{"ingressRate":9000000000000,"ingressBurst":34359738359}"#
        );
    }

    #[test]
    fn mistakes_name_the_value_and_what_was_expected() {
        let no_number = |text: &str| {
            format!(
                "{text:?} is not a number of bits, expected a whole number above 0, optionally with k, M or G"
            )
        };
        let expected = "expected ingress=RATE, egress=RATE or both separated by a comma, such as ingress=10M,egress=5M";
        let cases = [
            ("10M", expected.to_owned()),
            ("", expected.to_owned()),
            ("ingress=10M,", expected.to_owned()),
            (
                "in=1",
                "\"in\" is not a limit, expected ingress, egress, ingressBurst or egressBurst"
                    .to_owned(),
            ),
            ("ingress=10m", no_number("10m")),
            ("ingress=", no_number("")),
            ("ingress=M", no_number("M")),
            ("ingress=0", no_number("0")),
            ("ingress=1.5M", no_number("1.5M")),
            ("ingress=-1", no_number("-1")),
            ("ingress=+1", no_number("+1")),
            ("ingress=1kM", no_number("1kM")),
            ("ingress=99999999999G", no_number("99999999999G")),
            ("ingress=1M,ingress=2M", "ingress is given twice".to_owned()),
            ("egressBurst=1M,ingress=1M", "egressBurst without egress".to_owned()),
        ];
        for (text, problem) in cases {
            assert_eq!(bandwidth(text), format!("{text:?}: {problem}"));
        }
    }
}
