//! Exit codes of every command (docs/exit-codes.md), and that what is wrong is said on one line that names it.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{one_line, path, root, run, surefootd};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const MOSES: &str = "workload = \"w.toml\"\nmetrics_port = 0\n";

/// Files that cases name, in a folder of the test's own.
fn files(dir: &Path) {
    let put = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
    put("w.toml", "platform = \"server-1\"\nduration_s = 1\n[[lc]]\nservice = \"moses\"\nload = 0.1\n");
    put("node.toml", MOSES);
    put("no-workload.toml", "workload = \"none.toml\"\nmetrics_port = 0\n");
    put("slow.toml", &format!("interval_ms = 60000\n{MOSES}"));
    put("typo.toml", "wrokload = \"w.toml\"\n");
    put("no-toml.toml", "= x [");
    put("mode.toml", "workload = \"w.toml\"\nmetrics_port = 0\nfeed_mode = \"rw\"\n");
    put("upper-file.toml", "workload = \"w.toml\"\nmetrics_port = 0\n[upper]\nsocket = \"text\"\n");
    put("upper-folder.toml", "workload = \"w.toml\"\nmetrics_port = 0\n[upper]\nsocket = \"none/upper.sock\"\n");
    put("upper-group.toml", "workload = \"w.toml\"\nmetrics_port = 0\n[upper]\nsocket = \"u\"\ngroup = \"no such group\"\n");
    put("actuator.toml", "[actuator]\nuser = \"root\"\nsocket = \"nowhere.sock\"\n[[service]]\nservice = \"a\"\nkind = \"be\"\npid = 1\n");
    put("nobody.toml", "[actuator]\nuser = \"no such user\"\n");
    put("gone.toml", "state_dir = \"state\"\nmetrics_port = 0\n[[service]]\nservice = \"a\"\nkind = \"be\"\ncgroup = \"/no/such/group\"\n");
    let one = "[[service]]\nservice = \"a\"\nkind = \"be\"\npid = 1\n";
    put("catalogue.toml", "state_dir = \"state\"\ncatalogue = \"empty\"\n[[service]]\nservice = \"a\"\n");
    put("cpus.toml", &format!("state_dir = \"state\"\ncpus = \"1023\"\n{one}"));
    put("resctrl.toml", &format!("state_dir = \"state\"\nresctrl = \"/nowhere\"\n{one}"));
    put("file.toml", &format!("state_dir = \"text/state\"\n{one}"));
    put("local.toml", &format!("state_dir = \"state\"\nmetrics_port = 0\n{one}"));
    put("campaign.toml", "name = \"c\"\n");
    put("text", "no journal\n");
    put(
        "journal",
        "{\"run\":{\"at_ms\":1,\"policy\":\"p\",\"platform\":\"p\",\"bundle\":null,\"interval_ms\":100,\"seed\":1,\"version\":\"1\"}}\n",
    );
    fs::create_dir(dir.join("damaged")).unwrap();
    put("damaged/safe.json", "{");
    fs::create_dir(dir.join("empty")).unwrap();
    nix::unistd::mkfifo(&dir.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("text", dir.join("link")).unwrap();
    put("journal-text.toml", &format!("journal = \"text\"\n{MOSES}"));
    put("journal-link.toml", &format!("journal = \"link\"\n{MOSES}"));
    put("journal-fifo.toml", &format!("journal = \"fifo\"\n{MOSES}"));
}

/// Command line (`@` is the folder of the test), exit code, and what standard error must say.
const CASES: &[(&str, i32, &str)] = &[
    ("check --server virtual:server-1", 0, ""),
    ("check --json", 0, ""),
    (
        "run --policy parties-be --server virtual:server-1 --config @/slow.toml",
        2,
        "slow.toml: interval_ms: 60000 ms: policies judge by the last second. Give 10 to 1000",
    ),
    ("check --write-platform @/here.toml", 0, ""),
    ("check --write-platform @/here.toml", 2, "here.toml: is there already. Give --overwrite"),
    ("check --write-platform @/here.toml --overwrite --json", 0, ""),
    ("check --write-platform @/link", 2, "link"),
    ("check --write-platform @/new.toml --server virtual:server-1", 2, "a virtual server has a file already"),
    ("check --pack-tree @/tree.txt --server virtual:server-1", 2, "a virtual server has no resctrl. Leave --server out"),
    ("check --pack-tree @/tree.txt --write-platform @/new.toml", 2, "cannot be used with"),
    ("check --server nowhere", 2, "virtual:PLATFORM"),
    ("check --server virtual:sever-1", 2, "--server virtual:sever-1: unknown platform. Did you mean \"server-1\"?"),
    ("check --config @/none.toml", 2, "none.toml: cannot be read"),
    ("check --config @/no-toml.toml", 2, "no-toml.toml"),
    ("check --config @/node.toml --server virtual:server-1", 2, "Leave it out"),
    ("completions bash", 0, ""),
    ("completions tcsh", 2, "tcsh"),
    ("manual --out @/none", 2, "is no folder"),
    ("check -v -q --json", 2, "cannot be used with"),
    ("sweep @/campaign.toml --server virtual:server-1 --plan", 2, "campaign.toml"),
    ("sweep @/none.toml --server virtual:server-1 --plan", 2, "none.toml: cannot be read"),
    ("sweep examples/demo-virtual.toml --server virtual:server-1 --plan", 0, ""),
    ("sweep examples/demo-virtual.toml --server virtual:none --plan", 2, "unknown platform"),
    ("sweep examples/demo-virtual.toml --server virtual:server-1 --plan --relaunch", 2, "--relaunch"),
    ("sweep examples/demo-virtual.toml --server virtual:server-1 --plan --tries 1", 2, "--tries"),
    ("eval --workloads @/w.toml --policies unmanaged --platform server-1 --out @/eval", 0, ""),
    (
        "eval --workloads @/w.toml --policies unmanaged --platform server-1 --out @/eval",
        2,
        "rows.parquet: is there already. Give --overwrite",
    ),
    ("eval --workloads @/w.toml --policies unmanaged --platform server-1 --out @/eval --overwrite", 0, ""),
    ("eval --workloads @/none --policies parties-be --platform server-1 --out @/e", 2, "none"),
    ("eval --workloads @/w.toml --policies partes --platform server-1 --out @/e", 2, "\"partes\" is unknown"),
    (
        "eval --workloads @/w.toml --policies parties-be,unmanaged,parties-be --platform server-1 --out @/e",
        2,
        "--policies: policy \"parties-be\" is there twice",
    ),
    ("eval --workloads @/w.toml --policies parties-be, --platform server-1 --out @/e", 2, "--policies: the list has an empty entry"),
    ("eval --workloads @/w.toml --policies parties-be,oracle --platform server-1 --out @/e", 2, "no policy: run `surefootd oracle`"),
    ("eval --workloads @/w.toml --policies ? --platform server-1 --out @/e", 2, "unmanaged, equal-share, parties, "),
    (
        "eval --workloads @/w.toml --policies parties-be --platform server-1 --bundle @/empty --trust @/text --out @/e",
        2,
        "surefootd: --trust @/text: public key: is no key",
    ),
    ("eval --workloads @/w.toml --policies osml-plus --platform server-1 --out @/e", 2, "--bundle"),
    ("eval --workloads @/w.toml --policies osml --platform server-1 --out @/e", 2, "--bundle"),
    ("eval --workloads @/w.toml --policies parties-be --platform sever-1 --out @/e", 2, "--platform sever-1: unknown platform"),
    (
        "eval --workloads @/w.toml --policies parties-be --platform server-9 --out @/e",
        2,
        "\"server-1\"? Known: cosmos-server, server-1, server-2, server-3, smartharvest-server. Give",
    ),
    ("eval --workloads @/w.toml --policies parties-be --platform server-1 --out /proc/none/e", 1, "/proc/none"),
    ("eval --workloads @/w.toml --policies parties-be --platform server-1 --profiles @/none --out @/e", 2, "--profiles"),
    ("world draw --range tune --seed 1 --out @/world", 0, ""),
    ("world draw --range tune --seed 1 --out @/world", 2, "--out @/world: is there already. Give another folder"),
    ("world draw --range tune --seed 1 --out @/text/world", 2, "cannot be a folder, @/text is a file"),
    ("world draw --range tune --seed 1 --out /proc/none/w", 1, "/proc/none"),
    ("harvest-eval --out @/h", 2, "--experiments"),
    ("harvest-eval --experiments f55 --out @/h", 2, "--experiments f55: is no experiment. Did you mean \"f15\"?"),
    ("harvest-eval --primaries memcachd --out @/h", 2, "memcached"),
    ("harvest-eval --worlds tune:1..3 --worlds tune:2 --out @/h", 2, "--worlds: tune-2 is named twice"),
    ("harvest-eval --worlds exam:1 --out @/h", 2, "--worlds \"exam\" is no range of worlds"),
    ("harvest-eval --experiments t1 --policies smart --out @/h", 2, "policy \"smart\" is unknown below a tick"),
    ("harvest-eval --experiments t1 --set learn.rat=1 --out @/h", 2, "there is no such setting. Did you mean \"smartharvest.learn.rate\"?"),
    ("harvest-eval --experiments t1 --set learn.rate --out @/h", 2, "no value. Write NAME=VALUE"),
    ("harvest-eval --experiments t1 --duration-s 0 --out @/h", 2, "give seconds from 0.1 to 86400"),
    ("harvest-eval --experiments f14 --seeds 1 --out /proc/none/h", 1, "/proc/none"),
    ("harvest-eval --experiments f14 --seeds 1 --out @/h", 0, ""),
    ("harvest-eval --experiments f14 --seeds 1 --out @/h", 2, "rows.csv: is there already. Give --overwrite"),
    ("harvest-eval --experiments f14 --seeds 1 --out @/h --overwrite", 0, ""),
    ("oracle --workload @/w.toml --platform server-1", 0, ""),
    ("oracle --workload @/none.toml --platform server-1", 2, "none.toml: cannot be read"),
    ("oracle --workload @/w.toml --platform @/none.toml", 2, "no such platform file"),
    ("oracle --workload @/w.toml --platform server-1 --out /proc/none/o.json", 1, "/proc/none"),
    ("oracle --workload @/w.toml --platform server-1 --out @/o.json", 0, ""),
    ("oracle --workload @/w.toml --platform server-1 --out @/o.json", 2, "--out @/o.json: is there already. Give --overwrite"),
    ("oracle --workload @/w.toml --platform server-1 --out @/o.json --overwrite", 0, ""),
    ("oracle --workload @/w.toml --platform server-1 --out @/w.toml --overwrite", 2, "is what this command reads (--workload @/w.toml)"),
    ("oracle --workload @/w.toml --platform server-1 --out @/fifo --overwrite", 2, "is a FIFO and no plain file"),
    ("oracle --workload @/w.toml --platform server-1 --out @/link --overwrite", 2, "is a link. Give the path that it leads to"),
    ("oracle --workload @/w.toml --platform server-1 --out @/empty --overwrite", 2, "is a folder and no plain file"),
    ("run --policy unmanaged --server virtual:server-1 --config @/node.toml", 0, ""),
    ("run --policy unmanaged --server virtual:server-1 --config @/node.toml --events @/text", 2, "--events @/text: is there already"),
    ("run --policy unmanaged --server virtual:server-1 --config @/node.toml --stream @/text", 2, "--stream @/text: is there already"),
    ("run --policy unmanaged --server virtual:server-1 --config @/node.toml --stream @/fifo --overwrite", 2, "is a FIFO and no plain file"),
    (
        "run --policy unmanaged --server virtual:server-1 --config @/node.toml --events @/w.toml --overwrite",
        2,
        "is what this command reads (workload in node.toml @/w.toml)",
    ),
    ("run --policy unmanaged --server virtual:server-1 --config @/node.toml --events @/x --stream @/x", 2, "name one file"),
    ("run --policy unmanaged --server virtual:server-1 --config @/journal-text.toml", 2, "text: is there and no journal of decisions"),
    ("run --policy unmanaged --server virtual:server-1 --config @/journal-link.toml", 2, "link: is a link, and none is followed here"),
    ("run --policy unmanaged --server virtual:server-1 --config @/journal-fifo.toml", 2, "fifo: is a FIFO and no plain file"),
    ("run --policy parties-be --server local", 2, "--config: is missing, and with it `service`. Give a node.toml"),
    ("run --policy parties-be --server virtual:server-1", 2, "--config: is missing, and with it `workload`. Give a node.toml"),
    (
        "run --policy parties-be --server virtual:server-1 --config @/no-workload.toml",
        2,
        "no-workload.toml: workload: @/none.toml: cannot be read: ",
    ),
    ("run --policy partes --server virtual:server-1 --config @/node.toml", 2, "\"partes\" is unknown"),
    ("run --policy oracle --server local --config @/file.toml", 2, "policy \"oracle\" is a search and no policy: run `surefootd oracle`"),
    (
        "run --policy parties-be --server virtual:server-1 --config @/node.toml --shadow oracle",
        2,
        "--shadow: policy \"oracle\" is a search",
    ),
    ("run --policy osml-plus --server virtual:server-1 --config @/node.toml", 2, "--bundle"),
    ("run --policy parties-be --server virtual:server-1 --config @/node.toml --bundle @/none", 2, "none"),
    ("run --policy parties-be --server virtual:server-1 --config @/typo.toml", 2, "unknown field"),
    ("run --policy parties-be --server virtual:server-1 --config @/mode.toml", 2, "feed_mode"),
    ("run --policy parties-be --server virtual:server-1 --config @/upper-file.toml", 2, "upper-file.toml: upper.socket: "),
    ("run --policy parties-be --server virtual:server-1 --config @/upper-folder.toml", 1, "in a folder that is there"),
    ("run --policy parties-be --server virtual:server-1 --config @/upper-group.toml", 2, "upper.group: no group \"no such group\""),
    ("run --policy parties-be --server local --config @/actuator.toml", 1, "nowhere.sock"),
    ("run --policy parties-be --server virtual:server-1 --config @/node.toml --events /proc/none/e", 1, "/proc/none/e"),
    ("record --server virtual:server-1 --config @/node.toml --out @/r.jsonl", 0, ""),
    ("record --server virtual:server-1 --config @/node.toml --out @/r.jsonl", 2, "--out @/r.jsonl: is there already. Give --overwrite"),
    ("record --server virtual:server-1 --config @/node.toml --out @/r.jsonl --overwrite", 0, ""),
    ("record --server virtual:server-1 --config @/node.toml --out @/node.toml --overwrite", 2, "is what this command reads (--config "),
    ("record --server virtual:server-1 --config @/node.toml --out @/fifo --overwrite", 2, "is a FIFO and no plain file"),
    ("record --server virtual:server-1 --config @/node.toml --out @/none/r.jsonl", 2, "Make it first"),
    ("record --server virtual:server-1 --out @/r.jsonl", 2, "--config: is missing, and with it `workload`"),
    ("record --server local --config @/catalogue.toml --out @/r.jsonl", 2, "`catalogue` in node.toml"),
    ("record --server local --config @/cpus.toml --out @/r.jsonl", 2, "`cpus` in node.toml"),
    ("record --server local --config @/resctrl.toml --out @/r.jsonl", 1, "nothing like resctrl is mounted there"),
    ("record --server local --config @/file.toml --out @/r.jsonl", 1, "`state_dir` in node.toml"),
    ("check --config @/empty", 2, "Name a node.toml in it"),
    ("record --server local --config @/gone.toml --out @/g.jsonl", 1, "/no/such/group"),
    ("run --policy parties-be --server virtual:server-1 --config @/node.toml --shadow partes", 2, "--shadow: policy \"partes\""),
    (
        "run --policy parties-be --server virtual:server-1 --config @/node.toml --shadow parties-be",
        2,
        "\"parties-be\" is the one that acts",
    ),
    (
        "run --policy parties-be --server virtual:server-1 --config @/node.toml --shadow clite,clite",
        2,
        "--shadow: policy \"clite\" is there twice",
    ),
    ("run --policy parties-be --server virtual:server-1 --config @/node.toml --shadow ,clite", 2, "--shadow: the list has an empty entry"),
    ("run --policy parties-be --server virtual:server-1 --config @/node.toml --stream /proc/none/s", 1, "/proc/none/s"),
    // Names before the state folder, which cannot be made there.
    ("run --policy partes --server local --config @/file.toml", 2, "policy \"partes\" is unknown"),
    ("run --policy parties-be --server local --config @/file.toml --shadow partes", 2, "--shadow: policy \"partes\" is unknown"),
    ("run --policy parties-be --server local --config @/file.toml", 1, "`state_dir` in node.toml"),
    ("replay @/none", 2, "none: cannot be read"),
    ("replay @/empty", 2, "empty: is a folder, no stream. Name the file in it"),
    ("replay @/text", 2, "no head of a stream"),
    ("replay @/text --policies parties-be,", 2, "--policies: the list has an empty entry"),
    ("replay @/text --policies clite,clite", 2, "--policies: policy \"clite\" is there twice"),
    ("top", 2, "--once"),
    ("top --once --url http://127.0.0.1:1", 1, "no daemon answers"),
    ("top --once --url http://elsewhere:9464", 2, "ssh -L"),
    ("top --once --config @/node.toml", 2, "metrics_port"),
    ("explain --file @/journal", 0, "surefootd: reading @/journal"),
    ("explain --config @/node.toml", 2, "node.toml: journal: is missing, so a run on a virtual server writes none. Set"),
    ("explain --file @/journal --id 7", 1, "there is no action 7"),
    ("explain --file @/none", 2, "there is no journal"),
    ("explain --file @/empty", 2, "is a folder"),
    ("explain --file @/text", 2, "is no journal of decisions"),
    ("explain --file @/journal --action gorw", 2, "--action gorw"),
    ("explain --file @/journal --since soon", 2, "--since soon"),
    ("reset --server virtual:server-1", 0, ""),
    ("reset --state @/none", 2, "no such state folder"),
    ("reset --safe --state @/empty", 0, ""),
    ("reset --safe --state @/damaged", 1, "safe.json"),
    ("reset --config @/none.toml", 2, "none.toml: cannot be read"),
    ("actuate --config @/none.toml", 2, "Give the path of a node.toml"),
    ("actuate --config @/node.toml", 2, "[actuator]"),
    ("actuate --config @/nobody.toml", 2, "no such user"),
    ("resctrlfs @/none --platform server-1", 2, "Make it first"),
    ("resctrlfs @/damaged --platform server-1", 2, "is not empty"),
    ("resctrlfs @/damaged --platform server-1 -o nonempty,colour", 2, "colour"),
    ("resctrlfs @/empty --platform sever-1", 2, "--platform sever-1: unknown platform"),
    ("resctrlfs @/empty --platform server-1 --kernel 5.10", 2, "--kernel 5.10"),
    ("resctrlfs @/empty --platform server-1 -o colour", 2, "colour"),
    ("schema", 0, ""),
];

/// The command line itself, and what must be said of it.
const USAGE: &[(&str, &str)] = &[
    ("", "no command is given. Choose one of check, sweep,"),
    ("measure", "'measure'"),
    ("chekc", "Did you mean \"check\"?"),
    ("schemaa", "unrecognized subcommand 'schemaa'. See"),
    ("eval --polices parties-be", "Did you mean \"--policies\"?"),
    ("top --parant", "unexpected argument '--parant' found. See"),
    ("run --server virtual:server-1 --policy parteis", "Did you mean \"parties\"?"),
    ("run --server virtual:server-1 --policy parties-be --shadow osml-plsu", "Did you mean \"osml-plus\"?"),
    ("eval --workloads x --platform server-1 --out y --policies clite,surefot", "Did you mean \"surefoot\"?"),
    ("eval --workloads x --platform server-1 --out y --policies clite --harm foreign-bundel", "Did you mean \"foreign-bundle\"?"),
    ("explain --state . --action gorw", "Did you mean \"grow\"?"),
    ("run --policy parties-be", "--server <S>. See surefootd run --help"),
    ("run --server", "--server <S>"),
    ("sweep c.toml --server local", "--out <DIR>"),
    ("check --colour", "'--colour'"),
    ("top --url a --config b", "cannot be used with"),
    ("eval --seeds -1", "'--seeds <N>': -1 is not in 1..=100000"),
    ("harvest-eval --worlds test:1 --load-shares -1", "'--load-shares <SHARES>': no share of a load. Give 0.001 to 10"),
    ("harvest-eval --worlds test:1 --load-shares 0.5,0.5 --out h", "--load-shares: 0.5 is named twice"),
    ("check --server \u{1b}[31mred", "--server \\u{1b}[31mred: is neither"),
];

/// Every command ends as the table says; what fails says so on one line, and every command has a case.
#[test]
fn commands_end_with_the_code_that_is_documented() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path());
    let mut wrong = vec![];
    for (line, code, words) in CASES {
        let (line, words) = (line.replace('@', path(dir.path())), words.replace('@', path(dir.path())));
        let args: Vec<&str> = line.split(' ').collect();
        let out = surefootd().env("SUREFOOT_LOG", "off").args(&args).output().unwrap();
        let says = String::from_utf8_lossy(&out.stderr).trim_end().to_string();
        let one = *code == 0 || says.lines().count() == 1 && says.starts_with("surefootd: ");
        if out.status.code() != Some(*code) || !one || !says.contains(&words) {
            wrong.push(format!("{line}: {:?} for {code}, \"{words}\": {says}", out.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (line, words) in USAGE {
        let out = run(&line.split(' ').filter(|w| !w.is_empty()).collect::<Vec<_>>());
        let (code, says) = one_line(&out);
        assert!(code == 2 && says.starts_with("surefootd: ") && says.contains(words), "{line}: {code} {says}");
    }
    for command in ["run", "eval"] {
        let help = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
        let words: BTreeSet<&str> = help.split_whitespace().map(|w| w.trim_end_matches(',')).collect();
        assert!(surefoot_policy::NAMES.iter().all(|n| words.contains(n)), "{command}: {help}");
    }
    let help = run(&["--help"]);
    assert!(help.status.success());
    let listed = String::from_utf8_lossy(&help.stdout).to_string();
    let commands = listed.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let commands: BTreeSet<&str> =
        commands.filter_map(|l| l.strip_prefix("  ")?.split(' ').next()).filter(|c| !c.is_empty() && *c != "help").collect();
    let tried: BTreeSet<&str> = CASES.iter().filter_map(|(line, ..)| line.split(' ').next()).collect();
    assert!(commands.len() > 9 && commands.is_subset(&tried), "{commands:?} {tried:?}");
    // The page names them all, too.
    let page = fs::read_to_string(root().join("docs/exit-codes.md")).unwrap();
    assert!(tried.iter().all(|c| ["schema", "manual"].contains(c) || page.contains(&format!("| `{c}` |"))), "docs/exit-codes.md");
}

/// Without --trust and at the first use, it is said where keys go and how else they are given; a --trust that is not there is the one at fault.
#[test]
fn the_first_use_of_a_bundle_says_where_keys_go() {
    let home = tempfile::tempdir().unwrap();
    files(home.path());
    let bundle = root().join("tests/vectors/bundle-small");
    let line = |more: &[&str], keys: Option<&Path>| {
        let mut command = surefootd();
        let config = home.path().join("node.toml");
        command.args([
            "run",
            "--policy",
            "parties-be",
            "--server",
            "virtual:server-1",
            "--config",
            path(&config),
            "--bundle",
            path(&bundle),
        ]);
        command.args(more).env("HOME", home.path()).env_remove("SUREFOOT_KEYS");
        if let Some(folder) = keys {
            command.env("SUREFOOT_KEYS", folder);
        }
        one_line(&command.output().unwrap())
    };
    let own = home.path().join("own");
    for (keys, folder) in [(None, home.path().join(".config/surefoot/keys/trusted")), (Some(own.as_path()), own.join("trusted"))] {
        let (code, says) = line(&[], keys);
        assert!(
            code == 2 && says.contains(path(&folder)) && says.contains("Make it and copy the signer's .pub.pem there"),
            "{code} {says}"
        );
        assert!(says.contains("--trust") && says.contains("SUREFOOT_KEYS"), "{says}");
    }
    let (code, says) = line(&["--trust", path(&own)], None);
    assert!(code == 2 && says.contains(path(&own)) && says.contains("Give the signer's .pub.pem") && !says.contains("Make it"), "{says}");
}

/// On this machine a bundle that cannot be used, or that is missing, is found before anything is made: no state folder is there then.
#[test]
fn a_wrong_bundle_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path());
    let at = |name: &str| dir.path().join(name);
    let (bundle, keys) = (root().join("tests/vectors/bundle-small"), root().join("tests/vectors/keys/trusted"));
    let run = |more: &[&str]| {
        let config = at("local.toml");
        one_line(&surefootd().args(["run", "--server", "local", "--config", path(&config)]).args(more).output().unwrap())
    };
    let (bundle, keys, empty) = (path(&bundle), path(&keys), at("empty"));
    let cases: [(&[&str], &str); 5] = [
        (&["--policy", "parties-be", "--bundle", "/nowhere"], "/nowhere: no such file"),
        (&["--policy", "parties-be", "--bundle", path(&empty), "--trust", keys], "This is not a bundle"),
        // Of 36 cores and 20 ways: nothing that tests run on.
        (&["--policy", "surefoot", "--bundle", bundle, "--trust", keys], "manifest.json"),
        (&["--policy", "surefoot"], "--bundle"),
        (&["--policy", "parties-be", "--shadow", "osml"], "--shadow: policy \"osml\""),
    ];
    for (more, words) in cases {
        let (code, says) = run(more);
        assert!(code == 2 && says.contains(words), "{more:?}: {code} {says}");
        assert!(!at("state").exists(), "{more:?}");
    }
}

/// `reset --state` of a folder that is no state folder says so and touches nothing in it, whatever its files are called.
#[test]
fn what_is_no_state_folder_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("other");
    let sweep = "{\"case_id\":\"a\",\"state\":\"measured\",\"shard\":0,\"rows\":3}\n";
    let folders: [&[(&str, &str)]; 5] = [
        &[],
        &[("text", "precious")],
        &[("lock", ""), ("status", "of a package manager")],
        &[("journal.jsonl", sweep), (".lock", "4242"), ("manifest.json", "{}")],
        &[("journal.jsonl", ""), ("lock", "not a number")],
    ];
    for files in folders {
        let _ = fs::remove_dir_all(&at);
        fs::create_dir(&at).unwrap();
        files.iter().for_each(|(name, text)| fs::write(at.join(name), text).unwrap());
        let modified = fs::metadata(&at).unwrap().modified().unwrap();
        let (code, says) = one_line(&surefootd().args(["reset", "--state", path(&at)]).output().unwrap());
        assert!(code == 2 && says.contains("is no state folder") && says.contains("Give --state or --config"), "{files:?}: {code} {says}");
        let left: BTreeSet<String> = fs::read_dir(&at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(left, files.iter().map(|(n, _)| n.to_string()).collect(), "{files:?}");
        assert!(files.iter().all(|(n, text)| fs::read_to_string(at.join(n)).unwrap() == *text), "{files:?}");
        assert_eq!(fs::metadata(&at).unwrap().modified().unwrap(), modified);
    }
}

/// -q leaves warnings and errors, -qq errors alone, -v says more; all go before SUREFOOT_LOG, and stand before or after the command.
#[test]
fn the_log_says_as_much_as_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path());
    // A lender in the configuration of a virtual server is ignored, with a warning.
    let lend = "[[service]]\nservice = \"a\"\nkind = \"be\"\npid = 1\n";
    fs::write(dir.path().join("warned.toml"), format!("realtime = false\n{MOSES}{lend}")).unwrap();
    let config = dir.path().join("warned.toml");
    let says = |before: &[&str], after: &[&str], log: &str| {
        let mut c = surefootd();
        c.env("SUREFOOT_LOG", log).args(before).args(["run", "--policy", "parties-be", "--server", "virtual:server-1"]).args(after);
        let out = c.args(["--config", path(&config)]).output().unwrap();
        assert!(out.status.success(), "{before:?} {after:?}: {}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8_lossy(&out.stderr).to_string();
        [" INFO ", " WARN "].map(|level| text.contains(level))
    };
    assert_eq!(says(&[], &[], ""), [true, true]);
    assert_eq!(says(&["-q"], &[], "debug"), [false, true]);
    assert_eq!(says(&[], &["--quiet"], "debug"), [false, true]);
    assert_eq!(says(&["-q", "-q"], &[], ""), [false, false]);
    assert_eq!(says(&[], &["-qq"], ""), [false, false]);
    assert_eq!(says(&["-v"], &[], "off"), [true, true]);
    assert_eq!(says(&[], &["--verbose", "-v"], "off"), [true, true]);
}

/// A platform file that this host makes is a server once its blanks are filled in, and is refused with the first blank before.
#[test]
fn a_written_platform_is_a_server_when_its_blanks_are_filled_in() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rack-7.toml");
    let out = run(&["check", "--write-platform", path(&file), "--json"]);
    assert!(out.status.success());
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let blank: Vec<&str> = said["written"]["blank"].as_array().unwrap().iter().map(|b| b["field"].as_str().unwrap()).collect();
    assert!(blank.contains(&"mem.bw_gbs"), "{blank:?}");
    let server = format!("virtual:{}", path(&file));
    let (code, why) = one_line(&run(&["check", "--server", &server]));
    assert!(code == 2 && blank.iter().any(|b| why.contains(b)), "{why}");
    let mut text = fs::read_to_string(&file).unwrap();
    let physical: usize = text.lines().find_map(|l| l.strip_prefix("physical_cores = ")?.split(' ').next()?.parse().ok()).unwrap();
    assert!(text.contains("name = \"rack-7\"\n"), "{text}");
    for field in &blank {
        let key = field.split_once('.').unwrap().1;
        let value = match key {
            "turbo_ghz" => format!("{:?}", vec![2.0; physical]),
            "mba" => "false".into(),
            "ways" | "domains" | "smt" | "min_ways" => "1".into(),
            _ => "2.0".into(),
        };
        let from = text.lines().find(|l| l.starts_with(&format!("# {key} ="))).unwrap().to_string();
        text = text.replace(&from, &format!("{key} = {value}"));
    }
    fs::write(&file, &text).unwrap();
    let out = run(&["check", "--server", &server]);
    assert!(out.status.success(), "{}\n{text}", String::from_utf8_lossy(&out.stderr));
}
