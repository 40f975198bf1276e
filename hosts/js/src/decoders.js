/** Decoders of tokenizer.json: from entries of the vocabulary to text. */

import { BYTES, component, regex } from "./aligned.js";

const CODES = new Map(BYTES.map((char, byte) => [char, byte]));

const utf8 = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));

const CLEANED = [[/ \./g, "."], [/ \?/g, "?"], [/ !/g, "!"], [/ ,/g, ","], [/ ' /g, "'"], [/ n't/g, "n't"], [/ 'm/g, "'m"], [/ do not/g, " don't"], [/ 's/g, "'s"], [/ 've/g, "'ve"], [/ 're/g, "'re"]];

const cleaned = (text) => CLEANED.reduce((all, [pattern, content]) => all.replace(pattern, content), text);

/** Bytes such as `<0x0A>` as text; those that are not UTF-8 become U+FFFD, one for each. */
function unspelled(entries) {
  const result = [];
  let bytes = [];
  const flush = () => {
    const text = utf8(bytes);
    result.push(...(text.includes("\ufffd") ? bytes.map(() => "\ufffd") : bytes.length ? [text] : []));
    bytes = [];
  };
  for (const entry of entries) {
    const [, byte] = /^<0x([0-9A-Fa-f]{2})>$/.exec(entry) ?? [];
    if (byte) bytes.push(parseInt(byte, 16));
    else {
      flush();
      result.push(entry);
    }
  }
  flush();
  return result;
}

/** Remove up to a number of characters from the ends of an entry. */
function stripped({ content, start, stop }, entry) {
  const chars = Array.from(entry);
  for (let count = 0; count < start && chars[0] === content; count++) chars.shift();
  for (let count = 0; count < stop && chars.at(-1) === content; count++) chars.pop();
  return chars.join("");
}

const DECODERS = {
  Sequence: ({ decoders }, entries) => decoders.reduce((all, one) => decoded(one, all), entries),
  ByteLevel: (_, entries) => {
    const bytes = entries.flatMap((entry) => {
      const own = Array.from(entry, (char) => CODES.get(char));
      return own.includes(undefined) ? Array.from(new TextEncoder().encode(entry)) : own;
    });
    return [utf8(bytes)];
  },
  WordPiece: ({ prefix, cleanup }, entries) =>
    entries.map((entry, index) => {
      const text = !index ? entry : entry.startsWith(prefix) ? entry.slice(prefix.length) : ` ${entry}`;
      return cleanup ? cleaned(text) : text;
    }),
  Metaspace: ({ replacement, prepend_scheme: scheme }, entries) =>
    entries.map((entry, index) =>
      Array.from(entry, (char, at) => (char !== replacement ? char : !index && !at && scheme !== "never" ? "" : " ")).join(""),
    ),
  BPEDecoder: ({ suffix }, entries) =>
    entries.map((entry, index) => entry.replaceAll(suffix, index === entries.length - 1 ? "" : " ")),
  CTC: ({ pad_token: pad, word_delimiter_token: space, cleanup }, entries) =>
    entries
      .filter((entry, index) => entry !== entries[index - 1])
      .map((entry) => (cleanup ? cleaned(entry.replaceAll(pad, "")).replaceAll(space, " ") : entry.replaceAll(pad, "")))
      .filter((entry) => entry),
  Replace: ({ pattern, content }, entries) => entries.map((entry) => entry.replace(regex(pattern), () => content)),
  Fuse: (_, entries) => [entries.join("")],
  Strip: (config, entries) => entries.map((entry) => stripped(config, entry)),
  ByteFallback: (_, entries) => unspelled(entries),
};

const decoded = (config, entries) => component(DECODERS, "decoder", config)(config, entries);

/** The text of entries; without a decoder, spaces are between them. */
export function spelledOut(decoder, entries) {
  return decoder == null ? entries.join(" ") : decoded(decoder, entries).join("");
}
