// SPDX-License-Identifier: Apache-2.0
#include "build_file.hpp"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace kvferry::ptx {

std::string build_file(const std::string& name) {
  const std::string path = std::string(KVFERRY_PTX_FOLDER) + "/" + name;
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) throw std::runtime_error("the build did not make " + path);
  return text.str();
}

std::vector<std::string> words_of(const char* text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string one; stream >> one;) words.push_back(one);
  return words;
}

}  // namespace kvferry::ptx
