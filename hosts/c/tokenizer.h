/* What the files of the tokenizer share. Not for programs that use the library.
 *
 * A text passes through parts of tokenizer.json: normalizers, pre-tokenizers, a model. Each part is
 * a loop over bytes or characters: nothing recurses, and no buffer exceeds ORTOLAN_MAX_TEXT.
 */
#ifndef ORTOLAN_TOKENIZER_H
#define ORTOLAN_TOKENIZER_H

#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "unicode.h"

#define ORTOLAN_MAX_TEXT ((size_t)1 << 26)
#define ORTOLAN_MAX_TOKENIZER_BYTES (64 << 20)
#define ORTOLAN_MAX_PARTS 64
#define ORTOLAN_MAX_STEPS 5 /* parts that one of the file becomes */
#define ORTOLAN_MAX_TEMPLATE 1024

/* --- text.c: growing buffers. After a failure they ignore what is added, so that callers check
 * `failed` once. --- */

typedef struct {
  char *bytes;
  size_t size, room;
  bool failed; /* out of memory, or beyond ORTOLAN_MAX_TEXT */
} ortolan_text;

/* A part of a text: characters that are still to be tokenized, or a token. */
typedef struct {
  size_t start, size;
  int32_t token; /* -1 for characters */
  bool first;    /* begins where the whole text began */
} ortolan_piece;

typedef struct {
  ortolan_text text;
  ortolan_piece *items;
  size_t count, room;
} ortolan_pieces;

typedef struct {
  int32_t *items;
  size_t count, room;
  bool failed;
} ortolan_ids;

/* Make room for one more item. */
bool ortolan_grow(void *items, size_t *room, size_t count, size_t item_bytes);
void ortolan_text_add(ortolan_text *text, const char *bytes, size_t size);
void ortolan_text_point(ortolan_text *text, uint32_t point);
/* Add bytes, with U+FFFD for each broken character. Returns how many were read: an incomplete
 * character at the end is not, unless no more bytes follow. */
size_t ortolan_text_repair(ortolan_text *text, const char *bytes, size_t size, bool is_end);
/* Add a piece with its text; an empty one is left out unless it is a token. */
void ortolan_pieces_add(ortolan_pieces *pieces, const char *bytes, size_t size, int32_t token,
                        bool first);
/* The same for text that was added from `start` on. */
void ortolan_pieces_end(ortolan_pieces *pieces, size_t start, int32_t token, bool first);
void ortolan_pieces_free(ortolan_pieces *pieces);
/* Swap, and clear `next` for the next step. */
void ortolan_pieces_swap(ortolan_pieces *pieces, ortolan_pieces *next);
void ortolan_ids_add(ortolan_ids *ids, int32_t id);
/* Write at most `capacity` bytes, with NUL behind them if there is room, and the whole size. */
void ortolan_text_copy(const ortolan_text *text, char *to, size_t capacity, size_t *size);
/* Report why a buffer failed. */
bool ortolan_text_error(const ortolan_text *text);

/* --- vocabulary.c: texts and their ids --- */

#define ORTOLAN_HASH 2166136261u

typedef struct {
  size_t start;
  uint32_t size, hash;
  int32_t id;
} ortolan_entry;

typedef struct {
  ortolan_text text;
  ortolan_entry *entries;
  size_t count, room, slot_count, longest, id_count, id_room; /* id_count: the largest id + 1 */
  uint32_t *slots; /* index of an entry + 1, or 0 */
  uint32_t *by_id; /* the same */
} ortolan_vocabulary;

uint32_t ortolan_hash(uint32_t hash, const char *bytes, size_t size);
/* Add an entry, or change the id of an equal one. */
bool ortolan_vocabulary_add(ortolan_vocabulary *vocabulary, const char *bytes, size_t size,
                            int32_t id);
/* Return an id, or -1. */
int32_t ortolan_vocabulary_find(const ortolan_vocabulary *vocabulary, const char *bytes,
                                size_t size);
int32_t ortolan_vocabulary_lookup(const ortolan_vocabulary *vocabulary, uint32_t hash,
                                  const char *bytes, size_t size);
/* Find the longest entry that a text begins with. Returns its id, or -1. */
int32_t ortolan_vocabulary_longest(const ortolan_vocabulary *vocabulary, const char *text,
                                   size_t size, size_t *length);
/* Return the text of an id, or NULL. */
const char *ortolan_vocabulary_text(const ortolan_vocabulary *vocabulary, int32_t id, size_t *size);
void ortolan_vocabulary_free(ortolan_vocabulary *vocabulary);

/* --- pattern.c: what splits a text --- */

typedef enum {
  ORTOLAN_PATTERN_LITERAL,
  ORTOLAN_PATTERN_FLAG,  /* single characters with a flag of unicode.h */
  ORTOLAN_PATTERN_WORDS, /* \w+|[^\w\s]+ */
  ORTOLAN_PATTERN_GPT2,
  ORTOLAN_PATTERN_REGEX,
} ortolan_pattern_kind;

typedef enum {
  ORTOLAN_ISOLATED, ORTOLAN_REMOVED, ORTOLAN_CONTIGUOUS, ORTOLAN_MERGED_WITH_PREVIOUS,
  ORTOLAN_MERGED_WITH_NEXT
} ortolan_behavior;

typedef struct {
  ortolan_pattern_kind kind;
  char *literal;
  size_t size;
  uint32_t flag;
  void *regex; /* of PCRE2 */
} ortolan_pattern;

/* A pattern of a text, which it does not own. */
ortolan_pattern ortolan_literal(const char *text, size_t size);
/* Read {"String": ...} or {"Regex": ...}. */
bool ortolan_pattern_read(ortolan_pattern *pattern, const json_value *part);
void ortolan_pattern_free(ortolan_pattern *pattern);
/* Find the next match from an offset on: 1, 0 for none, or -1 if the search gave up. */
int ortolan_pattern_next(const ortolan_pattern *pattern, const char *text, size_t size, size_t from,
                         size_t *start, size_t *end);
/* Add the pieces of one text. */
bool ortolan_pattern_split(const ortolan_pattern *pattern, ortolan_behavior behavior, bool invert,
                           const char *text, size_t size, bool first, ortolan_pieces *pieces);
bool ortolan_pattern_replace(const ortolan_pattern *pattern, const char *content,
                             size_t content_size, const char *text, size_t size, ortolan_text *to);

/* --- parts: normalizer.c, pre_tokenizer.c, decoder.c --- */

typedef struct {
  int kind;
  ortolan_pattern pattern;
  char *text; /* owned */
  size_t size;
  int64_t number, other;
  bool flags[4];
} ortolan_part;

typedef struct {
  ortolan_part items[ORTOLAN_MAX_PARTS];
  size_t count;
} ortolan_parts;

bool ortolan_unknown_part(const char *what, const char *name);
/* Copy a text, unless it is NULL after an error. */
bool ortolan_copy(const char *text, char **copy, size_t *size);

/* A type of parts. A flag is true where the file does not say otherwise, or false if its name
 * begins with '!'. `text` is the field that becomes the text of a part, or NULL. */
typedef struct {
  const char *type, *flags[4], *text;
  bool has_pattern;
} ortolan_part_kind;

/* Add a part and read its fields. Returns NULL after an error. */
ortolan_part *ortolan_part_read(ortolan_parts *parts, const ortolan_part_kind *kinds, size_t count,
                                const char *what, const json_value *value);
ortolan_part *ortolan_part_add(ortolan_parts *parts, int kind);

/* These read a part of the file as one or several parts. */
bool ortolan_read_normalizer(ortolan_parts *parts, const json_value *value);
/* Normalize `text` in place. `first` becomes false if characters at its start are removed. */
bool ortolan_normalize(const ortolan_parts *parts, ortolan_text *text, bool *first);
bool ortolan_read_pre_tokenizer(ortolan_parts *parts, const json_value *value);
bool ortolan_pre_tokenize(const ortolan_parts *parts, ortolan_pieces *pieces);
bool ortolan_read_decoder(ortolan_parts *parts, const json_value *value);
/* Turn the texts of tokens into one text. */
bool ortolan_decode_pieces(const ortolan_parts *parts, bool has_decoder, ortolan_pieces *pieces,
                           ortolan_text *to);

/* How a stream of tokens becomes text, piece by piece. */
typedef enum {
  ORTOLAN_STREAM_BYTES, /* tokens spell bytes */
  ORTOLAN_STREAM_LOCAL, /* the text of a token depends on the one before it */
  ORTOLAN_STREAM_WHOLE, /* text comes at the end */
} ortolan_stream_kind;
ortolan_stream_kind ortolan_decoder_stream(const ortolan_parts *parts, bool *has_bytes);
/* The byte that a token such as <0x0A> stands for, or -1. */
int ortolan_byte_of_token(const char *text, size_t size);

/* --- byte_alphabet.c: GPT-2's letters for bytes --- */

void ortolan_spell_bytes(ortolan_text *to, const char *bytes, size_t size);
/* Add the bytes that a token spells; text with any other character stays as it is. */
void ortolan_spelled_bytes(ortolan_text *to, const char *text, size_t size);

/* --- charsmap.c: replacements of SentencePiece --- */

/* Decode a table, to free. Returns false if it is not complete. */
bool ortolan_charsmap_read(const char *base64, char **table, size_t *size);
void ortolan_charsmap_apply(const char *table, size_t table_size, const ortolan_text *from,
                            ortolan_text *to);

/* --- models --- */

typedef enum {
  ORTOLAN_BPE, ORTOLAN_UNIGRAM, ORTOLAN_WORDPIECE, ORTOLAN_WORDLEVEL
} ortolan_model_kind;

typedef struct {
  uint64_t pair;
  uint32_t rank; /* UINT32_MAX for an empty slot */
  int32_t id;
} ortolan_merge;

typedef struct {
  ortolan_model_kind kind;
  ortolan_vocabulary vocabulary, continued; /* continued: pieces of WordPiece without the prefix */
  ortolan_merge *merges;
  size_t merge_slots;
  double *scores, least;
  int32_t unknown, bytes[256]; /* -1 for none */
  bool fuses_unknown, has_bytes, prefers_whole;
  char *affix; /* behind a word of BPE */
  size_t affix_size, most_characters;
} ortolan_token_model;

bool ortolan_bpe_read(ortolan_token_model *model, const json_value *value);
void ortolan_bpe_encode(const ortolan_token_model *model, const char *text, size_t size,
                        ortolan_ids *ids);
bool ortolan_unigram_read(ortolan_token_model *model, const json_value *value);
bool ortolan_unigram_encode(const ortolan_token_model *model, const char *text, size_t size,
                            ortolan_ids *ids);
bool ortolan_token_model_read(ortolan_token_model *model, const json_value *root);
bool ortolan_token_model_encode(const ortolan_token_model *model, const char *text, size_t size,
                                ortolan_ids *ids);
void ortolan_token_model_free(ortolan_token_model *model);

/* --- added_tokens.c --- */

enum {
  ORTOLAN_SINGLE_WORD, ORTOLAN_LSTRIP, ORTOLAN_RSTRIP, ORTOLAN_NORMALIZED, ORTOLAN_SPECIAL,
  ORTOLAN_ADDED_FLAGS
};

typedef struct {
  ortolan_vocabulary places;            /* contents with their places in the arrays below */
  ortolan_vocabulary plain, normalized; /* what is searched before and after normalization */
  ortolan_vocabulary contents, shown;   /* contents and what decoding shows, with ids */
  bool (*flags)[ORTOLAN_ADDED_FLAGS];
  int32_t *ids;
  bool starts[2][256]; /* first bytes of what is searched */
} ortolan_added_tokens;

bool ortolan_added_read(ortolan_added_tokens *added, const json_value *root,
                        const ortolan_token_model *model, const ortolan_parts *normalizer);
void ortolan_added_split(const ortolan_added_tokens *added, bool normalized, const char *text,
                         size_t size, bool first, ortolan_pieces *pieces);
bool ortolan_added_special(const ortolan_added_tokens *added, int32_t id);
void ortolan_added_free(ortolan_added_tokens *added);

/* --- template.c: tokens around texts --- */

typedef struct {
  int32_t id; /* a token, or -1 for the first text and -2 for the second */
  int32_t type;
} ortolan_template_item;

typedef struct {
  ortolan_template_item items[2][ORTOLAN_MAX_TEMPLATE]; /* around one text, and around two */
  size_t counts[2];
} ortolan_template;

bool ortolan_template_read(ortolan_template *templates, const json_value *root);

/* --- tokenizer.c --- */

ortolan_tokenizer *ortolan_tokenizer_read(const char *json, size_t size, int64_t vocab_size);
/* Number of tokens around one text, or around two. */
size_t ortolan_tokenizer_added(const ortolan_tokenizer *tokenizer, bool pair);
/* Encode an input. `types` may be NULL. */
bool ortolan_tokenizer_encode(const ortolan_tokenizer *tokenizer, ortolan_input input, bool special,
                              size_t max_tokens, ortolan_ids *ids, ortolan_ids *types);
/* Find a special token, or one in `more`, that overlaps bytes of a text whose flag in `own` is 1.
 * `token` stays as it is if there is none. */
bool ortolan_tokenizer_control(const ortolan_tokenizer *tokenizer, const ortolan_text *text,
                               const char *own, const int32_t *more, size_t more_count,
                               int32_t *token);
/* --- completion.c --- */

/* Continue token ids, and pass on the text. `opening` and `form` may be NULL. */
bool ortolan_complete(ortolan_model *model, const ortolan_ids *prompt, ortolan_opening *opening,
                      const ortolan_chat_form *form, const ortolan_text_options *options,
                      ortolan_finish *finish);

/* --- encoder.c --- */

/* Compute the states of a text, which the decoder then reads. */
bool ortolan_read_source(ortolan_model *model, const char *text, size_t size);

#endif
