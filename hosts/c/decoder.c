/* From the texts of tokens to one text. */
#include "tokenizer.h"

enum { BYTE_LEVEL, METASPACE, WORDPIECE, BYTE_FALLBACK, FUSE, STRIP, REPLACE, BPE_DECODER };

static const ortolan_part_kind kinds[] = {
    {.type = "ByteLevel"},
    {.type = "Metaspace", .flags = {"add_prefix_space"}, .text = "replacement"},
    {.type = "WordPiece", .flags = {"cleanup"}, .text = "prefix"},
    {.type = "ByteFallback"},
    {.type = "Fuse"},
    {.type = "Strip", .text = "content"},
    {.type = "Replace", .text = "content", .has_pattern = true},
    {.type = "BPEDecoder", .text = "suffix"}};

bool ortolan_read_decoder(ortolan_parts *parts, const json_value *value) {
  const size_t count = sizeof kinds / sizeof *kinds;
  const char *scheme = "";
  ortolan_part *part = ortolan_part_read(parts, kinds, count, "decoder", value);
  if (part == NULL) return false;
  if (part->kind == STRIP)
    return ortolan_integer(value, "start", 0, 1 << 20, &part->number) &&
           ortolan_integer(value, "stop", 0, 1 << 20, &part->other);
  if (part->kind == METASPACE && !ortolan_optional_string(value, "prepend_scheme", &scheme))
    return false;
  part->flags[0] &= strcmp(scheme, "never") != 0;
  return true;
}

/* Replace one literal text by another. */
static void replace(ortolan_text *text, const char *from, size_t from_size, const char *to) {
  const ortolan_pattern pattern = ortolan_literal(from, from_size);
  ortolan_text replaced = {.failed = text->failed};
  if (from_size == 0) return;
  ortolan_pattern_replace(&pattern, to, strlen(to), text->bytes, text->size, &replaced);
  free(text->bytes);
  *text = replaced;
}

static void clean_up(ortolan_text *text) {
  static const char *const pairs[][2] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    replace(text, pairs[i][0], strlen(pairs[i][0]), pairs[i][1]);
}

int ortolan_byte_of_token(const char *text, size_t size) {
  if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
  int high = ortolan_hex_digit(text[3]), low = ortolan_hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* Runs of byte tokens become characters; if one is broken, each byte of the run becomes U+FFFD. */
static void byte_fallback(const ortolan_pieces *from, ortolan_pieces *to) {
  bool missing;
  for (size_t i = 0, start = 0, wrong; i <= from->count; i++) {
    const ortolan_piece piece = i < from->count ? from->items[i] : (ortolan_piece){.size = 0};
    const char *text = piece.size > 0 ? from->text.bytes + piece.start : "";
    int byte = ortolan_byte_of_token(text, piece.size);
    char one = (char)byte;
    if (byte >= 0) {
      ortolan_text_add(&to->text, &one, 1);
      continue;
    }
    size_t run = to->text.size - start;
    bool is_whole =
        run > 0 && ortolan_utf8_valid(to->text.bytes + start, run, &missing, &wrong) == run;
    if (is_whole) ortolan_pieces_end(to, start, 0, false);
    else to->text.size = start;
    for (; !is_whole && run > 0; run--) ortolan_pieces_add(to, "\xEF\xBF\xBD", 3, 0, false);
    if (i < from->count) ortolan_pieces_add(to, text, piece.size, 0, false);
    start = to->text.size;
  }
}

static void byte_level(const ortolan_pieces *from, ortolan_pieces *to) {
  ortolan_text bytes = {.size = 0};
  for (size_t i = 0; i < from->count; i++)
    ortolan_spelled_bytes(&bytes, from->text.bytes + from->items[i].start, from->items[i].size);
  ortolan_text_repair(&to->text, bytes.bytes, bytes.size, true);
  ortolan_pieces_end(to, 0, 0, false);
  if (bytes.failed) to->text.failed = true;
  free(bytes.bytes);
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
                         bool is_last, ortolan_text *to) {
  bool continues =
      size >= part->size && part->size > 0 && memcmp(text, part->text, part->size) == 0;
  switch (part->kind) {
    case REPLACE:
      return ortolan_pattern_replace(&part->pattern, part->text, part->size, text, size, to);
    case STRIP:
      strip(part, text, size, to);
      return true;
    case WORDPIECE:
      if (place > 0 && continues) text += part->size, size -= part->size;
      else if (place > 0 && part->size > 0) ortolan_text_add(to, " ", 1);
      ortolan_text_add(to, text, size);
      if (part->flags[0]) clean_up(to);
      return true;
    default: /* METASPACE and BPE_DECODER: marks of words become spaces, but for the outermost */
      ortolan_text_add(to, text, size);
      bool is_outermost = part->kind == METASPACE ? place == 0 && part->flags[0] : is_last;
      replace(to, part->text, part->size, is_outermost ? "" : " ");
      return true;
  }
}

static bool decode_tokens(const ortolan_part *part, const ortolan_pieces *from,
                          ortolan_pieces *to) {
  ortolan_text text = {.size = 0};
  bool ok = true;
  for (size_t i = 0; ok && i < from->count; i++) {
    const ortolan_piece *piece = &from->items[i];
    const char *bytes = from->text.bytes + piece->start;
    text.size = 0;
    ok = decode_token(part, bytes, piece->size, i, i + 1 == from->count, &text);
    ortolan_pieces_add(to, text.bytes, text.size, 0, false);
  }
  if (text.failed) to->text.failed = true;
  free(text.bytes);
  return ok;
}

bool ortolan_decode_pieces(const ortolan_parts *parts, bool has_decoder, ortolan_pieces *pieces,
                           ortolan_text *to) {
  ortolan_pieces next = {.count = 0};
  bool ok = true;
  for (size_t i = 0; ok && i < parts->count; i++) {
    const ortolan_part *part = &parts->items[i];
    if (part->kind == BYTE_FALLBACK) byte_fallback(pieces, &next);
    else if (part->kind == BYTE_LEVEL) byte_level(pieces, &next);
    else if (part->kind == FUSE)
      ortolan_pieces_add(&next, pieces->text.bytes, pieces->text.size, 0, false);
    else ok = decode_tokens(part, pieces, &next);
    if (ok && next.text.failed) ok = ortolan_text_error(&next.text);
    ortolan_pieces_swap(pieces, &next);
  }
  for (size_t i = 0; ok && i < pieces->count; i++) {
    if (!has_decoder && i > 0) ortolan_text_add(to, " ", 1);
    ortolan_text_add(to, pieces->text.bytes + pieces->items[i].start, pieces->items[i].size);
  }
  ortolan_pieces_free(&next);
  return ok && (!to->failed || ortolan_text_error(to));
}

ortolan_stream_kind ortolan_decoder_stream(const ortolan_parts *parts, bool *has_bytes) {
  /* in the order of Llama's and Gemma's decoders */
  static const int order[] = {REPLACE, BYTE_FALLBACK, FUSE, STRIP};
  size_t place = 0;
  *has_bytes = false;
  int kind = parts->items[0].kind;
  if (parts->count == 1 && kind == BYTE_LEVEL) return ORTOLAN_STREAM_BYTES;
  if (parts->count == 1 && (kind == WORDPIECE || kind == METASPACE)) return ORTOLAN_STREAM_LOCAL;
  for (size_t i = 0; i < parts->count; i++, place++) {
    const ortolan_part *part = &parts->items[i];
    *has_bytes |= part->kind == BYTE_FALLBACK;
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
