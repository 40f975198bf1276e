#include "unicode.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  uint32_t first, second, point;
} composition;

#include "unicode_table.inc"

#define HANGUL 0xAC00u
#define LEADS 0x1100u
#define VOWELS 0x1161u
#define TAILS 0x11A7u /* one before the first */
#define HANGUL_COUNT 11172u
#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct {
  const uint32_t *points, *targets; /* targets[starts[i]..starts[i + 1]] for points[i] */
  const uint16_t *starts;
  size_t count;
} mapping;

#define MAPPING(name) {name##_points, name##_targets, name##_starts, COUNT(name##_points)}
static const mapping canonical = MAPPING(canonical), compatible = MAPPING(compatible),
                     lower = MAPPING(lower);

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
static uint32_t properties(uint32_t point) {
  return kinds[run_kinds[rank_of(run_starts, COUNT(run_starts), point) - 1]];
}

uint32_t ortolan_flags(uint32_t point) {
  return properties(point) & 0xFFFF;
}

static uint32_t order_of(uint32_t point) {
  return point < 0x300 ? 0 : properties(point) >> 16;
}

static const uint32_t *mapped(const mapping *map, uint32_t point, size_t *count) {
  size_t rank = rank_of(map->points, map->count, point);
  if (rank == 0 || map->points[rank - 1] != point) return NULL;
  *count = map->starts[rank] - map->starts[rank - 1];
  return &map->targets[map->starts[rank - 1]];
}

size_t ortolan_lower(uint32_t point, uint32_t result[2]) {
  size_t count = 1;
  const uint32_t *targets = mapped(&lower, point, &count);
  result[0] = targets == NULL ? point : targets[0];
  if (count > 1) result[1] = targets[1];
  return count;
}

static bool is_space(const char *text) {
  uint32_t point;
  ortolan_utf8_read(text, &point);
  return ortolan_flags(point) & ORTOLAN_IS_SPACE;
}

void ortolan_strip(const char **text, size_t *size, bool start, bool end) {
  uint32_t point;
  size_t width;
  for (; start && *size > 0 && is_space(*text); *text += width, *size -= width)
    width = ortolan_utf8_read(*text, &point);
  for (; end && *size > 0; *size -= width) {
    width = ortolan_utf8_last(*text, *size);
    if (!is_space(*text + *size - width)) break;
  }
}

/* --- normal forms --- */

static size_t decompose(uint32_t point, bool is_compatible, uint32_t *to) {
  size_t count = 0;
  if (point - HANGUL < HANGUL_COUNT) {
    uint32_t index = point - HANGUL;
    to[count++] = LEADS + index / 588;
    to[count++] = VOWELS + index % 588 / 28;
    if (index % 28 > 0) to[count++] = TAILS + index % 28;
    return count;
  }
  const uint32_t *targets = is_compatible ? mapped(&compatible, point, &count) : NULL;
  if (targets == NULL) targets = mapped(&canonical, point, &count);
  if (targets == NULL) targets = &point, count = 1;
  memcpy(to, targets, count * sizeof *to);
  return count;
}

static int ascending(const void *left, const void *right) {
  uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return (a > b) - (a < b);
}

/* Sort each run of combining characters by class; those of one class keep their order. */
static bool reorder(uint32_t *points, size_t count) {
  for (size_t i = 0, end; i < count; i = end + 1) {
    for (end = i; end < count && order_of(points[end]) > 0;) end++;
    if (end - i < 2) continue;
    uint64_t *keys = malloc((end - i) * sizeof *keys);
    if (keys == NULL) return false;
    for (size_t k = i; k < end; k++)
      keys[k - i] = (uint64_t)order_of(points[k]) << 56 | (uint64_t)(k - i) << 21 | points[k];
    qsort(keys, end - i, sizeof *keys, ascending);
    for (size_t k = i; k < end; k++) points[k] = keys[k - i] & 0x1FFFFF;
    free(keys);
  }
  return true;
}

static int by_pair(const void *left, const void *right) {
  const composition *a = left, *b = right;
  if (a->first != b->first) return a->first < b->first ? -1 : 1;
  return (a->second > b->second) - (a->second < b->second);
}

/* The character that two become, or 0. */
static uint32_t composed_pair(uint32_t first, uint32_t second) {
  if (first - LEADS < 19 && second - VOWELS < 21)
    return HANGUL + ((first - LEADS) * 21 + (second - VOWELS)) * 28;
  if (first - HANGUL < HANGUL_COUNT && (first - HANGUL) % 28 == 0 && second - TAILS - 1 < 27)
    return first + (second - TAILS);
  const composition key = {first, second, 0}, *pair;
  pair = bsearch(&key, compositions, COUNT(compositions), sizeof key, by_pair);
  return pair == NULL ? 0 : pair->point;
}

static size_t compose(uint32_t *points, size_t count) {
  size_t starter = SIZE_MAX, kept = 0;
  uint32_t before = 0; /* class of the last character kept behind the starter */
  for (size_t i = 0; i < count; i++) {
    uint32_t order = order_of(points[i]), pair = 0;
    bool adjacent = starter != SIZE_MAX && kept == starter + 1;
    if (starter != SIZE_MAX && (adjacent || (before < order && before > 0)))
      pair = composed_pair(points[starter], points[i]);
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

uint32_t *ortolan_normal_form(const char *text, size_t size, bool is_compatible, bool composed,
                              size_t *count) {
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
    *count += decompose(point, is_compatible, points + *count);
  }
  if (points == NULL || !reorder(points, *count)) {
    free(points);
    return NULL;
  }
  if (composed) *count = compose(points, *count);
  return points;
}

int ortolan_hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  digit |= 0x20; /* a lower-case letter */
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
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
