#!/usr/bin/env python3
"""Writes tests/data/reference.json: losses, gradients, ten-step loss traces and then logits in
evaluation mode, of the four models and their other classifiers in double precision and of two under
f16 autocast, from weights, images and labels that both sides make from the formula in `noise`.

  python3 tests/pytorch/make_reference.py > tests/data/reference.json

The test that reads it is tests/nn/reference_test.cpp.
"""

import json
import sys

import numpy as np
import torch
from torch.nn import functional as F

import models

# batch, image side, classes; resnet50 keeps its large stem on small images, which a CPU trains in
# seconds
RUNS = {
    "lenet": (8, 28, 10),
    "vgg16": (4, 32, 10),
    "resnet18": (4, 32, 10),
    "resnet50": (4, 64, 16),
    "lenet-pool": (8, 28, 10),
    "lenet-conv": (8, 28, 10),
    "vgg16-linear": (4, 32, 10),
    "vgg16-conv": (4, 32, 10),
}
AMP_RUNS = ("lenet", "resnet18")
SAMPLES = 6
STEPS = 10
LR, MOMENTUM, DECAY = 2**-10, 0.9, 5e-4  # a rate that f32 holds exactly


def hash_of(name):
    """FNV-1a, 32 bits."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def words(name, count):
    """A 32-bit integer mix of (name, index)."""
    u = (
        np.uint64(hash_of(name)) + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B9)
    ) & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        u ^= u >> np.uint64(shift)
        u = (u * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return u ^ (u >> np.uint64(16))


def noise(name, shape):
    """Values in [-1, 1) in row-major order."""
    count = int(np.prod(shape)) if shape else 1
    return torch.from_numpy(words(name, count).astype(np.float64) / 2**31 - 1).reshape(shape)


def fill(model):
    with torch.no_grad():
        for name, p in model.named_parameters():
            v = noise(name, tuple(p.shape))
            if p.ndim >= 2:
                p.copy_(v * (3 / p[0].numel()) ** 0.5)
            elif name.endswith("weight"):
                p.copy_(1 + 0.1 * v)
            else:
                p.copy_(0.1 * v)


def run(name, amp=False):
    batch, side, classes = RUNS[name]
    dtype = torch.float32 if amp else torch.float64
    model = models.make(name, classes).to(dtype).train()
    fill(model)
    channels = models.IMAGE[name.partition("-")[0]][0]
    images = noise("images", (batch, channels, side, side)).to(dtype)

    def forward():
        with torch.autocast("cpu", dtype=torch.float16, enabled=amp):
            return model(images)

    labels = torch.from_numpy((words("labels", batch) % np.uint64(classes)).astype(np.int64))
    optimizer = torch.optim.SGD(
        models.decay_groups(model, DECAY), lr=LR, momentum=MOMENTUM, nesterov=True
    )
    out = dict(batch=batch, side=side, classes=classes, channels=channels, gradients={}, trace=[])
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = forward()
        loss = F.cross_entropy(logits.float() if amp else logits, labels)
        # A power of two, divided out again: small gradients survive f16, rounding stays as it is.
        scale = 1024.0 if amp else 1.0
        (loss * scale).backward()
        for p in model.parameters():
            p.grad /= scale
        if step == 0:
            out["logits"] = logits.detach().flatten()[:SAMPLES].tolist()
            for parameter, p in model.named_parameters():
                flat = p.grad.flatten()
                places = [int(w) % flat.numel() for w in words("samples." + parameter, SAMPLES)]
                out["gradients"][parameter] = dict(
                    norm=flat.norm().item(), samples=[flat[i].item() for i in places]
                )
        out["trace"].append(loss.item())
        optimizer.step()
    out["buffers"] = {
        k: v.double().norm().item() for k, v in model.named_buffers() if k.endswith(("mean", "var"))
    }
    model.eval()
    with torch.no_grad():
        out["eval_logits"] = forward().flatten()[:SAMPLES].tolist()
    return out


def main():
    torch.manual_seed(0)
    reference = dict(
        torch=torch.__version__,
        lr=LR,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        models={name: run(name) for name in RUNS},
        amp={name: run(name, amp=True) for name in AMP_RUNS},
    )
    json.dump(reference, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
