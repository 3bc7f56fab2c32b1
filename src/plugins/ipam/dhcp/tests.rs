//! Packets for the tests of messages and advertisements of both families.

/// Decodes hex digits; ignores any other characters.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Twenty thousand packets made by changing, truncating and repeating octets of real ones; the same
/// in every run.
pub fn changed(real: [Vec<u8>; 2]) -> impl Iterator<Item = Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    (0..20_000).map(move |round| {
        let mut packet = real[round % 2].clone();
        for _ in 0..=random(4) {
            let at = random(packet.len());
            match random(4) {
                0 => packet[at] = random(256) as u8,
                1 => packet[at] ^= 1 << random(8),
                2 => packet.truncate(at.max(1)),
                _ => packet.extend_from_within(at..),
            }
        }
        packet
    })
}
