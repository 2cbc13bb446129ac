//! JSON in which a key that stands twice is refused: readers differ in which of the two they take, and one of them is a mistake.

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeSet;
use std::fmt;

/// Read one value from all of `bytes`.
///
/// # Errors
/// As serde_json's, and for a key that stands twice in one object.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    once(bytes)?;
    serde_json::from_slice(bytes)
}

/// Look through a value for keys that stand twice.
///
/// # Errors
/// As [`from_slice`].
pub fn once(bytes: &[u8]) -> serde_json::Result<()> {
    let mut from = serde_json::Deserializer::from_slice(bytes);
    Once.deserialize(&mut from)?;
    from.end()
}

struct Once;

impl<'de> DeserializeSeed<'de> for Once {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Once {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        while all.next_element_seed(Once)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = all.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format!("key {key:?} stands there twice")));
            }
            seen.insert(key);
            all.next_value_seed(Once)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// A key may stand once in an object, wherever the object is; the same key in two objects is fine.
    #[test]
    fn a_key_stands_once() {
        let read = |text: &str| from_slice::<Value>(text.as_bytes());
        for twice in [r#"{"a":1,"a":2}"#, r#"[{"b":{"a":1,"a":1}}]"#, r#"{"a":1,"\u0061":2}"#] {
            let e = read(twice).unwrap_err().to_string();
            assert!(e.contains("key \"a\" stands there twice"), "{twice}: {e}");
        }
        assert_eq!(read(r#"{"a":{"a":1},"b":[{"a":2},null,-1,1.5,"x",true]}"#).unwrap()["a"]["a"], 1);
    }

    /// Whatever is no JSON is an error, also nesting without an end and a number that is none.
    #[test]
    fn what_is_no_json_is_refused() {
        let deep = "[".repeat(1_000_000);
        for wrong in ["", "{", "1 2", "1e999", "\u{feff}{}", deep.as_str(), "{\"a\":\"\\ud800\"}"] {
            assert!(from_slice::<Value>(wrong.as_bytes()).is_err(), "{}", &wrong[..wrong.len().min(20)]);
        }
    }
}
