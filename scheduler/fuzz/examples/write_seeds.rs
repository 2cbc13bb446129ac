//! Writes the seeds that follow formats of our own: run it after a change of the bundle's manifest or the actuator's protocol.

fn main() -> std::io::Result<()> {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for (target, all) in [("bundle", surefoot_fuzz::bundle::seeds()), ("requests", surefoot_fuzz::requests::seeds())] {
        std::fs::create_dir_all(seeds.join(target))?;
        for (name, seed) in all {
            std::fs::write(seeds.join(target).join(name), seed)?;
        }
    }
    Ok(())
}
