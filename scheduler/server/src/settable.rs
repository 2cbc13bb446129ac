//! Settings of a policy as data: one table gives each number its name, unit, bounds, meaning and source.
//!
//! The macro [`settings!`] makes the types of a policy's settings and their table from one list, so that neither can lack a number.
//! Command lines, node.toml, records of a run and docs/policy-parameters.md read the table.

use crate::names;

/// Where a setting's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The OSML+ paper has the idea; the number is ours.
    Paper,
    /// It follows from how servers answer and how readings are made.
    Plant,
    /// It was chosen on the committed sets, on which it is reported, too.
    Sets,
    /// The COSMOS paper has the number.
    Cosmos,
    /// The COSMOS paper leaves it open (docs/cosmos.md).
    CosmosOpen,
    /// It was chosen on worlds of the range memory-tune.
    MemoryTune,
    /// Senpai's, as Meta runs it.
    Senpai,
    /// The SmartHarvest paper has the number.
    SmartHarvest,
    /// The SmartHarvest paper leaves it open (docs/smartharvest.md).
    SmartHarvestOpen,
    /// The Caladan paper has the number.
    Caladan,
    /// It was chosen on tune worlds.
    TuneWorlds,
    /// Nothing speaks for another value, nor for this one.
    Guess,
}

impl Source {
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Paper => "the paper's idea, our number",
            Source::Plant => "from the plant",
            Source::Sets => "chosen on the committed sets",
            Source::Cosmos => "the COSMOS paper",
            Source::CosmosOpen => "open in the COSMOS paper",
            Source::MemoryTune => "chosen on worlds memory-tune",
            Source::Senpai => "Senpai",
            Source::SmartHarvest => "the SmartHarvest paper",
            Source::SmartHarvestOpen => "open in the SmartHarvest paper",
            Source::Caladan => "the Caladan paper",
            Source::TuneWorlds => "chosen on tune worlds",
            Source::Guess => "first guess",
        }
    }
}

/// A type that a setting can have: a number, or a list of so many.
pub trait Value {
    /// Numbers in a list; None: one number.
    const LEN: Option<usize>;
    const WHOLE: bool;
    fn numbers(&self) -> Vec<f64>;
    /// As many as [`Value::LEN`] says.
    fn assign(&mut self, from: &[f64]);
}

macro_rules! value {
    ($($t:ty, $whole:literal;)*) => {$(
        impl Value for $t {
            const LEN: Option<usize> = None;
            const WHOLE: bool = $whole;

            fn numbers(&self) -> Vec<f64> {
                vec![*self as f64]
            }

            fn assign(&mut self, from: &[f64]) {
                if let [x] = from {
                    *self = *x as $t;
                }
            }
        }
    )*};
}

value! { f64, false; u64, true; u32, true; u8, true; usize, true; }

impl<T: Value, const N: usize> Value for [T; N] {
    const LEN: Option<usize> = Some(N);
    const WHOLE: bool = T::WHOLE;

    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(Value::numbers).collect()
    }

    fn assign(&mut self, from: &[f64]) {
        self.iter_mut().zip(from).for_each(|(x, from)| x.assign(&[*from]));
    }
}

/// One line of a policy's table, for settings of the type `S`.
pub struct Setting<S> {
    pub group: &'static str,
    /// As Rust spells it; [`Setting::name`] is what people write.
    pub field: &'static str,
    pub unit: &'static str,
    /// Bounds, both allowed, of each number.
    pub low: f64,
    pub high: f64,
    pub meaning: &'static str,
    pub source: Source,
    pub len: Option<usize>,
    pub whole: bool,
    pub get: fn(&S) -> Vec<f64>,
    pub put: fn(&mut S, &[f64]),
}

impl<S> Setting<S> {
    /// `GROUP.NAME`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.group, self.leaf())
    }

    /// The name without its group.
    pub fn leaf(&self) -> &'static str {
        self.field.strip_prefix("r#").unwrap_or(self.field)
    }
}

/// Numbers as people write them: `0.5`, or `[0.5, 1]`.
pub fn text(numbers: &[f64], is_list: bool) -> String {
    let all = numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    if is_list {
        format!("[{all}]")
    } else {
        all
    }
}

/// Numbers as people write them ([`text`]), also `0.5, 1` and `1_000`.
///
/// # Errors
/// The first part that is no number.
pub fn numbers(text: &str) -> Result<Vec<f64>, &str> {
    let list = text.strip_prefix('[').and_then(|v| v.strip_suffix(']')).unwrap_or(text);
    list.split(',').map(str::trim).map(|x| x.replace('_', "").parse().map_err(|_| x)).collect()
}

/// Settings with a table.
pub trait Settable: Default + Sized + 'static {
    /// The policy's name, which begins a setting's full name.
    const POLICY: &'static str;

    fn table() -> &'static [Setting<Self>];

    /// The setting of a name: `GROUP.NAME`, or `NAME` where one group alone has it.
    ///
    /// # Errors
    /// One line with the nearest name.
    fn find(name: &str) -> Result<&'static Setting<Self>, String> {
        let policy = Self::POLICY;
        if let Some(s) = Self::table().iter().find(|s| s.name() == name) {
            return Ok(s);
        }
        let leaf: Vec<_> = Self::table().iter().filter(|s| s.leaf() == name).collect();
        if let [s] = leaf[..] {
            return Ok(s);
        }
        let full: Vec<String> = Self::table().iter().map(Setting::name).collect();
        let near = if leaf.is_empty() {
            // A group of the name's own is nearer than one that is spelt alike.
            let known = full.iter().map(String::as_str).chain(Self::table().iter().map(|s| s.leaf()));
            let near = names::nearest(name, known).map(str::to_string);
            near.and_then(|n| Self::table().iter().find(|s| s.name() == n || s.leaf() == n))
                .map_or(String::new(), |s| format!(" Did you mean \"{policy}.{}\"?", s.name()))
        } else {
            let both: Vec<String> = leaf.iter().map(|s| format!("\"{policy}.{}\"", s.name())).collect();
            format!(" Write one of {}.", both.join(", "))
        };
        Err(format!("{policy}.{name}: there is no such setting.{near} docs/policy-parameters.md lists them"))
    }

    /// Set one by its name; says `GROUP.NAME` of it.
    ///
    /// # Errors
    /// One line that names the setting, its bounds and unit; nothing is set then.
    fn assign(&mut self, name: &str, numbers: &[f64]) -> Result<String, String> {
        let s = Self::find(name)?;
        let (policy, name) = (Self::POLICY, s.name());
        let whole = if s.whole { "whole " } else { "" };
        let wanted = match s.len {
            None => format!("Give one {whole}number"),
            Some(n) => format!("Give {n} {whole}numbers"),
        };
        let bounds = format!("{wanted} from {} to {} ({})", s.low, s.high, s.unit);
        if numbers.len() != s.len.unwrap_or(1) {
            return Err(format!("{policy}.{name}: {} numbers are given. {bounds}", numbers.len()));
        }
        if let Some(x) = numbers.iter().find(|x| !(s.low..=s.high).contains(x) || s.whole && x.fract() != 0.0) {
            return Err(format!("{policy}.{name}: {x} is out of its bounds. {bounds}"));
        }
        (s.put)(self, numbers);
        Ok(name)
    }

    /// Settings that are not the default, by `GROUP.NAME`.
    fn changed(&self) -> Vec<(String, Vec<f64>)> {
        let default = Self::default();
        Self::table().iter().filter(|s| (s.get)(self) != (s.get)(&default)).map(|s| (s.name(), (s.get)(self))).collect()
    }
}

/// Types of a policy's settings in groups, their defaults, and their table, from one list: field: type = default, bounds, "unit",
/// "meaning", [`Source`].
#[macro_export]
macro_rules! settings {
    (
        $policy:literal
        $($(#[$doc:meta])* $group:ident: $Group:ident {
            $($field:ident: $t:ty = $default:expr, $low:literal..=$high:literal, $unit:literal, $meaning:literal, $source:ident;)*
        })*
    ) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq)]
            pub struct $Group {
                $(#[doc = $meaning] pub $field: $t,)*
            }

            impl Default for $Group {
                fn default() -> Self {
                    $Group { $($field: $default,)* }
                }
            }
        )*

        /// All of them, in groups.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct Settings {
            $($(#[$doc])* pub $group: $Group,)*
        }

        impl $crate::settable::Settable for Settings {
            const POLICY: &'static str = $policy;

            fn table() -> &'static [$crate::settable::Setting<Self>] {
                use $crate::settable::{Setting, Source, Value};
                const TABLE: &[Setting<Settings>] = &[$($(Setting {
                    group: stringify!($group),
                    field: stringify!($field),
                    unit: $unit,
                    low: $low as f64,
                    high: $high as f64,
                    meaning: $meaning,
                    source: Source::$source,
                    len: <$t as Value>::LEN,
                    whole: <$t as Value>::WHOLE,
                    get: |s| s.$group.$field.numbers(),
                    put: |s, from| s.$group.$field.assign(from),
                },)*)*];
                TABLE
            }
        }
    };
}

pub use settings;
