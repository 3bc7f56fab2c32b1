//! Messages, options and leases: real ones, truncated ones, and many that no server would send.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::lease::Lease;
use super::options::{Options, code};
use super::{Message, MessageType, Op};
use crate::cni::result::AddResult;
use crate::net::mac::MacAddr;
use crate::plugins::ipam::dhcp::tests::{bytes, changed};
use crate::plugins::ipam::dhcp::times::Times;
use crate::sys::clock::NEVER;

const SECOND: Duration = Duration::from_secs(1);

/// A DHCPACK of dnsmasq 2.90 to busybox's udhcpc, from the magic cookie on.
const DNSMASQ: &str = "638253633501053604c00002013304000000783a040000003c3b04000000690104ffffff001c04c00002ff0304c0000201\
    21080a010000c0000203790c100a09c000020200c0000201771903656e67076578616d706c65036f726700c004036c6162c0000f0b6578616d\
    706c652e6f72670608c0000235c00002361a020578ff";

/// The fixed fields before it.
fn fixed() -> Vec<u8> {
    let mut bytes = bytes("02010600dfc9e8110001000000000000c0000213c000020100000000d28c2c20a223");
    bytes.resize(236, 0);
    bytes
}

fn of_dnsmasq() -> Vec<u8> {
    [fixed(), bytes(DNSMASQ)].concat()
}

/// A message with these octets as its options.
fn with_options(options: &[u8]) -> Vec<u8> {
    [fixed(), bytes("63825363"), options.to_vec()].concat()
}

fn options(list: &[(u8, &[u8])]) -> Options {
    let mut options = Options::default();
    list.iter().for_each(|(code, value)| options.set(*code, value));
    options
}

fn lease_of(options: Options) -> Lease {
    let mut ack = Message::of_client(MessageType::Ack, 7, &MacAddr::new(&[2, 0, 0, 0, 0, 1]));
    ack.yiaddr = Ipv4Addr::new(192, 0, 2, 19);
    ack.options = options;
    ack.options.set(code::SUBNET_MASK, &[255, 255, 255, 0]);
    Lease::of_ack(&ack, Ipv4Addr::new(192, 0, 2, 1), SECOND, None).unwrap()
}

/// The routes of a result as `dst gw mtu priority scope`.
fn routes(result: &AddResult) -> Vec<String> {
    let text = |value: Option<String>| value.unwrap_or("-".to_owned());
    let line = |route: &crate::cni::result::Route| {
        let gw = text(route.gw.map(|gw| gw.to_string()));
        let scope = text(route.scope.map(|scope| scope.to_string()));
        format!("{} {gw} {} {} {scope}", route.dst, route.mtu, route.priority)
    };
    result.routes.iter().map(line).collect()
}

#[test]
fn a_message_of_dnsmasq_is_read() {
    let message = Message::decode(&of_dnsmasq()).unwrap();
    assert_eq!((message.op, message.kind()), (Op::Reply, Some(MessageType::Ack)));
    assert_eq!((message.xid, message.secs, message.broadcast), (0xdfc9_e811, 1, false));
    assert_eq!(message.yiaddr, Ipv4Addr::new(192, 0, 2, 19));
    assert_eq!(message.siaddr, Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(message.chaddr.to_string(), "d2:8c:2c:20:a2:23");
    assert_eq!(message.options.long(code::LEASE_TIME), Some(120));
    let server = message.options.address(code::SERVER_ID).unwrap();
    let lease = Lease::of_ack(&message, server, SECOND * 10, None).unwrap();
    assert_eq!(
        (lease.net.to_string(), lease.server),
        ("192.0.2.19/24".to_owned(), Ipv4Addr::new(192, 0, 2, 1))
    );
    let Times { t1, t2, expires, .. } = lease.times;
    assert_eq!((t1, t2, expires), (SECOND * 70, SECOND * 115, SECOND * 130));
    let result = lease.result(3);
    assert_eq!(routes(&result), ["10.9.0.0/16 192.0.2.2 1400 3 -", "0.0.0.0/0 192.0.2.1 1400 3 -"]);
    assert_eq!(result.ips[0].address.to_string(), "192.0.2.19/24");
    assert_eq!(result.ips[0].gateway.unwrap().to_string(), "192.0.2.1");
    assert_eq!(result.dns.nameservers, ["192.0.2.53", "192.0.2.54"]);
    assert_eq!(result.dns.domain, "example.org");
    assert_eq!(result.dns.search, ["eng.example.org", "example.org", "lab.eng.example.org"]);
    assert!(result.interfaces.is_empty());
}

#[test]
fn what_is_written_is_read_again() {
    let mut message =
        Message::of_client(MessageType::Discover, 0x0102_0304, &MacAddr::new(&[2, 0, 0, 0, 0, 1]));
    (message.secs, message.broadcast) = (0x0506, true);
    [message.ciaddr, message.yiaddr, message.siaddr, message.giaddr] =
        [1, 2, 3, 4].map(|n| [10, 0, 0, n].into());
    message.options.set(code::CLIENT_ID, b"id");
    message.options.set(code::HOST_NAME, b"");
    let encoded = message.encode();
    let mut expected =
        bytes("01010600 01020304 05068000 0a000001 0a000002 0a000003 0a000004 020000000001");
    expected.resize(236, 0);
    expected.extend(bytes("63825363 0c00 350101 3d026964 ff"));
    expected.resize(300, 0);
    assert_eq!(encoded, expected);
    assert_eq!(Message::decode(&encoded), Ok(message));
}

#[test]
fn an_address_that_does_not_fit_is_left_out() {
    let message = Message::of_client(MessageType::Discover, 1, &MacAddr::new(&[2; 20]));
    assert_eq!(Message::decode(&message.encode()).unwrap().chaddr, MacAddr::new(&[]));
    let message = Message::of_client(MessageType::Discover, 1, &MacAddr::new(&[2; 16]));
    assert_eq!(Message::decode(&message.encode()), Ok(message));
}

/// RFC 3396.
#[test]
fn long_options_go_out_in_pieces_and_come_back_whole() {
    for length in [0_usize, 1, 254, 255, 256, 510, 511, 1200] {
        let value: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let mut message = Message::of_client(MessageType::Discover, 1, &MacAddr::new(&[2; 6]));
        message.options.set(code::USER_CLASS, &value);
        let pieces = length.div_ceil(255).max(1);
        assert_eq!(message.encode().len(), 300.max(240 + 3 + 2 * pieces + length + 1), "{length}");
        assert_eq!(Message::decode(&message.encode()), Ok(message), "{length}");
    }
    // Pieces need not be adjacent.
    let torn = Message::decode(&with_options(&[15, 2, b'a', b'b', 53, 1, 5, 0, 15, 1, b'c', 255]))
        .unwrap();
    assert_eq!(torn.options.get(code::DOMAIN), Some(b"abc".as_slice()));
}

/// RFC 2131, section 4.1: first the options, then `file`, then `sname`.
#[test]
fn overloaded_fields_have_options() {
    let message = |overload: u8, file: &[u8], sname: &[u8]| {
        let mut bytes = with_options(&[53, 1, 5, 52, 1, overload, 15, 1, b'a', 255]);
        bytes[108..108 + file.len()].copy_from_slice(file);
        bytes[44..44 + sname.len()].copy_from_slice(sname);
        Message::decode(&bytes)
    };
    let file = [15, 1, b'b', 255];
    let sname = [15, 1, b'c', 52, 1, 3, 255];
    for (overload, domain) in [(0, "a"), (1, "ab"), (2, "ac"), (3, "abc"), (4, "a")] {
        let message = message(overload, &file, &sname).unwrap();
        assert_eq!(message.options.get(code::DOMAIN), Some(domain.as_bytes()), "{overload}");
        assert_eq!(
            message.options.get(code::OVERLOAD),
            None,
            "it is none of what the server tells"
        );
    }
    assert_eq!(message(1, &[15, 200], &sname), Err("an option is cut off"));
    assert_eq!(message(3, &file, &[0; 64]), Err("its options have no end"));
}

#[test]
fn what_is_no_message_is_refused_with_a_reason() {
    let good = of_dnsmasq();
    let changed = |at: usize, octet: u8| {
        let mut bytes = good.clone();
        bytes[at] = octet;
        bytes
    };
    let cases = [
        (vec![], "it is shorter than 240 octets"),
        (good[..239].to_vec(), "it is shorter than 240 octets"),
        (good[..240].to_vec(), "its options have no end"),
        (good[..good.len() - 1].to_vec(), "its options have no end"),
        (good[..good.len() - 2].to_vec(), "an option is cut off"),
        (with_options(&[53]), "an option is cut off"),
        (with_options(&[53, 1]), "an option is cut off"),
        (with_options(&[0; 60]), "its options have no end"),
        (changed(0, 0), "its op is neither request nor reply"),
        (changed(0, 3), "its op is neither request nor reply"),
        (changed(2, 17), "its hardware address is longer than 16 octets"),
        (changed(236, 0), "it has no magic cookie"),
        (changed(239, 0), "it has no magic cookie"),
    ];
    for (bytes, reason) in cases {
        assert_eq!(Message::decode(&bytes), Err(reason));
    }
    assert!(
        Message::decode(&[good, vec![1, 2, 3]].concat()).is_ok(),
        "what follows the end is nothing"
    );
}

#[test]
fn message_types_are_those_of_the_rfc() {
    for (octet, kind) in [
        (vec![1], Some(MessageType::Discover)),
        (vec![2], Some(MessageType::Offer)),
        (vec![3], Some(MessageType::Request)),
        (vec![4], Some(MessageType::Decline)),
        (vec![5], Some(MessageType::Ack)),
        (vec![6], Some(MessageType::Nak)),
        (vec![7], Some(MessageType::Release)),
        (vec![0], None),
        (vec![8], None),
        (vec![], None),
        (vec![5, 5], None),
    ] {
        let mut message = Message::of_client(MessageType::Ack, 1, &MacAddr::new(&[2; 6]));
        message.options.set(code::MESSAGE_TYPE, &octet);
        assert_eq!(message.kind(), kind, "{octet:?}");
    }
}

#[test]
fn options_of_a_wrong_length_are_none() {
    let options = options(&[
        (1, &[255, 255, 255]),
        (3, &[10, 0, 0, 1, 10, 0]),
        (26, &[5]),
        (58, &[]),
        (53, &[1, 2]),
    ]);
    assert_eq!(
        (options.address(1), options.short(26), options.long(58), options.octet(53)),
        (None, None, None, None)
    );
    assert_eq!(options.addresses(3).collect::<Vec<_>>(), [Ipv4Addr::new(10, 0, 0, 1)]);
    assert_eq!(options.addresses(6).count(), 0);
}

/// Seconds of lease, T1 and T2 as sent, and the resulting ones.
#[test]
fn times_that_cannot_be_are_as_the_rfc_has_them() {
    type Sent = [Option<u32>; 3];
    let cases: [(Sent, [u64; 3]); 15] = [
        ([Some(1000), None, None], [500, 875, 1000]),
        ([Some(1000), Some(100), Some(200)], [100, 200, 1000]),
        ([Some(1000), Some(100), None], [100, 875, 1000]),
        ([Some(1000), None, Some(600)], [342, 600, 1000]),
        ([Some(1000), None, Some(950)], [500, 950, 1000]),
        ([Some(1000), Some(0), Some(0)], [500, 875, 1000]),
        ([Some(1000), Some(2000), Some(3000)], [500, 875, 1000]),
        ([Some(1000), Some(1000), Some(1000)], [500, 875, 1000]),
        ([Some(1000), Some(900), Some(800)], [457, 800, 1000]),
        ([Some(1000), Some(u32::MAX), Some(u32::MAX)], [500, 875, 1000]),
        ([None, None, None], [1800, 3150, 3600]),
        ([None, Some(60), Some(90)], [60, 90, 3600]),
        ([Some(0), None, None], [1800, 3150, 3600]),
        ([Some(1), None, None], [0, 0, 1]),
        ([Some(u32::MAX - 1), None, None], [2_147_483_647, 3_758_096_382, 4_294_967_294]),
    ];
    for (sent, expected) in cases {
        let mut options = Options::default();
        for (code, seconds) in
            [code::LEASE_TIME, code::RENEWAL_TIME, code::REBINDING_TIME].into_iter().zip(sent)
        {
            seconds.into_iter().for_each(|seconds| options.set(code, &seconds.to_be_bytes()));
        }
        let Times { acquired, t1, t2, expires } = lease_of(options).times;
        let found = [t1, t2, expires].map(|moment| (moment - acquired).as_secs());
        assert_eq!(found, expected, "{sent:?}");
        assert!(acquired < t1 && t1 < t2 && t2 < expires, "{sent:?}");
    }
    let endless = lease_of(options(&[(51, &[255; 4]), (58, &[0, 0, 0, 9])]));
    let Times { t1, t2, expires, .. } = endless.times;
    assert_eq!([t1, t2, expires], [NEVER; 3]);
}

#[test]
fn routes_are_those_of_option_121_or_those_of_33_and_the_router() {
    let router: (u8, &[u8]) = (3, &[10, 0, 0, 1, 10, 0, 0, 2]);
    let by_class: (u8, &[u8]) = (
        33,
        &[10, 1, 2, 3, 10, 0, 0, 9, 172, 16, 5, 0, 10, 0, 0, 9, 192, 0, 2, 7, 10, 0, 0, 9, 1, 2],
    );
    let of_class = [
        "10.0.0.0/8 10.0.0.9 0 0 -",
        "172.16.0.0/16 10.0.0.9 0 0 -",
        "192.0.2.0/24 10.0.0.9 0 0 -",
    ];
    let default = "0.0.0.0/0 10.0.0.1 0 0 -";
    let cases: [(&str, Options, Vec<&str>); 13] = [
        ("nothing", options(&[]), vec![]),
        ("a router", options(&[router]), vec![default]),
        ("no router", options(&[(3, &[0; 4])]), vec![]),
        ("half a router", options(&[(3, &[10, 0])]), vec![]),
        ("by class", options(&[by_class, router]), [of_class.as_slice(), &[default]].concat()),
        (
            "default and groups by class",
            options(&[(
                33,
                &[0, 0, 0, 0, 10, 0, 0, 9, 224, 0, 0, 0, 10, 0, 0, 9, 255, 0, 0, 0, 10, 0, 0, 9],
            )]),
            vec![],
        ),
        (
            "without class",
            options(&[
                (
                    121,
                    &[0, 10, 0, 0, 7, 25, 10, 1, 1, 255, 10, 0, 0, 8, 32, 1, 2, 3, 4, 0, 0, 0, 0],
                ),
                by_class,
                router,
            ]),
            vec![
                "0.0.0.0/0 10.0.0.7 0 0 -",
                "10.1.1.128/25 10.0.0.8 0 0 -",
                "1.2.3.4/32 0.0.0.0 0 0 253",
            ],
        ),
        ("empty 121", options(&[(121, &[]), router]), vec![default]),
        ("121 cut off", options(&[(121, &[24, 10, 1, 1, 10, 0, 0]), router]), vec![default]),
        (
            "121 with an impossible prefix",
            options(&[(121, &[33, 1, 2, 3, 4, 5, 10, 0, 0, 8]), router]),
            vec![default],
        ),
        ("121 with an odd end", options(&[(121, &[8, 10, 10, 0, 0, 8, 8]), router]), vec![default]),
        (
            "249 alone",
            options(&[(249, &[8, 10, 10, 0, 0, 8]), router]),
            vec!["10.0.0.0/8 10.0.0.8 0 0 -"],
        ),
        (
            "249 and 121",
            options(&[(249, &[8, 10, 10, 0, 0, 8]), (121, &[8, 11, 10, 0, 0, 8])]),
            vec!["11.0.0.0/8 10.0.0.8 0 0 -"],
        ),
    ];
    for (what, options, expected) in cases {
        assert_eq!(routes(&lease_of(options).result(0)), expected, "{what}");
    }
}

#[test]
fn an_mtu_is_that_of_the_routes_unless_it_cannot_be() {
    for (mtu, expected) in
        [(1400_u16, 1400), (68, 68), (67, 0), (0, 0), (1500, 1500), (1501, 0), (9000, 0)]
    {
        let lease = lease_of(options(&[(3, &[10, 0, 0, 1]), (26, &mtu.to_be_bytes())]));
        assert_eq!(routes(&lease.result(7)), [format!("0.0.0.0/0 10.0.0.1 {expected} 7 -")]);
    }
}

#[test]
fn a_domain_cannot_add_directives_to_resolv_conf() {
    let long = "a.".repeat(126) + "ab";
    for (sent, expected) in [
        ("example.org", "example.org"),
        ("example.org\0\0", "example.org"),
        ("example.org.", "example.org"),
        ("my_lan-1", "my_lan-1"),
        ("", ""),
        (".", ""),
        ("a..b", ""),
        (".a", ""),
        ("a\nnameserver 192.0.2.66", ""),
        ("a b", ""),
        ("ä.org", ""),
        ("a\0b", ""),
        (&long[..253], &long[..253]),
        (&long, ""),
    ] {
        assert_eq!(
            lease_of(options(&[(15, sent.as_bytes())])).result(0).dns.domain,
            expected,
            "{sent:?}"
        );
    }
    assert_eq!(lease_of(options(&[(15, b"\xff")])).result(0).dns.domain, "");
}

/// RFC 3397, with the compression of RFC 1035.
#[test]
fn search_lists_are_uncompressed_or_left_out() {
    let cases: [(&[u8], &[&str]); 14] = [
        (b"\x01a\x03org\0", &["a.org"]),
        (b"\x01a\x03org\0\x01b\xc0\x02", &["a.org", "b.org"]),
        (b"\x01a\x03org\0\x01b\xc0\x02\xc0\x07", &["a.org", "b.org", "b.org"]),
        (b"\0\x01a\0", &["a"]),
        (b"", &[]),
        (b"\x01a", &[]),
        (b"\x05a", &[]),
        (b"\xc0\0", &[]),
        (b"\x01a\xc0\0", &[]),
        (b"\x01a\0\xc0\x09", &[]),
        (b"\x01a\0\xc0", &[]),
        (b"\x41a\0", &[]),
        (b"\x03a\nb\0", &[]),
        (b"\x01a\0\x03a.b\0", &[]),
    ];
    for (sent, expected) in cases {
        assert_eq!(
            lease_of(options(&[(119, sent)])).result(0).dns.search,
            expected,
            "{}",
            sent.escape_ascii()
        );
    }
    let longest =
        [b"\x01a\0".to_vec(), b"\x3f".to_vec(), vec![b'x'; 63], b"\xc0\0".to_vec()].concat();
    assert_eq!(lease_of(options(&[(119, &longest)])).result(0).dns.search.len(), 2);
    let too_long = [[b"\x3f".to_vec(), vec![b'x'; 63]].concat().repeat(4), vec![0]].concat();
    assert!(lease_of(options(&[(119, &too_long)])).result(0).dns.search.is_empty());
}

#[test]
fn name_servers_are_those_that_can_be() {
    let dns = lease_of(options(&[(6, &[0, 0, 0, 0, 192, 0, 2, 53, 1])])).result(0).dns;
    assert_eq!(dns.nameservers, ["192.0.2.53"]);
}

#[test]
fn a_lease_is_journalled_and_read_again() {
    let message = Message::decode(&of_dnsmasq()).unwrap();
    let lease = Lease::of_ack(&message, Ipv4Addr::new(192, 0, 2, 1), SECOND * 10, None).unwrap();
    let endless = lease_of(options(&[(51, &[255; 4])]));
    for lease in [lease, endless] {
        let text = serde_json::to_string(&lease).unwrap();
        assert_eq!(serde_json::from_str::<Lease>(&text).unwrap(), lease);
    }
    let lease = lease_of(options(&[(51, &[0, 0, 0, 120])]));
    let expected = r#"{"address":"192.0.2.19/24","server":"192.0.2.1","xid":7,"options":"0104ffffff00330400000078ff","acquired":1000,"t1":61000,"t2":106000,"expires":121000}"#;
    assert_eq!(serde_json::to_string(&lease).unwrap(), expected);
}

#[test]
fn a_torn_journal_is_no_lease() {
    let good = serde_json::to_value(lease_of(Options::default())).unwrap();
    let cases = [
        ("address", r#""192.0.2.19""#, "invalid IP address syntax"),
        ("address", r#""192.0.2.19/33""#, "invalid IP address syntax"),
        ("address", "7", "invalid type: integer `7`, expected IPv4 network address"),
        ("server", r#""""#, "invalid IPv4 address syntax"),
        ("xid", "4294967296", "invalid value: integer `4294967296`, expected u32"),
        ("xid", "-1", "invalid value: integer `-1`, expected u32"),
        ("xid", "null", "invalid type: null, expected u32"),
        ("options", r#""f""#, "\"f\": expected pairs of hex digits"),
        ("options", r#""zz""#, "\"zz\": expected pairs of hex digits"),
        ("options", r#""""#, "its options have no end"),
        ("options", r#""ää""#, "\"ää\": expected pairs of hex digits"),
        ("t1", r#""soon""#, "invalid type: string \"soon\", expected u64"),
        ("acquired", "1.5", "invalid type: floating point `1.5`, expected u64"),
    ];
    for (key, value, expected) in cases {
        let mut torn = good.clone();
        torn[key] = serde_json::from_str(value).unwrap();
        let error = serde_json::from_value::<Lease>(torn).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{key}: {error}");
    }
    assert!(serde_json::from_str::<Lease>("null").is_err());
}

/// Checks what must hold for any octets; the fuzz target checks the same.
fn take(bytes: &[u8]) -> bool {
    let Ok(message) = Message::decode(bytes) else { return false };
    assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));
    if let Some(lease) = Lease::of_ack(&message, Ipv4Addr::LOCALHOST, SECOND, None) {
        let result = lease.result(1);
        assert!(result.routes.iter().all(|route| route.dst == route.dst.trunc()));
        assert!(lease.times.t1 <= lease.times.t2 && lease.times.t2 <= lease.times.expires);
        assert_eq!(
            serde_json::from_value::<Lease>(serde_json::to_value(&lease).unwrap())
                .map(|lease| lease.options)
                .ok(),
            Some(lease.options)
        );
    }
    true
}

#[test]
fn no_octets_are_taken_wrongly() {
    let read = changed([of_dnsmasq(), of_dnsmasq()]).filter(|packet| take(packet)).count();
    assert!((2_000..18_000).contains(&read), "{read} of 20000 were messages");
    for length in 0..of_dnsmasq().len() {
        assert!(!take(&of_dnsmasq()[..length]));
    }
    assert!(take(&of_dnsmasq()));
}
