// What every program of this folder does alike: how it fails and how it prints.
#pragma once

#include <functional>
#include <string>

namespace headroom {

enum ExitCode : int { kDone = 0, kFailed = 1, kWrongInput = 2, kOutOfMemory = 3 };

// Puts something in the place of standard streams that are closed, so that no file that is opened
// later takes their numbers and gets what is meant for them. What is printed there still fails.
void hold_standard_streams();

// Prints "PROGRAM: error: MESSAGE" as one line on standard error; returns the code.
int fail(const char* program, const std::string& message, int code);

// Runs the program; whatever it throws ends in fail().
int guarded(const char* program, const std::function<int()>& run);

// The text without line ends and other control characters: file names may hold anything.
std::string one_line(std::string text);

// Throws DataError if standard output does not take the text.
void print_result(const std::string& text);

}  // namespace headroom
