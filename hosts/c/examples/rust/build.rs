//! Link the library that CMake built in $ORTOLAN_BUILD.
use std::env;

fn main() {
    let build = env::var("ORTOLAN_BUILD").expect("set ORTOLAN_BUILD to CMake's build folder");
    let onnxruntime = format!("{build}/onnxruntime");
    println!("cargo:rerun-if-env-changed=ORTOLAN_BUILD");
    println!("cargo:rustc-link-search=native={build}");
    println!("cargo:rustc-link-lib=static=ortolan");
    println!("cargo:rustc-link-arg={onnxruntime}/libonnxruntime.so.1");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{onnxruntime}");
    println!("cargo:rustc-link-lib=m");
}
