/* A strict JSON reader (RFC 8259) for documents from untrusted sources.
 *
 * Rejects what the standard leaves open: repeated keys, NUL in strings, lone surrogates, text that
 * is not UTF-8, and nesting beyond ORTOLAN_JSON_DEPTH. Needs memory in proportion to the text.
 */
#ifndef ORTOLAN_JSON_H
#define ORTOLAN_JSON_H

#include "ortolan.h"

#define ORTOLAN_JSON_DEPTH 32

typedef enum {
  JSON_NULL, JSON_BOOLEAN, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT
} json_type;

/* A value, valid as long as its document. */
typedef struct json_value {
  json_type type;
  bool boolean;
  bool is_integer;         /* written without fraction and exponent, and fits into 64 bits */
  int64_t integer;         /* if is_integer */
  double number;           /* numbers of any form, to about 1 part in 10^15 */
  const char *string;      /* UTF-8, ends with NUL */
  size_t count;            /* items or fields */
  const char *key;         /* name of this field, in an object */
  struct json_value *item; /* first item or field */
  struct json_value *next; /* next item or field of the same parent */
  const struct json_value *parent;
} json_value;

typedef struct {
  json_value root; /* first: a root is its document */
  ortolan_code code;
  const char *name;
  struct block *blocks; /* memory of all values */
} ortolan_json;

/* Read a document, which keeps its name. Returns NULL and notes an error of this code on failure. */
ortolan_json *ortolan_json_read(ortolan_code code, const char *name, const char *text, size_t size);
const ortolan_json *ortolan_json_of(const json_value *value);
void ortolan_json_free(ortolan_json *document);

/* A field of an object, or NULL if it is missing or null. */
const json_value *ortolan_json_field(const json_value *object, const char *key);

#endif
