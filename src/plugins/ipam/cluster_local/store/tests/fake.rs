//! A server for tests, which answers each request with the next of some texts.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What the server does with a request.
pub enum Answer {
    /// It sends a text and waits for the next request.
    Text(String),
    /// It sends a text and closes the connection.
    Last(String),
}

/// The server, until the test ends.
pub struct Fake {
    /// The URL of the server.
    pub url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// A server with these answers. It closes connections when they are used up.
    pub fn new(answers: Vec<Answer>) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(vec![]));
        let (mut answers, log) = (answers.into_iter(), seen.clone());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                serve(number, stream.unwrap(), &mut answers, &log);
            }
        });
        Fake { url, seen }
    }

    /// The requests so far: the number of the connection, then what was sent.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn serve(
    number: usize,
    mut stream: TcpStream,
    answers: &mut impl Iterator<Item = Answer>,
    log: &Mutex<Vec<String>>,
) {
    while let Some(request) = read_request(&mut stream) {
        log.lock().unwrap().push(format!("{number} {request}"));
        let (text, is_last) = match answers.next() {
            Some(Answer::Text(text)) => (text, false),
            Some(Answer::Last(text)) => (text, true),
            None => return,
        };
        let sent = stream.write_all(text.as_bytes());
        if sent.is_err() || is_last {
            return; // the client may have seen enough
        }
    }
}

/// Reads a whole request: bytes that are left when the connection is closed reset it.
fn read_request(stream: &mut TcpStream) -> Option<String> {
    let (mut request, mut piece) = (vec![], [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("Content-Length: ").nth(1).unwrap();
            if body.len() >= length.lines().next().unwrap().parse().unwrap() {
                return Some(text.into_owned());
            }
        }
        match stream.read(&mut piece) {
            Ok(count) if count > 0 => request.extend_from_slice(&piece[..count]),
            _ => return None, // the client is gone
        }
    }
}

/// A reply with this status and body.
pub fn reply(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
