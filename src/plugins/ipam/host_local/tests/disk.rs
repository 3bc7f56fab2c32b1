//! States of the disk: torn files, foreign files, a stale index, and concurrent processes.

use super::*;

#[test]
fn a_torn_lease_is_free() {
    let net = Net::small();
    net.write("10.1.2.2", "");
    assert_eq!(net.add("a").unwrap(), ["10.1.2.2/29"]);
    assert_eq!(net.read("10.1.2.2").unwrap(), "a\r\neth0");
}

#[test]
fn things_that_are_no_files_are_taken_and_stay() {
    let net = Net::small();
    fs::create_dir_all(net.dir()).unwrap();
    let at = |name: &str| net.dir().join(name);
    nix::unistd::mkfifo(&at("10.1.2.2"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", at("10.1.2.3")).unwrap();
    fs::create_dir(at("10.1.2.4")).unwrap();
    fs::write(at("10.1.2.5"), vec![b'x'; 200_000]).unwrap();
    assert_eq!(net.add("a").unwrap(), ["10.1.2.6/29"]);
    assert_eq!(msg(net.add("b")).0, 101);
    net.gc(&[]).unwrap();
    assert_eq!(
        net.names(),
        ["10.1.2.2", "10.1.2.3", "10.1.2.4", "10.1.2.5", "last_reserved_ip.0", "lock"]
    );
}

/// Only an administrator writes in place: the directory's mtime does not change, so the seal stays
/// valid.
#[test]
fn a_lease_written_over_in_place_is_its_new_owner_s() {
    let net = Net::small();
    net.add("old").unwrap();
    let rewrite = || {
        net.write("10.1.2.2", "new\r\neth0");
        assert!(net.is_sealed());
    };
    rewrite();
    net.check("old").unwrap_err();
    net.check("new").unwrap();
    net.assert_index_is_right();
    net.write("10.1.2.2", "old\r\neth0");
    net.gc(&[("old", "eth0")]).unwrap(); // GC reads all leases
    net.check("old").unwrap();
    rewrite();
    net.del("old").unwrap();
    assert_eq!(net.read("10.1.2.2").as_deref(), Some("new\r\neth0"));
    net.del("new").unwrap();
    assert_eq!(net.read("10.1.2.2"), None);
    net.assert_index_is_right();
}

#[test]
fn index_is_sealed_after_each_change_and_rebuilt_after_foreign() {
    let net = Net::small();
    net.add("a").unwrap();
    assert!(net.is_sealed());
    net.write("10.1.2.4", "theirs\r\neth0"); // as the reference writes it after a rollback
    assert!(!net.is_sealed());
    net.check("theirs").unwrap();
    assert!(net.is_sealed());
    net.assert_index_is_right();
    net.write("10.1.2.5", "theirs2\r\neth0");
    net.del("theirs2").unwrap();
    assert_eq!(net.read("10.1.2.5"), None);
    fs::remove_file(net.dir().join("10.1.2.2")).unwrap(); // as the reference's DEL does
    net.del("a").unwrap();
    assert_eq!(net.add("a").unwrap(), ["10.1.2.3/29"]);
    net.assert_index_is_right();
}

#[test]
fn a_crash_at_any_step_loses_nothing() {
    type Crash = fn(&Net);
    let crashed: [(&str, Crash); 6] = [
        ("lease linked, index not written", |net| net.write("10.1.2.3", "b\r\neth0")),
        ("index written, not sealed", |net| {
            net.write("10.1.2.3", "b\r\neth0");
            let owner = Owner::new("b", "eth0");
            let lease = Lease { ip: "10.1.2.3".parse().unwrap(), owner };
            net.index().write(index::Bucket::of("b"), [&lease]).unwrap();
        }),
        ("draft left, linked to the lease", |net| {
            fs::write(net.index().draft("lease"), "b\r\neth0").unwrap();
            fs::hard_link(net.index().draft("lease"), net.dir().join("10.1.2.3")).unwrap();
        }),
        ("one directory sealed, not the other", |net| {
            net.write("10.1.2.3", "b\r\neth0");
            let seal = fs::metadata(net.index().draft("")).unwrap().modified().unwrap();
            let other = seal + std::time::Duration::from_nanos(1_000);
            fs::File::open(net.dir()).unwrap().set_modified(other).unwrap();
        }),
        ("index half removed", |net| {
            net.write("10.1.2.3", "b\r\neth0");
            fs::remove_dir_all(net.index().draft("")).unwrap();
            fs::create_dir(net.index().draft("")).unwrap();
        }),
        ("index written in part", |net| {
            net.write("10.1.2.3", "b\r\neth0");
            net.index().write(index::Bucket::of("b"), []).unwrap();
        }),
    ];
    for (what, crash) in crashed {
        let net = Net::small();
        net.add("a").unwrap();
        crash(&net);
        net.assert_index_is_right();
        assert_eq!(net.add("b").map_err(|e| e.code), Err(Code::CONFLICT), "{what}");
        assert_eq!(net.add("c").unwrap(), ["10.1.2.4/29"], "{what}");
        assert_eq!(net.read("10.1.2.3").unwrap(), "b\r\neth0", "{what}");
        net.del("b").unwrap();
        net.del("a").unwrap();
        assert_eq!(net.names(), ["10.1.2.4", "last_reserved_ip.0", "lock"], "{what}");
        assert!(net.is_sealed(), "{what}");
        net.assert_index_is_right();
    }
}

#[test]
fn a_line_of_the_index_that_is_stale_frees_nobody_s_lease() {
    let net = Net::small();
    net.add("a").unwrap();
    net.add("b").unwrap();
    let b_s: std::net::IpAddr = "10.1.2.3".parse().unwrap();
    let lie = Lease { ip: b_s, owner: Owner::new("a", "eth0") };
    net.index().write(index::Bucket::of("a"), [&lie]).unwrap();
    net.index().seal(&net.dir()).unwrap();
    net.del("a").unwrap();
    assert_eq!(net.read("10.1.2.3").unwrap(), "b\r\neth0");
}

#[test]
fn without_an_index_everything_works_by_reading_all() {
    let net = Net::small();
    fs::create_dir_all(net.data_dir()).unwrap();
    fs::write(net.data_dir().join(".cni-multi"), "in the way").unwrap();
    assert_eq!(net.add("a").unwrap(), ["10.1.2.2/29"]);
    assert_eq!(net.add("b").unwrap(), ["10.1.2.3/29"]);
    assert_eq!(msg(net.add("a")).0, 102);
    net.check("a").unwrap();
    net.del("a").unwrap();
    net.gc(&[]).unwrap();
    assert_eq!(net.names(), ["last_reserved_ip.0", "lock"]);
}

#[test]
fn threads_at_once_get_different_addresses() {
    let net = Net::new(r#""ranges":[[{"subnet":"10.1.0.0/16"}]]"#);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let net = &net;
            scope.spawn(move || {
                for number in 0..25 {
                    net.add(&format!("c{thread}-{number}")).unwrap();
                    if number % 5 == 0 {
                        net.del(&format!("c{thread}-{number}")).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(net.names().len(), 8 * 20 + 2);
    assert!(net.is_sealed());
    net.assert_index_is_right();
}

#[test]
fn a_failed_write_of_the_cursor_takes_the_lease_back() {
    let net = Net::small();
    let elsewhere = net.scratch.path().join("elsewhere");
    fs::write(&elsewhere, "precious").unwrap();
    fs::create_dir_all(net.dir()).unwrap();
    std::os::unix::fs::symlink(&elsewhere, net.dir().join("last_reserved_ip.0")).unwrap();
    let error = net.add("a").unwrap_err();
    assert_eq!(error.code, Code::IO);
    assert!(error.msg.contains("last_reserved_ip.0"), "{error}");
    assert_eq!(net.names(), ["last_reserved_ip.0", "lock"]);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
    assert_eq!(net.index().read(index::Bucket::of("a")).unwrap(), []);
    net.check("a").unwrap_err();
}
