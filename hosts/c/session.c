/* Opens sessions of onnxruntime with the settings of a manifest. */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define API_VERSION 22 /* the oldest that has every function of this library */

bool ortolan_host_open(ortolan_host *host, ortolan_error *error) {
  const OrtApi *ort = host->ort = OrtGetApiBase()->GetApi(API_VERSION);
  if (ort == NULL)
    return ortolan_fail(error, ORTOLAN_GRAPH,
                        "onnxruntime %s is too old: version 1.%d or newer is needed. Install a "
                        "newer one.",
                        OrtGetApiBase()->GetVersionString(), API_VERSION);
  return ortolan_succeeded(ort, ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "ortolan", &host->env),
                           ORTOLAN_COMPUTE, "cannot start", error) &&
         ortolan_succeeded(
             ort, ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &host->cpu),
             ORTOLAN_COMPUTE, "cannot start", error);
}

void ortolan_host_close(const ortolan_host *host) {
  if (host->ort == NULL) return;
  host->ort->ReleaseMemoryInfo(host->cpu);
  host->ort->ReleaseEnv(host->env);
}

bool ortolan_tensor(const ortolan_host *host, void *data, size_t bytes, const int64_t *shape,
                    size_t rank, ONNXTensorElementDataType type, OrtValue **value,
                    ortolan_error *error) {
  const OrtApi *ort = host->ort;
  return ortolan_succeeded(
      ort, ort->CreateTensorWithDataAsOrtValue(host->cpu, data, bytes, shape, rank, type, value),
      ORTOLAN_COMPUTE, "cannot use a buffer", error);
}

bool ortolan_run(const ortolan_host *host, OrtSession *session, const ortolan_names *names,
                 const OrtValue *const *inputs, OrtValue **outputs, ortolan_error *error) {
  OrtStatus *status =
      host->ort->Run(session, NULL, names->inputs, inputs, names->input_count, names->outputs,
                     names->output_count, outputs);
  return ortolan_succeeded(host->ort, status, ORTOLAN_COMPUTE, "failed to run the model", error);
}

bool ortolan_succeeded(const OrtApi *ort, OrtStatus *status, ortolan_code code, const char *what,
                       ortolan_error *error) {
  if (status == NULL) return true;
  const char *text = ort->GetErrorMessage(status);
  size_t line = strcspn(text, "\n");
  bool memory = strstr(text, "bad_alloc") || strstr(text, "ailed to allocate memory") ||
                strstr(text, "Cannot allocate memory");
  ortolan_fail(error, memory ? ORTOLAN_MEMORY : code, "onnxruntime %s %s: %.*s. %s",
               OrtGetApiBase()->GetVersionString(), what, (int)(line < 300 ? line : 300), text,
               memory ? "There is not enough memory: close other programs, or use a smaller model."
                      : "Verify the bundle, or export it again.");
  ort->ReleaseStatus(status);
  return false;
}

/* As ortolan_succeeded, for steps of opening a graph. */
static bool opened(const ortolan_host *host, OrtStatus *status, ortolan_error *error) {
  return ortolan_succeeded(host->ort, status, ORTOLAN_GRAPH, "cannot load the graph", error);
}

static bool add_entry(const ortolan_host *host, OrtSessionOptions *options, const char *name,
                      const char *value, ortolan_error *error) {
  return opened(host, host->ort->AddSessionConfigEntry(options, name, value), error);
}

static bool add_settings(const ortolan_host *host, const ortolan_bundle *bundle,
                         OrtSessionOptions *options, int threads, bool spins,
                         ortolan_error *error) {
  char names[ORTOLAN_MAX_SETTINGS * 260] = "";
  for (size_t i = 0; i < bundle->optimizer_count; i++) {
    if (i > 0) strcat(names, ";");
    strncat(names, bundle->optimizers[i], 256);
  }
  for (size_t i = 0; i < bundle->entry_count; i++)
    if (!add_entry(host, options, bundle->entries[i].name, bundle->entries[i].value, error))
      return false;
  return opened(host, host->ort->SetIntraOpNumThreads(options, threads), error) &&
         opened(host, host->ort->SetInterOpNumThreads(options, 1), error) &&
         add_entry(host, options, "session.model_external_initializers_file_folder_path",
                   bundle->folder, error) &&
         add_entry(host, options, "optimization.disable_specified_optimizers", names, error) &&
         /* threads of the other sessions would slow the first decode steps */
         (spins || add_entry(host, options, "session.force_spinning_stop", "1", error));
}

/* Whether a graph has settings that onnxruntime obeys if ORT_LOAD_CONFIG_FROM_MODEL is set: they can
 * turn on profiling, which writes files. No graph needs this word anywhere. */
static bool has_settings(const char *bytes, size_t size) {
  static const char word[] = "ort_config";
  const size_t length = sizeof word - 1;
  for (size_t i = 0; i + length <= size; i++)
    if (memcmp(bytes + i, word, length) == 0) return true;
  return false;
}

/* Create a session while the manifest's variables are set. The user's own values win. */
static bool create(const ortolan_host *host, const ortolan_bundle *bundle,
                   const ortolan_graph *graph, OrtSessionOptions *options, OrtSession **session,
                   ortolan_error *error) {
  bool ours[ORTOLAN_MAX_SETTINGS] = {false};
  size_t size;
  char *bytes = ortolan_bundle_read(bundle, graph->file, &size, error);
  if (bytes == NULL) return false;
  if (has_settings(bytes, size)) {
    free(bytes);
    return ortolan_fail(error, ORTOLAN_GRAPH,
                        "%s has settings of onnxruntime (ort_config), which no exported graph has. "
                        "Export the checkpoint again.",
                        graph->file);
  }
  for (size_t i = 0; i < bundle->variable_count; i++) {
    ours[i] = getenv(bundle->variables[i].name) == NULL;
    if (ours[i]) setenv(bundle->variables[i].name, bundle->variables[i].value, 1);
  }
  OrtStatus *status =
      host->ort->CreateSessionFromArray(host->env, bytes, size, options, session);
  for (size_t i = 0; i < bundle->variable_count; i++)
    if (ours[i]) unsetenv(bundle->variables[i].name);
  free(bytes);
  return opened(host, status, error);
}

typedef OrtStatus *(ORT_API_CALL *get_name)(const OrtSession *, size_t, OrtAllocator *, char **);

/* Check that a graph's inputs or outputs have the names of the manifest. */
static bool check_names(const ortolan_host *host, const OrtSession *session, size_t count,
                        get_name get, const char *const *expected, size_t expected_count,
                        ortolan_error *error) {
  OrtAllocator *allocator;
  if (!opened(host, host->ort->GetAllocatorWithDefaultOptions(&allocator), error)) return false;
  bool ok = count == expected_count;
  for (size_t i = 0; ok && i < count; i++) {
    char *name;
    if (!opened(host, get(session, i, allocator, &name), error)) return false;
    ok = ortolan_place(expected, count, name) < count;
    if (!opened(host, host->ort->AllocatorFree(allocator, name), error)) return false;
  }
  return ok || ortolan_fail(error, ORTOLAN_GRAPH,
                            "The inputs or outputs of the graph do not have the names in "
                            "manifest.json. Export the checkpoint again.");
}

bool ortolan_session_open(const ortolan_host *host, const ortolan_bundle *bundle,
                          const ortolan_graph *graph, const ortolan_names *names, int threads,
                          OrtSession **session, ortolan_error *error) {
  const OrtApi *ort = host->ort;
  OrtSessionOptions *options = NULL;
  size_t inputs, outputs;
  bool ok = opened(host, ort->CreateSessionOptions(&options), error) &&
            add_settings(host, bundle, options, threads, graph == &bundle->decode, error) &&
            create(host, bundle, graph, options, session, error) &&
            opened(host, ort->SessionGetInputCount(*session, &inputs), error) &&
            opened(host, ort->SessionGetOutputCount(*session, &outputs), error) &&
            check_names(host, *session, inputs, ort->SessionGetInputName, names->inputs,
                        names->input_count, error) &&
            check_names(host, *session, outputs, ort->SessionGetOutputName, names->outputs,
                        names->output_count, error);
  ort->ReleaseSessionOptions(options);
  return ok;
}
