/* The model of tokenizer.json, from words to ids; WordPiece and WordLevel are short enough to be
 * here. */
#include "tokenizer.h"

static bool add(ortolan_vocabulary *vocabulary, const char *text, int32_t id) {
  return ortolan_vocabulary_add(vocabulary, text, strlen(text), id) || ortolan_no_memory();
}

static bool read_vocabulary(ortolan_token_model *model, const json_value *value) {
  const json_value *entries = ortolan_object(value, "vocab");
  if (entries == NULL) return false;
  for (const json_value *item = entries->item; item != NULL; item = item->next) {
    if (!ortolan_is_id(item, 1 << 24)) return ortolan_invalid(value, "vocab", "ids below 2^24");
    if (!add(&model->vocabulary, item->key, (int32_t)item->integer)) return false;
  }
  return true;
}

/* Collect the pieces of WordPiece that continue a word. */
static bool read_continued(ortolan_token_model *model, const json_value *value) {
  const char *prefix = "";
  if (!ortolan_optional_string(value, "continuing_subword_prefix", &prefix)) return false;
  const json_value *item = ortolan_object(value, "vocab")->item;
  for (size_t size = strlen(prefix); item != NULL; item = item->next)
    if (strncmp(item->key, prefix, size) == 0 &&
        !add(&model->continued, item->key + size, (int32_t)item->integer))
      return false;
  return true;
}

static bool read_unknown(ortolan_token_model *model, const json_value *value) {
  const char *text = NULL;
  if (!ortolan_optional_string(value, "unk_token", &text)) return false;
  model->unknown =
      text == NULL ? -1 : ortolan_vocabulary_find(&model->vocabulary, text, strlen(text));
  return true;
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

static bool read_kind(ortolan_token_model *model, const json_value *value, const char *type) {
  static const char *const types[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
  const int kind = (int)ortolan_place(types, 4, type);
  model->kind = (ortolan_model_kind)kind;
  if (kind == ORTOLAN_UNIGRAM) return ortolan_unigram_read(model, value);
  if (kind == 4) return ortolan_unknown_part("model", type);
  if (!read_vocabulary(model, value) || !read_unknown(model, value)) return false;
  if (kind == ORTOLAN_BPE) return ortolan_bpe_read(model, value);
  int64_t most = 100;
  if (!ortolan_optional(value, "max_input_chars_per_word", 0, 100000, &most)) return false;
  model->most_characters = (size_t)most;
  return kind == ORTOLAN_WORDLEVEL || read_continued(model, value);
}

bool ortolan_token_model_read(ortolan_token_model *model, const json_value *root) {
  const json_value *value = ortolan_object(root, "model");
  if (value == NULL || !read_kind(model, value, type_of(value))) return false;
  if (!ortolan_flag(value, "fuse_unk", &model->fuses_unknown) ||
      !ortolan_flag(value, "byte_fallback", &model->has_bytes) ||
      !ortolan_flag(value, "ignore_merges", &model->prefers_whole))
    return false;
  for (int byte = 0; byte < 256; byte++) {
    static const char digits[] = "0123456789ABCDEF";
    const char text[] = {'<', '0', 'x', digits[byte / 16], digits[byte % 16], '>'};
    model->bytes[byte] = ortolan_vocabulary_find(&model->vocabulary, text, sizeof text);
  }
  return true;
}

void ortolan_token_model_free(ortolan_token_model *model) {
  ortolan_vocabulary_free(&model->vocabulary);
  ortolan_vocabulary_free(&model->continued);
  free(model->merges);
  free(model->scores);
  free(model->affix);
}

static bool wordpiece_encode(const ortolan_token_model *model, const char *text, size_t size,
                             ortolan_ids *ids) {
  size_t characters = 0, before = ids->count;
  for (size_t i = 0; i < size; i++) characters += ((unsigned char)text[i] & 0xC0) != 0x80;
  bool is_known = characters <= model->most_characters;
  for (size_t at = 0, length = 0; is_known && at < size; at += length) {
    const ortolan_vocabulary *vocabulary = at > 0 ? &model->continued : &model->vocabulary;
    int32_t id = ortolan_vocabulary_longest(vocabulary, text + at, size - at, &length);
    is_known = id >= 0;
    if (is_known) ortolan_ids_add(ids, id);
  }
  if (!is_known) ids->count = before, ortolan_ids_add(ids, model->unknown);
  return is_known || model->unknown >= 0;
}

bool ortolan_token_model_encode(const ortolan_token_model *model, const char *text, size_t size,
                                ortolan_ids *ids) {
  bool is_word = model->kind == ORTOLAN_WORDLEVEL || model->prefers_whole, ok = true;
  int32_t whole = is_word ? ortolan_vocabulary_find(&model->vocabulary, text, size) : -1;
  if (whole < 0 && model->kind == ORTOLAN_WORDLEVEL) whole = model->unknown;
  if (whole >= 0) ortolan_ids_add(ids, whole);
  else if (model->kind == ORTOLAN_BPE) ortolan_bpe_encode(model, text, size, ids);
  else if (model->kind == ORTOLAN_UNIGRAM) ok = ortolan_unigram_encode(model, text, size, ids);
  else ok = model->kind == ORTOLAN_WORDPIECE && wordpiece_encode(model, text, size, ids);
  return ok || ortolan_fail(ORTOLAN_TOKENIZER,
                            "The tokenizer does not know `%.*s`, and tokenizer.json has no token "
                            "for unknown text. Leave it out.",
                            (int)(size < 40 ? size : 40), text);
}
