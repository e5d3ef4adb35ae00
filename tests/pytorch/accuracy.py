#!/usr/bin/env python3
"""Test accuracy of Headroom's `train` beside PyTorch's with the same recipe on the same data,
several seeds a side.

  python3 tests/pytorch/accuracy.py --train build/release/bin/train --mnist DIR --cifar DIR
                                    [--seeds 3] [--jobs 1] [--json FILE]

MNIST is a folder of IDX files (also .gz), CIFAR-10 one of its binary version. Recipe: SGD, momentum
0.9, Nesterov, weight decay 5e-4 on parameters of two or more dimensions, linear warm-up over 15 %
of the steps, then a cosine to 0; CIFAR: pad by 4, random crop, random mirror; an epoch's short last
window is left out. The last epoch's training loss stands beside the accuracy, to tell a difference
in fitting from one in measuring.
"""

import argparse
import concurrent.futures
import gzip
import json
import math
import pathlib
import statistics
import subprocess
import sys

RUNS = [
    # name, model, epochs, micro-batch, accumulation, rate, half precision
    ("lenet, MNIST, f32", "lenet", 3, 64, 1, 0.05, False),
    ("lenet, MNIST, --amp", "lenet", 3, 64, 1, 0.05, True),
    ("resnet18, CIFAR-10, f32", "resnet18", 10, 128, 1, 0.2, False),
    ("resnet18, CIFAR-10, --amp", "resnet18", 10, 128, 1, 0.2, True),
    ("vgg16, CIFAR-10, f32", "vgg16", 10, 128, 1, 0.1, False),
    ("vgg16, CIFAR-10, --amp", "vgg16", 10, 128, 1, 0.1, True),
    ("resnet18 16 x 4, CIFAR-10, --amp", "resnet18", 2, 16, 4, 0.1, True),
]
EVAL_BATCH = 1000
PADDING = 4


def read_mnist(folder):
    import numpy as np

    def array(name, header):
        plain = pathlib.Path(folder) / name
        data = plain.read_bytes() if plain.exists() else gzip.open(f"{plain}.gz").read()
        return np.frombuffer(data, np.uint8, offset=header)

    def split(prefix):
        return (
            array(f"{prefix}-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28).copy(),
            array(f"{prefix}-labels-idx1-ubyte", 8).astype(np.int64),
        )

    return split("train"), split("t10k"), ([0.1307], [0.3081])


def read_cifar(folder):
    import numpy as np

    def split(names):
        rows = np.concatenate(
            [np.fromfile(pathlib.Path(folder) / name, np.uint8).reshape(-1, 3073) for name in names]
        )
        return rows[:, 1:].reshape(-1, 3, 32, 32).copy(), rows[:, 0].astype(np.int64)

    return (
        split([f"data_batch_{i}.bin" for i in range(1, 6)]),
        split(["test_batch.bin"]),
        ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    )


def torch_side(run, folder, seed):
    """Run in a process of its own: prints one JSON object."""
    import torch
    from torch.nn import functional as F

    import models

    _, name, epochs, batch, accum, lr, amp = run
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = True
    train, test, statistics_of = (read_mnist if name == "lenet" else read_cifar)(folder)
    (x, y), (xt, yt) = [
        tuple(torch.from_numpy(a).to(device) for a in part) for part in (train, test)
    ]
    mean, std = (torch.tensor(v, device=device).view(1, -1, 1, 1) for v in statistics_of)
    model = models.channels_last(models.make(name).to(device))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 5e-4},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler(device, enabled=amp)
    window = batch * accum
    steps = epochs * (len(x) // window)
    warm = max(1, int(0.15 * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda k: (
            (k + 1) / warm
            if k < warm
            else 0.5 * (1 + math.cos(math.pi * (k - warm) / max(1, steps - warm)))
        ),
    )

    def crop_and_mirror(images):
        n, _, height, width = images.shape
        padded = F.pad(images, (PADDING,) * 4)
        top, left = torch.randint(0, 2 * PADDING + 1, (2, n), device=device)
        rows = top[:, None] + torch.arange(height, device=device)
        columns = left[:, None] + torch.arange(width, device=device)
        each = torch.arange(n, device=device)[:, None, None]
        cut = padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(
            0, 3, 1, 2
        )
        mirrored = torch.rand(n, device=device)[:, None, None, None] < 0.5
        return torch.where(mirrored, cut.flip(3), cut)

    def prepare(raw, training):
        images = (raw.float() / 255 - mean) / std
        return models.channels_last(
            crop_and_mirror(images) if training and name != "lenet" else images
        )

    losses = []
    for _ in range(epochs):
        model.train()
        order = torch.randperm(len(x), device=device)
        losses = []
        for w in range(len(x) // window):
            for index in order[w * window : (w + 1) * window].split(batch):
                with torch.autocast(device, dtype=torch.float16, enabled=amp):
                    loss = F.cross_entropy(model(prepare(x[index], True)).float(), y[index])
                scaler.scale(loss / accum).backward()
                losses.append(loss.detach())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
    model.eval()
    right = 0
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16, enabled=amp):
        for raw, labels in zip(xt.split(EVAL_BATCH), yt.split(EVAL_BATCH)):
            right += (model(prepare(raw, False)).argmax(1) == labels).sum().item()
    print(
        json.dumps(
            dict(
                test_accuracy=right / len(xt),
                train_loss=torch.stack(losses).mean().item(),
                torch=torch.__version__,
                device=device,
            )
        )
    )


def headroom_command(program, run, folder, seed, extra):
    _, name, epochs, batch, accum, lr, amp = run
    return [
        program,
        "--model",
        name,
        "--data",
        folder,
        "--epochs",
        str(epochs),
        "--batch",
        str(batch),
        "--accum",
        str(accum),
        "--lr",
        str(lr),
        "--seed",
        str(seed),
        "--drop-last",
        "--eval-batch",
        str(EVAL_BATCH),
        "--json",
        *(["--amp"] if amp else []),
        *extra,
    ]


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)}\nended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--train", default="build/release/bin/train", help="Headroom's train program"
    )
    parser.add_argument("--mnist", help="folder; without it the runs on MNIST are left out")
    parser.add_argument("--cifar", help="folder; without it the runs on CIFAR-10 are left out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--epochs", type=int, help="instead of the runs' own")
    parser.add_argument(
        "--extra", default="", help="further flags for train: --extra='--device cpu'"
    )
    parser.add_argument("--json", help="write all readings here")
    parser.add_argument("--torch-side", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    runs = [run[:2] + (args.epochs or run[2],) + run[3:] for run in RUNS]
    if args.torch_side:
        index, folder, seed = args.torch_side
        return torch_side(runs[int(index)], folder, int(seed))
    readings = []
    print("| run | PyTorch, % | mean | loss | Headroom, % | mean | loss | difference |")
    print("|---|---|---|---|---|---|---|---|")
    for index, run in enumerate(runs):
        folder = args.mnist if run[1] == "lenet" else args.cifar
        if not folder or args.only not in run[0]:
            continue
        torch_command = [sys.executable, __file__, "--torch-side", str(index), folder]
        epochs = ["--epochs", str(args.epochs)] if args.epochs else []
        commands = [torch_command + [str(seed)] + epochs for seed in range(args.seeds)]
        commands += [
            headroom_command(args.train, run, folder, seed, args.extra.split())
            for seed in range(args.seeds)
        ]
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            rows = list(pool.map(output_of, commands))
        theirs, ours = rows[: args.seeds], rows[args.seeds :]

        def cells(rows):
            accuracies = [100 * row["test_accuracy"] for row in rows]
            loss = statistics.mean(row["train_loss"] for row in rows)
            mean = statistics.mean(accuracies)
            return f"{' '.join(f'{a:.2f}' for a in accuracies)} | {mean:.2f} | {loss:.4f}", mean

        (a, mean_a), (b, mean_b) = cells(theirs), cells(ours)
        print(f"| {run[0]} | {a} | {b} | {mean_b - mean_a:+.2f} |", flush=True)
        readings.append(dict(run=run[0], command=commands[-1], pytorch=theirs, headroom=ours))
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(readings, indent=1))
    return None


if __name__ == "__main__":
    sys.exit(main())
