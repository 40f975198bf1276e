/* Tokens that are found in a text before anything else: special ones, and others. */
#include "tokenizer.h"

#define MAX_ADDED_BYTES 4096

/* Read a token. One without an id of the vocabulary gets `next`. */
static bool read_token(ortolan_added_tokens *added, const json_value *item,
                       const ortolan_token_model *model, int32_t *next) {
  static const char *const names[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
  bool read[ORTOLAN_ADDED_FLAGS] = {[ORTOLAN_NORMALIZED] = true};
  const char *content = ortolan_string(item, "content");
  if (content == NULL) return false;
  for (int i = 0; i < ORTOLAN_ADDED_FLAGS; i++)
    if (!ortolan_flag(item, names[i], &read[i])) return false;
  size_t size = strlen(content);
  if (size > MAX_ADDED_BYTES) return ortolan_invalid(item, "content", "at most 4096 bytes");
  if (size == 0) return true;
  int32_t place = ortolan_vocabulary_find(&added->places, content, size);
  if (place < 0) {
    place = (int32_t)added->places.count;
    added->ids[place] = ortolan_vocabulary_find(&model->vocabulary, content, size);
    if (added->ids[place] < 0) added->ids[place] = (*next)++;
  }
  memcpy(added->flags[place], read, sizeof read);
  return (ortolan_vocabulary_add(&added->places, content, size, place) &&
          ortolan_vocabulary_add(&added->contents, content, size, added->ids[place])) ||
         ortolan_no_memory();
}

/* Add what a token is searched by, which is its normalized form if the text is normalized. */
static bool add_search(ortolan_added_tokens *added, int32_t place,
                       const ortolan_parts *normalizer) {
  ortolan_text content = {.size = 0};
  bool normalized = added->flags[place][ORTOLAN_NORMALIZED], first = true, ok;
  size_t size;
  const char *text = ortolan_vocabulary_text(&added->places, place, &size);
  ortolan_vocabulary *search = normalized ? &added->normalized : &added->plain;
  ortolan_text_add(&content, text, size);
  ok = (!content.failed || ortolan_no_memory()) &&
       (!normalized || ortolan_normalize(normalizer, &content, &first));
  if (ok && content.size == 0)
    ok = ortolan_fail(
        ORTOLAN_TOKENIZER,
        "tokenizer.json has the added token `%.60s`, which the normalizer empties. Set its "
        "`normalized` to false.",
        text);
  if (ok && ortolan_vocabulary_find(search, content.bytes, content.size) >= 0)
    ok = ortolan_fail(ORTOLAN_TOKENIZER,
                      "tokenizer.json has two added tokens that are normalized to `%.60s`. Remove "
                      "one.",
                      content.bytes);
  if (ok) {
    added->starts[normalized][(unsigned char)content.bytes[0]] = true;
    ok = (ortolan_vocabulary_add(search, content.bytes, content.size, place) &&
          ortolan_vocabulary_add(&added->shown, content.bytes, content.size, added->ids[place])) ||
         ortolan_no_memory();
  }
  free(content.bytes);
  return ok;
}

bool ortolan_added_read(ortolan_added_tokens *added, const json_value *root,
                        const ortolan_token_model *model, const ortolan_parts *normalizer) {
  const json_value *field = ortolan_json_field(root, "added_tokens");
  if (field == NULL) return true;
  const json_value *tokens = ortolan_array(root, "added_tokens", 1 << 20);
  if (tokens == NULL) return false;
  added->flags = calloc(tokens->count + 1, sizeof *added->flags);
  added->ids = calloc(tokens->count + 1, sizeof *added->ids);
  if (added->flags == NULL || added->ids == NULL) return ortolan_no_memory();
  int32_t next = (int32_t)model->vocabulary.count;
  for (const json_value *item = tokens->item; item != NULL; item = item->next)
    if (!read_token(added, item, model, &next)) return false;
  for (size_t place = 0; place < added->places.count; place++)
    if (!add_search(added, (int32_t)place, normalizer)) return false;
  return true;
}

void ortolan_added_free(ortolan_added_tokens *added) {
  ortolan_vocabulary_free(&added->contents);
  ortolan_vocabulary_free(&added->places);
  ortolan_vocabulary_free(&added->shown);
  ortolan_vocabulary_free(&added->plain);
  ortolan_vocabulary_free(&added->normalized);
  free(added->flags);
  free(added->ids);
}

bool ortolan_added_special(const ortolan_added_tokens *added, int32_t id) {
  size_t size;
  const char *text = ortolan_vocabulary_text(&added->contents, id, &size);
  if (text == NULL) return false;
  return added->flags[ortolan_vocabulary_find(&added->places, text, size)][ORTOLAN_SPECIAL];
}

/* --- splitting --- */

static uint32_t flags_before(const char *text, size_t at) {
  uint32_t point;
  if (at == 0) return 0;
  ortolan_utf8_read(text + at - ortolan_utf8_last(text, at), &point);
  return ortolan_flags(point);
}

static uint32_t flags_behind(const char *text, size_t size, size_t at, size_t *width) {
  uint32_t point;
  *width = 0;
  if (at == size) return 0;
  *width = ortolan_utf8_read(text + at, &point);
  return ortolan_flags(point);
}

void ortolan_added_split(const ortolan_added_tokens *added, bool normalized, const char *text,
                         size_t size, bool first, ortolan_pieces *pieces) {
  const ortolan_vocabulary *search = normalized ? &added->normalized : &added->plain;
  size_t done = 0, length, width;
  for (size_t at = 0; at < size && search->count > 0;) {
    bool may_start = added->starts[normalized][(unsigned char)text[at]];
    int32_t place = -1;
    if (may_start) place = ortolan_vocabulary_longest(search, text + at, size - at, &length);
    size_t start = at, stop = place < 0 ? at + 1 : at + length;
    at = stop;
    if (place < 0) continue;
    const bool *flags = added->flags[place];
    if (flags[ORTOLAN_SINGLE_WORD] && ((flags_before(text, start) & ORTOLAN_IS_WORD) ||
                                       (flags_behind(text, size, stop, &width) & ORTOLAN_IS_WORD)))
      continue;
    while (flags[ORTOLAN_LSTRIP] && start > done && (flags_before(text, start) & ORTOLAN_IS_SPACE))
      start -= ortolan_utf8_last(text, start);
    while (flags[ORTOLAN_RSTRIP] && (flags_behind(text, size, stop, &width) & ORTOLAN_IS_SPACE))
      stop += width;
    if (start > done) ortolan_pieces_add(pieces, text + done, start - done, -1, first && done == 0);
    ortolan_pieces_add(pieces, text + start, stop - start, added->ids[place], false);
    done = stop;
  }
  if (done < size) ortolan_pieces_add(pieces, text + done, size - done, -1, first && done == 0);
}
