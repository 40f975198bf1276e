/* Opens sessions of onnxruntime with the settings of a manifest. */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define API_VERSION 22 /* the oldest that has every function of this library */

const OrtApi *ortolan_runtime(ortolan_error *error) {
  const OrtApi *ort = OrtGetApiBase()->GetApi(API_VERSION);
  if (ort == NULL)
    ortolan_fail(error, ORTOLAN_GRAPH,
                 "onnxruntime %s is too old: version 1.%d or newer is needed. Install a newer one.",
                 OrtGetApiBase()->GetVersionString(), API_VERSION);
  return ort;
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
static bool opened(const ortolan_opener *opener, OrtStatus *status, ortolan_error *error) {
  return ortolan_succeeded(opener->ort, status, ORTOLAN_GRAPH, "cannot load the graph", error);
}

static bool add_settings(const ortolan_opener *opener, OrtSessionOptions *options, int threads,
                         ortolan_error *error) {
  const OrtApi *ort = opener->ort;
  const ortolan_bundle *bundle = opener->bundle;
  char names[ORTOLAN_MAX_SETTINGS * 260] = "";
  for (size_t i = 0; i < bundle->optimizer_count; i++) {
    if (i > 0) strcat(names, ";");
    strncat(names, bundle->optimizers[i], 256);
  }
  for (size_t i = 0; i < bundle->entry_count; i++) {
    const ortolan_setting *entry = &bundle->entries[i];
    if (!opened(opener, ort->AddSessionConfigEntry(options, entry->name, entry->value), error))
      return false;
  }
  return opened(opener, ort->SetIntraOpNumThreads(options, threads), error) &&
         opened(opener, ort->SetInterOpNumThreads(options, 1), error) &&
         opened(opener,
                ort->AddSessionConfigEntry(options,
                                           "session.model_external_initializers_file_folder_path",
                                           bundle->folder),
                error) &&
         opened(opener,
                ort->AddSessionConfigEntry(
                    options, "optimization.disable_specified_optimizers", names),
                error);
}

/* Otherwise threads of the prefill session keep spinning and slow the first decode steps. */
static bool stop_spinning(const ortolan_opener *opener, OrtSessionOptions *options,
                          ortolan_error *error) {
  return opened(
      opener,
      opener->ort->AddSessionConfigEntry(options, "session.force_spinning_stop", "1"), error);
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
static bool create(const ortolan_opener *opener, const ortolan_graph *graph,
                   OrtSessionOptions *options, OrtSession **session, ortolan_error *error) {
  const ortolan_bundle *bundle = opener->bundle;
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
      opener->ort->CreateSessionFromArray(opener->env, bytes, size, options, session);
  for (size_t i = 0; i < bundle->variable_count; i++)
    if (ours[i]) unsetenv(bundle->variables[i].name);
  free(bytes);
  return opened(opener, status, error);
}

typedef OrtStatus *(ORT_API_CALL *get_name)(const OrtSession *, size_t, OrtAllocator *, char **);

/* Check that a graph's inputs or outputs have the names of the manifest. */
static bool check_names(const ortolan_opener *opener, const OrtSession *session, size_t count,
                        get_name get, const char *const *expected, size_t expected_count,
                        ortolan_error *error) {
  OrtAllocator *allocator;
  if (!opened(opener, opener->ort->GetAllocatorWithDefaultOptions(&allocator), error)) return false;
  bool ok = count == expected_count;
  for (size_t i = 0, place; ok && i < count; i++) {
    char *name;
    if (!opened(opener, get(session, i, allocator, &name), error)) return false;
    for (place = 0; place < count && strcmp(expected[place], name) != 0;) place++;
    ok = place < count;
    if (!opened(opener, opener->ort->AllocatorFree(allocator, name), error)) return false;
  }
  return ok || ortolan_fail(error, ORTOLAN_GRAPH,
                            "The inputs or outputs of the graph do not have the names in "
                            "manifest.json. Export the checkpoint again.");
}

static bool check_interface(const ortolan_opener *opener, const OrtSession *session,
                            ortolan_error *error) {
  const OrtApi *ort = opener->ort;
  size_t inputs, outputs;
  return opened(opener, ort->SessionGetInputCount(session, &inputs), error) &&
         opened(opener, ort->SessionGetOutputCount(session, &outputs), error) &&
         check_names(opener, session, inputs, ort->SessionGetInputName, opener->inputs,
                     opener->input_count, error) &&
         check_names(opener, session, outputs, ort->SessionGetOutputName, opener->outputs,
                     opener->output_count, error);
}

bool ortolan_session_open(const ortolan_opener *opener, const ortolan_graph *graph, int threads,
                          OrtSession **session, ortolan_error *error) {
  OrtSessionOptions *options = NULL;
  bool ok = opened(opener, opener->ort->CreateSessionOptions(&options), error) &&
            add_settings(opener, options, threads, error) &&
            (graph == &opener->bundle->decode || stop_spinning(opener, options, error)) &&
            create(opener, graph, options, session, error) &&
            check_interface(opener, *session, error);
  opener->ort->ReleaseSessionOptions(options);
  return ok;
}
