//! Dense networks on plain slices: forward and backward.
//!
//! Hidden layers are ReLU, the output is linear or softmax. All weights of a network are one flat vector, so an
//! optimiser step, a soft update and a snapshot are each one loop. A layer's weights lie as [input][output]: the inner loop
//! of the forward pass then runs over neighbouring outputs, which the compiler turns into vector instructions.

use crate::gemm::{pack, pack_transposed, product, product_transposed, row_product};
use crate::rng::Rng;
use crate::wide::wide;

/// Below so many rows packing the weights costs more than it saves.
const FEW: usize = 4;

/// A probability below this is 0. What is smaller soon leads to numbers with which processors calculate a hundred times more
/// slowly (denormals), in every step of learning once a softmax is sure of itself.
const NEVER: f32 = 1e-12;

/// What happens after the last layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Linear,
    Softmax,
}

/// A dense network. `sizes` = inputs, hidden..., outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    sizes: Vec<usize>,
    output: Output,
    params: Vec<f32>,
}

/// Activations of one forward pass over a batch, kept for the backward pass; the caller owns and reuses it.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    /// acts[l]: (batch, sizes[l + 1]), after the activation function.
    acts: Vec<Vec<f32>>,
    /// Gradients while going back, two buffers of the widest layer.
    grad: [Vec<f32>; 2],
    /// The right-hand side of the product at hand, in strips.
    packed: Vec<f32>,
    batch: usize,
}

impl Tape {
    /// Output of the last forward pass, (batch, outputs).
    pub fn output(&self) -> &[f32] {
        self.acts.last().map_or(&[], |a| a.as_slice())
    }

    fn fit(&mut self, net: &Mlp, batch: usize) {
        let widest = net.sizes.iter().copied().max().unwrap_or(0);
        self.batch = batch;
        self.acts.resize(net.sizes.len() - 1, Vec::new());
        for (a, &n) in self.acts.iter_mut().zip(&net.sizes[1..]) {
            a.resize(batch * n, 0.0);
        }
        for g in &mut self.grad {
            g.resize(batch * widest, 0.0);
        }
    }
}

/// A weight, or 0 where it moves no output of a network by a bit. Weight decay leaves those of neurons that are off for good as denormals,
/// a half of a critic, and some processors need twenty times as long for a network with them.
pub(crate) fn audible(weight: f32) -> f32 {
    // Three of them in a row are no denormal yet.
    crate::optim::from(1e-12, weight)
}

impl Mlp {
    /// All weights zero. `sizes` needs at least an input and an output, each not 0.
    ///
    /// # Panics
    /// On fewer than two sizes or a size of 0; [`Mlp::from_layers`] is the door for data from outside.
    pub fn zeros(sizes: &[usize], output: Output) -> Self {
        assert!(sizes.len() >= 2 && sizes.iter().all(|&n| n > 0), "network sizes {sizes:?}");
        let n = sizes.windows(2).map(|w| (w[0] + 1) * w[1]).sum();
        Mlp { sizes: sizes.to_vec(), output, params: vec![0.0; n] }
    }

    /// Uniform in +-1/sqrt(inputs of the layer); the last layer in +-`last` (small: first actions are near uniform).
    pub fn random(sizes: &[usize], output: Output, last: f32, rng: &mut Rng) -> Self {
        let mut net = Self::zeros(sizes, output);
        let layers = net.layers();
        for (l, &inputs) in sizes.iter().enumerate().take(layers) {
            let bound = if l + 1 == layers { last } else { 1.0 / (inputs as f32).sqrt() };
            let (from, to) = net.span(l);
            for p in &mut net.params[from..to] {
                *p = (2.0 * rng.uniform() as f32 - 1.0) * bound;
            }
        }
        net
    }

    /// From layers as PyTorch keeps them: weight (outputs, inputs) row by row, bias (outputs).
    ///
    /// Returns None where the lengths do not fit `sizes`.
    pub fn from_layers(sizes: &[usize], output: Output, layers: &[(&[f32], &[f32])]) -> Option<Self> {
        if sizes.len() < 2 || sizes.contains(&0) || layers.len() + 1 != sizes.len() {
            return None;
        }
        let mut net = Self::zeros(sizes, output);
        for (l, (weight, bias)) in layers.iter().enumerate() {
            let (inputs, outputs) = (sizes[l], sizes[l + 1]);
            if weight.len() != inputs * outputs || bias.len() != outputs {
                return None;
            }
            let (from, to) = net.span(l);
            let (w, b) = net.params[from..to].split_at_mut(inputs * outputs);
            for o in 0..outputs {
                for i in 0..inputs {
                    w[i * outputs + o] = audible(weight[o * inputs + i]);
                }
            }
            b.copy_from_slice(bias);
        }
        Some(net)
    }

    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    pub fn inputs(&self) -> usize {
        self.sizes[0]
    }

    pub fn outputs(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    pub fn layers(&self) -> usize {
        self.sizes.len() - 1
    }

    /// Flat weights: per layer [input][output], then its bias.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    pub fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    /// Every weight is a finite number.
    pub fn is_finite(&self) -> bool {
        // Without stopping early: a loop without branches is a loop of vectors.
        !self.params.iter().fold(false, |bad, p| bad | !p.is_finite())
    }

    /// Where layer `l`'s weights and bias lie in [`Mlp::params`].
    pub fn span(&self, l: usize) -> (usize, usize) {
        let size = |w: &[usize]| (w[0] + 1) * w[1];
        let from = self.sizes.windows(2).take(l).map(size).sum::<usize>();
        (from, from + size(&self.sizes[l..l + 2]))
    }

    /// Forward pass of `batch` rows; `x` is (batch, inputs), the result (batch, outputs). Allocates only while `tape` grows.
    pub fn forward<'t>(&self, x: &[f32], batch: usize, tape: &'t mut Tape) -> &'t [f32] {
        assert_eq!(x.len(), batch * self.inputs(), "forward: rows x inputs");
        tape.fit(self, batch);
        forward(self, x, tape);
        tape.output()
    }

    /// Backward pass after [`Mlp::forward`] on the same `x`.
    ///
    /// `d_out` (batch, outputs) is the loss's gradient by the output (after softmax). `grads` is laid out as
    /// [`Mlp::params`] and overwritten; `d_x`, if asked for, likewise: (batch, k), the gradient by the last k inputs, all or fewer. Without `grads`
    /// only `d_x` is found.
    pub fn backward(&self, x: &[f32], d_out: &[f32], tape: &mut Tape, grads: Option<&mut [f32]>, d_x: Option<&mut [f32]>) {
        assert_eq!(d_out.len(), tape.batch * self.outputs(), "backward: rows x outputs");
        if let Some(g) = &grads {
            assert_eq!(g.len(), self.params.len(), "backward: one gradient a weight");
        }
        if let Some(d) = &d_x {
            assert!(d.len() % tape.batch == 0 && d.len() <= tape.batch * self.inputs(), "backward: rows x inputs");
        }
        backward(self, x, d_out, tape, grads, d_x);
    }
}

wide! {
    fn forward / forward_plain(net: &Mlp, x: &[f32], tape: &mut Tape) {
        let mut from = 0;
        for l in 0..net.layers() {
            let (inputs, outputs) = (net.sizes[l], net.sizes[l + 1]);
            let to = from + (inputs + 1) * outputs;
            let (w, b) = net.params[from..to].split_at(inputs * outputs);
            from = to;
            let (before, rest) = tape.acts.split_at_mut(l);
            let x = before.last().map_or(x, |a| a.as_slice());
            let y = &mut rest[0];
            let hidden = l + 1 < net.layers();
            if tape.batch < FEW {
                // No closure: it would be compiled apart, for the smaller processor.
                for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(outputs)) {
                    row_product(x, w, b, hidden, y);
                }
            } else {
                pack(w, outputs, &mut tape.packed);
                product(x, inputs, &tape.packed, outputs, Some(b), hidden, y);
            }
            if !hidden && net.output == Output::Softmax {
                y.chunks_exact_mut(outputs).for_each(softmax);
            }
        }
    }
}

wide! {
    fn backward / backward_plain(
        net: &Mlp,
        x: &[f32],
        d_out: &[f32],
        tape: &mut Tape,
        grads: Option<&mut [f32]>,
        d_x: Option<&mut [f32]>,
    ) {
        let (mut grads, mut d_x, batch) = (grads, d_x, tape.batch);
        let Tape { acts, grad: [dy_buf, dx_buf], packed, .. } = tape;
        dy_buf[..d_out.len()].copy_from_slice(d_out);
        if net.output == Output::Softmax {
            let n = net.outputs();
            for (d, s) in dy_buf.chunks_exact_mut(n).zip(acts[net.layers() - 1].chunks_exact(n)) {
                let inner: f32 = d.iter().zip(s).map(|(d, s)| d * s).sum();
                d.iter_mut().zip(s).for_each(|(d, s)| *d = s * (*d - inner));
            }
        }
        for l in (0..net.layers()).rev() {
            let (inputs, outputs) = (net.sizes[l], net.sizes[l + 1]);
            let (from, to) = net.span(l);
            let w = &net.params[from..to - outputs];
            let below = if l == 0 { x } else { acts[l - 1].as_slice() };
            let dy = &dy_buf[..batch * outputs];
            if let Some(g) = grads.as_deref_mut() {
                let (gw, gb) = g[from..to].split_at_mut(inputs * outputs);
                pack(dy, outputs, packed);
                product_transposed(below, inputs, packed, outputs, gw);
                gb.fill(0.0);
                for dy in dy.chunks_exact(outputs) {
                    gb.iter_mut().zip(dy).for_each(|(g, d)| *g += d);
                }
            }
            if l == 0 && d_x.is_none() {
                break;
            }
            let dx = match d_x.as_deref_mut() {
                Some(d) if l == 0 => d,
                _ => &mut dx_buf[..batch * inputs],
            };
            let wanted = dx.len() / batch;
            pack_transposed(&w[(inputs - wanted) * outputs..], outputs, packed);
            // Not a constant here: the compiler spoils the loop for it.
            product(dy, outputs, packed, wanted, None, std::hint::black_box(false), dx);
            if l > 0 {
                // ReLU passes nothing where it was off; the input layer has no ReLU.
                dx.iter_mut().zip(below).for_each(|(d, x)| *d = if *x > 0.0 { *d } else { 0.0 });
            }
            std::mem::swap(dy_buf, dx_buf);
        }
    }
}

#[inline(always)]
fn softmax(y: &mut [f32]) {
    let top = y.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    y.iter_mut().for_each(|v| *v = (*v - top).exp());
    let sum: f32 = y.iter().sum();
    for v in y {
        *v = if *v < NEVER * sum { 0.0 } else { *v / sum };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loss = sum over rows and outputs of c * y, with fixed coefficients c: its gradient by y is c.
    fn loss(net: &Mlp, x: &[f32], batch: usize, c: &[f32]) -> f64 {
        let mut tape = Tape::default();
        net.forward(x, batch, &mut tape).iter().zip(c).map(|(y, c)| f64::from(y * c)).sum()
    }

    /// What is loaded has no weights that only cost time; whatever moves an output by a bit is as it was.
    #[test]
    fn inaudible_weights_are_loaded_as_zero() {
        let weight = [1e-40, -1e-13, 1e-11, -0.5];
        let net = Mlp::from_layers(&[2, 2], Output::Linear, &[(&weight, &[0.25, 0.0])]).unwrap();
        assert_eq!(net.params(), [0.0, 1e-11, 0.0, -0.5, 0.25, 0.0]);
    }

    fn draws(n: usize, rng: &mut Rng) -> Vec<f32> {
        (0..n).map(|_| rng.normal() as f32).collect()
    }

    /// Every weight's and input's gradient equals the central difference of the loss. f32 leaves about 1e-7 / step of
    /// noise, so single weights may be off by 1e-2; a step across a ReLU's corner is told by its one-sided differences.
    fn check_gradients(output: Output, seed: u64) {
        let mut rng = Rng::new(seed);
        let (sizes, batch) = ([5, 19, 33, 8, 3], 4);
        let mut net = Mlp::random(&sizes, output, 0.5, &mut rng);
        let (x, c) = (draws(batch * 5, &mut rng), draws(batch * 3, &mut rng));
        let mut tape = Tape::default();
        net.forward(&x, batch, &mut tape);
        let (mut grads, mut d_x) = (vec![9.0; net.params().len()], vec![9.0; x.len()]);
        net.backward(&x, &c, &mut tape, Some(&mut grads), Some(&mut d_x));
        let h = 2e-3f32;
        let mut corners = 0;
        let mut compare = |what: &str, got: f32, minus: f64, here: f64, plus: f64| {
            let h = f64::from(h);
            let (left, right) = ((here - minus) / h, (plus - here) / h);
            if (left - right).abs() > 2e-2 {
                corners += 1;
                return;
            }
            let want = 0.5 * (left + right);
            assert!((f64::from(got) - want).abs() < 5e-3 + 1e-2 * want.abs(), "{what}: {got} instead of {want}");
        };
        let here = loss(&net, &x, batch, &c);
        for (i, &g) in grads.iter().enumerate() {
            let p = net.params()[i];
            net.params_mut()[i] = p - h;
            let minus = loss(&net, &x, batch, &c);
            net.params_mut()[i] = p + h;
            let plus = loss(&net, &x, batch, &c);
            net.params_mut()[i] = p;
            compare("weight", g, minus, here, plus);
        }
        for i in 0..x.len() {
            let (mut m, mut p) = (x.clone(), x.clone());
            m[i] -= h;
            p[i] += h;
            compare("input", d_x[i], loss(&net, &m, batch, &c), here, loss(&net, &p, batch, &c));
        }
        assert!(corners * 20 < grads.len(), "{corners} of {} skipped", grads.len());
        assert!(grads.iter().filter(|g| g.abs() > 1e-3).count() * 4 > grads.len(), "a test of zeros proves nothing");

        // Only the inputs' gradient, without the weights': the same numbers.
        let mut alone = vec![7.0; x.len()];
        net.forward(&x, batch, &mut tape);
        net.backward(&x, &c, &mut tape, None, Some(&mut alone));
        assert_eq!(alone, d_x);
        // Of the last inputs alone.
        for last in [1, 2] {
            let mut some = vec![9.0; batch * last];
            net.backward(&x, &c, &mut tape, None, Some(&mut some));
            let of_all: Vec<f32> = d_x.chunks_exact(net.inputs()).flat_map(|row| &row[net.inputs() - last..]).copied().collect();
            assert_eq!(some, of_all);
        }
    }

    /// Backpropagation through a linear output equals finite differences.
    #[test]
    fn gradients_equal_finite_differences_linear() {
        check_gradients(Output::Linear, 11);
    }

    /// Backpropagation through softmax equals finite differences.
    #[test]
    fn gradients_equal_finite_differences_softmax() {
        check_gradients(Output::Softmax, 12);
    }

    /// A 2-2-1 network by hand: hidden = relu([1*1 + 2*3 + 0.5, 1*2 - 2*4 + 0.5]) = [7.5, 0], y = 2 * 7.5 + 9 * 0 - 1.
    #[test]
    fn known_answer_with_pytorch_layout() {
        let layers: [(&[f32], &[f32]); 2] = [(&[1.0, 3.0, 2.0, -4.0], &[0.5, 0.5]), (&[2.0, 9.0], &[-1.0])];
        let net = Mlp::from_layers(&[2, 2, 1], Output::Linear, &layers).unwrap();
        assert_eq!(net.forward(&[1.0, 2.0], 1, &mut Tape::default()), [14.0]);
        assert!(Mlp::from_layers(&[2, 3, 1], Output::Linear, &layers).is_none());
        assert!(Mlp::from_layers(&[2, 1], Output::Linear, &layers).is_none());
    }

    /// A batch gives what its rows give one by one, bit for bit.
    #[test]
    fn a_batch_is_its_rows() {
        let mut rng = Rng::new(3);
        let net = Mlp::random(&[9, 32, 64, 32, 7], Output::Softmax, 0.3, &mut rng);
        let x = draws(6 * 9, &mut rng);
        let mut tape = Tape::default();
        let all = net.forward(&x, 6, &mut tape).to_vec();
        for (x, y) in x.chunks(9).zip(all.chunks(7)) {
            assert_eq!(net.forward(x, 1, &mut tape), y);
            assert!((y.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
    }

    /// Wider vectors change no bit: the plain code and the one chosen for this processor agree, forward and backward.
    #[test]
    fn vector_width_changes_no_bit() {
        let mut rng = Rng::new(8);
        let net = Mlp::random(&[15, 32, 64, 32, 7], Output::Softmax, 0.3, &mut rng);
        let (x, d) = (draws(33 * 15, &mut rng), draws(33 * 7, &mut rng));
        let (mut chosen, mut plain) = (Tape::default(), Tape::default());
        let (mut g1, mut g2) = (vec![0.0; net.params().len()], vec![0.0; net.params().len()]);
        let (mut x1, mut x2) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        net.forward(&x, 33, &mut chosen);
        net.backward(&x, &d, &mut chosen, Some(&mut g1), Some(&mut x1));
        plain.fit(&net, 33);
        forward_plain(&net, &x, &mut plain);
        backward_plain(&net, &x, &d, &mut plain, Some(&mut g2), Some(&mut x2));
        assert_eq!(chosen.output(), plain.output());
        assert_eq!((g1, x1), (g2, x2));
    }

    /// Softmax of large numbers neither overflows nor loses its sum.
    #[test]
    fn softmax_does_not_overflow() {
        let mut y = [1000.0, 999.0, -1000.0];
        softmax(&mut y);
        // 1 / (1 + e^-1) = 0.7310586
        assert!((y[0] - 0.731_058_6).abs() < 1e-6 && y[2] == 0.0, "{y:?}");
        // e^-30 = 9.4e-14 is never, e^-27 = 1.9e-12 is not.
        let mut y = [0.0, -30.0, -27.0];
        softmax(&mut y);
        assert!(y[1] == 0.0 && y[2] > 1.8e-12, "{y:?}");
    }
}
