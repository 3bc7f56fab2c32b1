//! `reclaimAfter` on a machine whose files cannot be written.

use super::*;

/// The error of a disk that became read-only.
const ERROR: &str = "write /var/lib/cni/cluster-local/net/blocks.json: Read-only file system";

#[test]
fn a_file_that_cannot_be_written_is_the_reason_for_no_contact() {
    let confirmed = Blocks { confirmed: "boot".to_owned(), ..blocks(vec![]) };
    let mut lab = Lab::of(confirmed, NodeFile::default(), Some(Duration::from_secs(600)));
    lab.unwritable = Some(ERROR);
    lab.give(Event::Time);
    lab.pass(Duration::from_secs(5)); // the store answered before the first write had failed
    let Contact::Away { reason, .. } = lab.machine.contact().clone() else {
        panic!("{:?}", lab.machine.contact())
    };
    let rule = "blocks.json of each network must be written before the node registers";
    assert_eq!(reason, format!("{ERROR}; {rule}"));
    lab.unwritable = None;
    lab.pass(Duration::from_secs(10));
    assert_eq!(*lab.machine.contact(), Contact::Together);
}
