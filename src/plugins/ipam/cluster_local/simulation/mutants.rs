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
        rule: "nonces of beats tell them apart",
        file: "machine/baton.rs",
        from: "find(|(sent, _)| *sent == nonce)",
        to: "find(|(sent, _)| *sent == nonce || true)",
        kind: "replaced_directory",
    },
    Mutant {
        rule: "an older number is a store that went back",
        file: "machine/identity.rs",
        from: "        if record.number < file.number {\n            return self.go_back(record, stored, file.number);\n        }\n",
        to: "",
        kind: "several_restores",
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
        rule: "a claim is told by its token",
        file: "machine/blocks.rs",
        from: "it.node == self.setup.node && it.token == held.token",
        to: "it.node == self.setup.node",
        kind: "clone",
    },
    Mutant {
        rule: "the fence waits for three beats",
        file: "machine/reclaim.rs",
        from: "Duration::from_secs(100)",
        to: "Duration::from_millis(100)",
        kind: "reclaimed",
    },
    Mutant {
        rule: "a replaced directory allocates nothing",
        file: "machine/identity.rs",
        from: "None if self.setup.is_replaced => ",
        to: "None if self.setup.is_replaced && file.number > 9 => ",
        kind: "replaced_directory",
    },
    Mutant {
        rule: "of two live copies one stops",
        file: "machine/identity.rs",
        from: "        self.baton.phase = Phase::Withdrawn(Standing::Copied);\n        Step::Again",
        to: "        self.go_back(record, stored, mine.number)",
        kind: "resumed",
    },
    Mutant {
        rule: "a node that waits looks for gifts that came late",
        file: "machine/baton.rs",
        from: "let is_wanted = self.want.is_some()\n            ||",
        to: "let is_wanted = false &&",
        kind: "network_faults",
    },
    Mutant {
        rule: "ten seconds of failures are doubt",
        file: "machine/baton.rs",
        from: "pub const DOUBT: Duration = Duration::from_secs(10);",
        to: "pub const DOUBT: Duration = Duration::from_secs(100_000);",
        kind: "restore",
    },
    Mutant {
        rule: "a note is written while leases are in another's block",
        file: "machine/notes.rs",
        from: "if is_leased && of.note == Note::None {",
        to: "if is_leased && of.note == Note::None && self.order == 0 {",
        kind: "restore",
    },
    Mutant {
        rule: "what was listed counts while the fence stands",
        file: "machine/reclaim.rs",
        from: "                if found == fence =>",
        to: "                if found.record.key == fence.record.key =>",
        kind: "reclaimed",
    },
    Mutant {
        rule: "each batch of claims has a session of its own",
        file: "machine/baton.rs",
        from: "        self.baton.session = Some(turn.token());",
        to: "        self.baton.session = Some(self.baton.session.unwrap_or(turn.token()));",
        kind: "resumed",
    },
    Mutant {
        rule: "a chunk that one node had as a whole is tried again",
        file: "machine/claim.rs",
        from: "*of != realm || *size != Some(0)",
        to: "*of != realm || *size != Some(9)",
        kind: "other_sizes",
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
