//! What an operation spends its time on, for `--timings` of `cni-multi net`. Each call of a plugin
//! has an account. Code that waits for the kernel, a lock, a program or a daemon adds the duration to
//! the innermost open account.
//!
//! Without `--timings` this costs one load per wait. A thread that enters a namespace has no account:
//! its duration counts as a wait of the thread that joins it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Answers and notifications of rtnetlink(7), and answers of sock_diag(7).
    Links,
    /// Answers of nf_tables and connection tracking.
    Rules,
    /// Threads that enter a namespace, with what they do there.
    Namespaces,
    /// Locks that other processes hold.
    Locks,
    /// Other programs: iptables and other plugins.
    Programs,
    /// Daemons: firewalld, ovsdb-server, and those of dhcp and cluster-local.
    Daemons,
}

/// Every kind of wait with its name, in the order of [`Account::waits`].
pub const WAITS: [(Wait, &str); 6] = [
    (Wait::Links, "links"),
    (Wait::Rules, "rules"),
    (Wait::Namespaces, "namespaces"),
    (Wait::Locks, "locks"),
    (Wait::Programs, "programs"),
    (Wait::Daemons, "daemons"),
];

/// The waits of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// How many there were: requests, threads, locks, programs.
    pub count: u32,
    /// Their time.
    pub time: Duration,
}

/// The account of one call.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The operation and the plugin, or what else took the time.
    pub call: String,
    /// The number of calls that this one is part of.
    pub depth: usize,
    /// The time of the call without that of the calls in it.
    pub time: Duration,
    /// What it waited for in that time.
    pub waits: [Spent; WAITS.len()],
}

impl Account {
    /// The time that was not spent on a wait: its own work, and files.
    pub fn rest(&self) -> Duration {
        self.time.saturating_sub(self.waits.iter().map(|spent| spent.time).sum())
    }
}

/// The accounts in the order in which their calls began.
#[derive(Default)]
struct Book {
    accounts: Vec<Account>,
    /// The indexes of the open ones, the innermost last, and the time of the calls in each.
    open: Vec<(usize, Duration)>,
}

impl Book {
    fn begin(&mut self, call: String) {
        let depth = self.open.len();
        self.open.push((self.accounts.len(), Duration::ZERO));
        self.accounts.push(Account { call, depth, ..Account::default() });
    }

    fn end(&mut self, took: Duration) {
        let Some((index, inner)) = self.open.pop() else { return };
        if let Some(account) = self.accounts.get_mut(index) {
            account.time = took.saturating_sub(inner);
        }
        if let Some((_, inner)) = self.open.last_mut() {
            *inner += took;
        }
    }

    fn book(&mut self, on: Wait, count: u32, time: Duration) {
        let innermost = self.open.last().and_then(|(index, _)| self.accounts.get_mut(*index));
        if let Some(account) = innermost {
            let spent = &mut account.waits[on as usize];
            spent.count += count;
            spent.time += time;
        }
    }
}

/// Whether any thread keeps accounts.
static IS_KEPT: AtomicBool = AtomicBool::new(false);

thread_local! {
    static BOOK: RefCell<Option<Book>> = const { RefCell::new(None) };
}

/// Changes this thread's book, if it keeps one.
fn with_book(change: impl FnOnce(&mut Book)) {
    BOOK.with_borrow_mut(|book| {
        if let Some(book) = book {
            change(book);
        }
    });
}

/// An account that is open until this is dropped.
pub struct Open(Option<Instant>);

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(begin) = self.0 {
            with_book(|book| book.end(begin.elapsed()));
        }
    }
}

/// Opens an account with this name.
pub fn open(call: impl FnOnce() -> String) -> Open {
    if !IS_KEPT.load(Relaxed) {
        return Open(None);
    }
    with_book(|book| book.begin(call()));
    Open(Some(Instant::now()))
}

/// Does `work`, which is or begins a wait.
pub fn waiting<T>(on: Wait, work: impl FnOnce() -> T) -> T {
    booking(on, 1, work)
}

/// Does `work`, which goes on with a wait.
pub fn waiting_on<T>(on: Wait, work: impl FnOnce() -> T) -> T {
    booking(on, 0, work)
}

fn booking<T>(on: Wait, count: u32, work: impl FnOnce() -> T) -> T {
    if !IS_KEPT.load(Relaxed) {
        return work();
    }
    let begin = Instant::now();
    let done = work();
    with_book(|book| book.book(on, count, begin.elapsed()));
    done
}

/// Does `work` and keeps the accounts of its calls on this thread; the first one, of this name, is
/// that of `work` itself.
pub fn accounts_of<T>(call: &str, work: impl FnOnce() -> T) -> (T, Vec<Account>) {
    IS_KEPT.store(true, Relaxed);
    BOOK.set(Some(Book::default()));
    let all = open(|| call.to_owned());
    let done = work();
    drop(all);
    (done, BOOK.take().unwrap_or_default().accounts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_call_has_its_own_time_and_the_waits_in_it() {
        let mut book = Book::default();
        book.begin("ADD bridge".into());
        book.book(Wait::Links, 1, 2 * MS);
        book.begin("ADD host-local".into());
        book.book(Wait::Locks, 1, 3 * MS);
        book.end(5 * MS);
        book.book(Wait::Links, 0, MS);
        book.end(12 * MS);
        let [bridge, ipam] = &book.accounts[..] else { panic!("{:?}", book.accounts) };
        assert_eq!((bridge.time, bridge.rest(), bridge.depth), (7 * MS, 4 * MS, 0));
        assert_eq!((bridge.waits[0].count, bridge.waits[0].time), (1, 3 * MS));
        assert_eq!((ipam.time, ipam.rest(), ipam.depth), (5 * MS, 2 * MS, 1));
    }

    #[test]
    fn accounts_are_kept_on_this_thread_until_the_work_is_done() {
        waiting(Wait::Links, || ());
        let ((), accounts) = accounts_of("runtime", || {
            let _plugin = open(|| "ADD loopback".into());
            waiting(Wait::Links, || ());
            waiting_on(Wait::Links, || std::thread::sleep(MS));
            std::thread::spawn(|| waiting(Wait::Rules, || ())).join().unwrap();
        });
        let _none = open(|| unreachable!("no accounts are kept"));
        let calls: Vec<_> = accounts.iter().map(|account| account.call.as_str()).collect();
        assert_eq!(calls, ["runtime", "ADD loopback"]);
        assert_eq!(accounts[1].waits[Wait::Links as usize].count, 1);
        assert_eq!(accounts[1].waits[Wait::Rules as usize].count, 0);
        assert!(accounts[1].waits[Wait::Links as usize].time >= MS);
    }

    #[test]
    fn waits_are_in_the_order_of_their_numbers() {
        assert!(WAITS.iter().enumerate().all(|(index, (wait, _))| *wait as usize == index));
    }
}
