//! Queueing disciplines and their classes: tc(8), tc-tbf(8), tc-htb(8).

use std::fmt;

use nix::errno::Errno;
use rtnetlink::packet_core::{DefaultNla, NLM_F_ACK, NLM_F_ECHO};
use rtnetlink::packet_route::tc::{TcAttribute, TcHeader, TcMessage};

use super::attr::{Attributes, Attrs, read_u32};
use super::link::Link;
use super::socket::{
    Netlink, RTM_DELQDISC, RTM_GETQDISC, RTM_GETTCLASS, RTM_NEWQDISC, RTM_NEWTCLASS, Request,
    refused,
};
use crate::error::{Error, Result};

/// tcmsg.
pub(super) const HEADER: usize = 20;
/// The offsets of its fields.
const TCM_IFINDEX: usize = 4;
const TCM_HANDLE: usize = 8;
const TCM_PARENT: usize = 12;
// linux/rtnetlink.h
pub(super) const TCA_KIND: u16 = 1;
pub(super) const TCA_OPTIONS: u16 = 2;
// linux/pkt_sched.h
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_DIRECT_QLEN: u16 = 5;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const HTB_VERSION: u32 = 3;
const TCA_FQ_CODEL_FLOWS: u16 = 5;
/// The kernel's name for the qdisc with a queue for each flow, which bounds how long packets wait.
pub const FQ_CODEL: &str = "fq_codel";
/// The second byte of tc_ratespec: packets are counted as on Ethernet, so the kernel needs no table
/// of transmission times.
const LINKLAYER_ETHERNET: u32 = u32::from_ne_bytes([0, 1, 0, 0]);
/// The offset of the default class in tc_htb_glob.
const HTB_DEFCLS: usize = 8;
/// The offsets, in the parameters of a class or a bucket, of a rate and of what follows both rates.
const RATE: usize = 8;
const AFTER_RATES: usize = 24;
/// How many packets may be queued where nothing limits them: the kernel's default is the link's
/// queue length, which is 0 for links of the reference.
const DIRECT_PACKETS: u32 = 1000;
/// What a class may send before it is another class's turn; ours have no siblings.
const QUANTUM: u32 = 10_000;

/// The number of a qdisc or a class, as `major:minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub(super) u32);

impl Handle {
    /// The parent of the link's root qdisc.
    pub const ROOT: Handle = Handle(u32::MAX);
    /// The parent of the qdisc for received packets.
    pub const INGRESS: Handle = Handle(0xffff_fff1);
    /// No handle: the kernel chooses one, or all are meant.
    const UNSPECIFIED: Handle = Handle(0);

    /// `major:minor`.
    pub const fn new(major: u16, minor: u16) -> Handle {
        Handle((major as u32) << 16 | minor as u32)
    }

    /// The first class of the qdisc with this handle.
    pub fn first_class(self) -> Handle {
        Handle(self.0 | 1)
    }

    /// The handle with the next major number.
    #[must_use]
    pub fn next(self) -> Handle {
        Handle(self.0 + 0x1_0000)
    }
}

/// As tc(8) writes it.
impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.0 >> 16, self.0 & 0xffff) {
            (Handle::ROOT, ..) => f.write_str("root"),
            (Handle::INGRESS, ..) => f.write_str("ingress"),
            (_, major, 0) => write!(f, "{major:x}:"),
            (_, major, minor) => write!(f, "{major:x}:{minor:x}"),
        }
    }
}

/// A token bucket, which limits what may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Bytes a second.
    pub rate: u64,
    /// The time it takes to fill, in ticks of 64 ns.
    pub buffer: u32,
    /// Bytes that may be queued.
    pub limit: u32,
}

/// A class of HTB without siblings to share with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtbClass {
    /// Its handle.
    pub handle: Handle,
    /// Bytes a second.
    pub rate: u64,
    /// Bytes a second that it may borrow up to.
    pub ceil: u64,
    /// The time its bucket takes to fill, in ticks of 64 ns.
    pub buffer: u32,
}

/// The kinds of qdisc: those that we create, and any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QdiscKind {
    /// One token bucket for all packets.
    Tbf(Bucket),
    /// A tree of classes. Packets that no filter sends to a class are not limited.
    Htb,
    /// A place for filters on what the link receives.
    Ingress,
    /// Any other kind, by the kernel's name.
    Other(String),
}

impl QdiscKind {
    /// The kernel's name for it.
    pub fn name(&self) -> &str {
        match self {
            QdiscKind::Tbf(_) => "tbf",
            QdiscKind::Htb => "htb",
            QdiscKind::Ingress => "ingress",
            QdiscKind::Other(name) => name,
        }
    }

    fn options(&self) -> Option<Vec<u8>> {
        let mut options = Attributes::default();
        match self {
            QdiscKind::Tbf(bucket) => {
                options.words(TCA_TBF_PARMS, &bucket.words());
                options.u64(TCA_TBF_RATE64, bucket.rate);
            }
            QdiscKind::Htb => {
                // version, rate to quantum, default class, debug, packets that were not limited
                options.words(TCA_HTB_INIT, &[HTB_VERSION, 10, 0, 0, 0]);
                options.u32(TCA_HTB_DIRECT_QLEN, DIRECT_PACKETS);
            }
            QdiscKind::Ingress | QdiscKind::Other(_) => return None,
        }
        Some(options.bytes().to_vec())
    }

    fn read(name: String, options: &[u8]) -> Option<QdiscKind> {
        let attrs = Attrs::of(options);
        Some(match name.as_str() {
            "tbf" => QdiscKind::Tbf(Bucket::read(attrs)?),
            // An HTB with a default class is not ours, and limits other packets.
            "htb" if read_u32(attrs.bytes(TCA_HTB_INIT)?, HTB_DEFCLS)? == 0 => QdiscKind::Htb,
            "ingress" => QdiscKind::Ingress,
            _ => QdiscKind::Other(name),
        })
    }
}

impl Bucket {
    /// tc_tbf_qopt: two tc_ratespec, limit, buffer, mtu.
    fn words(&self) -> [u32; 9] {
        [LINKLAYER_ETHERNET, 0, short(self.rate), 0, 0, 0, self.limit, self.buffer, 0]
    }

    fn read(attrs: Attrs<'_>) -> Option<Bucket> {
        let parameters = attrs.bytes(TCA_TBF_PARMS)?;
        Some(Bucket {
            rate: rate(attrs, TCA_TBF_RATE64, parameters, RATE)?,
            limit: read_u32(parameters, AFTER_RATES)?,
            buffer: read_u32(parameters, AFTER_RATES + 4)?,
        })
    }
}

impl HtbClass {
    fn options(&self) -> Vec<u8> {
        let mut options = Attributes::default();
        // tc_htb_opt: two tc_ratespec, buffer, buffer of the ceiling, quantum, level, priority
        let [rate, ceil] = [short(self.rate), short(self.ceil)];
        options.words(
            TCA_HTB_PARMS,
            &[
                LINKLAYER_ETHERNET,
                0,
                rate,
                LINKLAYER_ETHERNET,
                0,
                ceil,
                self.buffer,
                self.buffer,
                QUANTUM,
                0,
                0,
            ],
        );
        options.u64(TCA_HTB_RATE64, self.rate).u64(TCA_HTB_CEIL64, self.ceil);
        options.bytes().to_vec()
    }

    fn read(payload: &[u8]) -> Option<HtbClass> {
        let attrs = Attrs::after(payload, HEADER).nested(TCA_OPTIONS)?;
        let parameters = attrs.bytes(TCA_HTB_PARMS)?;
        Some(HtbClass {
            handle: Handle(read_u32(payload, TCM_HANDLE)?),
            rate: rate(attrs, TCA_HTB_RATE64, parameters, RATE)?,
            ceil: rate(attrs, TCA_HTB_CEIL64, parameters, RATE + 12)?,
            buffer: read_u32(parameters, AFTER_RATES)?,
        })
    }
}

/// The rate for the 32-bit field, which kernels with the 64-bit field need not read.
fn short(rate: u64) -> u32 {
    u32::try_from(rate).unwrap_or(u32::MAX)
}

/// Reads a rate. The kernel reports the 64-bit field only if the 32-bit one does not suffice.
fn rate(attrs: Attrs<'_>, long: u16, parameters: &[u8], short: usize) -> Option<u64> {
    attrs.u64(long).or_else(|| read_u32(parameters, short).map(u64::from))
}

/// A qdisc and where it is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// What it is attached to: a place of the link, or a class.
    pub parent: Handle,
    /// Its own handle.
    pub handle: Handle,
    /// Its kind.
    pub kind: QdiscKind,
}

impl Netlink {
    /// Creates a qdisc where there is none but the kernel's default: `tc qdisc add`.
    pub fn create_qdisc(&self, link: &Link, qdisc: &Qdisc) -> Result<()> {
        let message =
            message(link, qdisc.handle, qdisc.parent, qdisc.kind.name(), qdisc.kind.options());
        let what =
            format_args!("add qdisc {} {} to {:?}", qdisc.kind.name(), qdisc.handle, link.name);
        let created = self.add(&Request::new(RTM_NEWQDISC, &message), what);
        match created {
            // It must not be mistaken for a missing link.
            Err(e) if e.is_errno(Errno::ENOENT) => Err(Error::kernel(what, Errno::EOPNOTSUPP)
                .with_details(format_args!(
                    "the kernel has no {0}: is the module sch_{0} available?",
                    qdisc.kind.name()
                ))),
            created => created,
        }
    }

    /// Removes the qdisc of this kind with this handle, if it exists: `tc qdisc del`.
    pub fn delete_qdisc(
        &self,
        link: &Link,
        parent: Handle,
        handle: Handle,
        kind: &str,
    ) -> Result<()> {
        let message = message(link, handle, parent, kind, None);
        let what = format_args!("delete qdisc {kind} {handle} of {:?}", link.name);
        match self.request(&Request::new(RTM_DELQDISC, &message), 0, what) {
            Err(e) if is_absent(&e) => Ok(()),
            deleted => deleted,
        }
    }

    /// The qdisc at a place of the link, unless the kernel created it by default: `tc qdisc get`. A
    /// dump would list the qdiscs of all links of the host. The answer comes as an echo; the kernel
    /// refuses the request as invalid if the qdisc there is hidden.
    pub fn qdisc_at(&self, link: &Link, parent: Handle) -> Result<Option<Qdisc>> {
        let mut message = message(link, Handle::UNSPECIFIED, parent, "", None);
        message.attributes.clear(); // of any kind
        let what = format_args!("find the qdisc of {:?} at {parent}", link.name);
        let seq = self
            .send(&Request::new(RTM_GETQDISC, &message), NLM_F_ACK | NLM_F_ECHO)
            .map_err(|e| Error::kernel(what, e))?;
        let mut found = None;
        let echoed = self.transport.acknowledged(seq, |reply| found = read(reply.payload));
        match echoed.map_err(|refusal| refused(what, refusal)) {
            Err(e) if is_absent(&e) => Ok(None),
            echoed => {
                Ok(echoed.map(|()| found)?.filter(|qdisc| qdisc.handle != Handle::UNSPECIFIED))
            }
        }
    }

    /// Creates a class of HTB directly below the qdisc: `tc class add`.
    pub fn create_htb_class(&self, link: &Link, qdisc: Handle, class: &HtbClass) -> Result<()> {
        let message = message(link, class.handle, qdisc, "htb", Some(class.options()));
        let what = format_args!("add class htb {} to {:?}", class.handle, link.name);
        self.add(&Request::new(RTM_NEWTCLASS, &message), what)
    }

    /// The classes of a link's HTB.
    pub fn htb_classes(&self, link: &Link) -> Result<Vec<HtbClass>> {
        let message = TcMessage::with_index(link.index as i32);
        let what = format_args!("list the classes of {:?}", link.name);
        self.dump(&Request::new(RTM_GETTCLASS, &message), what, |payload| {
            read_of(link, payload).and_then(HtbClass::read)
        })
    }

    /// Whether the kernel has this kind of qdisc. The request is for the loopback interface and
    /// lacks options, or for fq_codel, which needs none, has an impossible one: a kernel with the
    /// kind refuses it for that, one without reports the kind as unknown, and nothing is created. If
    /// the interface already has another qdisc, the kind is assumed to exist.
    pub fn has_qdisc(&self, kind: &str) -> Result<bool> {
        let loopback = Link { index: 1, ..Link::default() };
        let mut impossible = Attributes::default();
        impossible.u32(TCA_FQ_CODEL_FLOWS, u32::MAX);
        let options = (kind == FQ_CODEL).then(|| impossible.bytes().to_vec());
        let message = message(&loopback, Handle::new(1, 0), Handle::ROOT, kind, options);
        let what = format_args!("ask for qdisc {kind}");
        match self.add(&Request::new(RTM_NEWQDISC, &message), what) {
            Err(e) if e.is_errno(Errno::ENOENT) => Ok(false),
            Err(e) if e.is_errno(Errno::EPERM) => Err(e),
            _ => Ok(true),
        }
    }
}

/// Whether there is no such qdisc: none, one with another handle, one of another kind, or one that
/// the kernel hides.
fn is_absent(error: &Error) -> bool {
    error.is_errno(Errno::EINVAL) || error.is_not_found()
}

/// Builds the message about an object of a link.
pub(super) fn message(
    link: &Link,
    handle: Handle,
    parent: Handle,
    kind: &str,
    options: Option<Vec<u8>>,
) -> TcMessage {
    let header = TcHeader {
        index: link.index as i32,
        handle: handle.0.into(),
        parent: parent.0.into(),
        ..TcHeader::default()
    };
    let mut attributes = vec![TcAttribute::Kind(kind.to_owned())];
    attributes.extend(options.map(|bytes| TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, bytes))));
    TcMessage::from_parts(header, attributes)
}

/// The message, if it is about this link; kernels before 6.10 or so report all links.
pub(super) fn read_of<'a>(link: &Link, payload: &'a [u8]) -> Option<&'a [u8]> {
    (read_u32(payload, TCM_IFINDEX)? == link.index).then_some(payload)
}

fn read(payload: &[u8]) -> Option<Qdisc> {
    let attrs = Attrs::after(payload, HEADER);
    let handle = Handle(read_u32(payload, TCM_HANDLE)?);
    let kind =
        QdiscKind::read(attrs.text(TCA_KIND)?, attrs.bytes(TCA_OPTIONS).unwrap_or_default())?;
    Some(Qdisc { parent: Handle(read_u32(payload, TCM_PARENT)?), handle, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_read_as_it_is_written_and_beyond_32_bits_too() {
        for rate in [1, 1_250_000, u64::from(u32::MAX), 5_000_000_000] {
            let bucket = Bucket { rate, buffer: 7, limit: 9 };
            let options = QdiscKind::Tbf(bucket).options().unwrap();
            let read = QdiscKind::read("tbf".into(), &options);
            assert_eq!(read, Some(QdiscKind::Tbf(bucket)));
        }
        let mut old = Attributes::default();
        old.words(TCA_TBF_PARMS, &Bucket { rate: 3, buffer: 7, limit: 9 }.words());
        assert_eq!(
            Bucket::read(Attrs::of(old.bytes())),
            Some(Bucket { rate: 3, buffer: 7, limit: 9 })
        );
    }

    #[test]
    fn handles_are_written_as_tc_writes_them() {
        let shown = [
            Handle::ROOT,
            Handle::INGRESS,
            Handle::new(1, 0),
            Handle::new(1, 0x30),
            Handle::new(0xffff, 0),
        ];
        assert_eq!(
            shown.map(|handle| handle.to_string()),
            ["root", "ingress", "1:", "1:30", "ffff:"]
        );
    }
}
