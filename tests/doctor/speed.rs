//! How long an examination takes.

use std::time::{Duration, Instant};

use super::site::Site;

/// Prints the times of one container and of a node with `CNI_ATTACHMENTS` (500) attachments; the
/// limits are those of a release binary.
#[test]
#[ignore = "measures: run with --ignored"]
fn a_container_takes_50_ms_and_500_attachments_two_seconds() {
    let count: usize = std::env::var("CNI_ATTACHMENTS").map_or(500, |count| count.parse().unwrap());
    let site = Site::with_bridge("10.185.0.0/16");
    let containers: Vec<_> = (0..count).map(|_| site.attached("pods")).collect();
    let time = |subject: &str| {
        let begin = Instant::now();
        assert_eq!(site.codes(subject), [""; 0]);
        begin.elapsed()
    };
    let one = (0..5).map(|_| time(&containers[count / 2].netns)).min().unwrap();
    let all = time("");
    eprintln!("one container of {count}: {one:?}; all: {all:?}");
    assert!(one < Duration::from_millis(50) && all < Duration::from_secs(2), "{one:?}, {all:?}");
}
