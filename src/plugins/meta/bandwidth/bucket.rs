//! A limit in the kernel's units: the reference's numbers, unless no packet would pass with them.

use crate::net::netlink::Bucket;

/// What runtimes send if no burst is configured: cri-dockerd and older kubelets, containerd, CRI-O.
/// Taken as bursts, these values would leave the first hundreds of megabytes unlimited.
const UNSAID: [u64; 3] = [i32::MAX as u64, u32::MAX as u64, u32::MAX as u64 * 8 - 1];
/// How long packets may wait, in addition to the time of the burst, as in the reference.
const LATENCY_MILLISECONDS: u64 = 25;
/// The default burst, as a time: the machine may be busy with other work for this long before the
/// rate suffers.
const BURST_MILLISECONDS: u64 = 50;
/// The minimum of the default burst: what TCP hands over at once.
const GSO_PACKET: u64 = 64 * 1024;
/// A packet is longer than the MTU by an Ethernet header with a VLAN tag.
const HEADER: u64 = 18;
/// The largest MTU of a veth.
const LARGEST_MTU: u32 = 65535;
/// The kernel's unit of time for queues.
const TICK_NANOSECONDS: u64 = 64;
const TICKS_A_MICROSECOND: f64 = 15.625;
const NANOSECONDS: u64 = 1_000_000_000;
/// The maximum rate in bytes per second. No link is as fast, and above it the kernel's arithmetic
/// overflows.
pub const FASTEST: u64 = 100_000_000_000_000_000;

/// How the packets of a limited direction wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// For how many milliseconds at most, in addition to the time of the burst.
    pub latency: u64,
    /// Whether each flow has a queue of its own (fq_codel), which keeps the delay short.
    pub fair: bool,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { latency: LATENCY_MILLISECONDS, fair: false }
    }
}

/// A limit of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// The rate in bits per second.
    pub rate: u64,
    /// The burst in bits.
    pub burst: u64,
    /// How packets wait.
    pub queue: Queue,
}

impl Limit {
    /// Returns the bucket for a link of this MTU.
    pub fn bucket(self, mtu: u32) -> Bucket {
        let rate = (self.rate / 8).min(FASTEST);
        let packet = longest_packet(mtu);
        // The kernel drops packets that do not fit in the bucket, except that it segments those of
        // TCP.
        let burst = if UNSAID.contains(&self.burst) {
            (rate * BURST_MILLISECONDS / 1000).clamp(GSO_PACKET, self.burst / 8)
        } else {
            self.burst / 8
        };
        let burst = burst.max(packet);
        let waiting = rate.saturating_mul(self.queue.latency) / 1000;
        // By way of whole microseconds as in the reference, but without its overflows. To hold a
        // packet the bucket needs more: the kernel converts ticks back into bytes and rounds down.
        let to_hold = (packet * NANOSECONDS).div_ceil(rate).div_ceil(TICK_NANOSECONDS);
        let ticks = ticks(microseconds(burst, rate)).max(to_hold);
        Bucket { rate, buffer: at_most_u32(ticks), limit: at_most_u32(waiting + burst) }
    }

    /// Returns the bucket that the reference makes. Its numbers are truncated to 32 bits.
    pub fn reference_bucket(self) -> Bucket {
        let rate = self.rate / 8;
        let burst = self.burst / 8;
        let microseconds = microseconds(burst, rate) as u32;
        let ticks = ticks(u64::from(microseconds)) as u32;
        let waiting = (rate as f64 * LATENCY_MILLISECONDS as f64 * 1000.0 / 1e6) as u64 as u32;
        Bucket { rate, buffer: ticks, limit: waiting.wrapping_add(burst as u32) }
    }

    /// Whether our ADD or the reference's makes this bucket for a link of this MTU or a larger one.
    pub fn makes(self, found: Bucket, mtu: u32) -> bool {
        let is_of_reference =
            self.queue.latency == LATENCY_MILLISECONDS && found == self.reference_bucket();
        is_of_reference || (mtu..=LARGEST_MTU).any(|mtu| found == self.bucket(mtu))
    }
}

/// Whether our ADD or the reference's makes such a bucket for any limit: the queue's limit is the
/// burst plus the latency, in milliseconds.
pub fn is_of_add(found: Bucket, latency: u64) -> bool {
    let waiting = u128::from(found.rate) * u128::from(latency) / 1000;
    let burst = u64::from(found.limit.wrapping_sub(waiting as u32));
    let nanoseconds = u128::from(found.buffer) * u128::from(TICK_NANOSECONDS);
    let burst_in_ticks = nanoseconds * u128::from(found.rate) / u128::from(NANOSECONDS);
    // What rounding to whole microseconds loses.
    let slack = u128::from(found.rate / 500_000 + 2);
    [found.buffer, found.limit].contains(&u32::MAX)
        || UNSAID.iter().any(|bits| bits / 8 == burst)
        || u128::from(burst).abs_diff(burst_in_ticks) <= slack
}

/// Returns the minimum rate, in bits per second, at which a packet of this MTU fits in the kernel's
/// largest bucket.
pub fn least_rate(mtu: u32) -> u64 {
    let longest = u64::from(u32::MAX) * TICK_NANOSECONDS;
    (longest_packet(mtu) * NANOSECONDS).div_ceil(longest) * 8
}

/// Returns the length in bytes of the longest packet of a link with this MTU.
fn longest_packet(mtu: u32) -> u64 {
    u64::from(mtu) + HEADER
}

/// Returns the number, or the largest that the kernel's field holds.
fn at_most_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the time of a burst in whole microseconds.
fn microseconds(burst: u64, rate: u64) -> u64 {
    (burst as f64 * 1e6 / rate as f64) as u64
}

fn ticks(microseconds: u64) -> u64 {
    (microseconds as f64 * TICKS_A_MICROSECOND) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(bucket: Bucket) -> u64 {
        u64::from(bucket.buffer) * TICK_NANOSECONDS * bucket.rate / NANOSECONDS
    }

    #[test]
    fn ordinary_limits_are_the_reference_s_to_the_last_tick() {
        for (rate, burst) in
            [(8_000_000, 800_000), (20_000_000, 500_000), (1_000_000, 33_333), (3_333_333, 77_777)]
        {
            let limit = Limit { rate, burst, ..Limit::default() };
            assert_eq!(limit.bucket(1500), limit.reference_bucket(), "{limit:?}");
        }
        // tc(8) shows it as rate 8Mbit burst 100000b lat 25ms.
        let expected = Bucket { rate: 1_000_000, buffer: 1_562_500, limit: 125_000 };
        assert_eq!(
            Limit { rate: 8_000_000, burst: 800_000, ..Limit::default() }.bucket(1500),
            expected
        );
    }

    #[test]
    fn what_add_makes_is_known_without_the_limit() {
        for rate in [48, 8000, 999_999, 3_333_333, 10_000_000_000, 400_000_000_000, u64::MAX] {
            for burst in [80, 12_000, 777_777, 800_000, UNSAID[0], UNSAID[1], UNSAID[2]] {
                let limit = Limit { rate, burst, ..Limit::default() };
                // The reference's bucket cannot be recognized for a long time or for a rate that no
                // link has.
                let is_odd = rate < 100_000 || rate == u64::MAX;
                let of_reference =
                    if is_odd { limit.bucket(1500) } else { limit.reference_bucket() };
                for bucket in [limit.bucket(68), limit.bucket(9000), of_reference] {
                    assert!(is_of_add(bucket, LATENCY_MILLISECONDS), "{limit:?}: {bucket:?}");
                    assert!(limit.makes(bucket, 68), "{limit:?}: {bucket:?}");
                }
            }
        }
        // tc(8) makes this of rate 1mbit burst 10kb latency 10ms.
        let of_tc = Bucket { rate: 125_000, buffer: 1_280_000, limit: 11_490 };
        assert!(!is_of_add(of_tc, LATENCY_MILLISECONDS) && is_of_add(of_tc, 10));
    }

    #[test]
    fn a_latency_changes_the_length_of_the_queue_alone() {
        let usual = Limit { rate: 8_000_000, burst: 800_000, ..Limit::default() };
        let short = Limit { queue: Queue { latency: 5, fair: false }, ..usual };
        let bucket = short.bucket(1500);
        assert_eq!(bucket, Bucket { limit: 105_000, ..usual.bucket(1500) });
        assert!(short.makes(bucket, 1500) && !short.makes(usual.reference_bucket(), 1500));
        assert!(is_of_add(bucket, 5));
        let long =
            Limit { rate: u64::MAX, burst: 80, queue: Queue { latency: 10_000, fair: false } };
        assert_eq!(long.bucket(1500).limit, u32::MAX);
    }

    #[test]
    fn every_limit_holds_a_packet() {
        for mtu in [68, 1500, 9000, 65535] {
            for rate in [least_rate(mtu), 8000, 999_999, 10_000_000_000, 400_000_000_000, u64::MAX]
            {
                for burst in [1, 80, 12_000, 800_000, u64::from(u32::MAX) * 8 - 1] {
                    let bucket = Limit { rate, burst, ..Limit::default() }.bucket(mtu);
                    let held = u64::from(bucket.buffer) * TICK_NANOSECONDS;
                    let held = u128::from(held) * u128::from(bucket.rate) / u128::from(NANOSECONDS);
                    assert!(held >= u128::from(mtu + 14), "{rate} {burst} {mtu}: {bucket:?}");
                    assert!(
                        u64::from(bucket.limit) >= u64::from(mtu) + 14,
                        "{rate} {burst} {mtu}: {bucket:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn below_the_least_rate_no_packet_fits() {
        assert_eq!([68, 1500, 65535].map(least_rate), [8, 48, 1912]);
        let bucket = Limit { rate: 40, burst: 800_000, ..Limit::default() }.bucket(1500);
        assert!((bucket.buffer, holds(bucket)) == (u32::MAX, 1374));
    }

    #[test]
    fn burst_defaults_to_50_milliseconds_or_one_tcp_packet() {
        for burst in UNSAID {
            assert_eq!(
                holds(Limit { rate: 8_000_000, burst, ..Limit::default() }.bucket(1500)),
                GSO_PACKET,
                "{burst}"
            );
            assert_eq!(
                holds(Limit { rate: 800_000_000, burst, ..Limit::default() }.bucket(1500)),
                5_000_000,
                "{burst}"
            );
        }
    }

    /// The reference's number wraps around: 300 seconds become 25. The kernel's maximum is 274
    /// seconds.
    #[test]
    fn a_long_burst_does_not_become_a_short_one() {
        let limit = Limit { rate: 1_000_000, burst: 2_147_483_640, ..Limit::default() };
        assert_eq!(limit.bucket(1500).buffer, u32::MAX);
        // The reference wraps: of 268 MB, 28 MB remain.
        assert_eq!(holds(Limit { burst: UNSAID[0], ..limit }.reference_bucket()), 27_917_286);
    }
}
