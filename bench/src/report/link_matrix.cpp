// SPDX-License-Identifier: Apache-2.0
#include "report/link_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::bench {
namespace {

/// The place of `value` in `values`, where it is added if it is new.
template <class T>
std::size_t place_of(std::vector<T>& values, const T& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  const auto place = static_cast<std::size_t>(found - values.begin());
  if (found == values.end()) values.push_back(value);
  return place;
}

}  // namespace

std::vector<Matrix> link_matrices(std::span<const TransferRow> rows) {
  std::vector<std::string> titles;
  std::vector<std::string> nodes;
  std::vector<std::string> devices;
  struct Place {
    std::size_t matrix, row, column;
    Cell rate;
  };
  std::vector<Place> places;
  for (const TransferRow& row : rows) {
    // The others are the plain copies that the host back end is compared with.
    if (row.path != "copy_engine") continue;
    const std::string node = row.numa_node ? fmt::format("node {}", *row.numa_node) : "any node";
    places.push_back(
        {place_of(titles, fmt::format("{}, {} memory, GB/s", row.direction, row.memory)),
         place_of(nodes, node), place_of(devices, fmt::format("device {}", row.device.value_or(0))),
         cell_of(row.gb_per_s)});
  }
  if (nodes.size() * devices.size() < 2) return {};
  std::vector<Matrix> matrices;
  for (const std::string& title : titles) {
    const std::vector<Cell> empty(devices.size());
    matrices.push_back({title, nodes, devices, std::vector(nodes.size(), empty)});
  }
  for (const Place& place : places) {
    matrices[place.matrix].cells[place.row][place.column] = place.rate;
  }
  return matrices;
}

}  // namespace kvferry::bench
