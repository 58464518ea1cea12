// SPDX-License-Identifier: Apache-2.0
#include "load_sharing.hpp"

namespace kvferry::connector {

void LoadSharing::on_begun(const Request& request, std::uint32_t first, std::uint32_t end) {
  if (max_wait_.count() <= 0) return;
  if (begun_.size() > 2 * loads_.num_in_flight()) {
    std::erase_if(begun_,
                  [this](const auto& entry) { return !loads_.knows(entry.second.transfer); });
  }
  begun_[key_at(request, first)] = {request.load, end};
}

bool LoadSharing::must_wait(const Request& request, const LookupAnswer& answer) {
  if (max_wait_.count() <= 0 || !answer.is_hit()) return false;
  Wait& wait = waits_.of(request);
  if (wait.state == Wait::State::kOver) return false;
  if (wait.state == Wait::State::kNone) {
    const std::optional<TransferId> load = worth_waiting_for(request, answer);
    if (!load) return false;
    wait = {Wait::State::kWaiting, *load, answer.first, now()};
    ++num_waits_;
    return true;
  }
  const bool is_patient = answer.first == wait.first && now() - wait.since < max_wait_;
  if (is_patient && loads_.waiting_request(wait.load) != nullptr) return true;
  wait.state = Wait::State::kOver;
  // The engine enters loaded blocks into its cache in the pass after the report, when it reaches
  // the loading request. That can be after this lookup.
  return is_patient && !loads_.knows(wait.load);
}

std::optional<TransferId> LoadSharing::worth_waiting_for(const Request& request,
                                                         const LookupAnswer& answer) const {
  const auto found = begun_.find(key_at(request, answer.first));
  if (found == begun_.end()) return std::nullopt;
  const Load& load = found->second;
  const Request* loader = loads_.waiting_request(load.transfer);
  if (loader == nullptr) return std::nullopt;
  // The middle, rounded up. Hashes are chained, so an equal last hash proves all before it.
  const std::uint32_t half = answer.first + (answer.end - answer.first + 1) / 2;
  if (load.end < half) return std::nullopt;
  if (key_at(request, half - 1) != key_at(*loader, half - 1)) return std::nullopt;
  return load.transfer;
}

}  // namespace kvferry::connector
