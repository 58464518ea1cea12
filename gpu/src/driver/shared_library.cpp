// SPDX-License-Identifier: Apache-2.0
#include "driver/shared_library.hpp"

#include "kvferry/base/error.hpp"

#include <dlfcn.h>
#include <link.h>
#include <string_view>

namespace kvferry::gpu {
namespace {

struct Search {
  std::string_view prefix;
  std::string found;
};

int visit(dl_phdr_info* info, std::size_t /*size*/, void* data) {
  auto& search = *static_cast<Search*>(data);
  const std::string_view path(info->dlpi_name == nullptr ? "" : info->dlpi_name);
  const auto slash = path.rfind('/');
  const auto file = slash == std::string_view::npos ? path : path.substr(slash + 1);
  if (!file.starts_with(search.prefix)) return 0;
  search.found = path;
  return 1;
}

}  // namespace

SharedLibrary SharedLibrary::open(const std::string& name, const std::string& remedy) {
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc
    throw DeviceError("cannot open " + name + " (" + (why == nullptr ? "no reason given" : why) +
                      "): " + remedy);
  }
  return {handle, name};
}

std::string SharedLibrary::find_loaded(const std::string& prefix) {
  Search search{prefix, ""};
  ::dl_iterate_phdr(&visit, &search);
  return search.found;
}

void* SharedLibrary::symbol(const char* symbol_name) const { return ::dlsym(handle_, symbol_name); }

}  // namespace kvferry::gpu
