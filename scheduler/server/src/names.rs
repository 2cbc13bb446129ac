//! Misspelt names: which of those that are known was meant.

/// The known name nearest to a misspelt one, if any is near: of a name's letters a third may be wrong, two where it is short, and never all.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|k| (distance(name, k), k)).min();
    near.filter(|(d, k)| {
        let letters = k.chars().count();
        *d <= (letters / 3).max(2) && *d < letters
    })
    .map(|(_, k)| k)
}

/// A sentence: the nearest known name, or all of them.
pub fn suggest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(name, known.iter().copied()) {
        Some(k) => format!("Did you mean \"{k}\"?"),
        None if known.is_empty() => "None is known.".into(),
        None => format!("Known: {}.", known.join(", ")),
    }
}

/// The name that was meant in serde's message on a field or a value that it does not know; it lists those that it expected.
pub fn expected(message: &str) -> Option<&str> {
    let after = ["unknown field `", "unknown variant `"].iter().find_map(|what| message.strip_prefix(what))?;
    let (wrong, rest) = after.split_once('`')?;
    nearest(wrong, rest.split('`').skip(1).step_by(2))
}

/// Edit distance: insert, delete, replace, and two neighbours that changed places.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = vec![];
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut next = vec![i + 1];
        for j in 0..b.len() {
            let mut least = (row[j] + usize::from(a[i] != b[j])).min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                least = least.min(before[j - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misspelt service finds its name; a foreign one gets the list.
    #[test]
    fn nearest_name() {
        assert_eq!(nearest("mosses", ["xapian", "moses"]), Some("moses"));
        assert_eq!(suggest("qqqqqq", ["xapian", "moses"]), "Known: xapian, moses.");
    }

    /// Letters that changed places are one slip, as of a single letter: what is asked for as "chekc" is "check", and no "schema".
    #[test]
    fn letters_that_changed_places_are_one_slip() {
        assert_eq!((distance("chekc", "check"), distance("chekc", "sweep")), (1, 4));
        assert_eq!(distance("parteis", "parties"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("moses", "moses"), 0);
        assert_eq!(nearest("osml-plsu", ["osml", "osml-plus"]), Some("osml-plus"));
    }

    /// A near name out of the list of a message, for fields and for values; none where nothing is near, or it is another message.
    #[test]
    fn what_serde_expected() {
        assert_eq!(expected("unknown field `sample`, expected one of `warmup_ms`, `samples`"), Some("samples"));
        assert_eq!(expected("unknown variant `frontire`, expected one of `exhaustive`, `frontier`"), Some("frontier"));
        assert_eq!(expected("unknown variant `zzzzzz`, expected `lc` or `be`"), None);
        assert_eq!(expected("missing field `name`"), None);
    }

    /// A name that is nothing like another is no slip of it, however short both are.
    #[test]
    fn short_names_are_not_alike_by_their_length() {
        assert_eq!(nearest("xx", ["lc", "be"]), None);
        assert_eq!(nearest("bs", ["lc", "be"]), Some("be"));
    }
}
