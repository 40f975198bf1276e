#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MANIFEST "manifest.json"
#define MAX_MANIFEST_BYTES (1 << 20)
#define MAX_WHOLE_FILE_BYTES (256 << 20)
#define SCHEMA 1
#define MAX_CONTEXT (1 << 21)
#define MAX_VOCABULARY (1 << 20)
#define MAX_LABELS (1 << 15)
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

static bool read_file(ortolan_bundle *bundle, const json_value *item) {
  ortolan_file *file = &bundle->files[bundle->file_count];
  if (!ortolan_known_keys(item, "name size sha256") ||
      (file->name = ortolan_string(item, "name")) == NULL ||
      (file->sha256 = ortolan_string(item, "sha256")) == NULL ||
      !ortolan_integer(item, "size", 0, (int64_t)1 << 44, &file->size))
    return false;
  if (!is_file_name(file->name))
    return ortolan_invalid(item, "name", "a file name of a-z, 0-9, '.', '_' and '-'");
  if (strspn(file->sha256, "0123456789abcdef") != 64 || file->sha256[64] != 0)
    return ortolan_invalid(item, "sha256", "64 lower-case hexadecimal digits");
  if (ortolan_bundle_find(bundle, file->name) != NULL)
    return ortolan_invalid(item, "name", "different for every file");
  bundle->file_count++;
  return true;
}

/* The name of a listed file, or null. */
static bool read_name(ortolan_bundle *bundle, const json_value *object, const char *key,
                      const char **name) {
  return ortolan_optional_string(object, key, name) &&
         (*name == NULL || ortolan_bundle_find(bundle, *name) != NULL ||
          ortolan_invalid(object, key, "a name among `files`"));
}

static bool read_files(ortolan_bundle *bundle, const json_value *root) {
  const json_value *files = ortolan_array(root, "files", ORTOLAN_MAX_FILES);
  const json_value *item = files == NULL ? NULL : files->item;
  while (item != NULL && read_file(bundle, item)) item = item->next;
  if (files == NULL || item != NULL) return false;
  const json_value *weights = ortolan_array(root, "weights", ORTOLAN_MAX_FILES);
  if (weights == NULL) return false;
  for (item = weights->item; item != NULL; item = item->next)
    if (item->type != JSON_STRING || ortolan_bundle_find(bundle, item->string) == NULL)
      return ortolan_invalid(root, "weights", "a name among `files`");
  return read_name(bundle, root, "certificate", &bundle->certificate) &&
         read_name(bundle, root, "tokenizer", &bundle->tokenizer);
}

/* --- the model --- */

static bool read_graph(ortolan_bundle *bundle, const json_value *graphs, const char *role,
                       ortolan_graph *graph) {
  const json_value *object = ortolan_object(graphs, role);
  int64_t sequence = 0;
  graph->min_new_tokens = 1;
  if (object == NULL || !ortolan_known_keys(object, "file sequence min_new_tokens") ||
      ortolan_string(object, "file") == NULL || !read_name(bundle, object, "file", &graph->file) ||
      !ortolan_optional(object, "sequence", 1, 1, &sequence))
    return false;
  graph->takes_one = sequence == 1;
  return ortolan_optional(object, "min_new_tokens", 1, MAX_CONTEXT, &graph->min_new_tokens);
}

static bool read_graphs(ortolan_bundle *bundle, const json_value *root) {
  static const char *const known[] = {"decoder prefill decode attention", "encoder attention",
                                      "encoder decoder prefill decode attention"};
  const json_value *graphs = ortolan_object(root, "graphs");
  if (graphs == NULL || !ortolan_known_keys(graphs, known[bundle->kind])) return false;
  if (bundle->kind == ORTOLAN_ENCODER)
    return read_graph(bundle, graphs, "encoder", &bundle->decode);
  if (bundle->kind == ORTOLAN_SEQ2SEQ && !read_graph(bundle, graphs, "encoder", &bundle->encode))
    return false;
  bool is_one = ortolan_json_field(graphs, "decoder") != NULL;
  return read_graph(bundle, graphs, is_one ? "decoder" : "prefill", &bundle->prefill) &&
         read_graph(bundle, graphs, is_one ? "decoder" : "decode", &bundle->decode);
}

static bool read_type(ortolan_state *state, const json_value *item) {
  static const char *const names[] = {"float32", "float16", "bfloat16", "int8"};
  static const ONNXTensorElementDataType types[] = {
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8};
  const char *name = ortolan_string(item, "dtype");
  size_t place = name == NULL ? 4 : ortolan_place(names, 4, name);
  if (place < 4) state->type = types[place];
  return place < 4 ||
         (name != NULL && ortolan_invalid(item, "dtype", "float32, float16, bfloat16 or int8"));
}

static bool read_shape(ortolan_state *state, const json_value *item) {
  static const char *const names[] = {"capacity", "", "source"}; /* by ortolan_update */
  const json_value *shape = ortolan_array(item, "shape", ORTOLAN_MAX_RANK);
  if (shape == NULL) return false;
  int batches = 0, lengths = 0;
  int64_t numbers = 1;
  for (const json_value *size = shape->item; size != NULL; size = size->next) {
    int64_t value = 0;
    const char *name = size->type == JSON_STRING ? size->string : "-";
    if (strcmp(name, "batch") == 0) value = 1, batches++;
    if (strcmp(name, "capacity") == 0 || strcmp(name, "source") == 0)
      value = -1, lengths += strcmp(name, names[state->update]) == 0 ? 1 : ORTOLAN_MAX_RANK;
    if (size->is_integer && size->integer >= 1 && size->integer <= MAX_STATE_NUMBERS)
      value = size->integer, numbers *= value;
    if (value == 0 || numbers > MAX_STATE_NUMBERS)
      return ortolan_invalid(item, "shape", "sizes within the limits of this library");
    state->shape[state->rank++] = value;
  }
  return (batches == 1 && lengths == (state->update != ORTOLAN_REPLACE)) ||
         ortolan_invalid(item, "shape",
                         "\"batch\" once and, if the state grows or is of a source, \"capacity\" "
                         "or \"source\" once");
}

static bool read_state(ortolan_bundle *bundle, const json_value *item) {
  static const char *const updates[] = {"append", "replace", "source"};
  ortolan_state *state = &bundle->states[bundle->state_count++];
  if (!ortolan_known_keys(item, "name input output shape dtype update window") ||
      !ortolan_optional(item, "window", 1, MAX_CONTEXT, &state->window) || !read_type(state, item))
    return false;
  if (state->window > bundle->window) bundle->window = state->window;
  const char *update = ortolan_string(item, "update");
  if (update == NULL) return false;
  state->update = (ortolan_update)ortolan_place(updates, 3, update);
  if (state->update > (bundle->kind == ORTOLAN_SEQ2SEQ ? ORTOLAN_SOURCE : ORTOLAN_REPLACE))
    return ortolan_invalid(item, "update",
                           "append or replace in a decoder, or source after an encoder");
  return (state->input = ortolan_string(item, "input")) != NULL &&
         (state->output = ortolan_string(item, "output")) != NULL && read_shape(state, item);
}

static bool read_states(ortolan_bundle *bundle, const json_value *root) {
  const json_value *states = ortolan_array(root, "states", ORTOLAN_MAX_STATES);
  const json_value *item = states == NULL ? NULL : states->item;
  while (item != NULL && read_state(bundle, item)) item = item->next;
  return states != NULL && item == NULL;
}

static bool read_tokens(ortolan_bundle *b, const json_value *root) {
  const json_value *tokens = ortolan_object(root, "tokens");
  const int64_t below = b->vocab_size;
  b->bos = b->pad = b->start = b->forced_first = b->forced_last = -1;
  return tokens != NULL &&
         ortolan_known_keys(tokens,
                            "bos eos pad start forced_first forced_last suppressed "
                            "suppressed_first opening") &&
         ortolan_id(tokens, "bos", below, &b->bos) && ortolan_id(tokens, "pad", below, &b->pad) &&
         ortolan_id(tokens, "start", below, &b->start) &&
         ortolan_id(tokens, "forced_first", below, &b->forced_first) &&
         ortolan_id(tokens, "forced_last", below, &b->forced_last) &&
         ortolan_id_list(tokens, "eos", ORTOLAN_MAX_STOP_TOKENS, below, b->eos, &b->eos_count) &&
         ortolan_id_list(tokens, "suppressed", ORTOLAN_MAX_SUPPRESSED, below, b->suppressed,
                         &b->suppressed_count) &&
         ortolan_id_list(tokens, "suppressed_first", ORTOLAN_MAX_SUPPRESSED, below,
                         b->suppressed_first, &b->suppressed_first_count) &&
         (b->kind != ORTOLAN_SEQ2SEQ || b->start >= 0 ||
          ortolan_invalid(tokens, "start", "the first token of every text"));
}

/* --- encoders --- */

static bool read_output(ortolan_bundle *bundle, const json_value *root) {
  static const char *const kinds[] = {"scores", "labels", "tags", "embedding"};
  const json_value *output = ortolan_object(root, "output");
  const char *kind = output == NULL ? NULL : ortolan_string(output, "kind");
  if (kind == NULL || !ortolan_known_keys(output, "kind size labels")) return false;
  size_t place = ortolan_place(kinds, 4, kind);
  if (place == 4)
    return ortolan_fail(ORTOLAN_KIND,
                        "This encoder computes %.40s; this library computes embeddings and "
                        "scores of labels. Use Ortolan's Python runtime for it.",
                        kind);
  if (!ortolan_integer(output, "size", 1, 1 << 20, &bundle->output_size)) return false;
  bundle->scores = (ortolan_scores)(place % 3);
  if (place == 3) return true;
  bundle->labels = calloc(MAX_LABELS, sizeof *bundle->labels);
  if (bundle->labels == NULL) return ortolan_no_memory();
  return ortolan_string_list(output, "labels", MAX_LABELS, bundle->labels, &bundle->label_count) &&
         ((int64_t)bundle->label_count == bundle->output_size ||
          ortolan_invalid(output, "labels", "as many as `output.size`"));
}

static bool read_source(ortolan_bundle *bundle, const json_value *root) {
  const json_value *source = ortolan_object(root, "source");
  const char *kind = source == NULL ? NULL : ortolan_string(source, "kind");
  if (kind == NULL) return false;
  if (bundle->kind == ORTOLAN_SEQ2SEQ && strcmp(kind, "audio") == 0)
    return ortolan_sound_read(bundle, source);
  if (strcmp(kind, "text") != 0)
    return ortolan_fail(ORTOLAN_KIND,
                        "This encoder reads inputs of the kind %.40s; this library does not. "
                        "Use Ortolan's Python runtime for it.",
                        kind);
  bundle->types = 1, bundle->padding = -1;
  if (!ortolan_known_keys(source,
                          "kind max_tokens vocab_size prompts default_prompt pairs types "
                          "padding") ||
      !ortolan_integer(source, "max_tokens", 1, MAX_CONTEXT, &bundle->source_tokens) ||
      !ortolan_optional(source, "types", 1, 1 << 20, &bundle->types) ||
      !ortolan_flag(source, "pairs", &bundle->has_pairs) ||
      !ortolan_id(source, "padding", bundle->vocab_size, &bundle->padding) ||
      !ortolan_optional_string(source, "default_prompt", &bundle->default_prompt))
    return false;
  if (bundle->kind == ORTOLAN_ENCODER && bundle->source_tokens != bundle->context_length)
    return ortolan_invalid(source, "max_tokens", "the context_length");
  bundle->prompts = ortolan_json_field(source, "prompts");
  return bundle->default_prompt == NULL || *bundle->default_prompt == 0 ||
         ortolan_json_field(bundle->prompts, bundle->default_prompt) != NULL ||
         ortolan_invalid(source, "default_prompt", "one of the prompts");
}

/* --- settings of onnxruntime --- */

/* Other names would let a bundle change the process, or read and write files. */
static bool read_entries(const json_value *session) {
  if (ortolan_json_field(session, "config_entries") == NULL) return true;
  const json_value *entries = ortolan_object(session, "config_entries");
  const json_value *item = entries == NULL ? NULL : entries->item;
  while (item != NULL && strncmp(item->key, "mlas.", 5) == 0 && item->type == JSON_STRING)
    item = item->next;
  return entries != NULL &&
         ((item == NULL && entries->count <= ORTOLAN_MAX_SETTINGS) ||
          ortolan_invalid(session, "config_entries",
                          "at most 16 strings with names that begin with mlas."));
}

static bool read_host(ortolan_bundle *b, const json_value *root) {
  const json_value *host = ortolan_object(root, "host");
  const json_value *session = host == NULL ? NULL : ortolan_object(host, "session");
  const json_value *variables = session == NULL ? NULL : ortolan_object(session, "environment");
  b->session = session;
  /* `cache` is for hosts without shared buffers */
  return variables != NULL && ortolan_known_keys(host, "session onnxruntime query_heads cache") &&
         ortolan_integer(host, "query_heads", 0, 1 << 20, &b->query_heads) &&
         ortolan_known_keys(session, "disabled_optimizers environment config_entries") &&
         ortolan_string_list(session, "disabled_optimizers", ORTOLAN_MAX_SETTINGS, b->optimizers,
                             &b->optimizer_count) &&
         ortolan_known_keys(variables, ORTOLAN_FLASH_SWITCH) &&
         ortolan_optional_string(variables, ORTOLAN_FLASH_SWITCH, &b->flash_switch) &&
         read_entries(session);
}

static bool check_device(const json_value *root) {
  const char *devices[16];
  size_t count = 0;
  if (!ortolan_string_list(root, "devices", 16, devices, &count)) return false;
  return ortolan_place(devices, count, "cpu") < count ||
         ortolan_fail(ORTOLAN_DEVICE,
                      "This bundle was not exported for a CPU, where this library computes. Export "
                      "it with --device cpu.");
}

static bool read_manifest(ortolan_bundle *bundle) {
  static const char *const kinds[] = {"decoder", "encoder", "encoder-decoder"};
  const json_value *root = &bundle->manifest->root;
  int64_t schema;
  if (!ortolan_integer(root, "schema", 0, INT64_MAX, &schema)) return false;
  if (schema != SCHEMA)
    return ortolan_fail(ORTOLAN_MANIFEST,
                        MANIFEST
                        " has schema %lld; this library reads %d. Use a version that "
                        "fits, or export the checkpoint again.",
                        (long long)schema, SCHEMA);
  const char *kind = ortolan_string(root, "kind");
  if (kind == NULL || !ortolan_known_keys(root, known_fields)) return false;
  bundle->kind = (ortolan_kind)ortolan_place(kinds, 3, kind);
  if (bundle->kind > ORTOLAN_SEQ2SEQ)
    return ortolan_fail(ORTOLAN_KIND,
                        "This bundle is of the kind %.40s; this library runs decoders, encoders "
                        "and encoder-decoders. Use Ortolan's Python runtime for it.",
                        kind);
  return check_device(root) &&
         ortolan_integer(root, "context_length", 1, MAX_CONTEXT, &bundle->context_length) &&
         ortolan_integer(root, "vocab_size", 1, MAX_VOCABULARY, &bundle->vocab_size) &&
         read_files(bundle, root) && read_graphs(bundle, root) &&
         (bundle->kind == ORTOLAN_DECODER || read_source(bundle, root)) &&
         (bundle->kind == ORTOLAN_ENCODER ? read_output(bundle, root)
                                          : read_states(bundle, root)) &&
         read_tokens(bundle, root) && read_host(bundle, root) &&
         ortolan_speech_read(bundle, root) && ortolan_chat_read(bundle, root);
}

/* --- the folder --- */

bool ortolan_bundle_open(ortolan_bundle *bundle, const char *folder, bool skip_hashes) {
  const ortolan_file manifest = {.name = MANIFEST, .size = -1};
  char *text;
  size_t size;
  bundle->folder = strdup(folder);
  if (bundle->folder == NULL) return ortolan_no_memory();
  if (!ortolan_file_read(folder, &manifest, MAX_MANIFEST_BYTES, &text, &size))
    return ortolan_last_code() != ORTOLAN_MEMORY &&
           ortolan_fail(ORTOLAN_BUNDLE_NOT_FOUND,
                        "%.300s is not a bundle: it has no readable " MANIFEST
                        ". Pass a folder written by `ortolan export`.",
                        folder);
  bundle->manifest = ortolan_json_read(ORTOLAN_MANIFEST, MANIFEST, text, size);
  free(text);
  if (bundle->manifest == NULL || !read_manifest(bundle)) return false;
  for (size_t i = 0; i < bundle->file_count; i++) {
    ortolan_file file = bundle->files[i];
    if (skip_hashes) file.sha256 = NULL;
    if (!ortolan_file_read(folder, &file, INT64_MAX, NULL, NULL)) return false;
  }
  return true;
}

void ortolan_bundle_close(ortolan_bundle *bundle) {
  ortolan_json_free(bundle->manifest);
  free(bundle->labels);
  free(bundle->folder);
}

char *ortolan_bundle_read(const ortolan_bundle *bundle, const char *name, size_t *size) {
  const ortolan_file *file = ortolan_bundle_find(bundle, name);
  char *bytes = NULL;
  if (file == NULL) ortolan_fail(ORTOLAN_BUNDLE_FILE, "%.96s is not listed in " MANIFEST ".", name);
  else ortolan_file_read(bundle->folder, file, MAX_WHOLE_FILE_BYTES, &bytes, size);
  return bytes;
}
