//! Memory among several LC services, and among jobs: closed forms.
//!
//! Pages come back in proportion to -ln(r / w), where r of w bytes are resident: accesses to pages by popularity follow a power law with a small
//! exponent in the COSMOS paper's services. Fewest of all services come back where r is in proportion to K gamma / (gamma - 1), K the pages that came back
//! over -ln(r / w). The last factor is what a resident byte costs of M: under Eq. 2 M = ((gamma - 1) r + w) / gamma.

use surefoot_server::MemoryView;

/// Weight of the latest reading of pages that come back.
const WEIGHT: f64 = 0.3;

/// Pages that come back from wherever, 1/s; None: not known.
fn swap_ins_per_s(m: &MemoryView) -> Option<f64> {
    m.pool_swap_ins_per_s.map(|pool| pool + m.disk_swap_ins_per_s.unwrap_or(0.0)).or(m.refaults_per_s)
}

/// Pages that come back over -ln of the resident share, 1/s, with one more reading; a share above `most` says nothing.
pub(crate) fn read_k(was: Option<f64>, m: &MemoryView, w: Option<f64>, most: f64) -> Option<f64> {
    let resident = m.in_use_bytes.map(|b| b as f64 - m.pool_bytes.unwrap_or(0) as f64);
    let x = resident.zip(w).map(|(r, w)| r / w).filter(|x| *x > 0.0 && *x < most);
    let Some(k) = x.zip(swap_ins_per_s(m)).map(|(x, ins)| ins / -x.ln()) else { return was };
    Some(was.map_or(k, |was| was + WEIGHT * (k - was)))
}

/// What is known of one LC service, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Needs {
    pub w: f64,
    pub gamma: f64,
    /// Its limit is not below this: what all of it compresses to, and a margin.
    pub least: f64,
    /// Pages that come back over -ln of the resident share, 1/s; None: not known.
    pub k: Option<f64>,
}

impl Needs {
    /// M with which `r` bytes are resident, within what the service may have.
    fn memory(&self, r: f64) -> f64 {
        (((self.gamma - 1.0) * r + self.w) / self.gamma).clamp(self.least.min(self.w), self.w)
    }

    /// Resident bytes under a limit (Eq. 2).
    fn resident(&self, m: f64) -> f64 {
        ((self.gamma * m - self.w) / (self.gamma - 1.0)).clamp(0.001 * self.w, self.w)
    }

    /// Pages that come back under a limit, 1/s; None: not known.
    pub fn comes_back(&self, m: f64) -> Option<f64> {
        Some(-self.k? * (self.resident(m) / self.w).ln())
    }
}

/// Pages that come back of all services under limits, 1/s; None while one is not known.
pub(crate) fn all_come_back(needs: &[Needs], limits: &[f64]) -> Option<f64> {
    needs.iter().zip(limits).map(|(n, m)| n.comes_back(*m)).sum()
}

/// So many bytes among services: fewest pages come back, or by footprint while that is not known of all. What no service can use is
/// split by footprint.
pub(crate) fn divide(needs: &[Needs], total: f64) -> Vec<f64> {
    let known = needs.iter().all(|n| n.k.is_some());
    let weight = |n: &Needs| if known { n.k.unwrap_or(0.0).max(1e-9) * n.gamma / (n.gamma - 1.0) } else { n.w };
    let at = |scale: f64| needs.iter().map(|n| n.memory(scale * weight(n))).collect::<Vec<f64>>();
    let sum = |of: &[f64]| of.iter().sum::<f64>();
    let w: f64 = needs.iter().map(|n| n.w).sum();
    // The sum grows with the scale, from all that must be to all that can be.
    let (mut low, mut high) = (-60.0f64, 120.0f64);
    for _ in 0..80 {
        let mid = 0.5 * (low + high);
        if sum(&at(mid.exp())) > total {
            high = mid;
        } else {
            low = mid;
        }
    }
    let mut all = at(low.exp());
    let over = total - sum(&all);
    let of = |n: &Needs| over * n.w / w.max(1.0);
    if over > 0.0 {
        all.iter_mut().zip(needs).for_each(|(m, n)| *m += of(n));
    } else {
        // Less than must be: as far as it goes.
        let scale = total / sum(&all).max(1.0);
        all.iter_mut().for_each(|m| *m *= scale);
    }
    all
}

/// So many bytes among jobs of these footprints: in proportion where all fit, else as many jobs as can be held whole, the smallest first. A
/// job without a part of its pages waits for the device all the time. Each keeps `least` of its footprint.
pub(crate) fn among_jobs(footprints: &[f64], total: f64, least: f64) -> Vec<f64> {
    let sum: f64 = footprints.iter().sum();
    if sum <= total || footprints.len() < 2 {
        let n = footprints.len() as f64;
        return footprints.iter().map(|w| if sum > 0.0 { total * w / sum } else { total / n }).collect();
    }
    let mut all: Vec<f64> = footprints.iter().map(|w| (least * w).min(total * w / sum)).collect();
    let mut left = total - all.iter().sum::<f64>();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|a, b| footprints[*a].total_cmp(&footprints[*b]));
    for i in order {
        let more = (footprints[i] - all[i]).min(left).max(0.0);
        all[i] += more;
        left -= more;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(w: f64, k: Option<f64>) -> Needs {
        Needs { w, gamma: 2.0, least: w / 2.0 * 1.05, k }
    }

    /// Without readings memory follows footprints. With them, a service whose pages come back nine times as often has nine times as much resident: of 30 GB
    /// for two of 20, r1 + r2 = 20 and M = (r + 20) / 2 = 19 and 11. All is given, and none has less than its pages compress to.
    #[test]
    fn memory_goes_where_pages_come_back() {
        let near = |a: &[f64], b: &[f64]| assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?}, not {b:?}");
        near(&divide(&[needs(20.0, None), needs(10.0, Some(5.0))], 24.0), &[16.0, 8.0]);
        near(&divide(&[needs(20.0, Some(9.0)), needs(20.0, Some(1.0))], 30.0), &[19.0, 11.0]);
        near(&divide(&[needs(20.0, Some(1e6)), needs(20.0, Some(1.0))], 30.0), &[19.5, 10.5]);
        // 60 for 40: the rest by footprint.
        near(&divide(&[needs(20.0, Some(1.0)), needs(20.0, Some(1.0))], 60.0), &[30.0, 30.0]);
        // 15 where 21 must be.
        near(&divide(&[needs(20.0, Some(1.0)), needs(20.0, Some(1.0))], 15.0), &[7.5, 7.5]);
        let (all, k) = ([needs(20.0, Some(9.0)), needs(20.0, Some(1.0))], |m: [f64; 2], n: &[Needs]| all_come_back(n, &m).unwrap());
        let best = k([19.0, 11.0], &all);
        assert!(best < k([19.3, 10.7], &all) && best < k([18.5, 11.5], &all) && best < k([15.0, 15.0], &all));
    }

    /// Two jobs that fit share what there is; of two that do not the smaller one is held whole.
    #[test]
    fn one_job_whole_is_more_than_two_in_part() {
        assert_eq!(among_jobs(&[10.0, 20.0], 33.0, 0.1), [11.0, 22.0]);
        assert_eq!(among_jobs(&[20.0, 10.0], 24.0, 0.1), [14.0, 10.0]);
        assert_eq!(among_jobs(&[20.0, 10.0], 8.0, 0.1), [2.0, 6.0]);
        assert_eq!(among_jobs(&[20.0], 8.0, 0.1), [8.0]);
    }
}
