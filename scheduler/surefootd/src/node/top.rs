//! `surefootd top`: a running daemon, live. It asks the daemon's responder on 127.0.0.1 for /status and draws the answer: a frame is
//! a function of that answer alone.

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::say;
use crate::base::stop;
use crate::node::explain::verdict_of;
use crate::node::status::{LendStatus, ModelStatus, ServiceStatus, ShadowStatus, Status};
use crate::stage::config::{NodeConfig, METRICS_PORT};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use surefoot_io::out::stdout_is_terminal;
use surefoot_io::{json, shown};
use surefoot_server::held::size;
use surefoot_server::{Held, Number, Quantity, Resource, QUANTITIES};

/// Between two questions to the daemon.
const EVERY: Duration = Duration::from_millis(500);
/// What the daemon has for all of its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest answer that is read.
const MOST_ANSWER_BYTES: usize = 4 << 20;
/// Columns of a frame that goes to no terminal.
const PLAIN_COLUMNS: u16 = 132;
/// Columns of service names and of bars, in a wide terminal and in a narrow one.
const WIDE: Shape = Shape { name: 16, bar: 12, wide: true };
const NARROW: Shape = Shape { name: 10, bar: 5, wide: false };
/// From here on everything has room, with a sparkline worth its name.
const WIDE_COLUMNS: u16 = 124;
/// Columns of an action's reason.
const MOST_WHY: usize = 400;
/// Actions that are shown.
const SHOWN_ACTIONS: usize = 8;

/// Where the daemon answers: on this machine.
///
/// # Errors
/// [`Error::BadInput`].
pub fn address(args: &cli::Top) -> Result<SocketAddr> {
    let mut at = match (&args.url, &args.config) {
        (Some(url), _) => return parse_url(url),
        (None, Some(file)) => NodeConfig::read(file)?.metrics_at().ok_or_else(|| {
            Error::BadInput(format!("{}: metrics_port: is 0, so this daemon answers nobody. Give it a port", file.display()))
        })?,
        (None, None) => (Ipv4Addr::LOCALHOST, METRICS_PORT).into(),
    };
    // Who listens at every address of a kind listens at this one.
    match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => at.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => at.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Ok(at)
}

fn parse_url(url: &str) -> Result<SocketAddr> {
    let wrong = |why: &str| Error::BadInput(format!("--url {url}: {why}. Write e.g. http://127.0.0.1:{METRICS_PORT}"));
    let rest = url.strip_prefix("http://").ok_or_else(|| wrong("does not begin with http://"))?;
    let host = rest.split('/').next().unwrap_or("");
    let (name, port) = host.rsplit_once(':').ok_or_else(|| wrong("has no port"))?;
    if !["127.0.0.1", "localhost"].contains(&name) {
        return Err(wrong(
            "is not on this machine (for another, forward its port: ssh -L; for another address of this one, give --config)",
        ));
    }
    let port: u16 = port.parse().ok().filter(|p| *p > 0).ok_or_else(|| wrong("has no port from 1 to 65535"))?;
    Ok((Ipv4Addr::LOCALHOST, port).into())
}

/// Ask a daemon.
///
/// # Errors
/// [`Error::Failed`] where none answers in time, or not with a status.
pub fn ask(at: SocketAddr) -> Result<Status> {
    let failed = |why: String, remedy: &str| Error::Failed(format!("http://{at}/status: {why}. {remedy}"));
    let none = |e: std::io::Error| {
        failed(format!("no daemon answers: {e}"), "Start `surefootd run`, or say where it answers with --url or --config (metrics_port)")
    };
    let answer = exchange(at, Instant::now() + PATIENCE).map_err(none)?;
    status_of(&answer).map_err(|why| failed(why, "Something else may listen there: see metrics_port of the daemon"))
}

/// The whole answer, by a time: one that comes byte by byte is waited for no longer than one that does not come.
fn exchange(at: SocketAddr, until: Instant) -> std::io::Result<Vec<u8>> {
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(std::io::Error::new(ErrorKind::TimedOut, format!("not within {} s", PATIENCE.as_secs()))),
        left => Ok(left),
    };
    let mut stream = TcpStream::connect_timeout(&at, left()?)?;
    // A request fits into what the kernel holds.
    stream.set_write_timeout(Some(left()?))?;
    stream.write_all(format!("GET /status HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let (mut answer, mut piece) = (vec![], [0; 16 << 10]);
    loop {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(answer),
            Ok(n) => answer.extend_from_slice(&piece[..n]),
            // Its time is over, or a signal came: both are seen above.
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
        if answer.len() > MOST_ANSWER_BYTES {
            return Err(std::io::Error::new(ErrorKind::FileTooLarge, format!("more than {} MiB came", MOST_ANSWER_BYTES >> 20)));
        }
    }
}

/// What an answer says.
fn status_of(answer: &[u8]) -> std::result::Result<Status, String> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let parsed = head.parse(answer);
    let Ok(httparse::Status::Complete(end)) = parsed else { return Err("is no HTTP".into()) };
    if head.code != Some(200) {
        return Err(format!("answers {} {}", head.code.unwrap_or(0), head.reason.unwrap_or_default()));
    }
    json::from_slice(&answer[end..]).map_err(|e| format!("is no status: {e}"))
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    name: usize,
    bar: usize,
    wide: bool,
}

/// `held` of `all` as a bar of so many cells; more than nothing never looks like nothing.
fn bar(held: f64, all: f64, cells: usize) -> String {
    let share = if all > 0.0 { (held / all).clamp(0.0, 1.0) } else { 0.0 };
    let mut full = (share * cells as f64).round() as usize;
    if held > 0.0 {
        full = full.max(1);
    }
    "█".repeat(full) + &"░".repeat(cells - full)
}

/// The last `width` p99s: half the height is the target, the whole twice the target and more; '·' is unknown.
fn sparkline(recent_ms: &[Option<f64>], target_ms: f64, width: usize) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let step = |p99: &Option<f64>| match p99 {
        None => '·',
        // Four steps up to the target, so that whatever is above it stands in the upper half.
        Some(v) if *v <= target_ms => STEPS[((v / target_ms * 4.0).ceil() as usize).clamp(1, 4) - 1],
        Some(v) => STEPS[3 + ((v / target_ms - 1.0) * 4.0).ceil().clamp(1.0, 4.0) as usize],
    };
    recent_ms[recent_ms.len().saturating_sub(width)..].iter().map(step).collect()
}

/// A name in exactly `width` columns; nothing in it acts on a terminal.
fn fit(text: &str, width: usize) -> String {
    let clean = shown::line(text);
    let n = clean.chars().count();
    if n > width {
        return clean.chars().take(width.saturating_sub(1)).chain(['…']).take(width).collect();
    }
    clean.into_owned() + &" ".repeat(width - n)
}

/// A text of at most `most` columns.
fn brief(text: &str, most: usize) -> String {
    fit(text, shown::line(text).chars().count().min(most))
}

fn number(v: Option<f64>, digits: usize) -> String {
    match v {
        None => "-".into(),
        Some(v) if v.abs() < 1e9 => format!("{v:.digits$}"),
        Some(v) => format!("{v:.1e}"),
    }
}

/// One quantity of what services hold, in columns of a frame.
struct Column {
    quantity: &'static Quantity,
    /// What there is of it in all, where that is known.
    all: Option<f64>,
    /// Cells of its bar, columns of its number and of the space behind it; no bar where it has 0 cells.
    bar: usize,
    digits: usize,
    gap: usize,
}

/// What services hold. Limits stand in a wide frame, and where some service has one.
fn columns(s: &Status, shape: Shape) -> Vec<Column> {
    let shown = |q: &&Quantity| !q.limit || (shape.wide && s.services.iter().any(|v| (q.of)(&v.held).is_some()));
    QUANTITIES.iter().filter(shown).map(|q| Column::of(q, s, shape)).collect()
}

impl Column {
    fn of(quantity: &'static Quantity, s: &Status, shape: Shape) -> Self {
        let (all, bar, digits, gap) = match (quantity.resource, shape.wide) {
            (Resource::Cpu, true) => (Some(s.cores), shape.bar, 5, 2),
            (Resource::Cpu, false) => (Some(s.cores), shape.bar, 4, 1),
            (Resource::Llc, _) => (s.ways, shape.bar, 4, 1),
            (_, true) if quantity.number == Number::Bytes => (None, 0, 6, 2),
            (_, true) => (None, 0, 4, 2),
            (_, false) => (None, 0, 3, 1),
        };
        Column { quantity, all, bar, digits, gap }
    }

    fn head(&self, shape: Shape) -> String {
        let Column { digits, gap, .. } = *self;
        let head = self.quantity.heads[usize::from(!shape.wide)];
        if self.bar == 0 {
            return format!("{head:>digits$}{:gap$}", "");
        }
        let of = if shape.wide { " of" } else { "" };
        let head = format!("{head}{of} {}", number(self.all, 0));
        let width = self.bar + 1 + digits;
        format!("{head:<width$}{:gap$}", "")
    }

    fn cell(&self, held: &Held) -> String {
        let Column { bar: cells, digits, gap, .. } = *self;
        let value = (self.quantity.of)(held);
        let text = match (value, self.quantity.number) {
            (None, _) => "-".into(),
            (Some(v), Number::Real) => format!("{v:.1}"),
            (Some(v), Number::Whole) => format!("{v}"),
            (Some(v), Number::Bytes) => size(v).replace("iB", "").replace(' ', ""),
        };
        let bar = match value {
            _ if cells == 0 => String::new(),
            Some(v) => bar(v, self.all.unwrap_or(v), cells) + " ",
            None => format!("{:<cells$} ", "-"),
        };
        format!("{bar}{text:>digits$}{:gap$}", "")
    }
}

fn service_line(s: &ServiceStatus, columns: &[Column], width: usize, shape: Shape) -> Line<'static> {
    let Shape { name, wide, .. } = shape;
    let held: String = columns.iter().map(|c| c.cell(&s.held)).collect();
    let held = format!("{} {} {held}", fit(&s.id, name), fit(&s.kind, 2));
    let (state, colour) = match (s.feed.as_str(), s.p99_ms, s.qos_target_ms) {
        (_, _, None) => ("", Color::Reset),
        ("idle", ..) => ("idle", Color::Reset),
        ("coarse", ..) => ("coarse", Color::Yellow),
        ("doubtful", ..) => ("doubtful", Color::Yellow),
        ("unknown", ..) if s.never_heard => ("unheard", Color::Yellow),
        ("unknown", ..) | (_, None, Some(_)) => ("unknown", Color::Yellow),
        (_, Some(p99), Some(target)) if p99 <= target => ("met", Color::Green),
        _ => ("missed", Color::Red),
    };
    let (p99, target) = (number(s.p99_ms, 2), number(s.qos_target_ms, 1));
    let latency = if wide { format!("{p99:>9} / {target:>7} {state:<8}") } else { format!("{p99:>8}/{target:<6} {state:<8}") };
    let missed = match (wide, s.qos_target_ms) {
        (true, Some(_)) => format!("{:>7}  ", number(s.violation_s, 1)),
        (true, None) => " ".repeat(9),
        (false, _) => String::new(),
    };
    let left = width.saturating_sub([&held, &latency, &missed].map(|t| t.chars().count()).iter().sum());
    let spark = s.qos_target_ms.map_or(String::new(), |t| sparkline(&s.recent_p99_ms, t, left));
    let style = Style::new().fg(colour);
    vec![Span::raw(held), Span::styled(latency, style), Span::raw(missed), Span::styled(spark, style)].into()
}

/// A policy in the shadow: what it says now, and over the run how often it disagreed and how much it regretted.
fn shadow_line(s: &ShadowStatus, name: usize) -> Line<'static> {
    let (regret, mean) = (number(s.regret_qos, 3), number(s.so_far.regret_qos, 3));
    let share = 100.0 * s.so_far.disagreement_frac;
    let who = fit(&s.so_far.policy, name);
    format!("{who} {:>7.1} {:>6.1} {:>+9.1} {regret:>10} {share:>10.1} % {mean:>12}", s.cores, s.ways, s.be_cores).into()
}

/// A lender: cores lent of those that may be, what the policy below a tick has been wrong about, and why nothing is lent.
fn lend_line(l: &LendStatus, name: usize) -> Line<'static> {
    let of = format!("{} of {}", l.cores, l.most_cores);
    let who = format!("{} {}", fit(&l.lender, name), fit(&l.borrower, name));
    let counted = format!("{who} {of:>9} {:>9} {:>7} {:>9} {:>6}  ", l.windows, l.short, l.exhausted, l.stops);
    let (text, colour) = match &l.why_not {
        Some(why) => (brief(why, MOST_WHY), Color::Yellow),
        None => (brief(&l.policy, 32), Color::Reset),
    };
    vec![Span::raw(counted), Span::styled(text, Style::new().fg(colour))].into()
}

/// Models of a service: how they do, the error of what is held and of what was changed to, and how Model-A's OAA was found.
fn model_line(m: &ModelStatus, name: usize) -> Line<'static> {
    let colour = match m.standing.as_str() {
        "as-taught" => Color::Green,
        "worse-than-taught" => Color::Red,
        "strange-inputs" => Color::Yellow,
        _ => Color::Reset,
    };
    let errors = [m.held, m.changed].map(|c| format!("{} {:>6}", number(c.error_qos, 3), c.comparisons));
    let false_met = [m.held, m.changed, m.overloaded].iter().map(|c| c.false_met).sum::<u64>();
    let figures = format!("{:>13} {:>13} {:>6} {false_met:>9} {:>7}  ", errors[0], errors[1], number(m.drift, 1), m.inputs_outside);
    let standing = Span::styled(fit(&m.standing, 18), Style::new().fg(colour));
    vec![Span::raw(fit(&m.service, name) + " "), standing, Span::raw(figures + &brief(&m.oaa, 12))].into()
}

/// A frame. `trouble` is why the status is an old one.
pub fn lines(s: &Status, width: u16, trouble: Option<&str>) -> Vec<Line<'static>> {
    let shape = if width >= WIDE_COLUMNS { WIDE } else { NARROW };
    let (width, name) = (usize::from(width), shape.name);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let decision = s.decision_mean_us.map_or(String::new(), |us| format!(", {us:.0} us a decision"));
    let refused = if s.refused_plans > 0 { format!(", {} plans refused", s.refused_plans) } else { String::new() };
    let late = if s.late_ticks > 0 { format!(", {} late", s.late_ticks) } else { String::new() };
    let what = format!(
        "surefoot  {} on {}  {:.1} s, {} ticks of {} ms{late}{decision}{refused}",
        brief(&s.policy, 32),
        brief(&s.platform, 32),
        s.t_ms as f64 / 1000.0,
        s.ticks,
        s.interval_ms
    );
    let mut out = vec![Line::styled(what, bold)];
    out.push(match trouble {
        Some(why) => Line::styled(brief(why, width), Style::new().fg(Color::Red)),
        None => Line::raw(""),
    });
    let columns = columns(s, shape);
    let held: String = columns.iter().map(|c| c.head(shape)).collect();
    let latency = if shape.wide {
        format!("{:>9} / {:>7} {:<8}{:>7}  {}", "P99 ms", "TARGET", "QOS", "MISS s", "P99 (half height: target)")
    } else {
        format!("{:>8}/{:<6} {:<8}{}", "P99 ms", "TARGET", "QOS", "P99")
    };
    out.push(Line::styled(format!("{:<name$}    {held}{latency}", "SERVICE"), bold));
    if s.services.is_empty() && s.absent.is_empty() {
        out.push("no service".into());
    }
    out.extend(s.services.iter().map(|v| service_line(v, &columns, width, shape)));
    if !s.absent.is_empty() {
        let text = format!("not here (ended, not started yet, or named wrongly): {}", s.absent.join(", "));
        out.push(Line::styled(brief(&text, width), Style::new().fg(Color::Red)));
    }
    if !s.shadows.is_empty() {
        let head = format!(
            "{:<name$} {:>7} {:>6} {:>9} {:>10} {:>12} {:>12}",
            "SHADOW", "±CORES", "±WAYS", "+BE CORES", "REGRET QOS", "RUN: DIFFERS", "MEAN REGRET"
        );
        out.push(Line::raw(""));
        out.push(Line::styled(head, bold));
        out.extend(s.shadows.iter().map(|v| shadow_line(v, name)));
    }
    if let Some(models) = s.models.as_ref().filter(|m| !m.is_empty()) {
        let head = format!(
            "{:<name$} {:<18}{:>13} {:>13} {:>6} {:>9} {:>7}  OAA",
            "MODELS", "STANDING", "HELD: ERR  N", "CHANGED  N", "DRIFT", "FALSE MET", "OUTSIDE"
        );
        out.push(Line::raw(""));
        out.push(Line::styled(head, bold));
        out.extend(models.iter().map(|m| model_line(m, name)));
    }
    if !s.lends.is_empty() {
        let head = format!(
            "{:<name$} {:<name$} {:>9} {:>9} {:>7} {:>9} {:>6}  ",
            "LENDER", "TO", "CORES", "WINDOWS", "SHORT", "EXHAUSTED", "STOPS"
        );
        out.push(Line::raw(""));
        out.push(Line::styled(head + "POLICY, OR WHY NOT", bold));
        out.extend(s.lends.iter().map(|l| lend_line(l, name)));
    }
    out.push(Line::raw(""));
    out.push(Line::styled("LAST ACTIONS (surefootd explain --id N: the whole account)", bold));
    if s.actions.is_empty() {
        out.push("none".into());
    }
    for a in s.actions.iter().rev().take(SHOWN_ACTIONS) {
        let why = brief(&a.why, MOST_WHY);
        let (held, colour) = match verdict_of(a) {
            "yes" => ("held", Color::Green),
            "no" => ("failed", Color::Red),
            "refused" => ("refused", Color::Red),
            "open" => ("…", Color::Reset),
            _ => ("", Color::Reset),
        };
        let text = format!("{:>9.1} s  #{:<6} {} {:<9} ", a.t_ms as f64 / 1000.0, a.id, fit(&a.service, name), a.action.as_str());
        let style = if a.applied { Style::new() } else { Style::new().fg(Color::Red) };
        out.push(
            vec![Span::styled(text, style), Span::styled(format!("{held:<8} "), Style::new().fg(colour)), Span::styled(why, style)].into(),
        );
    }
    out
}

/// Draw a frame; what does not fit is cut off.
pub fn draw(s: &Status, trouble: Option<&str>, area: Rect, buffer: &mut Buffer) {
    for (y, line) in (area.top()..area.bottom()).zip(lines(s, area.width, trouble)) {
        buffer.set_line(area.x, y, &line, area.width);
    }
}

/// A frame as text.
pub fn plain(s: &Status, width: u16) -> String {
    let text = |l: Line| l.spans.iter().map(|x| x.content.as_ref()).collect::<String>().trim_end().to_string() + "\n";
    lines(s, width, None).into_iter().map(text).collect()
}

/// # Errors
/// Bad input, or a daemon that does not answer.
pub fn run(args: &cli::Top) -> Result<()> {
    let at = address(args)?;
    let terminal = stdout_is_terminal() && std::io::stdin().is_terminal();
    if !(args.once || args.json || terminal) {
        return Err(Error::BadInput("top: this is no terminal. Use --once for one plain frame, or --json".into()));
    }
    let first = ask(at)?;
    if args.json {
        return say::json(&first);
    }
    if args.once {
        return say::print(&plain(&first, PLAIN_COLUMNS));
    }
    stop::install()?;
    let fail = |e: std::io::Error| Error::Failed(format!("top: the terminal: {e}. Use --once for one plain frame"));
    // Gives the terminal back also where this program panics.
    let mut terminal = ratatui::try_init().map_err(fail)?;
    let done = watch(&mut terminal, at, first);
    ratatui::try_restore().and(done).map_err(fail)
}

/// Until somebody has seen enough. A daemon that falls silent may come back.
fn watch(terminal: &mut ratatui::DefaultTerminal, at: SocketAddr, mut status: Status) -> std::io::Result<()> {
    let mut trouble: Option<String> = None;
    let mut asked = Instant::now();
    loop {
        terminal.draw(|f| {
            let area = f.area();
            draw(&status, trouble.as_deref(), area, f.buffer_mut());
        })?;
        while asked.elapsed() < EVERY {
            if stop::requested() {
                return Ok(());
            }
            let ready = match event::poll(EVERY.saturating_sub(asked.elapsed())) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            match ready.then(event::read).transpose()? {
                Some(Event::Key(k)) if k.kind == KeyEventKind::Press => {
                    let interrupt = k.code == KeyCode::Char('c') && k.modifiers.contains(KeyModifiers::CONTROL);
                    if interrupt || matches!(k.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                }
                Some(Event::Resize(..)) => break,
                _ => {}
            }
        }
        if asked.elapsed() >= EVERY {
            asked = Instant::now();
            match ask(at) {
                Ok(s) => (status, trouble) = (s, None),
                Err(e) => {
                    let e = e.to_string();
                    let why = e.split_once(". ").map_or(e.as_str(), |(why, _)| why);
                    trouble = Some(format!("{why}; this is how it was, asking on"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::follower::Record;
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;
    use surefoot_server::ActionKind;

    fn status() -> Status {
        let lc = |id: &str, cores: f64, p99_ms: Option<f64>, recent: &[Option<f64>]| ServiceStatus {
            id: id.into(),
            service: id.into(),
            kind: "lc".into(),
            p99_ms,
            qos_target_ms: Some(10.0),
            feed: "fresh".into(),
            held: Held { cores, ways: Some(5.0), mba_pct: 100, ..Held::default() },
            recent_p99_ms: recent.to_vec(),
            ..Default::default()
        };
        let action = |t_ms, applied| Record {
            id: t_ms / 100,
            t_ms,
            at_ms: None,
            service: "moses".into(),
            action: ActionKind::Grow,
            why: "p99 12 ms".into(),
            applied,
            error: None,
            given: Default::default(),
            because: Default::default(),
            effect: None,
        };
        Status {
            policy: "parties".into(),
            platform: "server-1".into(),
            cores: 36.0,
            ways: Some(20.0),
            interval_ms: 100,
            t_ms: 12_300,
            ticks: 124,
            services: vec![
                lc("moses", 9.0, Some(4.0), &[None, Some(4.0), Some(10.0), Some(10.1), Some(20.0), Some(900.0)]),
                lc("xapian", 18.0, Some(12.0), &[]),
                ServiceStatus { feed: "unknown".into(), ..lc("silent\u{1b}[31m", 9.0, None, &[]) },
                ServiceStatus {
                    id: "stream".into(),
                    kind: "be".into(),
                    held: Held { cores: 0.5, mba_pct: 10, ..Held::default() },
                    ..Default::default()
                },
            ],
            actions: vec![action(100, true), action(12_200, false)],
            ..Default::default()
        }
    }

    /// The screen as text, and the colours of each row's cells.
    fn screen(s: &Status, trouble: Option<&str>, width: u16, height: u16) -> (Vec<String>, Vec<Vec<Color>>) {
        let mut t = Terminal::new(TestBackend::new(width, height)).unwrap();
        t.draw(|f| draw(s, trouble, f.area(), f.buffer_mut())).unwrap();
        let b = t.backend().buffer();
        let rows = |f: &dyn Fn(u16, u16) -> String| (0..height).map(|y| (0..width).map(|x| f(x, y)).collect()).collect();
        let colours = (0..height).map(|y| (0..width).map(|x| b[(x, y)].fg).collect()).collect();
        (rows(&|x, y| b[(x, y)].symbol().to_string()), colours)
    }

    /// In 80 columns the latency still stands against its target, with a sparkline beside it.
    #[test]
    fn a_narrow_frame_keeps_what_matters() {
        let (rows, colours) = screen(&status(), None, 80, 20);
        assert!(rows[2].starts_with("SERVICE       CORES 36   WAYS 20    MB%   P99 ms/TARGET QOS     P99"), "{}", rows[2]);
        // 9 of 36 cores are 1 of 5 cells.
        assert!(rows[3].starts_with("moses      lc █░░░░  9.0 █░░░░  5.0 100     4.00/10.0   met     ·"), "{}", rows[3]);
        assert!(rows[4].contains("12.00/10.0   missed") && rows[5].contains("-/10.0   unknown"), "{} {}", rows[4], rows[5]);
        assert!(rows[6].starts_with("stream     be █░░░░  0.5 -"), "{}", rows[6]);
        assert!(colours[3].contains(&Color::Green) && colours[4].contains(&Color::Red));
    }

    /// Every service has its bars, its latency against the target and its colour; actions come newest first.
    #[test]
    fn a_frame_shows_services_and_actions() {
        let (rows, colours) = screen(&status(), None, 140, 20);
        assert!(rows[0].starts_with("surefoot  parties on server-1  12.3 s, 124 ticks of 100 ms"), "{}", rows[0]);
        // 9 of 36 cores are 3 of 12 cells, 5 of 20 ways too.
        let quarter = "███░░░░░░░░░";
        assert!(rows[3].starts_with(&format!("moses            lc {quarter}   9.0  {quarter}  5.0  100")), "{}", rows[3]);
        assert!(rows[3].contains("4.00 /    10.0 met"), "{}", rows[3]);
        assert!(rows[4].contains("12.00 /    10.0 missed") && rows[4].contains("██████░░░░░░  18.0"), "{}", rows[4]);
        assert!(rows[5].contains("- /    10.0 unknown"), "{}", rows[5]);
        let mut never = status();
        never.services[2].never_heard = true;
        assert!(screen(&never, None, 140, 20).0[5].contains("- /    10.0 unheard"));
        // Half a core is not nothing; a host without ways shows none.
        assert!(rows[6].starts_with("stream           be █░░░░░░░░░░░   0.5  -"), "{}", rows[6]);
        let of = |y: usize, c: Color| colours[y].contains(&c);
        assert!(of(3, Color::Green) && of(4, Color::Red) && of(5, Color::Yellow) && !of(6, Color::Red));
        assert!(rows[9].contains("12.2 s  #122    moses            grow      refused  p99 12 ms"), "{}", rows[9]);
        assert!(rows[10].contains("0.1 s  #1      moses            grow      …        p99 12 ms"), "{}", rows[10]);
        assert!(rows.iter().all(|r| !r.contains('\u{1b}')));
    }

    /// A memory limit has a column where some service has one and the frame is wide; heads stand over their columns there, too.
    #[test]
    fn a_wide_frame_shows_limits() {
        let mut s = status();
        s.services[1].held.mem_limit_bytes = Some(3 << 29);
        let (rows, _) = screen(&s, None, 140, 20);
        assert!(rows[2].contains("MBA%  MEMORY") && !rows[2].contains("ZSWAP"), "{}", rows[2]);
        assert!(rows[3].contains("  5.0  100       -       4.00 /    10.0 met"), "{}", rows[3]);
        assert!(rows[4].contains("  5.0  100    1.5G      12.00 /    10.0 missed"), "{}", rows[4]);
        let at = |row: &str, what: &str| row.find(what).map(|i| row[..i].chars().count());
        assert_eq!(at(&rows[2], "QOS"), at(&rows[3], "met"));
        assert_eq!(screen(&s, None, 80, 20).0[2], screen(&status(), None, 80, 20).0[2]);
    }

    /// A lender has its line below the services: cores lent, what went wrong, and why nothing is lent.
    #[test]
    fn a_frame_shows_what_is_lent() {
        let lend = LendStatus {
            lender: "moses".into(),
            borrower: "stream".into(),
            policy: "smartharvest".into(),
            cores: 2,
            most_cores: 8,
            windows: 4000,
            short: 12,
            exhausted: 3,
            ..LendStatus::default()
        };
        let none =
            LendStatus { cores: 0, most_cores: 0, why_not: Some("xapian is not placed".into()), lender: "xapian".into(), ..lend.clone() };
        assert!(screen(&status(), None, 140, 20).0.iter().all(|r| !r.contains("LENDER")));
        let s = Status { lends: vec![lend, none], ..status() };
        for (width, name) in [(140, 16), (90, 10)] {
            let (rows, colours) = screen(&s, None, width, 20);
            let head = "    CORES   WINDOWS   SHORT EXHAUSTED  STOPS  POLICY, OR WHY NOT";
            assert_eq!(rows[8].trim_end(), format!("{:<name$} {:<name$} {head}", "LENDER", "TO"));
            let line = |lender: &str, of: &str, last: &str| {
                format!("{lender:<name$} {:<name$} {of:>9}      4000      12         3      0  {last}", "stream")
            };
            assert_eq!(rows[9].trim_end(), line("moses", "2 of 8", "smartharvest"));
            assert_eq!(rows[10].trim_end(), line("xapian", "0 of 0", "xapian is not placed"));
            assert!(colours[10].contains(&Color::Yellow));
        }
    }

    /// A shadow has its line below the services, with what is unknown as such; without one there is no such part.
    #[test]
    fn a_frame_shows_shadows() {
        use crate::node::tally::Shadowed;
        let shadow = |policy: &str, regret_qos: Option<f64>| ShadowStatus {
            cores: 3.0,
            ways: 2.0,
            be_cores: -1.5,
            regret_qos,
            so_far: Shadowed { policy: policy.into(), disagreement_frac: 0.125, regret_qos, ..Shadowed::default() },
        };
        let s = Status { shadows: vec![shadow("osml-plus", Some(0.25)), shadow("parties", None)], ..status() };
        assert!(screen(&status(), None, 140, 20).0.iter().all(|r| !r.contains("SHADOW")));
        for (width, name) in [(140, 16), (80, 10)] {
            let (rows, _) = screen(&s, None, width, 20);
            assert_eq!(rows[8].trim_end(), format!("{:<name$}  ±CORES  ±WAYS +BE CORES REGRET QOS RUN: DIFFERS  MEAN REGRET", "SHADOW"));
            assert_eq!(rows[9].trim_end(), format!("{:<name$}     3.0    2.0      -1.5      0.250       12.5 %        0.250", "osml-plus"));
            assert_eq!(rows[10].trim_end(), format!("{:<name$}     3.0    2.0      -1.5          -       12.5 %            -", "parties"));
            assert!(rows[12].starts_with("LAST ACTIONS"), "{rows:?}");
        }
    }

    /// The models of a service have their line below the services; without a bundle there is no such part.
    #[test]
    fn a_frame_shows_how_models_do() {
        use crate::node::status::Compared;
        let of = |comparisons, error_qos| Compared { comparisons, false_met: 2, error_qos, ..Compared::default() };
        let model = |service: &str, standing: &str, drift| ModelStatus {
            service: service.into(),
            standing: standing.into(),
            drift,
            held: of(120, Some(0.25)),
            changed: of(0, None),
            inputs_outside: 3,
            oaa: "too-small".into(),
            ..ModelStatus::default()
        };
        let all = vec![model("moses", "worse-than-taught", Some(4.25)), model("xapian", "too-few", None)];
        assert!(screen(&status(), None, 140, 20).0.iter().all(|r| !r.contains("STANDING")));
        let s = Status { models: Some(all), ..status() };
        for (width, name) in [(140, 16), (100, 10)] {
            let (rows, colours) = screen(&s, None, width, 20);
            let head = "STANDING           HELD: ERR  N    CHANGED  N  DRIFT FALSE MET OUTSIDE  OAA";
            assert_eq!(rows[8].trim_end(), format!("{:<name$} {head}", "MODELS"));
            let line = "worse-than-taught  0.250    120      -      0    4.2         4       3  too-small";
            assert_eq!(rows[9].trim_end(), format!("{:<name$} {line}", "moses"));
            assert!(rows[10].contains("too-few") && colours[9].contains(&Color::Red) && !colours[10].contains(&Color::Red));
        }
    }

    /// Columns stand under their heads.
    #[test]
    fn heads_and_columns_agree() {
        let (rows, _) = screen(&status(), None, 140, 20);
        let at = |row: &str, what: &str| row.find(what).map(|i| row[..i].chars().count());
        assert_eq!(at(&rows[2], "CORES"), at(&rows[3], "█"));
        assert_eq!(at(&rows[2], "QOS"), at(&rows[3], "met"));
        assert_eq!(at(&rows[2], "P99 (half"), at(&rows[3], "·"));
    }

    /// The target is half the height: up to it four steps, above it four more; unknown is a dot; only the last fit.
    #[test]
    fn the_sparkline_is_drawn_against_the_target() {
        let ms = [None, Some(0.0), Some(2.6), Some(10.0), Some(10.1), Some(20.0), Some(900.0)];
        assert_eq!(sparkline(&ms, 10.0, 99), "·▁▂▄▅██");
        assert_eq!(sparkline(&ms, 10.0, 2), "██");
        assert_eq!(sparkline(&[], 10.0, 5), "");
    }

    /// A silent daemon is said on the screen, above its last answer; a small screen cuts off and does not fail.
    #[test]
    fn trouble_and_small_screens() {
        let (rows, _) = screen(&status(), Some("no daemon answers"), 140, 20);
        assert!(rows[1].starts_with("no daemon answers") && rows[3].starts_with("moses"));
        for (width, height) in [(1, 1), (20, 4), (80, 5)] {
            assert_eq!(screen(&status(), None, width, height).0.len(), usize::from(height));
        }
    }

    /// Only this machine is asked, and what is wrong with an address is said.
    #[test]
    fn addresses() {
        assert_eq!(parse_url("http://127.0.0.1:9000/metrics").unwrap().to_string(), "127.0.0.1:9000");
        assert_eq!(parse_url("http://localhost:1").unwrap().port(), 1);
        for (url, why) in
            [("127.0.0.1:9", "http://"), ("http://127.0.0.1", "port"), ("http://example.org:80", "ssh -L"), ("http://localhost:0", "1 to")]
        {
            let e = parse_url(url).unwrap_err();
            assert!(e.exit_code() == 2 && e.to_string().contains(why), "{e}");
        }
    }
}
