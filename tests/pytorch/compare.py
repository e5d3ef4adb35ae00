#!/usr/bin/env python3
"""Speed and peak memory of Headroom's `train` beside PyTorch's on the same models, one after the
other on the same GPU, with the same cuDNN, in alternating rounds.

  python3 tests/pytorch/compare.py --train build/release/bin/train [--rounds 3] [--json FILE]
                                   [--only resnet18]

PyTorch runs as its users would tune it: autocast f16, channels_last, cudnn.benchmark, fused SGD,
gradients set to none, GradScaler, inputs already on the GPU. Headroom runs its program as it is,
with its loader and its normalisation on the device. Rates are of steps after the warm-up, without
waiting between steps; peaks are those of training steps, both allocators counting the same way.
Random images and labels on both sides, never zeros.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

WORKLOADS = [
    # name, model, micro-batch, accumulation
    ("resnet18 batch 64", "resnet18", 64, 1),
    ("resnet18 batch 512", "resnet18", 512, 1),
    ("vgg16 batch 128", "vgg16", 128, 1),
    ("resnet50 batch 64", "resnet50", 64, 1),
    ("resnet18 batch 16 accum 4", "resnet18", 16, 4),
]
WARMUP = 8


def torch_side(model_name, batch, accum, steps):
    """Run in a process of its own: prints one JSON object."""
    import torch
    from torch.nn import functional as F

    import models

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model = models.channels_last(models.make(model_name).cuda()).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True
    )
    scaler = torch.amp.GradScaler("cuda")
    images = [
        models.channels_last(torch.randn(batch, *models.IMAGE[model_name], device="cuda"))
        for _ in range(accum)
    ]
    labels = [
        torch.randint(models.CLASSES[model_name], (batch,), device="cuda") for _ in range(accum)
    ]

    def step():
        optimizer.zero_grad(set_to_none=True)
        for x, y in zip(images, labels):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x).float(), y) / accum
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    print(
        json.dumps(
            dict(
                images_per_s=steps * batch * accum / seconds,
                step_ms=seconds / steps * 1e3,
                peak_allocated=torch.cuda.max_memory_allocated(),
                peak_reserved=torch.cuda.max_memory_reserved(),
                cudnn=torch.backends.cudnn.version(),
                torch=torch.__version__,
                gpu=torch.cuda.get_device_name(),
            )
        )
    )


def headroom_side(train, model_name, batch, accum, steps, extra):
    shape = {
        "lenet": "1x28x28:10",
        "vgg16": "3x32x32:10",
        "resnet18": "3x32x32:10",
        "resnet50": "3x224x224:1000",
    }
    count = batch * accum * (steps + WARMUP)
    command = [
        train,
        "--model",
        model_name,
        "--data",
        f"random:{shape[model_name]}:{count}",
        "--batch",
        str(batch),
        "--accum",
        str(accum),
        "--steps",
        str(steps + WARMUP),
        "--amp",
        "--lr",
        "0.01",
        "--schedule",
        "constant",
        "--warmup",
        "0",
        "--no-eval",
        "--loader-threads",
        str(min(12, os.cpu_count() or 4)),
        "--json",
        *extra,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)}\nended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return json.loads(done.stdout), command


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", help="Headroom's train program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument(
        "--extra", default="--cudnn-benchmark", help="further flags for train: --extra='--tf32 all'"
    )
    parser.add_argument("--json", help="write all readings here")
    parser.add_argument("--torch-side", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch_side:
        name, batch, accum, steps = args.torch_side
        return torch_side(name, int(batch), int(accum), int(steps))
    readings = []
    mib = 2.0**20
    for label, model, batch, accum in WORKLOADS:
        if args.only not in label:
            continue
        ours, theirs = [], []
        for _ in range(args.rounds):
            done = subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "--torch-side",
                    model,
                    str(batch),
                    str(accum),
                    str(args.steps),
                ],
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                raise SystemExit(done.stderr[-2000:])
            theirs.append(json.loads(done.stdout))
            row, command = headroom_side(
                args.train, model, batch, accum, args.steps, args.extra.split()
            )
            ours.append(row)
        if not readings:
            print(
                f"{theirs[0]['gpu']}, PyTorch {theirs[0]['torch']}, cuDNN {theirs[0]['cudnn']}; "
                f"Headroom on cuDNN {ours[0]['cudnn_version']}; "
                f"medians of {args.rounds} alternating rounds\n"
            )
            print(
                "| workload (f16 autocast, nhwc) | PyTorch images/s | Headroom images/s | speed | "
                "PyTorch peak | "
                "Headroom peak | peak ratio |"
            )
            print("|---|---|---|---|---|---|---|")
        a, b = median(theirs, "images_per_s"), median(ours, "images_per_s")
        p, q = median(theirs, "peak_allocated"), median(ours, "peak_allocated")
        print(
            f"| {label} | {a:,.0f} | {b:,.0f} | {b / a:.2f}x | {p / mib:,.0f} MiB | "
            f"{q / mib:,.0f} MiB | "
            f"{q / p:.2f} |",
            flush=True,
        )
        readings.append(dict(workload=label, command=command, pytorch=theirs, headroom=ours))
        if args.json:
            with open(args.json, "w") as out:
                json.dump(readings, out, indent=1)
    return None


if __name__ == "__main__":
    sys.exit(main())
