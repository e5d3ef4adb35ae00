// One step's memory in the format of PyTorch's memory snapshots, which
// https://pytorch.org/memory_viz draws and torch.cuda._memory_viz prints.
#pragma once

#include <string>

#include "train/memory_record.h"

namespace headroom {

// The pickle of a record, as torch.cuda.memory._dump_snapshot() writes one:
//   "segments"             the segments at the record's end, of an expandable one each run of
//                          pages, with the blocks that tile them. Sizes of the blocks
//                          "active_allocated" sum to what is allocated then, sizes of all to what
//                          is reserved
//   "device_traces"        the record's events, of one device: "alloc", "free_requested" and
//                          "free_completed" (at once: there is one stream), "segment_alloc",
//                          "segment_free", "segment_map", "segment_unmap", "oom", and last
//                          "snapshot". As in PyTorch, the size of an event is what was asked for,
//                          that of a block what it takes
//   "allocator_settings", "external_annotations"
// Blocks from before the record are in the segments, and in the trace when they are freed. The
// frames of an event or block, innermost first: the op with its module path as file, the tag, the
// phase; of a segment there are none.
std::string snapshot_pickle(const StepRecord& record);

// Replaces the file whole or not at all. Throws DataError if it cannot be written.
void write_snapshot(const std::string& path, const StepRecord& record);

}  // namespace headroom
