//! How long an examination takes.

use std::time::{Duration, Instant};

use super::site::Site;

/// The pods of a node, by the kubelet's default for `maxPods`.
const PODS: usize = 110;

/// Prints the times of one container beside as many as a kubelet starts, and of a node with
/// `CNI_ATTACHMENTS` (500) attachments; the limits are those of a release binary.
#[test]
#[ignore = "measures: run with --ignored"]
fn a_container_takes_50_ms_and_500_attachments_two_seconds() {
    let count: usize = std::env::var("CNI_ATTACHMENTS").map_or(500, |count| count.parse().unwrap());
    let site = Site::with_bridge("10.185.0.0/16");
    let mut containers: Vec<_> = (0..PODS).map(|_| site.attached("pods")).collect();
    let time = |subject: &str| {
        let begin = Instant::now();
        assert_eq!(site.codes(subject), [""; 0]);
        begin.elapsed()
    };
    let of_one = |netns: &str| {
        let without = format!("{netns} --no-packets");
        (0..5).map(|_| time(&without)).min().unwrap()
    };
    let one = of_one(&containers[PODS / 2].netns);
    containers.extend((PODS..count).map(|_| site.attached("pods")));
    let one_of_all = of_one(&containers[count / 2].netns);
    let all = time("");
    eprintln!("one container of {PODS}: {one:?}; of {count}: {one_of_all:?}; all: {all:?}");
    assert!(one < Duration::from_millis(50) && all < Duration::from_secs(2), "{one:?}, {all:?}");
}
