#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "sha256.h"

#define MANIFEST "manifest.json"
#define MAX_MANIFEST_BYTES (1 << 20)
#define MAX_WHOLE_FILE_BYTES (256 << 20)
#define SCHEMA 1
#define FLASH_SWITCH "ORT_GQA_DISABLE_FLASH_ATTENTION"
#define MAX_CONTEXT (1 << 21)
#define MAX_VOCABULARY (1 << 20)
#define MAX_LABELS (1 << 15)
#define MAX_OUTPUT (1 << 20) /* numbers of a vector */
#define MAX_DIMENSION ((int64_t)1 << 40)
#define MAX_STATE_NUMBERS ((int64_t)1 << 31) /* of one token; of a state that is replaced */

static const char known_fields[] =
    "schema kind precision attention devices context_length vocab_size graphs states weights "
    "tokens tokenizer certificate files provenance prefill_precision quantized source output "
    "attention_maps foreign_operators unverified quality witness host chat speech";

/* --- files --- */

static bool is_file_name(const char *name) {
  size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-");
  return length >= 1 && length <= 96 && name[length] == 0 && strcmp(name, ".") != 0 &&
         strcmp(name, "..") != 0 && strcmp(name, MANIFEST) != 0;
}

const ortolan_file *ortolan_bundle_find(const ortolan_bundle *bundle, const char *name) {
  for (size_t i = 0; i < bundle->file_count; i++)
    if (strcmp(bundle->files[i].name, name) == 0) return &bundle->files[i];
  return NULL;
}

static bool read_files(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in) {
  const json_value *files = ortolan_array(in, root, "", "files", ORTOLAN_MAX_FILES);
  if (files == NULL) return false;
  for (const json_value *item = files->item; item != NULL; item = item->next) {
    ortolan_file file;
    if (item->type != JSON_OBJECT) return ortolan_invalid(in, "files", "objects");
    if (!ortolan_known_keys(in, item, "files", "name size sha256")) return false;
    file.name = ortolan_string(in, item, "files", "name");
    if (file.name == NULL) return false;
    file.sha256 = ortolan_string(in, item, "files", "sha256");
    if (file.sha256 == NULL) return false;
    if (!ortolan_integer(in, item, "files", "size", 0, (int64_t)1 << 44, &file.size)) return false;
    if (!is_file_name(file.name))
      return ortolan_invalid(in, "files.name", "a file name of a-z, 0-9, '.', '_' and '-'");
    if (strspn(file.sha256, "0123456789abcdef") != 64 || file.sha256[64] != 0)
      return ortolan_invalid(in, "files.sha256", "64 lower-case hexadecimal digits");
    if (ortolan_bundle_find(bundle, file.name) != NULL)
      return ortolan_invalid(in, "files.name", "different for every file");
    bundle->files[bundle->file_count++] = file;
  }
  return true;
}

static bool is_listed(const ortolan_bundle *bundle, const ortolan_fields *in, const char *path,
                      const char *name) {
  if (name == NULL) return false; /* reported already */
  return ortolan_bundle_find(bundle, name) != NULL || ortolan_invalid(in, path, "a name among `files`");
}

/* A listed file, or null. */
static bool read_name(ortolan_bundle *bundle, const json_value *root, const char *key,
                      const char **name, const ortolan_fields *in) {
  if (ortolan_json_field(root, key) == NULL) return true;
  *name = ortolan_string(in, root, "", key);
  return is_listed(bundle, in, key, *name);
}

static bool read_weights(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in) {
  const json_value *weights = ortolan_array(in, root, "", "weights", ORTOLAN_MAX_FILES);
  if (weights == NULL) return false;
  for (const json_value *item = weights->item; item != NULL; item = item->next) {
    if (item->type != JSON_STRING) return ortolan_invalid(in, "weights", "names");
    if (!is_listed(bundle, in, "weights", item->string)) return false;
  }
  return read_name(bundle, root, "certificate", &bundle->certificate, in) &&
         read_name(bundle, root, "tokenizer", &bundle->tokenizer, in);
}

/* --- the model --- */

static bool read_graph(ortolan_bundle *bundle, const json_value *graphs, const char *role,
                       ortolan_graph *graph, const ortolan_fields *in) {
  char path[32];
  snprintf(path, sizeof path, "graphs.%s", role);
  const json_value *object = ortolan_object(in, graphs, "graphs", role);
  if (object == NULL) return false;
  if (!ortolan_known_keys(in, object, path, "file sequence min_new_tokens")) return false;
  graph->file = ortolan_string(in, object, path, "file");
  if (!is_listed(bundle, in, path, graph->file)) return false;
  const json_value *sequence = ortolan_json_field(object, "sequence");
  graph->takes_one = sequence != NULL;
  if (graph->takes_one && !(sequence->is_integer && sequence->integer == 1))
    return ortolan_invalid(in, "graphs.sequence", "null or 1 for this library");
  graph->min_new_tokens = 1;
  return ortolan_json_field(object, "min_new_tokens") == NULL ||
         ortolan_integer(in, object, path, "min_new_tokens", 1, MAX_CONTEXT,
                         &graph->min_new_tokens);
}

static bool read_graphs(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in) {
  static const char *const known[] = {"decoder prefill decode attention", "encoder attention",
                                      "encoder decoder prefill decode attention"};
  const json_value *graphs = ortolan_object(in, root, "", "graphs");
  if (graphs == NULL || !ortolan_known_keys(in, graphs, "graphs", known[bundle->kind]))
    return false;
  if (bundle->kind == ORTOLAN_ENCODER)
    return read_graph(bundle, graphs, "encoder", &bundle->decode, in);
  if (bundle->kind == ORTOLAN_SEQ2SEQ &&
      !read_graph(bundle, graphs, "encoder", &bundle->encode, in))
    return false;
  if (ortolan_json_field(graphs, "decoder") == NULL)
    return read_graph(bundle, graphs, "prefill", &bundle->prefill, in) &&
           read_graph(bundle, graphs, "decode", &bundle->decode, in);
  if (!read_graph(bundle, graphs, "decoder", &bundle->decode, in)) return false;
  bundle->prefill = bundle->decode;
  return true;
}

static bool read_type(ortolan_state *state, const char *dtype, const ortolan_fields *in) {
  static const struct {
    const char *name;
    ONNXTensorElementDataType type;
    size_t bytes;
  } types[] = {{"float32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},
               {"float16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2},
               {"bfloat16", ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, 2},
               {"int8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    if (strcmp(dtype, types[i].name) != 0) continue;
    state->type = types[i].type;
    state->item_bytes = types[i].bytes;
    return true;
  }
  return ortolan_invalid(in, "states.dtype", "float32, float16, bfloat16 or int8");
}

static bool read_shape(ortolan_state *state, const json_value *item, const ortolan_fields *in) {
  static const char *const names[] = {"capacity", "", "source"}; /* by ortolan_update */
  const json_value *shape = ortolan_array(in, item, "states", "shape", ORTOLAN_MAX_RANK);
  if (shape == NULL) return false;
  int batches = 0, lengths = 0;
  int64_t numbers = 1;
  for (const json_value *size = shape->item; size != NULL; size = size->next) {
    int64_t value = 0;
    const char *name = size->type == JSON_STRING ? size->string : "-";
    if (strcmp(name, "batch") == 0) value = 1, batches++;
    if (strcmp(name, "capacity") == 0 || strcmp(name, "source") == 0)
      value = -1, lengths += strcmp(name, names[state->update]) == 0 ? 1 : ORTOLAN_MAX_RANK;
    if (size->is_integer && size->integer >= 1 && size->integer <= MAX_STATE_NUMBERS) {
      value = size->integer;
      numbers *= value;
    }
    if (value == 0 || numbers > MAX_STATE_NUMBERS)
      return ortolan_invalid(in, "states.shape", "sizes within the limits of this library");
    state->shape[state->rank++] = value;
  }
  return (batches == 1 && lengths == (state->update != ORTOLAN_REPLACE)) ||
         ortolan_invalid(in, "states.shape",
                         "\"batch\" once and, if the state grows or is of a source, \"capacity\" "
                         "or \"source\" once");
}

static bool read_states(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in) {
  static const char *const updates[] = {"append", "replace", "source"};
  const json_value *states = ortolan_array(in, root, "", "states", ORTOLAN_MAX_STATES);
  bool has_source = false;
  if (states == NULL) return false;
  for (const json_value *item = states->item; item != NULL; item = item->next) {
    ortolan_state *state = &bundle->states[bundle->state_count++];
    if (item->type != JSON_OBJECT) return ortolan_invalid(in, "states", "objects");
    if (!ortolan_known_keys(in, item, "states", "name input output shape dtype update window"))
      return false;
    bool slides = ortolan_json_field(item, "window") != NULL;
    if (slides && !ortolan_integer(in, item, "states", "window", 1, MAX_CONTEXT, &state->window))
      return false;
    bundle->has_windows |= slides;
    const char *dtype = ortolan_string(in, item, "states", "dtype");
    if (dtype == NULL || !read_type(state, dtype, in)) return false;
    const char *update = ortolan_string(in, item, "states", "update");
    if (update == NULL) return false;
    state->update = (ortolan_update)ortolan_place(updates, 3, update);
    if (state->update > (bundle->kind == ORTOLAN_SEQ2SEQ ? ORTOLAN_SOURCE : ORTOLAN_REPLACE))
      return ortolan_invalid(in, "states.update",
                             "append or replace in a decoder, or source after an encoder");
    has_source |= state->update == ORTOLAN_SOURCE;
    state->input = ortolan_string(in, item, "states", "input");
    if (state->input == NULL) return false;
    state->output = ortolan_string(in, item, "states", "output");
    if (state->output == NULL || !read_shape(state, item, in)) return false;
  }
  return has_source == (bundle->kind == ORTOLAN_SEQ2SEQ) ||
         ortolan_invalid(in, "states", "a list with a state of the source");
}

/* --- tokens --- */

static bool read_token(const ortolan_bundle *bundle, const json_value *tokens, const char *key,
                       int32_t *token, const ortolan_fields *in) {
  int64_t id = -1;
  if (ortolan_json_field(tokens, key) != NULL &&
      !ortolan_integer(in, tokens, "tokens", key, 0, bundle->vocab_size - 1, &id))
    return false;
  *token = (int32_t)id;
  return true;
}

static bool read_tokens(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in) {
  const json_value *tokens = ortolan_object(in, root, "", "tokens");
  const int64_t below = bundle->vocab_size;
  return tokens != NULL &&
         ortolan_known_keys(in, tokens, "tokens",
                            "bos eos pad start forced_first forced_last suppressed "
                            "suppressed_first opening") &&
         read_token(bundle, tokens, "bos", &bundle->bos, in) &&
         read_token(bundle, tokens, "pad", &bundle->pad, in) &&
         read_token(bundle, tokens, "start", &bundle->start, in) &&
         read_token(bundle, tokens, "forced_first", &bundle->forced_first, in) &&
         read_token(bundle, tokens, "forced_last", &bundle->forced_last, in) &&
         ortolan_id_list(in, tokens, "tokens", "eos", ORTOLAN_MAX_STOP_TOKENS, below, bundle->eos,
                         &bundle->eos_count) &&
         ortolan_id_list(in, tokens, "tokens", "suppressed", ORTOLAN_MAX_SUPPRESSED, below,
                         bundle->suppressed, &bundle->suppressed_count) &&
         ortolan_id_list(in, tokens, "tokens", "suppressed_first", ORTOLAN_MAX_SUPPRESSED, below,
                         bundle->suppressed_first, &bundle->suppressed_first_count) &&
         (bundle->kind != ORTOLAN_SEQ2SEQ || bundle->start >= 0 ||
          ortolan_invalid(in, "tokens.start", "the first token of every text"));
}

/* --- encoders --- */

static bool read_labels(ortolan_bundle *bundle, const json_value *output,
                        const ortolan_fields *in) {
  const json_value *labels = ortolan_array(in, output, "output", "labels", MAX_LABELS);
  if (labels == NULL) return false;
  bundle->labels = calloc(labels->count + 1, sizeof *bundle->labels);
  if (bundle->labels == NULL) return ortolan_no_memory(in->error);
  for (const json_value *item = labels->item; item != NULL; item = item->next) {
    if (item->type != JSON_STRING) return ortolan_invalid(in, "output.labels", "names");
    bundle->labels[bundle->label_count++] = item->string;
  }
  return (int64_t)bundle->label_count == bundle->output_size ||
         ortolan_invalid(in, "output.labels", "as many as `output.size`");
}

static bool read_output(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in) {
  static const char *const kinds[] = {"scores", "labels", "tags", "embedding"};
  const json_value *output = ortolan_object(in, root, "", "output");
  const char *kind = output == NULL ? NULL : ortolan_string(in, output, "output", "kind");
  if (kind == NULL || !ortolan_known_keys(in, output, "output", "kind size labels")) return false;
  size_t place = ortolan_place(kinds, 4, kind);
  if (place == 4)
    return ortolan_fail(in->error, ORTOLAN_KIND,
                        "This encoder computes %.40s; this library computes embeddings and "
                        "scores of labels. Use Ortolan's Python runtime for it.",
                        kind);
  if (!ortolan_integer(in, output, "output", "size", 1, MAX_OUTPUT, &bundle->output_size))
    return false;
  bundle->scores = (ortolan_scores)(place % 3);
  return place == 3 || read_labels(bundle, output, in);
}

static bool read_source(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in) {
  const json_value *source = ortolan_object(in, root, "", "source"), *field;
  const char *kind = source == NULL ? NULL : ortolan_string(in, source, "source", "kind");
  int64_t padding = -1;
  if (kind == NULL) return false;
  if (bundle->kind == ORTOLAN_SEQ2SEQ && strcmp(kind, "audio") == 0)
    return ortolan_sound_read(bundle, source, in);
  if (strcmp(kind, "text") != 0)
    return ortolan_fail(in->error, ORTOLAN_KIND,
                        "This encoder reads inputs of the kind %.40s; this library does not. "
                        "Use Ortolan's Python runtime for it.",
                        kind);
  if (!ortolan_known_keys(in, source, "source",
                          "kind max_tokens vocab_size prompts default_prompt pairs types padding") ||
      !ortolan_integer(in, source, "source", "max_tokens", 1, MAX_CONTEXT, &bundle->source_tokens))
    return false;
  if (bundle->kind == ORTOLAN_ENCODER && bundle->source_tokens != bundle->context_length)
    return ortolan_invalid(in, "source.max_tokens", "the context_length");
  bundle->types = 1;
  if (ortolan_json_field(source, "types") != NULL &&
      !ortolan_integer(in, source, "source", "types", 1, 1 << 20, &bundle->types))
    return false;
  if (ortolan_json_field(source, "padding") != NULL &&
      !ortolan_integer(in, source, "source", "padding", 0, bundle->vocab_size - 1, &padding))
    return false;
  bundle->padding = (int32_t)padding;
  field = ortolan_json_field(source, "pairs");
  bundle->has_pairs = field != NULL && field->boolean;
  field = ortolan_json_field(source, "default_prompt");
  bundle->default_prompt = field == NULL || field->type != JSON_STRING ? NULL : field->string;
  bundle->prompts = ortolan_json_field(source, "prompts");
  return bundle->default_prompt == NULL || *bundle->default_prompt == 0 ||
         ortolan_json_field(bundle->prompts, bundle->default_prompt) != NULL ||
         ortolan_invalid(in, "source.default_prompt", "one of the prompts");
}

/* --- settings of onnxruntime --- */

/* An object of `host.session` whose values are strings. Its names are `name`, or begin with it if
 * it ends with a dot. */
static bool read_settings(const json_value *session, const char *key, const char *name,
                          ortolan_setting *settings, size_t *count, const ortolan_fields *in) {
  char path[64];
  snprintf(path, sizeof path, "host.session.%s", key);
  const json_value *object = ortolan_object(in, session, "host.session", key);
  if (object == NULL) return false;
  size_t length = strlen(name);
  bool is_group = name[length - 1] == '.';
  if (object->count > ORTOLAN_MAX_SETTINGS) return ortolan_invalid(in, path, "at most 16 entries");
  for (const json_value *item = object->item; item != NULL; item = item->next) {
    /* other names would let a bundle change the process, or read and write files */
    bool fits = is_group ? strncmp(item->key, name, length) == 0 : strcmp(item->key, name) == 0;
    if (!fits || item->type != JSON_STRING) {
      char expected[96];
      snprintf(expected, sizeof expected, "strings with %s %s",
               is_group ? "names that begin with" : "the name", name);
      return ortolan_invalid(in, path, expected);
    }
    settings[(*count)++] = (ortolan_setting){item->key, item->string};
  }
  return true;
}

static bool read_host(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in) {
  const json_value *host = ortolan_object(in, root, "", "host");
  if (host == NULL) return false;
  /* `cache` is for hosts without shared buffers */
  if (!ortolan_known_keys(in, host, "host", "session onnxruntime query_heads cache")) return false;
  if (!ortolan_integer(in, host, "host", "query_heads", 0, MAX_DIMENSION, &bundle->query_heads))
    return false;
  const json_value *session = ortolan_object(in, host, "host", "session");
  if (session == NULL ||
      !ortolan_known_keys(in, session, "host.session",
                          "disabled_optimizers environment config_entries"))
    return false;
  const json_value *names = ortolan_array(in, session, "host.session", "disabled_optimizers",
                                          ORTOLAN_MAX_SETTINGS);
  if (names == NULL) return false;
  for (const json_value *item = names->item; item != NULL; item = item->next) {
    if (item->type != JSON_STRING || strlen(item->string) > 256)
      return ortolan_invalid(in, "host.session.disabled_optimizers", "names");
    bundle->optimizers[bundle->optimizer_count++] = item->string;
  }
  if (!read_settings(session, "environment", FLASH_SWITCH, bundle->variables,
                     &bundle->variable_count, in))
    return false;
  return ortolan_json_field(session, "config_entries") == NULL ||
         read_settings(session, "config_entries", "mlas.", bundle->entries, &bundle->entry_count,
                       in);
}

static bool check_device(const json_value *root, const ortolan_fields *in) {
  const json_value *devices = ortolan_array(in, root, "", "devices", 16);
  if (devices == NULL) return false;
  for (const json_value *item = devices->item; item != NULL; item = item->next)
    if (item->type == JSON_STRING && strcmp(item->string, "cpu") == 0) return true;
  return ortolan_fail(in->error, ORTOLAN_DEVICE,
                      "This bundle was not exported for a CPU, where this library computes. Export "
                      "it with --device cpu.");
}

static bool read_manifest(ortolan_bundle *bundle, const ortolan_fields *in) {
  static const char *const kinds[] = {"decoder", "encoder", "encoder-decoder"};
  const json_value *root = ortolan_json_root(bundle->manifest);
  int64_t schema;
  if (root->type != JSON_OBJECT) return ortolan_invalid(in, "the document", "an object");
  if (!ortolan_integer(in, root, "", "schema", 0, INT64_MAX, &schema)) return false;
  if (schema != SCHEMA)
    return ortolan_fail(in->error, ORTOLAN_MANIFEST,
                        "%s has schema %lld; this library reads %d. Use a version that fits, or "
                        "export the checkpoint again.",
                        in->file, (long long)schema, SCHEMA);
  const char *kind = ortolan_string(in, root, "", "kind");
  if (kind == NULL || !ortolan_known_keys(in, root, "", known_fields)) return false;
  bundle->kind = (ortolan_kind)ortolan_place(kinds, 3, kind);
  if (bundle->kind > ORTOLAN_SEQ2SEQ)
    return ortolan_fail(in->error, ORTOLAN_KIND,
                        "This bundle is of the kind %.40s; this library runs decoders, encoders "
                        "and encoder-decoders. Use Ortolan's Python runtime for it.",
                        kind);
  return check_device(root, in) &&
         ortolan_integer(in, root, "", "context_length", 1, MAX_CONTEXT,
                         &bundle->context_length) &&
         ortolan_integer(in, root, "", "vocab_size", 1, MAX_VOCABULARY, &bundle->vocab_size) &&
         read_files(bundle, root, in) && read_weights(bundle, root, in) &&
         read_graphs(bundle, root, in) &&
         (bundle->kind == ORTOLAN_DECODER || read_source(bundle, root, in)) &&
         (bundle->kind == ORTOLAN_ENCODER ? read_output(bundle, root, in)
                                          : read_states(bundle, root, in)) &&
         read_tokens(bundle, root, in) && read_host(bundle, root, in) &&
         ortolan_speech_read(bundle, root, in) && ortolan_chat_read(bundle, root, in);
}

/* --- the folder --- */

bool ortolan_bundle_open(ortolan_bundle *bundle, const char *folder, bool skip_hashes,
                         ortolan_error *error) {
  const ortolan_fields in = {.file = MANIFEST, .code = ORTOLAN_MANIFEST, .error = error};
  size_t size;
  bundle->folder = strdup(folder);
  if (bundle->folder == NULL) return ortolan_no_memory(error);
  char *text = ortolan_file_read(folder, MANIFEST, -1, MAX_MANIFEST_BYTES, &size, error);
  if (text == NULL && error != NULL && error->code == ORTOLAN_MEMORY) return false;
  if (text == NULL)
    return ortolan_fail(error, ORTOLAN_BUNDLE_NOT_FOUND,
                        "%.300s is not a bundle: it has no readable " MANIFEST
                        ". Pass a folder written by `ortolan export`.",
                        folder);
  bundle->manifest = ortolan_document(&in, text, size);
  free(text);
  if (bundle->manifest == NULL || !read_manifest(bundle, &in)) return false;
  for (size_t i = 0; i < bundle->file_count; i++)
    if (!ortolan_file_check(folder, &bundle->files[i], skip_hashes, error)) return false;
  return true;
}

void ortolan_bundle_close(ortolan_bundle *bundle) {
  ortolan_json_free(bundle->manifest);
  free(bundle->labels);
  free(bundle->folder);
}

char *ortolan_bundle_read(const ortolan_bundle *bundle, const char *name, size_t *size,
                          ortolan_error *error) {
  const ortolan_file *file = ortolan_bundle_find(bundle, name);
  if (file == NULL) {
    ortolan_fail(error, ORTOLAN_BUNDLE_FILE, "%.96s is not listed in " MANIFEST ".", name);
    return NULL;
  }
  char *bytes = ortolan_file_read(bundle->folder, name, file->size, MAX_WHOLE_FILE_BYTES, size,
                                  error);
  if (bytes == NULL) return NULL;
  /* the bytes in memory, not the file: it may have changed since */
  ortolan_sha256 hash;
  char hex[65];
  ortolan_sha256_begin(&hash);
  ortolan_sha256_add(&hash, bytes, *size);
  ortolan_sha256_end(&hash, hex);
  if (strcmp(hex, file->sha256) == 0) return bytes;
  ortolan_fail(error, ORTOLAN_BUNDLE_FILE, "%s was altered. Copy the bundle again.", name);
  free(bytes);
  return NULL;
}
