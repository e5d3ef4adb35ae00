// A row's own process: one configuration, trained by train's code and measured.
#pragma once

#include <functional>
#include <string>

#include "train/compare/measurement.h"
#include "train/memory_record.h"

namespace headroom {

// Trains as asked. The first step's values are compared with those in `reference`, or written there
// if the request says so. Peaks are those of the steps after the first, so what only the first step
// does (plan searches, optimizer state) is charged to nobody. The first half of the steps is
// recorded, the second half is timed: recording takes time. Running out of memory and other
// failures are in the result's status.
RowMeasurement measure_row(const RowRequest& request, const std::string& reference,
                           const std::function<void(const RowProgress&)>& on_progress);

// At most 400 points, evenly over the points of the record; of those that stand for several, the
// one with the most bytes, so the peak stays exact.
Timeline thinned(const std::vector<TimelinePoint>& points, const EventLog& log);

}  // namespace headroom
