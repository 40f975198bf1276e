#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

bool ortolan_fail(ortolan_error *error, ortolan_code code, const char *format, ...) {
  if (error == NULL) return false;
  va_list arguments;
  va_start(arguments, format);
  error->code = code;
  vsnprintf(error->message, sizeof error->message, format, arguments);
  va_end(arguments);
  return false;
}

bool ortolan_no_memory(ortolan_error *error) {
  return ortolan_fail(error, ORTOLAN_MEMORY,
                      "There is not enough memory. Close other programs, or use a smaller model.");
}

bool ortolan_check_size(const char *name, size_t size, size_t expected, ortolan_error *error) {
  return size == expected ||
         ortolan_fail(error, ORTOLAN_INPUT,
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
  static const char *const names[] = {"ok",     "bundle-not-found", "manifest",       "bundle-file",
                                      "graph",  "kind",             "device",         "input",
                                      "context-length", "sampling", "compute",        "numeric",
                                      "certificate",    "memory",         "tokenizer"};
  return (size_t)code < sizeof names / sizeof *names ? names[code] : "unknown";
}

bool ortolan_invalid(const ortolan_fields *in, const char *path, const char *expected) {
  const char *advice = in->code == ORTOLAN_MANIFEST
                           ? "Export the checkpoint again, or use the version that exported it"
                           : "Copy the bundle again, or export the checkpoint again";
  return ortolan_fail(in->error, in->code, "%s: `%s` must be %s. %s.", in->file, path, expected,
                      advice);
}

/* Fill the error for a field of an object. */
static bool wrong(const ortolan_fields *in, const char *path, const char *key,
                  const char *expected) {
  char whole[160];
  snprintf(whole, sizeof whole, "%s%s%.60s", path, *path ? "." : "", key);
  return ortolan_invalid(in, whole, expected);
}

const json_value *ortolan_object(const ortolan_fields *in, const json_value *object,
                                 const char *path, const char *key) {
  const json_value *value = ortolan_json_field(object, key);
  if (value != NULL && value->type == JSON_OBJECT) return value;
  wrong(in, path, key, "an object");
  return NULL;
}

const json_value *ortolan_array(const ortolan_fields *in, const json_value *object,
                                const char *path, const char *key, size_t most) {
  const json_value *value = ortolan_json_field(object, key);
  if (value != NULL && value->type == JSON_ARRAY && value->count <= most) return value;
  char expected[64];
  snprintf(expected, sizeof expected, "an array of at most %zu items", most);
  wrong(in, path, key, expected);
  return NULL;
}

const char *ortolan_string(const ortolan_fields *in, const json_value *object, const char *path,
                           const char *key) {
  const json_value *value = ortolan_json_field(object, key);
  if (value != NULL && value->type == JSON_STRING) return value->string;
  wrong(in, path, key, "a string");
  return NULL;
}

bool ortolan_integer(const ortolan_fields *in, const json_value *object, const char *path,
                     const char *key, int64_t least, int64_t most, int64_t *integer) {
  const json_value *value = ortolan_json_field(object, key);
  if (value != NULL && value->is_integer && value->integer >= least && value->integer <= most) {
    *integer = value->integer;
    return true;
  }
  char expected[80];
  snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)least,
           (long long)most);
  return wrong(in, path, key, expected);
}

bool ortolan_bound(const ortolan_fields *in, const json_value *object, const char *path,
                   const char *key, double *number) {
  const json_value *value = ortolan_json_field(object, key);
  *number = -1;
  if (value == NULL) return true;
  if (value->type != JSON_NUMBER || value->number < 0)
    return wrong(in, path, key, "null or a number of at least 0");
  *number = value->number;
  return true;
}

bool ortolan_id_list(const ortolan_fields *in, const json_value *object, const char *path,
                     const char *key, size_t most, int64_t below, int32_t *ids, size_t *count) {
  if (ortolan_json_field(object, key) == NULL) return true;
  const json_value *list = ortolan_array(in, object, path, key, most);
  for (const json_value *item = list == NULL ? NULL : list->item; item != NULL; item = item->next) {
    if (!item->is_integer || item->integer < 0 || item->integer >= below)
      return wrong(in, path, key, "ids within the vocabulary");
    ids[(*count)++] = (int32_t)item->integer;
  }
  return list != NULL;
}

bool ortolan_known_keys(const ortolan_fields *in, const json_value *object, const char *path,
                        const char *known) {
  for (const json_value *field = object->item; field != NULL; field = field->next) {
    size_t length = strlen(field->key);
    const char *at = known;
    while (at != NULL && !(strncmp(at, field->key, length) == 0 && length > 0 &&
                           (at[length] == ' ' || at[length] == 0))) {
      at = strchr(at, ' ');
      if (at != NULL) at++;
    }
    if (at == NULL || strchr(field->key, ' ') != NULL)
      return ortolan_fail(in->error, in->code,
                          "%s: the field `%.60s` of `%s` is unknown. Use a newer version of this "
                          "library, or export the checkpoint again.",
                          in->file, field->key, *path ? path : "the document");
  }
  return true;
}

ortolan_json *ortolan_document(const ortolan_fields *in, const char *text, size_t size) {
  const char *problem;
  size_t offset;
  ortolan_json *document = ortolan_json_read(text, size, &problem, &offset);
  if (document != NULL) return document;
  if (problem == NULL) {
    ortolan_no_memory(in->error);
  } else {
    ortolan_fail(in->error, in->code,
                 "%s is not valid JSON: %s (at byte %zu). Copy the bundle again.", in->file,
                 problem, offset);
  }
  return NULL;
}
