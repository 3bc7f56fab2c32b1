//! Turns a case for both peers into two tests, `ours` and `reference`, so that a failure names the
//! peer.

/// Generates both tests of each case; a case is a function that takes the peer.
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
                match $crate::support::attachment::reference_with("bridge") {
                    Some(reference) => super::$case(&reference),
                    None => $crate::support::attachment::not_compared("specification 1.1.0"),
                }
            }
        }
    )+};
}

pub(crate) use peers;
