//! What the daemon asks of the cluster's store, and what it hears: pure data between the state
//! machine, which knows no socket, and an engine, which knows no state.
//!
//! | of the design | operations |
//! |---|---|
//! | list | [`Operation::List`], [`Operation::ReadBlock`], [`Operation::ReadNode`], [`Operation::Survey`] |
//! | claim | [`Operation::Claim`], [`Operation::Replace`] |
//! | release | [`Operation::Release`], [`Operation::Hold`] |
//! | heartbeat | [`Operation::Register`], [`Operation::Heartbeat`], [`Operation::Fence`] |
//! | changes | [`Operation::Want`], [`Operation::NoteConflict`], [`Operation::NotePool`], their ends, and [`Change`] |
//!
//! Each operation is one atomic step of the store, except for [`Operation::Heartbeat`]. A store that
//! compares a version of one object at a time can be an engine as well, if it serializes the claims
//! of overlapping blocks in another way, for example with an object per block of one fixed length.
//!
//! Reads are linearizable. An engine repeats no write whose outcome is unknown, and never guesses
//! an outcome.

mod answer;
mod name;
mod operation;
mod values;

pub use self::answer::{
    Answer, Change, ClusterState, Member, NodeState, Outcome, RealmState, Rival,
};
pub use self::name::{Name, NoName};
pub use self::operation::Operation;
pub use self::values::{
    Claimed, ConflictNote, Epoch, Found, Ground, Identity, LeaseId, NodeRecord, OperationId,
    PoolNote, Revision, Seen, Standing, Token, Versioned, Want,
};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_keys() {
        for name in ["default", "node-1.example.org", "a_b", "0", &"a".repeat(253)] {
            assert_eq!(name.parse::<Name>().unwrap().as_str(), name);
        }
        for name in ["", ".", "-a", "a/b", "a b", "ä", &"a".repeat(254)] {
            let refused = name.parse::<Name>().unwrap_err().to_string();
            assert!(refused.contains("is not a valid name, expected letters"), "{refused}");
        }
    }

    #[test]
    fn values_of_keys_have_one_text() {
        let owner = Identity { node: "n1".parse().unwrap(), uid: Token(1), incarnation: 2 };
        let mut claimed = Claimed { owner, token: Token(0xfe), sticky: None, vacant: false };
        let plain = concat!(
            r#"{"node":"n1","uid":"00000000000000000000000000000001","incarnation":2,"#,
            r#""token":"000000000000000000000000000000fe"}"#
        );
        assert_eq!(serde_json::to_string(&claimed).unwrap(), plain);
        assert_eq!(serde_json::from_str::<Claimed>(plain).unwrap(), claimed);
        claimed.sticky = Some("default/web-0/eth0".to_owned());
        claimed.vacant = true;
        let text = serde_json::to_string(&claimed).unwrap();
        assert!(text.ends_with(r#","sticky":"default/web-0/eth0","vacant":true}"#), "{text}");
        assert_eq!(serde_json::from_str::<Claimed>(&text).unwrap(), claimed);
        let mut record = NodeRecord {
            uid: Token(1),
            incarnation: 2,
            standing: Standing::Live,
            version: "0.1.0".to_owned(),
            reclaim_after: None,
        };
        for (reclaim_after, end) in [(None, "}"), (Some(600), r#","reclaimAfter":600}"#)] {
            record.reclaim_after = reclaim_after;
            let text = serde_json::to_string(&record).unwrap();
            let whole = format!(r#""incarnation":2,"standing":"live","version":"0.1.0"{end}"#);
            assert!(text.ends_with(&whole), "{text}");
            assert_eq!(serde_json::from_str::<NodeRecord>(&text).unwrap(), record);
        }
        let want =
            Want { count: 3, spans: vec!["10.1.0.1-10.1.0.9".parse().unwrap()], names: vec![] };
        assert_eq!(
            serde_json::to_string(&want).unwrap(),
            r#"{"count":3,"spans":["10.1.0.1-10.1.0.9"]}"#
        );
    }

    #[test]
    fn only_reads_cannot_have_an_unknown_outcome() {
        let realm: Name = "default".parse().unwrap();
        let block = "4-0a580100-26".parse().unwrap();
        assert!(!Operation::List { realm: realm.clone() }.writes());
        assert!(!Operation::ReadBlock { realm: realm.clone(), block }.writes());
        assert!(!Operation::Watch { realm: realm.clone(), from: 1 }.writes());
        assert!(!Operation::Survey.writes());
        assert!(Operation::NoteConflict { realm, block, note: None }.writes());
    }
}
