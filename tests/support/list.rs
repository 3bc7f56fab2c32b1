//! The plugins of a network, called one by one for one container, as libcni does.

use serde_json::{Value, json};

use super::attachment::{Attachment, with};
use super::call::Outcome;
use super::netns::{Container, Lab};

/// The attachments of a container by the plugins of a list.
pub struct List<'a>(pub Vec<Attachment<'a>>);

impl<'a> List<'a> {
    /// By these configurations, which get the version and the name of the first.
    pub fn of(lab: &'a Lab, container: &Container, confs: &[Value]) -> List<'a> {
        let of_network = json!({"name": confs[0]["name"], "cniVersion": "1.1.0"});
        let attach = |conf| lab.attach(container, &with(conf, of_network.clone()));
        List(confs.iter().map(attach).collect())
    }

    /// The last result, or the outcome of the first plugin that failed.
    pub fn try_add(&self) -> Result<Value, Outcome> {
        self.0.iter().try_fold(Value::Null, |result, plugin| {
            let outcome = plugin.call("ADD", Some(&result)).run();
            if outcome.status == 0 { Ok(outcome.json()) } else { Err(outcome) }
        })
    }

    #[track_caller]
    pub fn add(&self) -> Value {
        self.try_add().unwrap_or_else(|outcome| panic!("ADD failed: {outcome:?}"))
    }

    pub fn try_check(&self, result: &Value) -> Result<(), Outcome> {
        self.0.iter().try_for_each(|plugin| silent(plugin, "CHECK", result))
    }

    #[track_caller]
    pub fn check(&self, result: &Value) {
        self.try_check(result).unwrap_or_else(|outcome| panic!("CHECK failed: {outcome:?}"));
    }

    pub fn try_del(&self, result: &Value) -> Result<(), Outcome> {
        self.0.iter().rev().try_for_each(|plugin| silent(plugin, "DEL", result))
    }

    /// DEL, last plugin first. A null is no result.
    #[track_caller]
    pub fn del(&self, result: &Value) {
        self.try_del(result).unwrap_or_else(|outcome| panic!("DEL failed: {outcome:?}"));
    }
}

/// A call that has to succeed with an empty stdout.
fn silent(plugin: &Attachment<'_>, command: &str, result: &Value) -> Result<(), Outcome> {
    let outcome = plugin.call(command, Some(result)).run();
    if outcome.status == 0 && outcome.stdout.is_empty() { Ok(()) } else { Err(outcome) }
}
