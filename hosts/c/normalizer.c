#include "tokenizer.h"

enum {
  NFD, NFC, NFKD, NFKC, LOWERCASE, STRIP_ACCENTS, STRIP, REPLACE, PREPEND, BERT, PRECOMPILED,
  BYTE_LEVEL, CLEAN, CHINESE, ACCENTS /* the last three are of BERT */
};

static const ortolan_part_kind kinds[] = {
    {.type = "NFD"},
    {.type = "NFC"},
    {.type = "NFKD"},
    {.type = "NFKC"},
    {.type = "Lowercase"},
    {.type = "StripAccents"},
    {.type = "Strip", .flags = {"strip_left", "strip_right"}},
    {.type = "Replace", .text = "content", .has_pattern = true},
    {.type = "Prepend", .text = "prepend"},
    {.type = "BertNormalizer", .flags = {"clean_text", "handle_chinese_chars", "lowercase"}},
    {.type = "Precompiled"},
    {.type = "ByteLevel"}};

/* BERT's normalizer becomes those of its steps that it has. */
static bool read_bert(ortolan_parts *parts, const ortolan_part *bert, const json_value *value) {
  static const int steps[ORTOLAN_MAX_STEPS] = {CLEAN, CHINESE, NFD, ACCENTS, LOWERCASE};
  bool strips = bert->flags[2];
  if (!ortolan_flag(value, "strip_accents", &strips)) return false;
  const bool wanted[] = {bert->flags[0], bert->flags[1], strips, strips, bert->flags[2]};
  parts->count--;
  for (size_t i = 0; i < ORTOLAN_MAX_STEPS; i++)
    if (wanted[i]) ortolan_part_add(parts, steps[i]);
  return true;
}

bool ortolan_read_normalizer(ortolan_parts *parts, const json_value *value) {
  const size_t count = sizeof kinds / sizeof *kinds;
  ortolan_part *part = ortolan_part_read(parts, kinds, count, "normalizer", value);
  if (part == NULL) return false;
  if (part->kind == BERT) return read_bert(parts, part, value);
  if (part->kind != PRECOMPILED) return true;
  const char *table = ortolan_string(value, "precompiled_charsmap");
  return table != NULL &&
         (ortolan_charsmap_read(table, &part->text, &part->size) ||
          ortolan_invalid(value, "precompiled_charsmap", "a complete table of SentencePiece"));
}

/* --- steps from one text to another --- */

static void normal_form(int kind, const ortolan_text *from, ortolan_text *to) {
  bool is_ascii = true;
  for (size_t i = 0; i < from->size; i++) is_ascii &= (unsigned char)from->bytes[i] < 0x80;
  if (is_ascii) {
    ortolan_text_add(to, from->bytes, from->size);
    return;
  }
  bool compatible = kind == NFKD || kind == NFKC, composed = kind == NFC || kind == NFKC;
  size_t count;
  uint32_t *points = ortolan_normal_form(from->bytes, from->size, compatible, composed, &count);
  if (points == NULL) to->failed = true;
  for (size_t i = 0; points != NULL && i < count; i++) ortolan_text_point(to, points[i]);
  free(points);
}

static bool is_chinese(uint32_t c) {
  static const uint32_t ranges[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                       {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                       {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
    if (c >= ranges[i][0] && c <= ranges[i][1]) return true;
  return false;
}

/* Steps that look at single characters. Each returns how many it writes to `out`. */
static size_t step(int kind, uint32_t c, uint32_t out[3]) {
  uint32_t flags = ortolan_flags(c);
  out[0] = c;
  switch (kind) {
    case CLEAN:
      if (flags & ORTOLAN_IS_SPACE) out[0] = ' ';
      return !(flags & ORTOLAN_IS_OTHER);
    case CHINESE:
      if (!is_chinese(c)) return 1;
      out[0] = out[2] = ' ', out[1] = c;
      return 3;
    case ACCENTS:
      return !(flags & ORTOLAN_IS_NONSPACING);
    case STRIP_ACCENTS:
      return !(flags & ORTOLAN_IS_MARK);
    default:
      return ortolan_lower(c, out);
  }
}

static void each_character(int kind, const ortolan_text *from, ortolan_text *to, bool *first) {
  uint32_t point, out[3];
  for (size_t at = 0; at < from->size;) {
    size_t size = ortolan_utf8_read(from->bytes + at, &point);
    size_t count = step(kind, point, out);
    if (count == 0 && at == 0) *first = false;
    for (size_t i = 0; i < count; i++) ortolan_text_point(to, out[i]);
    at += size;
  }
}

static void strip(const ortolan_part *part, const ortolan_text *from, ortolan_text *to,
                  bool *first) {
  const char *text = from->bytes;
  size_t size = from->size;
  ortolan_strip(&text, &size, part->flags[0], part->flags[1]);
  if (text > from->bytes) *first = false;
  ortolan_text_add(to, text, size);
}

static bool normalize(const ortolan_part *part, const ortolan_text *from, ortolan_text *to,
                      bool *first) {
  switch (part->kind) {
    case NFD:
    case NFC:
    case NFKD:
    case NFKC:
      normal_form(part->kind, from, to);
      return true;
    case STRIP:
      strip(part, from, to, first);
      return true;
    case REPLACE:
      return ortolan_pattern_replace(&part->pattern, part->text, part->size, from->bytes,
                                     from->size, to);
    case PREPEND:
      if (from->size > 0) ortolan_text_add(to, part->text, part->size);
      ortolan_text_add(to, from->bytes, from->size);
      return true;
    case PRECOMPILED:
      ortolan_charsmap_apply(part->text, part->size, from, to);
      return true;
    case BYTE_LEVEL:
      ortolan_spell_bytes(to, from->bytes, from->size);
      return true;
    default:
      each_character(part->kind, from, to, first);
      return true;
  }
}

bool ortolan_normalize(const ortolan_parts *parts, ortolan_text *text, bool *first) {
  ortolan_text other = {.size = 0}, before;
  bool ok = true;
  for (size_t i = 0; ok && i < parts->count; i++) {
    other.size = 0;
    ok = normalize(&parts->items[i], text, &other, first);
    before = *text, *text = other, other = before;
    if (ok && (text->failed || other.failed)) ok = ortolan_text_error(text);
  }
  free(other.bytes);
  return ok;
}
