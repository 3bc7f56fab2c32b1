//! Rules of the protocol, each with the change of the source that takes it out. `tests/mutants` makes each
//! change in turn and runs the simulation, which has to find a broken invariant; the test below keeps the
//! list true to the source.

/// A rule, and how it is taken out.
struct Mutant {
    rule: &'static str,
    /// The file, in this folder's parent.
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// The tests that find it: a part of their names.
    kind: &'static str,
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        rule: "a claim is used after a beat and a read",
        file: "machine/blocks.rs",
        from: "self.baton.confirmed > tracked.known && tracked.read > self.baton.confirmed",
        to: "tracked.read < u64::MAX",
        kind: "nodes_are_reclaimed",
    },
    Mutant {
        rule: "the read comes after the beat",
        file: "machine/blocks.rs",
        from: "self.baton.confirmed > tracked.known && tracked.read > self.baton.confirmed",
        to: "self.baton.confirmed > tracked.known",
        kind: "restore",
    },
    Mutant {
        rule: "a beat confirms what was known before it was sent",
        file: "machine/baton.rs",
        from: "                self.accept(stored, order);\n            }\n            (Purpose::Beat(nonce, _)",
        to: "                self.accept(stored, order + 9);\n            }\n            (Purpose::Beat(nonce, _)",
        kind: "restore",
    },
    Mutant {
        rule: "what is created in doubt settles",
        file: "machine/blocks.rs",
        from: "tracked.created.unwrap_or(self.now) < self.baton.settle_until",
        to: "tracked.created.is_none() && false",
        kind: "restore",
    },
    Mutant {
        rule: "the session is on the disk before it is in the store",
        file: "machine/baton.rs",
        from: "        if file.sessions.contains(&session) {",
        to: "        if file.number < u64::MAX {",
        kind: "crashes",
    },
    Mutant {
        rule: "the last acknowledged session stays on the disk",
        file: "machine/baton.rs",
        from: "        sessions.push(session);",
        to: "        sessions = vec![session];",
        kind: "crashes",
    },
    Mutant {
        rule: "each batch of claims has a session",
        file: "machine/baton.rs",
        from: "        self.baton.session = Some(turn.token());\n    }",
        to: "        let _ = turn.token();\n    }",
        kind: "simulation::",
    },
    Mutant {
        rule: "nonces of beats tell them apart",
        file: "machine/baton.rs",
        from: "find(|(sent, _)| *sent == nonce)",
        to: "find(|(sent, _)| *sent == nonce || true)",
        kind: "simulation::",
    },
    Mutant {
        rule: "an older number is a store that went back",
        file: "machine/baton.rs",
        from: "        if record.number < file.number {\n            return self.go_back(record, stored, file.number);\n        }\n",
        to: "",
        kind: "simulation::",
    },
    Mutant {
        rule: "a node whose record is gone gets another uid",
        file: "machine/baton.rs",
        from: "            true => Phase::NewUid(file.uid, None),",
        to: "            true => Phase::Register(None),",
        kind: "simulation::",
    },
    Mutant {
        rule: "divide first",
        file: "machine/blocks.rs",
        from: "            Some(Some(_)) => Division::Other,",
        to: "            Some(Some(_)) => Division::Fits,",
        kind: "other_sizes",
    },
    Mutant {
        rule: "a block goes back without a lease alone",
        file: "machine/give.rs",
        from: "            let unleased = going.iter().map(|(block, _)| *block).collect();",
        to: "            let unleased = vec![];",
        kind: "network_faults",
    },
    Mutant {
        rule: "an orphan is deleted after a beat that followed the list",
        file: "machine/baton.rs",
        from: "*order >= self.baton.confirmed)",
        to: "*order >= u64::MAX)",
        kind: "simulation::",
    },
    Mutant {
        rule: "a claim is told by its token",
        file: "machine/blocks.rs",
        from: "it.node == self.setup.node && it.token == held.token",
        to: "it.node == self.setup.node",
        kind: "simulation::",
    },
    Mutant {
        rule: "the fence waits for three beats",
        file: "machine/reclaim.rs",
        from: "Duration::from_secs(100)",
        to: "Duration::from_millis(100)",
        kind: "reclaimed",
    },
    Mutant {
        rule: "what was listed counts while the fence stands",
        file: "machine/reclaim.rs",
        from: "                if found == fence =>",
        to: "                if found.record.key == fence.record.key =>",
        kind: "reclaimed",
    },
    Mutant {
        rule: "blocks are confirmed in each boot",
        file: "machine/baton.rs",
        from: "            return self.confirm(Allocation::Refused);\n        }\n        let mut copied",
        to: "        }\n        let mut copied",
        kind: "simulation::",
    },
    Mutant {
        rule: "each active block is known to be the node's own before plugins use it",
        file: "machine/baton.rs",
        from: "matches!(it.key, Known::Own(_))))\n        {\n            return Step::Rest;",
        to: "it.known < u64::MAX))\n        {\n            return Step::Rest;",
        kind: "simulation::",
    },
    Mutant {
        rule: "active blocks settle if the store went back in this boot",
        file: "machine/baton.rs",
        from: "        if self.baton.settle_until > self.now\n            && let Some(first)",
        to: "        if self.baton.settle_until > Moment::MAX - self.now\n            && let Some(first)",
        kind: "simulation::",
    },
    Mutant {
        rule: "an owner allocates nothing from a block in which others have leases",
        file: "machine/blocks.rs",
        from: "if !tracked.is_on_disk || !matters || contested == held.contested {",
        to: "if !tracked.is_on_disk || !matters || !held.contested || contested == held.contested {",
        kind: "simulation::",
    },
    Mutant {
        rule: "notes are read at the end of settling",
        file: "machine/blocks.rs",
        from: "                let is_contested = is_contested || of.held.contested;",
        to: "                let is_contested = is_contested && of.held.contested;",
        kind: "restore",
    },
    Mutant {
        rule: "a note counts for every block that it overlaps",
        file: "machine/hints.rs",
        from: "noted.overlaps(block)",
        to: "*noted == block",
        kind: "other_sizes",
    },
    Mutant {
        rule: "each new doubt begins the settling again",
        file: "machine/baton.rs",
        from: "            (tracked.note, tracked.settles) = (Note::None, None);",
        to: "            tracked.note = Note::None;",
        kind: "restore",
    },
    Mutant {
        rule: "a restored disk takes over what its files know",
        file: "machine/baton.rs",
        from: "                self.baton.takes_over = true;",
        to: "",
        kind: "disk_was_restored",
    },
    Mutant {
        rule: "a disk counts as restored once its last beat cannot come any more",
        file: "machine/baton.rs",
        from: "Duration::from_secs(40)",
        to: "Duration::from_secs(0)",
        kind: "resumed",
    },
    Mutant {
        rule: "another machine with the files is another node",
        file: "machine/baton.rs",
        from: "if file.node != self.setup.node || file.machine != self.setup.machine {",
        to: "if file.node != self.setup.node {",
        kind: "clone",
    },
    Mutant {
        rule: "a replaced directory allocates nothing",
        file: "machine/baton.rs",
        from: "None if self.setup.is_replaced => ",
        to: "None if self.setup.is_replaced && file.number > 9 => ",
        kind: "replaced_directory",
    },
    Mutant {
        rule: "of two live copies one stops",
        file: "machine/baton.rs",
        from: "        self.baton.phase = Phase::Withdrawn(Standing::Copied);\n        Step::Again",
        to: "        self.go_back(record, stored, mine.number)",
        kind: "resumed",
    },
    Mutant {
        rule: "a lost block that is the node's again is confirmed like a new one",
        file: "machine/blocks.rs",
        from: "self.change(at, State::Claiming, turn)\n            }\n            State::Returning",
        to: "self.change(at, State::Active, turn)\n            }\n            State::Returning",
        kind: "restore",
    },
    Mutant {
        rule: "a node that waits looks for gifts that came late",
        file: "machine/baton.rs",
        from: "let is_wanted = self.want.is_some()\n            ||",
        to: "let is_wanted = false &&",
        kind: "network_faults",
    },
    Mutant {
        rule: "a reservation ends with the renewal",
        file: "machine/want.rs",
        from: "renewal, gifts: vec![] });\n        Some(Record",
        to: "renewal, gifts: want.gifts.clone() });\n        Some(Record",
        kind: "crashes",
    },
    Mutant {
        rule: "ten seconds of failures are doubt",
        file: "machine/baton.rs",
        from: "pub const DOUBT: Duration = Duration::from_secs(10);",
        to: "pub const DOUBT: Duration = Duration::from_secs(100_000);",
        kind: "restore",
    },
    Mutant {
        rule: "a missing key is doubt",
        file: "machine/blocks.rs",
        from: "if known == Known::Absent && was_own {",
        to: "if known == Known::Absent && was_own && self.order == 0 {",
        kind: "restore",
    },
    Mutant {
        rule: "after the registration the store's id is read again",
        file: "machine/baton.rs",
        from: "                (self.baton.meta, self.baton.has_meta) = (None, false);\n                self.baton.phase = Phase::Meta;\n            }\n            (Purpose::Register, _)",
        to: "                self.baton.phase = Phase::List;\n            }\n            (Purpose::Register, _)",
        kind: "another_store",
    },
    Mutant {
        rule: "a note is written while leases are in another's block",
        file: "machine/blocks.rs",
        from: "if is_leased && of.note == Note::None {",
        to: "if is_leased && of.note == Note::None && self.order == 0 {",
        kind: "restore",
    },
    Mutant {
        rule: "a name stands once",
        file: "machine/names.rs",
        from: "if beside.is_empty() || tracked.is_on_disk {",
        to: "if beside.is_empty() || tracked.named > 0 {",
        kind: "names",
    },
];

/// Each change can be made: its text stands once in its file.
#[test]
fn each_rule_that_can_be_taken_out_is_in_the_source() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/plugins/ipam/cluster_local/");
    for Mutant { rule, file, from, to, kind } in MUTANTS {
        let source = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
        assert_eq!(source.matches(from).count(), 1, "{rule}: {from:?} in {file}");
        assert!(from != to && !kind.is_empty(), "{rule}");
    }
}
