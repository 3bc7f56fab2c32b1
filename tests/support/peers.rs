//! A case for both peers is two tests, `ours` and `reference`, so a failure says whose it is.

/// Makes two tests of each case, a function that takes the peer.
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
                match Peer::reference() {
                    Some(reference) => super::$case(&reference),
                    None => $crate::support::attachment::not_compared("bridge"),
                }
            }
        }
    )+};
}

pub(crate) use peers;
