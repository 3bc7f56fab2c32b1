use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// The outcome of a transaction of one operation that a server answers with these bytes.
fn answered(answer: &'static [u8]) -> Result<Outcome> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let mut request = [0; 4096];
        let length = theirs.read(&mut request).unwrap();
        theirs.write_all(answer).unwrap();
        request[..length].to_vec()
    });
    let database = Database::over(ours.into(), Deadline::default());
    let outcome = database.transact(vec![Value::object([("op", Value::text("x"))])]);
    let request = String::from_utf8(server.join().unwrap()).unwrap();
    let expected = r#"{"method":"transact","id":1,"params":["Open_vSwitch",{"op":"x"}]}"#;
    assert_eq!(request, expected);
    outcome
}

fn refused(error: &str, details: &str) -> Outcome {
    Outcome::Refused(Refusal { error: error.to_owned(), details: details.to_owned() })
}

#[test]
fn the_answer_is_found_among_other_messages() {
    let answer = br#"{"method":"update","params":[],"id":null}{"id":7,"result":[1],"error":null}{"id":1,"error":null,"result":[{"count":2}]}"#;
    let result = Value::object([("count", Value::number(2))]);
    assert_eq!(answered(answer).unwrap(), Outcome::Done(vec![result]));
}

#[test]
fn a_question_of_the_server_is_answered() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let mut request = [0; 4096];
        assert!(theirs.read(&mut request).unwrap() > 0);
        theirs.write_all(br#"{"id":"echo","method":"echo","params":["x"]}"#).unwrap();
        let length = theirs.read(&mut request).unwrap();
        theirs.write_all(br#"{"id":1,"error":null,"result":[]}"#).unwrap();
        String::from_utf8(request[..length].to_vec()).unwrap()
    });
    let database = Database::over(ours.into(), Deadline::default());
    assert_eq!(database.transact(vec![]).unwrap(), Outcome::Done(vec![]));
    assert_eq!(server.join().unwrap(), r#"{"id":"echo","error":null,"result":["x"]}"#);
}

#[test]
fn errors_of_operations_and_of_the_commit_are_refusals() {
    let cases: [(&[u8], Outcome); 3] = [
        (
            br#"{"id":1,"error":null,"result":[{"error":"timed out","details":"d"},null]}"#,
            refused("timed out", "d"),
        ),
        (
            br#"{"id":1,"error":null,"result":[{},{"error":"constraint violation","details":"two"}]}"#,
            refused("constraint violation", "two"),
        ),
        (br#"{"id":1,"error":"unknown method","result":null}"#, refused("unknown method", "")),
    ];
    for (answer, expected) in cases {
        assert_eq!(answered(answer).unwrap(), expected);
    }
}

#[test]
fn what_is_no_answer_is_an_error() {
    let cases: [(&[u8], Code); 7] = [
        (b"HTTP/1.1 400 Bad Request\r\n", Code::HOST_PROGRAM),
        (br#"{"id":1,"error":null,"result":[]}"#, Code::HOST_PROGRAM),
        (br#"{"id":1,"error":null,"result":[null]}"#, Code::HOST_PROGRAM),
        (br#"{"id":1,"error":null,"result":7}"#, Code::HOST_PROGRAM),
        (br#"{"id":1,"error":null}"#, Code::HOST_PROGRAM),
        (br#"{"id":1,,}"#, Code::HOST_PROGRAM),
        (br#"{"id":1,"#, Code::TRY_AGAIN), // and then the server hangs up
    ];
    for (answer, code) in cases {
        let error = answered(answer).unwrap_err();
        assert_eq!(error.code, code, "{}: {error}", String::from_utf8_lossy(answer));
    }
}

#[test]
fn a_server_that_never_answers_is_not_waited_for() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        while theirs.write_all(br#"{"id":9,"error":null,"result":[]}"#).is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    let begin = Instant::now();
    let database = Database::over(ours.into(), Deadline::default());
    let error = database.transact(vec![]).unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(8), "{error}");
    assert_eq!(error.code, Code::TRY_AGAIN);
    assert!(error.msg.ends_with("no answer within 5 s"), "{error}");
    drop(database);
    server.join().unwrap();
}

#[test]
fn addresses_are_read_and_others_refused() {
    for (text, written) in [
        ("unix:/a/b", "unix:/a/b"),
        ("/a/b", "unix:/a/b"),
        ("tcp:127.0.0.1:6641", "tcp:127.0.0.1:6641"),
        ("tcp:10.0.0.1", "tcp:10.0.0.1:6640"),
        ("tcp:[::1]:7", "tcp:[::1]:7"),
        ("tcp:[::1]", "tcp:[::1]:6640"),
    ] {
        assert_eq!(Address::parse(text).unwrap().to_string(), written);
    }
    for (text, problem) in [
        ("ssl:127.0.0.1:6640", "socket_file: this client has no TLS"),
        ("tcp:name:6640", "socket_file: \"tcp:name:6640\" is no address of OVSDB"),
        ("udp:1.2.3.4", "socket_file: \"udp:1.2.3.4\" is no address of OVSDB"),
        ("unix:db.sock", "socket_file: \"unix:db.sock\" is no address of OVSDB"),
    ] {
        let error = Address::parse(text).unwrap_err();
        assert_eq!(error.msg, format!("{problem}, expected unix:PATH or tcp:IP:PORT"));
        assert_eq!(error.code, Code::INVALID_CONFIG);
    }
}

fn value(text: &str) -> Value {
    Value::parse(text.as_bytes()).unwrap()
}

#[test]
fn sets_of_none_one_and_many_are_read() {
    for (text, vlans) in
        [(r#"["set",[]]"#, vec![]), ("7", vec![7]), (r#"["set",[3,1,2]]"#, vec![1, 2, 3])]
    {
        assert_eq!(values::vlans(&value(text)).unwrap(), vlans);
    }
    assert!(values::vlans(&value("\"x\"")).is_err() && values::vlans(&value("70000")).is_err());
    assert_eq!(values::text(&value(r#"["set",[]]"#)).unwrap(), None);
    assert_eq!(values::text(&value("\"a\"")).unwrap(), Some("a"));
    assert!(values::text(&value("7")).is_err());
}

#[test]
fn maps_and_uuids_of_another_shape_are_errors() {
    let map = value(r#"["map",[["a","b"],["c",""]]]"#);
    assert_eq!(values::pairs(&map).unwrap(), [("a", "b"), ("c", "")]);
    assert_eq!(values::map([("a", "b"), ("c", "")]), map);
    for wrong in
        ["{}", "[]", r#"["map"]"#, r#"["map",[["a"]]]"#, r#"["set",[]]"#, r#"["map",[[1,2]]]"#]
    {
        assert_eq!(values::pairs(&value(wrong)).unwrap_err().code, Code::HOST_PROGRAM, "{wrong}");
    }
    let uuid = value(r#"["uuid","01234567-89ab-cdef-0123-456789abcdef"]"#);
    assert_eq!(values::Uuid::of(&uuid).unwrap().to_value(), uuid);
    for wrong in [r#"["uuid","x"]"#, r#"["uuid"]"#, r#""x""#, r#"["named-uuid","x"]"#] {
        assert!(values::Uuid::of(&value(wrong)).is_err(), "{wrong}");
    }
}
