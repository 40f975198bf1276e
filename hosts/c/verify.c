/* Replays the certificate of a bundle: computes its probes, and compares the logits with those that
 * PyTorch computed.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "certificate.bin is little-endian: this file needs a machine that is"
#endif

#define SCHEMA 1
#define MAX_PROBES 1024
#define BLOCK_LOGITS ((size_t)1 << 24) /* logits in memory at once: 64 MiB */
#define TAIL 64                        /* last tokens of a probe, decoded one by one */
#define REST 1e-5                      /* least probability of all tokens that were not kept */
#define TINY 1e-300                    /* avoids log(0) */

typedef struct {
  const char *file;
  ortolan_json *document;
  char *bytes; /* certificate.bin */
  size_t size;
  size_t probes, tokens, kept; /* kept: logits per token */
  const int32_t *lengths, *token_ids, *top_ids;
  const float *top_logits, *log_sum_exp;
  double mean_kl, max_delta, near_tie; /* tolerances; negative or infinite for none */
} certificate;

/* --- reading --- */

static bool is_text(const json_value *object, const char *key, const char *text) {
  const json_value *value = ortolan_json_field(object, key);
  return value != NULL && value->type == JSON_STRING && strcmp(value->string, text) == 0;
}

/* Find an array of 4 bytes a number: integers within limits, or finite floats if `most` is 0. */
static const void *read_array(const certificate *c, const char *name, size_t rows, size_t columns,
                              int64_t least, int64_t most) {
  const json_value *arrays = ortolan_json_field(&c->document->root, "arrays");
  const json_value *item = arrays == NULL ? NULL : arrays->item;
  while (item != NULL && !is_text(item, "name", name)) item = item->next;
  const json_value *shape = ortolan_json_field(item, "shape");
  const json_value *offset = ortolan_json_field(item, "offset");
  size_t rank = columns > 0 ? 2 : 1, count = rows * (columns > 0 ? columns : 1);
  bool ok = is_text(item, "dtype", most > 0 ? "int32" : "float32") && shape != NULL &&
            shape->count == rank && (uint64_t)shape->item->integer == rows &&
            (rank == 1 || (uint64_t)shape->item->next->integer == columns) && offset != NULL &&
            ortolan_is_id(offset, (int64_t)c->size - (int64_t)(4 * count) + 1) &&
            offset->integer % 4 == 0;
  const char *numbers = c->bytes + (ok ? offset->integer : 0);
  for (size_t i = 0; ok && i < count; i++)
    ok = most > 0 ? ((const int32_t *)numbers)[i] >= least && ((const int32_t *)numbers)[i] <= most
                  : isfinite(((const float *)numbers)[i]);
  if (ok) return numbers;
  ortolan_fail(ORTOLAN_CERTIFICATE,
               "%s needs an array `%s` that is aligned, of the type and shape of the probes, and "
               "within limits. Copy the bundle again.",
               c->file, name);
  return NULL;
}

static bool read_arrays(certificate *c, const ortolan_bundle *bundle) {
  const int64_t last = bundle->vocab_size - 1;
  c->lengths = read_array(c, "lengths", c->probes, 0, 1, bundle->context_length);
  for (size_t i = 0; c->lengths != NULL && i < c->probes; i++) c->tokens += (size_t)c->lengths[i];
  return c->lengths != NULL &&
         (c->token_ids = read_array(c, "token_ids", c->tokens, 0, 0, last)) != NULL &&
         (c->top_ids = read_array(c, "top_ids", c->tokens, c->kept, 0, last)) != NULL &&
         (c->top_logits = read_array(c, "top_logits", c->tokens, c->kept, 0, 0)) != NULL &&
         (c->log_sum_exp = read_array(c, "log_sum_exp", c->tokens, 0, 0, 0)) != NULL;
}

/* A number of at least 0, or -1 for null. */
static bool read_bound(const json_value *object, const char *key, double *number) {
  const json_value *value = ortolan_json_field(object, key);
  *number = value == NULL ? -1 : value->number;
  return value == NULL || (value->type == JSON_NUMBER && value->number >= 0) ||
         ortolan_invalid(object, key, "null or a number of at least 0");
}

static bool read_tolerances(certificate *c) {
  const json_value *thresholds = ortolan_object(&c->document->root, "thresholds");
  double largest = 1;
  if (thresholds == NULL || !read_bound(thresholds, "mean_kl", &c->mean_kl) ||
      !read_bound(thresholds, "max_abs_delta", &c->max_delta) ||
      !read_bound(thresholds, "near_tie", &c->near_tie))
    return false;
  for (size_t i = 0; i < c->tokens * c->kept; i++)
    largest = ortolan_larger(largest, fabs((double)c->top_logits[i]));
  c->max_delta = c->max_delta < 0 ? INFINITY : c->max_delta * largest;
  return c->mean_kl >= 0 || ortolan_invalid(thresholds, "mean_kl", "a number");
}

static bool read_certificate(certificate *c, const ortolan_bundle *bundle) {
  char name[128]; /* certificate.json has its arrays in certificate.bin */
  int64_t schema, kept;
  size_t size;
  if (c->file == NULL)
    return ortolan_fail(ORTOLAN_CERTIFICATE,
                        "This bundle has no certificate, so there is nothing to compare with. "
                        "Export the checkpoint with Ortolan to get one.");
  char *text = ortolan_bundle_read(bundle, c->file, &size);
  if (text == NULL) return false;
  c->document = ortolan_json_read(ORTOLAN_CERTIFICATE, c->file, text, size);
  free(text);
  if (c->document == NULL) return false;
  const json_value *root = &c->document->root, *probes;
  if (!ortolan_integer(root, "schema", SCHEMA, SCHEMA, &schema) ||
      !ortolan_integer(root, "top_k", 2, bundle->vocab_size, &kept) ||
      (probes = ortolan_array(root, "probes", MAX_PROBES)) == NULL)
    return false;
  if (probes->count == 0) return ortolan_invalid(root, "probes", "at least one probe");
  c->probes = probes->count, c->kept = (size_t)kept;
  const char *dot = strrchr(c->file, '.');
  int stem = (int)(dot == NULL ? strlen(c->file) : (size_t)(dot - c->file));
  snprintf(name, sizeof name, "%.*s.bin", stem, c->file);
  c->bytes = ortolan_bundle_read(bundle, name, &c->size);
  return c->bytes != NULL && read_arrays(c, bundle) && read_tolerances(c);
}

/* Find a file that is not as it was exported: low-bit tolerances hide small changes of a graph. */
static const char *changed_file(const certificate *c, const ortolan_bundle *bundle) {
  const char *const graphs[] = {bundle->decode.file, bundle->prefill.file};
  const json_value *root = &c->document->root;
  const json_value *files = ortolan_json_field(ortolan_json_field(root, "surroundings"), "files");
  if (files == NULL) return NULL;
  for (const json_value *item = files->item; item != NULL; item = item->next) {
    const ortolan_file *file = item->key ? ortolan_bundle_find(bundle, item->key) : NULL;
    if (file == NULL) return "manifest.json"; /* it lists another file instead */
    if (item->type != JSON_STRING || strcmp(item->string, file->sha256) != 0) return file->name;
  }
  for (size_t i = 0; i < 2; i++)
    if (ortolan_json_field(files, graphs[i]) == NULL) return graphs[i];
  return NULL;
}

/* --- comparing --- */

static double log_sum_exp(const float *logits, size_t count, size_t *best) {
  double sum = 0;
  *best = 0;
  for (size_t i = 1; i < count; i++)
    if (logits[i] > logits[*best]) *best = i;
  for (size_t i = 0; i < count; i++) sum += exp((double)logits[i] - (double)logits[*best]);
  return logits[*best] + log(sum);
}

/* KL divergence from the kept log probabilities p to q, with all other tokens as one.
 *
 * By the chain rule it is that of (kept, not kept) plus that among the kept tokens. The second part
 * does not need the sum over the vocabulary, whose rounding error would exceed the result.
 */
static double divergence(const float *expected, double expected_sum, const float *logits,
                         double sum, const int32_t *ids, size_t count) {
  double p_kept = 0, q_kept = 0, among = 0;
  for (size_t i = 0; i < count; i++) {
    p_kept += exp(expected[i] - expected_sum);
    q_kept += exp(logits[ids[i]] - sum);
  }
  double p_log = log(fmax(p_kept, TINY)), q_log = log(fmax(q_kept, TINY));
  for (size_t i = 0; i < count; i++) {
    double p = expected[i] - expected_sum - p_log, q = logits[ids[i]] - sum - q_log;
    among += exp(p) * (p - q);
  }
  p_kept = fmin(fmax(p_kept, TINY), 1 - REST);
  q_kept = fmin(fmax(q_kept, TINY), 1 - REST);
  double outside = p_kept * log(p_kept / q_kept) + (1 - p_kept) * log((1 - p_kept) / (1 - q_kept));
  return fmax(outside + p_kept * among, 0);
}

/* A verification while it is carried out. */
typedef struct {
  ortolan_model *model;
  certificate c;
  ortolan_report *report;
  float *logits;
  size_t vocab_size, block; /* block: rows of logits */
  double sum_kl;
  size_t same, changed;
} replay;

/* Compare the logits after one token, which is number `row` of the certificate. */
static void compare(replay *r, size_t row, const float *logits) {
  const certificate *c = &r->c;
  const float *expected = c->top_logits + row * c->kept;
  const int32_t *ids = c->top_ids + row * c->kept;
  ortolan_report *report = r->report;
  report->positions++;
  for (size_t i = 0; i < r->vocab_size; i++) {
    if (isfinite(logits[i])) continue;
    report->non_finite++;
    return;
  }
  size_t best;
  double sum = log_sum_exp(logits, r->vocab_size, &best);
  double kl = divergence(expected, (double)c->log_sum_exp[row], logits, sum, ids, c->kept);
  r->sum_kl += kl;
  report->max_kl = fmax(report->max_kl, kl);
  for (size_t i = 0; i < c->kept; i++)
    report->max_abs_delta =
        ortolan_larger(report->max_abs_delta, fabs((double)logits[ids[i]] - (double)expected[i]));
  bool is_same = best == (size_t)ids[0];
  r->same += is_same;
  r->changed += !is_same;
  if (!is_same && c->near_tie >= 0 && (double)expected[0] - (double)expected[1] <= c->near_tie)
    report->near_ties++;
}

static ortolan_verdict verdict(const replay *r) {
  const ortolan_report *report = r->report;
  bool failed = report->changed_file != NULL || report->non_finite > 0 ||
                report->max_abs_delta > r->c.max_delta ||
                (r->c.near_tie >= 0 && r->changed > report->near_ties) ||
                !(report->mean_kl <= r->c.mean_kl);
  return failed ? ORTOLAN_FAIL : report->near_ties > 0 ? ORTOLAN_AMBIGUOUS : ORTOLAN_PASS;
}

/* Compute one probe in one call for each block of positions, which bounds memory. */
static bool in_one_call(replay *r, size_t start, size_t length) {
  ortolan_engine *engine = r->model->engine;
  for (size_t first = 0; first < length; first += r->block) {
    size_t rows = length - first < r->block ? length - first : r->block;
    ortolan_engine_reset(engine);
    if (!ortolan_engine_append(engine, r->c.token_ids + start, first + rows, rows, r->logits))
      return false;
    for (size_t row = 0; row < rows; row++)
      compare(r, start + first + row, r->logits + row * r->vocab_size);
  }
  return true;
}

/* Compute the end of one probe token by token. */
static bool one_by_one(replay *r, size_t start, size_t length) {
  ortolan_engine *engine = r->model->engine;
  const int32_t *ids = r->c.token_ids + start;
  size_t first = length > TAIL ? length - TAIL : 0;
  ortolan_engine_reset(engine);
  if (!ortolan_engine_prefill(engine, ids, first, r->logits)) return false;
  for (size_t position = first; position < length; position++) {
    if (!ortolan_engine_append(engine, ids + position, 1, 1, r->logits)) return false;
    compare(r, start + position, r->logits);
  }
  return true;
}

static bool compute(replay *r) {
  size_t longest = 0, start = 0;
  for (size_t i = 0; i < r->c.probes; i++)
    if ((size_t)r->c.lengths[i] > longest) longest = (size_t)r->c.lengths[i];
  r->vocab_size = (size_t)r->model->bundle.vocab_size;
  r->block = BLOCK_LOGITS / r->vocab_size < longest ? BLOCK_LOGITS / r->vocab_size : longest;
  r->logits = malloc(r->block * r->vocab_size * sizeof *r->logits);
  bool ok = r->logits != NULL || ortolan_no_memory();
  for (size_t i = 0; ok && i < r->c.probes; start += (size_t)r->c.lengths[i++])
    ok = in_one_call(r, start, (size_t)r->c.lengths[i]) &&
         one_by_one(r, start, (size_t)r->c.lengths[i]);
  return ok;
}

bool ortolan_verify(ortolan_model *model, ortolan_report *report, ortolan_error *error) {
  replay r = {.model = model, .c = {.file = model->bundle.certificate}, .report = report};
  *report = (ortolan_report){.verdict = ORTOLAN_FAIL};
  bool ok = (model->bundle.kind == ORTOLAN_DECODER ||
             ortolan_fail(ORTOLAN_KIND,
                          "This library verifies decoders only. Use `ortolan verify` "
                          "for others.")) &&
            read_certificate(&r.c, &model->bundle) && compute(&r);
  if (ok) {
    size_t finite = report->positions - report->non_finite;
    report->mean_kl = r.sum_kl / (double)(finite > 0 ? finite : 1);
    report->mean_kl_limit = r.c.mean_kl;
    report->top1_agreement = (double)r.same / (double)report->positions;
    report->changed_file = changed_file(&r.c, &model->bundle);
    report->verdict = verdict(&r);
  }
  ortolan_json_free(r.c.document);
  free(r.c.bytes);
  free(r.logits);
  return ortolan_done(ok, error);
}
