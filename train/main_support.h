// What the programs of this folder share: how they fail, how they print, what they know of the GPU
// and its libraries.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/config.h"

namespace headroom {

enum ExitCode : int { kDone = 0, kFailed = 1, kWrongInput = 2, kOutOfMemory = 3 };

// File names may hold anything; a message stays one line.
std::string one_line(std::string text);

// Puts something in the place of standard streams that are closed, so that no file that is opened
// later takes their numbers and gets what is meant for them. What is printed there still fails.
void hold_standard_streams();

// Prints "PROGRAM: error: MESSAGE" as one line on standard error; returns the code.
int fail(const char* program, const std::string& message, int code);

// Runs the program; whatever it throws ends in fail().
int guarded(const char* program, const std::function<int()>& run);

// Throws DataError if standard output does not take the text.
void print_result(const std::string& text);

// "headroom 0.1.0 (backends: cpu, cuda)" and a newline.
std::string version_text();

// Empty where cuDNN computes nothing.
std::optional<std::string> cudnn_version_of(const TrainConfig& config, Device device);

// Registers kernels. Throws InvalidArgument if the device is named and not there; notes on standard
// error why `auto` finds no GPU.
void open_devices(const char* program, const TrainConfig& config);

}  // namespace headroom
