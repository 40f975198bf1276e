/** Where the files of a bundle come from. */
export interface Files {
  read(name: string, options?: { sha256?: string; onBytes?: (count: number) => void }): Promise<Uint8Array<ArrayBuffer>>;
}

/** Files below a URL; a browser keeps them in its cache by their hashes. */
export function urlFiles(base: string | URL): Files;
/** Files that the user chose. */
export function chosenFiles(files: Iterable<File>): Files;
/** Files of a folder, in Node. */
export function folderFiles(folder: string): Files;

export interface LoadOptions<M extends Model = Model> {
  /** `Decoder`, `Encoder` or `Seq2Seq`, to reject other kinds; by default all are accepted. */
  kind?: (abstract new (...args: never[]) => M) & { readonly kind: string };
  /** Module of ONNX Runtime: `onnxruntime-web` or `onnxruntime-node`. */
  ort: unknown;
  /** `cpu` is that of `onnxruntime-node`. Default: `wasm`. */
  device?: "wasm" | "webgpu" | "cpu";
  onProgress?: (loadedBytes: number, totalBytes: number, file: string) => void;
}

/** Ids need no tokenizer; messages need a chat template. */
export type Prompt = string | number[] | Message[];
export type Message = { role: string; content: string };

export interface Sampling {
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

export interface Options extends Sampling {
  /** Default: as many as fit into the context. */
  maxNewTokens?: number;
  /** Fewest new tokens before EOS or a stop token is allowed. Default: 0. */
  minNewTokens?: number;
  /** Texts that end the answer, and are not part of it. */
  stop?: string | string[];
  stopTokens?: number[];
  ignoreEos?: boolean;
  signal?: AbortSignal;
}

export interface Completion {
  text: string;
  /** Of a beam search: its score, and the next best sequences. */
  score?: number;
  alternatives?: Hypothesis[];
  /** Ids of the new tokens, with the one that ended the text. */
  tokens: number[];
  finishReason: "stop" | "length";
  prefillMs: number;
  decodeMs: number;
}

/** A sequence that a beam search found; its score is a mean log-probability. */
export type Hypothesis = { text: string; tokens: number[]; score: number };

export interface Verification {
  /** AMBIGUOUS: right, but another token won where two were nearly as probable. */
  verdict: "PASS" | "AMBIGUOUS" | "FAIL";
  positions: number;
  /** Mean KL divergence from PyTorch, in nats. */
  meanKl: number;
  /** Largest difference of a kept logit. */
  maxAbsDelta: number;
  /** Positions where another token is the most probable, and those where two were nearly as probable. */
  changed: number;
  nearTies: number;
  nonFinite: number;
  /** Files that are not as they were exported. */
  changedFiles: string[];
  thresholds: { mean_kl: number; max_abs_delta: number | null; near_tie: number | null };
}

/** A loaded bundle. Calls that come together are computed one step after another. */
export abstract class Model {
  /** manifest.json, with what older schemas leave out. */
  readonly manifest: any;
  /** Null for a bundle without a tokenizer. */
  readonly text: Tokenizer | null;
  /** Free the memory of the model, after the step that runs. Later calls are errors. */
  dispose(): Promise<void>;
}

/** A token of a text, with the number of its word; special tokens around the text have no places. */
export type Token = { id: number; word?: number } & Partial<Span>;

/** A place in a text, in UTF-16 code units. */
export type Span = { start: number; end: number };

export interface Tokenizer {
  readonly hasTemplate: boolean;
  encode(text: string, options?: { special?: boolean; maxTokens?: number }): number[];
  /** Tokens with their places. */
  tokens(text: string, options?: { special?: boolean; maxTokens?: number }): Token[];
  decode(ids: number[], options?: { special?: boolean }): string;
  chat(messages: Message[]): number[];
}

/** Gets the logits after each token. */
export type OnRow = (logits: Float32Array, position: number) => void;

/** A loaded decoder. */
export class Decoder extends Model {
  static readonly kind: "decoder";
  /** Generate text; returns the completion. */
  generate(prompt: Prompt, options?: Options): Promise<Completion>;
  /** Yields pieces of text; returns the completion. */
  stream(prompt: Prompt, options?: Options): AsyncGenerator<string, Completion>;
  logits(ids: number[], onRow: OnRow): Promise<void>;
  /** Replay the certificate on this device. */
  verify(options?: { onProgress?: (done: number, total: number) => void }): Promise<Verification>;
}

/** An image like `ImageData`: 1 to 4 bytes per pixel, of which the last of 2 or 4 is alpha. */
export type Pixels = { data: Uint8Array | Uint8ClampedArray | number[]; width: number; height: number };

/**
 * Samples from -1 to 1, or integers of 16 or 32 bits, of one channel at the rate of the encoder; or an
 * `AudioBuffer`, which states its own and is mixed to one.
 */
export type Sound = Float32Array | Float64Array | Int16Array | Int32Array | AudioBuffer;

/** A text, the ids of one, or two texts as one input; an image or a sound for an encoder of those. */
export type Input = string | number[] | [string, string] | Pixels | Sound;

/** A part of a sound, usually a sentence; times are in seconds from the start of the sound. */
export interface Segment {
  start: number;
  end: number;
  text: string;
  /** Ids of the text and its times; with CTC, the numbers of its symbols. */
  tokens: number[];
  /** Mean log-probability of the tokens, or with CTC at each vector. */
  logprob: number;
  /** Of the text, with CTC; others give no times of words. */
  words: { start: number; end: number; text: string }[];
}

export interface Transcript {
  text: string;
  segments: Segment[];
  /** Length of the sound. */
  seconds: number;
  /** Code of the language, given or recognized; null for a model of one language. */
  language: string | null;
}

export interface CtcOptions {
  /** Samples per second of arrays. Default: the rate of the encoder. */
  rate?: number;
  signal?: AbortSignal;
}

/** Options of a transcription, with those of sampling. */
export interface TranscribeOptions extends CtcOptions, Sampling {
  /** Code of the spoken language, such as `de`. Default: recognized in the first window. */
  language?: string;
  /** Translate into English. */
  translate?: boolean;
  /** Whether the model writes times, if it can. Without them, a sound must fit into a window. Default: true. */
  timestamps?: boolean;
  /** Most tokens for each second, for models that read waves. Default: 6.5. */
  tokensPerSecond?: number;
  /** Gets each segment of `transcribe` as soon as its window is computed. */
  onSegment?: (segment: Segment) => void;
}

/** `truncate` cuts texts that are too long, at their end. Default: false, which rejects them. */
export type TruncateOptions = { truncate?: boolean };

/** The label with the highest score, and all labels, highest score first. */
export interface Classification {
  label: string;
  score: number;
  scores: { label: string; score: number }[];
  /** Whether scores are between 0 and 1. */
  areProbabilities: boolean;
}

/** The part of a context that answers a question. */
export type Answer = { text: string; score: number } & Span;

/** A part of a text with a label. */
export type LabeledSpan = Answer & { label: string };

/** Each token with its most probable label, without special tokens; and groups of them, without the label `O`. */
export type TokenClassification = { tokens: LabeledSpan[]; entities: LabeledSpan[] };

/** The text with the most probable token in each blank, and candidates for each, the most probable first. */
export type Filling = { text: string; blanks: { text: string; token: number; score: number }[][] };

/**
 * A loaded encoder. Methods accept one input or a list. Inputs of similar length are computed together;
 * each result equals that of the input alone up to rounding.
 */
export class Encoder extends Model {
  static readonly kind: "encoder";
  /** The encoder of the texts that images are compared with; an error if there is none. */
  readonly texts: Encoder;
  /**
   * A vector for each input, of length 1 if the model normalizes them. `prompt` names a prompt of the
   * model to put before each text; by default its own, and none for "".
   */
  embed(inputs: Input | Input[], options?: TruncateOptions & { prompt?: string }): Promise<Float32Array[]>;
  /** Scores of the labels of each input. A list of pairs scores two texts together, as rerankers do. */
  classify(inputs: Input | Input[], options?: TruncateOptions): Promise<Classification[]>;
  /**
   * Zero-shot classification, by a classifier trained on entailment, or by encoders of images and of
   * texts. `multiLabel` scores each label on its own; `template` has `{}` for the label. Default: "This
   * example is {}." for texts, "This is a photo of {}." for images.
   */
  classifyAs(
    inputs: string | Pixels | (string | Pixels)[],
    labels: string[],
    options?: TruncateOptions & { multiLabel?: boolean; template?: string },
  ): Promise<Classification[]>;
  /** Labels of the tokens of each text, grouped to entities like transformers. Default: `simple`. */
  classifyTokens(
    inputs: string | string[],
    options?: TruncateOptions & { aggregation?: "none" | "simple" | "first" | "average" | "max" },
  ): Promise<TokenClassification[]>;
  /**
   * The part of a context, of any length, that answers a question; empty with `allowNone` if that is
   * more probable. `stride` is the overlap of windows. Defaults: 15 tokens, 128 or half a window, false.
   */
  answer(question: string, context: string, options?: { maxAnswerTokens?: number; stride?: number; allowNone?: boolean }): Promise<Answer>;
  /** Fill the blanks of a text: `[MASK]`, `<mask>` or `<|mask|>`, as the model writes them. */
  fill(text: string, options?: { top?: number }): Promise<Filling>;
  /** Transcribe a sound of any length, or each of a list, by a model with CTC; words have times. */
  transcribe(sound: Sound, options?: CtcOptions): Promise<Transcript>;
  transcribe(sounds: Sound[], options?: CtcOptions): Promise<Transcript[]>;
  /** A vector, or logits, for each token of each input, each patch of an image, or each step of a sound. */
  states(inputs: Input | Input[], options?: TruncateOptions): Promise<Float32Array[][]>;
  logits(inputs: Input | Input[], options?: TruncateOptions): Promise<Float32Array[][]>;
}

/** Options of a beam search. With more than one beam, only `maxNewTokens` and `signal` apply besides. */
export interface BeamOptions extends Options {
  /** First new token, as text or id, such as the target language. */
  first?: string | number;
  /** 1, the default, samples instead of searching. */
  beams?: number;
  /** Sequences to return, at most `beams`; those after the first are `alternatives`. */
  nBest?: number;
  /** Above 0 favors long sequences, below 0 short ones. Default: 1. */
  lengthPenalty?: number;
  /** When the search ends: at once, when better sequences are unlikely (the default), or impossible. */
  earlyStopping?: boolean | "never";
}

export type Source = string | number[] | Pixels | Sound;

/** A loaded encoder-decoder, such as a translator or Whisper. */
export class Seq2Seq extends Model {
  static readonly kind: "encoder-decoder";
  /** Generate text from one source or from each of a list, whose seeds count up. */
  generate(source: Source, options?: BeamOptions): Promise<Completion>;
  generate(sources: Source[], options?: BeamOptions): Promise<Completion[]>;
  /** Yields pieces of text; returns the completion. There are no streams of beam searches. */
  stream(source: Source, options?: Options & { first?: string | number }): AsyncGenerator<string, Completion>;
  /** Transcribe a sound of any length, or each of a list. */
  transcribe(sound: Sound, options?: TranscribeOptions): Promise<Transcript>;
  transcribe(sounds: Sound[], options?: TranscribeOptions): Promise<Transcript[]>;
  /** Yields segments of a sound while it is recorded: blocks of samples of any length, at `rate`. */
  listen(blocks: AsyncIterable<Sound> | Iterable<Sound>, options?: TranscribeOptions): AsyncGenerator<Segment>;
  /** Logits after every token of an output, which begins with the start token. */
  logits(source: Source, ids: number[], onRow: OnRow): Promise<void>;
}

/** Load a bundle, after checking its files, as the class of its kind. Rejects with one of the errors below. */
export function load<M extends Model = any>(files: Files, options: LoadOptions<M>): Promise<M>;

export class OrtolanError extends Error {}
/** A bundle that is incomplete, damaged or of another version. */
export class BundleError extends OrtolanError {}
/** manifest.json is incomplete, or not JSON. */
export class ManifestError extends BundleError {}
/** A file that is missing or was changed. */
export class BundleFileError extends BundleError {}
/** A graph that does something a bundle may not do. */
export class GraphError extends BundleError {}
/** An invalid request. */
export class InputError extends OrtolanError {}
/** A request that this kind of bundle cannot serve. */
export class BundleKindError extends InputError {}
/** A text or ids that the tokenizer cannot read, or a bundle without one. */
export class TokenizerError extends InputError {}
/** A prompt that does not fit into the context. */
export class ContextLengthError extends InputError {}
/** A sampling option that is out of range. */
export class SamplingError extends InputError {}
/** A device that is missing or failed. */
export class DeviceError extends OrtolanError {}
/** ONNX Runtime could not compute the model. */
export class ComputeError extends OrtolanError {}
/** Memory ran out: the machine's, or the 4 GB of WebAssembly. The model must be loaded again. */
export class MemoryError extends OrtolanError {}
/** Logits that are not finite. */
export class NumericError extends OrtolanError {}
