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
                    None => eprintln!("SKIP no reference plugins: CNI_REFERENCE names no directory of them"),
                }
            }
        }
    )+};
}

pub(crate) use peers;
