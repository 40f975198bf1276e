#include "tokenizer.h"

enum { BYTE_LEVEL, SPLIT, METASPACE, WHITESPACE, WHITESPACE_SPLIT, BERT, DIGITS, PUNCTUATION };

static const ortolan_part_kind kinds[] = {
    {.type = "ByteLevel", .flags = {"add_prefix_space", "use_regex"}},
    {.type = "Split", .flags = {"!invert"}, .has_pattern = true},
    {.type = "Metaspace", .flags = {"add_prefix_space", "!", "split"}, .text = "replacement"},
    {.type = "Whitespace"},
    {.type = "WhitespaceSplit"},
    {.type = "BertPreTokenizer"},
    {.type = "Digits", .flags = {"!", "!individual_digits"}},
    {.type = "Punctuation"}};

enum { ALWAYS, FIRST, SPLITS }; /* flags of Metaspace: where a mark comes first; words */

static bool read_behavior(ortolan_part *part, const json_value *value) {
  static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                      "MergedWithNext"};
  if (part->kind == PUNCTUATION && ortolan_json_field(value, "behavior") == NULL) return true;
  const char *name = ortolan_string(value, "behavior");
  if (name == NULL) return false;
  part->number = (int64_t)ortolan_place(names, 5, name);
  return part->number < 5 || ortolan_unknown_part("behavior", name);
}

static bool read_scheme(ortolan_part *part, const json_value *value) {
  const char *name = "always";
  if (!ortolan_optional_string(value, "prepend_scheme", &name)) return false;
  if (!part->flags[ALWAYS]) name = "never";
  part->flags[ALWAYS] = strcmp(name, "always") == 0;
  part->flags[FIRST] = strcmp(name, "first") == 0;
  return part->flags[ALWAYS] || part->flags[FIRST] || strcmp(name, "never") == 0 ||
         ortolan_unknown_part("prepend_scheme", name);
}

/* Let a part split at characters with a flag. */
static bool split_at(ortolan_part *part, uint32_t flag, ortolan_behavior behavior) {
  part->pattern = (ortolan_pattern){.kind = ORTOLAN_PATTERN_FLAG, .flag = flag};
  part->number = behavior;
  return true;
}

/* GPT-2's: a space, words, letters for bytes. */
static bool read_byte_level(ortolan_parts *parts, ortolan_part *part) {
  part->kind = METASPACE;
  if (part->flags[1]) ortolan_part_add(parts, SPLIT)->pattern.kind = ORTOLAN_PATTERN_GPT2;
  part->flags[FIRST] = false;
  ortolan_part_add(parts, BYTE_LEVEL);
  return ortolan_copy(" ", &part->text, &part->size);
}

static bool read_metaspace(ortolan_parts *parts, ortolan_part *part, const json_value *value) {
  ortolan_part *words = part->flags[SPLITS] ? ortolan_part_add(parts, SPLIT) : NULL;
  if (words != NULL) words->number = ORTOLAN_MERGED_WITH_NEXT;
  return read_scheme(part, value) &&
         (words == NULL || ortolan_copy(part->text, &words->pattern.literal, &words->pattern.size));
}

bool ortolan_read_pre_tokenizer(ortolan_parts *parts, const json_value *value) {
  const size_t count = sizeof kinds / sizeof *kinds;
  ortolan_part *part = ortolan_part_read(parts, kinds, count, "pre_tokenizer", value);
  if (part == NULL) return false;
  switch (part->kind) {
    case BYTE_LEVEL:
      return read_byte_level(parts, part);
    case SPLIT:
      return read_behavior(part, value);
    case METASPACE:
      return read_metaspace(parts, part, value);
    case WHITESPACE:
      part->pattern.kind = ORTOLAN_PATTERN_WORDS;
      part->number = ORTOLAN_REMOVED, part->flags[0] = true;
      return true;
    case WHITESPACE_SPLIT:
      return split_at(part, ORTOLAN_IS_SPACE, ORTOLAN_REMOVED);
    case BERT: /* words, then punctuation on its own */
      return split_at(part, ORTOLAN_IS_SPACE, ORTOLAN_REMOVED) &&
             split_at(ortolan_part_add(parts, SPLIT), ORTOLAN_IS_PUNCTUATION, ORTOLAN_ISOLATED);
    case DIGITS:
      return split_at(part, ORTOLAN_IS_NUMERIC,
                      part->flags[1] ? ORTOLAN_ISOLATED : ORTOLAN_CONTIGUOUS);
    default: /* PUNCTUATION */
      return split_at(part, ORTOLAN_IS_PUNCTUATION, ORTOLAN_ISOLATED) && read_behavior(part, value);
  }
}

/* --- steps from pieces to smaller pieces --- */

/* Write marks for spaces, and one at the start. */
static void mark(const ortolan_part *part, const char *text, size_t size, bool first,
                 ortolan_pieces *to) {
  size_t start = to->text.size;
  bool begins = size > 0 && (text[0] == ' ' ||
                             (size >= part->size && memcmp(text, part->text, part->size) == 0));
  if (!begins && (part->flags[ALWAYS] || (part->flags[FIRST] && first)))
    ortolan_text_add(&to->text, part->text, part->size);
  const char *end = text + size;
  for (const char *space; (space = memchr(text, ' ', (size_t)(end - text))); text = space + 1) {
    ortolan_text_add(&to->text, text, (size_t)(space - text));
    ortolan_text_add(&to->text, part->text, part->size);
  }
  ortolan_text_add(&to->text, text, (size_t)(end - text));
  ortolan_pieces_end(to, start, -1, first);
}

static bool split(const ortolan_part *part, const char *text, size_t size, bool first,
                  ortolan_pieces *to) {
  size_t start = to->text.size;
  switch (part->kind) {
    case BYTE_LEVEL:
      ortolan_spell_bytes(&to->text, text, size);
      ortolan_pieces_end(to, start, -1, first);
      return true;
    case METASPACE:
      mark(part, text, size, first, to);
      return true;
    default:
      return ortolan_pattern_split(&part->pattern, (ortolan_behavior)part->number, part->flags[0],
                                   text, size, first, to);
  }
}

bool ortolan_pre_tokenize(const ortolan_parts *parts, ortolan_pieces *pieces) {
  ortolan_pieces smaller = {.count = 0};
  bool ok = true;
  for (size_t i = 0; ok && i < parts->count; i++) {
    for (size_t k = 0; ok && k < pieces->count; k++) {
      const ortolan_piece *piece = &pieces->items[k];
      const char *text = pieces->text.bytes + piece->start;
      if (piece->token >= 0)
        ortolan_pieces_add(&smaller, text, piece->size, piece->token, piece->first);
      else ok = split(&parts->items[i], text, piece->size, piece->first, &smaller);
    }
    if (ok && smaller.text.failed) ok = ortolan_text_error(&smaller.text);
    ortolan_pieces_swap(pieces, &smaller);
  }
  ortolan_pieces_free(&smaller);
  return ok;
}
