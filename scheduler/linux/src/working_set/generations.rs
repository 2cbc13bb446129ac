//! The working set by the generations of the LRU (MGLRU): a new generation is begun twice, a window apart, and the pages that are in those since the
//! first one have been touched.
//!
//! To begin one the kernel walks the page tables and clears what it sees, as it does before it reclaims; so reclaim knows better than before which
//! pages are hot, and no worse. Memory that is read as files are, and not mapped, is in a generation by when it came.

use super::{Look, Watched};
use crate::procfs::page_bytes;

/// Pages of each generation, by group.
pub const LISTS: &str = "/sys/kernel/debug/lru_gen";
/// Whether there are generations, or two lists.
pub const SWITCH: &str = "/sys/kernel/mm/lru_gen/enabled";

/// Generations of one group on one node: which is the youngest, and pages of each (anonymous and of files).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    group: u64,
    node: u64,
    pages: Vec<(u64, u64)>,
}

impl Node {
    fn youngest(&self) -> Option<u64> {
        self.pages.iter().map(|(seq, _)| *seq).max()
    }
}

/// Those of a group and of all below it.
fn parse(text: &str, name: &str) -> Vec<Node> {
    let (mut group, mut nodes): (Option<u64>, Vec<Node>) = (None, Vec::new());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("memcg") => {
                let number = words.next().and_then(|t| t.parse().ok());
                let path = words.next().unwrap_or_default();
                let below = path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
                // A group that was removed, whose pages are there still, has no number any more.
                group = number.filter(|n| below && *n > 0);
            }
            Some("node") => {
                if let (Some(group), Some(node)) = (group, words.next().and_then(|t| t.parse().ok())) {
                    nodes.push(Node { group, node, pages: vec![] });
                }
            }
            Some(seq) if group.is_some() => {
                // Its age, then pages; a mark may follow a number.
                let count = |t: &str| t.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().ok();
                let pages: Option<u64> = words.skip(1).map(count).sum();
                if let (Ok(seq), Some(pages), Some(node)) = (seq.parse(), pages, nodes.last_mut()) {
                    node.pages.push((seq, pages));
                }
            }
            _ => {}
        }
    }
    nodes
}

/// Bytes that a group touches within a window. Takes one window.
///
/// # Errors
/// Why not.
pub(super) fn measure(look: &Look, w: &Watched) -> Result<u64, String> {
    let said = |why: String| format!("generations of the LRU: {why}");
    let Some(on) = look.root.read(SWITCH) else { return Err(said("this kernel has none (CONFIG_LRU_GEN, Linux 6.1)".into())) };
    if is_off(&on) {
        return Err(said(format!("off ({SWITCH})")));
    }
    let Some(name) = w.name.as_deref() else { return Err(said("the group has no name in the hierarchy".into())) };
    let text = || look.root.read(LISTS).ok_or_else(|| said(format!("{LISTS} cannot be read: mount debugfs, and run as root")));
    let first = text()?;
    if !look.writable(LISTS) {
        return Err(said("only root may, without an actuator".into()));
    }
    let begin = |nodes: &[Node]| -> Result<(), String> {
        for n in nodes {
            let Some(youngest) = n.youngest() else { continue };
            // Anonymous pages too, and every page table.
            let command = format!("+ {} {} {youngest} 1 1", n.group, n.node);
            look.write(LISTS, &command).map_err(|e| said(format!("{LISTS} <- \"{command}\": {e}")))?;
        }
        Ok(())
    };
    let before = parse(&first, name);
    if before.is_empty() {
        return Err(said(format!("{LISTS} does not know {name}")));
    }
    begin(&before)?;
    look.wait(look.window)?;
    begin(&parse(&text()?, name))?;
    let since = |n: &Node| before.iter().find(|b| (b.group, b.node) == (n.group, n.node)).and_then(Node::youngest);
    let pages = |n: Node| n.pages.iter().filter(|(seq, _)| since(&n).is_none_or(|was| *seq > was)).map(|(_, pages)| pages).sum::<u64>();
    Ok(parse(&text()?, name).into_iter().map(pages).sum::<u64>() * page_bytes())
}

/// Whether the switch says that there are two lists of pages only.
pub fn is_off(switch: &str) -> bool {
    ["0x0000", "0", "n"].contains(&switch)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.12 writes it.
    const TEXT: &str = "memcg     1 /\n node     0\n          0       5000          0         12 \nmemcg    42 /web\n node     0\n          7      90000       1000x        20 \n          8        300        200          1 \n node     1\n          3        100          5          0 \nmemcg    43 /web/inner\n node     0\n          1        100          9          0 \nmemcg     0 /web\n node     0\n          1        100         99          0 \nmemcg    44 /web2\n node     0\n          1        100         77          0 \n";

    #[test]
    fn generations_of_a_group_and_of_those_below() {
        let nodes = parse(TEXT, "/web");
        let said: Vec<_> = nodes.iter().map(|n| (n.group, n.node, n.youngest(), n.pages.clone())).collect();
        assert_eq!(said, [(42, 0, Some(8), vec![(7, 1020), (8, 201)]), (42, 1, Some(3), vec![(3, 5)]), (43, 0, Some(1), vec![(1, 9)])]);
        assert!(parse(TEXT, "/other").is_empty() && parse("memcg x /web\n node 0\n 1 2 3 4\nnonsense", "/web").is_empty());
    }
}
