//! The engine on etcd, through its JSON gateway. Each write is a transaction that compares one key.
//!
//! The version of a record is the revision of its last change and its value: after a restore of the
//! store the revision alone may come again, with another value.

pub mod gateway;
pub mod keys;
mod lists;

use std::time::Duration;

use serde_json::{Value as Json, json};

use self::gateway::{Header, KeyValue, Message, Reply, Verdict, decode, encode};
use self::keys::Keys;
use super::super::name::Name;
use super::http::{Http, Request};
use super::settings::{Access, Note};
use super::stamps::Stamps;
use super::{Heard, Key, Outcome, Record, Selection, Store, Stored, Value, Version};
use crate::error::Result;

const RANGE: &str = "/v3/kv/range";
const TXN: &str = "/v3/kv/txn";
const WATCH: &str = "/v3/watch";
const AUTHENTICATE: &str = "/v3/auth/authenticate";

/// The longest silence of a watch: etcd reports its progress every ten minutes, or one more.
const SILENCE: Duration = Duration::from_secs(720);

/// Where Kubernetes keeps its objects: a user who can read them reads every secret of the cluster.
const REGISTRY: &str = "/registry/";
/// Why the etcd of a control plane is not used.
const CONTROL_PLANE: &str = "this etcd has the objects of a Kubernetes control plane, and the user \
    can read them: use an etcd of its own, or a role for the prefix /cni-multi/ alone, or set \
    etcd.acceptControlPlane";
/// The files were read again.
const RENEWED: &str = "certificates and password were read again, as a file has changed";
/// They could not be.
const KEPT: &str = "what was read before stays in use";

/// An etcd.
pub struct Etcd {
    keys: Keys,
    access: Access,
    http: Http,
    /// User and password.
    login: Option<[String; 2]>,
    /// What the password was exchanged for.
    token: Option<String>,
    stamps: Stamps,
    note: Note,
    /// Whether it is known not to be the etcd of a control plane.
    is_separate: bool,
    /// The id of the cluster of the first reply; 0 before.
    cluster: u64,
}

impl Etcd {
    /// The records of a cluster. It connects when it has something to ask.
    pub fn open(cluster: &Name, access: Access, note: Note) -> Result<Etcd> {
        let stamps = Stamps::new(access.paths());
        let credentials = access.read()?;
        Ok(Etcd {
            keys: Keys::of(cluster),
            http: Http::new(access.endpoints.clone(), credentials.tls),
            login: credentials.login,
            token: None,
            stamps,
            note,
            is_separate: access.accepts_control_plane,
            access,
            cluster: 0,
        })
    }

    /// Reads certificates and password again if they were replaced. What cannot be used is reported
    /// once; what was read before stays in use.
    fn renew(&mut self) {
        if !self.stamps.have_changed() {
            return;
        }
        match self.access.read() {
            Ok(credentials) => {
                self.http.set_tls(credentials.tls);
                (self.login, self.token) = (credentials.login, None);
                (self.note)(RENEWED.to_owned());
            }
            Err(error) => (self.note)(format!("{error}; {KEPT}")),
        }
    }

    /// Asks, once it is known that the store is not the etcd of a control plane.
    fn ask(&mut self, path: &str, body: &Json) -> Result<Reply, Verdict> {
        self.require_separate()?;
        self.request(path, body)
    }

    fn require_separate(&mut self) -> Result<(), Verdict> {
        if self.is_separate {
            return Ok(());
        }
        let mut range = prefix(REGISTRY);
        range["limit"] = json!("1");
        range["keys_only"] = json!(true);
        match self.request(RANGE, &range) {
            Ok(reply) if reply.kvs.is_empty() => (),
            Ok(_) => return Err(Verdict::Unreachable(CONTROL_PLANE.to_owned())),
            // A role for our prefix alone is what it should be.
            Err(Verdict::Refused(reason)) if reason.contains("permission denied") => (),
            Err(verdict) => return Err(unsent(verdict)),
        }
        self.is_separate = true;
        Ok(())
    }

    /// Asks with a token, if there is a user. For a token that has expired there is one more.
    fn request(&mut self, path: &str, body: &Json) -> Result<Reply, Verdict> {
        self.renew();
        loop {
            let may_expire = self.token.is_some();
            let request = self.authorized(path, body)?;
            let reply = self.exchange(&request).and_then(|reply| self.checked(reply));
            if !matches!(reply, Err(Verdict::Unauthenticated(_))) {
                return reply;
            }
            self.token = None;
            if !may_expire {
                return reply;
            }
        }
    }

    fn authorized(&mut self, path: &str, body: &Json) -> Result<Request, Verdict> {
        if let (Some([name, password]), None) = (&self.login, &self.token) {
            let body = json!({"name": name, "password": password});
            let token = self.exchange(&post(AUTHENTICATE, &body)).map_err(unsent)?.token;
            // It becomes a part of a header.
            if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Verdict::Unreachable("the response has no valid token".to_owned()));
            }
            self.token = Some(token);
        }
        let mut request = post(path, body);
        request.headers.extend(self.token.clone().map(|token| ("Authorization", token)));
        Ok(request)
    }

    fn exchange(&mut self, request: &Request) -> Result<Reply, Verdict> {
        let verdict = match self.http.exchange(request) {
            Ok(reply) if reply.head.status == 200 => match serde_json::from_slice(&reply.body) {
                Ok(reply) => return Ok(reply),
                Err(error) => unreadable(&error).of_member(&reply.server),
            },
            Ok(reply) => Verdict::of(&reply),
            Err(failure) if failure.is_sent => return Err(Verdict::Unknown(failure.reason)),
            Err(failure) => return Err(Verdict::Unreachable(failure.reason)),
        };
        if matches!(verdict, Verdict::Busy | Verdict::Unreachable(_) | Verdict::Unknown(_)) {
            self.http.distrust();
        }
        Err(verdict)
    }

    /// A reply of the etcd that has answered before. Another one may have executed the request.
    fn checked(&mut self, reply: Reply) -> Result<Reply, Verdict> {
        if self.cluster == 0 {
            self.cluster = reply.header.cluster_id.0;
        }
        require_cluster(self.cluster, &reply.header).inspect_err(|_| self.http.distrust())?;
        Ok(reply)
    }

    /// The revision of a write of one key; lost unless everything compared is true.
    fn commit(&mut self, compare: &Json, write: &Json) -> Result<u64, Verdict> {
        let reply = self.ask(TXN, &json!({"compare": compare, "success": [write]}))?;
        if reply.succeeded { Ok(reply.header.revision.0) } else { Err(Verdict::Lost) }
    }

    fn put(&mut self, record: &Record, compare: &Json) -> Result<Stored, Verdict> {
        let (key, value) = (self.keys.text(&record.key), encode(record.value.to_json().as_bytes()));
        let put = json!({"requestPut": {"key": encode(key.as_bytes()), "value": value}});
        let revision = self.commit(compare, &put)?;
        Ok(Stored { record: record.clone(), version: version(revision, &value) })
    }

    /// Compares a key with what was seen of it.
    fn as_seen(&self, seen: &Stored) -> Json {
        let key = encode(self.keys.text(&seen.record.key).as_bytes());
        let (revision, value) = seen.version.0.split_once(':').unwrap_or_default();
        json!([
            {"key": key, "target": "MOD", "mod_revision": revision},
            {"key": key, "target": "VALUE", "value": value},
        ])
    }

    /// Lists what a watch is about, and watches from there.
    fn follow(&mut self, tell: &mut dyn FnMut(Heard) -> bool) -> Result<(), Verdict> {
        loop {
            let (found, revision) = self.pages(&["c/"], false, |_| true)?;
            if !tell(Heard::Now(found)) {
                return Ok(());
            }
            match self.follow_from(revision + 1, tell) {
                Err(Verdict::Compacted) => (),
                Err(Verdict::Unauthenticated(reason)) => {
                    self.token = None;
                    return Err(Verdict::Unauthenticated(reason));
                }
                ended => return ended,
            }
        }
    }

    fn follow_from(
        &mut self,
        revision: u64,
        tell: &mut dyn FnMut(Heard) -> bool,
    ) -> Result<(), Verdict> {
        let mut create = prefix(&self.keys.below("c/"));
        create["start_revision"] = json!(revision.to_string());
        create["progress_notify"] = json!(true);
        let mut request = self.authorized(WATCH, &json!({"create_request": create}))?;
        // A member without a leader ends the watch instead of being silent.
        request.headers.push(("Grpc-Metadata-hasleader", "true".to_owned()));
        let (keys, cluster, mut end) = (&self.keys, self.cluster, Ok(()));
        let streamed =
            self.http.stream(&request, SILENCE, &mut |line| match heard(keys, cluster, line) {
                Ok(heard) => heard.into_iter().all(&mut *tell),
                Err(verdict) => {
                    end = Err(verdict);
                    false
                }
            });
        match streamed {
            Ok(None) => end,
            Ok(Some(reply)) => Err(Verdict::of(&reply)),
            Err(failure) => Err(Verdict::Unknown(failure.reason)),
        }
    }
}

fn heard(keys: &Keys, cluster: u64, line: &[u8]) -> Result<Vec<Heard>, Verdict> {
    if line.is_empty() {
        return Ok(vec![]);
    }
    let message: Message = serde_json::from_slice(line).map_err(|error| unreadable(&error))?;
    if let Some(problem) = &message.error {
        return Err(Verdict::of_problem(problem));
    }
    if message.result.canceled {
        return Err(Verdict::of_canceled(&message.result));
    }
    require_cluster(cluster, &message.result.header)?;
    let of_event = |event: &gateway::Event| match event.r#type.as_str() {
        "DELETE" => key(keys, &event.kv).map(Heard::Gone),
        _ => stored(keys, &event.kv).map(Heard::Put),
    };
    Ok(message.result.events.iter().filter_map(of_event).collect())
}

fn require_cluster(cluster: u64, header: &Header) -> Result<(), Verdict> {
    match header.cluster_id.0 {
        0 => Err(Verdict::Unknown("the response is none of etcd's".to_owned())),
        id if id == cluster => Ok(()),
        id => Err(Verdict::Unknown(format!(
            "the response is of etcd's cluster {id:x}, and those before were of {cluster:x}; is an \
             endpoint of another etcd?"
        ))),
    }
}

fn unreadable(error: &serde_json::Error) -> Verdict {
    Verdict::Unknown(format!("the response cannot be read: {error}"))
}

/// Before the request was sent, nothing of it is unknown, and it is not what was refused.
fn unsent(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Refused(reason) | Verdict::Unknown(reason) => Verdict::Unreachable(reason),
        verdict => verdict,
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

fn one(key: &str) -> Json {
    json!({"key": encode(key.as_bytes())})
}

/// All keys that begin with a text, which ends with an ASCII character.
fn prefix(prefix: &str) -> Json {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    json!({"key": encode(prefix.as_bytes()), "range_end": encode(&end)})
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

fn outcome<T>(done: Result<T, Verdict>) -> Outcome<T> {
    done.map_or_else(Verdict::outcome, Outcome::Done)
}

impl Store for Etcd {
    fn get(&mut self, key: &Key) -> Outcome<Option<Stored>> {
        let range = one(&self.keys.text(key));
        let reply = self.ask(RANGE, &range);
        outcome(reply.map(|reply| reply.kvs.first().and_then(|kv| stored(&self.keys, kv))))
    }

    fn list(&mut self, selection: &Selection) -> Outcome<Vec<Stored>> {
        outcome(self.select(selection))
    }

    fn create(&mut self, record: &Record) -> Outcome<Stored> {
        let key = encode(self.keys.text(&record.key).as_bytes());
        let absent = json!([{"key": key, "target": "CREATE", "create_revision": "0"}]);
        outcome(self.put(record, &absent))
    }

    fn update(&mut self, record: &Record, seen: &Stored) -> Outcome<Stored> {
        let compare = self.as_seen(seen);
        outcome(self.put(record, &compare))
    }

    fn delete(&mut self, seen: &Stored) -> Outcome<()> {
        let (compare, range) = (self.as_seen(seen), one(&self.keys.text(&seen.record.key)));
        outcome(self.commit(&compare, &json!({"requestDeleteRange": range})).map(drop))
    }

    fn watch(&mut self, tell: &mut dyn FnMut(Heard) -> bool) -> Outcome<()> {
        outcome(self.follow(tell))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
