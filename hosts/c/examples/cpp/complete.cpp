// Continue a text: complete BUNDLE NEW PROMPT
#include <iostream>
#include <string>

#include "ortolan.hpp"

int main(int argc, char **argv) {
  if (argc != 4) {
    std::cerr << "usage: complete BUNDLE NEW PROMPT\n";
    return 2;
  }
  try {
    ortolan::model model(argv[1]);
    ortolan::text_options options;
    options.generation.max_new_tokens = std::stoul(argv[2]);
    options.on_text = [](std::string_view piece) { return bool(std::cout << piece << std::flush); };
    model.generate(argv[3], options);
  } catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
