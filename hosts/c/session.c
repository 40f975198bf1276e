/* Opens sessions of onnxruntime with the settings of a manifest. */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define API_VERSION 22 /* the oldest that has every function of this library */

/* Release the status of a call. If it failed, note it: "onnxruntime 1.31.1 <what>: ..." */
static bool succeeded(const OrtApi *ort, OrtStatus *status, ortolan_code code, const char *what) {
  if (status == NULL) return true;
  const char *text = ort->GetErrorMessage(status);
  size_t line = strcspn(text, "\n");
  bool memory = strstr(text, "bad_alloc") || strstr(text, "ailed to allocate memory") ||
                strstr(text, "Cannot allocate memory");
  ortolan_fail(memory ? ORTOLAN_MEMORY : code, "onnxruntime %s %s: %.*s. %s",
               OrtGetApiBase()->GetVersionString(), what, (int)(line < 300 ? line : 300), text,
               memory ? "There is not enough memory: close other programs, or use a smaller model."
                      : "Verify the bundle, or export it again.");
  ort->ReleaseStatus(status);
  return false;
}

bool ortolan_host_open(ortolan_host *host) {
  const OrtApi *ort = host->ort = OrtGetApiBase()->GetApi(API_VERSION);
  if (ort == NULL)
    return ortolan_fail(ORTOLAN_GRAPH,
                        "onnxruntime %s is too old: version 1.%d or newer is needed. Install a "
                        "newer one.",
                        OrtGetApiBase()->GetVersionString(), API_VERSION);
  setenv("ORT_DISABLE_TELEMETRY", "1", 0); /* events would be sent, and kept in memory until then */
  return succeeded(ort, ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "ortolan", &host->env),
                   ORTOLAN_COMPUTE, "cannot start") &&
         succeeded(ort, ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &host->cpu),
                   ORTOLAN_COMPUTE, "cannot start");
}

void ortolan_host_close(const ortolan_host *host) {
  if (host->ort == NULL) return;
  host->ort->ReleaseMemoryInfo(host->cpu);
  host->ort->ReleaseEnv(host->env);
}

size_t ortolan_view_bytes(const ortolan_view *view) {
  size_t bytes = view->type == ORTOLAN_INT64                                  ? 8
                 : view->type == ORTOLAN_FLOAT || view->type == ORTOLAN_INT32 ? 4
                 : view->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8           ? 1
                                                                              : 2;
  for (size_t axis = 0; axis < view->rank; axis++) bytes *= (size_t)view->shape[axis];
  return bytes;
}

bool ortolan_tensors(const ortolan_host *host, const ortolan_view *views, size_t count,
                     OrtValue **values) {
  const OrtApi *ort = host->ort;
  bool ok = true;
  for (size_t i = 0; ok && i < count; i++) {
    OrtStatus *status = ort->CreateTensorWithDataAsOrtValue(
        host->cpu, views[i].data, ortolan_view_bytes(&views[i]), views[i].shape, views[i].rank,
        views[i].type, &values[i]);
    ok = succeeded(ort, status, ORTOLAN_COMPUTE, "cannot use a buffer");
  }
  return ok;
}

void ortolan_release(const ortolan_host *host, OrtValue **values, size_t count) {
  for (size_t i = 0; i < count; i++) host->ort->ReleaseValue(values[i]);
}

bool ortolan_run(const ortolan_host *host, OrtSession *session, const ortolan_names *names,
                 const OrtValue *const *inputs, OrtValue **outputs) {
  OrtStatus *status = host->ort->Run(session, NULL, names->inputs, inputs, names->input_count,
                                     names->outputs, names->output_count, outputs);
  return succeeded(host->ort, status, ORTOLAN_COMPUTE, "failed to run the model");
}

/* As succeeded, for steps of opening a graph. */
static bool opened(const ortolan_host *host, OrtStatus *status) {
  return succeeded(host->ort, status, ORTOLAN_GRAPH, "cannot load the graph");
}

static bool add_entry(const ortolan_host *host, OrtSessionOptions *options, const char *name,
                      const char *value) {
  return opened(host, host->ort->AddSessionConfigEntry(options, name, value));
}

static bool add_settings(const ortolan_host *host, const ortolan_bundle *bundle,
                         OrtSessionOptions *options, int threads, bool spins) {
  char names[ORTOLAN_MAX_SETTINGS * 260] = "";
  for (size_t i = 0; i < bundle->optimizer_count; i++) {
    if (i > 0) strcat(names, ";");
    strncat(names, bundle->optimizers[i], 256);
  }
  const json_value *entries = ortolan_json_field(bundle->session, "config_entries");
  const json_value *item = entries == NULL ? NULL : entries->item;
  for (; item != NULL; item = item->next)
    if (!add_entry(host, options, item->key, item->string)) return false;
  return opened(host, host->ort->SetIntraOpNumThreads(options, threads)) &&
         opened(host, host->ort->SetInterOpNumThreads(options, 1)) &&
         add_entry(host, options, "session.model_external_initializers_file_folder_path",
                   bundle->folder) &&
         add_entry(host, options, "optimization.disable_specified_optimizers", names) &&
         /* threads of the other sessions would slow the first decode steps */
         (spins || add_entry(host, options, "session.force_spinning_stop", "1"));
}

/* Whether a graph has settings that onnxruntime obeys if ORT_LOAD_CONFIG_FROM_MODEL is set: they
 * can turn on profiling, which writes files. No graph needs this word anywhere. */
static bool has_settings(const char *bytes, size_t size) {
  static const char word[] = "ort_config";
  const size_t length = sizeof word - 1;
  for (size_t i = 0; i + length <= size; i++)
    if (memcmp(bytes + i, word, length) == 0) return true;
  return false;
}

/* Create a session while the manifest's variable is set. The user's own value wins. */
static bool create(const ortolan_host *host, const ortolan_bundle *bundle,
                   const ortolan_graph *graph, OrtSessionOptions *options, OrtSession **session) {
  bool is_ours = bundle->flash_switch != NULL && getenv(ORTOLAN_FLASH_SWITCH) == NULL;
  size_t size;
  char *bytes = ortolan_bundle_read(bundle, graph->file, &size);
  if (bytes == NULL) return false;
  if (has_settings(bytes, size)) {
    free(bytes);
    return ortolan_fail(ORTOLAN_GRAPH,
                        "%s has settings of onnxruntime (ort_config), which no exported graph has. "
                        "Export the checkpoint again.",
                        graph->file);
  }
  if (is_ours) setenv(ORTOLAN_FLASH_SWITCH, bundle->flash_switch, 1);
  OrtStatus *status = host->ort->CreateSessionFromArray(host->env, bytes, size, options, session);
  if (is_ours) unsetenv(ORTOLAN_FLASH_SWITCH);
  free(bytes);
  return opened(host, status);
}

typedef OrtStatus *(ORT_API_CALL *get_name)(const OrtSession *, size_t, OrtAllocator *, char **);

/* Check that a graph's inputs or outputs have the names of the manifest. */
static bool check_names(const ortolan_host *host, const OrtSession *session, size_t count,
                        get_name get, const char *const *expected, size_t expected_count) {
  OrtAllocator *allocator;
  if (!opened(host, host->ort->GetAllocatorWithDefaultOptions(&allocator))) return false;
  bool ok = count == expected_count;
  for (size_t i = 0; ok && i < count; i++) {
    char *name;
    if (!opened(host, get(session, i, allocator, &name))) return false;
    ok = ortolan_place(expected, count, name) < count;
    if (!opened(host, host->ort->AllocatorFree(allocator, name))) return false;
  }
  return ok || ortolan_fail(ORTOLAN_GRAPH,
                            "The inputs or outputs of the graph do not have the names in "
                            "manifest.json. Export the checkpoint again.");
}

bool ortolan_session_open(const ortolan_host *host, const ortolan_bundle *bundle,
                          const ortolan_graph *graph, const ortolan_names *names, int threads,
                          OrtSession **session) {
  const OrtApi *ort = host->ort;
  OrtSessionOptions *options = NULL;
  size_t inputs, outputs;
  bool ok = opened(host, ort->CreateSessionOptions(&options)) &&
            add_settings(host, bundle, options, threads, graph == &bundle->decode) &&
            create(host, bundle, graph, options, session) &&
            opened(host, ort->SessionGetInputCount(*session, &inputs)) &&
            opened(host, ort->SessionGetOutputCount(*session, &outputs)) &&
            check_names(host, *session, inputs, ort->SessionGetInputName, names->inputs,
                        names->input_count) &&
            check_names(host, *session, outputs, ort->SessionGetOutputName, names->outputs,
                        names->output_count);
  ort->ReleaseSessionOptions(options);
  return ok;
}
