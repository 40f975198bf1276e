/**
 * Normalizers and pre-tokenizers of tokenizer.json that keep the place of every character, so that a
 * token can be found in its text. Characters are `[character, start, end]`, with UTF-16 offsets.
 *
 * Source: the alignments of Hugging Face's `tokenizers` (normalizer.rs, pre_tokenizer.rs).
 */

import { SplitPreTokenizer } from "@huggingface/tokenizers";

import { TokenizerError } from "./errors.js";

const SPACE = /^\p{White_Space}$/u;
/** The library knows punctuation of Unicode 8. */
const PUNCTUATION = /(?![\u061d\u09fd\u0a76\u0c77\u0c84\u1b4e\u1b4f\u1b7d-\u1b7f\u2e43-\u2e4f\u2e52-\u2e5d])[!-\/:-@[-`{-~\p{P}\u166d]/gu;
const GPT2 = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const WORDS = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\p{White_Space}]+/gu;
const IDEOGRAPHS = /^[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{f900}-\u{faff}\u{2f800}-\u{2fa1f}]$/u;

/** Letters that spell bytes, as in GPT-2. */
const isPrinted = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
let unprinted = 256;
export const BYTES = Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrinted(byte) ? byte : unprinted++));

/** A text as characters. */
export function placed(text) {
  let end = 0;
  return Array.from(text, (char) => [char, end, (end += char.length)]);
}

export const joined = (chars) => chars.map(([char]) => char).join("");

const mapped = (chars, change) =>
  chars.flatMap(([char, start, end]) => Array.from(change(char), (changed) => [changed, start, end]));

const utf8 = new TextEncoder();
const spelled = (chars) => mapped(chars, (char) => Array.from(utf8.encode(char), (byte) => BYTES[byte]));

/** Put a text in front, at the place of the first character. */
const prepended = (chars, text) => (chars.length ? [...mapped([chars[0]], () => text), ...chars] : chars);

/** A pattern of tokenizer.json as a regular expression. */
export function regex(pattern) {
  const text = pattern.String?.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return text === undefined ? new SplitPreTokenizer({ pattern, invert: true }).pattern : new RegExp(text, "gu");
}

/** Ranges of characters that match. */
function ranges(chars, pattern) {
  const text = joined(chars);
  const index = new Uint32Array(text.length + 1);
  chars.reduce((at, [char], number) => index.fill(number, at, (at += char.length)) && at, 0);
  index[text.length] = chars.length;
  return Array.from(text.matchAll(pattern), (match) => [index[match.index], index[match.index + match[0].length]]).filter(
    ([from, to]) => to > from,
  );
}

/** Replace matches; the new characters are at the place of the last old one. */
function replaced(chars, pattern, content) {
  const result = [];
  let done = 0;
  for (const [from, to] of ranges(chars, pattern)) {
    result.push(...chars.slice(done, from), ...mapped([chars[to - 1]], () => content));
    done = to;
  }
  return result.concat(chars.slice(done));
}

/** Whether canonical order puts the second of two characters before the first. */
const reorders = (first, second) => (first + second).normalize("NFD") !== first + second;

const MARK = /^\p{M}$/u;

/** Whether a character starts a group that others combine with: marks of class 0 do, too. */
const starts = (char) => !MARK.test(char) || (!reorders("\u0301", char) && !reorders(char, "\u0334"));

/** Characters in canonical order, each with the number of old ones that it adds. */
function decomposed(chars, form) {
  const result = [];
  for (const [char] of chars) {
    for (const [index, part] of Array.from(char.normalize(form)).entries()) {
      let at = result.length;
      if (MARK.test(part)) while (at && reorders(result[at - 1].char, part)) at--;
      result.splice(at, 0, { char: part, added: index ? 1 : 0 });
    }
  }
  return result;
}

/** Join characters with those before them that they compose with. */
function recomposed(parts) {
  const result = [];
  let [base, last] = [undefined, undefined]; // what may be composed with, and the mark after it
  for (const part of parts) {
    const whole = base && (!last || reorders(part.char, last.char)) ? (base.char + part.char).normalize("NFC") : "";
    if (whole && Array.from(whole).length === 1) {
      Object.assign(base, { char: whole, added: base.added + part.added - 1 });
      continue;
    }
    result.push(part);
    [base, last] = starts(part.char) ? [part, undefined] : [base, base && part];
  }
  return result;
}

/** New characters are at the place of the old one before them; those that replace several, of the first. */
function moved(chars, parts) {
  let at = 0;
  return parts.map(({ char, added }) => {
    const [, start, end] = chars[Math.min(Math.max(added > 0 ? at - 1 : at, 0), chars.length - 1)];
    if (added <= 0) at += 1 - added;
    return [char, start, end];
  });
}

/** Change the normal form. */
function composed(chars, form) {
  if (/^[\0-\x7f]*$/.test(joined(chars))) return chars;
  const parts = decomposed(chars, form.replace(/C$/, "D"));
  return moved(chars, form.endsWith("C") ? recomposed(parts) : parts);
}

function ofBert({ clean_text: cleans, handle_chinese_chars: splits, strip_accents: strips, lowercase }, chars) {
  if (cleans) {
    chars = chars.filter(([char]) => !/^[\0\ufffd]$|^(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}]$/u.test(char));
    chars = mapped(chars, (char) => (SPACE.test(char) ? " " : char));
  }
  if (splits) chars = mapped(chars, (char) => (IDEOGRAPHS.test(char) ? ` ${char} ` : char));
  if (strips ?? lowercase) chars = composed(chars, "NFD").filter(([char]) => !/^\p{Mn}$/u.test(char));
  return lowercase ? mapped(chars, (char) => char.toLowerCase()) : chars;
}

/** SentencePiece's table: 4 bytes of size, a double-array trie, and texts that end with NUL. */
class Table {
  #units;
  #texts;

  constructor(base64) {
    const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    const size = new DataView(bytes.buffer).getUint32(0, true);
    this.#units = new Uint32Array(bytes.slice(4, 4 + size).buffer);
    this.#texts = bytes.subarray(4 + size);
  }

  /** What replaces a text; undefined for one that stays. */
  find(text) {
    const jump = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let node = jump(this.#units[0]);
    for (const byte of utf8.encode(text)) {
      node ^= byte;
      const unit = this.#units[node];
      if ((unit & 0x800000ff) !== byte) return undefined;
      node ^= jump(unit);
      if (!(unit & 256)) continue;
      const start = this.#units[node] & 0x7fffffff;
      return new TextDecoder().decode(this.#texts.subarray(start, this.#texts.indexOf(0, start)));
    }
    return undefined;
  }
}

const tables = new Map();

function precompiled({ precompiled_charsmap: base64 }, chars) {
  if (!tables.has(base64)) tables.set(base64, new Table(base64));
  const table = tables.get(base64);
  const parts = [];
  const replace = (old, now) => {
    const more = now.length - old.length;
    parts.push(...now.map((char, index) => ({ char, added: index < old.length ? 0 : 1 })));
    if (more < 0 && parts.length) parts.at(-1).added += more;
  };
  for (const { segment } of new Intl.Segmenter().segment(joined(chars))) {
    const old = Array.from(segment);
    const whole = utf8.encode(segment).length < 6 ? table.find(segment) : undefined;
    if (whole !== undefined) replace(old, Array.from(whole));
    else for (const char of old) replace([char], Array.from(table.find(char) ?? char));
  }
  return moved(chars, parts);
}

const stripped = (chars, left, right) => {
  const isText = ([char]) => !SPACE.test(char);
  const [first, last] = [chars.findIndex(isText), chars.findLastIndex(isText)];
  return first < 0 ? [] : chars.slice(left ? first : 0, right ? last + 1 : undefined);
};

const NORMALIZERS = {
  Sequence: ({ normalizers }, chars) => normalizers.reduce((all, one) => normalized(one, all), chars),
  BertNormalizer: ofBert,
  Lowercase: (_, chars) => mapped(chars, (char) => char.toLowerCase()),
  Replace: ({ pattern, content }, chars) => replaced(chars, regex(pattern), content),
  Prepend: ({ prepend }, chars) => prepended(chars, prepend),
  Strip: ({ strip_left: left, strip_right: right }, chars) => stripped(chars, left, right),
  Nmt: (_, chars) =>
    mapped(
      chars.filter(([char]) => !/^[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]$/.test(char)),
      (char) => (/^[\t\n\f\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]$/.test(char) ? " " : char),
    ),
  StripAccents: (_, chars) => chars.filter(([char]) => !/^\p{M}$/u.test(char)),
  ByteLevel: (_, chars) => spelled(chars),
  Precompiled: precompiled,
  ...Object.fromEntries(["NFC", "NFD", "NFKC", "NFKD"].map((form) => [form, (_, chars) => composed(chars, form)])),
};

/** Apply a normalizer of tokenizer.json. */
export function normalized(config, chars) {
  return config == null ? chars : component(NORMALIZERS, "normalizer", config)(config, chars);
}

export function component(known, what, { type }) {
  if (Object.hasOwn(known, type)) return known[type];
  throw new TokenizerError(`tokenizer.json has the ${what} ${type}, which this package does not know. Use the bundle with Python.`);
}

/** Cut characters at matches of a pattern; see `SplitDelimiterBehavior` in `tokenizers`. */
function split(chars, pattern, behavior = "isolated", inverts = false) {
  let parts = [];
  let done = 0;
  const add = (from, to, isMatch) => to > from && parts.push({ from, to, isMatch: isMatch !== inverts });
  for (const [from, to] of ranges(chars, pattern)) {
    add(done, from, false);
    add(from, to, true);
    done = to;
  }
  add(done, chars.length, false);
  behavior = behavior.toLowerCase();
  if (behavior === "removed") parts = parts.filter(({ isMatch }) => !isMatch);
  const isNext = behavior === "mergedwithnext";
  if (isNext) parts.reverse();
  if (/^(merged|contiguous)/.test(behavior)) {
    let before = false;
    parts = parts.reduce((all, part, number) => {
      const joins = behavior === "contiguous" ? number && part.isMatch === before : part.isMatch && !before;
      before = part.isMatch;
      if (!joins || !all.length) return [...all, { ...part }];
      Object.assign(all.at(-1), isNext ? { from: part.from } : { to: part.to });
      return all;
    }, []);
  }
  if (isNext) parts.reverse();
  return parts.map(({ from, to }) => chars.slice(from, to));
}

const PRE_TOKENIZERS = {
  Sequence: ({ pretokenizers }, chars) => pretokenizers.reduce((parts, one) => parts.flatMap((part) => pieces(one, part)), [chars]),
  BertPreTokenizer: (_, chars) => split(chars, /\p{White_Space}/gu, "removed").flatMap((part) => split(part, PUNCTUATION)),
  ByteLevel({ add_prefix_space: prefixes = true, use_regex: splits = true }, chars) {
    const whole = prefixes && chars[0]?.[0] !== " " ? prepended(chars, " ") : chars;
    return (splits ? split(whole, GPT2) : [whole]).map(spelled);
  },
  CharDelimiterSplit: ({ delimiter }, chars) => split(chars, regex({ String: delimiter }), "removed"),
  Digits: ({ individual_digits: alone }, chars) => split(chars, /\p{N}/gu, alone ? "isolated" : "contiguous"),
  FixedLength: ({ length }, chars) => split(chars, new RegExp(`.{1,${length}}`, "gsu")),
  Metaspace({ replacement = "▁", prepend_scheme: scheme = "always", split: splits = true }, chars) {
    let whole = mapped(chars, (char) => (char === " " ? replacement : char));
    const prefixes = scheme === "always" || (scheme === "first" && chars[0]?.[1] === 0);
    if (prefixes && whole[0]?.[0] !== replacement) whole = prepended(whole, replacement);
    return splits ? split(whole, regex({ String: replacement }), "mergedWithNext") : [whole];
  },
  Punctuation: ({ behavior }, chars) => split(chars, PUNCTUATION, behavior),
  Split: ({ pattern, behavior, invert }, chars) => split(chars, regex(pattern), behavior, invert),
  Whitespace: (_, chars) => split(chars, WORDS, "removed", true),
  WhitespaceSplit: (_, chars) => split(chars, /\p{White_Space}/gu, "removed"),
};

/** Cut characters by a pre-tokenizer of tokenizer.json. */
export function pieces(config, chars) {
  const parts = config == null ? [chars] : component(PRE_TOKENIZERS, "pre-tokenizer", config)(config, chars);
  return parts.filter((part) => part.length);
}
