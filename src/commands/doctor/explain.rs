//! `doctor --explain CODE`: severity, meaning, cause and fix of a code.

use super::FAULTS;
use crate::commands::validate;
use crate::error::{Error, Result};

/// The lines about a code of doctor's own, or of `validate`.
pub fn explain(code: &str) -> Result<String> {
    let mut all = FAULTS.iter().chain(&validate::FAULTS);
    let Some(fault) = all.find(|fault| fault.code.eq_ignore_ascii_case(code)) else {
        let problem = format!("no finding has the code {code:?}");
        let codes = "codes are as in the findings, such as D331 or overlap; docs/findings.md and docs/validate.md list them";
        return Err(Error::config("--explain", problem).with_details(codes));
    };
    let mut text = format!("{}  {}  {}\n", fault.code, fault.severity.word(), fault.title);
    for (name, line) in [("cause", fault.cause), ("fix", fault.fix)] {
        if !line.is_empty() {
            text += &format!("{name}: {}\n", line.replace('`', ""));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_doctor_or_of_validate_is_explained() {
        let expected = "D221  error  IPv6 forwarding is off\n\
            cause: Switched off since ADD, such as by sysctl --system.\n\
            fix: Switch it on; keep it on in /etc/sysctl.d.\n";
        assert_eq!(explain("d221").unwrap(), expected);
        assert!(explain("overlap").unwrap().starts_with("overlap  warning  Two networks"));
        assert!(explain("D999").is_err());
    }
}
