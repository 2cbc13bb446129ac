//! Steps a second on one core: `cargo run --release -p surefoot-gym --example speed -- lc5-be-server-2 600`.
fn main() {
    let mut args = std::env::args().skip(1);
    let (name, steps) = (args.next().unwrap(), args.next().unwrap().parse::<usize>().unwrap());
    let count = args.next().map_or(1, |n| n.parse::<usize>().unwrap());
    let scenario = std::sync::Arc::new(surefoot_gym::Scenario::open(&name, None, None).unwrap());
    let settings = surefoot_gym::Settings { rows: 10, step_ms: 100, action: surefoot_gym::Action::Steps, weights: Default::default() };
    let mut envs = surefoot_gym::Envs::new(&scenario, settings, count, 1).unwrap();
    envs.reset(&(0..count as u64).map(Some).collect::<Vec<_>>(), &vec![true; count], None);
    let stay: Vec<f64> = [3.0, 3.0, 1.0].repeat(10 * count);
    let start = std::time::Instant::now();
    for _ in 0..steps {
        envs.step(Some(&stay), surefoot_gym::Autoreset::NextStep);
    }
    eprintln!("{:.0} steps/s", count as f64 * steps as f64 / start.elapsed().as_secs_f64());
}
