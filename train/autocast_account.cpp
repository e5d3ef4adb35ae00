// Recording what autocast does, and telling it.
#include "train/autocast_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include <nlohmann/json.hpp>

#include "core/memory/caching_allocator.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;
using Casts = AutocastAccount::Casts;

constexpr const char* kHalfReason = "by the half list";
constexpr const char* kF32Reason = "by the f32 list";
constexpr const char* kInputReason = "as inputs came";
constexpr const char* kOutsideReason = "outside of autocast";

Json json_of(const Casts& casts) { return {{"count", casts.count}, {"bytes", casts.bytes}}; }

void put_casts(const Casts& casts, const char* words, std::string& out) {
  if (casts.count == 0) return;
  if (!out.empty()) out += "; ";
  out += fmt::format("{} {}, {}", casts.count, words, format_bytes(casts.bytes));
}

}  // namespace

const char* reason_of(const AutocastAccount::Op& op) {
  if (!op.inside) return kOutsideReason;
  const AutocastRule rule = autocast_rule(op.name);
  if (rule == AutocastRule::half && is_half(op.dtype)) return kHalfReason;
  if (rule == AutocastRule::f32 && op.dtype == DType::f32) return kF32Reason;
  return kInputReason;
}

AutocastRecorder::AutocastRecorder(DType half, AutocastAccount& account) : account_(account) {
  account_.half = half;
}

AutocastRecorder::~AutocastRecorder() { listen(false); }

void AutocastRecorder::listen(bool on) {
  if (on == listening_) return;
  if (on) {
    before_ = set_autocast_listener(this);
  } else {
    set_autocast_listener(before_);
  }
  listening_ = on;
}

// A step that is tried again is recorded anew.
void AutocastRecorder::on_step_begin(int64_t) {
  if (done_) return;
  account_ = {.half = account_.half, .ops = {}, .casts = {}};
  listen(true);
}

void AutocastRecorder::on_step(const StepInfo&) {
  listen(false);
  done_ = true;
}

void AutocastRecorder::on_op(const char* op, DType output, bool inside) {
  const auto same = [&](const auto& row) {
    return row.name == op && row.dtype == output && row.inside == inside;
  };
  auto row = std::find_if(account_.ops.begin(), account_.ops.end(), same);
  if (row == account_.ops.end()) row = account_.ops.insert(row, {op, output, inside, 0});
  ++row->calls;
}

void AutocastRecorder::on_cast(AutocastCast how, int64_t bytes) {
  Casts& casts = account_.casts[static_cast<size_t>(how)];
  ++casts.count;
  casts.bytes += bytes;
}

std::vector<std::pair<std::string, std::string>> autocast_lines(const AutocastAccount& account) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const DType dtype : {account.half, DType::f32}) {
    std::string text;
    for (const char* reason : {kHalfReason, kF32Reason, kInputReason, kOutsideReason}) {
      std::string ops;
      for (const AutocastAccount::Op& op : account.ops) {
        if (op.dtype != dtype || reason_of(op) != reason) continue;
        ops += fmt::format("{}{} {}", ops.empty() ? "" : ", ", op.name, op.calls);
      }
      if (ops.empty()) continue;
      text += fmt::format("{}{} ({})", text.empty() ? "" : "; ", ops, reason);
    }
    if (!text.empty()) out.emplace_back(fmt::format("ops in {}", name_of(dtype)), text);
  }
  std::string casts;
  put_casts(account.of(AutocastCast::kept_weight), "weights kept in half by the optimizer", casts);
  put_casts(account.of(AutocastCast::made_weight), "weights to half", casts);
  put_casts(account.of(AutocastCast::to_half), "other tensors to half", casts);
  put_casts(account.of(AutocastCast::to_float), "to f32", casts);
  if (!casts.empty()) out.emplace_back("casts", casts);
  return out;
}

Json autocast_json(const AutocastAccount& account) {
  Json ops = Json::array();
  for (const AutocastAccount::Op& op : account.ops) {
    ops.push_back({{"op", op.name},
                   {"dtype", name_of(op.dtype)},
                   {"why", reason_of(op)},
                   {"calls", op.calls}});
  }
  return {{"dtype", name_of(account.half)},
          {"ops", ops},
          {"casts",
           {{"kept_weights", json_of(account.of(AutocastCast::kept_weight))},
            {"made_weights", json_of(account.of(AutocastCast::made_weight))},
            {"to_half", json_of(account.of(AutocastCast::to_half))},
            {"to_f32", json_of(account.of(AutocastCast::to_float))}}}};
}

}  // namespace headroom
