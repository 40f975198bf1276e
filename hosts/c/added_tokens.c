/* Tokens that are found in a text before anything else: special ones, and others. */
#include "tokenizer.h"

#define MAX_ADDED_BYTES 4096

typedef struct {
  const char *content;
  size_t size;
  ortolan_added flags;
} token;

static bool read_token(token *read, const json_value *item, const ortolan_fields *in) {
  if (item->type != JSON_OBJECT) return ortolan_invalid(in, "added_tokens", "objects");
  read->content = ortolan_string(in, item, "added_tokens", "content");
  if (read->content == NULL) return false;
  read->size = strlen(read->content);
  read->flags = (ortolan_added){.single_word = ortolan_flag(item, "single_word", false),
                                .lstrip = ortolan_flag(item, "lstrip", false),
                                .rstrip = ortolan_flag(item, "rstrip", false),
                                .normalized = ortolan_flag(item, "normalized", true),
                                .special = ortolan_flag(item, "special", false)};
  return read->size <= MAX_ADDED_BYTES ||
         ortolan_invalid(in, "added_tokens.content", "at most 4096 bytes");
}

static bool add(ortolan_added_tokens *added, const token *read, const ortolan_token_model *model,
                int32_t *next, const ortolan_fields *in) {
  int32_t place = ortolan_vocabulary_find(&added->places, read->content, read->size), id;
  if (place >= 0) {
    id = added->ids[place];
  } else {
    id = ortolan_vocabulary_find(&model->vocabulary, read->content, read->size);
    if (id < 0) id = (*next)++;
    place = (int32_t)added->places.count;
    if (!ortolan_vocabulary_add(&added->places, read->content, read->size, place))
      return ortolan_no_memory(in->error);
  }
  added->ids[place] = id;
  added->items[place] = read->flags;
  return ortolan_vocabulary_add(&added->contents, read->content, read->size, id) ||
         ortolan_no_memory(in->error);
}

/* Add what a token is searched by, which is its normalized form if the text is normalized. */
static bool add_search(ortolan_added_tokens *added, int32_t place, const ortolan_parts *normalizer,
                       const ortolan_unicode *unicode, const ortolan_fields *in) {
  ortolan_text content = {.size = 0};
  bool normalized = added->items[place].normalized, first = true, ok;
  size_t size;
  const char *text = ortolan_vocabulary_text(&added->places, place, &size);
  ortolan_vocabulary *search = normalized ? &added->normalized : &added->plain;
  ortolan_text_add(&content, text, size);
  ok = (!content.failed || ortolan_no_memory(in->error)) &&
       (!normalized || ortolan_normalize(normalizer, unicode, &content, &first, in->error));
  if (ok && content.size == 0)
    ok = ortolan_fail(in->error, in->code,
                      "%s has the added token `%.60s`, which the normalizer empties. Set its "
                      "`normalized` to false.",
                      in->file, text);
  if (ok && ortolan_vocabulary_find(search, content.bytes, content.size) >= 0)
    ok = ortolan_invalid(in, "added_tokens.content", "different for every token once normalized");
  if (ok) {
    added->starts[normalized][(unsigned char)content.bytes[0]] = true;
    ok = (ortolan_vocabulary_add(search, content.bytes, content.size, place) &&
          ortolan_vocabulary_add(&added->shown, content.bytes, content.size, added->ids[place])) ||
         ortolan_no_memory(in->error);
  }
  free(content.bytes);
  return ok;
}

bool ortolan_added_read(ortolan_added_tokens *added, const json_value *root,
                        const ortolan_token_model *model, const ortolan_parts *normalizer,
                        const ortolan_unicode *unicode, const ortolan_fields *in) {
  const json_value *field = ortolan_json_field(root, "added_tokens");
  if (field == NULL) return true;
  const json_value *tokens = ortolan_array(in, root, "", "added_tokens", 1 << 20);
  if (tokens == NULL) return false;
  added->items = calloc(tokens->count + 1, sizeof *added->items);
  added->ids = calloc(tokens->count + 1, sizeof *added->ids);
  if (added->items == NULL || added->ids == NULL) return ortolan_no_memory(in->error);
  int32_t next = (int32_t)model->vocabulary.count;
  for (const json_value *item = tokens->item; item != NULL; item = item->next) {
    token read = {.size = 0};
    if (!read_token(&read, item, in)) return false;
    if (read.size > 0 && !add(added, &read, model, &next, in)) return false;
  }
  for (size_t place = 0; place < added->places.count; place++)
    if (!add_search(added, (int32_t)place, normalizer, unicode, in)) return false;
  return true;
}

void ortolan_added_free(ortolan_added_tokens *added) {
  ortolan_vocabulary_free(&added->contents);
  ortolan_vocabulary_free(&added->places);
  ortolan_vocabulary_free(&added->shown);
  ortolan_vocabulary_free(&added->plain);
  ortolan_vocabulary_free(&added->normalized);
  free(added->items);
  free(added->ids);
}

bool ortolan_added_special(const ortolan_added_tokens *added, int32_t id) {
  size_t size;
  const char *text = ortolan_vocabulary_text(&added->contents, id, &size);
  if (text == NULL) return false;
  return added->items[ortolan_vocabulary_find(&added->places, text, size)].special;
}

/* --- splitting --- */

/* The longest token that begins at an offset: its place and end, or -1. */
static int32_t longest(const ortolan_vocabulary *search, const char *text, size_t size, size_t at,
                       size_t *end) {
  uint32_t hash = ORTOLAN_HASH;
  int32_t best = -1;
  size_t most = search->longest < size - at ? search->longest : size - at;
  for (size_t length = 1; length <= most; length++) {
    hash = ortolan_hash(hash, text + at + length - 1, 1);
    int32_t place = ortolan_vocabulary_lookup(search, hash, text + at, length);
    if (place >= 0) best = place, *end = at + length;
  }
  return best;
}

static uint32_t flags_before(const ortolan_unicode *unicode, const char *text, size_t at) {
  uint32_t point;
  if (at == 0) return 0;
  ortolan_utf8_read(text + at - ortolan_utf8_last(text, at), &point);
  return ortolan_flags(unicode, point);
}

static uint32_t flags_behind(const ortolan_unicode *unicode, const char *text, size_t size,
                             size_t at, size_t *width) {
  uint32_t point;
  *width = 0;
  if (at == size) return 0;
  *width = ortolan_utf8_read(text + at, &point);
  return ortolan_flags(unicode, point);
}

void ortolan_added_split(const ortolan_added_tokens *added, bool normalized,
                         const ortolan_unicode *unicode, const char *text, size_t size, bool first,
                         ortolan_pieces *pieces) {
  const ortolan_vocabulary *search = normalized ? &added->normalized : &added->plain;
  size_t done = 0, end, width;
  for (size_t at = 0; at < size && search->count > 0;) {
    bool may_start = added->starts[normalized][(unsigned char)text[at]];
    int32_t place = may_start ? longest(search, text, size, at, &end) : -1;
    size_t start = at, stop = end;
    at = place < 0 ? at + 1 : end;
    if (place < 0) continue;
    const ortolan_added *flags = &added->items[place];
    if (flags->single_word && ((flags_before(unicode, text, start) & ORTOLAN_IS_WORD) ||
                               (flags_behind(unicode, text, size, stop, &width) & ORTOLAN_IS_WORD)))
      continue;
    while (flags->lstrip && start > done && (flags_before(unicode, text, start) & ORTOLAN_IS_SPACE))
      start -= ortolan_utf8_last(text, start);
    while (flags->rstrip && (flags_behind(unicode, text, size, stop, &width) & ORTOLAN_IS_SPACE))
      stop += width;
    if (start > done)
      ortolan_pieces_add(pieces, text + done, start - done, -1, first && done == 0);
    ortolan_pieces_add(pieces, text + start, stop - start, added->ids[place], false);
    done = stop;
  }
  if (done < size) ortolan_pieces_add(pieces, text + done, size - done, -1, first && done == 0);
}
