//! A main plugin and one that is chained after it, as a runtime runs them.

use serde_json::{Value, json};

use super::attachment::{Attachment, ips, with};
use super::netns::{Container, Lab};

/// An interface, and what is chained after the plugin that made it. It derefs to the attachment of
/// the chained plugin.
pub struct Chained<'a> {
    pub main: Attachment<'a>,
    /// What the main plugin answered.
    pub result: Value,
    chained: Attachment<'a>,
}

/// The same with a container of its own.
pub struct Chain<'a> {
    pub container: Container,
    interface: Chained<'a>,
}

impl Lab {
    /// ADD of the main plugin to a new container. The chained plugin, which gets the network's name
    /// and version and the result, is up to the case.
    #[track_caller]
    pub fn chain(&self, main: &Value, chained: &Value) -> Chain<'_> {
        let container = self.container();
        let interface = self.chain_in(&container, "eth0", main, chained);
        Chain { container, interface }
    }

    /// The same in a container that is there.
    #[track_caller]
    pub fn chain_in(
        &self,
        container: &Container,
        ifname: &str,
        main: &Value,
        chained: &Value,
    ) -> Chained<'_> {
        let main = self.attach(container, main).ifname(ifname);
        let result = main.add();
        let chained =
            self.attach(container, &of_network(&main.conf, chained, &result)).ifname(ifname);
        Chained { main, result, chained }
    }
}

/// A chained plugin's configuration as a runtime derives it.
fn of_network(main: &Value, chained: &Value, result: &Value) -> Value {
    with(
        chained,
        json!({"name": main["name"], "cniVersion": main["cniVersion"], "prevResult": result}),
    )
}

impl<'a> Chained<'a> {
    /// The addresses of the container.
    pub fn ips(&self) -> Vec<String> {
        ips(&self.result)
    }

    /// With changes to what the chained plugin gets, be it from the runtime.
    pub fn changed(self, changes: Value) -> Chained<'a> {
        Chained { chained: self.chained.conf(changes), ..self }
    }

    /// One more plugin that is chained after those, with the same result before it.
    pub fn also(&self, conf: &Value) -> Attachment<'a> {
        let mut attachment = self.chained.clone();
        attachment.conf = of_network(&self.main.conf, conf, &self.result);
        attachment
    }

    /// The chained plugin's attachment as a runtime knows it that has lost all but the network's
    /// configuration.
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

impl<'a> std::ops::Deref for Chained<'a> {
    type Target = Attachment<'a>;
    fn deref(&self) -> &Attachment<'a> {
        &self.chained
    }
}

impl<'a> std::ops::Deref for Chain<'a> {
    type Target = Chained<'a>;
    fn deref(&self) -> &Chained<'a> {
        &self.interface
    }
}
