#include "tokenizer.h"

enum {
  BYTE_LEVEL, SPLIT, METASPACE, WHITESPACE, WHITESPACE_SPLIT, BERT, DIGITS, PUNCTUATION,
  CHAR_DELIMITER, FIXED_LENGTH
};

static const char *const types[] = {"ByteLevel", "Split", "Metaspace", "Whitespace",
                                    "WhitespaceSplit", "BertPreTokenizer", "Digits", "Punctuation",
                                    "CharDelimiterSplit", "FixedLength"};

static bool read_behavior(ortolan_part *part, const json_value *value, const char *path,
                          const ortolan_fields *in) {
  static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                      "MergedWithNext"};
  if (part->kind == PUNCTUATION && ortolan_json_field(value, "behavior") == NULL) return true;
  const char *name = ortolan_string(in, value, path, "behavior");
  for (part->number = 0; name != NULL && part->number < 5; part->number++)
    if (strcmp(names[part->number], name) == 0) return true;
  return name != NULL && ortolan_unknown_part(in, "behavior", name);
}

static bool read_metaspace(ortolan_part *part, const json_value *value, const char *path,
                           const ortolan_fields *in) {
  const json_value *scheme = ortolan_json_field(value, "prepend_scheme");
  const char *name = scheme != NULL && scheme->type == JSON_STRING ? scheme->string : "always";
  if (!ortolan_flag(value, "add_prefix_space", true)) name = "never";
  part->flag = strcmp(name, "always") == 0;
  part->second = strcmp(name, "first") == 0;
  part->third = ortolan_flag(value, "split", true);
  if (!part->flag && !part->second && strcmp(name, "never") != 0)
    return ortolan_unknown_part(in, "prepend_scheme", name);
  return ortolan_part_text(part, value, path, "replacement", in);
}

bool ortolan_read_pre_tokenizer(ortolan_part *part, const char *type, const json_value *value,
                                const ortolan_unicode *unicode, const ortolan_fields *in) {
  const int count = sizeof types / sizeof *types;
  const char *path = "pre_tokenizer";
  for (part->kind = 0; part->kind < count && strcmp(types[part->kind], type) != 0;) part->kind++;
  part->pattern = (ortolan_pattern){.kind = ORTOLAN_PATTERN_FLAG, .unicode = unicode};
  switch (part->kind) {
    case BYTE_LEVEL:
      part->pattern.kind = ORTOLAN_PATTERN_GPT2;
      part->flag = ortolan_flag(value, "add_prefix_space", true);
      part->second = ortolan_flag(value, "use_regex", true);
      return true;
    case SPLIT:
      part->flag = ortolan_flag(value, "invert", false);
      return read_behavior(part, value, path, in) &&
             ortolan_pattern_read(&part->pattern, value, path, in);
    case METASPACE:
      return read_metaspace(part, value, path, in);
    case WHITESPACE:
      part->pattern.kind = ORTOLAN_PATTERN_WORDS;
      part->number = ORTOLAN_REMOVED, part->flag = true;
      return true;
    case DIGITS:
      part->pattern.flag = ORTOLAN_IS_NUMERIC;
      part->number =
          ortolan_flag(value, "individual_digits", false) ? ORTOLAN_ISOLATED : ORTOLAN_CONTIGUOUS;
      return true;
    case PUNCTUATION:
      part->pattern.flag = ORTOLAN_IS_PUNCTUATION;
      return read_behavior(part, value, path, in);
    case CHAR_DELIMITER:
      return ortolan_part_text(part, value, path, "delimiter", in) && (part->size > 0 ||
             ortolan_invalid(in, path, "one with a delimiter"));
    case FIXED_LENGTH:
      part->number = 5;
      return ortolan_json_field(value, "length") == NULL ||
             ortolan_integer(in, value, path, "length", 1, 1 << 30, &part->number);
    default:
      part->pattern.flag = ORTOLAN_IS_SPACE;
      part->number = ORTOLAN_REMOVED;
      return part->kind < count || ortolan_unknown_part(in, path, type);
  }
}

/* --- steps from pieces to smaller pieces --- */

static ortolan_pattern literal(const ortolan_part *part) {
  return (ortolan_pattern){
      .kind = ORTOLAN_PATTERN_LITERAL, .literal = part->text, .size = part->size};
}

static bool metaspace(const ortolan_part *part, const char *text, size_t size, bool first,
                      ortolan_pieces *to, ortolan_error *error) {
  const ortolan_pattern marks = literal(part);
  ortolan_text marked = {.size = 0};
  bool begins = size > 0 && (text[0] == ' ' || (size >= part->size &&
                                                memcmp(text, part->text, part->size) == 0));
  if (!begins && (part->flag || (part->second && first)))
    ortolan_text_add(&marked, part->text, part->size);
  for (size_t i = 0; i < size; i++) {
    if (text[i] == ' ') ortolan_text_add(&marked, part->text, part->size);
    else ortolan_text_add(&marked, text + i, 1);
  }
  bool ok = true;
  if (marked.failed) to->text.failed = true;
  else if (!part->third) ortolan_pieces_add(to, marked.bytes, marked.size, -1, first);
  else ok = ortolan_pattern_split(&marks, ORTOLAN_MERGED_WITH_NEXT, false, marked.bytes,
                                  marked.size, first, to, error);
  free(marked.bytes);
  return ok;
}

static bool byte_level(const ortolan_part *part, const char *text, size_t size, bool first,
                       ortolan_pieces *to, ortolan_error *error) {
  ortolan_text spaced = {.size = 0}, spelled = {.size = 0};
  ortolan_pieces words = {.count = 0};
  bool ok = true;
  if (part->flag && text[0] != ' ') ortolan_text_add(&spaced, " ", 1);
  ortolan_text_add(&spaced, text, size);
  if (spaced.failed) words.text.failed = true;
  else if (!part->second) ortolan_pieces_add(&words, spaced.bytes, spaced.size, -1, first);
  else ok = ortolan_pattern_split(&part->pattern, ORTOLAN_ISOLATED, false, spaced.bytes,
                                  spaced.size, first, &words, error);
  for (size_t i = 0; i < words.count; i++) {
    spelled.size = 0;
    ortolan_spell_bytes(&spelled, words.text.bytes + words.items[i].start, words.items[i].size);
    ortolan_pieces_add(to, spelled.bytes, spelled.size, -1, words.items[i].first);
  }
  if (words.text.failed || spelled.failed) to->text.failed = true;
  free(spaced.bytes);
  free(spelled.bytes);
  ortolan_pieces_free(&words);
  return ok;
}

/* BERT's: words, then punctuation on its own. */
static bool bert(const ortolan_part *part, const char *text, size_t size, bool first,
                 ortolan_pieces *to, ortolan_error *error) {
  ortolan_pattern punctuation = part->pattern;
  ortolan_pieces words = {.count = 0};
  punctuation.flag = ORTOLAN_IS_PUNCTUATION;
  bool ok = ortolan_pattern_split(&part->pattern, ORTOLAN_REMOVED, false, text, size, first, &words,
                                  error);
  for (size_t i = 0; ok && i < words.count; i++)
    ok = ortolan_pattern_split(&punctuation, ORTOLAN_ISOLATED, false,
                               words.text.bytes + words.items[i].start, words.items[i].size,
                               words.items[i].first, to, error);
  if (words.text.failed) to->text.failed = true;
  ortolan_pieces_free(&words);
  return ok;
}

static void fixed_length(const ortolan_part *part, const char *text, size_t size, bool first,
                         ortolan_pieces *to) {
  uint32_t point;
  for (size_t start = 0, end = 0; start < size; start = end) {
    for (int64_t i = 0; i < part->number && end < size; i++)
      end += ortolan_utf8_read(text + end, &point);
    ortolan_pieces_add(to, text + start, end - start, -1, first && start == 0);
  }
}

static bool split(const ortolan_part *part, const char *text, size_t size, bool first,
                  ortolan_pieces *to, ortolan_error *error) {
  const ortolan_pattern delimiter = literal(part);
  switch (part->kind) {
    case BYTE_LEVEL:
      return byte_level(part, text, size, first, to, error);
    case METASPACE:
      return metaspace(part, text, size, first, to, error);
    case BERT:
      return bert(part, text, size, first, to, error);
    case FIXED_LENGTH:
      fixed_length(part, text, size, first, to);
      return true;
    case CHAR_DELIMITER:
      return ortolan_pattern_split(&delimiter, ORTOLAN_REMOVED, false, text, size, first, to,
                                   error);
    default:
      return ortolan_pattern_split(&part->pattern, (ortolan_behavior)part->number, part->flag, text,
                                   size, first, to, error);
  }
}

bool ortolan_pre_tokenize(const ortolan_parts *parts, ortolan_pieces *pieces,
                          ortolan_error *error) {
  ortolan_pieces smaller = {.count = 0};
  bool ok = true;
  for (size_t i = 0; ok && i < parts->count; i++) {
    for (size_t k = 0; ok && k < pieces->count; k++) {
      const ortolan_piece *piece = &pieces->items[k];
      const char *text = pieces->text.bytes + piece->start;
      if (piece->token >= 0)
        ortolan_pieces_add(&smaller, text, piece->size, piece->token, piece->first);
      else
        ok = split(&parts->items[i], text, piece->size, piece->first, &smaller, error);
    }
    if (ok && smaller.text.failed) ok = ortolan_text_error(&smaller.text, error);
    ortolan_pieces_swap(pieces, &smaller);
    ortolan_pieces_clear(&smaller);
  }
  ortolan_pieces_free(&smaller);
  return ok;
}
