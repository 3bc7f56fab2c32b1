//! Single fields: what is read, left out and refused.

use super::*;
use crate::cni::json;

#[test]
fn route_round_trips_with_every_field() {
    let text = r#"{"dst":"1.2.3.0/24","gw":"1.2.3.1","mtu":1500,"advmss":1340,"priority":100,"table":50,"scope":253}"#;
    let route: Route = serde_json::from_str(text).unwrap();
    assert_eq!((route.mtu, route.advmss, route.priority), (1500, 1340, 100));
    assert_eq!((route.table, route.scope), (Some(50), Some(253)));
    assert_eq!(json::text(&route), text);
}

#[test]
fn route_keeps_an_explicit_zero_of_table_and_scope_only() {
    let text = r#"{"dst":"::/0","gw":"","mtu":0,"advmss":0,"priority":0,"table":0,"scope":0}"#;
    let route: Route = serde_json::from_str(text).unwrap();
    assert_eq!(json::text(&route), r#"{"dst":"::/0","table":0,"scope":0}"#);
}

#[test]
fn numbers_must_be_integers() {
    for json in [
        r#"{"dst":"::/0","mtu":1.0}"#,
        r#"{"dst":"::/0","mtu":1e3}"#,
        r#"{"dst":"::/0","mtu":"1"}"#,
    ] {
        assert!(serde_json::from_str::<Route>(json).is_err(), "{json}");
    }
}

// Go runtimes send null for an empty list.
#[test]
fn null_fields_are_absent_fields() {
    let nulls = r#"{"interfaces":null,"ips":null,"routes":null,"dns":null}"#;
    assert_eq!(
        parse(&nulls.replace('{', r#"{"cniVersion":"1.0.0","#)),
        parse(r#"{"cniVersion":"1.0.0"}"#)
    );
}

#[test]
fn dns_is_empty_when_all_four_are() {
    assert!(Dns::default().is_empty());
    for json in [
        r#"{"nameservers":["1.1.1.1"]}"#,
        r#"{"domain":"a"}"#,
        r#"{"search":["a"]}"#,
        r#"{"options":["ndots:5"]}"#,
    ] {
        let dns: Dns = serde_json::from_str(json).unwrap();
        assert!(!dns.is_empty());
        assert_eq!(json::text(&dns), json);
    }
}

// No specification has the key yet.
#[test]
fn next_hops_are_read_once_each_and_not_printed() {
    let text =
        r#"{"dst":"10.0.0.0/8","gw":"10.1.0.1","gws":["10.1.0.2","::ffff:10.1.0.1","10.1.0.2"]}"#;
    let route: Route = serde_json::from_str(text).unwrap();
    let hops: Vec<String> = route.next_hops().iter().map(ToString::to_string).collect();
    assert_eq!(hops, ["10.1.0.2", "10.1.0.1"]);
    assert_eq!(json::text(&route), r#"{"dst":"10.0.0.0/8","gw":"10.1.0.1"}"#);
    for hops in [r#"[""]"#, r#"["hello"]"#, "[null]", "[5]", r#""10.1.0.1""#] {
        let text = format!(r#"{{"dst":"10.0.0.0/8","gws":{hops}}}"#);
        assert!(serde_json::from_str::<Route>(&text).is_err(), "{text}");
    }
}
