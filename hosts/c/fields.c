#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

static _Thread_local ortolan_error last;

bool ortolan_fail(ortolan_code code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  last.code = code;
  vsnprintf(last.message, sizeof last.message, format, arguments);
  va_end(arguments);
  return false;
}

bool ortolan_done(bool ok, ortolan_error *error) {
  if (error != NULL && ok) error->code = ORTOLAN_OK, error->message[0] = 0;
  if (error != NULL && !ok) *error = last;
  return ok;
}

ortolan_code ortolan_last_code(void) {
  return last.code;
}

bool ortolan_no_memory(void) {
  return ortolan_fail(ORTOLAN_MEMORY,
                      "There is not enough memory. Close other programs, or use a smaller model.");
}

bool ortolan_check_size(const char *name, size_t size, size_t expected) {
  return size == expected ||
         ortolan_fail(ORTOLAN_INPUT,
                      "%s has %zu bytes here (got %zu). Start from the macro of the same name in "
                      "capitals, and compile with the header of this library.",
                      name, expected, size);
}

size_t ortolan_place(const char *const *names, size_t count, const char *name) {
  size_t place = 0;
  while (place < count && strcmp(names[place], name) != 0) place++;
  return place;
}

const char *ortolan_code_name(ortolan_code code) {
  static const char *const names[] = {
      "ok",      "bundle-not-found", "manifest",    "bundle-file",    "graph",
      "kind",    "device",           "input",       "context-length", "sampling",
      "compute", "numeric",          "certificate", "memory",         "tokenizer"};
  return (size_t)code < sizeof names / sizeof *names ? names[code] : "unknown";
}

/* Add the keys from the document down to a value: "states.shape". */
static void add_path(char path[160], const json_value *value) {
  if (value->parent != NULL) add_path(path, value->parent); /* at most ORTOLAN_JSON_DEPTH */
  size_t used = strlen(path);
  const char *dot = used > 0 ? "." : "";
  if (value->key != NULL) snprintf(path + used, 160 - used, "%s%.60s", dot, value->key);
}

static const char *path_of(const json_value *value, char path[160]) {
  *path = 0;
  add_path(path, value);
  return *path ? path : "the document";
}

bool ortolan_invalid(const json_value *object, const char *key, const char *expected) {
  const json_value field = {.key = key, .parent = object};
  const ortolan_json *document = ortolan_json_of(object);
  char path[160];
  return ortolan_fail(document->code, "%s: `%s` must be %s. %s.", document->name,
                      path_of(&field, path), expected,
                      document->code == ORTOLAN_MANIFEST
                          ? "Export the checkpoint again, or use the version that exported it"
                          : "Copy the bundle again, or export the checkpoint again");
}

/* A field of one type, or NULL. */
static const json_value *typed(const json_value *object, const char *key, json_type type,
                               const char *expected) {
  const json_value *value = ortolan_json_field(object, key);
  if (value != NULL && value->type == type) return value;
  ortolan_invalid(object, key, expected);
  return NULL;
}

const json_value *ortolan_object(const json_value *object, const char *key) {
  return typed(object, key, JSON_OBJECT, "an object");
}

const json_value *ortolan_array(const json_value *object, const char *key, size_t most) {
  char expected[64];
  snprintf(expected, sizeof expected, "an array of at most %zu items", most);
  const json_value *value = typed(object, key, JSON_ARRAY, expected);
  if (value == NULL || value->count <= most) return value;
  ortolan_invalid(object, key, expected);
  return NULL;
}

const char *ortolan_string(const json_value *object, const char *key) {
  const json_value *value = typed(object, key, JSON_STRING, "a string");
  return value == NULL ? NULL : value->string;
}

bool ortolan_optional_string(const json_value *object, const char *key, const char **string) {
  if (ortolan_json_field(object, key) == NULL) return true;
  *string = ortolan_string(object, key);
  return *string != NULL;
}

bool ortolan_integer(const json_value *object, const char *key, int64_t least, int64_t most,
                     int64_t *integer) {
  const json_value *value = ortolan_json_field(object, key);
  if (value != NULL && value->is_integer && value->integer >= least && value->integer <= most) {
    *integer = value->integer;
    return true;
  }
  char expected[80];
  snprintf(expected, sizeof expected, least == most ? "%lld" : "a whole number from %lld to %lld",
           (long long)least, (long long)most);
  return ortolan_invalid(object, key, expected);
}

bool ortolan_optional(const json_value *object, const char *key, int64_t least, int64_t most,
                      int64_t *integer) {
  return ortolan_json_field(object, key) == NULL ||
         ortolan_integer(object, key, least, most, integer);
}

bool ortolan_flag(const json_value *object, const char *key, bool *flag) {
  const json_value *value = ortolan_json_field(object, key);
  if (value != NULL) *flag = value->boolean;
  return value == NULL || value->type == JSON_BOOLEAN ||
         ortolan_invalid(object, key, "true or false");
}

bool ortolan_is_id(const json_value *value, int64_t below) {
  return value->is_integer && value->integer >= 0 && value->integer < below;
}

bool ortolan_id(const json_value *object, const char *key, int64_t below, int32_t *id) {
  int64_t integer = *id;
  bool ok = ortolan_optional(object, key, 0, below - 1, &integer);
  *id = (int32_t)integer;
  return ok;
}

bool ortolan_id_list(const json_value *object, const char *key, size_t most, int64_t below,
                     int32_t *ids, size_t *count) {
  if (ortolan_json_field(object, key) == NULL) return true;
  const json_value *list = ortolan_array(object, key, most);
  for (const json_value *item = list == NULL ? NULL : list->item; item != NULL; item = item->next) {
    if (!ortolan_is_id(item, below))
      return ortolan_invalid(object, key, "ids within the vocabulary");
    ids[(*count)++] = (int32_t)item->integer;
  }
  return list != NULL;
}

bool ortolan_string_list(const json_value *object, const char *key, size_t most,
                         const char **strings, size_t *count) {
  const json_value *list = ortolan_array(object, key, most);
  for (const json_value *item = list == NULL ? NULL : list->item; item != NULL; item = item->next) {
    if (item->type != JSON_STRING) return ortolan_invalid(object, key, "names");
    strings[(*count)++] = item->string;
  }
  return list != NULL;
}

/* Whether a word is among those of a text. */
static bool is_among(const char *words, const char *word) {
  for (size_t length; *words != 0; words += length + (words[length] == ' ')) {
    length = strcspn(words, " ");
    if (strlen(word) == length && memcmp(words, word, length) == 0) return true;
  }
  return false;
}

bool ortolan_known_keys(const json_value *object, const char *known) {
  if (object->type != JSON_OBJECT) return ortolan_invalid(object, NULL, "an object");
  const json_value *field = object->item;
  while (field != NULL && is_among(known, field->key)) field = field->next;
  if (field == NULL) return true;
  const ortolan_json *document = ortolan_json_of(object);
  char path[160];
  return ortolan_fail(document->code,
                      "%s: the field `%.60s` of `%s` is unknown. Use a newer version of this "
                      "library, or export the checkpoint again.",
                      document->name, field->key, path_of(object, path));
}
