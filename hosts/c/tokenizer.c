/* tokenizer.json as a whole: reading it, and from texts to ids and back. */
#include "tokenizer.h"

#include <stdio.h>

struct ortolan_tokenizer {
  ortolan_parts normalizer, pre_tokenizer, decoder;
  ortolan_token_model model;
  ortolan_added_tokens added;
  ortolan_template templates;
  bool has_decoder, has_byte_tokens;
  ortolan_stream_kind stream;
  int64_t vocab_size;
};

/* --- reading --- */

bool ortolan_unknown_part(const char *what, const char *name) {
  return ortolan_fail(ORTOLAN_TOKENIZER,
                      "tokenizer.json: this library does not know the %s `%.60s`. Use Ortolan's "
                      "Python runtime, or encode the text elsewhere and pass ids.",
                      what, name);
}

bool ortolan_copy(const char *text, char **copy, size_t *size) {
  if (text == NULL) return false;
  *size = strlen(text);
  *copy = malloc(*size + 1);
  if (*copy == NULL) return ortolan_no_memory();
  memcpy(*copy, text, *size + 1);
  return true;
}

ortolan_part *ortolan_part_add(ortolan_parts *parts, int kind) {
  ortolan_part *part = &parts->items[parts->count++];
  part->kind = kind;
  return part;
}

ortolan_part *ortolan_part_read(ortolan_parts *parts, const ortolan_part_kind *kinds, size_t count,
                                const char *what, const json_value *value) {
  const char *type = ortolan_string(value, "type");
  size_t place = 0;
  while (place < count && strcmp(kinds[place].type, type) != 0) place++;
  if (place == count) return ortolan_unknown_part(what, type), NULL;
  const ortolan_part_kind *kind = &kinds[place];
  ortolan_part *part = ortolan_part_add(parts, (int)place);
  for (size_t i = 0; i < 4 && kind->flags[i] != NULL; i++) {
    part->flags[i] = kind->flags[i][0] != '!';
    if (!ortolan_flag(value, kind->flags[i] + !part->flags[i], &part->flags[i])) return NULL;
  }
  bool ok = (!kind->has_pattern || ortolan_pattern_read(&part->pattern, value)) &&
            (kind->text == NULL ||
             ortolan_copy(ortolan_string(value, kind->text), &part->text, &part->size));
  return ok ? part : NULL;
}

typedef bool (*part_reader)(ortolan_parts *parts, const json_value *value);

/* Read a part and, in the order in which they run, those of a Sequence. `key` names the field, and
 * `list` the one of a Sequence. */
static bool read_part(ortolan_parts *parts, const json_value *value, const char *key,
                      const char *list, part_reader read) {
  if (value == NULL) return true;
  const char *type = ortolan_string(value, "type");
  if (type == NULL) return false;
  if (strcmp(type, "Sequence") != 0) {
    if (parts->count > ORTOLAN_MAX_PARTS - ORTOLAN_MAX_STEPS)
      return ortolan_unknown_part(key, "with so many parts");
    return read(parts, value);
  }
  const json_value *items = ortolan_array(value, list, ORTOLAN_MAX_PARTS);
  if (items == NULL) return false;
  /* no deeper than ORTOLAN_JSON_DEPTH */
  for (const json_value *item = items->item; item != NULL; item = item->next)
    if (!read_part(parts, item, key, list, read)) return false;
  return true;
}

static void free_parts(ortolan_parts *parts) {
  for (size_t i = 0; i < parts->count; i++) {
    ortolan_pattern_free(&parts->items[i].pattern);
    free(parts->items[i].text);
  }
}

/* Check all ids, or choose the size of a vocabulary that no model has. */
static bool check_ids(ortolan_tokenizer *t, int64_t vocab_size) {
  size_t most = t->model.vocabulary.id_count;
  if (most < t->added.contents.id_count) most = t->added.contents.id_count;
  for (int pair = 0; pair < 2; pair++)
    for (size_t i = 0; i < t->templates.counts[pair]; i++)
      if (t->templates.items[pair][i].id >= (int32_t)most)
        most = (size_t)t->templates.items[pair][i].id + 1;
  t->vocab_size = vocab_size > 0 ? vocab_size : (int64_t)most;
  return (int64_t)most <= t->vocab_size ||
         ortolan_fail(ORTOLAN_TOKENIZER,
                      "tokenizer.json has the id %zu, but the model has only %lld tokens. "
                      "Use the tokenizer of this model.",
                      most - 1, (long long)vocab_size);
}

static bool read_all(ortolan_tokenizer *t, const json_value *root, int64_t vocab_size) {
  t->has_decoder = ortolan_json_field(root, "decoder") != NULL;
  if (!read_part(&t->normalizer, ortolan_json_field(root, "normalizer"), "normalizer",
                 "normalizers", ortolan_read_normalizer) ||
      !read_part(&t->pre_tokenizer, ortolan_json_field(root, "pre_tokenizer"), "pre_tokenizer",
                 "pretokenizers", ortolan_read_pre_tokenizer) ||
      !read_part(&t->decoder, ortolan_json_field(root, "decoder"), "decoder", "decoders",
                 ortolan_read_decoder) ||
      !ortolan_template_read(&t->templates, root) || !ortolan_token_model_read(&t->model, root) ||
      !ortolan_added_read(&t->added, root, &t->model, &t->normalizer))
    return false;
  t->stream = ortolan_decoder_stream(&t->decoder, &t->has_byte_tokens);
  return check_ids(t, vocab_size);
}

ortolan_tokenizer *ortolan_tokenizer_read(const char *json, size_t size, int64_t vocab_size) {
  ortolan_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
  ortolan_json *document = ortolan_json_read(ORTOLAN_TOKENIZER, "tokenizer.json", json, size);
  bool ok = document != NULL && (tokenizer != NULL || ortolan_no_memory()) &&
            read_all(tokenizer, &document->root, vocab_size);
  ortolan_json_free(document);
  if (ok) return tokenizer;
  ortolan_tokenizer_close(tokenizer);
  return NULL;
}

ortolan_tokenizer *ortolan_tokenizer_open(const char *folder, ortolan_error *error) {
  const ortolan_file file = {.name = "tokenizer.json", .size = -1};
  ortolan_tokenizer *tokenizer = NULL;
  char *json = NULL;
  size_t size;
  if (ortolan_file_read(folder, &file, ORTOLAN_MAX_TOKENIZER_BYTES, &json, &size))
    tokenizer = ortolan_tokenizer_read(json, size, 0);
  free(json);
  ortolan_done(tokenizer != NULL, error);
  return tokenizer;
}

void ortolan_tokenizer_close(ortolan_tokenizer *tokenizer) {
  if (tokenizer == NULL) return;
  free_parts(&tokenizer->normalizer);
  free_parts(&tokenizer->pre_tokenizer);
  free_parts(&tokenizer->decoder);
  ortolan_token_model_free(&tokenizer->model);
  ortolan_added_free(&tokenizer->added);
  free(tokenizer);
}

/* --- texts to ids --- */

/* Find the added tokens, and normalize what is between them. */
static bool extract(const ortolan_tokenizer *t, const char *text, size_t size,
                    ortolan_pieces *pieces) {
  ortolan_pieces plain = {.count = 0};
  ortolan_text content = {.size = 0};
  bool ok = true;
  ortolan_added_split(&t->added, false, text, size, true, &plain);
  for (size_t i = 0; ok && i < plain.count; i++) {
    ortolan_piece piece = plain.items[i];
    const char *bytes = plain.text.bytes + piece.start;
    if (piece.token >= 0) {
      ortolan_pieces_add(pieces, bytes, piece.size, piece.token, false);
      continue;
    }
    content.size = 0;
    ortolan_text_add(&content, bytes, piece.size);
    ok = (!content.failed || ortolan_no_memory()) &&
         ortolan_normalize(&t->normalizer, &content, &piece.first);
    if (ok) ortolan_added_split(&t->added, true, content.bytes, content.size, piece.first, pieces);
  }
  if (ok && (plain.text.failed || pieces->text.failed)) ok = ortolan_text_error(&plain.text);
  ortolan_pieces_free(&plain);
  free(content.bytes);
  return ok;
}

static bool encode_bare(const ortolan_tokenizer *t, const char *text, size_t size,
                        ortolan_ids *ids) {
  ortolan_pieces pieces = {.count = 0};
  bool missing;
  size_t wrong, valid = ortolan_utf8_valid(text, size, &missing, &wrong);
  if (valid < size)
    return ortolan_fail(ORTOLAN_TOKENIZER,
                        "The text is not UTF-8 at byte %zu. Decode its source first.", valid);
  bool ok = extract(t, text, size, &pieces) && ortolan_pre_tokenize(&t->pre_tokenizer, &pieces);
  for (size_t i = 0; ok && i < pieces.count; i++) {
    const ortolan_piece *piece = &pieces.items[i];
    if (piece->token >= 0) ortolan_ids_add(ids, piece->token);
    else
      ok =
          ortolan_token_model_encode(&t->model, pieces.text.bytes + piece->start, piece->size, ids);
  }
  ortolan_pieces_free(&pieces);
  return ok && (!ids->failed || ortolan_no_memory());
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

size_t ortolan_tokenizer_added(const ortolan_tokenizer *t, bool pair) {
  size_t added = 0;
  for (size_t i = 0; i < t->templates.counts[pair]; i++)
    added += t->templates.items[pair][i].id >= 0;
  return added;
}

/* Shorten the ids of both texts so that they fit with the tokens around them. */
static bool fit(size_t added, bool pair, size_t max_tokens, ortolan_ids bare[2]) {
  if (max_tokens == 0 || bare[0].count + bare[1].count + added <= max_tokens) return true;
  if (max_tokens < added + 1 + pair)
    return ortolan_fail(ORTOLAN_TOKENIZER,
                        "%zu tokens leave no room for text between the special tokens.",
                        max_tokens);
  if (pair) shorten(&bare[0].count, &bare[1].count, max_tokens - added);
  else bare[0].count = max_tokens - added;
  return true;
}

bool ortolan_tokenizer_encode(const ortolan_tokenizer *t, ortolan_input input, bool special,
                              size_t max_tokens, ortolan_ids *ids, ortolan_ids *types) {
  bool pair = input.second != NULL;
  const ortolan_template_item *items = t->templates.items[pair];
  ortolan_ids bare[2] = {{.count = 0}, {.count = 0}};
  bool ok = encode_bare(t, input.text, input.size, &bare[0]) &&
            (!pair || encode_bare(t, input.second, input.second_size, &bare[1])) &&
            fit(special ? ortolan_tokenizer_added(t, pair) : 0, pair, max_tokens, bare);
  for (size_t i = 0; ok && i < t->templates.counts[pair]; i++) {
    const ortolan_ids *text = &bare[items[i].id == -2];
    size_t length = items[i].id >= 0 ? special : text->count;
    for (size_t k = 0; k < length; k++) {
      ortolan_ids_add(ids, items[i].id >= 0 ? items[i].id : text->items[k]);
      if (types != NULL) ortolan_ids_add(types, items[i].type);
    }
  }
  free(bare[0].items);
  free(bare[1].items);
  if (ok && (ids->failed || (types != NULL && types->failed))) ok = ortolan_no_memory();
  return ok;
}

bool ortolan_tokenizer_control(const ortolan_tokenizer *t, const ortolan_text *text,
                               const char *own, const int32_t *more, size_t more_count,
                               int32_t *token) {
  ortolan_pieces pieces = {.count = 0};
  for (int normalized = 0; normalized < 2; normalized++) {
    pieces.count = pieces.text.size = 0; /* they join to the text */
    ortolan_added_split(&t->added, normalized, text->bytes, text->size, true, &pieces);
    for (size_t i = 0; i < pieces.count; i++) {
      const ortolan_piece *piece = &pieces.items[i];
      bool is_control = piece->token >= 0 && ortolan_added_special(&t->added, piece->token);
      for (size_t k = 0; k < more_count; k++) is_control |= more[k] == piece->token;
      const char *start = text->bytes + piece->start;
      size_t size = piece->size;
      if (!is_control) continue;
      ortolan_strip(&start, &size, true, true);
      if (memchr(own + (start - text->bytes), 1, size) != NULL) *token = piece->token;
    }
  }
  bool ok = !pieces.text.failed || ortolan_no_memory();
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
  const ortolan_input input = {.text = text, .size = size};
  bool ok = ortolan_tokenizer_encode(tokenizer, input, special_tokens, max_tokens, &encoded, NULL);
  return ortolan_done(write_ids(ok, &encoded, ids, capacity, count), error);
}

bool ortolan_encode_pair(const ortolan_tokenizer *tokenizer, const char *first, size_t first_size,
                         const char *second, size_t second_size, size_t max_tokens, int32_t *ids,
                         int32_t *types, size_t capacity, size_t *count, ortolan_error *error) {
  ortolan_ids encoded = {.count = 0}, kinds = {.count = 0};
  const ortolan_input input = {first, first_size, second, second_size};
  bool ok = ortolan_tokenizer_encode(tokenizer, input, true, max_tokens, &encoded, &kinds);
  write_ids(ok, &kinds, types, capacity, NULL);
  return ortolan_done(write_ids(ok, &encoded, ids, capacity, count), error);
}

/* --- ids to texts --- */

/* The text of a token, or NULL for one without. */
static const char *shown(const ortolan_tokenizer *t, int32_t id, bool skip_special, size_t *size) {
  if (skip_special && ortolan_added_special(&t->added, id)) return NULL;
  const char *text = ortolan_vocabulary_text(&t->added.shown, id, size);
  return text != NULL ? text : ortolan_vocabulary_text(&t->model.vocabulary, id, size);
}

static bool check_id(const ortolan_tokenizer *t, int32_t id) {
  return (id >= 0 && id < t->vocab_size) ||
         ortolan_fail(ORTOLAN_TOKENIZER, "Token ids must be from 0 to %lld (got %ld).",
                      (long long)t->vocab_size - 1, (long)id);
}

static bool decode(const ortolan_tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                   ortolan_text *to) {
  ortolan_pieces pieces = {.count = 0};
  bool ok = true;
  for (size_t i = 0; ok && i < count; i++) {
    size_t size;
    ok = check_id(t, ids[i]);
    const char *text = ok ? shown(t, ids[i], skip_special, &size) : NULL;
    if (text != NULL) ortolan_pieces_add(&pieces, text, size, 0, false);
  }
  if (ok && pieces.text.failed) ok = ortolan_text_error(&pieces.text);
  ok = ok && ortolan_decode_pieces(&t->decoder, t->has_decoder, &pieces, to);
  ortolan_pieces_free(&pieces);
  return ok;
}

bool ortolan_decode(const ortolan_tokenizer *tokenizer, const int32_t *ids, size_t count,
                    bool skip_special, char *text, size_t capacity, size_t *size,
                    ortolan_error *error) {
  ortolan_text decoded = {.size = 0};
  bool ok = decode(tokenizer, ids, count, skip_special, &decoded);
  if (ok) ortolan_text_copy(&decoded, text, capacity, size);
  free(decoded.bytes);
  return ortolan_done(ok, error);
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
  if (stream == NULL) ortolan_no_memory();
  else stream->tokenizer = tokenizer, stream->skip_special = skip_special;
  ortolan_done(stream != NULL, error);
  return stream;
}

void ortolan_stream_close(ortolan_stream *stream) {
  if (stream == NULL) return;
  free(stream->piece.bytes);
  free(stream->bytes.bytes);
  free(stream->held.items);
  free(stream);
}

/* Move complete characters from `bytes` to `piece`. */
static void assemble(ortolan_stream *stream, bool is_end) {
  ortolan_text *bytes = &stream->bytes;
  size_t moved = ortolan_text_repair(&stream->piece, bytes->bytes, bytes->size, is_end);
  bytes->size -= moved;
  if (moved > 0) memmove(bytes->bytes, bytes->bytes + moved, bytes->size);
}

/* Decode the tokens that wait; what the one before them adds is left out. */
static bool release(ortolan_stream *stream) {
  const ortolan_tokenizer *t = stream->tokenizer;
  ortolan_text all = {.size = 0}, start = {.size = 0};
  size_t characters = 0, at = 0;
  bool ok = decode(t, stream->held.items, stream->held.count, false, &all) &&
            decode(t, stream->held.items, stream->before, false, &start);
  for (size_t i = 0; ok && i < start.size; i++)
    characters += ((unsigned char)start.bytes[i] & 0xC0) != 0x80;
  for (uint32_t point; ok && characters > 0 && at < all.size; characters--)
    at += ortolan_utf8_read(all.bytes + at, &point);
  if (ok) ortolan_text_add(&stream->piece, all.size > 0 ? all.bytes + at : "", all.size - at);
  free(all.bytes);
  free(start.bytes);
  return ok;
}

static bool finish_piece(ortolan_stream *stream, bool ok, const char **text, size_t *size) {
  ortolan_text_add(&stream->piece, "", 0);
  if (ok && (stream->piece.failed || stream->bytes.failed || stream->held.failed))
    ok = ortolan_text_error(&stream->piece);
  *text = ok ? stream->piece.bytes : "";
  *size = ok ? stream->piece.size : 0;
  return ok;
}

/* Add a token, and decode what no longer waits. */
static bool push(ortolan_stream *stream, int32_t token) {
  const ortolan_tokenizer *t = stream->tokenizer;
  size_t length;
  if (!check_id(t, token)) return false;
  const char *entry = shown(t, token, stream->skip_special, &length);
  if (entry == NULL) return true;
  if (t->stream == ORTOLAN_STREAM_BYTES) {
    ortolan_spelled_bytes(&stream->bytes, entry, length);
    assemble(stream, false);
    return true;
  }
  ortolan_ids_add(&stream->held, token);
  if (t->stream == ORTOLAN_STREAM_WHOLE || stream->held.failed ||
      (t->has_byte_tokens && ortolan_byte_of_token(entry, length) >= 0))
    return true;
  if (!release(stream)) return false;
  stream->held.items[0] = token;
  stream->held.count = stream->before = 1;
  return true;
}

bool ortolan_stream_push(ortolan_stream *stream, int32_t token, const char **text, size_t *size,
                         ortolan_error *error) {
  stream->piece.size = 0;
  return ortolan_done(finish_piece(stream, push(stream, token), text, size), error);
}

bool ortolan_stream_flush(ortolan_stream *stream, const char **text, size_t *size,
                          ortolan_error *error) {
  stream->piece.size = 0;
  assemble(stream, true);
  bool ok = stream->held.count == stream->before || release(stream);
  stream->held.count = stream->before = 0;
  return ortolan_done(finish_piece(stream, ok, text, size), error);
}
