//! The trace that a call belongs to: the value of the header `traceparent`
//! (<https://www.w3.org/TR/trace-context/>), in the variable TRACEPARENT or among CNI_ARGS.

use crate::cni::env::Environment;

const NAME: &str = "TRACEPARENT";

/// The lengths of version, trace, parent and flags, in hexadecimal digits.
const LENGTHS: [usize; 4] = [2, 32, 16, 2];

/// The trace of a call. Text that is not of the header's form is no trace.
pub fn of(env: &Environment) -> Option<String> {
    let args = env.get("CNI_ARGS");
    let pairs = args.split(';').filter_map(|pair| pair.split_once('='));
    let of_args = pairs.filter(|(name, _)| *name == NAME).map(|(_, value)| value.to_owned());
    std::iter::once(env.get(NAME)).chain(of_args).find(|text| is_valid(text))
}

fn is_valid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let is_digit = |octet| matches!(octet, b'0'..=b'9' | b'a'..=b'f');
    lengths == LENGTHS && parts.iter().all(|part| part.bytes().all(is_digit))
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
