#include "tokenizer.h"

enum {
  NFD, NFC, NFKD, NFKC, LOWERCASE, STRIP_ACCENTS, STRIP, REPLACE, PREPEND, BERT, PRECOMPILED, NMT,
  BYTE_LEVEL
};

static const char *const types[] = {"NFD", "NFC", "NFKD", "NFKC", "Lowercase", "StripAccents",
                                    "Strip", "Replace", "Prepend", "BertNormalizer", "Precompiled",
                                    "Nmt", "ByteLevel"};

bool ortolan_read_normalizer(ortolan_part *part, const char *type, const json_value *value,
                             const ortolan_unicode *unicode, const ortolan_fields *in) {
  const int count = sizeof types / sizeof *types;
  for (part->kind = 0; part->kind < count && strcmp(types[part->kind], type) != 0;) part->kind++;
  if (part->kind == count) return ortolan_unknown_part(in, "normalizer", type);
  part->pattern.unicode = unicode;
  const char *table;
  switch (part->kind) {
    case STRIP:
      part->flag = ortolan_flag(value, "strip_left", true);
      part->second = ortolan_flag(value, "strip_right", true);
      return true;
    case REPLACE:
      return ortolan_part_text(part, value, "normalizer", "content", in) &&
             ortolan_pattern_read(&part->pattern, value, "normalizer", in);
    case PREPEND:
      return ortolan_part_text(part, value, "normalizer", "prepend", in);
    case BERT:
      part->flag = ortolan_flag(value, "clean_text", true);
      part->second = ortolan_flag(value, "handle_chinese_chars", true);
      part->third = ortolan_flag(value, "lowercase", true);
      part->fourth = ortolan_flag(value, "strip_accents", part->third);
      return true;
    case PRECOMPILED:
      table = ortolan_string(in, value, "normalizer", "precompiled_charsmap");
      if (table == NULL) return false;
      part->table = ortolan_charsmap_read(table);
      return part->table != NULL || ortolan_invalid(in, "normalizer.precompiled_charsmap",
                                                    "a complete table of SentencePiece");
    default:
      return true;
  }
}

/* --- steps from one text to another --- */

static void normal_form(const ortolan_unicode *unicode, const ortolan_text *from, ortolan_text *to,
                        bool compatible, bool composed) {
  bool is_ascii = true;
  for (size_t i = 0; i < from->size; i++) is_ascii &= (unsigned char)from->bytes[i] < 0x80;
  if (is_ascii) {
    ortolan_text_add(to, from->bytes, from->size);
    return;
  }
  size_t count;
  uint32_t *points =
      ortolan_normal_form(unicode, from->bytes, from->size, compatible, composed, &count);
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
enum { CLEAN, CHINESE, ACCENTS, MARKS, LOWER, NMT_SPACES };

static size_t step(int which, const ortolan_unicode *unicode, uint32_t c, uint32_t out[3]) {
  uint32_t flags = ortolan_flags(unicode, c);
  out[0] = c;
  switch (which) {
    case CLEAN:
      if (flags & ORTOLAN_IS_SPACE) out[0] = ' ';
      return !(flags & ORTOLAN_IS_OTHER);
    case CHINESE:
      if (!is_chinese(c)) return 1;
      out[0] = out[2] = ' ', out[1] = c;
      return 3;
    case ACCENTS:
      return !(flags & ORTOLAN_IS_NONSPACING);
    case MARKS:
      return !(flags & ORTOLAN_IS_MARK);
    case LOWER:
      return ortolan_lower(unicode, c, out);
    default:
      if (c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
          c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD)
        out[0] = ' ';
      return !((c >= 1 && c < 9) || c == 11 || (c > 13 && c < 32) || c == 0x7F || c == 0x8F ||
               c == 0x9F);
  }
}

static void each_character(int which, const ortolan_unicode *unicode, const ortolan_text *from,
                           ortolan_text *to, bool *first) {
  uint32_t point, out[3];
  for (size_t at = 0; at < from->size;) {
    size_t size = ortolan_utf8_read(from->bytes + at, &point);
    size_t count = step(which, unicode, point, out);
    if (count == 0 && at == 0) *first = false;
    for (size_t i = 0; i < count; i++) ortolan_text_point(to, out[i]);
    at += size;
  }
}

static void strip(const ortolan_part *part, const ortolan_unicode *unicode,
                  const ortolan_text *from, ortolan_text *to, bool *first) {
  const char *text = from->bytes;
  size_t size = from->size;
  ortolan_strip(unicode, &text, &size, part->flag, part->second);
  if (text > from->bytes) *first = false;
  ortolan_text_add(to, text, size);
}

/* Swap the result of a step into the text, and empty the other for the next. */
static void next(ortolan_text *text, ortolan_text *other) {
  ortolan_text_swap(text, other);
  other->size = 0;
}

static void bert(const ortolan_part *part, const ortolan_unicode *unicode, ortolan_text *text,
                 ortolan_text *other, bool *first) {
  if (part->flag) each_character(CLEAN, unicode, text, other, first), next(text, other);
  if (part->second) each_character(CHINESE, unicode, text, other, first), next(text, other);
  if (part->fourth) {
    normal_form(unicode, text, other, false, false), next(text, other);
    each_character(ACCENTS, unicode, text, other, first), next(text, other);
  }
  if (part->third) each_character(LOWER, unicode, text, other, first), next(text, other);
}

static bool normalize(const ortolan_part *part, const ortolan_unicode *unicode, ortolan_text *text,
                      ortolan_text *other, bool *first, ortolan_error *error) {
  switch (part->kind) {
    case LOWERCASE:
    case STRIP_ACCENTS:
    case NMT:
      each_character(part->kind == NMT         ? NMT_SPACES
                     : part->kind == LOWERCASE ? LOWER
                                               : MARKS,
                     unicode, text, other, first);
      break;
    case STRIP:
      strip(part, unicode, text, other, first);
      break;
    case REPLACE:
      if (!ortolan_pattern_replace(&part->pattern, part->text, part->size, text->bytes, text->size,
                                   other, error))
        return false;
      break;
    case PREPEND:
      if (text->size > 0) ortolan_text_add(other, part->text, part->size);
      ortolan_text_add(other, text->bytes, text->size);
      break;
    case BERT:
      bert(part, unicode, text, other, first);
      return true;
    case PRECOMPILED:
      ortolan_charsmap_apply(part->table, unicode, text, other);
      break;
    case BYTE_LEVEL:
      ortolan_spell_bytes(other, text->bytes, text->size);
      break;
    default:
      normal_form(unicode, text, other, part->kind >= NFKD,
                  part->kind == NFC || part->kind == NFKC);
  }
  next(text, other);
  return true;
}

bool ortolan_normalize(const ortolan_parts *parts, const ortolan_unicode *unicode,
                       ortolan_text *text, bool *first, ortolan_error *error) {
  ortolan_text other = {.size = 0};
  bool ok = true;
  for (size_t i = 0; ok && i < parts->count; i++) {
    ok = normalize(&parts->items[i], unicode, text, &other, first, error);
    if (ok && (text->failed || other.failed)) ok = ortolan_text_error(text, error);
  }
  free(other.bytes);
  return ok;
}
