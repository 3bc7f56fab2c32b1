//! The CNI protocol between a runtime and a plugin. Pure: nothing here accesses the kernel's
//! network.

pub mod addr;
pub mod answer;
pub mod args;
pub mod attachment;
pub mod conf;
mod conversation;
pub mod decode;
pub mod delegate;
pub mod env;
pub mod json;
pub mod result;
pub mod valid;
pub mod version;
