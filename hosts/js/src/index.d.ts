/** Where the files of a bundle come from. */
export interface Files {
  read(
    name: string,
    options?: { sha256?: string; onBytes?: (count: number) => void },
  ): Promise<Uint8Array<ArrayBuffer>>;
}

/** Files below a URL; a browser keeps them in its cache by their hashes. */
export function urlFiles(base: string | URL): Files;
/** Files that the user chose. */
export function chosenFiles(files: Iterable<File>): Files;
/** Files of a folder, in Node. */
export function folderFiles(folder: string): Files;

export interface LoadOptions {
  /** Module of ONNX Runtime: `onnxruntime-web` or `onnxruntime-node`. */
  ort: unknown;
  /** `cpu` is that of `onnxruntime-node`. Default: `wasm`. */
  device?: "wasm" | "webgpu" | "cpu";
  onProgress?: (loadedBytes: number, totalBytes: number, file: string) => void;
}

export interface Message {
  role: string;
  content: string;
}

/** Ids need no tokenizer; messages need a chat template. */
export type Prompt = string | number[] | Message[];

export interface Options {
  /** Default: as many as fit into the context. */
  maxNewTokens?: number;
  /** Texts that end the answer, and are not part of it. */
  stop?: string | string[];
  stopTokens?: number[];
  ignoreEos?: boolean;
  signal?: AbortSignal;
  /** 0, the default, takes the most probable token. */
  temperature?: number;
  /** Keep this many tokens; 0 keeps all. */
  topK?: number;
  /** Keep the fewest tokens whose probabilities reach this sum. */
  topP?: number;
  /** Keep tokens at least this probable, relative to the top one. */
  minP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  /** Values to add to the logits of ids. */
  logitBias?: Record<number, number>;
  /** The same seed draws the same tokens as in Python. */
  seed?: number | bigint;
}

export interface Completion {
  text: string;
  /** Ids of the new tokens, with the one that ended the text. */
  tokens: number[];
  finishReason: "stop" | "length";
  prefillMs: number;
  decodeMs: number;
}

export interface Verification {
  /** AMBIGUOUS: right, but another token won where two were nearly as probable. */
  verdict: "PASS" | "AMBIGUOUS" | "FAIL";
  positions: number;
  /** Mean KL divergence from PyTorch, in nats. */
  meanKl: number;
  /** Largest difference of a kept logit. */
  maxAbsDelta: number;
  /** Positions where another token is the most probable. */
  changed: number;
  /** Those of them where two tokens were nearly as probable. */
  nearTies: number;
  nonFinite: number;
  /** Files that are not as they were exported. */
  changedFiles: string[];
  thresholds: { mean_kl: number; max_abs_delta: number | null; near_tie: number | null };
}

/** A loaded decoder. Computes one sequence at a time. */
export class Decoder {
  /** manifest.json, with what older schemas leave out. */
  readonly manifest: any;
  /** Null for a bundle without a tokenizer. */
  readonly text: {
    readonly hasTemplate: boolean;
    encode(text: string, options?: { special?: boolean }): number[];
    decode(ids: number[]): string;
    chat(messages: Message[]): number[];
  } | null;
  /** Generate text; returns the completion. */
  generate(prompt: Prompt, options?: Options): Promise<Completion>;
  /** Yields pieces of text; returns the completion. */
  stream(prompt: Prompt, options?: Options): AsyncGenerator<string, Completion>;
  /** Gives the logits after every token to `onRow`. */
  logits(ids: number[], onRow: (logits: Float32Array, position: number) => void): Promise<void>;
  /** Replay the certificate on this device. */
  verify(options?: { onProgress?: (done: number, total: number) => void }): Promise<Verification>;
  /** Free the memory of the model. */
  release(): Promise<void>;
}

/** Load a bundle, after checking its files. Rejects with one of the errors below. */
export function load(files: Files, options: LoadOptions): Promise<Decoder>;

export class OrtolanError extends Error {}
/** A bundle that is incomplete, damaged, of another version or of another kind. */
export class BundleError extends OrtolanError {}
/** An invalid request. */
export class InputError extends OrtolanError {}
/** A prompt that does not fit into the context. */
export class ContextLengthError extends InputError {}
/** A sampling option that is out of range. */
export class SamplingError extends InputError {}
/** A device that is missing or failed. */
export class DeviceError extends OrtolanError {}
/** Memory ran out: the machine's, or the 4 GB of WebAssembly. The model must be loaded again. */
export class MemoryError extends OrtolanError {}
/** Logits that are not finite. */
export class NumericError extends OrtolanError {}
