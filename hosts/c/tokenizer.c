/* tokenizer.json as a whole: reading it, and from texts to ids and back. */
#include "tokenizer.h"

#include <stdio.h>

struct ortolan_tokenizer {
  ortolan_unicode *unicode;
  ortolan_parts normalizer, pre_tokenizer, decoder;
  ortolan_token_model model;
  ortolan_added_tokens added;
  ortolan_template templates;
  bool has_decoder, has_byte_tokens;
  ortolan_stream_kind stream;
  int64_t vocab_size;
};

/* --- reading --- */

bool ortolan_unknown_part(const ortolan_fields *in, const char *what, const char *name) {
  return ortolan_fail(in->error, in->code,
                      "%s: this library does not know the %s `%.60s`. Use Ortolan's Python "
                      "runtime, or encode the text elsewhere and pass ids.",
                      in->file, what, name);
}

bool ortolan_flag(const json_value *object, const char *key, bool otherwise) {
  const json_value *value = ortolan_json_field(object, key);
  return value != NULL && value->type == JSON_BOOLEAN ? value->boolean : otherwise;
}

bool ortolan_part_text(ortolan_part *part, const json_value *value, const char *path,
                       const char *key, const ortolan_fields *in) {
  const char *text = ortolan_string(in, value, path, key);
  if (text == NULL) return false;
  part->size = strlen(text);
  part->text = malloc(part->size + 1);
  if (part->text == NULL) return ortolan_no_memory(in->error);
  memcpy(part->text, text, part->size + 1);
  return true;
}

/* Reject flags that are not true or false: ortolan_flag would take them for missing. */
static bool check_flags(const json_value *value, const char *path, const ortolan_fields *in) {
  static const char flags[] =
      " strip_left strip_right clean_text handle_chinese_chars strip_accents lowercase invert "
      "add_prefix_space use_regex trim_offsets split individual_digits cleanup single_word lstrip "
      "rstrip normalized special fuse_unk byte_fallback ignore_merges ";
  for (const json_value *item = value->item; item != NULL; item = item->next) {
    char word[40];
    if (item->type == JSON_BOOLEAN || item->type == JSON_NULL || item->key == NULL) continue;
    snprintf(word, sizeof word, " %.30s ", item->key);
    if (strstr(flags, word) != NULL)
      return ortolan_invalid(in, path, "one whose flags are true or false");
  }
  return true;
}

static bool read_part(ortolan_parts *parts, const json_value *value, const char *key,
                      const char *list, ortolan_read_part read, const ortolan_unicode *unicode,
                      const ortolan_fields *in) {
  const char *type = ortolan_string(in, value, key, "type");
  if (type == NULL) return false;
  if (strcmp(type, "Sequence") != 0) {
    if (parts->count == ORTOLAN_MAX_PARTS)
      return ortolan_unknown_part(in, key, "with so many parts");
    return check_flags(value, key, in) &&
           read(&parts->items[parts->count++], type, value, unicode, in);
  }
  const json_value *items = ortolan_array(in, value, key, list, ORTOLAN_MAX_PARTS);
  if (items == NULL) return false;
  /* no deeper than ORTOLAN_JSON_DEPTH */
  for (const json_value *item = items->item; item != NULL; item = item->next)
    if (!read_part(parts, item, key, list, read, unicode, in)) return false;
  return true;
}

bool ortolan_parts_read(ortolan_parts *parts, const json_value *root, const char *key,
                        const char *list, ortolan_read_part read, const ortolan_unicode *unicode,
                        const ortolan_fields *in) {
  const json_value *value = ortolan_json_field(root, key);
  return value == NULL || read_part(parts, value, key, list, read, unicode, in);
}

void ortolan_parts_free(ortolan_parts *parts) {
  for (size_t i = 0; i < parts->count; i++) {
    ortolan_pattern_free(&parts->items[i].pattern);
    ortolan_charsmap_free(parts->items[i].table);
    free(parts->items[i].text);
  }
}

static bool check_vocabulary(const ortolan_tokenizer *t, const ortolan_fields *in) {
  const ortolan_vocabulary *both[] = {&t->model.vocabulary, &t->added.contents};
  size_t size;
  for (int i = 0; i < 2; i++)
    for (size_t id = (size_t)t->vocab_size; id < both[i]->id_count; id++)
      if (ortolan_vocabulary_text(both[i], (int32_t)id, &size) != NULL)
        return ortolan_fail(in->error, in->code,
                            "%s has the id %zu, but the model has only %lld tokens. Use the "
                            "tokenizer of this model.",
                            in->file, id, (long long)t->vocab_size);
  return true;
}

static bool read_all(ortolan_tokenizer *t, const json_value *root, int64_t vocab_size,
                     const ortolan_fields *in) {
  const json_value *added = ortolan_json_field(root, "added_tokens");
  const json_value *model = ortolan_json_field(root, "model");
  if (root->type != JSON_OBJECT) return ortolan_invalid(in, "the document", "an object");
  for (const json_value *item = added == NULL ? NULL : added->item; item != NULL; item = item->next)
    if (!check_flags(item, "added_tokens", in)) return false;
  t->has_decoder = ortolan_json_field(root, "decoder") != NULL;
  if ((model != NULL && !check_flags(model, "model", in)) ||
      !ortolan_parts_read(&t->normalizer, root, "normalizer", "normalizers",
                          ortolan_read_normalizer, t->unicode, in) ||
      !ortolan_parts_read(&t->pre_tokenizer, root, "pre_tokenizer", "pretokenizers",
                          ortolan_read_pre_tokenizer, t->unicode, in) ||
      !ortolan_parts_read(&t->decoder, root, "decoder", "decoders", ortolan_read_decoder,
                          t->unicode, in) ||
      !ortolan_template_read(&t->templates, root, in) ||
      !ortolan_token_model_read(&t->model, root, in) ||
      !ortolan_added_read(&t->added, root, &t->model, &t->normalizer, t->unicode, in))
    return false;
  t->stream = ortolan_decoder_stream(&t->decoder, &t->has_byte_tokens);
  t->vocab_size = vocab_size;
  if (vocab_size > 0) return check_vocabulary(t, in);
  size_t most = t->model.vocabulary.id_count, more = t->added.contents.id_count;
  t->vocab_size = (int64_t)(most > more ? most : more);
  return true;
}

ortolan_tokenizer *ortolan_tokenizer_read(const char *json, size_t size, int64_t vocab_size,
                                          ortolan_error *error) {
  const ortolan_fields in = {.file = "tokenizer.json", .code = ORTOLAN_TOKENIZER, .error = error};
  ortolan_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
  ortolan_json *document = ortolan_document(&in, json, size);
  bool ok = document != NULL;
  if (ok) {
    ok = tokenizer != NULL && (tokenizer->unicode = ortolan_unicode_open()) != NULL;
    ok = ok ? read_all(tokenizer, ortolan_json_root(document), vocab_size, &in)
            : ortolan_no_memory(error);
  }
  ortolan_json_free(document);
  if (ok) return tokenizer;
  ortolan_tokenizer_close(tokenizer);
  return NULL;
}

ortolan_tokenizer *ortolan_tokenizer_open(const char *folder, ortolan_error *error) {
  size_t size;
  if (error != NULL) *error = (ortolan_error){.code = ORTOLAN_OK};
  char *json = ortolan_file_read(folder, "tokenizer.json", -1, ORTOLAN_MAX_TOKENIZER_BYTES, &size,
                                 error);
  if (json == NULL) return NULL;
  ortolan_tokenizer *tokenizer = ortolan_tokenizer_read(json, size, 0, error);
  free(json);
  return tokenizer;
}

void ortolan_tokenizer_close(ortolan_tokenizer *tokenizer) {
  if (tokenizer == NULL) return;
  ortolan_parts_free(&tokenizer->normalizer);
  ortolan_parts_free(&tokenizer->pre_tokenizer);
  ortolan_parts_free(&tokenizer->decoder);
  ortolan_token_model_free(&tokenizer->model);
  ortolan_added_free(&tokenizer->added);
  ortolan_unicode_close(tokenizer->unicode);
  free(tokenizer);
}

/* --- texts to ids --- */

/* Find the added tokens, and normalize what is between them. */
static bool extract(const ortolan_tokenizer *t, const char *text, size_t size,
                    ortolan_pieces *pieces, ortolan_error *error) {
  ortolan_pieces plain = {.count = 0};
  ortolan_text content = {.size = 0};
  bool ok = true;
  ortolan_added_split(&t->added, false, t->unicode, text, size, true, &plain);
  for (size_t i = 0; ok && i < plain.count; i++) {
    ortolan_piece piece = plain.items[i];
    const char *bytes = plain.text.bytes + piece.start;
    if (piece.token >= 0) {
      ortolan_pieces_add(pieces, bytes, piece.size, piece.token, false);
      continue;
    }
    content.size = 0;
    ortolan_text_add(&content, bytes, piece.size);
    ok = (!content.failed || ortolan_no_memory(error)) &&
         ortolan_normalize(&t->normalizer, t->unicode, &content, &piece.first, error);
    if (ok)
      ortolan_added_split(&t->added, true, t->unicode, content.bytes, content.size, piece.first,
                          pieces);
  }
  if (ok && (plain.text.failed || pieces->text.failed)) ok = ortolan_text_error(&plain.text, error);
  ortolan_pieces_free(&plain);
  free(content.bytes);
  return ok;
}

static bool encode_bare(const ortolan_tokenizer *t, const char *text, size_t size,
                        ortolan_ids *ids, ortolan_error *error) {
  ortolan_pieces pieces = {.count = 0};
  bool missing;
  size_t wrong, valid = ortolan_utf8_valid(text, size, &missing, &wrong);
  if (valid < size)
    return ortolan_fail(error, ORTOLAN_TOKENIZER,
                        "The text is not UTF-8 at byte %zu. Decode its source first.", valid);
  bool ok = extract(t, text, size, &pieces, error) &&
            ortolan_pre_tokenize(&t->pre_tokenizer, &pieces, error);
  for (size_t i = 0; ok && i < pieces.count; i++) {
    const ortolan_piece *piece = &pieces.items[i];
    if (piece->token >= 0) ortolan_ids_add(ids, piece->token);
    else ok = ortolan_token_model_encode(&t->model, pieces.text.bytes + piece->start, piece->size,
                                         ids, error);
  }
  ortolan_pieces_free(&pieces);
  return ok && (!ids->failed || ortolan_no_memory(error));
}

/* Shorten the longer text, at its end, until both fit; then both in turn. */
static void shorten(size_t *first, size_t *second, size_t most) {
  size_t shorter = *first < *second ? *first : *second, longer = *first + *second - shorter;
  bool swapped = *first > *second;
  if (shorter + longer <= most) return;
  longer = most > 2 * shorter ? most - shorter : shorter;
  if (shorter + longer > most) shorter = most / 2, longer = most - most / 2;
  *first = swapped ? longer : shorter;
  *second = swapped ? shorter : longer;
}

/* Shorten the ids of both texts so that they fit with the tokens around them. */
static bool fit(const ortolan_template_item *items, size_t count, bool pair, size_t max_tokens,
                ortolan_ids bare[2], ortolan_error *error) {
  size_t special = 0;
  for (size_t i = 0; i < count; i++) special += items[i].id >= 0;
  if (max_tokens == 0 || bare[0].count + bare[1].count + special <= max_tokens) return true;
  if (max_tokens < special + 1 + pair)
    return ortolan_fail(error, ORTOLAN_TOKENIZER,
                        "%zu tokens leave no room for text between the special tokens.",
                        max_tokens);
  if (pair) shorten(&bare[0].count, &bare[1].count, max_tokens - special);
  else bare[0].count = max_tokens - special;
  return true;
}

bool ortolan_tokenizer_encode(const ortolan_tokenizer *t, const char *first, size_t first_size,
                              const char *second, size_t second_size, bool special,
                              size_t max_tokens, ortolan_ids *ids, ortolan_ids *types,
                              ortolan_error *error) {
  bool pair = second != NULL;
  const ortolan_template_item *items = pair ? t->templates.pair : t->templates.single;
  size_t count = pair ? t->templates.pair_count : t->templates.single_count;
  ortolan_ids bare[2] = {{.count = 0}, {.count = 0}};
  bool ok = encode_bare(t, first, first_size, &bare[0], error) &&
            (!pair || encode_bare(t, second, second_size, &bare[1], error)) &&
            (special ? fit(items, count, pair, max_tokens, bare, error)
                     : fit(items, 0, pair, max_tokens, bare, error));
  for (size_t i = 0; ok && i < count; i++) {
    const ortolan_ids *text = &bare[items[i].id == -2];
    size_t length = items[i].id >= 0 ? special : text->count;
    for (size_t k = 0; k < length; k++) {
      ortolan_ids_add(ids, items[i].id >= 0 ? items[i].id : text->items[k]);
      if (types != NULL) ortolan_ids_add(types, items[i].type);
    }
  }
  free(bare[0].items);
  free(bare[1].items);
  if (ok && (ids->failed || (types != NULL && types->failed))) ok = ortolan_no_memory(error);
  for (size_t i = 0; ok && i < ids->count; i++)
    if (ids->items[i] >= t->vocab_size)
      ok = ortolan_fail(error, ORTOLAN_TOKENIZER,
                        "The tokenizer returned the id %ld, but the vocabulary ends at %lld. "
                        "tokenizer.json belongs to another model.",
                        (long)ids->items[i], (long long)t->vocab_size - 1);
  return ok;
}

void ortolan_tokenizer_strip(const ortolan_tokenizer *tokenizer, const char **text, size_t *size,
                             bool start, bool end) {
  size_t before;
  do { /* Python counts four more control characters as white space */
    before = *size;
    ortolan_strip(tokenizer->unicode, text, size, start, end);
    if (start && *size > 0 && **text >= 0x1C && **text <= 0x1F) (*text)++, (*size)--;
    if (end && *size > 0 && (*text)[*size - 1] >= 0x1C && (*text)[*size - 1] <= 0x1F) (*size)--;
  } while (*size != before);
}

bool ortolan_tokenizer_control(const ortolan_tokenizer *t, const ortolan_text *text,
                               const char *own, const int32_t *more, size_t more_count,
                               int32_t *token, ortolan_error *error) {
  ortolan_pieces pieces = {.count = 0};
  for (int normalized = 0; normalized < 2; normalized++) {
    ortolan_pieces_clear(&pieces); /* which join to the text */
    ortolan_added_split(&t->added, normalized, t->unicode, text->bytes, text->size, true, &pieces);
    for (size_t i = 0; i < pieces.count; i++) {
      const ortolan_piece *piece = &pieces.items[i];
      bool is_control = piece->token >= 0 && ortolan_added_special(&t->added, piece->token);
      for (size_t k = 0; k < more_count; k++) is_control |= more[k] == piece->token;
      const char *start = text->bytes + piece->start;
      size_t size = piece->size;
      if (!is_control) continue;
      ortolan_strip(t->unicode, &start, &size, true, true);
      if (memchr(own + (start - text->bytes), 1, size) != NULL) *token = piece->token;
    }
  }
  bool ok = !pieces.text.failed || ortolan_no_memory(error);
  ortolan_pieces_free(&pieces);
  return ok;
}

static bool write_ids(bool ok, ortolan_ids *from, int32_t *to, size_t capacity, size_t *count) {
  size_t written = from->count < capacity ? from->count : capacity;
  if (ok && to != NULL && written > 0) memcpy(to, from->items, written * sizeof *to);
  if (ok && count != NULL) *count = from->count;
  free(from->items);
  return ok;
}

bool ortolan_encode(const ortolan_tokenizer *tokenizer, const char *text, size_t size,
                    bool special_tokens, size_t max_tokens, int32_t *ids, size_t capacity,
                    size_t *count, ortolan_error *error) {
  ortolan_ids encoded = {.count = 0};
  if (error != NULL) *error = (ortolan_error){.code = ORTOLAN_OK};
  bool ok = ortolan_tokenizer_encode(tokenizer, text, size, NULL, 0, special_tokens, max_tokens,
                                     &encoded, NULL, error);
  return write_ids(ok, &encoded, ids, capacity, count);
}

bool ortolan_encode_pair(const ortolan_tokenizer *tokenizer, const char *first, size_t first_size,
                         const char *second, size_t second_size, size_t max_tokens, int32_t *ids,
                         int32_t *types, size_t capacity, size_t *count, ortolan_error *error) {
  ortolan_ids encoded = {.count = 0}, kinds = {.count = 0};
  if (error != NULL) *error = (ortolan_error){.code = ORTOLAN_OK};
  bool ok = ortolan_tokenizer_encode(tokenizer, first, first_size, second, second_size, true,
                                     max_tokens, &encoded, &kinds, error);
  write_ids(ok, &kinds, types, capacity, NULL);
  return write_ids(ok, &encoded, ids, capacity, count);
}

/* --- ids to texts --- */

/* The text of a token, or NULL for one without. */
static const char *shown(const ortolan_tokenizer *t, int32_t id, bool skip_special, size_t *size) {
  if (skip_special && ortolan_added_special(&t->added, id)) return NULL;
  const char *text = ortolan_vocabulary_text(&t->added.shown, id, size);
  return text != NULL ? text : ortolan_vocabulary_text(&t->model.vocabulary, id, size);
}

static bool check_id(const ortolan_tokenizer *t, int32_t id, ortolan_error *error) {
  return (id >= 0 && id < t->vocab_size) ||
         ortolan_fail(error, ORTOLAN_TOKENIZER, "Token ids must be from 0 to %lld (got %ld).",
                      (long long)t->vocab_size - 1, (long)id);
}

static bool decode(const ortolan_tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                   ortolan_text *to, ortolan_error *error) {
  ortolan_pieces pieces = {.count = 0};
  bool ok = true;
  for (size_t i = 0; ok && i < count; i++) {
    size_t size;
    ok = check_id(t, ids[i], error);
    const char *text = ok ? shown(t, ids[i], skip_special, &size) : NULL;
    if (text != NULL) ortolan_pieces_add(&pieces, text, size, 0, false);
  }
  if (ok && pieces.text.failed) ok = ortolan_text_error(&pieces.text, error);
  ok = ok && ortolan_decode_pieces(&t->decoder, t->has_decoder, &pieces, to, error);
  ortolan_pieces_free(&pieces);
  return ok;
}

bool ortolan_decode(const ortolan_tokenizer *tokenizer, const int32_t *ids, size_t count,
                    bool skip_special, char *text, size_t capacity, size_t *size,
                    ortolan_error *error) {
  ortolan_text decoded = {.size = 0};
  if (error != NULL) *error = (ortolan_error){.code = ORTOLAN_OK};
  bool ok = decode(tokenizer, ids, count, skip_special, &decoded, error);
  if (ok) ortolan_text_copy(&decoded, text, capacity, size);
  free(decoded.bytes);
  return ok;
}

/* --- streams --- */

struct ortolan_stream {
  const ortolan_tokenizer *tokenizer;
  bool skip_special;
  ortolan_text piece, bytes; /* what the last call returned; bytes of an incomplete character */
  ortolan_ids held;          /* the token before, if there is one, and those that wait */
  size_t before;             /* 0 or 1 */
};

ortolan_stream *ortolan_stream_open(const ortolan_tokenizer *tokenizer, bool skip_special,
                                    ortolan_error *error) {
  ortolan_stream *stream = calloc(1, sizeof *stream);
  if (error != NULL) *error = (ortolan_error){.code = ORTOLAN_OK};
  if (stream == NULL) ortolan_no_memory(error);
  else stream->tokenizer = tokenizer, stream->skip_special = skip_special;
  return stream;
}

void ortolan_stream_close(ortolan_stream *stream) {
  if (stream == NULL) return;
  free(stream->piece.bytes);
  free(stream->bytes.bytes);
  free(stream->held.items);
  free(stream);
}

/* Move complete characters from `bytes` to `piece`; broken ones become U+FFFD. */
static void assemble(ortolan_stream *stream, bool is_end) {
  size_t at = 0, wrong = 0;
  bool missing;
  while (at < stream->bytes.size) {
    const char *bytes = stream->bytes.bytes + at;
    size_t valid = ortolan_utf8_valid(bytes, stream->bytes.size - at, &missing, &wrong);
    ortolan_text_add(&stream->piece, bytes, valid);
    at += valid;
    if (at == stream->bytes.size || (missing && !is_end)) break;
    ortolan_text_point(&stream->piece, 0xFFFD);
    at += wrong;
  }
  stream->bytes.size -= at;
  if (at > 0) memmove(stream->bytes.bytes, stream->bytes.bytes + at, stream->bytes.size);
}

/* Decode the tokens that wait; what the one before them adds is left out. */
static bool release(ortolan_stream *stream, ortolan_error *error) {
  const ortolan_tokenizer *t = stream->tokenizer;
  ortolan_text all = {.size = 0}, start = {.size = 0};
  size_t characters = 0, at = 0;
  bool ok = decode(t, stream->held.items, stream->held.count, false, &all, error) &&
            decode(t, stream->held.items, stream->before, false, &start, error);
  for (size_t i = 0; ok && i < start.size; i++)
    characters += ((unsigned char)start.bytes[i] & 0xC0) != 0x80;
  for (uint32_t point; ok && characters > 0 && at < all.size; characters--)
    at += ortolan_utf8_read(all.bytes + at, &point);
  if (ok) ortolan_text_add(&stream->piece, all.size > 0 ? all.bytes + at : "", all.size - at);
  free(all.bytes);
  free(start.bytes);
  return ok;
}

static bool finish_piece(ortolan_stream *stream, bool ok, const char **text, size_t *size,
                         ortolan_error *error) {
  ortolan_text_add(&stream->piece, "", 0);
  if (ok && (stream->piece.failed || stream->bytes.failed || stream->held.failed))
    ok = ortolan_text_error(&stream->piece, error);
  *text = ok ? stream->piece.bytes : "";
  *size = ok ? stream->piece.size : 0;
  return ok;
}

bool ortolan_stream_push(ortolan_stream *stream, int32_t token, const char **text, size_t *size,
                         ortolan_error *error) {
  const ortolan_tokenizer *t = stream->tokenizer;
  size_t length;
  int byte;
  stream->piece.size = 0;
  if (!check_id(t, token, error)) return finish_piece(stream, false, text, size, error);
  const char *entry = shown(t, token, stream->skip_special, &length);
  if (entry == NULL) return finish_piece(stream, true, text, size, error);
  if (t->stream == ORTOLAN_STREAM_BYTES) {
    ortolan_spelled_bytes(&stream->bytes, entry, length);
    assemble(stream, false);
    return finish_piece(stream, true, text, size, error);
  }
  ortolan_ids_add(&stream->held, token);
  bool waits = t->stream == ORTOLAN_STREAM_WHOLE ||
               (t->has_byte_tokens && ortolan_is_byte_token(entry, length, &byte));
  bool ok = waits || stream->held.failed || release(stream, error);
  if (ok && !waits && !stream->held.failed) {
    stream->held.items[0] = token;
    stream->held.count = stream->before = 1;
  }
  return finish_piece(stream, ok, text, size, error);
}

bool ortolan_stream_flush(ortolan_stream *stream, const char **text, size_t *size,
                          ortolan_error *error) {
  stream->piece.size = 0;
  assemble(stream, true);
  bool ok = stream->held.count == stream->before || release(stream, error);
  stream->held.count = stream->before = 0;
  return finish_piece(stream, ok, text, size, error);
}
