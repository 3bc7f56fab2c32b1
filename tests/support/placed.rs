//! A new container on a network, before and after its ADD.

use serde_json::Value;

use super::attachment::Attachment;
use super::netns::{Container, Lab};
use super::snapshot::Watch;

impl Lab {
    /// A new container, and its attachment before ADD.
    pub fn place(&self, conf: &Value) -> (Container, Attachment<'_>) {
        let container = self.container();
        let attachment = self.attach(&container, conf);
        (container, attachment)
    }

    /// As `place`, after ADD, with its result.
    #[track_caller]
    pub fn added(&self, conf: &Value) -> (Container, Attachment<'_>, Value) {
        let (container, attachment) = self.place(conf);
        let result = attachment.add();
        (container, attachment, result)
    }

    /// As `place`, with what host and container have before ADD.
    pub fn watched(&self, conf: &Value) -> (Container, Attachment<'_>, Watch<'_>) {
        let (container, attachment) = self.place(conf);
        let before = Watch::start(self, &[&container]);
        (container, attachment, before)
    }
}

impl Attachment<'_> {
    /// CHECK succeeds, and so does DEL.
    #[track_caller]
    pub fn check_and_del(&self, result: &Value) {
        assert_eq!(self.check(result).ok(), Value::Null);
        self.del();
    }

    /// As `check_and_del`; everything is as before ADD.
    #[track_caller]
    pub fn assert_ends(&self, result: &Value, before: &Watch<'_>) {
        self.check_and_del(result);
        before.assert_unchanged("ADD");
    }
}
