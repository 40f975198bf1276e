/** Text to token ids with the place of every token, and back. */

import { Tokenizer as Library } from "@huggingface/tokenizers";

import { checkedIds, given } from "./arguments.js";
import { BYTES, joined, normalized, pieces, placed } from "./aligned.js";
import { spelledOut } from "./decoders.js";
import { check, failure, TokenizerError } from "./errors.js";

const ADVICE = "tokenizer.json belongs to another model.";
const SPACES = new Set([" ", BYTES[32]]);
const isSpace = (char) => SPACES.has(char) || /^\p{White_Space}$/u.test(char);
const WORD = /^[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]$/u;
const utf8 = new TextEncoder();

/**
 * The tokenizer of a bundle. Tokens are `{id, start, end, word}`: UTF-16 offsets, and the number of the
 * word; special tokens around a text have no `word`.
 */
export class Tokenizer {
  #file;
  #library;
  #vocab;
  #added;
  #written; // added tokens by their texts, in texts that are normalized or not
  #hidden;
  #unknown;
  #size;

  /** From the content of tokenizer.json, the number of the model's tokens, and tokenizer_config.json. */
  constructor(file, size, config = {}) {
    this.#file = file;
    this.#size = size;
    try {
      // which is asked for the entries of texts alone
      const parts = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, added_tokens: [] };
      this.#library = new Library({ ...file, ...parts }, { ...config, clean_up_tokenization_spaces: false });
    } catch (cause) {
      throw new TokenizerError(`tokenizer.json cannot be loaded: ${cause.message}. Copy the file again.`, { cause });
    }
    const { vocab, unk_token: unknown, unk_id: unknownId } = file.model;
    this.#vocab = new Map(Array.isArray(vocab) ? vocab.map(([text], id) => [text, id]) : Object.entries(vocab));
    this.#unknown = unknown == null ? unknownId : this.#vocab.get(unknown);
    this.#added = new Map((file.added_tokens ?? []).map((token) => [token.id, token]));
    const isNormalized = ({ normalized: is, special }) => file.normalizer != null && (is ?? !special);
    const written = (is) => [...this.#added.values()].filter((token) => isNormalized(token) === is).map((token) => [this.#entry(token.id), token]);
    this.#written = new Map([true, false].map((is) => [is, finder(new Map(written(is)))]));
    this.#hidden = new Set([...this.#added.values()].filter(({ special }) => special).map(({ id }) => id));
    const top = [...this.#vocab.values(), ...this.#added.keys()].reduce((most, id) => Math.max(most, id), -1);
    check(top < size, TokenizerError, `tokenizer.json has ids up to ${top}, but the model has only ${size} tokens. Use the tokenizer of this model.`);
  }

  /** Ids of a text, with special tokens around it, cut at its end to `maxTokens`. */
  encode(text, options) {
    return this.tokens(text, options).map(({ id }) => id);
  }

  /** Tokens of a text; same options as `encode`. */
  tokens(text, options) {
    const { special = true, maxTokens = Infinity } = given(options);
    const bare = this.#bare(text);
    const added = special ? this.#around([]).length : 0;
    check(bare.length + added <= maxTokens || maxTokens > added, TokenizerError, `${maxTokens} tokens leave no room for text between the special tokens.`);
    const own = bare.slice(0, Math.max(maxTokens - added, 0));
    return special ? this.#around(own) : own;
  }

  /** Tokens of two texts as one input, with the `type` of each; the longer text is cut to fit. */
  pair(first, second, { maxTokens = Infinity } = {}) {
    const parts = [this.#bare(first), this.#bare(second)];
    const room = maxTokens - this.#around([], []).length;
    check(room >= 2, TokenizerError, `${maxTokens} tokens leave no room for texts between the special tokens.`);
    const sizes = shortened(parts[0].length, parts[1].length, room);
    return this.#around(...parts.map((part, index) => part.slice(0, sizes[index])));
  }

  /**
   * A text with each part of another, in windows that share `stride` of its tokens. Tokens of the other
   * text have `span`, the characters of the word that they are part of.
   */
  windows(first, second, { maxTokens, stride }) {
    const [own, other] = [this.#bare(first), this.#bare(second)];
    const room = maxTokens - this.#around([], []).length - own.length;
    const left = `The question leaves ${Math.max(room, 0)} of ${maxTokens} tokens for the context, and windows overlap by ${stride}.`;
    check(room > stride, TokenizerError, `${left} Shorten the question, or lower stride.`);
    const result = [];
    for (let start = 0; start === 0 || start + stride < other.length; start += room - stride) {
      const part = other.slice(start, start + room);
      const words = new Map(); // a word that a window cuts has only its tokens there
      for (const { word, start: first, end } of part) words.set(word, [words.get(word)?.[0] ?? first, end]);
      result.push(this.#around(own, part.map((token) => ({ ...token, span: words.get(token.word) }))));
    }
    return result;
  }

  /** Text of ids, without special tokens unless `special`. */
  decode(ids, options) {
    const { special = false } = given(options);
    const shown = checkedIds(ids, this.#size, "ids").filter((id) => special || !this.#hidden.has(id));
    return reading(() => spelledOut(this.#file.decoder, shown.map((id) => this.#entry(id)).filter((entry) => entry !== undefined)));
  }

  /** Entry of the vocabulary; that of an added token is as texts that are normalized have it. */
  #entry(id) {
    const added = this.#added.get(id);
    if (added === undefined) return this.#library.model.vocab[id];
    return added.normalized ? joined(normalized(this.#file.normalizer, placed(added.content))) : added.content;
  }

  /** Id of a text that is one added token with just this content; undefined for others. */
  addedToken(text) {
    return [...this.#added.values()].find(({ content }) => content === text)?.id;
  }

  /** Whether a token continues the word of the token before it. */
  continuesWord(text, { id, start, end }) {
    if (id === this.#unknown) return false;
    const isMarked = this.#file.model.continuing_subword_prefix;
    if (isMarked && this.#added.has(id)) return false;
    if (!isMarked) return start > 0 && !text.slice(start - 1, start + 1).includes(" ");
    return Array.from(this.#entry(id)).length !== Array.from(text.slice(start, end)).length;
  }

  /** Special tokens and those that a chat template writes, by their texts. */
  controlTokens(source) {
    const tokens = [...this.#added.values()].filter(({ special, content }) => special || (content.trim() && source.includes(content)));
    return new Map(tokens.map(({ content, id }) => [content, id]));
  }

  /** Tokens of a text without special tokens around it. */
  #bare(text) {
    check(typeof text === "string", TokenizerError, `text must be a string (got ${typeof text}).`);
    const half = text.search(/\p{Surrogate}/u);
    check(half < 0, TokenizerError, `The text has half a surrogate pair at index ${half}. Decode its source as UTF-8 or UTF-16.`);
    return reading(() => this.#split(text));
  }

  #split(text) {
    let word = 0;
    const tokens = [];
    const written = new Set(); // added tokens that are in the text
    for (const { chars, id } of this.#sections(text)) {
      if (id !== undefined) written.add(tokens[tokens.push({ id, ...extent(chars), word: word++ }) - 1]);
      else for (const piece of pieces(this.#file.pre_tokenizer, chars)) tokens.push(...this.#read(piece, word++));
    }
    const processors = [this.#file.post_processor?.processors ?? this.#file.post_processor].flat();
    for (const processor of processors) {
      const trims = ["ByteLevel", "RobertaProcessing"].includes(processor?.type) && (processor.trim_offsets ?? true);
      const entry = (token) => (written.has(token) ? text.slice(token.start, token.end) : (this.#entry(token.id) ?? ""));
      if (trims) tokens.forEach((token, index) => trim(text, token, Array.from(entry(token)), (processor.add_prefix_space ?? true) && (index === 0 || token.start === 0)));
    }
    return tokens;
  }

  /** Parts of a text: added tokens with their ids, and the texts between them, normalized. */
  #sections(text) {
    const { normalizer } = this.#file;
    const between = (chars, isNormalized) => {
      const { tokens, pattern } = this.#written.get(isNormalized);
      let at = 0;
      const parts = (tokens.size ? joined(chars).split(pattern) : [joined(chars)]).map((part, index) => {
        const start = at;
        const own = chars.slice(start, (at += Array.from(part).length));
        const token = index % 2 ? tokens.get(part) : undefined;
        const isInside = token?.single_word && [chars[start - 1], chars[at]].some((char) => WORD.test(char?.[0] ?? ""));
        return { chars: own, token: isInside ? undefined : token };
      });
      return attached(parts);
    };
    return between(placed(text), false).flatMap(({ chars, id }) =>
      id !== undefined ? [{ chars, id }] : between(normalized(normalizer, chars), true),
    );
  }

  /** Tokens of a piece, by the model of the tokenizer. */
  #read(piece, word) {
    let at = 0;
    const tokens = [];
    const unknown = this.#unknown;
    const drops = unknown === undefined && this.#library.model.bpe;
    // the library leaves out the bytes of characters that BPE drops when it counts those before a token
    const units = drops ? piece.flatMap((char) => Array(utf8.encode(char[0]).length).fill(char)) : piece;
    const { fuse_unk: fuses, byte_fallback: spells } = this.#file.model;
    for (const { entry, size: count } of this.#entries(joined(piece))) {
      const size = drops ? utf8.encode(Array.from(entry).slice(0, count).join("")).length : count;
      const chars = units.slice(at, at + size);
      const place = extent(chars);
      const id = this.#vocab.get(entry);
      const spelled = spells && id === undefined ? Array.from(utf8.encode(drops ? entry : joined(chars)), byteEntry).map((own) => this.#vocab.get(own)) : [];
      const last = tokens.at(-1);
      if (spelled.length && !spelled.includes(undefined)) tokens.push(...spelled.map((own) => ({ id: own, ...place, word })));
      else if (id === undefined && unknown === undefined) continue;
      else if (id === undefined && last?.id === unknown && fuses) last.end = place.end;
      else tokens.push({ id: id ?? unknown, ...place, word });
      at += size;
    }
    return tokens;
  }

  /** Entries of the vocabulary that make up a text, with their sizes in characters. */
  #entries(text) {
    const { model } = this.#library;
    const { continuing_subword_prefix: prefix, end_of_word_suffix: suffix } = this.#file.model;
    const size = (entry) => Array.from(entry).length;
    const whole = [{ entry: text, size: size(text) }];
    if (model.bpe) {
      if (this.#file.model.ignore_merges && this.#vocab.has(text)) return whole;
      return model.bpe(text).map((entry, index, all) => ({ entry, size: size(entry) - (suffix && index === all.length - 1 ? size(suffix) : 0) }));
    }
    if (model.tokenize) {
      // unknown characters that are adjacent are one entry
      const fused = [];
      for (const entry of model.tokenize(text)) {
        const isUnknown = !this.#vocab.has(entry);
        if (isUnknown && fused.length && !this.#vocab.has(fused.at(-1))) fused[fused.length - 1] += entry;
        else fused.push(entry);
      }
      return fused.map((entry) => ({ entry, size: size(entry) }));
    }
    if (prefix == null) return whole; // words
    const entries = model.encode([text]);
    if (entries.length === 1) return [{ ...whole[0], entry: entries[0] }];
    return entries.map((entry, index) => ({ entry, size: size(entry) - (index ? size(prefix) : 0) }));
  }

  /** Put special tokens around one text or two. */
  #around(first, second) {
    return reading(() => this.#surrounded(first, second));
  }

  #surrounded(first, second) {
    let parts = { A: first.map((token) => ({ type: 0, ...token })), B: second?.map((token) => ({ type: this.#file.post_processor == null ? 0 : 1, ...token })) };
    let result = second ? [...parts.A, ...parts.B] : parts.A;
    const special = (id, type) => ({ id, type });
    for (const processor of [this.#file.post_processor?.processors ?? this.#file.post_processor].flat()) {
      const { type: kind, single, pair, special_tokens: named, cls, sep } = processor ?? {};
      if (kind === "TemplateProcessing") {
        const template = second ? pair : single;
        result = template.flatMap(({ SpecialToken: own, Sequence: text }) =>
          own ? named[own.id].ids.map((id) => special(id, own.type_id)) : parts[text.id].map((token) => ({ ...token, type: text.type_id })),
        );
      } else if (kind === "BertProcessing" || kind === "RobertaProcessing") {
        const isBert = kind === "BertProcessing";
        const other = isBert ? 1 : 0;
        result = [special(cls[1], 0), ...parts.A, special(sep[1], 0)];
        if (second) result.push(...(isBert ? [] : [special(sep[1], 0)]), ...parts.B.map((token) => ({ ...token, type: other })), special(sep[1], other));
      }
    }
    const top = result.reduce((most, { id }) => Math.max(most, id), 0);
    check(top < this.#size, TokenizerError, `The tokenizer returned the id ${top}, but the vocabulary ends at ${this.#size - 1}. ${ADVICE}`);
    return result;
  }
}

/** Return what a function returns that reads tokenizer.json, which may be damaged. */
function reading(work) {
  try {
    return work();
  } catch (cause) {
    throw failure(cause, TokenizerError, "tokenizer.json cannot be read", " Copy the file again.");
  }
}

/** Added tokens by their texts, and a pattern that finds the longest of them. */
function finder(tokens) {
  tokens.delete("");
  const texts = [...tokens.keys()].sort((a, b) => b.length - a.length).map((text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return { tokens, pattern: new RegExp(`(${texts.join("|")})`, "u") };
}

/** Leave the spaces of an entry of the vocabulary out of the place of its token. */
function trim(text, token, entry, keepsOne) {
  const first = entry.findIndex((char) => !isSpace(char));
  const trailing = first < 0 ? entry.length : entry.length - 1 - entry.findLastIndex((char) => !isSpace(char));
  let leading = first < 0 ? entry.length : first;
  if (leading === 1 && keepsOne) leading = 0; // the space that the tokenizer put there
  const chars = Array.from(text.slice(token.start, token.end));
  const rest = chars.splice(Math.min(leading, chars.length));
  token.start += chars.join("").length;
  token.end -= rest.slice(Math.max(rest.length - trailing, 0)).join("").length;
}

/** How a vocabulary spells a byte. */
const byteEntry = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** Start and end of characters. */
const extent = (chars) => ({ start: chars[0]?.[1] ?? 0, end: chars.at(-1)?.[2] ?? 0 });

/** Added tokens take the white space next to them, as their flags say. */
function attached(parts) {
  parts.forEach(({ token, chars }, index) => {
    const [before, after] = [parts[index - 1], parts[index + 1]];
    if (token?.lstrip && before && !before.token) {
      while (before.chars.length && isSpace(before.chars.at(-1)[0])) chars.unshift(before.chars.pop());
    }
    if (token?.rstrip && after && !after.token) {
      while (after.chars.length && isSpace(after.chars[0][0])) chars.push(after.chars.shift());
    }
  });
  return parts
    .reduce((all, { chars, token }) => {
      if (token || all.at(-1)?.id !== undefined || !all.length) all.push({ chars, id: token?.id });
      else all.at(-1).chars.push(...chars);
      return all;
    }, [])
    .filter(({ chars, id }) => chars.length || id !== undefined);
}

/** Lengths of two texts of at most `most` tokens together, as `tokenizers` truncates them. */
function shortened(first, second, most) {
  let [shorter, longer] = [Math.min(first, second), Math.max(first, second)];
  if (shorter + longer > most) {
    longer = Math.max(shorter, most - shorter);
    if (shorter + longer > most) [shorter, longer] = [most >> 1, most - (most >> 1)];
  }
  return first <= second ? [shorter, longer] : [longer, shorter];
}
