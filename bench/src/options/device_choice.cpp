// SPDX-License-Identifier: Apache-2.0
#include "options/device_choice.hpp"

#include "kvferry/gpu/backend_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace kvferry::bench {
namespace {

constexpr std::string_view kStandInSuffix = "_stand_in";
constexpr const char* kThisProgram = "/proc/self/exe";

std::vector<std::byte> read_image(const DeviceChoice& choice) {
  const std::string& file = choice.kernel_image_file;
  if (file.empty()) {
    // A stand-in does not look into code objects: it has kernels of its own.
    const bool stands_in = choice.driver == DeviceChoice::Driver::kStandIn;
    return std::vector<std::byte>(stands_in ? 1 : 0);
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) throw NoSuchDevice(fmt::format("the kernel image {} cannot be read", file));
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::byte> image(text.size());
  std::transform(text.begin(), text.end(), image.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  return image;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string DeviceChoice::name() const {
  return std::string(gpu::to_string(kind)) +
         std::string(driver == Driver::kStandIn ? kStandInSuffix : "");
}

std::string stand_in_library(gpu::BackendKind kind, const std::filesystem::path& program) {
  const bool cuda = kind == gpu::BackendKind::kCuda;
  const char* const named = std::getenv(cuda ? "KVFERRY_FAKE_CUDA" : "KVFERRY_FAKE_HIP");
  if (named != nullptr) return named;
  const char* const file = cuda ? "libfake_cuda.so" : "libfake_hip.so";
  const std::filesystem::path folder = program.parent_path();
  const auto built = folder / ".." / "tests" / "fakes" / file;
  return std::filesystem::exists(built) ? built.string() : (folder / file).string();
}

DeviceChoice device_choice_from(std::string_view text) {
  DeviceChoice choice;
  const std::size_t colon = text.find(':');
  std::string_view name = text.substr(0, colon);
  if (name.ends_with(kStandInSuffix) && !name.starts_with("host")) {
    choice.driver = DeviceChoice::Driver::kStandIn;
    name.remove_suffix(kStandInSuffix.size());
  }
  bool known = false;
  for (const gpu::BackendRow& row : gpu::backend_table()) {
    if (name != row.name) continue;
    choice.kind = row.kind;
    known = true;
  }
  if (known && colon != std::string_view::npos) {
    const std::string_view number = text.substr(colon + 1);
    if (number == "all") {
      choice.range = DeviceChoice::Range::kAll;
      return choice;
    }
    const char* const end = number.data() + number.size();
    const auto parsed = std::from_chars(number.data(), end, choice.ordinal);
    known = parsed.ec == std::errc() && parsed.ptr == end;
  }
  if (!known) {
    throw ConfigError(
        fmt::format("'{}' is not a device: write host, cuda, hip, cuda:1 for the second, or "
                    "cuda_stand_in for a driver without a GPU",
                    text));
  }
  return choice;
}

std::optional<std::string> first_gpu() {
  for (const gpu::BackendRow& row : gpu::backend_table()) {
    if (row.kind != gpu::BackendKind::kHost && row.availability({}).available()) return row.name;
  }
  return std::nullopt;
}

OpenDevice::OpenDevice(const DeviceChoice& choice) : kernel_image_(read_image(choice)) {
  try {
    gpu::DriverOptions options;
    options.library = choice.driver_library;
    if (options.library.empty() && choice.driver == DeviceChoice::Driver::kStandIn) {
      options.library = stand_in_library(choice.kind, std::filesystem::read_symlink(kThisProgram));
    }
    options.kernel_image = kernel_image_;
    device_ = gpu::row_of(choice.kind).make_device(choice.ordinal, options);
  } catch (const Error& error) {
    throw NoSuchDevice(fmt::format("{}:{} is not available: {}", choice.name(), choice.ordinal,
                                   one_line(error.what())));
  }
}

}  // namespace kvferry::bench
