//! `net check`: verifies an attachment, and reports each difference on a line of its own.

use super::operator::Operator;
use super::{error_text, network, subject};
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::error::Result;
use crate::plugin::Entry;
use crate::runtime::check::{Difference, Until};
use crate::terminal::table::{self, Members, put, put_text};
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams};

/// Returns the exit status: 1 if anything differs.
pub fn run(operator: &Operator<'_>, plugins: &'static [Entry], io: &mut Streams<'_>) -> Result<u8> {
    let list = network::of(operator)?;
    let mut runtime = operator.runtime(plugins, &mut *io.stderr)?;
    let subject = subject::find(operator, NetworkName::parse(&list.name)?, &list)?;
    runtime.cache = subject.cache;
    let checked = runtime.check(&list, &subject.at, Until::End);
    let checked = checked.map_err(|error| runtime.explain(&list, error))?;
    let checked = runtime.explain_each(checked);
    let differences = checked.differences();
    if operator.wants_json() {
        let found = differences.iter().map(object).collect();
        terminal::print(io.stdout, &table::json(&Value::Array(found)))?;
    }
    if !checked.is_recorded {
        subject::tell_not_attached(operator, &subject.at, io.stderr)?;
    }
    let Err(error) = checked.finish() else { return Ok(0) };
    let text = if operator.wants_json() {
        error_text(&error, true)
    } else {
        differences.iter().map(line).collect()
    };
    let _ = io.stderr.write_all(text.as_bytes()); // the status says it too
    Ok(1)
}

fn line(difference: &Difference) -> String {
    let Difference { plugin, error } = difference;
    format!("{}: {}\n", visible(plugin), visible(&error.to_string()))
}

fn object(difference: &Difference) -> Value {
    let Difference { plugin, error } = difference;
    let mut members = Members::new();
    put_text(&mut members, "plugin", plugin);
    put(&mut members, "code", Value::number(error.code.0));
    put_text(&mut members, "msg", &error.msg);
    put_text(&mut members, "details", &error.details());
    Value::Object(members)
}
