/** Tokenizers against what Python computes; tests/hosts/test_js_tokenizers.py writes ORTOLAN_CASES. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import { TokenizerError } from "../src/errors.js";
import { Tokenizer } from "../src/tokenizer.js";

const ids = (tokens) => tokens.map(({ id }) => id);

for (const { name, file, size, rows, pairs } of JSON.parse(await readFile(process.env.ORTOLAN_CASES, "utf8"))) {
  const tokenizer = new Tokenizer(file, size);

  test(`${name}: texts`, () => {
    for (const { text, ...expected } of rows) {
      const bare = tokenizer.tokens(text, { special: false });
      const got = {
        ids: tokenizer.encode(text),
        bare: ids(bare),
        places: bare.map(({ start, end }) => [start, end]),
        continues: bare.map((token) => tokenizer.continuesWord(text, token)),
        decoded: tokenizer.decode(ids(bare)),
        cut: tokenizer.encode(text, { maxTokens: 5 }),
      };
      assert.deepEqual(got, expected, JSON.stringify(text));
    }
  });

  test(`${name}: pairs and windows`, () => {
    for (const { texts, most, ...expected } of pairs) {
      const pair = tokenizer.pair(...texts);
      const short = ids(tokenizer.pair(...texts, { maxTokens: 9 }));
      let windows;
      try {
        windows = tokenizer.windows(...texts, { maxTokens: most, stride: 2 });
        windows = windows.map((tokens) => ({ ids: ids(tokens), words: tokens.map(({ span }) => span ?? null) }));
      } catch (error) {
        windows = { error: error.message };
      }
      assert.deepEqual({ ids: ids(pair), types: pair.map(({ type }) => type), short, windows }, expected, JSON.stringify(texts));
    }
  });
}

test("texts and files that cannot be read are errors", () => {
  const words = { vocab: { a: 0, b: 1 }, type: "WordLevel", unk_token: "a" };
  const file = { model: words, normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, added_tokens: [] };
  const made = (change) => new Tokenizer({ ...file, ...change }, 2);
  assert.throws(() => made().encode("\ud83d"), { name: "TokenizerError", message: /half a surrogate pair at index 0/ });
  assert.throws(() => made().encode(3), TokenizerError);
  assert.throws(() => new Tokenizer(file, 1), { name: "TokenizerError", message: /ids up to 1/ });
  for (const part of ["normalizer", "pre_tokenizer"]) assert.throws(() => made({ [part]: { type: "Other" } }).encode("a"), TokenizerError);
});
