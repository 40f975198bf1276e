//! Continue token ids: generate BUNDLE NEW_TOKENS ID...
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};
use std::{env, process::ExitCode};

#[repr(C)]
struct Error {
    code: c_int,
    message: [c_char; 512],
}

#[rustfmt::skip]
extern "C" {
    fn ortolan_open(folder: *const c_char, options: *const c_void, error: *mut Error) -> *mut c_void;
    fn ortolan_close(model: *mut c_void);
    fn ortolan_generate(
        model: *mut c_void, prompt: *const i32, prompt_count: usize, options: *const c_void,
        tokens: *mut i32, capacity: usize, count: *mut usize, finish: *mut c_int, error: *mut Error,
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
        let done = !model.is_null()
            && ortolan_generate(
                model, prompt.as_ptr(), prompt.len(), null(), tokens.as_mut_ptr(), new, &mut count,
                null_mut(), &mut error,
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
    let done = generate(&words[0], prompt, *new as usize);
    match &done {
        Ok(tokens) => println!("{tokens:?}"),
        Err(message) => eprintln!("{message}"),
    }
    ExitCode::from(done.is_err() as u8)
}
