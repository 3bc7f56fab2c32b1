//! Any bytes as each kind of file that calls leave for later ones: libcni's cache of results,
//! records below /run/cni, tuning's backups, the DHCP daemon's journal. Each is unchanged when
//! written and parsed again. And as the file of flanneld, which flannel only reads.

use std::fs;
use std::path::Path;

use cni_multi::cni::attachment::Key;
use cni_multi::cni::conf::{Config, ValidAttachments};
use cni_multi::cni::json::Value;
use cni_multi::plugin::Attachment;
use cni_multi::plugins::ipam::dhcp::daemon::journal;
use cni_multi::plugins::main::flannel::SubnetEnv;
use cni_multi::plugins::meta::tuning::backup::Backup;
use cni_multi::runtime::cache::Cache;
use cni_multi::steps::records::Records;

use crate::scratch::Scratch;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let key = Key::parse("net", "one", "eth0").expect("they are names");
    cache(bytes, &key);
    records(bytes, &key);
    backup(bytes);
    journal_record(bytes);
    let _ = SubnetEnv::parse(&String::from_utf8_lossy(bytes), Path::new("subnet.env")); // must return
}

fn cache(bytes: &[u8], key: &Key) {
    let scratch = Scratch::new("cache");
    let cache = Cache::new(scratch.path());
    fs::create_dir(scratch.path().join("results")).expect("it is empty");
    fs::write(scratch.path().join("results/net-one-eth0"), bytes).expect("it is there");
    let _ = (cache.contains(key), cache.attachments(&key.network));
    for version in ["", "0.2.0", "0.4.0", "1.1.0", "2.0.0"] {
        let _ = cache.result(key, version); // must return, with any result
    }
    let all = cache.all().expect("the directory can be read");
    assert_eq!(all.len(), 1);
    let Ok(record) = cache.record(key) else { return };
    let Some((record, at)) = record.and_then(|record| record.at.clone().map(|at| (record, at))) else { return };
    let Ok(Some(result)) = record.result.clone() else { return };
    cache.write(&at, &record.document, &result).expect("the directory can be written to");
    let again = cache.record(&at.key).expect("what was written is read").expect("it was written");
    let again_at = again.at.expect("it names its owner");
    assert_eq!((&again_at.key, &again_at.args, &again.document), (&at.key, &at.args, &record.document));
    assert_eq!(again.result.expect("there is one").map(|result| result.to_text()), Some(result.to_text()));
    cache.delete(&at.key).expect("it can be removed");
    assert_eq!(cache.contains(&at.key), Ok(false));
}

/// An empty list of valid attachments.
fn no_attachments() -> ValidAttachments {
    let config = br#"{"name":"net","cni.dev/valid-attachments":[]}"#;
    Config::parse(config.to_vec()).and_then(|config| config.valid_attachments()).ok().flatten().expect("it is a list")
}

fn records(bytes: &[u8], key: &Key) {
    let scratch = Scratch::new("records");
    let records = Records::in_dir(scratch.path());
    fs::write(scratch.path().join(format!("{}.json", key.identity())), bytes).expect("it is there");
    let _ = records.read::<Value>(key); // must return, with any result
    for found in records.stale::<Value>(&key.network, &no_attachments()).expect("the directory can be read") {
        let at = Attachment::new(found.key.clone(), "/proc/thread-self/ns/net".to_owned(), None);
        records.write(&at, &found.kept).expect("the directory can be written to");
        let again = records.read::<Value>(&found.key).expect("it was written").unwrap_or_default();
        assert_eq!(again.to_text(), found.kept.to_text());
    }
}

fn backup(bytes: &[u8]) {
    let Some(backup) = Backup::understood(bytes) else { return };
    let again = Backup::understood(&backup.text()).expect("what is written is read");
    assert_eq!((&again.key, &again.before), (&backup.key, &backup.before));
    if backup.key.is_some() {
        assert_eq!(again, backup);
    }
}

fn journal_record(bytes: &[u8]) {
    let Ok(record) = serde_json::from_slice::<journal::Record>(bytes) else { return };
    let text = serde_json::to_vec(&record).expect("it is plain data");
    assert_eq!(serde_json::from_slice::<journal::Record>(&text).expect("what is written is read"), record);
}
