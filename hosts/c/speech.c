/* Transcription of one window of sound: its log-mel spectrogram, and the tokens before the text. */
#include <math.h>

#include "tokenizer.h"

#define PI 3.14159265358979323846
#define FLOOR 1e-10   /* least power before the logarithm */
#define RANGE 8.0f    /* powers of ten below the loudest value that are kept */
#define LOUDEST 32.0f /* largest sample; integers that were not scaled are far larger */
#define MAX_WINDOW (1 << 16)
#define MAX_NUMBERS ((int64_t)1 << 28) /* of a spectrogram, and samples of a sound */

/* --- reading --- */

bool ortolan_sound_read(ortolan_bundle *bundle, const json_value *source) {
  ortolan_sound *sound = &bundle->sound;
  const json_value *highest = ortolan_json_field(source, "highest");
  if (!ortolan_known_keys(source, "kind rate window hop bins frames vectors highest") ||
      !ortolan_integer(source, "rate", 1000, 384000, &sound->rate) ||
      !ortolan_integer(source, "window", 2, MAX_WINDOW, &sound->window) ||
      !ortolan_integer(source, "hop", 1, MAX_WINDOW, &sound->hop) ||
      !ortolan_integer(source, "bins", 1, 1024, &sound->bins) ||
      !ortolan_integer(source, "frames", 2, 1 << 21, &sound->frames) ||
      !ortolan_integer(source, "vectors", 1, 1 << 21, &sound->vectors))
    return false;
  sound->highest = highest == NULL ? 8000 : highest->number;
  return (sound->highest > 0 && sound->frames * sound->bins <= MAX_NUMBERS &&
          sound->frames * sound->hop > sound->window &&
          sound->frames * sound->hop <= MAX_NUMBERS) ||
         ortolan_invalid(source, NULL, "within the limits of this library");
}

static bool read_languages(ortolan_speech *s, const json_value *languages, int64_t below) {
  if (languages->count > ORTOLAN_MAX_LANGUAGES)
    return ortolan_invalid(languages, NULL, "at most 1000 languages");
  for (const json_value *item = languages->item; item != NULL; item = item->next) {
    if (!ortolan_is_id(item, below))
      return ortolan_invalid(item, NULL, "an id within the vocabulary");
    s->codes[s->language_count] = item->key;
    s->languages[s->language_count++] = (int32_t)item->integer;
  }
  return true;
}

/* Ids, and null for the recognized language. */
static bool read_opening(ortolan_speech *s, const json_value *tokens, int64_t below) {
  if (ortolan_json_field(tokens, "opening") == NULL) return true;
  const json_value *opening = ortolan_array(tokens, "opening", ORTOLAN_MAX_OPENING - 4);
  for (const json_value *item = opening ? opening->item : NULL; item; item = item->next) {
    bool is_id = ortolan_is_id(item, below);
    if (!is_id && item->type != JSON_NULL)
      return ortolan_invalid(tokens, "opening", "a list of ids within the vocabulary");
    s->usual[s->usual_count++] = is_id ? (int32_t)item->integer : -1;
  }
  return opening != NULL;
}

bool ortolan_speech_read(ortolan_bundle *bundle, const json_value *root) {
  const int64_t below = bundle->vocab_size;
  ortolan_speech *s = &bundle->speech;
  const json_value *speech = ortolan_json_field(root, "speech"), *languages, *tasks;
  s->tasks[0] = s->tasks[1] = s->no_timestamps = -1;
  s->first_timestamp = INT32_MAX;
  return speech == NULL || ((languages = ortolan_object(speech, "languages")) != NULL &&
                            (tasks = ortolan_object(speech, "tasks")) != NULL &&
                            ortolan_known_keys(speech,
                                               "languages tasks no_timestamps first_timestamp "
                                               "latest_start") &&
                            ortolan_known_keys(tasks, "transcribe translate") &&
                            ortolan_id(speech, "no_timestamps", below, &s->no_timestamps) &&
                            ortolan_id(speech, "first_timestamp", below, &s->first_timestamp) &&
                            ortolan_id(tasks, "transcribe", below, &s->tasks[0]) &&
                            ortolan_id(tasks, "translate", below, &s->tasks[1]) &&
                            read_languages(s, languages, below) &&
                            read_opening(s, ortolan_json_field(root, "tokens"), below));
}

/* --- spectrograms --- */

static double mel_of(double frequency) {
  return frequency < 1000 ? frequency * 3 / 200 : 15 + log(frequency / 1000) * 27 / log(6.4);
}

/* Edges of triangles on Slaney's mel scale: linear up to 1 kHz, and logarithmic above. */
static double edge_of(const ortolan_sound *sound, int64_t place) {
  double mel = mel_of(sound->highest) * (double)place / (double)(sound->bins + 1);
  return mel < 15 ? mel * 200 / 3 : 1000 * exp((mel - 15) * log(6.4) / 27);
}

/* The part of a power spectrum that a triangle of area 1 lets through. */
static double filtered(const ortolan_sound *sound, const double *power, int64_t bin) {
  double left = edge_of(sound, bin), top = edge_of(sound, bin + 1), right = edge_of(sound, bin + 2);
  double step = (double)(sound->rate / 2) / (double)(sound->window / 2), sum = 0;
  for (int64_t k = 0; k <= sound->window / 2; k++) {
    double frequency = (double)k * step;
    double height = fmin((frequency - left) / (top - left), 1 - (frequency - top) / (right - top));
    if (height > 0) sum += height * power[k];
  }
  return sum * 2 / (right - left);
}

/* The power spectrum of a frame under a Hann window. `turn` holds a turn of cosines. */
static void spectrum(const ortolan_sound *sound, double *frame, const double *turn, double *power) {
  int64_t size = sound->window, half = (size - 1) / 2;
  for (int64_t n = 0; n < size; n++) frame[n] *= 0.5 - 0.5 * turn[n];
  for (int64_t k = 0; k <= size / 2; k++) {
    double real = frame[0], imaginary = 0;
    if (size % 2 == 0) real += k % 2 == 0 ? frame[size / 2] : -frame[size / 2];
    for (int64_t n = 1, at = k; n <= half; n++, at += at + k < size ? k : k - size) {
      real += (frame[n] + frame[size - n]) * turn[at];
      imaginary += (frame[n] - frame[size - n]) * turn[size + at];
    }
    power[k] = real * real + imaginary * imaginary;
  }
}

/* The sample at a place of a sound that silence fills, with its reflection on both sides. */
static double sample_at(const ortolan_sound *sound, const float *samples, size_t count,
                        int64_t place) {
  int64_t size = sound->frames * sound->hop;
  if (place < 0) place = -place;
  if (place >= size) place = 2 * (size - 1) - place;
  return (size_t)place < count ? (double)samples[place] : 0;
}

/* Write the scaled logarithm of the mel spectrogram (Radford et al. 2023), bins by frames. */
static bool log_mel(const ortolan_sound *sound, const float *samples, size_t count, float *mel) {
  size_t window = (size_t)sound->window, numbers = (size_t)(sound->bins * sound->frames);
  double *frame = malloc(5 * window * sizeof *frame), *power = frame + window;
  if (frame == NULL) return ortolan_no_memory();
  double *turn = frame + 3 * window; /* cosines, then sines */
  for (size_t n = 0; n < window; n++) {
    turn[n] = cos(2 * PI * (double)n / (double)window);
    turn[window + n] = sin(2 * PI * (double)n / (double)window);
  }
  for (int64_t f = 0; f < sound->frames; f++) {
    for (int64_t n = 0; n < sound->window; n++)
      frame[n] = sample_at(sound, samples, count, f * sound->hop + n - sound->window / 2);
    spectrum(sound, frame, turn, power);
    for (int64_t bin = 0; bin < sound->bins; bin++)
      mel[bin * sound->frames + f] = (float)log10(fmax(filtered(sound, power, bin), FLOOR));
  }
  float loudest = mel[0];
  for (size_t i = 1; i < numbers; i++) loudest = fmaxf(loudest, mel[i]);
  for (size_t i = 0; i < numbers; i++) mel[i] = fmaxf(mel[i], loudest - RANGE) / 4 + 1;
  free(frame);
  return true;
}

/* --- transcription --- */

static void add(ortolan_opening *opening, const int32_t *ids, size_t count) {
  if (count == 0) return;
  opening->allowed[opening->count] = ids;
  opening->counts[opening->count++] = count;
}

/* The tokens before the text: language, task, no times. */
static bool open_text(const ortolan_speech *s, const ortolan_speech_options *options,
                      ortolan_opening *opening) {
  size_t known = s->language_count;
  const int32_t *task = &s->tasks[options->translate], *languages = s->languages;
  if (options->language != NULL) {
    size_t place = ortolan_place(s->codes, known, options->language);
    if (place == known)
      return ortolan_fail(ORTOLAN_INPUT, "The model does not know the language `%.20s`.",
                          options->language);
    languages += place, known = 1;
  }
  if (options->translate && *task < 0)
    return ortolan_fail(ORTOLAN_INPUT,
                        "This model was not trained to translate. Leave translate out.");
  bool is_usual = s->usual_count > 0 && options->language == NULL && !options->translate;
  for (size_t i = 0; is_usual && i < s->usual_count; i++)
    add(opening, s->usual[i] < 0 ? languages : &s->usual[i], s->usual[i] < 0 ? known : 1);
  if (!is_usual) add(opening, languages, known), add(opening, task, *task >= 0);
  add(opening, &s->no_timestamps, s->no_timestamps >= 0);
  return true;
}

static bool check_sound(const ortolan_sound *sound, const float *samples, size_t count) {
  size_t most = (size_t)(sound->frames * sound->hop);
  if (count < 1 || count > most)
    return ortolan_fail(ORTOLAN_INPUT,
                        "A sound must have 1 to %zu samples at %lld Hz (got %zu). Split it.", most,
                        (long long)sound->rate, count);
  for (size_t i = 0; i < count; i++)
    if (!(fabsf(samples[i]) <= LOUDEST)) /* NaN, too */
      return ortolan_fail(ORTOLAN_INPUT,
                          "Samples must be finite and between -1 and 1 (sample %zu is %g). Divide "
                          "integers by their largest value.",
                          i, (double)samples[i]);
  return true;
}

int64_t ortolan_sample_rate(const ortolan_model *model) {
  return model->bundle.sound.rate;
}

bool ortolan_transcribe(ortolan_model *model, const float *samples, size_t count,
                        const ortolan_speech_options *options, const char **language,
                        ortolan_finish *finish, ortolan_error *error) {
  const ortolan_speech_options defaults = ORTOLAN_SPEECH_OPTIONS;
  const ortolan_bundle *bundle = &model->bundle;
  const ortolan_sound *sound = &bundle->sound;
  const ortolan_ids start = {.items = &model->bundle.start, .count = 1};
  ortolan_opening opening = {.is_hidden = true};
  if (options == NULL) options = &defaults;
  bool ok =
      (sound->rate > 0 ||
       ortolan_fail(ORTOLAN_KIND, "This bundle reads no sounds. Export a model such as Whisper.")) &&
      ortolan_check_size("ortolan_speech_options", options->struct_size, sizeof *options) &&
      check_sound(sound, samples, count) && open_text(&bundle->speech, options, &opening);
  if (!ok) return ortolan_done(false, error);
  float *mel = malloc((size_t)(sound->bins * sound->frames) * sizeof *mel);
  const ortolan_view input = {mel, ORTOLAN_FLOAT, 3, {1, sound->bins, sound->frames}};
  ok = (mel != NULL || ortolan_no_memory()) && log_mel(sound, samples, count, mel) &&
            ortolan_engine_read(model->engine, &input, sound->vectors);
  free(mel);
  ok = ok && ortolan_complete(model, &start, &opening, NULL, options->text, finish);
  if (!ok || language == NULL) return ortolan_done(ok, error);
  *language = NULL;
  for (size_t i = 0; i < bundle->speech.language_count; i++)
    if (bundle->speech.languages[i] == opening.first) *language = bundle->speech.codes[i];
  return ortolan_done(true, error);
}
