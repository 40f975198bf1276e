#include "tokenizer.h"

bool ortolan_grow(void *items, size_t *room, size_t count, size_t item_bytes) {
  if (count < *room) return true;
  size_t larger = *room < 16 ? 32 : 2 * *room;
  void *old, *grown;
  memcpy(&old, items, sizeof old);
  grown = larger > SIZE_MAX / item_bytes ? NULL : realloc(old, larger * item_bytes);
  if (grown == NULL) return false;
  memcpy(items, &grown, sizeof grown);
  *room = larger;
  return true;
}

void ortolan_text_add(ortolan_text *text, const char *bytes, size_t size) {
  if (size > ORTOLAN_MAX_TEXT - text->size) text->failed = true;
  if (text->failed) return;
  if (text->room - text->size < size + 1) {
    size_t room = 2 * (text->size + size) + 16;
    char *larger = realloc(text->bytes, room);
    text->failed = larger == NULL;
    if (text->failed) return;
    text->bytes = larger, text->room = room;
  }
  if (size > 0) memcpy(text->bytes + text->size, bytes, size);
  text->size += size;
  text->bytes[text->size] = 0;
}

void ortolan_text_point(ortolan_text *text, uint32_t point) {
  char bytes[4];
  ortolan_text_add(text, bytes, ortolan_utf8_write(point, bytes));
}

size_t ortolan_text_repair(ortolan_text *text, const char *bytes, size_t size, bool is_end) {
  size_t at = 0, wrong;
  bool missing;
  while (at < size) {
    size_t valid = ortolan_utf8_valid(bytes + at, size - at, &missing, &wrong);
    ortolan_text_add(text, bytes + at, valid);
    at += valid;
    if (at == size || (missing && !is_end)) break;
    ortolan_text_point(text, 0xFFFD);
    at += wrong;
  }
  return at;
}

void ortolan_text_copy(const ortolan_text *text, char *to, size_t capacity, size_t *size) {
  size_t written = text->size < capacity ? text->size : capacity;
  if (written > 0) memcpy(to, text->bytes, written);
  if (written < capacity) to[written] = 0;
  *size = text->size;
}

bool ortolan_text_error(const ortolan_text *text) {
  if (text->size < ORTOLAN_MAX_TEXT / 4) return ortolan_no_memory();
  return ortolan_fail(ORTOLAN_TOKENIZER,
                      "The text becomes longer than %zu MB, or memory ran out. Split the text.",
                      ORTOLAN_MAX_TEXT >> 20);
}

void ortolan_pieces_end(ortolan_pieces *pieces, size_t start, int32_t token, bool first) {
  size_t size = pieces->text.size - start;
  if (size == 0 && token < 0) return;
  if (!ortolan_grow(&pieces->items, &pieces->room, pieces->count, sizeof *pieces->items))
    pieces->text.failed = true;
  if (!pieces->text.failed)
    pieces->items[pieces->count++] = (ortolan_piece){start, size, token, first};
}

void ortolan_pieces_add(ortolan_pieces *pieces, const char *bytes, size_t size, int32_t token,
                        bool first) {
  size_t start = pieces->text.size;
  ortolan_text_add(&pieces->text, bytes, size);
  ortolan_pieces_end(pieces, start, token, first);
}

void ortolan_pieces_free(ortolan_pieces *pieces) {
  free(pieces->text.bytes);
  free(pieces->items);
}

void ortolan_pieces_swap(ortolan_pieces *pieces, ortolan_pieces *next) {
  ortolan_pieces other = *pieces;
  *pieces = *next;
  *next = other;
  next->count = next->text.size = 0;
}

void ortolan_ids_add(ortolan_ids *ids, int32_t id) {
  if (!ortolan_grow(&ids->items, &ids->room, ids->count, sizeof *ids->items)) ids->failed = true;
  if (!ids->failed) ids->items[ids->count++] = id;
}
