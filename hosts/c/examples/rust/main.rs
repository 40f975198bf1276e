//! Continue token ids: generate BUNDLE NEW_TOKENS ID...
use std::env;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::process::ExitCode;
use std::ptr::{null, null_mut};

/// `ortolan_error`
#[repr(C)]
struct Error {
    code: c_int,
    message: [c_char; 512],
}

/// `ortolan_model`
#[repr(C)]
struct Model {
    _private: [u8; 0],
}

extern "C" {
    fn ortolan_open(folder: *const c_char, options: *const c_void, error: *mut Error) -> *mut Model;
    fn ortolan_close(model: *mut Model);
    #[rustfmt::skip]
    fn ortolan_generate(
        model: *mut Model, prompt: *const i32, prompt_count: usize, options: *const c_void,
        tokens: *mut i32, capacity: usize, count: *mut usize, finish: *mut c_int,
        error: *mut Error,
    ) -> bool;
}

/// Continue a prompt by greedy decoding.
fn generate(bundle: &str, prompt: &[i32], new: usize) -> Result<Vec<i32>, String> {
    let folder = CString::new(bundle).map_err(|error| error.to_string())?;
    let mut error = Error { code: 0, message: [0; 512] };
    let (mut tokens, mut count) = (vec![0; new], 0);
    // SAFETY: the arrays have the lengths that are passed, and the model is closed once.
    let done = unsafe {
        let model = ortolan_open(folder.as_ptr(), null(), &mut error);
        let (from, to) = (prompt.as_ptr(), tokens.as_mut_ptr());
        let done = !model.is_null()
            && ortolan_generate(
                model, from, prompt.len(), null(), to, new, &mut count, null_mut(), &mut error,
            );
        ortolan_close(model);
        done
    };
    if !done {
        // SAFETY: the message ends with NUL.
        let message = unsafe { CStr::from_ptr(error.message.as_ptr()) };
        return Err(message.to_string_lossy().into_owned());
    }
    tokens.truncate(count);
    Ok(tokens)
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let numbers: Vec<i32> = words.iter().skip(1).flat_map(|word| word.parse()).collect();
    let [new, prompt @ ..] = &numbers[..] else {
        eprintln!("usage: generate BUNDLE NEW_TOKENS ID...");
        return ExitCode::from(2);
    };
    match generate(&words[0], prompt, *new as usize) {
        Ok(tokens) => println!("{tokens:?}"),
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
