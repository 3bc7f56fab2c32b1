//! Repair of one attachment: each plugin of its network makes again what is missing, in the order of
//! ADD.
//!
//! The protocol has no such operation, so plugins that are other programs are left out.

use std::rc::Rc;

use super::chain::{Program, Runtime, reported_by};
use super::derive;
use super::list::NetworkList;
use super::lock::Held;
use super::parameters::Parameters;
use crate::cni::env::Command;
use crate::cni::json::Value;
use crate::cni::result::Document;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Entry};
use crate::repair::Repairs;
use crate::runner::Execution;

impl Runtime<'_> {
    /// Repairs an attachment by the result of its record. A plugin that fails does not keep the
    /// later ones from repairing. A look waits for no other operation.
    pub fn repair(&mut self, list: &NetworkList, at: &Parameters, repairs: &Repairs) -> Result<()> {
        self.handles.begin_next();
        let held = self.hold_to_repair(at, repairs)?;
        let result = self.cached_result(list, at)?;
        let netns = self.require_interface(at, result.as_ref())?;
        let attachment = Attachment::new(at.key.clone(), at.netns.clone(), Some(netns));
        let subject = Subject { list, at, attachment: &attachment, result: result.as_ref() };
        self.within(&held.env).repair_all(&subject, repairs)
    }

    fn hold_to_repair(&self, at: &Parameters, repairs: &Repairs) -> Result<Held> {
        if repairs.is_look() { Ok(Held::nothing(self.env)) } else { self.hold(Some(at)) }
    }

    /// Requires the interface of the record in the namespace: without it the path leads to another
    /// container by now, or to the host itself, or the attachment is beyond repair. Returns the
    /// namespace.
    fn require_interface(&self, at: &Parameters, result: Option<&Document>) -> Result<Rc<Netns>> {
        let netns = self.handles.netns(&at.netns, Netns::open_if_there)?;
        let netns = netns.ok_or_else(|| no_interface(at))?;
        if netns.is_same_as(&Netns::current()?)? {
            return Err(is_host_s(at));
        }
        let link = netns.netlink()?.find_link(at.key.ifname.as_str())?;
        let mac = link.ok_or_else(|| no_interface(at))?.mac().to_string();
        match result.and_then(|result| recorded_mac(result, at)) {
            Some(recorded) if !recorded.eq_ignore_ascii_case(&mac) => {
                Err(of_another(at, &recorded))
            }
            _ => Ok(netns),
        }
    }

    fn repair_all(&mut self, subject: &Subject<'_>, repairs: &Repairs) -> Result<()> {
        let Subject { list, at, result, .. } = *subject;
        let mut errors = ErrorList::default();
        for plugin in &list.plugins {
            let config = derive::for_attachment(list, plugin, result, &at.capability_args);
            let repaired = match self.find(&plugin.kind) {
                Ok(Program::Own(entry)) => self.repair_by(entry, config, subject, repairs),
                Ok(Program::File(_)) => {
                    repairs.skip(&plugin.kind);
                    Ok(())
                }
                Err(error) => Err(error),
            };
            errors.push(repaired.map_err(|error| reported_by(plugin, error)));
        }
        errors.finish()
    }

    fn repair_by(
        &self,
        entry: &'static Entry,
        config: Vec<u8>,
        subject: &Subject<'_>,
        repairs: &Repairs,
    ) -> Result<()> {
        let env = self.environment(Command::Check, Some(subject.at));
        let execution =
            Execution { entry, plugins: self.plugins, env: &env, handles: &self.handles };
        execution.repair(config, subject.attachment, repairs)
    }
}

/// An attachment with its record.
struct Subject<'a> {
    list: &'a NetworkList,
    at: &'a Parameters,
    attachment: &'a Attachment,
    result: Option<&'a Document>,
}

/// The hardware address of the container's interface in the result.
fn recorded_mac(result: &Document, at: &Parameters) -> Option<String> {
    let result = result.to_value();
    let text =
        |interface: &Value, key| interface.get(key).and_then(Value::as_str).map(str::to_owned);
    let is_its = |interface: &&Value| {
        text(interface, "name").as_deref() == Some(at.key.ifname.as_str())
            && text(interface, "sandbox").is_some_and(|sandbox| !sandbox.is_empty())
    };
    let interface = result.get("interfaces")?.items().iter().find(is_its)?;
    text(interface, "mac").filter(|mac| !mac.is_empty())
}

fn of_another(at: &Parameters, recorded: &str) -> Error {
    let ifname = at.key.ifname.as_str();
    Error::check(format!("interface {ifname:?} in {:?} is another", at.netns)).with_details(
        format_args!(
            "the record has hardware address {recorded}: detach the container, and attach it again"
        ),
    )
}

fn is_host_s(at: &Parameters) -> Error {
    Error::new(Code::INVALID_NETNS, format!("{:?} is the host's own namespace", at.netns))
        .with_details("the container is gone: `cni-multi net del` detaches it")
}

fn no_interface(at: &Parameters) -> Error {
    let ifname = at.key.ifname.as_str();
    Error::check(format!("interface {ifname:?} is not in {:?}", at.netns))
        .with_details("no repair makes it again: detach the container, and attach it again")
}
