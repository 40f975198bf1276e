/* The model of tokenizer.json, from words to ids; WordPiece and WordLevel are short enough to be
 * here. */
#include "tokenizer.h"

#define MAX_AFFIX_BYTES 64

static bool read_vocabulary(ortolan_token_model *model, const json_value *value,
                            const ortolan_fields *in) {
  const json_value *entries = ortolan_object(in, value, "model", "vocab");
  if (entries == NULL) return false;
  for (const json_value *item = entries->item; item != NULL; item = item->next) {
    if (!item->is_integer || item->integer < 0 || item->integer >= 1 << 24)
      return ortolan_invalid(in, "model.vocab", "ids below 2^24");
    if (!ortolan_vocabulary_add(&model->vocabulary, item->key, strlen(item->key),
                                (int32_t)item->integer))
      return ortolan_no_memory(in->error);
  }
  return true;
}

static bool read_unknown(ortolan_token_model *model, const json_value *value,
                         const ortolan_fields *in) {
  model->unknown = -1;
  if (ortolan_json_field(value, "unk_token") == NULL) return true;
  const char *text = ortolan_string(in, value, "model", "unk_token");
  if (text == NULL) return false;
  model->unknown = ortolan_vocabulary_find(&model->vocabulary, text, strlen(text));
  return true;
}

static bool read_affix(ortolan_token_model *model, const json_value *value, const char *key,
                       const ortolan_fields *in) {
  ortolan_part part = {.size = 0};
  if (ortolan_json_field(value, key) == NULL) return true;
  if (!ortolan_part_text(&part, value, "model", key, in)) return false;
  model->affix = part.text, model->affix_size = part.size;
  return part.size <= MAX_AFFIX_BYTES || ortolan_invalid(in, "model", "one with a short affix");
}

/* Old files do not name the type. */
static const char *type_of(const json_value *value) {
  const json_value *type = ortolan_json_field(value, "type");
  const json_value *vocabulary = ortolan_json_field(value, "vocab");
  if (type != NULL && type->type == JSON_STRING) return type->string;
  if (ortolan_json_field(value, "merges") != NULL) return "BPE";
  if (vocabulary != NULL && vocabulary->type == JSON_ARRAY) return "Unigram";
  return ortolan_json_field(value, "continuing_subword_prefix") ? "WordPiece" : "WordLevel";
}

static bool read_kind(ortolan_token_model *model, const json_value *value, const char *type,
                      const ortolan_fields *in) {
  static const char *const types[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
  int kind = 0;
  while (kind < 4 && strcmp(types[kind], type) != 0) kind++;
  model->kind = (ortolan_model_kind)kind;
  if (kind == ORTOLAN_UNIGRAM) return ortolan_unigram_read(model, value, in);
  if (kind == 4) return ortolan_unknown_part(in, "model", type);
  if (!read_vocabulary(model, value, in) || !read_unknown(model, value, in)) return false;
  if (kind == ORTOLAN_BPE)
    return read_affix(model, value, "end_of_word_suffix", in) && ortolan_bpe_read(model, value, in);
  int64_t most = 100;
  if (ortolan_json_field(value, "max_input_chars_per_word") != NULL &&
      !ortolan_integer(in, value, "model", "max_input_chars_per_word", 0, 100000, &most))
    return false;
  model->most_characters = (size_t)most;
  return kind == ORTOLAN_WORDLEVEL || read_affix(model, value, "continuing_subword_prefix", in);
}

bool ortolan_token_model_read(ortolan_token_model *model, const json_value *root,
                              const ortolan_fields *in) {
  const json_value *value = ortolan_object(in, root, "", "model");
  if (value == NULL || !read_kind(model, value, type_of(value), in)) return false;
  model->fuses_unknown = ortolan_flag(value, "fuse_unk", false);
  model->has_bytes = ortolan_flag(value, "byte_fallback", false);
  model->prefers_whole = ortolan_flag(value, "ignore_merges", false);
  for (int byte = 0; byte < 256; byte++) {
    static const char digits[] = "0123456789ABCDEF";
    const char text[] = {'<', '0', 'x', digits[byte / 16], digits[byte % 16], '>'};
    model->bytes[byte] = ortolan_vocabulary_find(&model->vocabulary, text, sizeof text);
  }
  return true;
}

void ortolan_token_model_free(ortolan_token_model *model) {
  ortolan_vocabulary_free(&model->vocabulary);
  free(model->merges);
  free(model->scores);
  free(model->affix);
}

/* The longest entry that a word goes on with: its id and end, or -1. */
static int32_t longest(const ortolan_token_model *model, const char *text, size_t size,
                       size_t start, size_t *end) {
  const ortolan_vocabulary *vocabulary = &model->vocabulary;
  uint32_t hash = ORTOLAN_HASH, point;
  int32_t best = -1;
  char joined[1024];
  size_t prefix = start > 0 ? model->affix_size : 0;
  if (prefix > 0) memcpy(joined, model->affix, prefix);
  hash = ortolan_hash(hash, joined, prefix);
  for (size_t at = start, width; at < size; at += width) {
    width = ortolan_utf8_read(text + at, &point);
    size_t length = prefix + at + width - start;
    if (length > sizeof joined || length > vocabulary->longest) break;
    memcpy(joined + length - width, text + at, width);
    hash = ortolan_hash(hash, text + at, width);
    int32_t id = ortolan_vocabulary_lookup(vocabulary, hash, joined, length);
    if (id >= 0) best = id, *end = at + width;
  }
  return best;
}

static bool wordpiece_encode(const ortolan_token_model *model, const char *text, size_t size,
                             ortolan_ids *ids) {
  size_t characters = 0, before = ids->count;
  for (size_t i = 0; i < size; i++) characters += ((unsigned char)text[i] & 0xC0) != 0x80;
  bool is_known = characters <= model->most_characters;
  for (size_t start = 0, end = 0; is_known && start < size; start = end) {
    int32_t id = longest(model, text, size, start, &end);
    is_known = id >= 0;
    if (is_known) ortolan_ids_add(ids, id);
  }
  if (is_known) return true;
  ids->count = before;
  ortolan_ids_add(ids, model->unknown);
  return model->unknown >= 0;
}

bool ortolan_token_model_encode(const ortolan_token_model *model, const char *text, size_t size,
                                ortolan_ids *ids, ortolan_error *error) {
  bool ok = true;
  if (model->kind == ORTOLAN_BPE) {
    ortolan_bpe_encode(model, text, size, ids);
  } else if (model->kind == ORTOLAN_UNIGRAM) {
    ok = ortolan_unigram_encode(model, text, size, ids);
  } else if (model->kind == ORTOLAN_WORDPIECE) {
    ok = wordpiece_encode(model, text, size, ids);
  } else {
    int32_t id = ortolan_vocabulary_find(&model->vocabulary, text, size);
    ok = id >= 0 || model->unknown >= 0;
    ortolan_ids_add(ids, id >= 0 ? id : model->unknown);
  }
  return ok || ortolan_fail(error, ORTOLAN_TOKENIZER,
                            "The tokenizer does not know `%.*s`, and tokenizer.json has no token "
                            "for unknown text. Leave it out.",
                            (int)(size < 40 ? size : 40), text);
}
