#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "unicode.h"

#define BLOCK_BYTES 16384

/* Memory of a document: blocks that are freed together. */
typedef struct block {
  struct block *next;
  size_t used, size;
} block;

typedef struct {
  ortolan_json *document;
  const char *start, *at, *end;
  const char *problem; /* NULL while all is well, or if memory ran out */
  int depth;
} reader;

static bool read_value(reader *in, json_value *value);

static bool fail(reader *in, const char *problem) {
  in->problem = problem;
  return false;
}

static void *allocate(reader *in, size_t size) {
  const size_t head = (sizeof(block) + 15) & ~(size_t)15;
  size = (size + 15) & ~(size_t)15;
  block *last = in->document->blocks;
  if (last == NULL || last->size - last->used < size) {
    size_t whole = size > BLOCK_BYTES ? size : BLOCK_BYTES;
    last = malloc(head + whole);
    if (last == NULL) return NULL;
    *last = (block){.next = in->document->blocks, .used = 0, .size = whole};
    in->document->blocks = last;
  }
  void *memory = (char *)last + head + last->used;
  last->used += size;
  return memory;
}

static void skip_space(reader *in) {
  for (; in->at < in->end; in->at++)
    if (*in->at != ' ' && *in->at != '\n' && *in->at != '\r' && *in->at != '\t') return;
}

/* Skip spaces, and then this character if it comes next. */
static bool accept(reader *in, char character) {
  skip_space(in);
  if (in->at == in->end || *in->at != character) return false;
  in->at++;
  return true;
}

static bool is_digit(const reader *in) {
  return in->at < in->end && *in->at >= '0' && *in->at <= '9';
}

/* --- numbers --- */

/* Without strtod, which reads the decimal point of the process's locale. */
static bool read_number(reader *in, json_value *value) {
  bool negative = *in->at == '-', whole = true;
  uint64_t mantissa = 0;
  int exponent = 0, written = 0;
  in->at += negative;
  if (!is_digit(in)) return fail(in, "a number has no digits");
  if (*in->at == '0' && in->at + 1 < in->end && in->at[1] >= '0' && in->at[1] <= '9')
    return fail(in, "a number has leading zeros");
  for (bool fraction = false;; in->at++) {
    if (!fraction && in->at < in->end && *in->at == '.') {
      fraction = true, whole = false, in->at++;
      if (!is_digit(in)) return fail(in, "a number ends with its decimal point");
    }
    if (!is_digit(in)) break;
    if (mantissa <= (UINT64_MAX - 9) / 10) {
      mantissa = mantissa * 10 + (uint64_t)(*in->at - '0');
      exponent -= fraction;
    } else { /* more digits than a double holds */
      whole = false;
      exponent += !fraction && exponent < 1000000;
    }
  }
  if (in->at < in->end && (*in->at == 'e' || *in->at == 'E')) {
    whole = false, in->at++;
    bool below = in->at < in->end && *in->at == '-';
    if (below || (in->at < in->end && *in->at == '+')) in->at++;
    if (!is_digit(in)) return fail(in, "a number has an empty exponent");
    for (; is_digit(in); in->at++)
      if (written < 1000000) written = written * 10 + (*in->at - '0');
    exponent += below ? -written : written;
  }
  value->type = JSON_NUMBER;
  /* in two steps: 10^exponent alone may be outside of a double's range */
  double number = (double)mantissa * pow(10, exponent / 2) * pow(10, exponent - exponent / 2);
  if (mantissa == 0) number = 0;
  if (!isfinite(number)) return fail(in, "a number exceeds the range of a double");
  value->number = negative ? -number : number;
  value->is_integer = whole && mantissa <= INT64_MAX;
  if (value->is_integer) value->integer = negative ? -(int64_t)mantissa : (int64_t)mantissa;
  return true;
}

/* --- strings --- */

static bool read_hex(reader *in, uint32_t *code) {
  *code = 0;
  if (in->end - in->at < 4) return fail(in, "an escape is incomplete");
  for (int i = 0; i < 4; i++, in->at++) {
    int digit = ortolan_hex_digit(*in->at);
    if (digit < 0) return fail(in, "an escape is not hexadecimal");
    *code = *code << 4 | (uint32_t)digit;
  }
  return true;
}

static bool read_escape(reader *in, char **to) {
  static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  if (in->at == in->end) return fail(in, "a string does not end");
  char name = *in->at++;
  const char *known = name == 0 ? NULL : strchr(names, name);
  if (known != NULL) {
    *(*to)++ = meanings[known - names];
    return true;
  }
  uint32_t code, low;
  if (name != 'u') return fail(in, "an escape is unknown");
  if (!read_hex(in, &code)) return false;
  if (code >= 0xD800 && code < 0xDC00) {
    if (in->end - in->at < 2 || in->at[0] != '\\' || in->at[1] != 'u')
      return fail(in, "a surrogate stands alone");
    in->at += 2;
    if (!read_hex(in, &low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return fail(in, "a surrogate stands alone");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xDC00 && code < 0xE000) {
    return fail(in, "a surrogate stands alone");
  }
  if (code == 0) return fail(in, "a string contains NUL");
  *to += ortolan_utf8_write(code, *to);
  return true;
}

static bool read_string(reader *in, const char **string) {
  const char *close = in->at;
  while (close < in->end && *close != '"') close += *close == '\\' ? 2 : 1;
  if (close >= in->end) return fail(in, "a string does not end");
  char *to = allocate(in, (size_t)(close - in->at) + 1); /* no escape is shorter than its meaning */
  *string = to;
  if (to == NULL) return false;
  while (in->at < close) {
    unsigned char byte = (unsigned char)*in->at;
    if (byte < 0x20) return fail(in, "a string contains a control character");
    if (byte == '\\') {
      in->at++;
      if (!read_escape(in, &to)) return false;
    } else {
      *to++ = *in->at++;
    }
  }
  *to = 0;
  in->at = close + 1;
  return true;
}

/* --- arrays and objects --- */

static int compare_keys(const void *left, const void *right) {
  return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sorted, since comparing all pairs would let a small document take minutes. */
static bool check_repeated(reader *in, const json_value *object) {
  if (object->count < 2) return true;
  const char **keys = malloc(object->count * sizeof *keys);
  if (keys == NULL) return false;
  size_t count = 0;
  for (const json_value *field = object->item; field != NULL; field = field->next)
    keys[count++] = field->key;
  qsort(keys, count, sizeof *keys, compare_keys);
  bool repeated = false;
  for (size_t i = 1; i < count; i++) repeated |= strcmp(keys[i - 1], keys[i]) == 0;
  free(keys);
  return !repeated || fail(in, "an object repeats a key");
}

static bool read_items(reader *in, json_value *parent) {
  bool is_object = parent->type == JSON_OBJECT;
  char close = is_object ? '}' : ']';
  if (++in->depth > ORTOLAN_JSON_DEPTH) return fail(in, "values are nested too deeply");
  if (!accept(in, close)) {
    json_value **last = &parent->item;
    do {
      json_value *item = allocate(in, sizeof *item);
      if (item == NULL) return false;
      *item = (json_value){.type = JSON_NULL, .parent = parent};
      if (is_object) {
        if (!accept(in, '"')) return fail(in, "a key is missing");
        if (!read_string(in, &item->key)) return false;
        if (!accept(in, ':')) return fail(in, "a colon is missing");
      }
      if (!read_value(in, item)) return false;
      *last = item;
      last = &item->next;
      parent->count++;
    } while (accept(in, ','));
    if (!accept(in, close)) return fail(in, "an array or object does not end");
  }
  in->depth--;
  return !is_object || check_repeated(in, parent);
}

static bool read_word(reader *in, const char *word) {
  size_t length = strlen(word);
  if ((size_t)(in->end - in->at) < length || memcmp(in->at, word, length) != 0)
    return fail(in, "a value is not JSON");
  in->at += length;
  return true;
}

static bool read_value(reader *in, json_value *value) {
  skip_space(in);
  if (in->at == in->end) return fail(in, "a value is missing");
  switch (*in->at) {
    case '{':
    case '[':
      value->type = *in->at++ == '{' ? JSON_OBJECT : JSON_ARRAY;
      return read_items(in, value);
    case '"':
      in->at++;
      value->type = JSON_STRING;
      return read_string(in, &value->string);
    case 't':
    case 'f':
      value->type = JSON_BOOLEAN;
      value->boolean = *in->at == 't';
      return read_word(in, value->boolean ? "true" : "false");
    case 'n':
      return read_word(in, "null");
    default:
      if (*in->at != '-' && !is_digit(in)) return fail(in, "a value is not JSON");
      return read_number(in, value);
  }
}

ortolan_json *ortolan_json_read(ortolan_code code, const char *name, const char *text,
                                size_t size) {
  ortolan_json *document = calloc(1, sizeof *document);
  reader in = {.document = document, .start = text, .at = text, .end = text + size};
  bool missing;
  size_t wrong, valid = ortolan_utf8_valid(text, size, &missing, &wrong);
  if (document != NULL && valid < size) {
    in.at += valid;
    fail(&in, "the text is not UTF-8");
  } else if (document != NULL) {
    document->code = code, document->name = name;
    bool is_read = read_value(&in, &document->root);
    skip_space(&in);
    if (is_read && in.at == in.end) return document;
    if (is_read) fail(&in, "text follows the document");
  }
  ortolan_json_free(document);
  if (in.problem == NULL) ortolan_no_memory();
  else
    ortolan_fail(code, "%s is not valid JSON: %s (at byte %zu). Copy the bundle again.", name,
                 in.problem, (size_t)(in.at - in.start));
  return NULL;
}

const ortolan_json *ortolan_json_of(const json_value *value) {
  while (value->parent != NULL) value = value->parent;
  return (const ortolan_json *)(const void *)value;
}

void ortolan_json_free(ortolan_json *document) {
  block *part = document == NULL ? NULL : document->blocks;
  for (block *next; part != NULL; part = next) {
    next = part->next;
    free(part);
  }
  free(document);
}

const json_value *ortolan_json_field(const json_value *object, const char *key) {
  if (object == NULL || object->type != JSON_OBJECT) return NULL;
  for (const json_value *field = object->item; field != NULL; field = field->next)
    if (strcmp(field->key, key) == 0) return field->type == JSON_NULL ? NULL : field;
  return NULL;
}
