#include "unicode.h"

#include <stdlib.h>
#include <string.h>

static const char *const packed[] = {
#include "unicode_table.inc"
};

#define HANGUL 0xAC00u
#define LEADS 0x1100u
#define VOWELS 0x1161u
#define TAILS 0x11A7u /* one before the first */
#define HANGUL_COUNT 11172u

typedef struct {
  uint32_t *points, *starts, *targets; /* targets[starts[i]..starts[i + 1]] for points[i] */
  size_t count;
} mapping;

typedef struct {
  uint64_t pair;
  uint32_t point;
} composition;

struct ortolan_unicode {
  uint32_t *starts, *flags; /* of runs of characters */
  size_t run_count, composition_count;
  mapping canonical, compatible, lower;
  composition *compositions;
};

/* --- the table --- */

typedef struct {
  size_t line, place;
} cursor;

static uint32_t number(cursor *at) {
  uint32_t value = 0;
  for (int shift = 0;; shift += 5) {
    if (packed[at->line][at->place] == 0) at->line++, at->place = 0;
    uint32_t code = (uint32_t)packed[at->line][at->place++];
    uint32_t digit = code - 35 - (code > 63) - (code > 92);
    value |= (digit & 31) << shift;
    if (digit < 32) return value;
  }
}

static uint32_t difference(cursor *at) {
  uint32_t value = number(at);
  return value & 1 ? 0 - ((value + 1) >> 1) : value >> 1;
}

static bool read_runs(ortolan_unicode *unicode, cursor *at) {
  uint32_t values[512], count = number(at), start = 0;
  for (uint32_t i = 0; i < count; i++) values[i] = number(at);
  unicode->run_count = number(at);
  unicode->starts = malloc(unicode->run_count * sizeof *unicode->starts);
  unicode->flags = malloc(unicode->run_count * sizeof *unicode->flags);
  if (unicode->starts == NULL || unicode->flags == NULL) return false;
  for (size_t i = 0; i < unicode->run_count; i++) {
    unicode->starts[i] = start;
    start += number(at);
    unicode->flags[i] = values[number(at)];
  }
  return true;
}

static bool read_mapping(mapping *map, cursor *at) {
  uint32_t point = 0, used = 0, last[32] = {0};
  map->count = number(at);
  map->points = malloc(map->count * sizeof *map->points);
  map->starts = malloc((map->count + 1) * sizeof *map->starts);
  map->targets = malloc((map->count * 4 + 32) * sizeof *map->targets); /* 1.6 on average */
  if (map->points == NULL || map->starts == NULL || map->targets == NULL) return false;
  for (size_t i = 0; i < map->count; i++) {
    map->points[i] = point += number(at);
    map->starts[i] = used;
    for (uint32_t place = 0, size = number(at); place < size; place++)
      map->targets[used++] = last[place] += difference(at);
  }
  map->starts[map->count] = used;
  return true;
}

static int by_pair(const void *left, const void *right) {
  uint64_t a = ((const composition *)left)->pair, b = ((const composition *)right)->pair;
  return (a > b) - (a < b);
}

static bool read_compositions(ortolan_unicode *unicode, cursor *at) {
  uint32_t point = 0, first = 0, second = 0;
  unicode->composition_count = number(at);
  unicode->compositions = malloc(unicode->composition_count * sizeof *unicode->compositions);
  if (unicode->compositions == NULL) return false;
  for (size_t i = 0; i < unicode->composition_count; i++) {
    point += difference(at), first += difference(at), second += difference(at);
    unicode->compositions[i] = (composition){(uint64_t)first << 32 | second, point};
  }
  qsort(unicode->compositions, unicode->composition_count, sizeof *unicode->compositions, by_pair);
  return true;
}

ortolan_unicode *ortolan_unicode_open(void) {
  ortolan_unicode *unicode = calloc(1, sizeof *unicode);
  cursor at = {0, 0};
  if (unicode != NULL && read_runs(unicode, &at) && read_mapping(&unicode->canonical, &at) &&
      read_mapping(&unicode->compatible, &at) && read_compositions(unicode, &at) &&
      read_mapping(&unicode->lower, &at))
    return unicode;
  ortolan_unicode_close(unicode);
  return NULL;
}

static void free_mapping(mapping *map) {
  free(map->points);
  free(map->starts);
  free(map->targets);
}

void ortolan_unicode_close(ortolan_unicode *unicode) {
  if (unicode == NULL) return;
  free(unicode->starts);
  free(unicode->flags);
  free(unicode->compositions);
  free_mapping(&unicode->canonical);
  free_mapping(&unicode->compatible);
  free_mapping(&unicode->lower);
  free(unicode);
}

/* --- properties --- */

/* Number of values up to one, in ascending order. */
static size_t rank_of(const uint32_t *values, size_t count, uint32_t value) {
  size_t low = 0;
  for (size_t high = count; low < high;) {
    size_t middle = low + (high - low) / 2;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Flags, and the combining class << 16. */
static uint32_t properties(const ortolan_unicode *unicode, uint32_t point) {
  return unicode->flags[rank_of(unicode->starts, unicode->run_count, point) - 1];
}

uint32_t ortolan_flags(const ortolan_unicode *unicode, uint32_t point) {
  return properties(unicode, point) & 0xFFFF;
}

static uint32_t order_of(const ortolan_unicode *unicode, uint32_t point) {
  return point < 0x300 ? 0 : properties(unicode, point) >> 16;
}

static const uint32_t *mapped(const mapping *map, uint32_t point, size_t *count) {
  size_t rank = rank_of(map->points, map->count, point);
  if (rank == 0 || map->points[rank - 1] != point) return NULL;
  *count = map->starts[rank] - map->starts[rank - 1];
  return &map->targets[map->starts[rank - 1]];
}

size_t ortolan_lower(const ortolan_unicode *unicode, uint32_t point, uint32_t lower[2]) {
  size_t count = 1;
  const uint32_t *targets = mapped(&unicode->lower, point, &count);
  lower[0] = targets == NULL ? point : targets[0];
  if (count > 1) lower[1] = targets[1];
  return count;
}

static bool is_space(const ortolan_unicode *unicode, const char *text) {
  uint32_t point;
  ortolan_utf8_read(text, &point);
  return ortolan_flags(unicode, point) & ORTOLAN_IS_SPACE;
}

void ortolan_strip(const ortolan_unicode *unicode, const char **text, size_t *size, bool start,
                   bool end) {
  uint32_t point;
  size_t width;
  for (; start && *size > 0 && is_space(unicode, *text); *text += width, *size -= width)
    width = ortolan_utf8_read(*text, &point);
  for (; end && *size > 0; *size -= width) {
    width = ortolan_utf8_last(*text, *size);
    if (!is_space(unicode, *text + *size - width)) break;
  }
}

/* --- normal forms --- */

static size_t decompose(const ortolan_unicode *unicode, uint32_t point, bool compatible,
                        uint32_t *to) {
  size_t count = 0;
  if (point - HANGUL < HANGUL_COUNT) {
    uint32_t index = point - HANGUL;
    to[count++] = LEADS + index / 588;
    to[count++] = VOWELS + index % 588 / 28;
    if (index % 28 > 0) to[count++] = TAILS + index % 28;
    return count;
  }
  const uint32_t *targets = compatible ? mapped(&unicode->compatible, point, &count) : NULL;
  if (targets == NULL) targets = mapped(&unicode->canonical, point, &count);
  if (targets == NULL) targets = &point, count = 1;
  memcpy(to, targets, count * sizeof *to);
  return count;
}

static int ascending(const void *left, const void *right) {
  uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return (a > b) - (a < b);
}

/* Sort each run of combining characters by class; those of one class keep their order. */
static bool reorder(const ortolan_unicode *unicode, uint32_t *points, size_t count) {
  for (size_t i = 0, end; i < count; i = end + 1) {
    for (end = i; end < count && order_of(unicode, points[end]) > 0;) end++;
    if (end - i < 2) continue;
    uint64_t *keys = malloc((end - i) * sizeof *keys);
    if (keys == NULL) return false;
    for (size_t k = i; k < end; k++)
      keys[k - i] = (uint64_t)order_of(unicode, points[k]) << 56 | (uint64_t)(k - i) << 21 |
                    points[k];
    qsort(keys, end - i, sizeof *keys, ascending);
    for (size_t k = i; k < end; k++) points[k] = keys[k - i] & 0x1FFFFF;
    free(keys);
  }
  return true;
}

/* The character that two become, or 0. */
static uint32_t composed_pair(const ortolan_unicode *unicode, uint32_t first, uint32_t second) {
  if (first - LEADS < 19 && second - VOWELS < 21)
    return HANGUL + ((first - LEADS) * 21 + (second - VOWELS)) * 28;
  if (first - HANGUL < HANGUL_COUNT && (first - HANGUL) % 28 == 0 && second - TAILS - 1 < 27)
    return first + (second - TAILS);
  composition key = {(uint64_t)first << 32 | second, 0};
  const composition *pair = bsearch(&key, unicode->compositions, unicode->composition_count,
                                    sizeof key, by_pair);
  return pair == NULL ? 0 : pair->point;
}

static size_t compose(const ortolan_unicode *unicode, uint32_t *points, size_t count) {
  size_t starter = SIZE_MAX, kept = 0;
  uint32_t before = 0; /* class of the last character kept behind the starter */
  for (size_t i = 0; i < count; i++) {
    uint32_t order = order_of(unicode, points[i]), pair = 0;
    bool adjacent = starter != SIZE_MAX && kept == starter + 1;
    if (starter != SIZE_MAX && (adjacent || (before < order && before > 0)))
      pair = composed_pair(unicode, points[starter], points[i]);
    if (pair > 0) {
      points[starter] = pair;
      continue;
    }
    if (order == 0) starter = kept;
    before = order;
    points[kept++] = points[i];
  }
  return kept;
}

uint32_t *ortolan_normal_form(const ortolan_unicode *unicode, const char *text, size_t size,
                              bool compatible, bool composed, size_t *count) {
  size_t room = size + 32;
  uint32_t *points = malloc(room * sizeof *points), point;
  *count = 0;
  for (size_t at = 0; points != NULL && at < size;) {
    at += ortolan_utf8_read(text + at, &point);
    if (room - *count < 32) {
      uint32_t *larger = realloc(points, (room *= 2) * sizeof *points);
      if (larger == NULL) free(points);
      points = larger;
      if (points == NULL) break;
    }
    *count += decompose(unicode, point, compatible, points + *count);
  }
  if (points == NULL || !reorder(unicode, points, *count)) {
    free(points);
    return NULL;
  }
  if (composed) *count = compose(unicode, points, *count);
  return points;
}

/* --- UTF-8 --- */

size_t ortolan_utf8_read(const char *text, uint32_t *point) {
  const unsigned char *bytes = (const unsigned char *)text;
  if (bytes[0] < 0x80) {
    *point = bytes[0];
    return 1;
  }
  size_t more = bytes[0] >= 0xF0 ? 3 : bytes[0] >= 0xE0 ? 2 : 1;
  *point = bytes[0] & (0x3Fu >> more);
  for (size_t i = 1; i <= more; i++) *point = *point << 6 | (bytes[i] & 0x3Fu);
  return more + 1;
}

size_t ortolan_utf8_write(uint32_t point, char to[4]) {
  if (point < 0x80) {
    to[0] = (char)point;
    return 1;
  }
  size_t more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  for (size_t i = more; i > 0; i--, point >>= 6) to[i] = (char)(0x80 | (point & 0x3F));
  to[0] = (char)((0xFF00u >> (more + 1) & 0xFF) | point);
  return more + 1;
}

size_t ortolan_utf8_last(const char *text, size_t end) {
  size_t size = 1;
  while (size < end && ((unsigned char)text[end - size] & 0xC0) == 0x80) size++;
  return size;
}

size_t ortolan_utf8_valid(const char *text, size_t size, bool *missing, size_t *wrong) {
  const unsigned char *bytes = (const unsigned char *)text;
  size_t at = 0;
  *missing = false;
  while (at < size) {
    unsigned char first = bytes[at], low = 0x80, high = 0xBF;
    size_t more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    *wrong = 1;
    if ((first >= 0x80 && first < 0xC2) || first > 0xF4) return at;
    for (size_t i = 1; i <= more; i++, low = 0x80, high = 0xBF, (*wrong)++) {
      *missing = at + i == size;
      if (*missing || bytes[at + i] < low || bytes[at + i] > high) return at;
    }
    at += more + 1;
  }
  return at;
}
