/* Searches for what splits a text: texts, characters, GPT-2's words, regular expressions. */
#include "tokenizer.h"

#ifdef ORTOLAN_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#define MATCH_LIMIT 10000000 /* steps of one search: bounds the time of a hostile pattern */
#define HEAP_LIMIT_KB 65536
#endif

static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* --- regular expressions --- */

#ifdef ORTOLAN_PCRE2
/* Write the classes within classes of Oniguruma, [a[bc]], as one class. Returns false for those
 * that PCRE2 cannot express. */
static bool flatten(const char *text, char *to) {
  int depth = 0;
  for (; *text != 0; text++) {
    bool opens = *text == '[' && text[1] != ':', closes = *text == ']' && depth > 0;
    if (*text == '[' && depth > 0 && text[1] == '^') return false;
    if (*text == '[' && text[1] == ':' && depth > 0) { /* [:alpha:] */
      const char *end = strstr(text, ":]");
      if (end == NULL) return false;
      while (text <= end) *to++ = *text++;
    }
    if (*text == '\\' && text[1] != 0) *to++ = *text++;
    else if ((opens && depth++ > 0) || (closes && depth-- > 1)) continue;
    *to++ = *text;
  }
  *to = 0;
  return true;
}

static bool compile(ortolan_pattern *pattern, const char *text) {
  /* Oniguruma, which Python uses, reads these in another way */
  static const char *const other[] = {"\\w", "\\W", "\\b", "\\B", "\\h", "\\H", "(?m", "&&"};
  for (size_t i = 0; i < sizeof other / sizeof *other; i++)
    if (strstr(text, other[i]) != NULL)
      return ortolan_fail(ORTOLAN_TOKENIZER,
                          "tokenizer.json: the pattern `%.60s` has `%s`, which PCRE2 reads "
                          "differently. Use Ortolan's Python runtime.",
                          text, other[i]);
  for (const char *at = text; (at = strstr(at, "}+")) != NULL; at++)
    if (at > text && ((at[-1] >= '0' && at[-1] <= '9') || at[-1] == ',')) /* not of \p{L}+ */
      return ortolan_unknown_part("pattern with a possessive count", text);
  int problem;
  PCRE2_SIZE place;
  char *flat = calloc(strlen(text) + 1, 1);
  if (flat == NULL) return ortolan_no_memory();
  bool is_flat = flatten(text, flat);
  pattern->regex = pcre2_compile((PCRE2_SPTR)flat, PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                 &problem, &place, NULL);
  free(flat);
  if (!is_flat) return ortolan_unknown_part("pattern with a class in a class", text);
  if (pattern->regex != NULL) return true;
  unsigned char message[128] = "";
  pcre2_get_error_message(problem, message, sizeof message);
  return ortolan_fail(ORTOLAN_TOKENIZER,
                      "tokenizer.json: the pattern `%.60s` is wrong: %s (at byte %zu).", text,
                      (const char *)message, (size_t)place);
}

static int search(const ortolan_pattern *pattern, const char *text, size_t size, size_t from,
                  size_t *start, size_t *end) {
  pcre2_match_context *limits = pcre2_match_context_create(NULL);
  pcre2_match_data *match = pcre2_match_data_create(1, NULL);
  int found = -1;
  if (limits != NULL && match != NULL) {
    pcre2_set_match_limit(limits, MATCH_LIMIT);
    pcre2_set_heap_limit(limits, HEAP_LIMIT_KB);
    int count = pcre2_match(pattern->regex, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, match,
                            limits);
    if (count == PCRE2_ERROR_NOMATCH) found = 0;
    if (count >= 0) {
      const PCRE2_SIZE *places = pcre2_get_ovector_pointer(match);
      *start = places[0], *end = places[1];
      found = 1;
    }
  }
  pcre2_match_data_free(match);
  pcre2_match_context_free(limits);
  return found;
}
#else
static bool compile(ortolan_pattern *pattern, const char *text) {
  (void)pattern;
  return ortolan_fail(ORTOLAN_TOKENIZER,
                      "tokenizer.json needs regular expressions for the pattern `%.60s`. Build the "
                      "library with -DORTOLAN_PCRE2=ON.",
                      text);
}

#define search(pattern, text, size, from, start, end) (-1)
#endif

ortolan_pattern ortolan_literal(const char *text, size_t size) {
  return (ortolan_pattern){.kind = ORTOLAN_PATTERN_LITERAL, .literal = (char *)text, .size = size};
}

bool ortolan_pattern_read(ortolan_pattern *pattern, const json_value *part) {
  const json_value *object = ortolan_object(part, "pattern");
  if (object == NULL) return false;
  const json_value *literal = ortolan_json_field(object, "String");
  const char *text = ortolan_string(object, literal != NULL ? "String" : "Regex");
  if (text == NULL) return false;
  if (*text == 0) return ortolan_invalid(part, "pattern", "one that is not empty");
  pattern->kind = literal != NULL           ? ORTOLAN_PATTERN_LITERAL
                  : strcmp(text, gpt2) == 0 ? ORTOLAN_PATTERN_GPT2
                                            : ORTOLAN_PATTERN_REGEX;
  if (pattern->kind == ORTOLAN_PATTERN_REGEX) return compile(pattern, text);
  return ortolan_copy(text, &pattern->literal, &pattern->size);
}

void ortolan_pattern_free(ortolan_pattern *pattern) {
#ifdef ORTOLAN_PCRE2
  pcre2_code_free(pattern->regex);
#endif
  free(pattern->literal);
}

/* --- the others --- */

/* Flags of the character at an offset, and the offset behind it. */
static uint32_t flags_at(const char *text, size_t at, size_t *behind) {
  uint32_t point;
  *behind = at + ortolan_utf8_read(text + at, &point);
  return ortolan_flags(point);
}

/* The end of the characters that have one of these flags, or have none of them. */
static size_t run_end(const char *text, size_t size, size_t at, uint32_t flags, bool has) {
  for (size_t behind; at < size; at = behind)
    if (((flags_at(text, at, &behind) & flags) != 0) != has) break;
  return at;
}

/* GPT-2's pattern matches at every character: returns the end. */
static size_t gpt2_end(const char *text, size_t size, size_t at) {
  static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
  const uint32_t kinds[] = {ORTOLAN_IS_LETTER, ORTOLAN_IS_NUMBER,
                            ORTOLAN_IS_LETTER | ORTOLAN_IS_NUMBER | ORTOLAN_IS_SPACE};
  for (size_t i = 0; text[at] == '\'' && i < 7; i++) {
    size_t length = strlen(endings[i]);
    if (size - at > length && memcmp(text + at + 1, endings[i], length) == 0)
      return at + 1 + length;
  }
  size_t word = at + (text[at] == ' ');
  for (size_t i = 0; i < 3; i++) {
    size_t end = run_end(text, size, word, kinds[i], i < 2);
    if (end > word) return end;
  }
  size_t end = run_end(text, size, at, ORTOLAN_IS_SPACE, true);
  size_t last = end - ortolan_utf8_last(text, end);
  return end < size && last > at ? last : end; /* the last space belongs to the next word */
}

static int find_literal(const ortolan_pattern *pattern, const char *text, size_t size, size_t from,
                        size_t *start, size_t *end) {
  while (size - from >= pattern->size) {
    const char *place = memchr(text + from, pattern->literal[0], size - from - pattern->size + 1);
    if (place == NULL) return 0;
    *start = (size_t)(place - text), *end = *start + pattern->size;
    if (memcmp(place, pattern->literal, pattern->size) == 0) return 1;
    from = *start + 1;
  }
  return 0;
}

int ortolan_pattern_next(const ortolan_pattern *pattern, const char *text, size_t size, size_t from,
                         size_t *start, size_t *end) {
  switch (pattern->kind) {
    case ORTOLAN_PATTERN_LITERAL:
      return find_literal(pattern, text, size, from, start, end);
    case ORTOLAN_PATTERN_FLAG:
      *start = run_end(text, size, from, pattern->flag, false);
      if (*start < size) flags_at(text, *start, end);
      return *start < size;
    case ORTOLAN_PATTERN_WORDS:
      *start = run_end(text, size, from, ORTOLAN_IS_SPACE, true);
      *end = run_end(text, size, *start, ORTOLAN_IS_WORD, true);
      if (*end == *start)
        *end = run_end(text, size, *start, ORTOLAN_IS_WORD | ORTOLAN_IS_SPACE, false);
      return *start < size;
    case ORTOLAN_PATTERN_GPT2:
      *start = from;
      if (from < size) *end = gpt2_end(text, size, from);
      return from < size;
    default:
      return search(pattern, text, size, from, start, end);
  }
}

/* A search for one match after the other, from `from` on. */
typedef struct {
  const ortolan_pattern *pattern;
  const char *text;
  size_t size, from, start, end; /* start and end: of the last match */
} matches;

/* Find the next match. Returns false at the end, and sets `ok` to false if the search gave up. */
static bool next_match(matches *m, bool *ok) {
  const size_t before = m->end;
  uint32_t point;
  while (m->from <= m->size && m->size > 0) {
    int found = ortolan_pattern_next(m->pattern, m->text, m->size, m->from, &m->start, &m->end);
    if (found < 0)
      *ok = ortolan_fail(ORTOLAN_TOKENIZER,
                         "A pattern of tokenizer.json takes too long on this text. Do not use "
                         "this tokenizer.");
    if (found <= 0) break;
    m->from = m->end;
    if (m->end > m->start) return true;
    /* an empty match: go on behind the next character */
    m->from += m->end < m->size ? ortolan_utf8_read(m->text + m->end, &point) : 1;
    if (m->end != before || before == 0) return true;
  }
  return false;
}

typedef struct {
  ortolan_behavior behavior;
  bool first, before; /* `before`: whether the last span was a match */
  const char *text;
  size_t start, end; /* a piece that may still grow */
  ortolan_pieces *pieces;
} splitting;

static void put(const splitting *s) {
  ortolan_pieces_add(s->pieces, s->text + s->start, s->end - s->start, -1,
                     s->first && s->start == 0);
}

/* Add a match, or the stretch between two. */
static void add_span(splitting *s, size_t start, size_t end, bool is_match) {
  if (s->behavior == ORTOLAN_REMOVED && is_match) return;
  bool joins = s->behavior == ORTOLAN_CONTIGUOUS             ? is_match == s->before
               : s->behavior == ORTOLAN_MERGED_WITH_PREVIOUS ? is_match && !s->before
               : s->behavior == ORTOLAN_MERGED_WITH_NEXT     ? !is_match && s->before
                                                             : false;
  if (!joins || s->end != start) {
    put(s);
    s->start = start;
  }
  s->end = end;
  s->before = is_match;
}

bool ortolan_pattern_split(const ortolan_pattern *pattern, ortolan_behavior behavior, bool invert,
                           const char *text, size_t size, bool first, ortolan_pieces *pieces) {
  splitting s = {.behavior = behavior, .first = first, .text = text, .pieces = pieces};
  matches m = {.pattern = pattern, .text = text, .size = size};
  size_t done = 0;
  bool ok = true;
  for (; next_match(&m, &ok); done = m.end) {
    if (m.start > done) add_span(&s, done, m.start, invert);
    add_span(&s, m.start, m.end, !invert);
  }
  if (done < size) add_span(&s, done, size, invert);
  put(&s);
  return ok;
}

bool ortolan_pattern_replace(const ortolan_pattern *pattern, const char *content,
                             size_t content_size, const char *text, size_t size, ortolan_text *to) {
  matches m = {.pattern = pattern, .text = text, .size = size};
  size_t done = 0;
  bool ok = true;
  for (; next_match(&m, &ok); done = m.end) {
    ortolan_text_add(to, text + done, m.start - done);
    ortolan_text_add(to, content, content_size);
  }
  ortolan_text_add(to, text + done, size - done);
  return ok;
}
