//! What `cni-multi doctor` finds, as metrics.

use std::time::Instant;

use crate::commands::doctor::Counts;
use crate::error::Result;
use crate::service::openmetrics::Page;

/// An examination that has ended.
pub struct Examined {
    counts: Result<Counts>,
    seconds: f64,
}

impl Examined {
    /// Runs the examination.
    pub fn run(examine: impl FnOnce() -> Result<Counts>) -> Examined {
        let begun = Instant::now();
        Examined { counts: examine(), seconds: begun.elapsed().as_secs_f64() }
    }

    /// Writes the findings by code, if it could be carried out. A code without a finding has no
    /// sample.
    pub fn write(&self, page: &mut Page) {
        page.family("examined", "gauge", "Whether doctor could examine the node.");
        page.sample("examined", &[], u8::from(self.counts.is_ok()));
        page.family("examination_seconds", "gauge", "How long the examination took.");
        page.sample("examination_seconds", &[], format_args!("{:.3}", self.seconds));
        page.family("findings", "gauge", "Findings of doctor by code.");
        for ((code, severity), count) in self.counts.iter().flatten() {
            page.sample("findings", &[("code", code), ("severity", severity)], count);
        }
    }

    /// Fails with the reason why nothing could be examined.
    pub fn outcome(self) -> Result<()> {
        self.counts.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};

    fn values(counts: Result<Counts>) -> Vec<String> {
        let mut page = Page::new("cni_multi");
        Examined { counts, seconds: 0.25 }.write(&mut page);
        let text = page.finish();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn findings_have_a_sample_for_each_code() {
        let counts = Counts::from([(("D104", "warning"), 1), (("D311", "error"), 2)]);
        assert_eq!(
            values(Ok(counts)),
            [
                "cni_multi_examined 1",
                "cni_multi_examination_seconds 0.250",
                "cni_multi_findings{code=\"D104\",severity=\"warning\"} 1",
                "cni_multi_findings{code=\"D311\",severity=\"error\"} 2",
            ]
        );
    }

    #[test]
    fn a_failed_examination_is_a_value() {
        let values = values(Err(Error::new(Code::TRY_AGAIN, "open netlink")));
        assert_eq!(values, ["cni_multi_examined 0", "cni_multi_examination_seconds 0.250"]);
    }
}
