//! The configuration of `bandwidth`: what to limit, and to which rate.

use ipnet::IpNet;
use serde::Deserialize;

use super::bucket::{Limit, Queue, least_rate};
use crate::cni::{addr, decode};
use crate::error::{Error, Result, Word};
use crate::plugin::{Context, PluginConf};

/// The largest burst in bits; its bytes still fit the kernel's 32-bit field.
const LARGEST_BURST: u64 = u32::MAX as u64 * 8 - 1;

/// The prefix of the runtime's keys.
const OF_RUNTIME: &str = "runtimeConfig.bandwidth.";

/// The configuration of `bandwidth`. The network's own limits are the keys of [`Limiting`], at the
/// top level.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    latency: Option<i64>,
    #[serde(deserialize_with = "decode::word")]
    qdisc: Inner,
    runtime_config: RuntimeConfig,
    /// The limits that apply.
    #[serde(skip)]
    pub limits: Limits,
}

/// What queues packets in the token bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inner {
    /// The bucket's own queue.
    #[default]
    Fifo,
    FqCodel,
}

impl Word for Inner {
    const WORDS: &'static [&'static str] = &["fq_codel"];

    fn of(word: &str) -> Option<Inner> {
        (word == "fq_codel").then_some(Inner::FqCodel)
    }
}

/// The longest latency in milliseconds.
const LONGEST: i64 = 10_000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    bandwidth: Limiting,
}

/// Limits as a configuration has them. If the top level sets any rate or burst, even to 0, the
/// runtime's limits are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Limiting {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    unshaped_subnets: Vec<Subnet>,
    shaped_subnets: Vec<Subnet>,
}

#[derive(Clone, Debug, Deserialize)]
struct Subnet(#[serde(deserialize_with = "addr::cidr::deserialize")] IpNet);

/// The limits to apply.
#[derive(Debug, Default)]
pub struct Limits {
    /// The limit towards the container.
    pub ingress: Option<Limit>,
    /// The limit from the container.
    pub egress: Option<Limit>,
    /// The traffic to limit.
    pub traffic: Traffic,
    /// How packets wait, in both directions.
    pub queue: Queue,
    /// The prefix of the keys' paths, for errors.
    path: &'static str,
}

/// Which traffic is limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Traffic {
    /// All of it.
    #[default]
    All,
    /// Only traffic with these subnets.
    With(Vec<IpNet>),
    /// All traffic except that with these subnets.
    WithoutThat(Vec<IpNet>),
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "ingressRate | integer | 0 | Limit of received traffic in bits per second; 0 is unlimited, else at least 8, and 48 with an MTU of 1500.
        ingressBurst | integer | 0 | How many bits may arrive at once after a pause, at most 34359738359. Required with `ingressRate`.
        egressRate | integer | 0 | Limit of sent traffic in bits per second; 0 is unlimited, else at least 8, and 48 with an MTU of 1500.
        egressBurst | integer | 0 | How many bits may be sent at once after a pause, at most 34359738359. Required with `egressRate`.
        unshapedSubnets | list of strings | none | Traffic to and from these subnets, of either family, is unlimited. Needs the kernel's htb.
        shapedSubnets | list of strings | all | Only traffic to and from these subnets is limited. Excludes `unshapedSubnets`.
        latency | integer | 25 | How many milliseconds a packet may wait in addition to the time of the burst, 1 to 10000. Excludes `qdisc`.
        qdisc | string | none | `fq_codel`: in the limit each flow has a queue of its own, which keeps the delay short. By default all packets wait in one.
        runtimeConfig.bandwidth | object | none | The first six of these keys, from the runtime.",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        self.limits = self.read_limits(cx)?;
        Ok(())
    }
}

impl Conf {
    /// Reads the limits from a configuration that was not validated.
    pub fn read_limits(&self, cx: &Context<'_>) -> Result<Limits> {
        let of_network: Limiting = cx.config.decode()?;
        let of_runtime = &self.runtime_config.bandwidth;
        let Limiting { ingress_rate, ingress_burst, egress_rate, egress_burst, .. } = of_network;
        let mut limits =
            if ingress_rate.or(ingress_burst).or(egress_rate).or(egress_burst).is_some() {
                of_network.limits("", of_network.traffic("")?)?
            } else {
                // The network's subnets apply to the limits of every container, unless the runtime
                // names others.
                let traffic = match of_runtime.traffic(OF_RUNTIME)? {
                    Traffic::All => of_network.traffic("")?,
                    traffic => traffic,
                };
                of_runtime.limits(OF_RUNTIME, traffic)?
            };
        let fair = self.qdisc == Inner::FqCodel;
        limits.queue = match self.latency {
            None => Queue { fair, ..Queue::default() },
            Some(_) if fair => {
                return Err(Error::exclusive("latency", "qdisc")
                    .with_details("fq_codel itself chooses how long packets wait"));
            }
            Some(latency @ 1..=LONGEST) => Queue { latency: latency.unsigned_abs(), fair },
            Some(latency) => return Err(Error::out_of_range("latency", latency, 1..=LONGEST)),
        };
        for limit in [&mut limits.ingress, &mut limits.egress].into_iter().flatten() {
            limit.queue = limits.queue;
        }
        Ok(limits)
    }
}

impl Limits {
    /// Whether nothing is limited.
    pub fn are_none(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }

    /// Refuses rates at which no packet of a link with this MTU would ever pass.
    pub fn require_passing(&self, mtu: u32) -> Result<()> {
        let least = least_rate(mtu);
        for (key, limit) in [("ingressRate", self.ingress), ("egressRate", self.egress)] {
            if let Some(Limit { rate, .. }) = limit.filter(|limit| limit.rate < least) {
                let problem = format_args!("with {rate} no packet of {mtu} bytes ever passes");
                return Err(Error::config(format_args!("{}{key}", self.path), problem)
                    .expecting(format_args!("0 or at least {least}")));
            }
        }
        Ok(())
    }
}

impl Limiting {
    /// `path` is the prefix of the keys.
    fn limits(&self, path: &'static str, traffic: Traffic) -> Result<Limits> {
        Ok(Limits {
            ingress: limit(&format!("{path}ingress"), self.ingress_rate, self.ingress_burst)?,
            egress: limit(&format!("{path}egress"), self.egress_rate, self.egress_burst)?,
            traffic,
            path,
            ..Limits::default()
        })
    }

    fn traffic(&self, path: &str) -> Result<Traffic> {
        let nets = |subnets: &[Subnet]| subnets.iter().map(|subnet| subnet.0).collect();
        match (self.shaped_subnets.as_slice(), self.unshaped_subnets.as_slice()) {
            ([], []) => Ok(Traffic::All),
            (shaped, []) => Ok(Traffic::With(nets(shaped))),
            ([], unshaped) => Ok(Traffic::WithoutThat(nets(unshaped))),
            _ => Err(Error::exclusive(
                format_args!("{path}shapedSubnets"),
                format_args!("{path}unshapedSubnets"),
            )
            .saying("unshapedSubnets and shapedSubnets cannot be both specified, one of them should be discarded")),
        }
    }
}

/// `path` followed by `Rate` or `Burst` is a key.
fn limit(path: &str, rate: Option<u64>, burst: Option<u64>) -> Result<Option<Limit>> {
    let of_rate = |problem: String| Error::config(format_args!("{path}Rate"), problem);
    let of_burst = |problem: String| Error::config(format_args!("{path}Burst"), problem);
    match (rate.unwrap_or_default(), burst.unwrap_or_default()) {
        (0, 0) => Ok(None),
        (rate, 0) => Err(of_burst(format!("0 with a rate of {rate}"))
            .saying("if rate is set, burst must also be set")),
        (0, burst) => Err(of_rate(format!("0 with a burst of {burst}"))
            .saying("if burst is set, rate must also be set")),
        (rate @ 1..=7, _) => {
            Err(of_rate(format!("{rate} is less than a byte a second"))
                .expecting("0 or at least 8"))
        }
        (_, burst) if burst > LARGEST_BURST => Err(of_burst(format!("{burst} is too large"))
            .expecting(format_args!("at most {LARGEST_BURST}"))
            .saying("burst cannot be more than 4GB")),
        (rate, burst) => Ok(Some(Limit { rate, burst, ..Limit::default() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_a_burst_and_both_have_their_limits() {
        let refused =
            |rate, burst| limit("egress", Some(rate), Some(burst)).unwrap_err().to_string();
        assert!(refused(8000, 0).ends_with("egressBurst: 0 with a rate of 8000"));
        assert!(refused(0, 80).ends_with("egressRate: 0 with a burst of 80"));
        assert!(refused(7, 80).starts_with("egressRate: 7 is less than a byte"));
        assert!(refused(8, LARGEST_BURST + 1).contains("egressBurst: 34359738360 is too large"));
        for (rate, burst) in [(8, 1), (u64::MAX, LARGEST_BURST)] {
            assert_eq!(
                limit("egress", Some(rate), Some(burst)).unwrap(),
                Some(Limit { rate, burst, ..Limit::default() })
            );
        }
        assert_eq!(limit("egress", Some(0), None).unwrap(), None);
    }
}
