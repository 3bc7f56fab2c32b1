//! The families of a result's addresses.

use crate::cni::version;
use crate::error::{Code, Error, Result};
use crate::family::Family;

/// Refuses several addresses of one family for results before CNI 0.3.0, which have room for only
/// one. `advice` goes into the error.
pub fn refuse_several_of_one(
    families: &[Family],
    config_version: &str,
    advice: &'static str,
) -> Result<()> {
    let count = |family| families.iter().filter(|found| **found == family).count();
    if Family::ALL.into_iter().any(|family| count(family) > 1)
        && version::Number::parse(config_version)? < version::WITH_MANY_ADDRESSES
    {
        let msg =
            format!("CNI version {config_version} does not support more than 1 address per family");
        return Err(Error::new(Code::INVALID_CONFIG, msg).with_details(advice));
    }
    Ok(())
}
