/**
 * The heap of ONNX Runtime's WebAssembly module, and tensors that stay in it. Each run copies other inputs into
 * the heap and outputs out of it, which takes longer than a token of a long text.
 *
 * If the heap has no room for an input, ONNX Runtime copies the input to address 0, over its own data, and
 * computes on. Nothing else writes there.
 */

import { check, MemoryError } from "./errors.js";

/** Heaps by the library that started them. A library that the application started before has none. */
const heaps = new WeakMap();

export const heapOf = (ort) => heaps.get(ort);

/** The function of the module that creates tensors, and that it does not show to applications. */
const CREATE = "_OrtCreateTensor";

/** Return what a function returns, which may start the module. */
export async function withHeap(ort, start) {
  const tensors = new Map();
  // the module is the only object that this is assigned to
  function set(create) {
    const value = (type, address, bytes, dims, rank, location) => {
      const own = bytes || rank !== 2 ? undefined : tensors.get(this.getValue(dims + 4, "i32") >>> 0);
      return create(type, ...(own?.place ?? [address, bytes, dims, rank]), location);
    };
    Object.defineProperty(this, CREATE, { value, configurable: true, enumerable: true, writable: true });
    heaps.set(ort, { ort, module: this, tensors });
  }
  Reflect.defineProperty(Object.prototype, CREATE, { set, configurable: true });
  try {
    return await start();
  } finally {
    Reflect.deleteProperty(Object.prototype, CREATE);
  }
}

/** Check that no input was copied to address 0. */
export function checkHeap(ort) {
  const bytes = heaps.get(ort)?.module.HEAPU8.subarray(0, 64) ?? [];
  const isZero = bytes.every((byte) => byte === 0);
  check(isZero, MemoryError, "Memory ran out, and ONNX Runtime overwrote its own data. Reload the page.");
}

/** A float32 tensor in a heap; `stub` stands for it in a run, as an input, an output or both. */
export class HeapTensor {
  #heap;

  constructor(heap, data, dims) {
    const bytes = 4 * data.length;
    const address = heap.module._malloc(bytes + 4 * dims.length) >>> 0;
    check(address, MemoryError, "Memory ran out. Use a shorter text, or close other programs.");
    [this.#heap, this.dims, this.place] = [heap, dims, [address, bytes, address + bytes, dims.length]];
    this.#view(Float32Array, address, data.length).set(data);
    this.#view(Int32Array, address + bytes, dims.length).set(dims);
    heap.tensors.set(address, this);
    this.stub = new heap.ort.Tensor("float32", new Float32Array(0), [0, address]);
  }

  getData() {
    const [address, bytes] = this.place;
    return this.#view(Float32Array, address, bytes / 4);
  }

  dispose() {
    const { module, tensors } = this.#heap;
    if (tensors.delete(this.place[0])) module._free(this.place[0]);
  }

  #view(Kind, address, length) {
    const { module } = this.#heap;
    module.getValue(address, "i8"); // replaces HEAPU8 if another thread made the heap grow
    return new Kind(module.HEAPU8.buffer, address, length);
  }
}
