//! A client of OVSDB, the database of Open vSwitch (RFC 7047): one transaction at a time, without a
//! schema and without a monitor.

mod connection;
pub mod datum;
pub mod operation;
mod values;

pub use self::connection::Address;
pub use self::datum::unexpected;
pub use self::operation::{Outcome, Refusal};

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;

use self::connection::Connection;
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};

/// The database's name.
const NAME: &str = "Open_vSwitch";

/// A connection to the database.
pub struct Database {
    address: String,
    connection: RefCell<Connection>,
    requests: Cell<u64>,
}

impl Database {
    /// Connects. Code 11 where no server listens: it may be starting.
    pub fn connect(address: &Address, deadline: Deadline) -> Result<Database> {
        let connection = Connection::open(address, deadline).map_err(|e| {
            Error::io(format_args!("failed to connect to ovsdb socket {address}: error"), &e)
                .with_code(Code::TRY_AGAIN)
                .with_details("is ovsdb-server running, and is this its socket?")
        })?;
        Ok(Database::of(address.to_string(), connection))
    }

    /// Talks over an existing connection.
    pub fn over(socket: OwnedFd, deadline: Deadline) -> Database {
        Database::of("a socket".to_owned(), Connection::over(socket, deadline))
    }

    fn of(address: String, connection: Connection) -> Database {
        Database { address, connection: RefCell::new(connection), requests: Cell::new(0) }
    }

    /// Runs the operations as one transaction: all of them or none.
    pub fn transact(&self, operations: Vec<Value>) -> Result<Outcome> {
        let (id, count) = (self.requests.get() + 1, operations.len());
        self.requests.set(id);
        let mut params = vec![Value::text(NAME)];
        params.extend(operations);
        let request = Value::object([
            ("method", Value::text("transact")),
            ("id", Value::number(id)),
            ("params", Value::Array(params)),
        ]);
        let reply = self.connection.borrow_mut().exchange(&request, id);
        let outcome =
            reply.and_then(|reply| operation::outcome(reply, count).map_err(connection::malformed));
        outcome.map_err(|e| {
            // A server that stops, hangs or restarts may answer the next call; one that sends
            // something else is no OVSDB.
            let code = match e.kind() {
                io::ErrorKind::InvalidData => Code::HOST_PROGRAM,
                _ => Code::TRY_AGAIN,
            };
            Error::io(format_args!("ask OVSDB at {}", self.address), &e).with_code(code)
        })
    }

    /// As [`Database::transact`], but a refusal is an error.
    pub fn read(&self, operations: Vec<Value>) -> Result<Vec<Value>> {
        match self.transact(operations)? {
            Outcome::Done(results) => Ok(results),
            Outcome::Refused(refusal) => Err(refusal.into_error("read OVSDB")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
