//! What a service holds, as pages and files show it: one list of quantities, each with its unit, its reader and its bounds.
//!
//! Metrics, `top`, `explain`, time lines and event lines go through [`QUANTITIES`]; `surefootd schema` prints it.
//! So a resource that is added here is shown by all of them.
//!
//! What must hold: the list has every field of [`Held`], in order and by its name in files, and one quantity for each [`Resource`].

use crate::allocation::{mean_ways, Allocation};
use crate::cpuset::CpuSet;
use crate::platform::Platform;
use crate::resource::Resource;
use serde::{Deserialize, Serialize};

/// What one service holds. Its fields stand among those of the line or the page that it is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub cores: f64,
    /// Averaged over the L3 domains; None where the host cannot partition its LLC.
    pub ways: Option<f64>,
    /// Memory bandwidth, per cent (100 = not throttled).
    pub mba_pct: u8,
    /// None: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_limit_bytes: Option<u64>,
    /// None: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zswap_max_bytes: Option<u64>,
}

/// Values in the order of [`QUANTITIES`].
pub type Values = [Option<f64>; QUANTITIES.len()];

impl Held {
    pub fn of(a: &Allocation) -> Self {
        Held {
            cores: a.cores(),
            ways: (!a.ways.is_empty()).then(|| a.n_ways()),
            mba_pct: a.mba_pct,
            mem_limit_bytes: a.mem_limit_bytes,
            zswap_max_bytes: a.zswap_max_bytes,
        }
    }

    /// Exact but for limits above 2^53 bytes that are no multiple of a page.
    pub fn values(&self) -> Values {
        QUANTITIES.each_ref().map(|q| (q.of)(self))
    }

    /// "5 cores, 3 ways, memory bandwidth 100 %"; what it has none of is left out.
    pub fn text(&self) -> String {
        let parts = QUANTITIES.iter().filter_map(|q| Some(q.text((q.of)(self)?)));
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// What a plan gives a service, to the CPU and the mask. All None where an action moved only others' resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Given {
    pub cores: Option<f64>,
    pub cpus: Option<CpuSet>,
    /// Mask of each L3 domain.
    pub ways: Option<Vec<u32>>,
    pub mba_pct: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_limit_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zswap_max_bytes: Option<u64>,
}

impl Given {
    pub fn of(a: &Allocation) -> Self {
        Given {
            cores: Some(a.cores()),
            cpus: Some(a.cpus),
            ways: Some(a.ways.clone()),
            mba_pct: Some(a.mba_pct),
            mem_limit_bytes: a.mem_limit_bytes,
            zswap_max_bytes: a.zswap_max_bytes,
        }
    }

    /// What the service then holds; None where nothing was given.
    pub fn held(&self) -> Option<Held> {
        Some(Held {
            cores: self.cores?,
            ways: self.ways.as_deref().filter(|w| !w.is_empty()).map(mean_ways),
            mba_pct: self.mba_pct.unwrap_or(100),
            mem_limit_bytes: self.mem_limit_bytes,
            zswap_max_bytes: self.zswap_max_bytes,
        })
    }

    /// As [`Held::text`], with the CPUs by number and the ways as masks; None where nothing was given.
    pub fn text(&self) -> Option<String> {
        let held = self.held()?;
        let cpus = self.cpus.map_or(String::new(), |c| format!(" (CPUs {c})"));
        let masks: Vec<String> = self.ways.iter().flatten().map(|m| format!("{m:#x}")).collect();
        let parts = QUANTITIES.iter().filter_map(|q| {
            let value = (q.of)(&held)?;
            Some(match q.resource {
                Resource::Cpu => q.text(value) + &cpus,
                Resource::Llc => format!("{} {}", q.unit, masks.join(" ")),
                _ => q.text(value),
            })
        });
        Some(parts.collect::<Vec<_>>().join(", "))
    }
}

/// How values of a quantity are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    Real,
    Whole,
    /// Whole, and large.
    Bytes,
}

/// Values that a host takes: from the least in equal steps, and the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    pub least: f64,
    pub most: f64,
    pub step: f64,
}

impl Steps {
    /// Whether a host takes this value: the most always, else a multiple of the step.
    pub fn take(&self, value: f64) -> bool {
        let n = value / self.step;
        value == self.most || (value >= self.least && value < self.most && (n - n.round()).abs() < 1e-6)
    }
}

/// One resource, as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    pub resource: Resource,
    /// Its field in files, its column, and the end of its metric's name (`surefoot_KEY`, in base units).
    pub key: &'static str,
    pub unit: &'static str,
    /// As the help of metrics says it.
    pub words: &'static str,
    /// Over its column in a wide frame and in a narrow one.
    pub heads: [&'static str; 2],
    pub number: Number,
    /// Whether a service may be without it: files then leave it out, and columns have null.
    pub limit: bool,
    /// What a host takes, in words.
    pub range: &'static str,
    /// The kernel's files that hold it on a real host.
    pub set_in: &'static str,
    /// None where a service holds none that could be counted.
    pub of: fn(&Held) -> Option<f64>,
    /// None where nothing is known to bound it, or the host cannot hand it out.
    pub bounds: fn(&Platform) -> Option<Steps>,
}

/// Every resource, in the order in which it is shown.
pub static QUANTITIES: [Quantity; 5] = [
    Quantity {
        resource: Resource::Cpu,
        key: "cores",
        unit: "cores",
        words: "cores held",
        heads: ["CORES", "CORES"],
        number: Number::Real,
        limit: false,
        range: "from one core unit (1 core, or 0.1) to all managed CPUs",
        set_in: "cpuset.cpus, cpu.max",
        of: |h| Some(h.cores),
        bounds: |p| Some(Steps { least: p.core_step, most: f64::from(p.managed.len()), step: p.core_step }),
    },
    Quantity {
        resource: Resource::Llc,
        key: "ways",
        unit: "ways",
        words: "LLC ways held",
        heads: ["WAYS", "WAYS"],
        number: Number::Real,
        limit: false,
        range: "from the least of the hardware to all of an L3 domain",
        set_in: "L3 in schemata",
        of: |h| h.ways,
        bounds: |p| p.llc.map(|l| Steps { least: f64::from(l.min_ways), most: f64::from(l.ways), step: 1.0 }),
    },
    Quantity {
        resource: Resource::MemoryBandwidth,
        key: "mba_pct",
        unit: "%",
        words: "memory bandwidth allocation",
        heads: ["MBA%", "MB%"],
        number: Number::Whole,
        limit: false,
        range: "from the least of the hardware to 100 (not throttled), in its steps",
        set_in: "MB in schemata",
        of: |h| Some(f64::from(h.mba_pct)),
        bounds: |p| p.mba.map(|m| Steps { least: f64::from(m.min_pct), most: 100.0, step: f64::from(m.step_pct) }),
    },
    Quantity {
        resource: Resource::Memory,
        key: "mem_limit_bytes",
        unit: "bytes",
        words: "limit on memory",
        heads: ["MEMORY", "MEM"],
        number: Number::Bytes,
        limit: true,
        range: "above 0; all together at most the platform's memory; or no limit",
        set_in: "memory.max",
        of: |h| h.mem_limit_bytes.map(|b| b as f64),
        bounds: |p| p.memory.map(|m| Steps { least: 1.0, most: m.capacity_bytes as f64, step: 1.0 }),
    },
    Quantity {
        resource: Resource::Zswap,
        key: "zswap_max_bytes",
        unit: "bytes",
        words: "limit on compressed pages in memory",
        heads: ["ZSWAP", "ZSW"],
        number: Number::Bytes,
        limit: true,
        range: "at most the limit on memory; or no limit",
        set_in: "memory.zswap.max",
        of: |h| h.zswap_max_bytes.map(|b| b as f64),
        bounds: |p| p.memory.map(|m| Steps { least: 0.0, most: m.capacity_bytes as f64, step: 1.0 }),
    },
];

impl Quantity {
    /// Of a resource.
    pub fn of_resource(resource: Resource) -> &'static Quantity {
        &QUANTITIES[resource as usize]
    }

    /// Its value in a column: 0 where a host cannot hand it out, None without a limit.
    pub fn in_column(&self, value: Option<f64>) -> Option<f64> {
        value.or((!self.limit).then_some(0.0))
    }

    /// "5 cores", "memory bandwidth 100 %", "memory limit 2 GiB".
    pub fn text(&self, value: f64) -> String {
        match self.number {
            Number::Bytes => format!("{} limit {}", self.resource, size(value)),
            _ if self.unit == self.resource.name() => format!("{value} {}", self.unit),
            _ => format!("{} {value} {}", self.resource, self.unit),
        }
    }
}

/// Bytes in the largest unit that they fill, to a tenth of it below 100.
pub fn size(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let digits = usize::from(value.fract() != 0.0 && value < 100.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use serde_json::{Map, Value};

    const GIB: u64 = 1 << 30;

    fn limited() -> Allocation {
        let p = Platform::regular("p", 8, 1, 11, 2.0);
        Allocation { mem_limit_bytes: Some(2 * GIB), zswap_max_bytes: Some(GIB / 2), ..Allocation::everything(&p) }
    }

    fn unlimited() -> Allocation {
        Allocation { mem_limit_bytes: None, zswap_max_bytes: None, ..limited() }
    }

    fn object(v: &impl Serialize) -> Map<String, Value> {
        serde_json::to_value(v).unwrap().as_object().unwrap().clone()
    }

    /// The list has each resource once, in order, and reads each field of what is held under the field's own name.
    #[test]
    fn the_list_is_whole() {
        assert_eq!(QUANTITIES.each_ref().map(|q| q.resource), Resource::ALL);
        assert!(Resource::ALL.iter().all(|r| Quantity::of_resource(*r).resource == *r));
        let held = Held::of(&limited());
        let fields = object(&held);
        assert_eq!(fields.len(), QUANTITIES.len());
        let text = serde_json::to_string(&held).unwrap();
        let at = QUANTITIES.each_ref().map(|q| text.find(&format!("\"{}\":", q.key)));
        assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{text}");
        for (q, value) in QUANTITIES.iter().zip(held.values()) {
            assert_eq!(fields[q.key].as_f64(), value, "{}", q.key);
        }
        let given = object(&Given::of(&limited()));
        assert!(QUANTITIES.iter().all(|q| given.contains_key(q.key)) && given.len() == QUANTITIES.len() + 1);
    }

    /// What a service may be without is left out of files, null in columns, and None where an older file lacks it.
    #[test]
    fn limits_may_be_missing() {
        let held = Held::of(&unlimited());
        let text = serde_json::to_string(&held).unwrap();
        assert_eq!(text, r#"{"cores":8.0,"ways":11.0,"mba_pct":100}"#);
        assert_eq!(serde_json::from_str::<Held>(&text).unwrap(), held);
        for (q, value) in QUANTITIES.iter().zip(held.values()) {
            assert_eq!(value.is_none(), q.limit, "{}", q.key);
            assert_eq!(q.in_column(None), (!q.limit).then_some(0.0));
        }
        let text = serde_json::to_string(&Given::of(&unlimited())).unwrap();
        assert_eq!(text, r#"{"cores":8.0,"cpus":"0-7","ways":[2047],"mba_pct":100}"#);
        assert_eq!(serde_json::to_string(&Given::default()).unwrap(), r#"{"cores":null,"cpus":null,"ways":null,"mba_pct":null}"#);
        assert_eq!(serde_json::from_str::<Given>("{}").unwrap(), Given::default());
    }

    /// What a plan gives comes to what the service then holds.
    #[test]
    fn given_and_held_agree() {
        for a in [limited(), unlimited(), Allocation { ways: vec![], shared_ways: vec![], ..limited() }] {
            assert_eq!(Given::of(&a).held(), Some(Held::of(&a)));
        }
        assert_eq!(Given::default().held(), None);
    }

    /// A sentence names each quantity with its unit, and no limit that is not there.
    #[test]
    fn sentences() {
        assert_eq!(Held::of(&unlimited()).text(), "8 cores, 11 ways, memory bandwidth 100 %");
        assert_eq!(Held::of(&limited()).text(), "8 cores, 11 ways, memory bandwidth 100 %, memory limit 2 GiB, zswap limit 512 MiB");
        assert_eq!(Given::of(&unlimited()).text().unwrap(), "8 cores (CPUs 0-7), ways 0x7ff, memory bandwidth 100 %");
        assert_eq!(Given::default().text(), None);
        assert_eq!([0.0, 1023.0, 1536.0, 1e15].map(size), ["0 B", "1023 B", "1.5 KiB", "909 TiB"]);
    }

    /// Bounds say which values a platform takes; without the hardware there are none.
    #[test]
    fn bounds_are_the_platforms() {
        let bounds = |p: &Platform| QUANTITIES.each_ref().map(|q| (q.bounds)(p));
        let mut p = Platform::regular("p", 8, 1, 11, 2.0);
        let [Some(cores), Some(ways), Some(mba), None, None] = bounds(&p) else { panic!("{:?}", bounds(&p)) };
        let taken = |s: Steps, all: &[f64]| all.iter().map(|v| s.take(*v)).collect::<Vec<_>>();
        assert_eq!(taken(cores, &[0.0, 1.0, 1.5, 8.0, 9.0]), [false, true, false, true, false]);
        assert_eq!(taken(ways, &[0.0, 1.0, 11.0, 12.0]), [false, true, true, false]);
        assert_eq!(taken(mba, &[0.0, 10.0, 35.0, 90.0, 100.0, 110.0]), [false, true, false, true, true, false]);
        p.memory = Some(Memory { capacity_bytes: 60 << 30 });
        let [.., Some(memory), Some(zswap)] = bounds(&p) else { panic!("{:?}", bounds(&p)) };
        assert!(memory.take(1.0) && !memory.take(0.0) && zswap.take(0.0) && zswap.take(memory.most) && !zswap.take(memory.most + 1.0));
        (p.core_step, p.llc, p.mba, p.memory) = (0.1, None, None, None);
        let [Some(cores), None, None, None, None] = bounds(&p) else { panic!("{:?}", bounds(&p)) };
        assert_eq!(taken(cores, &[0.05, 0.1, 0.3, 7.7, 8.1]), [false, true, true, true, false]);
    }
}
