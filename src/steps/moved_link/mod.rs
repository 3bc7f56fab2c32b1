//! A device of the host that goes into a container and comes back as it was.
//!
//! A record of the plugin holds the device's identity and its state on the host: the container may
//! write the name, the alias and nearly everything else of the link, so only the device with that
//! identity goes back to the host. While its state is not restored, its alias is its name.

mod identity;
mod link_state;
mod moving;

pub use self::identity::{Identity, Links, may_be_of_container};
pub use self::link_state::{LinkState, MovedDevice};
pub use self::link_state::{forget_others, is_recorded, settle_returned};
pub use self::moving::{DeviceReturn, RecordedAt};
pub use self::moving::{Naming, bring_unrecorded, move_in};
