//! Experience pool: transitions (state, action, reward, next state) in flat arrays.

/// A ring of transitions, grown as it fills; the oldest is overwritten.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Replay {
    pub state_len: usize,
    pub action_len: usize,
    pub capacity: usize,
    /// Row of the oldest, which is written next, once the ring is full.
    next: usize,
    pub rewards: Vec<f32>,
    pub states: Vec<f32>,
    pub actions: Vec<f32>,
    pub next_states: Vec<f32>,
}

impl Replay {
    pub fn new(state_len: usize, action_len: usize, capacity: usize) -> Self {
        let (rewards, states, actions, next_states) = Default::default();
        Replay { state_len, action_len, capacity, next: 0, rewards, states, actions, next_states }
    }

    pub fn len(&self) -> usize {
        self.rewards.len()
    }

    pub fn push(&mut self, s: &[f32], a: &[f32], r: f32, s2: &[f32]) {
        let (n, m, i) = (self.state_len, self.action_len, self.next);
        if self.len() < self.capacity {
            self.rewards.push(r);
            self.states.extend_from_slice(s);
            self.actions.extend_from_slice(a);
            self.next_states.extend_from_slice(s2);
        } else if self.capacity > 0 {
            self.rewards[i] = r;
            self.states[i * n..(i + 1) * n].copy_from_slice(s);
            self.actions[i * m..(i + 1) * m].copy_from_slice(a);
            self.next_states[i * n..(i + 1) * n].copy_from_slice(s2);
            self.next = (i + 1) % self.capacity;
        }
    }

    /// State, action, reward, next state of a row.
    pub fn row(&self, i: usize) -> (&[f32], &[f32], f32, &[f32]) {
        let (n, m) = (self.state_len, self.action_len);
        let (s, s2) = (i * n..(i + 1) * n, i * n..(i + 1) * n);
        (&self.states[s], &self.actions[i * m..(i + 1) * m], self.rewards[i], &self.next_states[s2])
    }

    /// Rows from the oldest to the newest.
    pub fn in_order(&self) -> impl Iterator<Item = usize> + '_ {
        let n = self.len();
        (0..n).map(move |i| (self.next + i) % n)
    }

    /// Copy rows side by side.
    pub fn gather(&self, rows: impl Iterator<Item = usize>, out: &mut Batch) {
        out.clear();
        for i in rows {
            let (s, a, r, s2) = self.row(i);
            out.states.extend_from_slice(s);
            out.actions.extend_from_slice(a);
            out.rewards.push(r);
            out.next_states.extend_from_slice(s2);
        }
    }
}

/// Rows of a pool, copied side by side; reused.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) states: Vec<f32>,
    pub(crate) actions: Vec<f32>,
    pub(crate) rewards: Vec<f32>,
    pub(crate) next_states: Vec<f32>,
}

impl Batch {
    fn clear(&mut self) {
        self.states.clear();
        self.actions.clear();
        self.rewards.clear();
        self.next_states.clear();
    }

    /// Rows.
    pub(crate) fn len(&self) -> usize {
        self.rewards.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full ring forgets the oldest, and its order is told; a pool of nothing keeps nothing.
    #[test]
    fn the_pool_is_a_ring() {
        let mut pool = Replay::new(2, 1, 4);
        for i in 0..7 {
            let x = i as f32;
            pool.push(&[x, 0.1], &[0.2], x, &[0.3, x]);
        }
        assert_eq!((pool.len(), pool.states.len(), pool.actions.len(), pool.next_states.len()), (4, 8, 4, 8));
        let order: Vec<f32> = pool.in_order().map(|i| pool.row(i).2).collect();
        assert_eq!(order, [3.0, 4.0, 5.0, 6.0]);
        let mut batch = Batch::default();
        pool.gather(pool.in_order().skip(2), &mut batch);
        assert_eq!((batch.len(), &batch.states[..], &batch.next_states[..]), (2, &[5.0, 0.1, 6.0, 0.1][..], &[0.3, 5.0, 0.3, 6.0][..]));
        let mut none = Replay::new(2, 1, 0);
        none.push(&[0.0; 2], &[0.0], 0.0, &[0.0; 2]);
        assert_eq!(none.in_order().count(), 0);
    }
}
