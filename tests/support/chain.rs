//! A main plugin and a plugin chained after it, run as a runtime runs them.

use serde_json::{Value, json};

use super::attachment::{Attachment, ips, with};
use super::netns::{Container, Lab};

/// An interface and the plugin chained after the one that created it. Derefs to the attachment of
/// the chained plugin.
pub struct Chained<'a> {
    pub main: Attachment<'a>,
    /// The result of the main plugin's ADD.
    pub result: Value,
    chained: Attachment<'a>,
}

/// As `Chained`, with a container of its own.
pub struct Chain<'a> {
    pub container: Container,
    interface: Chained<'a>,
}

impl Lab {
    /// Runs ADD of the main plugin in a new container. The chained plugin gets the network's name
    /// and version and the result; the case runs it.
    #[track_caller]
    pub fn chain(&self, main: &Value, chained: &Value) -> Chain<'_> {
        let container = self.container();
        let interface = self.chain_in(&container, "eth0", main, chained);
        Chain { container, interface }
    }

    /// As `chain`, with ADD of the chained plugin done.
    #[track_caller]
    pub fn chain_added(&self, main: &Value, chained: &Value) -> Chain<'_> {
        let chain = self.chain(main, chained);
        chain.add();
        chain
    }

    /// As `chain`, in an existing container.
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

    /// Changes the configuration of the chained plugin, including the keys that the runtime adds.
    pub fn changed(self, changes: Value) -> Chained<'a> {
        Chained { chained: self.chained.conf(changes), ..self }
    }

    /// One more plugin chained after these, with the same prevResult.
    pub fn also(&self, conf: &Value) -> Attachment<'a> {
        let mut attachment = self.chained.clone();
        attachment.conf = of_network(&self.main.conf, conf, &self.result);
        attachment
    }

    /// The chained plugin's attachment as seen by a runtime that has lost everything but the
    /// network configuration.
    pub fn bare(&self) -> Attachment<'a> {
        self.chained.clone().netns(None).conf(json!({"prevResult": null, "runtimeConfig": null}))
    }

    /// DEL of both, in the runtime's order.
    #[track_caller]
    pub fn del_all(&self) {
        self.chained.del();
        self.main.del();
    }

    /// CHECK of what ADD made, and DEL of both.
    #[track_caller]
    pub fn check_and_del_all(&self, result: &Value) {
        self.chained.check(result).ok();
        self.del_all();
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
