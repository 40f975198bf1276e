//! Link the library that CMake built in $ORTOLAN_BUILD, with what its ortolan.pc names.
use std::{env, fs};

fn main() {
    let build = env::var("ORTOLAN_BUILD").expect("set ORTOLAN_BUILD to CMake's build folder");
    let package = fs::read_to_string(format!("{build}/ortolan.pc")).expect("build the library first");
    println!("cargo:rerun-if-env-changed=ORTOLAN_BUILD");
    let libraries = package.lines().find_map(|line| line.strip_prefix("Libs: "));
    for word in libraries.expect("ortolan.pc has no Libs").split_whitespace() {
        println!("cargo:rustc-link-arg={word}");
    }
}
