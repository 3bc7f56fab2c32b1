//! `net check`: verifies an attachment, and reports each difference on a line of its own.

use super::operator::Operator;
use super::{network, subject};
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::error::Result;
use crate::runtime::check::Until;
use crate::terminal::table::{self, Members, put, put_text};
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams};

/// Returns the exit status: 1 if anything differs.
pub fn run(operator: &Operator<'_>, io: &mut Streams<'_>) -> Result<u8> {
    let list = network::of(operator)?;
    let mut runtime = operator.runtime(&mut *io.stderr)?;
    let subject = subject::find(operator, NetworkName::parse(&list.name)?, &list)?;
    runtime.cache = subject.cache;
    let checked = runtime.check(&list, &subject.at, Until::End);
    let checked = checked.map_err(|error| runtime.explain(&list, error))?;
    let checked = runtime.explain_each(checked);
    let differences = checked.differences();
    if operator.wants_json() {
        let mut found = vec![];
        for difference in &differences {
            let mut members = Members::new();
            put_text(&mut members, "plugin", &difference.plugin);
            put(&mut members, "code", Value::number(difference.error.code.0));
            put_text(&mut members, "msg", &difference.error.msg);
            put_text(&mut members, "details", &difference.error.details());
            found.push(Value::Object(members));
        }
        terminal::print(io.stdout, &table::json(&Value::Array(found)))?;
    }
    if !checked.is_recorded {
        subject::tell_not_attached(operator, &subject.at, io.stderr)?;
    }
    let lines: Vec<String> = differences
        .iter()
        .map(|it| format!("{}: {}\n", visible(&it.plugin), visible(&it.error.to_string())))
        .collect();
    let Err(error) = checked.finish() else { return Ok(0) };
    if operator.wants_json() {
        operator.complain(&error, io.stderr);
    } else {
        let _ = io.stderr.write_all(lines.concat().as_bytes()); // the status says it too
    }
    Ok(1)
}
