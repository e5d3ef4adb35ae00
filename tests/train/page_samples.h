// Data for tests of the pages: a comparison with every kind of row, made up.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace headroom::test {

// A step of `layers` layers: forward saves one part after the other, backward trades them for
// gradients. 3 + 2 * layers points; the peak is where the first gradient stands beside all saved.
inline nlohmann::ordered_json sample_timeline(int layers, int64_t saved_bytes) {
  constexpr int64_t kParameterBytes = int64_t{40} << 20, kLayerGradientBytes = int64_t{2} << 20;
  nlohmann::ordered_json by_tag, phases;
  const auto add = [&](const char* phase, int64_t saved, int64_t gradient) {
    by_tag["parameter"].push_back(kParameterBytes);
    by_tag["saved_activation"].push_back(saved);
    by_tag["gradient"].push_back(gradient);
    phases.push_back(phase);
  };
  add("none", 0, 0);
  for (int i = 1; i <= layers; ++i) add("forward", saved_bytes * i / layers, 0);
  add("backward", saved_bytes, kLayerGradientBytes);
  for (int i = 1; i <= layers; ++i) {
    add("backward", saved_bytes * (layers - i) / layers, kLayerGradientBytes * i);
  }
  add("optimizer", 0, 0);
  return {{"by_tag", by_tag}, {"phase", phases}};
}

inline nlohmann::ordered_json sample_row(const std::string& name, int64_t saved_mib, double step_ms,
                                         const std::string& label) {
  const int64_t saved = saved_mib << 20, constant = int64_t{42} << 20;
  const int64_t peak = saved + constant, base = (int64_t{300} << 20) + constant;
  nlohmann::ordered_json row;
  row["name"] = name;
  row["flags"] = {"--" + name};
  row["status"] = "ok";
  row["message"] = "";
  row["peak_allocated"] = peak;
  row["peak_reserved"] = peak + (int64_t{20} << 20);
  row["device_bytes"] = peak + (int64_t{600} << 20);
  row["parts"] = {{"parameter", int64_t{40} << 20},
                  {"gradient", int64_t{2} << 20},
                  {"saved_activation", saved},
                  {"workspace", 0}};
  row["first_step_peak"] = peak - 512;
  row["evaluation_peak"] = constant;
  row["step_ms"] = step_ms;
  row["images_per_s"] = 64e3 / step_ms;
  row["saved"] = 1 - static_cast<double>(peak) / static_cast<double>(base);
  row["fidelity"] = {{"label", label},
                     {"gradient_difference", label == "bit-identical" ? 0 : 1.5e-4},
                     {"loss", 2.25},
                     {"loss_difference", 1e-5},
                     {"batch_norm_difference", 0}};
  row["timeline"] = sample_timeline(12, saved);
  return row;
}

// A row of a configuration that gave no numbers.
inline nlohmann::ordered_json sample_empty_row(const std::string& name, const std::string& status,
                                               const std::string& message) {
  nlohmann::ordered_json row = sample_row(name, 0, 1, "");
  for (auto& [key, value] : row.items()) value = nullptr;
  row["name"] = name;
  row["flags"] = {"--" + name};
  row["status"] = status;
  row["message"] = message;
  return row;
}

// Ten rows of resnet18. The third's name is markup, which a page has to show as it is.
inline nlohmann::ordered_json sample_comparison() {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array(
      {sample_row("base", 300, 31.2, "reference"), sample_row("accum=4", 80, 38.9, "rounding"),
       sample_row("<img>amp", 160, 16.4, "rounding"),
       sample_row("checkpoint", 120, 40.8, "bit-identical"),
       sample_row("amp+accum=4+checkpoint", 40, 44.0, "rounding"),
       sample_row("no-cudnn", 299, 92.5, "rounding"),
       sample_row("adamw", 340, 32.8, "changes training"),
       sample_row("memory-limit=200MiB", 150, 1, ""),
       sample_empty_row("cudnn-benchmark", "failed", "ended by signal 6"),
       sample_empty_row("offload", "left out", "needs a CUDA device")});
  nlohmann::ordered_json& out_of_memory = rows[7];
  out_of_memory["status"] = "out of memory";
  out_of_memory["message"] = "conv2d of blocks.3.convs.0 asked for 16.00 MiB in backward";
  for (const char* key : {"step_ms", "images_per_s", "fidelity", "timeline", "evaluation_peak"}) {
    out_of_memory[key] = nullptr;
  }
  return {{"model", "resnet18"},
          {"batch", 64},
          {"accum", 1},
          {"device", "cuda"},
          {"device_description", "a device"},
          {"cudnn_version", "9.13.0"},
          {"steps", 8},
          {"command", "memory-compare --model resnet18 --batch 64 -- base accum=4 amp"},
          {"rows", rows}};
}

}  // namespace headroom::test
