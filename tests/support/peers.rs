//! Turns a case for both peers into two tests, `ours` and `reference`, so that a failure names the
//! peer.

/// Generates both tests of each case; a case is a function that takes the peer, or what follows its name.
macro_rules! peers {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            use crate::support::call::Peer;

            #[test]
            fn ours() {
                super::$case(&Peer::Ours);
            }

            #[test]
            fn reference() {
                use $crate::support::{attachment, case};
                match attachment::reference_with("bridge") {
                    Some(reference) if case::is_its_turn(4) => super::$case(&reference),
                    _ => attachment::not_compared("specification 1.1.0, or it is another's turn"),
                }
            }
        }
    )+};
    ($($case:ident = |$peer:ident| $body:expr;)+) => {
        $(fn $case($peer: &$crate::support::call::Peer) {
            $body;
        })+
        peers! { $($case),+ }
    };
}

/// A test for each name, which does what follows it.
macro_rules! tests {
    ($($(#[$doc:meta])* $name:ident = $body:expr;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            $body;
        }
    )+};
}

/// A test of each function, which is run as the closure says: `each_case! { |case| for_ours("ovs", case); one another }`.
macro_rules! each_case {
    (|$case:ident| $run:expr; $($name:ident)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn test() {
                let $case = super::$name;
                $run;
            }
        }
    )+};
}

pub(crate) use {each_case, peers, tests};
