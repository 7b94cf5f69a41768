//! Compiles the variadic entry points, which Rust cannot define.
fn main() {
    println!("cargo:rerun-if-changed=src/variadic.c");
    cc::Build::new()
        .file("src/variadic.c")
        .warnings(true)
        .compile("pagetide_variadic");
}
