/**
 * The heap of ONNX Runtime's WebAssembly module. If it has no room for an input, ONNX Runtime copies
 * the input to address 0, over its own data, and computes on. Nothing else writes there.
 */

import { check } from "./checks.js";
import { MemoryError } from "./errors.js";

/** Memory of the module, which exists once. Null if the application started it before. */
let heap = null;

/** Return what a function returns, which may start the module. */
export async function withHeap(start) {
  const { Memory } = WebAssembly;
  WebAssembly.Memory = function (size) {
    const memory = new Memory(size);
    if (size.shared && size.maximum > 0) heap = memory;
    return memory;
  };
  try {
    return await start();
  } finally {
    WebAssembly.Memory = Memory;
  }
}

/** Check that no input was copied to address 0. */
export function checkHeap() {
  const isZero = heap === null || new Uint32Array(heap.buffer, 0, 16).every((word) => word === 0);
  const message = "Memory ran out, and ONNX Runtime overwrote its own data. Reload the page.";
  check(isZero, MemoryError, message);
}
