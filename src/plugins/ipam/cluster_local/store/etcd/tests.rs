use super::super::http::endpoint::Endpoint;
use super::super::tests::fake::{Answer, Fake, reply};
use super::super::{Claim, Token, Want};
use super::*;

/// An engine, of a server that gives these answers.
fn engine(answers: Vec<Answer>, accepts_control_plane: bool) -> (Etcd, Fake) {
    let fake = Fake::new(answers);
    let endpoints = vec![Endpoint::parse(&fake.url).unwrap()];
    let access = Access { endpoints, accepts_control_plane, ..Access::default() };
    let etcd = Etcd::open(&"prod".parse().unwrap(), access, Box::new(|_| ())).unwrap();
    (etcd, fake)
}

fn ok(members: &str) -> Answer {
    Answer::Text(reply(200, &of_cluster(7, members)))
}

fn of_cluster(id: u64, members: &str) -> String {
    format!(r#"{{"header":{{"cluster_id":"{id}","revision":"9"}}{members}}}"#)
}

fn error(status: u16, code: u32, reason: &str) -> Answer {
    Answer::Text(reply(status, &format!(r#"{{"message":"{reason}","code":{code}}}"#)))
}

/// A key of a reply.
fn kv(path: &str, revision: u64, value: &str) -> String {
    let key = encode(format!("/cni-multi/v2/prod/{path}").as_bytes());
    let value = encode(value.as_bytes());
    format!(r#"{{"key":"{key}","value":"{value}","mod_revision":"{revision}"}}"#)
}

fn kvs(of: &[String]) -> Answer {
    ok(&format!(r#","kvs":[{}]"#, of.join(",")))
}

/// Paths and bodies of the requests, with keys and values as text.
fn requests(fake: &Fake) -> Vec<String> {
    let shown = |request: &String| {
        let path = request.split(' ').nth(2).unwrap();
        let body = request.split_once("\r\n\r\n").unwrap().1;
        let words = body.split('"').map(|word| match decode(word).map(String::from_utf8) {
            Some(Ok(text)) if text.starts_with(['/', '{']) => format!("<{text}>"),
            _ => word.to_owned(),
        });
        format!("{path} {}", words.collect::<Vec<_>>().join("'"))
    };
    fake.seen().iter().map(shown).collect()
}

fn claim(node: &str) -> Claim {
    Claim { node: node.parse().unwrap(), uid: Token(1), token: Token(2), taken: None, name: None }
}

fn block(text: &str) -> Key {
    Key::Block("default".parse().unwrap(), text.parse().unwrap())
}

fn meta() -> Record {
    Record { key: Key::Meta, value: Value::Meta(Token(9)) }
}

const META: &str = r#"{"id":"00000000000000000000000000000009"}"#;

fn seen() -> Stored {
    Stored { record: meta(), version: version(4, &encode(META.as_bytes())) }
}

#[test]
fn each_write_compares_its_key() {
    let won = r#","succeeded":true"#;
    let (mut etcd, fake) = engine(vec![ok(won), ok(won), ok(won), ok(""), ok(""), ok("")], true);
    let written = Stored { record: meta(), version: version(9, &encode(META.as_bytes())) };
    assert_eq!(etcd.create(&meta()), Outcome::Done(written.clone()));
    assert_eq!(etcd.update(&meta(), &seen()), Outcome::Done(written));
    assert_eq!(etcd.delete(&seen()), Outcome::Done(()));
    assert_eq!(etcd.create(&meta()), Outcome::Lost);
    assert_eq!(etcd.update(&meta(), &seen()), Outcome::Lost);
    assert_eq!(etcd.delete(&seen()), Outcome::Lost);
    let key = "'key':'</cni-multi/v2/prod/c/meta>'";
    let absent = format!("'compare':[{{'create_revision':'0',{key},'target':'CREATE'}}]");
    let as_seen = format!(
        "'compare':[{{{key},'mod_revision':'4','target':'MOD'}},{{{key},'target':'VALUE','value':'<{META}>'}}]"
    );
    let put = format!("'success':[{{'requestPut':{{{key},'value':'<{META}>'}}}}]");
    let delete = format!("'success':[{{'requestDeleteRange':{{{key}}}}}]");
    let expected = [
        format!("/v3/kv/txn {{{absent},{put}}}"),
        format!("/v3/kv/txn {{{as_seen},{put}}}"),
        format!("/v3/kv/txn {{{as_seen},{delete}}}"),
    ];
    assert_eq!(requests(&fake), [expected.clone(), expected].concat());
    assert!(fake.seen().iter().all(|request| request.starts_with("0 ")), "one connection");
}

#[test]
fn a_value_that_cannot_be_read_can_be_deleted() {
    let broken = kv("c/meta", 5, "no JSON");
    let (mut etcd, fake) = engine(vec![kvs(&[broken]), ok(r#","succeeded":true"#)], true);
    let Outcome::Done(Some(found)) = etcd.get(&Key::Meta) else { panic!("not found") };
    assert_eq!(found.record.value, Value::Unreadable);
    assert_eq!(etcd.delete(&found), Outcome::Done(()));
    let value = encode(b"no JSON");
    assert!(requests(&fake)[1].contains(&format!("'VALUE','value':'{value}'")));
}

#[test]
fn a_write_of_which_a_byte_was_sent_is_not_repeated() {
    for (answer, expected) in [
        (Answer::Last(String::new()), "the connection ended before the response"),
        (Answer::Text("SSH-2.0-OpenSSH_9.6\r\n".into()), "the response is not HTTP/1.1"),
        (Answer::Text(reply(200, "<html>")), "the response cannot be read: expected value"),
        (Answer::Text(reply(200, "{}")), "the response is none of etcd's"),
        (Answer::Text(reply(502, "no")), "HTTP status 502 without an error object of etcd"),
        (
            error(503, 14, "etcdserver: request timed out"),
            "etcdserver: request timed out (code 14)",
        ),
    ] {
        let (mut etcd, fake) = engine(vec![answer], true);
        let outcome = etcd.create(&meta());
        let Outcome::Unknown(reason) = &outcome else { panic!("{outcome:?}") };
        assert!(reason.contains(expected), "{reason:?} lacks {expected:?}");
        assert_eq!(fake.seen().len(), 1, "{expected}");
    }
}

#[test]
fn a_reply_of_another_cluster_is_unknown() {
    let other = Answer::Text(reply(200, &of_cluster(8, r#","succeeded":true"#)));
    let (mut etcd, _fake) = engine(vec![kvs(&[]), other, kvs(&[])], true);
    assert_eq!(etcd.get(&Key::Meta), Outcome::Done(None));
    let outcome = etcd.create(&meta());
    let Outcome::Unknown(reason) = outcome else { panic!("{outcome:?}") };
    assert!(reason.starts_with("the response is of etcd's cluster 8"), "{reason}");
    assert_eq!(etcd.get(&Key::Meta), Outcome::Done(None));
}

#[test]
fn nothing_is_sent_to_the_etcd_of_a_control_plane() {
    let secret = r#","kvs":[{"key":"L3JlZ2lzdHJ5L3g="}]"#;
    let (mut etcd, fake) = engine(vec![ok(secret), ok(secret)], false);
    for _ in 0..2 {
        assert_eq!(etcd.create(&meta()), Outcome::Unreachable(CONTROL_PLANE.into()));
    }
    let inspection = "/v3/kv/range {'key':'</registry/>','keys_only':true,'limit':'1','range_end':'</registry0>'}";
    assert_eq!(requests(&fake), [inspection, inspection]);

    let denied = error(403, 7, "etcdserver: permission denied");
    let (mut etcd, fake) = engine(vec![denied, kvs(&[]), kvs(&[])], false);
    assert_eq!(etcd.get(&Key::Meta), Outcome::Done(None), "a role for the prefix alone");
    assert_eq!(etcd.get(&Key::Meta), Outcome::Done(None));
    assert_eq!(requests(&fake).len(), 3, "it is asked once");

    let (mut etcd, _fake) = engine(vec![error(503, 14, "etcdserver: no leader")], false);
    let outcome = etcd.create(&meta());
    assert!(matches!(outcome, Outcome::Unreachable(_)), "nothing was written: {outcome:?}");
}

#[test]
fn a_token_that_was_good_is_renewed_once() {
    let token =
        |token: &str| Answer::Text(reply(200, &format!(r#"{{"header":{{}},"token":"{token}"}}"#)));
    let expired = || error(401, 16, "etcdserver: invalid auth token");
    let of = |answers: Vec<Answer>| {
        let (mut etcd, fake) = engine(answers, true);
        (etcd.access.user, etcd.password) = ("cni".to_owned(), "secret".to_owned());
        (etcd, fake)
    };
    let (mut etcd, fake) = of(vec![
        token("a.1"),
        kvs(&[]),
        expired(),
        token("a.2"),
        kvs(&[]),
        expired(),
        token("a.3"),
        expired(),
    ]);
    assert_eq!(etcd.get(&Key::Meta), Outcome::Done(None));
    assert_eq!(etcd.get(&Key::Meta), Outcome::Done(None));
    assert!(matches!(etcd.get(&Key::Meta), Outcome::Unauthenticated(_)), "not for ever");
    let tokens = fake.seen().into_iter().map(|request| {
        let authorization = request.split("Authorization: ").nth(1);
        authorization.and_then(|rest| rest.lines().next()).unwrap_or("").to_owned()
    });
    assert_eq!(tokens.collect::<Vec<_>>(), ["", "a.1", "a.1", "", "a.2", "a.2", "", "a.3"]);

    let (mut etcd, _fake) = of(vec![error(503, 14, "etcdserver: no leader")]);
    assert!(matches!(etcd.create(&meta()), Outcome::Unreachable(_)), "nothing was written");
    for bad in ["", r"a\r\nb", "a b"] {
        let (mut etcd, _fake) = of(vec![token(bad)]);
        let reason = "the response has no valid token".to_owned();
        assert_eq!(etcd.get(&Key::Meta), Outcome::Unreachable(reason), "it would end a header");
    }
}

#[test]
fn lists_are_read_in_pages_at_one_revision() {
    let claimed = |node: &str| serde_json::to_string(&claim(node)).unwrap();
    let first = [
        kv("b/default/4-0a580100-32", 3, &claimed("n1")),
        kv("b/default/4-0a580101-32", 4, &claimed("n2")),
    ];
    let second = [kv("b/default/4-0a580102-32", 5, &claimed("n1")), kv("b/default/x", 5, "{}")];
    let conflicts = [kv("c/conflict/default/4-0a580103-32", 6, r#"{"node":"n1"}"#)];
    let more = ok(&format!(r#","more":true,"kvs":[{}]"#, first.join(",")));
    let answers = vec![more, kvs(&second), kvs(&conflicts)];
    let (mut etcd, fake) = engine(answers, true);
    let Outcome::Done(found) = etcd.list(&Selection::Node("n1".parse().unwrap())) else { panic!() };
    let found: Vec<Key> = found.into_iter().map(|stored| stored.record.key).collect();
    let conflict = Key::Conflict("default".parse().unwrap(), "4-0a580103-32".parse().unwrap());
    assert_eq!(found, [block("4-0a580100-32"), block("4-0a580102-32"), conflict]);
    let range = |key: &str, end: &str, revision: u64| {
        format!(
            "/v3/kv/range {{'key':'</cni-multi/v2/prod/{key}>','limit':'1000','range_end':'</cni-multi/v2/prod/{end}>','revision':'{revision}','serializable':false}}"
        )
    };
    let expected = [
        range("b/", "b0", 0),
        range("b/default/4-0a580101-32\0", "b0", 9),
        range("c/conflict/", "c/conflict0", 9),
    ];
    assert_eq!(requests(&fake), expected);
}

#[test]
fn a_list_whose_revision_is_compacted_begins_again_but_not_for_ever() {
    let compacted = || error(400, 11, "etcdserver: mvcc: required revision has been compacted");
    let (mut etcd, _fake) = engine(vec![compacted(), kvs(&[])], true);
    assert_eq!(etcd.list(&Selection::All), Outcome::Done(vec![]));
    let (mut etcd, fake) = engine((0..9).map(|_| compacted()).collect(), true);
    assert!(matches!(etcd.list(&Selection::All), Outcome::Unknown(_)));
    assert_eq!(fake.seen().len(), 4);
    let key = kv("n/n1", 1, "{}");
    for endless in [r#","more":true"#.to_owned(), format!(r#","more":true,"kvs":[{key}]"#)] {
        let (mut etcd, _fake) = engine(vec![ok(&endless), ok(&endless), ok(&endless)], true);
        let reason = "the response has a page without an end".to_owned();
        assert_eq!(etcd.list(&Selection::Nodes), Outcome::Unknown(reason));
    }
}

#[test]
fn other_selections_read_what_they_need() {
    let realm: Name = "default".parse().unwrap();
    let named = Claim { name: Some("net/a".into()), ..claim("n1") };
    let blocks = [
        kv("b/default/4-0a580100-32", 3, &Value::Claim(named).to_json()),
        kv("b/default/4-0a580101-32", 4, &Value::Claim(claim("n2")).to_json()),
        kv("b/default/4-0a580140-26", 4, r#"{"divided":8}"#),
    ];
    let conflict = kv("c/conflict/default/4-0a580101-32", 5, r#"{"node":"n3"}"#);
    let parts = format!(
        r#","responses":[{{"response_range":{{"kvs":[{}]}}}},{{"response_range":{{}}}},{{"response_range":{{"kvs":[{conflict}]}}}}]"#,
        blocks[1]
    );
    let (mut etcd, fake) = engine(vec![kvs(&blocks), kvs(&blocks), ok(&parts)], true);
    let Outcome::Done(found) = etcd.list(&Selection::Named(realm.clone(), "net/a".into())) else {
        panic!()
    };
    assert_eq!(found.len(), 1);
    let Outcome::Done(found) = etcd.list(&Selection::Realm(realm.clone())) else { panic!() };
    assert_eq!((found.len(), &found[2].record.value), (3, &Value::Divided(8)));
    let of_blocks = ["4-0a580101-32", "4-0a580102-32"].map(|text| text.parse().unwrap());
    let confirm =
        Selection::Confirm { node: "n2".parse().unwrap(), realm, blocks: of_blocks.into() };
    let Outcome::Done(found) = etcd.list(&confirm) else { panic!() };
    assert_eq!(
        found[0].version,
        version(4, &encode(Value::Claim(claim("n2")).to_json().as_bytes()))
    );
    assert_eq!((found.len(), &found[1].record.value), (2, &Value::Conflict("n3".parse().unwrap())));
    let requests = requests(&fake);
    assert!(
        requests[0].ends_with("'serializable':false}")
            && requests[1].ends_with("'serializable':true}")
    );
    let below = "</cni-multi/v2/prod/";
    assert_eq!(
        requests[2],
        format!(
            "/v3/kv/txn {{'success':[{{'requestRange':{{'key':'{below}b/default/4-0a580101-32>'}}}},{{'requestRange':{{'key':'{below}b/default/4-0a580102-32>'}}}},{{'requestRange':{{'key':'{below}c/conflict/default/>','range_end':'{below}c/conflict/default0>'}}}}]}}"
        )
    );
}

fn stream(lines: &[&str]) -> Answer {
    let lines: Vec<String> = lines
        .iter()
        .map(|line| {
            let line =
                line.replace("HEADER", r#""header":{"cluster_id":"7","revision":"9"}"#) + "\n";
            format!("{:x}\r\n{line}\r\n", line.len())
        })
        .collect();
    Answer::Last(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}", lines.concat()))
}

/// What a watch tells, and how it ends.
fn watched(answers: Vec<Answer>) -> (Vec<Heard>, Outcome<()>, Vec<String>) {
    let (mut etcd, fake) = engine(answers, true);
    let mut told = vec![];
    let outcome = etcd.watch(&mut |heard| {
        told.push(heard);
        told.len() < 5
    });
    (told, outcome, requests(&fake))
}

#[test]
fn a_watch_lists_and_then_hears_each_change() {
    let want = Want {
        uid: Token(1),
        nonce: Token(2),
        realm: "default".parse().unwrap(),
        spans: vec![],
        name: None,
        renewal: 0,
        gifts: vec![],
    };
    let put = kv("c/want/n2", 10, &Value::Want(want.clone()).to_json());
    let events = format!(
        r#"{{"result":{{HEADER,"events":[{{"kv":{put}}},{{"type":"DELETE","kv":{}}}]}}}}"#,
        kv("c/want/n2", 11, "")
    );
    let created = r#"{"result":{HEADER,"created":true}}"#;
    let compacted = r#"{"result":{HEADER,"canceled":true,"compact_revision":"8"}}"#;
    let (told, outcome, requests) = watched(vec![
        kvs(&[kv("c/meta", 4, META)]),
        stream(&[created, "", &events, compacted]),
        kvs(&[]),
        stream(&[created, &events]),
    ]);
    let put = Heard::Put(Stored {
        version: version(10, &encode(Value::Want(want.clone()).to_json().as_bytes())),
        record: Record { key: Key::Want("n2".parse().unwrap()), value: Value::Want(want) },
    });
    let gone = Heard::Gone(Key::Want("n2".parse().unwrap()));
    assert_eq!(told, [Heard::Now(vec![seen()]), put.clone(), gone, Heard::Now(vec![]), put]);
    assert_eq!(outcome, Outcome::Done(()), "nobody listens any more");
    assert_eq!(
        requests[1],
        "/v3/watch {'create_request':{'key':'</cni-multi/v2/prod/c/>','progress_notify':true,'range_end':'</cni-multi/v2/prod/c0>','start_revision':'10'}}"
    );
}

#[test]
fn a_watch_that_ends_has_a_reason() {
    let cases = [
        (stream(&["hello"]), "the response cannot be read: "),
        (
            stream(&[r#"{"result":{HEADER,"created":true}}"#]),
            "the connection ended before the response",
        ),
        (stream(&[r#"{"error":{"grpc_code":14,"message":"no leader"}}"#]), "no leader (code 14)"),
        (stream(&[r#"{"result":{"header":{"cluster_id":"8"}}}"#]), "cluster 8"),
        (stream(&[r#"{"result":{HEADER,"canceled":true,"cancel_reason":"x"}}"#]), "canceled: x"),
        (error(503, 14, "etcdserver: no leader"), "no leader"),
    ];
    for (answer, expected) in cases {
        let (told, outcome, _) = watched(vec![kvs(&[]), answer]);
        let Outcome::Unknown(reason) = &outcome else { panic!("{outcome:?}") };
        assert!(reason.contains(expected), "{reason:?} lacks {expected:?}");
        assert_eq!(told, [Heard::Now(vec![])]);
    }
}
