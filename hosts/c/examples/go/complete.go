// Continue a text: complete BUNDLE NEW PROMPT
package main

/*
#include <stdlib.h>
#include "ortolan.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"
)

func complete(bundle string, limit int, prompt string) (string, error) {
	var problem C.ortolan_error
	failure := func() (string, error) { return "", errors.New(C.GoString(&problem.message[0])) }
	folder, text := C.CString(bundle), C.CString(prompt)
	defer C.free(unsafe.Pointer(folder))
	defer C.free(unsafe.Pointer(text))
	model := C.ortolan_open(folder, nil, &problem)
	if model == nil {
		return failure()
	}
	defer C.ortolan_close(model)
	tokenizer := C.ortolan_model_tokenizer(model, &problem)
	if tokenizer == nil {
		return failure()
	}
	ids := make([]C.int32_t, 1<<16)
	tokens := make([]C.int32_t, limit)
	written := make([]C.char, 1<<20)
	var count, size C.size_t
	if !C.ortolan_encode(tokenizer, text, C.size_t(len(prompt)), true, 0, &ids[0],
		C.size_t(len(ids)), &count, &problem) ||
		!C.ortolan_generate(model, &ids[0], count, nil, &tokens[0], C.size_t(limit), &count, nil,
			&problem) ||
		!C.ortolan_decode(tokenizer, &tokens[0], count, true, &written[0],
			C.size_t(len(written)), &size, &problem) {
		return failure()
	}
	return C.GoStringN(&written[0], C.int(size)), nil
}

func main() {
	limit, err := strconv.Atoi(os.Args[2])
	text := ""
	if err == nil {
		text, err = complete(os.Args[1], limit, os.Args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(text)
}
