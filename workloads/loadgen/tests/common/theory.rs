//! Response times of queues, in closed form.

/// M/M/k: P(T > t) = e^-t (1 + C (1 - e^-(k-1-a)t) / (k-1-a)), times in mean works, a = k load, C = Erlang's C. (For k = 1 and
/// C = load this is e^-(1-load)t.)
pub fn mmk_cdf(k: usize, load: f64, t: f64) -> f64 {
    let a = k as f64 * load;
    let mut term = 1.0;
    let mut sum = 1.0;
    for i in 1..k {
        term *= a / i as f64;
        sum += term;
    }
    let last = term * a / k as f64 / (1.0 - load);
    let c = last / (sum + last);
    let d = k as f64 - 1.0 - a;
    1.0 - (-t).exp() * (1.0 + c * (1.0 - (-d * t).exp()) / d)
}

/// M/D/1 response times, times in works. Waiting time by the numerically stable form of Crommelin's series (Franx, "A simple
/// solution for the M/D/c waiting time distribution", Operations Research Letters 29, 2001): for (k-1) <= x < k,
/// P(W <= x) = e^-load(k-x) sum_{j<k} Q_{k-1-j} (load (k-x))^j / j!, where Q_i = P(at most i wait). The state probabilities come
/// from Ramaswami's recursion, in which nothing is subtracted.
pub struct Md1 {
    load: f64,
    /// P(at most i requests wait).
    waiting: Vec<f64>,
}

impl Md1 {
    pub fn new(load: f64) -> Self {
        const STATES: usize = 400;
        let mut a = vec![(-load).exp()];
        for l in 1..STATES + 200 {
            a.push(a[l - 1] * load / l as f64);
        }
        let mut tail = vec![0.0; a.len() + 1];
        for l in (0..a.len()).rev() {
            tail[l] = tail[l + 1] + a[l];
        }
        let mut p = vec![1.0 - load];
        for j in 1..STATES {
            let s: f64 = (1..j).map(|i| p[i] * tail[j + 1 - i]).sum();
            p.push((p[0] * tail[j] + s) / (1.0 - tail[1]));
        }
        let mut waiting = vec![p[0] + p[1]];
        for i in 2..STATES {
            waiting.push(waiting[i - 2] + p[i]);
        }
        Md1 { load, waiting }
    }

    pub fn cdf(&self, t: f64) -> f64 {
        if t < 1.0 {
            return 0.0;
        }
        let x = t - 1.0;
        let k = x.floor() as usize + 1;
        let y = self.load * (k as f64 - x);
        let mut term = (-y).exp();
        let mut sum = 0.0;
        for j in 0..k {
            sum += term * self.waiting[k - 1 - j];
            term *= y / (j + 1) as f64;
        }
        sum
    }
}

/// Smallest t with cdf(t) >= q, by bisection.
pub fn invert(cdf: &dyn Fn(f64) -> f64, q: f64) -> f64 {
    let (mut low, mut high) = (0.0, 300.0);
    for _ in 0..100 {
        let mid = 0.5 * (low + high);
        if cdf(mid) >= q {
            high = mid;
        } else {
            low = mid;
        }
    }
    high
}
