/* Encoders of texts: vectors, and scores of labels. */
#include <math.h>

#include "tokenizer.h"

#define MAX_ROWS 32    /* inputs of a call; more do not use the cores better */
#define MAX_TOKENS 4096 /* of a call, with padding: bounds memory */

struct ortolan_encoder {
  const ortolan_bundle *bundle;
  ortolan_host host;
  OrtSession *session;
};

const char *const ortolan_text_inputs[] = {"input_ids", "lengths", "token_type_ids"};

static ortolan_names names_of(const ortolan_bundle *bundle) {
  static const char *const outputs[] = {"output"};
  return (ortolan_names){ortolan_text_inputs, outputs, bundle->types > 1 ? 3 : 2, 1};
}

/* --- opening --- */

ortolan_encoder *ortolan_encoder_open(const ortolan_bundle *bundle, int threads,
                                      ortolan_error *error) {
  const ortolan_names names = names_of(bundle);
  ortolan_encoder *encoder = calloc(1, sizeof *encoder);
  if (encoder == NULL) {
    ortolan_no_memory(error);
    return NULL;
  }
  encoder->bundle = bundle;
  if (ortolan_host_open(&encoder->host, error) &&
      ortolan_session_open(&encoder->host, bundle, &bundle->decode, &names, threads,
                           &encoder->session, error))
    return encoder;
  ortolan_encoder_close(encoder);
  return NULL;
}

void ortolan_encoder_close(ortolan_encoder *encoder) {
  if (encoder == NULL) return;
  if (encoder->host.ort != NULL) encoder->host.ort->ReleaseSession(encoder->session);
  ortolan_host_close(&encoder->host);
  free(encoder);
}

/* --- inputs --- */

/* Token ids of one input, and the types of each if the graph reads them. */
typedef struct {
  ortolan_ids ids, types;
  size_t place; /* among the inputs */
} row;

static int by_length(const void *left, const void *right) {
  const row *a = left, *b = right;
  if (a->ids.count != b->ids.count) return a->ids.count < b->ids.count ? 1 : -1;
  return (a->place > b->place) - (a->place < b->place);
}

/* The prefix that the model was trained with for this use, or NULL after an error. */
static const char *prefix_of(const ortolan_bundle *bundle, const char *name, ortolan_error *error) {
  const char *chosen = name != NULL ? name : bundle->default_prompt;
  if (chosen == NULL || *chosen == 0) return "";
  const json_value *prompt = ortolan_json_field(bundle->prompts, chosen);
  if (prompt != NULL && prompt->type == JSON_STRING) return prompt->string;
  ortolan_fail(error, ORTOLAN_INPUT,
               "The model has no prompt `%.40s`. Put any other text before the input yourself.",
               chosen);
  return NULL;
}

static bool check_row(const ortolan_bundle *bundle, const row *read, size_t fewest,
                      ortolan_error *error) {
  if (read->ids.count <= fewest)
    return ortolan_fail(error, ORTOLAN_INPUT, "Input %zu has no tokens. Leave it out.",
                        read->place);
  if (read->ids.count > (size_t)bundle->source_tokens)
    return ortolan_fail(error, ORTOLAN_CONTEXT_LENGTH,
                        "Input %zu has %zu tokens, and the limit is %lld. Split it, or set "
                        "truncate.",
                        read->place, read->ids.count, (long long)bundle->source_tokens);
  int32_t most = 0;
  for (size_t i = 0; i < read->types.count; i++)
    if (read->types.items[i] > most) most = read->types.items[i];
  if (most > 0 && bundle->types == 1 && !bundle->has_pairs)
    return ortolan_fail(error, ORTOLAN_INPUT,
                        "The tokenizer marks the second text of input %zu by types, which this "
                        "bundle does not read. Only classifiers read pairs.",
                        read->place);
  return bundle->types == 1 || most < bundle->types ||
         ortolan_fail(error, ORTOLAN_TOKENIZER,
                      "The tokenizer marks a token with type %ld, and the model has types up to "
                      "%lld. tokenizer.json belongs to another model.",
                      (long)most, (long long)bundle->types - 1);
}

/* Encode an input. `added` is the number of tokens around every text. */
static bool read_input(const ortolan_bundle *bundle, const ortolan_tokenizer *tokenizer,
                       const ortolan_input *input, const char *prefix, bool truncate, size_t added,
                       row *read, ortolan_error *error) {
  ortolan_text whole = {.size = 0};
  ortolan_text_add(&whole, prefix, strlen(prefix));
  ortolan_text_add(&whole, input->text, input->size);
  bool pair = input->second != NULL;
  bool ok = (!whole.failed || ortolan_text_error(&whole, error)) &&
            ortolan_tokenizer_encode(tokenizer, whole.bytes, whole.size, input->second,
                                     input->second_size, true,
                                     truncate ? (size_t)bundle->source_tokens : 0, &read->ids,
                                     &read->types, error) &&
            check_row(bundle, read, pair ? 0 : added, error);
  while (ok && bundle->padding >= 0 && read->ids.count < (size_t)bundle->source_tokens) {
    ortolan_ids_add(&read->ids, bundle->padding);
    ortolan_ids_add(&read->types, 0);
    ok = (!read->ids.failed && !read->types.failed) || ortolan_no_memory(error);
  }
  free(whole.bytes);
  return ok;
}

bool ortolan_read_source(ortolan_model *model, const char *text, size_t size, ortolan_ids *ids,
                         ortolan_error *error) {
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, error);
  const ortolan_input input = {.text = text, .size = size};
  row read = {.place = 0};
  ortolan_ids added = {.count = 0};
  bool ok = tokenizer != NULL &&
            ortolan_tokenizer_encode(tokenizer, "", 0, NULL, 0, true, 0, &added, NULL, error) &&
            read_input(&model->bundle, tokenizer, &input, "", false, added.count, &read, error);
  free(added.items);
  free(read.types.items);
  *ids = read.ids;
  return ok;
}

/* --- calls --- */

/* Compute rows of at most `width` tokens, and write each output to its place. */
static bool compute(const ortolan_encoder *encoder, const row *rows, size_t count, float *results,
                    float *batch, int64_t *padded, ortolan_error *error) {
  const ortolan_bundle *bundle = encoder->bundle;
  const ortolan_host *host = &encoder->host;
  const ortolan_names names = names_of(bundle);
  size_t width = rows[0].ids.count, size = (size_t)bundle->output_size, tokens = count * width;
  int64_t *types = padded + tokens;
  int32_t lengths[MAX_ROWS];
  for (size_t i = 0; i < count; i++) {
    lengths[i] = (int32_t)rows[i].ids.count;
    for (size_t k = 0; k < width; k++) {
      bool inside = k < rows[i].ids.count;
      padded[i * width + k] = inside ? rows[i].ids.items[k] : bundle->pad < 0 ? 0 : bundle->pad;
      types[i * width + k] = inside ? rows[i].types.items[k] : 0;
    }
  }
  const int64_t shape[] = {(int64_t)count, (int64_t)width}, row_shape[] = {(int64_t)count};
  const int64_t output_shape[] = {(int64_t)count, bundle->output_size};
  const ONNXTensorElementDataType int64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  OrtValue *values[3] = {NULL}, *output = NULL;
  bool ok =
      ortolan_tensor(host, padded, tokens * sizeof *padded, shape, 2, int64, &values[0], error) &&
      ortolan_tensor(host, lengths, count * sizeof *lengths, row_shape, 1,
                     ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, &values[1], error) &&
      ortolan_tensor(host, types, tokens * sizeof *types, shape, 2, int64, &values[2], error) &&
      ortolan_tensor(host, batch, count * size * sizeof *batch, output_shape, 2,
                     ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &output, error) &&
      ortolan_run(host, encoder->session, &names, (const OrtValue *const *)values, &output, error);
  for (size_t i = 0; i < 3; i++) host->ort->ReleaseValue(values[i]);
  host->ort->ReleaseValue(output);
  for (size_t i = 0; ok && i < count; i++) {
    for (size_t k = 0; ok && k < size; k++) ok = isfinite(batch[i * size + k]);
    memcpy(results + rows[i].place * size, batch + i * size, size * sizeof *batch);
    if (!ok)
      ortolan_fail(error, ORTOLAN_NUMERIC,
                   "The output for input %zu is not finite. Verify the bundle on this device.",
                   rows[i].place);
  }
  return ok;
}

/* Compute rows in batches of similar length: padding costs as much as text. */
static bool compute_all(const ortolan_encoder *encoder, row *rows, size_t count, float *results,
                        ortolan_error *error) {
  size_t longest, most;
  bool ok = true;
  qsort(rows, count, sizeof *rows, by_length);
  longest = count > 0 ? rows[0].ids.count : 0;
  most = longest > MAX_TOKENS ? longest : MAX_TOKENS;
  int64_t *padded = malloc(2 * most * sizeof *padded);
  float *batch = malloc(MAX_ROWS * (size_t)encoder->bundle->output_size * sizeof *batch);
  if (padded == NULL || batch == NULL) ok = ortolan_no_memory(error);
  for (size_t start = 0, end; ok && start < count; start = end) {
    longest = rows[start].ids.count;
    for (end = start + 1; end < count && end - start < MAX_ROWS; end++)
      if ((end - start + 1) * longest > MAX_TOKENS || 4 * rows[end].ids.count < 3 * longest) break;
    ok = compute(encoder, rows + start, end - start, results, batch, padded, error);
  }
  free(padded);
  free(batch);
  return ok;
}

static bool encode_all(ortolan_model *model, const ortolan_input *inputs, size_t count,
                       const ortolan_encoder_options *options, float *results,
                       ortolan_error *error) {
  const ortolan_bundle *bundle = &model->bundle;
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, error);
  const char *prefix = tokenizer == NULL ? NULL : prefix_of(bundle, options->prompt, error);
  row *rows = prefix == NULL ? NULL : calloc(count + 1, sizeof *rows);
  ortolan_ids added = {.count = 0}; /* tokens around every text */
  if (prefix != NULL && rows == NULL) ortolan_no_memory(error);
  bool ok = rows != NULL &&
            ortolan_tokenizer_encode(tokenizer, "", 0, NULL, 0, true, 0, &added, NULL, error);
  for (size_t i = 0; ok && i < count; i++) {
    rows[i].place = i;
    ok = read_input(bundle, tokenizer, &inputs[i], prefix, options->truncate, added.count, &rows[i],
                    error);
  }
  ok = ok && compute_all(model->encoder, rows, count, results, error);
  for (size_t i = 0; rows != NULL && i < count; i++) {
    free(rows[i].ids.items);
    free(rows[i].types.items);
  }
  free(added.items);
  free(rows);
  return ok;
}

static bool check_call(const ortolan_model *model, const ortolan_encoder_options *options,
                       bool wants_labels, ortolan_error *error) {
  bool has_labels = model->bundle.label_count > 0;
  if (error != NULL) *error = (ortolan_error){.code = ORTOLAN_OK};
  if (model->encoder == NULL || has_labels != wants_labels)
    return ortolan_fail(error, ORTOLAN_KIND, "This bundle is not an encoder of texts with %s.",
                        wants_labels ? "labels. Use ortolan_embed for vectors"
                                     : "vectors. Use ortolan_classify for labels");
  return ortolan_check_size("ortolan_encoder_options", options->struct_size, sizeof *options,
                            error) &&
         (options->dimensions <= (size_t)model->bundle.output_size ||
         ortolan_fail(error, ORTOLAN_INPUT, "dimensions must be at most %lld (got %zu).",
                      (long long)model->bundle.output_size, options->dimensions));
}

size_t ortolan_output_size(const ortolan_model *model) {
  return model->encoder == NULL ? 0 : (size_t)model->bundle.output_size;
}

const char *ortolan_label(const ortolan_model *model, size_t place) {
  return place < model->bundle.label_count ? model->bundle.labels[place] : NULL;
}

/* Keep the first numbers of each vector. Vectors of length 1 get length 1 again. */
static void shorten(float *vectors, size_t count, size_t size, size_t kept) {
  for (size_t i = 0; i < count; i++) {
    float *from = vectors + i * size, *to = vectors + i * kept;
    double whole = 0, part = 0;
    for (size_t k = 0; k < size; k++) {
      whole += (double)from[k] * (double)from[k];
      if (k < kept) part += (double)from[k] * (double)from[k];
    }
    double scale = fabs(whole - 1) < 1e-3 && part > 0 ? 1 / sqrt(part) : 1;
    for (size_t k = 0; k < kept; k++) to[k] = (float)(from[k] * scale);
  }
}

bool ortolan_embed(ortolan_model *model, const ortolan_input *inputs, size_t count,
                   const ortolan_encoder_options *options, float *vectors, ortolan_error *error) {
  const ortolan_encoder_options defaults = ORTOLAN_ENCODER_OPTIONS;
  if (options == NULL) options = &defaults;
  if (!check_call(model, options, false, error)) return false;
  size_t size = (size_t)model->bundle.output_size, kept = options->dimensions;
  if (kept == 0 || kept == size) return encode_all(model, inputs, count, options, vectors, error);
  float *whole = malloc((count * size + 1) * sizeof *whole);
  bool ok = (whole != NULL || ortolan_no_memory(error)) &&
            encode_all(model, inputs, count, options, whole, error);
  if (ok) shorten(whole, count, size, kept);
  if (ok) memcpy(vectors, whole, count * kept * sizeof *whole);
  free(whole);
  return ok;
}

bool ortolan_classify(ortolan_model *model, const ortolan_input *inputs, size_t count,
                      const ortolan_encoder_options *options, float *scores,
                      ortolan_error *error) {
  const ortolan_encoder_options defaults = ORTOLAN_ENCODER_OPTIONS;
  if (options == NULL) options = &defaults;
  if (!check_call(model, options, true, error) ||
      !encode_all(model, inputs, count, options, scores, error))
    return false;
  size_t size = (size_t)model->bundle.output_size;
  for (size_t i = 0; i < count; i++) {
    float *row = scores + i * size;
    /* a single label competes with its absence, whose logit is 0 */
    double highest = size == 1 ? 0 : row[0], total = 0;
    for (size_t k = 0; k < size; k++) highest = fmax(highest, row[k]);
    for (size_t k = 0; k < size; k++) total += exp(row[k] - highest);
    if (size == 1) total += exp(-highest);
    for (size_t k = 0; k < size; k++) {
      double value = row[k];
      if (model->bundle.scores == ORTOLAN_SOFTMAX) value = exp(value - highest) / total;
      if (model->bundle.scores == ORTOLAN_SIGMOID) value = 1 / (1 + exp(-value));
      row[k] = (float)value;
    }
  }
  return true;
}
