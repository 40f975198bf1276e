/* The table of a Precompiled normalizer: 4 bytes of size, a double array over UTF-8, texts that end
 * with NUL. Every index is checked, since the table comes from a file. */
#include "tokenizer.h"

#define MAX_CLUSTER 6 /* longer clusters are looked up character by character */

typedef struct {
  const char *units, *texts;
  size_t unit_count, size; /* of the texts */
} charsmap;

static int digit_of(char c) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char *place = c == 0 ? NULL : strchr(digits, c);
  return place == NULL ? -1 : (int)(place - digits);
}

/* Decode base64 into an array to free, which ends with NUL; an empty one if it is broken. */
static char *decode(const char *text, size_t *size) {
  size_t length = strlen(text), digits = 0;
  while (length > 0 && text[length - 1] == '=') length--;
  char *bytes = malloc(length + 1);
  uint32_t bits = 0;
  *size = 0;
  while (bytes != NULL && digits < length && digit_of(text[digits]) >= 0) {
    bits = bits << 6 | (uint32_t)digit_of(text[digits]);
    if (digits % 4 > 0) bytes[(*size)++] = (char)(bits >> (6 - digits % 4 * 2));
    digits++;
  }
  if (digits < length) *size = 0;
  if (bytes != NULL) bytes[*size] = 0;
  return bytes;
}

static uint32_t unit_at(const char *units, size_t place) {
  const unsigned char *b = (const unsigned char *)units + 4 * place;
  return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* The parts of a table, or no texts if it is not complete. */
static charsmap parts_of(const char *table, size_t size) {
  size_t trie = size < 4 ? 0 : unit_at(table, 0);
  if (trie == 0 || trie > size - 4) return (charsmap){.texts = NULL};
  return (charsmap){table + 4, table + 4 + trie, trie / 4, size - 4 - trie};
}

bool ortolan_charsmap_read(const char *base64, char **table, size_t *size) {
  bool missing;
  size_t wrong;
  *table = decode(base64, size);
  const charsmap map = parts_of(*table, *size);
  return map.texts != NULL && ortolan_utf8_valid(map.texts, map.size, &missing, &wrong) == map.size;
}

/* The replacement of the shortest entry that a text begins with, or NULL. */
static const char *find(const charsmap *map, const char *text, size_t size) {
  size_t node = 0;
  for (size_t i = 0; i <= size; i++) {
    if (node >= map->unit_count) return NULL;
    uint32_t unit = unit_at(map->units, node);
    if (i > 0 && (unit & 0x800000FFu) != (unsigned char)text[i - 1]) return NULL;
    node ^= (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
    if (i > 0 && (unit >> 8 & 1)) {
      size_t place = node < map->unit_count ? unit_at(map->units, node) & 0x7FFFFFFFu : SIZE_MAX;
      bool fits = place < map->size && ((unsigned char)map->texts[place] & 0xC0) != 0x80;
      return fits ? map->texts + place : NULL;
    }
    if (i < size && text[i] == 0) return NULL;
    if (i < size) node ^= (unsigned char)text[i];
  }
  return NULL;
}

/* Bytes of the grapheme cluster at an offset; those of emoji and Hangul only up to MAX_CLUSTER. */
static size_t cluster(const ortolan_text *text, size_t from) {
  uint32_t point;
  size_t at = from + ortolan_utf8_read(text->bytes + from, &point);
  if (point == '\r' && at < text->size && text->bytes[at] == '\n') return 2;
  for (uint32_t before = ortolan_flags(point); at < text->size;) {
    if (before & ORTOLAN_IS_CONTROL) break;
    size_t size = ortolan_utf8_read(text->bytes + at, &point);
    uint32_t flags = ortolan_flags(point);
    bool joins = (flags & ORTOLAN_IS_EXTENDS) ||
                 ((before & ORTOLAN_IS_PREPENDED) && !(flags & ORTOLAN_IS_CONTROL));
    if (!joins) break;
    at += size;
    before = flags;
  }
  return at - from;
}

void ortolan_charsmap_apply(const char *table, size_t table_size, const ortolan_text *from,
                            ortolan_text *to) {
  const charsmap map = parts_of(table, table_size);
  uint32_t point;
  for (size_t at = 0, end; at < from->size; at = end) {
    size_t size = cluster(from, at);
    end = at + size;
    const char *replacement = size < MAX_CLUSTER ? find(&map, from->bytes + at, size) : NULL;
    if (replacement != NULL) {
      ortolan_text_add(to, replacement, strlen(replacement));
      continue;
    }
    for (size_t place = at; place < end; place += size) {
      size = ortolan_utf8_read(from->bytes + place, &point);
      replacement = find(&map, from->bytes + place, size);
      if (replacement != NULL) ortolan_text_add(to, replacement, strlen(replacement));
      else ortolan_text_add(to, from->bytes + place, size);
    }
  }
}
