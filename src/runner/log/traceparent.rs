//! The trace that a call belongs to: the value of the header `traceparent`
//! (<https://www.w3.org/TR/trace-context/>), in the variable TRACEPARENT or among CNI_ARGS.

use crate::cni::env::Environment;

const NAME: &str = "TRACEPARENT";

/// The lengths of version, trace, parent and flags, in hexadecimal digits.
const LENGTHS: [usize; 4] = [2, 32, 16, 2];

/// The trace of a call. Text that is not of the header's form is no trace.
pub fn of(env: &Environment) -> Option<String> {
    Some(env.get(NAME)).filter(|text| is_valid(text)).or_else(|| of_args(&env.get("CNI_ARGS")))
}

fn of_args(args: &str) -> Option<String> {
    let pairs = args.split(';').filter_map(|pair| pair.split_once('='));
    let mut traces = pairs.filter(|(name, value)| *name == NAME && is_valid(value));
    traces.next().map(|(_, value)| value.to_owned())
}

fn is_valid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == LENGTHS && parts.iter().all(|part| part.bytes().all(is_digit))
}

fn is_digit(octet: u8) -> bool {
    matches!(octet, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn found(variable: &str, args: &str) -> Option<String> {
        of(&Environment::default().with(NAME, variable).with("CNI_ARGS", args))
    }

    #[test]
    fn a_trace_is_found_in_the_environment_or_among_the_args() {
        let args = format!("IgnoreUnknown=1;TRACEPARENT={TRACE}");
        assert_eq!(found(TRACE, "").as_deref(), Some(TRACE));
        assert_eq!(found("", &args).as_deref(), Some(TRACE));
        assert_eq!(found("nonsense", &args).as_deref(), Some(TRACE));
    }

    #[test]
    fn text_of_another_form_is_no_trace() {
        let upper = TRACE.to_uppercase();
        let longer = format!("{TRACE}-00");
        let line = format!("{TRACE}\nPRIORITY=0");
        for text in ["", "x", &upper, &longer, &line, &TRACE[1..], &TRACE.replace('f', "g")] {
            assert_eq!(found(text, ""), None, "{text:?}");
            assert_eq!(found("", &format!("TRACEPARENT={text}")), None, "{text:?}");
        }
    }
}
