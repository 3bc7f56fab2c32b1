//! A device of the host that goes into a container and comes back as it was.
//!
//! A record of the plugin holds the device's identity and its state on the host: the container may
//! write the name, the alias and nearly everything else of the link, so only the device with that
//! identity goes back to the host. While its state is not restored, its alias is its name.

mod device_records;
mod device_return;
mod identity;
mod link_state;
mod moving;

pub use self::device_records::{forget_others, is_recorded, settle_returned};
pub use self::device_return::{DeviceReturn, RecordedAt};
pub use self::identity::{Identity, Links, may_be_of_container};
pub use self::link_state::{LinkState, MovedDevice};
pub use self::moving::{Naming, bring_unrecorded, move_in};
