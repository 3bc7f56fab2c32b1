//! A main plugin and one that is chained after it, as a runtime runs them.

use serde_json::{Value, json};

use super::attachment::{Attachment, ips, with};
use super::netns::{Container, Lab};

/// A container on a network, and what is chained after the network's main plugin. It derefs to the attachment of the chained plugin.
pub struct Chain<'a> {
    pub container: Container,
    /// What the main plugin answered.
    pub result: Value,
    pub main: Attachment<'a>,
    chained: Attachment<'a>,
}

impl Lab {
    /// ADD of the main plugin to a new container. The chained plugin, which gets the network's name and version and the result, is up to the case.
    #[track_caller]
    pub fn chain(&self, main: &Value, chained: &Value) -> Chain<'_> {
        let container = self.container();
        let main = self.attach(&container, main);
        let result = main.add();
        let derived = json!({"name": main.conf["name"], "cniVersion": main.conf["cniVersion"], "prevResult": result});
        let chained = self.attach(&container, &with(chained, derived));
        Chain { container, result, main, chained }
    }
}

impl<'a> Chain<'a> {
    /// The addresses of the container.
    pub fn ips(&self) -> Vec<String> {
        ips(&self.result)
    }

    /// The chained plugin's attachment as a runtime knows it that has lost all but the network's configuration.
    pub fn bare(&self) -> Attachment<'a> {
        self.chained.clone().netns(None).conf(json!({"prevResult": null, "runtimeConfig": null}))
    }

    /// DEL of both, in the runtime's order.
    #[track_caller]
    pub fn del_all(&self) {
        self.chained.del();
        self.main.del();
    }
}

impl<'a> std::ops::Deref for Chain<'a> {
    type Target = Attachment<'a>;
    fn deref(&self) -> &Attachment<'a> {
        &self.chained
    }
}
