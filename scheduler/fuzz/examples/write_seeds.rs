//! Writes the seeds that follow a format of our own: run it after a change of the bundle's manifest.

fn main() -> std::io::Result<()> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/bundle");
    for (name, seed) in surefoot_fuzz::bundle::seeds() {
        std::fs::write(dir.join(name), seed)?;
    }
    Ok(())
}
