/* ortolan.h for C++17: objects close what they hold, and failures throw ortolan::error. */
#ifndef ORTOLAN_HPP
#define ORTOLAN_HPP

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ortolan.h"

namespace ortolan {

struct error : std::runtime_error {
  explicit error(const ortolan_error &cause) : std::runtime_error(cause.message), code(cause.code) {
  }
  ortolan_code code;
};

inline ortolan_options greedy(size_t max_new_tokens = 0) {
  ortolan_options options{};
  options.max_new_tokens = max_new_tokens;
  options.sampling.top_p = options.sampling.repetition_penalty = 1;
  return options;
}

struct text_options {
  ortolan_options generation = greedy();
  std::vector<std::string> stop_texts;
  std::function<bool(std::string_view)> on_text; /* false ends the text; may throw */
};

struct completion {
  std::string text;
  ortolan_finish finish;
};

struct message {
  ortolan_role role;
  std::string text;
};

/* One thread at a time; see ortolan.h. */
class model {
 public:
  explicit model(const std::string &folder, const ortolan_open_options &options = {}) {
    ortolan_error cause;
    handle_.reset(ortolan_open(folder.c_str(), &options, &cause));
    if (!handle_) throw error(cause);
  }

  ortolan_model *get() const {
    return handle_.get();
  }

  completion generate(std::string_view prompt, const text_options &options = {}) {
    return collect(options, [&](const auto *text, auto *finish, auto *cause) {
      return ortolan_generate_text(get(), prompt.data(), prompt.size(), text, finish, cause);
    });
  }

  completion chat(const std::vector<message> &messages, const text_options &options = {}) {
    std::vector<ortolan_message> views;
    for (const message &m : messages) views.push_back({m.role, m.text.data(), m.text.size()});
    return collect(options, [&](const auto *text, auto *finish, auto *cause) {
      return ortolan_chat(get(), views.data(), views.size(), text, finish, cause);
    });
  }

  /* `first` names the token that comes first; empty for the model's own. */
  completion translate(std::string_view source, const std::string &first = {},
                       const text_options &options = {}) {
    const char *token = first.empty() ? nullptr : first.c_str();
    return collect(options, [&](const auto *text, auto *finish, auto *cause) {
      return ortolan_translate(get(), source.data(), source.size(), token, text, finish, cause);
    });
  }

  /* `language` is empty to recognize it. */
  completion transcribe(const std::vector<float> &samples, const std::string &language = {},
                        const text_options &options = {}) {
    return collect(options, [&](const auto *text, auto *finish, auto *cause) {
      ortolan_speech_options speech{};
      speech.struct_size = sizeof speech;
      speech.language = language.empty() ? nullptr : language.c_str();
      speech.text = text;
      return ortolan_transcribe(get(), samples.data(), samples.size(), &speech, nullptr, finish,
                                cause);
    });
  }

  /* A row of ortolan_output_size numbers for each text. */
  std::vector<float> embed(const std::vector<std::string> &texts) {
    return encode(texts, ortolan_embed);
  }
  std::vector<float> classify(const std::vector<std::string> &texts) {
    return encode(texts, ortolan_classify);
  }

 private:
  struct closer {
    void operator()(ortolan_model *handle) const {
      ortolan_close(handle);
    }
  };

  struct receiver {
    const text_options &options;
    completion result;
    std::exception_ptr thrown; /* must not pass through C */

    static bool receive(const char *text, size_t size, void *context) {
      auto *self = static_cast<receiver *>(context);
      try {
        self->result.text.append(text, size);
        return !self->options.on_text || self->options.on_text({text, size});
      } catch (...) {
        self->thrown = std::current_exception();
        return false;
      }
    }
  };

  template <typename Call>
  completion collect(const text_options &options, Call call) {
    receiver to{options, {}, nullptr};
    std::vector<const char *> stops;
    for (const std::string &stop : options.stop_texts) stops.push_back(stop.c_str());
    ortolan_text_options text{};
    text.struct_size = sizeof text;
    text.generation = &options.generation;
    text.stop_texts = stops.data(), text.stop_text_count = stops.size();
    text.on_text = receiver::receive, text.context = &to;
    ortolan_error cause;
    bool ok = call(&text, &to.result.finish, &cause);
    if (to.thrown) std::rethrow_exception(to.thrown);
    if (!ok) throw error(cause);
    return to.result;
  }

  template <typename Function>
  std::vector<float> encode(const std::vector<std::string> &texts, Function function) {
    std::vector<ortolan_input> inputs;
    for (const std::string &text : texts) inputs.push_back({text.data(), text.size(), nullptr, 0});
    std::vector<float> rows(texts.size() * ortolan_output_size(get()));
    ortolan_error cause;
    if (!function(get(), inputs.data(), inputs.size(), nullptr, rows.data(), &cause))
      throw error(cause);
    return rows;
  }

  std::unique_ptr<ortolan_model, closer> handle_;
};

}  // namespace ortolan

#endif
