#!/usr/bin/env python3
"""Checks a file of `train --snapshot`: keys, totals, and that its trace leads to its state.

    check_snapshot.py FILE            prints what it found as one line of JSON; needs Python alone
    check_snapshot.py --torch FILE..  also has PyTorch's own reader, torch.cuda._memory_viz, read
                                      the files and checks its totals; compares the first two, if
                                      there are two
"""

import json
import pickle
import sys

SEGMENT = {
    "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
    "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks",
}
BLOCK = {"address", "size", "requested_size", "state", "frames"}
EVENT = {"action", "addr", "size", "stream", "time_us", "frames"}
OOM = EVENT - {"addr"} | {"device_free"}


def check(condition, *what):
    if not condition:
        sys.exit("check_snapshot: " + " ".join(str(part) for part in what))


def check_frames(frames):
    for frame in frames:
        check(set(frame) == {"name", "filename", "line"}, "frame", frame)
        check(isinstance(frame["name"], str) and isinstance(frame["line"], int), "frame", frame)


def check_segment(segment):
    check(set(segment) == SEGMENT, "segment keys", sorted(segment))
    check(segment["segment_type"] in ("small", "large"), segment["segment_type"])
    check(segment["segment_pool_id"] == (0, 0), segment["segment_pool_id"])
    at = segment["address"]
    active = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
    for block in segment["blocks"]:
        check(set(block) == BLOCK, "block keys", sorted(block))
        check(block["address"] == at, "a gap at", at)
        check(block["state"] in ("active_allocated", "inactive"), block["state"])
        check(block["requested_size"] <= block["size"], "block", block)
        check(bool(block["frames"]) == (block["state"] == "active_allocated"), "block", block)
        check_frames(block["frames"])
        at += block["size"]
    check(at == segment["address"] + segment["total_size"], "blocks do not tile", segment)
    check(sum(b["size"] for b in active) == segment["allocated_size"] == segment["active_size"])
    check(sum(b["requested_size"] for b in active) == segment["requested_size"])


def map_pages(runs, event):
    """Adds pages to the runs of expandable segments, merged with those that they touch."""
    begin, end = event["addr"], event["addr"] + event["size"]
    for at, size in list(runs.items()):
        check(at + size <= begin or end <= at, "mapped twice:", event)
        if at + size == begin or at == end:
            del runs[at]
            begin, end = min(begin, at), max(end, at + size)
    runs[begin] = end - begin


def unmap_pages(runs, event):
    begin, end = event["addr"], event["addr"] + event["size"]
    around = [at for at, size in runs.items() if at <= begin and end <= at + size]
    check(len(around) == 1, "not mapped:", event)
    at, size = around[0], runs.pop(around[0])
    if at < begin:
        runs[at] = begin - at
    if end < at + size:
        runs[end] = at + size - end


def state_at_end(data):
    blocks, segments, runs = {}, {}, {}
    for segment in data["segments"]:
        there = runs if segment["is_expandable"] else segments
        check(segment["address"] not in there, "two segments at", segment["address"])
        there[segment["address"]] = segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                blocks[block["address"]] = block["requested_size"]
    return blocks, segments, runs


def undo(events, blocks, segments, runs):
    """The state before the events, by undoing them; each must fit the state after it."""
    changes = {
        "alloc": (blocks, False), "free_completed": (blocks, True),
        "segment_alloc": (segments, False), "segment_free": (segments, True),
    }
    for event in reversed(events):
        if event["action"] == "segment_map":
            unmap_pages(runs, event)
        elif event["action"] == "segment_unmap":
            map_pages(runs, event)
        if event["action"] not in changes:
            continue
        there, appears = changes[event["action"]]
        if appears:
            check(event["addr"] not in there, "twice there:", event)
            there[event["addr"]] = event["size"]
        else:
            check(there.pop(event["addr"], None) == event["size"], "not there:", event)


def replay(events, blocks, segments, runs):
    """Forwards again; returns the most bytes asked for that were there at once."""
    peak = now = sum(blocks.values())
    asked_back = None
    for event in events:
        action, address, size = event["action"], event.get("addr"), event["size"]
        if action == "alloc":
            inside = any(s <= address and address + size <= s + n
                         for there in (segments, runs) for s, n in there.items())
            check(inside, "outside of every segment:", event)
            blocks[address] = size
            now += size
        elif action == "free_requested":
            asked_back = address
        elif action == "free_completed":
            check(asked_back == address, "nobody asked for", event)
            now -= blocks.pop(address)
        elif action == "segment_alloc":
            segments[address] = size
        elif action == "segment_map":
            map_pages(runs, event)
        elif action in ("segment_free", "segment_unmap"):
            held = [b for b, n in blocks.items() if b < address + size and address < b + n]
            check(not held, "freed with blocks in it:", event)
            if action == "segment_free":
                del segments[address]
            else:
                unmap_pages(runs, event)
        else:
            check(action in ("oom", "snapshot"), "action", action)
        peak = max(peak, now)
    return peak


def check_snapshot(data):
    keys = {"segments", "device_traces", "allocator_settings", "external_annotations"}
    check(set(data) == keys, "keys", sorted(data))
    for segment in data["segments"]:
        check_segment(segment)
    check(len(data["device_traces"]) == 1, "traces:", len(data["device_traces"]))
    events = data["device_traces"][0]
    for event in events:
        wanted = OOM if event["action"] == "oom" else EVENT
        check(set(event) == wanted, "event keys", sorted(event))
        check_frames(event["frames"])
    times = [event["time_us"] for event in events]
    check(times == sorted(times), "events out of order")
    state = state_at_end(data)
    end = tuple(dict(part) for part in state)
    undo(events, *state)
    before = len(state[0])
    peak = replay(events, *state)
    check(state == end, "the trace does not lead to the state")
    frames = [f for s in data["segments"] for b in s["blocks"] for f in b["frames"]]
    return {
        "allocated": sum(s["allocated_size"] for s in data["segments"]),
        "requested": sum(s["requested_size"] for s in data["segments"]),
        "reserved": sum(s["total_size"] for s in data["segments"]),
        "expandable": sum(s["is_expandable"] for s in data["segments"]),
        "expandable_setting": data["allocator_settings"]["expandable_segments"],
        "peak_requested": peak,
        "blocks_before": before,
        "events": len(events),
        "device_free_at_oom": [e["device_free"] for e in events if e["action"] == "oom"],
        "modules": sorted({f["filename"] for f in frames}),
        "names": sorted({f["name"] for f in frames}),
    }


def check_with_torch(files, found):
    from torch.cuda import _memory_viz as viz

    for data, facts in zip(files, found):
        # segsum checks its own sums: it raises where blocks and segments disagree.
        text = viz.segsum(data)
        for line in (
            f"segments: {len(data['segments'])}\n",
            f"total_reserved: {viz.Bytes(facts['reserved'])}\n",
            f"total_allocated: {viz.Bytes(facts['requested'])}\n",
        ):
            check(line in text, "segsum: no", line, "in", text)
        active = sum(viz.calc_active(segment) for segment in data["segments"])
        check(active == facts["allocated"], "calc_active:", active)
        for graph in (viz.memory, viz.segments):
            lines = graph(data, format_flamegraph=lambda lines: lines).splitlines()
            total = sum(int(line.rsplit(" ", 1)[1]) for line in lines)
            check(total == facts["reserved"], graph.__name__, "adds up to", total)
        trace = viz.trace(data)
        check(f"{facts['events']} entries" in trace, "trace:", trace[:200])
        check(trace.count("# free completed") == sum(
            event["action"] == "free_completed" for event in data["device_traces"][0]), "trace")
        viz.trace_plot(data)
        viz.segment_plot(data)
    if len(files) > 1:
        before, after = (data["segments"] for data in files[:2])
        viz.compare(before, after, format_flamegraph=lambda lines: lines)
    print("torch.cuda._memory_viz finds the same totals")


def main(arguments):
    with_torch = arguments[:1] == ["--torch"]
    names = arguments[with_torch:]
    if not names or {"-h", "--help"} & set(arguments):
        print(__doc__)
        sys.exit(0 if names else 2)
    files = [pickle.load(open(name, "rb")) for name in names]
    found = [check_snapshot(data) for data in files]
    for facts in found:
        print(json.dumps(facts))
    if with_torch:
        check_with_torch(files, found)


if __name__ == "__main__":
    main(sys.argv[1:])
