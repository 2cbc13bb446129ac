//! Compiles each `bpf/*.bpf.c` into an object that the crate carries: a node needs no compiler, and one object serves every kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let clang = Some(variable("CLANG")).filter(|c| !c.is_empty()).unwrap_or("clang".into());
    let out = PathBuf::from(variable("OUT_DIR"));
    // Headers of the libbpf that is linked.
    let include = variable("DEP_BPF_INCLUDE");
    let little = variable("CARGO_CFG_TARGET_ENDIAN") == "little";
    let mut sources: Vec<PathBuf> = std::fs::read_dir("bpf").into_iter().flatten().flatten().map(|e| e.path()).collect();
    sources.retain(|path| path.to_string_lossy().ends_with(".bpf.c"));
    for source in sources {
        let object = out.join(source.with_extension("o").file_name().unwrap_or_default());
        compile(&clang, &source, &object, &include, if little { "bpfel" } else { "bpfeb" });
    }
}

fn compile(clang: &str, source: &Path, object: &Path, include: &str, target: &str) {
    let mut command = Command::new(clang);
    // Version 3 of the instructions has atomic exchanges; kernels have it from 5.12.
    command.args(["-target", target, "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-nostdinc", "-fno-stack-protector", "-I", include]);
    // No path of the machine that builds: the same commit gives the same bytes.
    command.arg(format!("-ffile-prefix-map={include}=include"));
    command.args(["-fdebug-compilation-dir=.", "-c", "-o"]).arg(object).arg(source);
    match command.output() {
        Err(e) => fail(&format!("{clang} cannot be run: {e}")),
        Ok(done) if !done.status.success() => {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            let old = if said.contains("unable to create target") { " (a clang without the target bpf)" } else { "" };
            fail(&format!("{clang} could not compile {}{old}:\n{said}", source.display()))
        }
        Ok(_) => {}
    }
}

#[allow(clippy::print_stderr, reason = "cargo shows what a build script says there")]
fn fail(why: &str) -> ! {
    eprintln!("surefoot: {why}");
    eprintln!(
        "surefoot: programs for the kernel are compiled with clang 12 or newer. Run scripts/deps.sh as root, or install clang yourself,"
    );
    eprintln!("surefoot: or name another one in CLANG. To build without them: cargo build --no-default-features");
    std::process::exit(1)
}
