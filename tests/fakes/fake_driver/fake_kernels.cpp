// SPDX-License-Identifier: Apache-2.0
#include "fake_kernels.hpp"

#include "kernels/co_run_work.hpp"
#include "kernels/pack_walk.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace kvferry::fakes {
namespace {

using Memory = std::function<void*(std::uint64_t, std::size_t)>;

void* checked(const Memory& memory, std::uint64_t address, std::size_t bytes) {
  void* const at = memory(address, bytes);
  if (at == nullptr || address % bytes != 0) {
    std::fprintf(stderr, "fake driver: a kernel touches %zu bytes at 0x%llx\n", bytes,
                 static_cast<unsigned long long>(address));
    std::abort();
  }
  return at;
}

struct EmulatedAccess {
  template <std::uint32_t Width>
  using Vector = std::array<std::uint8_t, Width>;

  template <std::uint32_t Width>
  Vector<Width> load(std::uint64_t from) {
    Vector<Width> value{};
    std::memcpy(value.data(), checked(memory, from, Width), Width);
    return value;
  }
  template <std::uint32_t Width>
  void store(std::uint64_t to, Vector<Width> value) {
    std::memcpy(checked(memory, to, Width), value.data(), Width);
  }
  template <std::uint32_t Width>
  std::uint32_t word(const Vector<Width>& value, std::uint32_t i) {
    std::uint32_t result = 0;
    std::memcpy(&result, value.data() + i * sizeof(result), std::min<std::size_t>(Width, 4));
    return result;
  }
  // Each lane by itself; kernels of two streams may meet here.
  void add(std::uint64_t to, std::uint64_t part, std::uint32_t /*lane*/) {
    auto& sum = *static_cast<std::uint64_t*>(checked(memory, to, sizeof(part)));
    std::atomic_ref(sum).fetch_add(part, std::memory_order_relaxed);
  }
  const Memory& memory;
};

template <gpu::WalkWay Way, gpu::WalkSums Sums>
void run_vector(unsigned num_ctas, unsigned num_threads, const gpu::PackArguments& arguments,
                const Memory& memory) {
  EmulatedAccess access{memory};
  for (unsigned cta = 0; cta < num_ctas; ++cta) {
    for (unsigned thread = 0; thread < num_threads; ++thread) {
      gpu::walk_units<Way, Sums>(access, arguments, {cta, num_ctas, thread, num_threads});
    }
  }
}

using RunVector = void (*)(unsigned, unsigned, const gpu::PackArguments&, const Memory&);

struct VectorKernel {
  std::string_view name;
  RunVector run;
};

// Without a destructor: a device's threads run kernels while the process ends.
constexpr std::array kVectorKernels{
    VectorKernel{"kvferry_gather", &run_vector<gpu::WalkWay::kGather, gpu::WalkSums::kNo>},
    VectorKernel{"kvferry_scatter", &run_vector<gpu::WalkWay::kScatter, gpu::WalkSums::kNo>},
    VectorKernel{"kvferry_gather_tagged", &run_vector<gpu::WalkWay::kGather, gpu::WalkSums::kYes>},
    VectorKernel{"kvferry_scatter_tagged",
                 &run_vector<gpu::WalkWay::kScatter, gpu::WalkSums::kYes>},
    VectorKernel{"kvferry_sum", &run_vector<gpu::WalkWay::kSum, gpu::WalkSums::kYes>}};

/// Null if it is not one of them.
RunVector vector_kernel(std::string_view name) {
  const auto* const found =
      std::find_if(kVectorKernels.begin(), kVectorKernels.end(),
                   [name](const VectorKernel& kernel) { return kernel.name == name; });
  return found == kVectorKernels.end() ? nullptr : found->run;
}

// Each unit by its lanes, in pieces that the copy unit would move whole.
void run_bulk(gpu::WalkWay way, const gpu::PackArguments& arguments, const Memory& memory) {
  const std::uint32_t units = gpu::num_units(arguments, gpu::kBulkUnitBytes);
  std::array<gpu::FragmentWindow, gpu::kTeamLanes> windows;
  for (std::uint32_t u = 0; u < units; ++u) {
    const gpu::PackUnit unit = gpu::unit_at(arguments, gpu::kBulkUnitBytes, u);
    for (std::uint32_t lane = 0; lane < gpu::kTeamLanes; ++lane) {
      gpu::walk_bulk_pieces(
          arguments, unit, lane, windows[lane], [&](const gpu::PackPiece& piece, std::uint32_t) {
            for (std::uint64_t at = 0; at < piece.bytes; at += gpu::kMaxWidth) {
              void* const pool = checked(memory, piece.pool + at, gpu::kMaxWidth);
              void* const packed = checked(memory, piece.packed + at, gpu::kMaxWidth);
              const bool gathers = way == gpu::WalkWay::kGather;
              std::memcpy(gathers ? packed : pool, gathers ? pool : packed, gpu::kMaxWidth);
            }
          });
    }
  }
}

constexpr const char* kCoRunGemm = "kvferry_co_run_gemm";
constexpr const char* kCoRunStream = "kvferry_co_run_stream";

bool is_co_run(const std::string& name) { return name == kCoRunGemm || name == kCoRunStream; }

float* float_at(const Memory& memory, std::uint64_t address) {
  return static_cast<float*>(checked(memory, address, sizeof(float)));
}

// The threads of a device would all come to the same result: one does the work for all.
void run_co_run_gemm(std::uint64_t num_threads, const gpu::CoRunArguments& arguments,
                     const Memory& memory) {
  const float result = gpu::co_run_gemm(arguments.num_passes, 0);
  for (std::uint64_t i = 0; i < num_threads; ++i) {
    *float_at(memory, arguments.to + i * sizeof(float)) = result;
  }
}

void run_co_run_stream(const gpu::CoRunArguments& arguments, const Memory& memory) {
  for (std::uint64_t i = 0; i < arguments.num_floats; ++i) {
    const std::uint64_t offset = i * sizeof(float);
    *float_at(memory, arguments.to + offset) = gpu::co_run_triad(
        *float_at(memory, arguments.from + offset), *float_at(memory, arguments.scaled + offset));
  }
}

void run_co_run(const std::string& name, std::uint64_t num_threads,
                const gpu::CoRunArguments& arguments, const Memory& memory) {
  if (name == kCoRunGemm) {
    run_co_run_gemm(num_threads, arguments, memory);
  } else {
    run_co_run_stream(arguments, memory);
  }
}

template <class Arguments>
Arguments arguments_of(std::span<const std::byte> parameter) {
  Arguments arguments;
  std::memcpy(&arguments, parameter.data(), sizeof(arguments));
  return arguments;
}

}  // namespace

bool is_kernel(const std::string& name) {
  return vector_kernel(name) != nullptr || name == "kvferry_gather_bulk" ||
         name == "kvferry_scatter_bulk" || is_co_run(name);
}

std::size_t parameter_bytes(const std::string& name) {
  return is_co_run(name) ? sizeof(gpu::CoRunArguments) : sizeof(gpu::PackArguments);
}

void run_kernel(const std::string& name, unsigned num_ctas, unsigned num_threads,
                std::span<const std::byte> parameter, const Memory& memory) {
  if (is_co_run(name)) {
    run_co_run(name, std::uint64_t{num_ctas} * num_threads,
               arguments_of<gpu::CoRunArguments>(parameter), memory);
    return;
  }
  const auto arguments = arguments_of<gpu::PackArguments>(parameter);
  if (const RunVector run = vector_kernel(name)) {
    run(num_ctas, num_threads, arguments, memory);
  } else {
    run_bulk(name == "kvferry_gather_bulk" ? gpu::WalkWay::kGather : gpu::WalkWay::kScatter,
             arguments, memory);
  }
}

}  // namespace kvferry::fakes
