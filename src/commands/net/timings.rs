//! The table of `--timings`: a line for each call, with what its time was spent on.

use std::time::Duration;

use crate::cni::json::Value;
use crate::terminal::table;
use crate::timing::{Account, Spent, WAITS};

/// The columns beside those of [`WAITS`].
const CALL: &str = "call";
const TIME: &str = "time";
const REST: &str = "rest";

/// A line for each account, indented if its call is part of another one, and their sum.
pub fn table(accounts: &[Account]) -> String {
    let rows = accounts.iter().map(row).chain([sum(accounts)]).collect();
    let keys = [CALL, TIME].into_iter().chain(WAITS.map(|(_, name)| name)).chain([REST]);
    let columns: Vec<_> = keys.map(|key| (key.to_uppercase(), key)).collect();
    let columns: Vec<_> = columns.iter().map(|(header, key)| (header.as_str(), *key)).collect();
    table::of_rows(rows, &columns, false)
}

fn row(account: &Account) -> Value {
    let call = "  ".repeat(account.depth.saturating_sub(1)) + &account.call;
    let waits = WAITS.iter().zip(&account.waits).map(|((_, name), spent)| (*name, cell(spent)));
    let ends = [(CALL, call), (TIME, ms(account.time)), (REST, ms(account.rest()))];
    Value::object(ends.into_iter().chain(waits).map(|(key, text)| (key, Value::text(&text))))
}

fn sum(accounts: &[Account]) -> Value {
    let mut all = Account { call: "all".to_owned(), ..Account::default() };
    for account in accounts {
        all.time += account.time;
        for (sum, spent) in all.waits.iter_mut().zip(&account.waits) {
            sum.count += spent.count;
            sum.time += spent.time;
        }
    }
    row(&all)
}

/// The time, and how many waits it was; empty if there was none.
fn cell(spent: &Spent) -> String {
    if spent.time.is_zero() {
        String::new()
    } else {
        format!("{} ({})", ms(spent.time), spent.count)
    }
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_has_a_line_and_all_have_their_sum() {
        let account = |call: &str, depth, ms| Account {
            call: call.to_owned(),
            depth,
            time: Duration::from_millis(ms),
            ..Account::default()
        };
        let mut accounts = [
            account("runtime", 0, 1),
            account("ADD bridge", 1, 4),
            account("ADD host-local", 2, 2),
        ];
        accounts[1].waits[0] = Spent { count: 14, time: Duration::from_micros(2500) };
        let expected = "\
CALL              TIME     LINKS         RULES  NAMESPACES  LOCKS  PROGRAMS  DAEMONS  REST
runtime           1.00 ms  -             -      -           -      -         -        1.00 ms
ADD bridge        4.00 ms  2.50 ms (14)  -      -           -      -         -        1.50 ms
  ADD host-local  2.00 ms  -             -      -           -      -         -        2.00 ms
all               7.00 ms  2.50 ms (14)  -      -           -      -         -        4.50 ms
";
        assert_eq!(table(&accounts), expected);
    }
}
