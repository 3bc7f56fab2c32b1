//! The engine on etcd, through its JSON gateway. Each write is a transaction that compares one key.
//!
//! The version of a record is the revision of its last change and its value: after a restore of the
//! store the revision alone may come again, with another value.

pub mod gateway;
pub mod keys;

use std::time::Duration;

use serde_json::{Value as Json, json};

use self::gateway::{COMPACTED, Header, KeyValue, Message, Reply, decode, encode};
use self::keys::Keys;
use super::super::name::Name;
use super::http::{Http, Request};
use super::settings::{Access, Note, Stamp};
use super::{Failed, Heard, Key, Outcome, Record, Selection, Store, Stored, Value, Version};
use crate::error::Result;

const RANGE: &str = "/v3/kv/range";
const TXN: &str = "/v3/kv/txn";
const WATCH: &str = "/v3/watch";
const AUTHENTICATE: &str = "/v3/auth/authenticate";

/// The longest silence of a watch: etcd reports its progress every ten minutes, or one more.
const SILENCE: Duration = Duration::from_secs(720);

/// The keys of one page of a list: some 500 bytes each in the reply.
const PAGE: usize = 1000;
/// The most keys of a list, as a limit of memory.
const MOST_KEYS: usize = 1_000_000;
/// How often a list is tried whose revision was compacted.
const ATTEMPTS: usize = 4;

/// Where Kubernetes keeps its objects: a user who can read them reads every secret of the cluster.
const REGISTRY: &str = "/registry/";
/// Why the etcd of a control plane is not used.
const CONTROL_PLANE: &str = "this etcd has the objects of a Kubernetes control plane, and the user \
    can read them: use an etcd of its own, or a role for the prefix /cni-multi/ alone, or set \
    etcd.acceptControlPlane";

/// An etcd.
pub struct Etcd {
    keys: Keys,
    access: Access,
    http: Http,
    /// Empty without a user.
    password: String,
    /// What the password was exchanged for.
    token: Option<String>,
    /// What the files of certificates and password were when they were read.
    stamps: [Option<Stamp>; 4],
    note: Note,
    /// Whether it is known not to be the etcd of a control plane.
    is_separate: bool,
    /// The id of the cluster of the first reply; 0 before.
    cluster: u64,
}

impl Etcd {
    /// The records of a cluster. It connects when it has something to ask.
    pub fn open(cluster: &Name, access: Access, note: Note) -> Result<Etcd> {
        let stamps = access.stamps(); // a change after this is found later
        let (tls, password) = access.read()?;
        Ok(Etcd {
            keys: Keys::of(cluster),
            http: Http::new(access.endpoints.clone(), tls),
            password,
            token: None,
            stamps,
            note,
            is_separate: access.accepts_control_plane,
            access,
            cluster: 0,
        })
    }

    /// Asks, once it is known that the store is not the etcd of a control plane.
    fn ask(&mut self, path: &str, body: &Json) -> Result<Reply, Failed> {
        if !self.is_separate {
            let mut range = prefix(REGISTRY);
            range["limit"] = json!("1");
            range["keys_only"] = json!(true);
            match self.request(RANGE, &range) {
                Ok(reply) if reply.kvs.is_empty() => (),
                Ok(_) => return Err(Failed::Unreachable(CONTROL_PLANE.to_owned())),
                // A role for our prefix alone is what it should be.
                Err(Failed::Refused(reason)) if reason.contains("permission denied") => (),
                Err(failed) => return Err(unsent(failed)),
            }
            self.is_separate = true;
        }
        self.request(path, body)
    }

    /// Asks with a token, if there is a user. For a token that has expired there is one more.
    fn request(&mut self, path: &str, body: &Json) -> Result<Reply, Failed> {
        self.renew();
        loop {
            let may_expire = self.token.is_some();
            let request = self.authorized(path, body)?;
            let reply = self.exchange(&request).and_then(|reply| {
                // Another etcd may have executed the request.
                let known = require_cluster(&mut self.cluster, &reply.header);
                known.inspect_err(|_| self.http.distrust()).map(|()| reply)
            });
            if !matches!(reply, Err(Failed::Unauthenticated(_))) {
                return reply;
            }
            self.token = None;
            if !may_expire {
                return reply;
            }
        }
    }

    /// Reads certificates and password again if they were replaced. What cannot be used is reported
    /// once; what was read before stays in use.
    fn renew(&mut self) {
        let stamps = self.access.stamps();
        if self.stamps == stamps {
            return;
        }
        self.stamps = stamps;
        match self.access.read() {
            Ok((tls, password)) => {
                self.http.set_tls(tls);
                (self.password, self.token) = (password, None);
                let line = "certificates and password were read again, as a file has changed";
                (self.note)(line.to_owned());
            }
            Err(error) => (self.note)(format!("{error}; what was read before stays in use")),
        }
    }

    fn authorized(&mut self, path: &str, body: &Json) -> Result<Request, Failed> {
        if !self.password.is_empty() && self.token.is_none() {
            let body = json!({"name": self.access.user, "password": self.password});
            let token = self.exchange(&post(AUTHENTICATE, &body)).map_err(unsent)?.token;
            // It becomes a part of a header.
            if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Failed::Unreachable("the response has no valid token".to_owned()));
            }
            self.token = Some(token);
        }
        let mut request = post(path, body);
        request.headers.extend(self.token.clone().map(|token| ("Authorization", token)));
        Ok(request)
    }

    fn exchange(&mut self, request: &Request) -> Result<Reply, Failed> {
        let reply = self.http.exchange(request)?;
        gateway::read(&reply).inspect_err(|failed| {
            let may_be_better_elsewhere =
                matches!(failed, Failed::Busy(_) | Failed::Unreachable(_) | Failed::Unknown(_));
            if may_be_better_elsewhere && *failed != COMPACTED {
                self.http.distrust();
            }
        })
    }

    /// The revision of a write of one key; lost unless everything compared is true.
    fn commit(&mut self, compare: &Json, write: &Json) -> Result<u64, Failed> {
        let reply = self.ask(TXN, &json!({"compare": compare, "success": [write]}))?;
        if reply.succeeded { Ok(reply.header.revision.0) } else { Err(Failed::Lost) }
    }

    fn put(&mut self, record: &Record, compare: &Json) -> Result<Stored, Failed> {
        let (key, value) = (self.keys.encoded(&record.key), encode(record.value.to_json()));
        let put = json!({"requestPut": {"key": key, "value": value}});
        let revision = self.commit(compare, &put)?;
        Ok(Stored { record: record.clone(), version: version(revision, &value) })
    }

    /// Compares a key with what was seen of it.
    fn as_seen(&self, seen: &Stored) -> Json {
        let key = self.keys.encoded(&seen.record.key);
        let (revision, value) = seen.version.0.split_once(':').unwrap_or_default();
        json!([
            {"key": key, "target": "MOD", "mod_revision": revision},
            {"key": key, "target": "VALUE", "value": value},
        ])
    }

    /// The records below some paths, at one revision, which is the second.
    fn pages(
        &mut self,
        paths: &[&str],
        are_hints: bool,
        keep: impl Fn(&Value) -> bool,
    ) -> Result<(Vec<Stored>, u64), Failed> {
        'attempts: for _ in 0..ATTEMPTS {
            let (mut found, mut revision, mut count) = (vec![], 0, 0);
            for path in paths {
                let mut from = self.keys.below(path).into_bytes();
                let mut range = prefix(&self.keys.below(path));
                range["limit"] = json!(PAGE.to_string());
                range["serializable"] = json!(are_hints);
                loop {
                    range["key"] = json!(encode(&from));
                    range["revision"] = json!(revision.to_string());
                    let page = match self.ask(RANGE, &range) {
                        Err(COMPACTED) => continue 'attempts,
                        page => page?,
                    };
                    revision = if revision == 0 { page.header.revision.0 } else { revision };
                    let records = page.kvs.iter().filter_map(|kv| stored(&self.keys, kv));
                    found.extend(records.filter(|stored| keep(&stored.record.value)));
                    count += page.kvs.len();
                    if !page.more {
                        break;
                    }
                    let last = page.kvs.last().and_then(|last| decode(&last.key));
                    let next = last.filter(|last| *last >= from && count <= MOST_KEYS);
                    let endless =
                        || Failed::Unknown("the response has a page without an end".into());
                    from = next.ok_or_else(endless)?;
                    from.push(0);
                }
            }
            return Ok((found, revision));
        }
        Err(Failed::Unknown("the store was compacted during a list".to_owned()))
    }

    /// Lists what a watch is about, and watches from there.
    fn follow(&mut self, tell: &mut dyn FnMut(Heard) -> bool) -> Result<(), Failed> {
        loop {
            let (found, revision) = self.pages(&["c/"], false, |_| true)?;
            if !tell(Heard::Now(found)) {
                return Ok(());
            }
            let mut create = prefix(&self.keys.below("c/"));
            create["start_revision"] = json!((revision + 1).to_string());
            create["progress_notify"] = json!(true);
            let mut request = self.authorized(WATCH, &json!({"create_request": create}))?;
            // A member without a leader ends the watch instead of being silent.
            request.headers.push(("Grpc-Metadata-hasleader", "true".to_owned()));
            let (keys, cluster, mut end) = (&self.keys, self.cluster, Ok(()));
            let streamed =
                self.http.stream(&request, SILENCE, &mut |line| match heard(keys, cluster, line) {
                    Ok(heard) => heard.into_iter().all(&mut *tell),
                    Err(failed) => {
                        end = Err(failed);
                        false
                    }
                });
            if let Some(reply) = streamed? {
                end = gateway::read(&reply).map(drop);
            }
            match end {
                Err(COMPACTED) => continue,
                Err(Failed::Unauthenticated(_)) => self.token = None,
                _ => (),
            }
            return end;
        }
    }
}

fn heard(keys: &Keys, mut cluster: u64, line: &[u8]) -> Result<Vec<Heard>, Failed> {
    if line.is_empty() {
        return Ok(vec![]);
    }
    let Message { result, error } = gateway::parse(line)?;
    if let Some(end) = error.map(|problem| problem.meaning()).or_else(|| result.end()) {
        return Err(end);
    }
    require_cluster(&mut cluster, &result.header)?;
    let of_event = |event: &gateway::Event| match event.r#type.as_str() {
        "DELETE" => key(keys, &event.kv).map(Heard::Gone),
        _ => stored(keys, &event.kv).map(Heard::Put),
    };
    Ok(result.events.iter().filter_map(of_event).collect())
}

/// Fails unless the reply is of the etcd that has answered before, or is the first.
fn require_cluster(cluster: &mut u64, header: &Header) -> Result<(), Failed> {
    let id = header.cluster_id.0;
    if *cluster == 0 {
        *cluster = id;
    }
    match id {
        0 => Err(Failed::Unknown("the response is none of etcd's".to_owned())),
        _ if id == *cluster => Ok(()),
        _ => Err(Failed::Unknown(format!(
            "the response is of etcd's cluster {id:x}, and those before were of {cluster:x}; is an \
             endpoint of another etcd?"
        ))),
    }
}

/// Before the request was sent, nothing of it is unknown, and it is not what was refused.
fn unsent(failed: Failed) -> Failed {
    match failed {
        Failed::Refused(reason) | Failed::Unknown(reason) => Failed::Unreachable(reason),
        failed => failed,
    }
}

fn post(path: &str, body: &Json) -> Request {
    Request {
        method: "POST",
        path: path.to_owned(),
        headers: vec![("Content-Type", "application/json".to_owned())],
        body: body.to_string(),
        is_read: path != TXN || body.get("compare").is_none(),
    }
}

/// All keys that begin with a text, which ends with an ASCII character.
fn prefix(prefix: &str) -> Json {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    json!({"key": encode(prefix), "range_end": encode(&end)})
}

fn key(keys: &Keys, kv: &KeyValue) -> Option<Key> {
    keys.key(str::from_utf8(&decode(&kv.key)?).ok()?)
}

fn stored(keys: &Keys, kv: &KeyValue) -> Option<Stored> {
    let key = key(keys, kv)?;
    let value = decode(&kv.value).map_or(Value::Unreadable, |text| Value::of_json(&key, &text));
    Some(Stored { record: Record { key, value }, version: version(kv.mod_revision.0, &kv.value) })
}

fn version(revision: u64, value: &str) -> Version {
    Version(format!("{revision}:{value}").into())
}

impl Store for Etcd {
    fn get(&mut self, key: &Key) -> Outcome<Option<Stored>> {
        let reply = self.ask(RANGE, &json!({"key": self.keys.encoded(key)}));
        reply.map(|reply| reply.kvs.first().and_then(|kv| stored(&self.keys, kv))).into()
    }

    fn list(&mut self, selection: &Selection) -> Outcome<Vec<Stored>> {
        let found = match selection {
            Selection::Node(node) => {
                self.pages(&["b/", "c/conflict/"], false, |value| match value {
                    Value::Claim(claim) => claim.node == *node,
                    Value::Conflict(of) => of == node,
                    _ => false,
                })
            }
            // A transaction of reads is linearizable, too.
            Selection::Confirm { realm, blocks, .. } => {
                let one =
                    |block| json!({"key": self.keys.encoded(&Key::Block(realm.clone(), block))});
                let conflicts = prefix(&self.keys.below(&format!("c/conflict/{realm}/")));
                let ranges = blocks.iter().map(|block| one(*block)).chain([conflicts]);
                let reads: Vec<Json> = ranges.map(|range| json!({"requestRange": range})).collect();
                let reply = self.ask(TXN, &json!({"success": reads}));
                reply.map(|reply| {
                    let kvs = reply.responses.iter().flat_map(|part| &part.result.kvs);
                    (kvs.filter_map(|kv| stored(&self.keys, kv)).collect(), 0)
                })
            }
            Selection::Named(realm, name) => self.pages(
                &[&format!("b/{realm}/")],
                false,
                |value| matches!(value, Value::Claim(claim) if claim.name.as_ref() == Some(name)),
            ),
            Selection::Realm(realm) => self.pages(&[&format!("b/{realm}/")], true, |_| true),
            Selection::Nodes => self.pages(&["n/"], false, |_| true),
            Selection::All => self.pages(&[""], false, |_| true),
        };
        found.map(|(found, _)| found).into()
    }

    fn create(&mut self, record: &Record) -> Outcome<Stored> {
        let key = self.keys.encoded(&record.key);
        let absent = json!([{"key": key, "target": "CREATE", "create_revision": "0"}]);
        self.put(record, &absent).into()
    }

    fn update(&mut self, record: &Record, seen: &Stored) -> Outcome<Stored> {
        let compare = self.as_seen(seen);
        self.put(record, &compare).into()
    }

    fn delete(&mut self, seen: &Stored) -> Outcome<()> {
        let range = json!({"key": self.keys.encoded(&seen.record.key)});
        let done = self.commit(&self.as_seen(seen), &json!({"requestDeleteRange": range}));
        done.map(drop).into()
    }

    fn watch(&mut self, tell: &mut dyn FnMut(Heard) -> bool) -> Outcome<()> {
        self.follow(tell).into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
