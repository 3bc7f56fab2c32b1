//! A report of each plugin call, for `--trace`: what the plugin got, what it answered, and how long
//! it took.

use std::io::Write;
use std::time::Duration;

use crate::cni::env::Environment;
use crate::cni::json::{Value, indented_text};
use crate::cni::result::INDENT;
use crate::error::Result;
use crate::terminal::visible::visible;

/// A call that has returned.
pub struct Call<'a> {
    /// The plugin's type.
    pub kind: &'a str,
    /// The program, or that the plugin is compiled in.
    pub program: &'a str,
    /// The environment, which names the operation.
    pub env: &'a Environment,
    /// The plugin's stdin.
    pub config: &'a [u8],
}

impl Call<'_> {
    /// Writes the report. A report that cannot be written is not an error of the operation.
    pub fn report(&self, answer: &Result<Vec<u8>>, took: Duration, stderr: &mut dyn Write) {
        let command = self.env.get("CNI_COMMAND");
        let answer = match answer {
            Ok(stdout) if stdout.is_empty() => "success".to_owned(),
            Ok(stdout) => format!("result: {}", readable(stdout)),
            Err(error) => format!("error {}: {}", error.code.0, visible(&error.to_string())),
        };
        let (kind, program) = (visible(self.kind), visible(self.program));
        let stdin = readable(self.config);
        let ms = took.as_secs_f64() * 1000.0;
        let report =
            format!("{command} {kind} ({program})\nstdin: {stdin}\n{answer}\ntime: {ms:.1} ms\n\n");
        let _ = stderr.write_all(report.as_bytes()); // for information only
    }
}

/// A document with indentation; any other text in one line.
fn readable(text: &[u8]) -> String {
    let Ok(value) = Value::parse(text) else { return visible(&String::from_utf8_lossy(text)) };
    let lines = indented_text(&value, INDENT);
    let lines: Vec<String> = lines.lines().map(visible).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};

    fn report(config: &str, answer: &Result<Vec<u8>>) -> String {
        let env = Environment::default().with("CNI_COMMAND", "ADD");
        let mut out = vec![];
        let call = Call { kind: "x", program: "/bin/x", env: &env, config: config.as_bytes() };
        call.report(answer, Duration::from_micros(12_345), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_report_has_input_answer_and_time() {
        let expected = "ADD x (/bin/x)\nstdin: {\n    \"a\": 1\n}\nresult: {\n    \"b\": 2\n}\ntime: 12.3 ms\n\n";
        assert_eq!(report(r#"{"a":1}"#, &Ok(br#"{"b":2}"#.to_vec())), expected);
        let error = Err(Error::new(Code::TRY_AGAIN, "busy\u{1b}[31m"));
        let expected =
            "ADD x (/bin/x)\nstdin: \\u{1b}\nerror 11: busy\\u{1b}[31m\ntime: 12.3 ms\n\n";
        assert_eq!(report("\u{1b}", &error), expected);
    }
}
