//! Experience in a file, so that a restarted daemon goes on learning.
//!
//! One safetensors file of f32 tensors, oldest row first: `pool.` and `held.` `rewards` [n], `states` [n, inputs], `actions`
//! [n, numbers an action], `next_states` [n, inputs]. Its metadata hold one key, `about`, JSON: format, version, kind of
//! network, digest of the bundle, names of the inputs, transitions seen. Weights are not in it: those come from the signed
//! bundle alone.
//!
//! Here are the bytes; whoever keeps them reads and writes the file. Taking them in trusts nothing: what does not fit in every respect is
//! refused whole.

use crate::error::one_line;
use crate::learner::{Learner, Nets};
use crate::replay::Replay;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

const FORMAT: &str = "surefoot-experience";
const VERSION: u32 = 1;
const ABOUT: &str = "about";
/// Largest file that there is; a larger pool is saved without its oldest rows.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// Room for the header.
const HEADER_BYTES: u64 = 64 << 10;

/// Experience was not loaded or not saved: file, problem, remedy. A learner that was to take it is as before, empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}. {remedy}")]
pub struct ExperienceError {
    pub file: String,
    pub problem: String,
    pub remedy: String,
}

impl ExperienceError {
    pub fn new(path: &Path, problem: impl Into<String>, remedy: &str) -> Self {
        ExperienceError { file: path.display().to_string(), problem: one_line(problem), remedy: remedy.into() }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    format: String,
    version: u32,
    /// `ddpg` or `dqn`.
    kind: String,
    /// Bundle whose scaling the states have.
    bundle: String,
    inputs: Vec<String>,
    /// Transitions remembered so far.
    seen: u64,
}

const PARTS: [&str; 4] = ["rewards", "states", "actions", "next_states"];
const ANEW: &str = "Model-C starts with no experience and the file is overwritten by the next save; keep a copy if you need it";
const OTHER: &str = "Model-C starts with no experience; give each bundle a state folder of its own to keep both";

impl<N: Nets> Learner<N> {
    /// What is remembered, the newest [`MAX_FILE_BYTES`] of it, as the content of a file: equal experience gives equal bytes. `bundle` is
    /// [`crate::Bundle::digest`].
    pub fn experience(&self, bundle: &str) -> Vec<u8> {
        let about = About {
            format: FORMAT.into(),
            version: VERSION,
            kind: N::KIND.into(),
            bundle: bundle.into(),
            inputs: self.inputs.iter().map(|i| i.name.clone()).collect(),
            seen: self.seen,
        };
        let about = serde_json::to_string(&about).unwrap_or_default();
        let row_bytes = 4 * (2 * self.inputs.len() + N::ACTION_LEN + 1) as u64;
        let most = ((MAX_FILE_BYTES - HEADER_BYTES) / row_bytes) as usize;
        let most_held = self.held.len().min(most / 2);
        let parts = [part(&self.pool, most - most_held), part(&self.held, most_held)];
        let mut views = Vec::new();
        for (name, (n, data)) in ["pool", "held"].iter().zip(&parts) {
            for (part, (bytes, shape)) in PARTS.iter().zip(data.iter().zip(self.shapes(*n))) {
                // Lengths follow from the shapes: no error is possible here.
                views.extend(TensorView::new(Dtype::F32, shape, bytes).ok().map(|v| (format!("{name}.{part}"), v)));
            }
        }
        safetensors::serialize(views, Some(HashMap::from([(ABOUT.into(), about)]))).unwrap_or_default()
    }

    fn shapes(&self, rows: usize) -> [Vec<usize>; 4] {
        let n = self.inputs.len();
        [vec![rows], vec![rows, n], vec![rows, N::ACTION_LEN], vec![rows, n]]
    }

    /// Go on with the experience of an earlier run, which was read from `path`; returns how many transitions there are now, held back ones included.
    /// What does not fit into the pool any more loses its oldest.
    ///
    /// # Errors
    /// [`ExperienceError`]: damaged, foreign, or of another bundle. Nothing was loaded.
    pub fn take_experience(&mut self, path: &Path, bytes: &[u8], bundle: &str) -> Result<usize, ExperienceError> {
        let (about, pool, held) = self.check(bytes, bundle).map_err(|(problem, remedy)| ExperienceError::new(path, problem, remedy))?;
        (self.pool, self.held, self.seen) = (pool, held, about.seen);
        Ok(self.pool.len() + self.held.len())
    }

    fn check(&self, bytes: &[u8], bundle: &str) -> Result<(About, Replay, Replay), (String, &'static str)> {
        let damaged = |problem: String| (format!("damaged: {problem}"), ANEW);
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| damaged(e.to_string()))?;
        let about = header.metadata().as_ref().and_then(|m| m.get(ABOUT)).ok_or_else(|| (format!("is no {FORMAT} file"), ANEW))?;
        let about: About = serde_json::from_str(about).map_err(|e| damaged(format!("metadata `{ABOUT}`: {e}")))?;
        if about.format != FORMAT || about.version != VERSION {
            let problem = format!("is {} {}, this version reads {FORMAT} {VERSION}", about.format, about.version);
            return Err((problem, ANEW));
        }
        let own: Vec<&str> = self.inputs.iter().map(|i| i.name.as_str()).collect();
        if about.kind != N::KIND {
            return Err((format!("is experience of a {} model, this one is {}", about.kind, N::KIND), OTHER));
        }
        if about.bundle != bundle {
            return Err((format!("is experience with bundle {}, this one is {bundle}", about.bundle), OTHER));
        }
        if about.inputs != own {
            return Err((format!("has inputs {}, this model has {}", about.inputs.join(", "), own.join(", ")), OTHER));
        }
        let file = SafeTensors::deserialize(bytes).map_err(|e| damaged(e.to_string()))?;
        if file.len() != 2 * PARTS.len() {
            return Err(damaged(format!("{} tensors, want {}", file.len(), 2 * PARTS.len())));
        }
        let pool = self.rows(&file, "pool", self.pool.capacity).map_err(damaged)?;
        let held = self.rows(&file, "held", self.held.capacity).map_err(damaged)?;
        Ok((about, pool, held))
    }

    fn rows(&self, file: &SafeTensors, name: &str, capacity: usize) -> Result<Replay, String> {
        let tensor = |part: &str| file.tensor(&format!("{name}.{part}")).map_err(|_| format!("{name}.{part} is missing"));
        let n = tensor(PARTS[0])?.shape().first().copied().unwrap_or(0);
        let mut parts = Vec::new();
        for (part, shape) in PARTS.iter().zip(self.shapes(n)) {
            let t = tensor(part)?;
            if t.dtype() != Dtype::F32 || t.shape() != shape {
                return Err(format!("{name}.{part} is {:?} {:?}, want F32 {shape:?}", t.dtype(), t.shape()));
            }
            parts.push(t.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<f32>>());
        }
        let (s, a) = (self.inputs.len(), N::ACTION_LEN);
        let mut pool = Replay::new(s, a, capacity);
        for i in 0..n {
            let (r, s1) = (parts[0][i], &parts[1][i * s..(i + 1) * s]);
            let (act, s2) = (&parts[2][i * a..(i + 1) * a], &parts[3][i * s..(i + 1) * s]);
            if !self.admits(s1, act, r, s2) {
                return Err(format!("{name}: row {i} holds a value out of range"));
            }
            pool.push(s1, act, r, s2);
        }
        Ok(pool)
    }
}

/// The newest rows of a pool, oldest first, as bytes: [`PARTS`].
fn part(pool: &Replay, most: usize) -> (usize, [Vec<u8>; 4]) {
    let n = pool.len().min(most);
    let mut out: [Vec<u8>; 4] = Default::default();
    let put = |to: &mut Vec<u8>, values: &[f32]| values.iter().for_each(|v| to.extend_from_slice(&v.to_le_bytes()));
    for i in pool.in_order().skip(pool.len() - n) {
        let (s, a, r, s2) = pool.row(i);
        put(&mut out[0], &[r]);
        put(&mut out[1], s);
        put(&mut out[2], a);
        put(&mut out[3], s2);
    }
    (n, out)
}

/// Whether a file that begins so is one of these, of whatever version, whole or not; or holds nothing yet.
pub fn is_experience(head: &[u8]) -> bool {
    // After the length of the header.
    let header = head.get(8..).unwrap_or_default();
    head.is_empty() || header.windows(FORMAT.len()).any(|w| w == FORMAT.as_bytes())
}

#[cfg(test)]
#[path = "experience_tests.rs"]
mod tests;
