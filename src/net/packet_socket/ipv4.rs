//! IPv4 datagrams as they are on the link: the headers of IPv4 (RFC 791) and UDP (RFC 768).

use std::net::Ipv4Addr;

/// The length of an IPv4 header without options.
const HEADER: usize = 20;
/// The length of a UDP header.
const UDP_HEADER: usize = 8;
const UDP: u8 = 17;
const TIME_TO_LIVE: u8 = 64;
/// The bits of a fragment: more fragments follow, or this is not the first.
const FRAGMENT: u16 = 0x3fff;

/// Builds a packet with both headers; None if the payload is too long for one.
pub fn datagram(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Option<Vec<u8>> {
    let udp_length = u16::try_from(UDP_HEADER + payload.len()).ok()?;
    let mut packet = header(from.0, to.0, udp_length)?;
    for field in [from.1, to.1, udp_length, 0] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend(payload);
    let checksum = match !sum(&packet[HEADER..], pseudo_sum(&packet, udp_length)) {
        0 => u16::MAX, // 0 would mean that there is none
        checksum => checksum,
    };
    packet[HEADER + 6..HEADER + 8].copy_from_slice(&checksum.to_be_bytes());
    Some(packet)
}

/// The IPv4 header of a datagram.
fn header(from: Ipv4Addr, to: Ipv4Addr, udp_length: u16) -> Option<Vec<u8>> {
    let length = udp_length.checked_add(HEADER as u16)?;
    let mut header = vec![0x45, 0];
    header.extend(length.to_be_bytes());
    header.extend([0, 0, 0, 0, TIME_TO_LIVE, UDP, 0, 0]);
    header.extend(from.octets());
    header.extend(to.octets());
    let checksum = checksum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(header)
}

/// The sender and the payload of an unfragmented packet that is a datagram to `port`; None for
/// other packets, and for damaged ones.
pub fn payload(packet: &[u8], port: u16) -> Option<(Ipv4Addr, &[u8])> {
    let header = packet.get(..header_length(packet))?;
    if header.len() < HEADER
        || header[0] >> 4 != 4
        || header[9] != UDP
        || short(header, 6)? & FRAGMENT != 0
        || sum(header, 0) != u16::MAX
    {
        return None;
    }
    let udp = packet.get(header.len()..usize::from(short(header, 2)?))?; // Ethernet pads short frames
    let udp = udp.get(..usize::from(short(udp, 4)?))?;
    let sender: &[u8; 4] = packet.get(12..)?.first_chunk()?;
    let payload = udp.get(UDP_HEADER..)?;
    // A sender on this machine, or in a virtual one, leaves the checksum to a network card that the
    // packet never reaches: then the field has the sum of the pseudo header. PACKET_AUXDATA reports
    // that as well, unless a bridge in between has lost it.
    let (checksum, pseudo_sum) = (short(udp, 6)?, pseudo_sum(packet, short(udp, 4)?));
    let is_intact = checksum == 0 || checksum == pseudo_sum || sum(udp, pseudo_sum) == u16::MAX;
    (short(udp, 2)? == port && is_intact).then_some((Ipv4Addr::from(*sender), payload))
}

/// The sum of the pseudo header, the part of the IPv4 header that UDP covers: both addresses, the
/// protocol, the length.
fn pseudo_sum(packet: &[u8], udp_length: u16) -> u16 {
    let first = u32::from(sum(packet.get(12..HEADER).unwrap_or_default(), 0))
        + u32::from(UDP)
        + u32::from(udp_length);
    folded(first)
}

/// The checksum of RFC 1071.
pub fn checksum(octets: &[u8]) -> u16 {
    !sum(octets, 0)
}

/// The length of the header that an IPv4 packet begins with; 0 if there is none.
pub fn header_length(packet: &[u8]) -> usize {
    packet.first().map_or(0, |first| usize::from(first & 0xf) * 4)
}

/// The sum of RFC 1071, over 16 bits each, continued from another one.
fn sum(octets: &[u8], from: u16) -> u16 {
    let (pairs, last) = octets.as_chunks::<2>();
    let last = last.first().map_or(0, |octet| u32::from(*octet) << 8);
    folded(
        pairs
            .iter()
            .fold(u32::from(from) + last, |sum, pair| sum + u32::from(u16::from_be_bytes(*pair))),
    )
}

fn folded(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + sum) as u16
}

fn short(octets: &[u8], at: usize) -> Option<u16> {
    octets.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 67);
    const TO: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 9), 68);

    #[test]
    fn a_datagram_has_both_checksums() {
        // The checksums are by RFC 1071, calculated elsewhere.
        let expected = [
            0x45, 0, 0, 31, 0, 0, 0, 0, 64, 17, 0x7a, 0xcf, 0, 0, 0, 0, 255, 255, 255, 255, 0, 68,
            0, 67, 0, 11, 0x3a, 0xef, 97, 98, 99,
        ];
        let built =
            datagram((Ipv4Addr::UNSPECIFIED, 68), (Ipv4Addr::BROADCAST, 67), b"abc").unwrap();
        assert_eq!(built, expected);
        assert_eq!(datagram(FROM, TO, &[0; 65536 - 28]), None);
    }

    #[test]
    fn what_is_built_is_read() {
        for length in [0, 1, 2, 299, 300, 1472, 65507] {
            let payload_ = vec![0xa5; length];
            let mut packet = datagram(FROM, TO, &payload_).unwrap();
            assert_eq!(payload(&packet, 68), Some((FROM.0, payload_.as_slice())));
            assert_eq!(payload(&packet, 67), None);
            packet.extend([0; 18]); // padding, as Ethernet adds
            assert_eq!(payload(&packet, 68), Some((FROM.0, payload_.as_slice())));
        }
    }

    /// All single errors: the checksums see them, or the octets mean nothing.
    #[test]
    fn no_damaged_packet_is_read() {
        let good = datagram(FROM, TO, &[7; 31]).unwrap();
        for at in 0..good.len() {
            assert_eq!(payload(&good[..at], 68), None, "cut off at {at}");
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert_eq!(payload(&bad, 68), None, "octet {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn fragments_are_not_read() {
        for flags in [0x2000_u16, 0x0001, 0x1fff, 0x2001] {
            let mut packet = datagram(FROM, TO, b"x").unwrap();
            packet[6..8].copy_from_slice(&flags.to_be_bytes());
            packet[10..12].fill(0);
            let checksum = !sum(&packet[..HEADER], 0);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            assert_eq!(payload(&packet, 68), None, "{flags:x}");
        }
    }

    #[test]
    fn a_checksum_may_be_left_out_or_to_the_card() {
        let mut packet = datagram(FROM, TO, &[1, 2, 3]).unwrap();
        for field in [0, pseudo_sum(&packet, 11)] {
            packet[26..28].copy_from_slice(&field.to_be_bytes());
            assert_eq!(payload(&packet, 68), Some((FROM.0, [1, 2, 3].as_slice())));
        }
    }

    #[test]
    fn options_of_the_header_are_passed_over() {
        let mut packet = datagram(FROM, TO, b"abc").unwrap();
        packet.splice(HEADER..HEADER, [1, 1, 1, 0]);
        packet[0] = 0x46;
        packet[3] += 4;
        packet[10..12].fill(0);
        let checksum = !sum(&packet[..24], 0);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(payload(&packet, 68), Some((FROM.0, b"abc".as_slice())));
    }
}
