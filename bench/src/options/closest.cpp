// SPDX-License-Identifier: Apache-2.0
#include "options/closest.hpp"

#include <algorithm>
#include <vector>

namespace kvferry::bench {
namespace {

/// Letters to insert, to remove, to replace, or neighbours to exchange, until `a` is `b` (optimal
/// string alignment).
std::size_t changes_between(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> changes(a.size() + 1,
                                                std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) changes[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) changes[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = changes[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      std::size_t least = std::min({changes[i - 1][j] + 1, changes[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        least = std::min(least, changes[i - 2][j - 2] + 1);
      }
      changes[i][j] = least;
    }
  }
  return changes[a.size()][b.size()];
}

}  // namespace

std::string closest(std::string_view typed, std::span<const std::string> known) {
  std::string best;
  std::size_t least = typed.size();
  for (const std::string& word : known) {
    const std::size_t changes = changes_between(typed, word);
    if (changes < least && 3 * changes <= std::max(word.size(), typed.size()) + 2) {
      least = changes;
      best = word;
    }
  }
  return best;
}

}  // namespace kvferry::bench
