//! A load generator on another host: the windows that it writes to its standard output (`--feed -`) come to a feed's socket here.
//!
//! The command is usually `ssh HOST surefoot-loadgen ... --feed -`. A window counts from when it arrives, so the two hosts' clocks need
//! not agree, and each window is late by the way between them. The generator there ends when nobody reads it any more.

use crate::error::{bad, failed, LoadgenError};
use crate::feed::{FeedDatagram, FeedSender};
use std::io::BufReader;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use surefoot_io::input::{next_line, Found, LINE_BYTES};

/// Pass on what comes until it ends. Returns how many windows came.
fn pass_on(from: ChildStdout, feed: &mut FeedSender) -> Result<u64, LoadgenError> {
    let (mut from, mut line, mut windows) = (BufReader::new(from), Vec::new(), 0);
    loop {
        match next_line(&mut from, &mut line, LINE_BYTES).map_err(|e| failed(format!("relay: the command's output: {e}")))? {
            Found::End => return Ok(windows),
            Found::Line(_) => {
                let window: Option<FeedDatagram> = serde_json::from_slice(&line).ok();
                let Some(window) = window else {
                    let said: String = String::from_utf8_lossy(&line).chars().take(80).collect();
                    return Err(failed(format!("relay: {:?} is no window. Give its surefoot-loadgen --feed -", said.trim_end())));
                };
                feed.send(&window);
                windows += 1;
            }
            Found::TooLong(_) => return Err(failed("relay: a line is far longer than a window. Give its surefoot-loadgen --feed -")),
        }
    }
}

/// Run `command` until it ends, or until `stop`, and pass its windows on to `feed`.
///
/// # Errors
/// `BadInput` without a command, `Failed` if it cannot be started, fails, or writes what is no window.
pub fn relay(feed: &Path, command: &[String], stop: &AtomicBool) -> Result<(), LoadgenError> {
    let Some((program, args)) = command.split_first() else {
        return Err(bad("relay: no command. Give it after --, e.g. -- ssh HOST surefoot-loadgen ... --feed -"));
    };
    let mut feed = FeedSender::new(feed).map_err(|e| failed(format!("feed: {e}")))?;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(format!("relay: {program}: {e}; is it installed?")))?;
    let from = child.stdout.take();
    // Not waited for at the end: a process that the command left behind may hold its output open.
    let reader = std::thread::spawn(move || from.map_or(Ok(0), |from| pass_on(from, &mut feed)));
    while !reader.is_finished() && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
    }
    if stop.load(Ordering::Relaxed) {
        let _ = child.kill();
        let _ = child.wait();
        return Ok(());
    }
    let passed = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if passed.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|e| failed(format!("relay: {program}: {e}")))?;
    match passed? {
        _ if !status.success() => Err(failed(format!("relay: {program} ended with {status}; its own words are above"))),
        0 => Err(failed(format!("relay: {program} wrote no window. Give its surefoot-loadgen --feed -"))),
        _ => Ok(()),
    }
}
