/* From the texts of tokens to one text. */
#include "tokenizer.h"

enum { BYTE_LEVEL, METASPACE, WORDPIECE, BYTE_FALLBACK, FUSE, STRIP, REPLACE, CTC, BPE_DECODER };

static const char *const types[] = {"ByteLevel", "Metaspace", "WordPiece", "ByteFallback", "Fuse",
                                    "Strip", "Replace", "CTC", "BPEDecoder"};

bool ortolan_read_decoder(ortolan_part *part, const char *type, const json_value *value,
                          const ortolan_unicode *unicode, const ortolan_fields *in) {
  const int count = sizeof types / sizeof *types;
  const char *path = "decoder", *scheme, *delimiter;
  const json_value *prepend = ortolan_json_field(value, "prepend_scheme");
  for (part->kind = 0; part->kind < count && strcmp(types[part->kind], type) != 0;) part->kind++;
  part->pattern.unicode = unicode;
  switch (part->kind) {
    case METASPACE:
      scheme = prepend != NULL && prepend->type == JSON_STRING ? prepend->string : "always";
      part->flag = ortolan_flag(value, "add_prefix_space", true) && strcmp(scheme, "never") != 0;
      return ortolan_part_text(part, value, path, "replacement", in);
    case WORDPIECE:
      part->flag = ortolan_flag(value, "cleanup", true);
      return ortolan_part_text(part, value, path, "prefix", in);
    case STRIP:
      return ortolan_integer(in, value, path, "start", 0, 1 << 20, &part->number) &&
             ortolan_integer(in, value, path, "stop", 0, 1 << 20, &part->other) &&
             ortolan_part_text(part, value, path, "content", in);
    case REPLACE:
      return ortolan_pattern_read(&part->pattern, value, path, in) &&
             ortolan_part_text(part, value, path, "content", in);
    case CTC: /* the delimiter is the pattern, and the padding the text */
      part->flag = ortolan_flag(value, "cleanup", true);
      delimiter = ortolan_string(in, value, path, "word_delimiter_token");
      if (delimiter == NULL || !ortolan_part_text(part, value, path, "pad_token", in)) return false;
      part->pattern.size = strlen(delimiter);
      part->pattern.literal = malloc(part->pattern.size + 1);
      if (part->pattern.literal == NULL) return ortolan_no_memory(in->error);
      memcpy(part->pattern.literal, delimiter, part->pattern.size + 1);
      return true;
    case BPE_DECODER:
      return ortolan_part_text(part, value, path, "suffix", in);
    default:
      return part->kind < count || ortolan_unknown_part(in, path, type);
  }
}

/* Replace one literal text by another. */
static void replace(ortolan_text *text, ortolan_text *scratch, const char *from, size_t from_size,
                    const char *to) {
  const ortolan_pattern pattern = {.kind = ORTOLAN_PATTERN_LITERAL, .literal = (char *)from,
                                   .size = from_size};
  if (from_size == 0 || text->failed) return;
  scratch->size = 0;
  ortolan_pattern_replace(&pattern, to, strlen(to), text->bytes, text->size, scratch, NULL);
  ortolan_text_swap(text, scratch);
}

static void clean_up(ortolan_text *text, ortolan_text *scratch) {
  static const char *const pairs[][2] = {
      {" .", "."},     {" ?", "?"},     {" !", "!"},           {" ,", ","},
      {" ' ", "'"},    {" n't", "n't"}, {" 'm", "'m"},         {" do not", " don't"},
      {" 's", "'s"},   {" 've", "'ve"}, {" 're", "'re"},
  };
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    replace(text, scratch, pairs[i][0], strlen(pairs[i][0]), pairs[i][1]);
}

/* Replace each broken character by U+FFFD. */
static void add_repaired(ortolan_text *to, const char *bytes, size_t size) {
  bool missing;
  for (size_t at = 0, wrong; at < size; at += wrong) {
    size_t valid = ortolan_utf8_valid(bytes + at, size - at, &missing, &wrong);
    ortolan_text_add(to, bytes + at, valid);
    at += valid;
    if (at == size) break;
    ortolan_text_point(to, 0xFFFD);
  }
}

bool ortolan_is_byte_token(const char *text, size_t size, int *byte) {
  if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return false;
  *byte = 0;
  for (int i = 3; i < 5; i++) {
    static const char digits[] = "0123456789ABCDEF";
    char c = text[i] >= 'a' && text[i] <= 'f' ? (char)(text[i] - 32) : text[i];
    const char *place = c == 0 ? NULL : strchr(digits, c);
    if (place == NULL) *byte = -1;
    if (*byte >= 0) *byte = *byte * 16 + (int)(place - digits);
  }
  return true;
}

/* Runs of byte tokens become characters; if one is broken, each byte of the run becomes U+FFFD. */
static void byte_fallback(const ortolan_pieces *from, ortolan_pieces *to) {
  ortolan_text run = {.size = 0};
  bool missing;
  for (size_t i = 0; i <= from->count; i++) {
    int byte = -1;
    const char *text = i < from->count ? from->text.bytes + from->items[i].start : "";
    size_t size = i < from->count ? from->items[i].size : 0, wrong;
    if (ortolan_is_byte_token(text, size, &byte) && byte >= 0) {
      char one = (char)byte;
      ortolan_text_add(&run, &one, 1);
      continue;
    }
    if (run.size > 0 && ortolan_utf8_valid(run.bytes, run.size, &missing, &wrong) == run.size)
      ortolan_pieces_add(to, run.bytes, run.size, 0, false);
    else
      for (size_t k = 0; k < run.size; k++) ortolan_pieces_add(to, "\xEF\xBF\xBD", 3, 0, false);
    run.size = 0;
    if (i < from->count) ortolan_pieces_add(to, text, size, 0, false);
  }
  if (run.failed) to->text.failed = true;
  free(run.bytes);
}

static void byte_level(const ortolan_pieces *from, ortolan_pieces *to) {
  ortolan_text bytes = {.size = 0}, repaired = {.size = 0};
  for (size_t i = 0; i < from->count; i++)
    ortolan_spelled_bytes(&bytes, from->text.bytes + from->items[i].start, from->items[i].size);
  add_repaired(&repaired, bytes.bytes, bytes.size);
  ortolan_pieces_add(to, repaired.bytes, repaired.size, 0, false);
  if (bytes.failed || repaired.failed) to->text.failed = true;
  free(bytes.bytes);
  free(repaired.bytes);
}

static void strip(const ortolan_part *part, const char *text, size_t size, ortolan_text *to) {
  size_t start = 0, end = size;
  for (int64_t i = 0; i < part->number && end - start >= part->size; i++) {
    if (memcmp(text + start, part->text, part->size) != 0) break;
    start += part->size;
  }
  /* both ends look at the whole token: its characters may be cut twice, never put back */
  for (int64_t i = 0; i < part->other && end >= part->size; i++) {
    if (memcmp(text + end - part->size, part->text, part->size) != 0) break;
    end -= part->size;
  }
  if (end > start) ortolan_text_add(to, text + start, end - start);
}

/* Decoders that look at one token at a time, and at whether it is the first or the last. */
static bool decode_token(const ortolan_part *part, const char *text, size_t size, size_t place,
                         bool is_last, ortolan_text *to, ortolan_text *scratch,
                         ortolan_error *error) {
  bool continues =
      size >= part->size && part->size > 0 && memcmp(text, part->text, part->size) == 0;
  switch (part->kind) {
    case REPLACE:
      return ortolan_pattern_replace(&part->pattern, part->text, part->size, text, size, to, error);
    case STRIP:
      strip(part, text, size, to);
      return true;
    case WORDPIECE:
      if (place > 0 && continues) text += part->size, size -= part->size;
      else if (place > 0 && part->size > 0) ortolan_text_add(to, " ", 1);
      ortolan_text_add(to, text, size);
      if (part->flag) clean_up(to, scratch);
      return true;
    case METASPACE:
      ortolan_text_add(to, text, size);
      replace(to, scratch, part->text, part->size, place == 0 && part->flag ? "" : " ");
      return true;
    case CTC:
      ortolan_text_add(to, text, size);
      replace(to, scratch, part->text, part->size, "");
      if (!part->flag) return true;
      clean_up(to, scratch);
      replace(to, scratch, part->pattern.literal, part->pattern.size, " ");
      return true;
    default:
      ortolan_text_add(to, text, size);
      replace(to, scratch, part->text, part->size, is_last ? "" : " ");
      return true;
  }
}

static bool decode_tokens(const ortolan_part *part, const ortolan_pieces *from, ortolan_pieces *to,
                          ortolan_error *error) {
  ortolan_text text = {.size = 0}, scratch = {.size = 0};
  bool ok = true;
  for (size_t i = 0; ok && i < from->count; i++) {
    const ortolan_piece *piece = &from->items[i], *before = piece - (i > 0);
    const char *bytes = from->text.bytes + piece->start;
    if (part->kind == CTC && i > 0 && before->size == piece->size &&
        memcmp(bytes, from->text.bytes + before->start, piece->size) == 0)
      continue;
    text.size = 0;
    ok = decode_token(part, bytes, piece->size, i, i + 1 == from->count, &text, &scratch, error);
    if (part->kind != CTC || text.size > 0) ortolan_pieces_add(to, text.bytes, text.size, 0, false);
  }
  if (text.failed || scratch.failed) to->text.failed = true;
  free(text.bytes);
  free(scratch.bytes);
  return ok;
}

bool ortolan_decode_pieces(const ortolan_parts *parts, bool has_decoder, ortolan_pieces *pieces,
                           ortolan_text *to, ortolan_error *error) {
  ortolan_pieces next = {.count = 0};
  bool ok = true;
  for (size_t i = 0; ok && i < parts->count; i++) {
    const ortolan_part *part = &parts->items[i];
    if (part->kind == BYTE_FALLBACK) byte_fallback(pieces, &next);
    else if (part->kind == BYTE_LEVEL) byte_level(pieces, &next);
    else if (part->kind == FUSE)
      ortolan_pieces_add(&next, pieces->text.bytes, pieces->text.size, 0, false);
    else ok = decode_tokens(part, pieces, &next, error);
    if (ok && next.text.failed) ok = ortolan_text_error(&next.text, error);
    ortolan_pieces_swap(pieces, &next);
    ortolan_pieces_clear(&next);
  }
  for (size_t i = 0; ok && i < pieces->count; i++) {
    if (!has_decoder && i > 0) ortolan_text_add(to, " ", 1);
    ortolan_text_add(to, pieces->text.bytes + pieces->items[i].start, pieces->items[i].size);
  }
  ortolan_pieces_free(&next);
  return ok && (!to->failed || ortolan_text_error(to, error));
}

ortolan_stream_kind ortolan_decoder_stream(const ortolan_parts *parts, bool *has_bytes) {
  /* in the order of Llama's and Gemma's decoders */
  static const int order[] = {REPLACE, BYTE_FALLBACK, FUSE, STRIP};
  size_t place = 0;
  *has_bytes = false;
  for (size_t i = 0; i < parts->count; i++) *has_bytes |= parts->items[i].kind == BYTE_FALLBACK;
  if (parts->count == 0) return ORTOLAN_STREAM_LOCAL;
  int kind = parts->items[0].kind;
  if (parts->count == 1 && kind == BYTE_LEVEL) return ORTOLAN_STREAM_BYTES;
  if (parts->count == 1 && (kind == WORDPIECE || kind == METASPACE)) return ORTOLAN_STREAM_LOCAL;
  for (size_t i = 0; i < parts->count; i++, place++) {
    const ortolan_part *part = &parts->items[i];
    while (place < 4 && order[place] != part->kind) place++;
    bool spaces = part->kind == REPLACE && part->pattern.kind == ORTOLAN_PATTERN_LITERAL &&
                  strcmp(part->pattern.literal, "\xE2\x96\x81") == 0 &&
                  strcmp(part->text, " ") == 0;
    if (place == 4 || (part->kind == REPLACE && !spaces) ||
        (part->kind == STRIP && (part->number > 1 || part->other > 0)))
      return ORTOLAN_STREAM_WHOLE;
  }
  return ORTOLAN_STREAM_LOCAL;
}
