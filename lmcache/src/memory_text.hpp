// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/huge_pages.hpp"

#include <cmath>
#include <string>

namespace kvferry::lmcache {

inline void append_sentence(std::string& text, const std::string& sentence) {
  if (!text.empty()) text += "; ";
  text += sentence;
}

/// What memory was obtained, for a log.
inline std::string memory_text(cpu_tier::PageKind pages, double huge_page_share,
                               const std::string& placement, const std::string& file) {
  std::string text = std::string(to_string(pages)) + " pages, " +
                     std::to_string(std::lround(100 * huge_page_share)) + " % of them huge";
  if (!placement.empty()) append_sentence(text, "NUMA node: " + placement);
  if (!file.empty()) append_sentence(text, "kept in " + file);
  return text;
}

}  // namespace kvferry::lmcache
