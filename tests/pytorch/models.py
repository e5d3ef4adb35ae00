"""The standard models in PyTorch, with the parameter names that Headroom uses, so that weights,
gradients and measurements compare. Used by the scripts of this folder."""

import torch
from torch import nn
from torch.nn import functional as F


def linear_classifier(width_in, widths, classes):
    layers = []
    for width in widths:
        layers += [nn.Linear(width_in, width), nn.ReLU(True)]
        width_in = width
    return nn.Sequential(*layers, nn.Linear(width_in, classes))


def conv_classifier(width_in, side, classes):
    width = min(2 * width_in, max(width_in, 512))
    kernel = 1 if side < 3 else 3
    return nn.Sequential(
        nn.Conv2d(width_in, width, kernel, padding=kernel // 2),
        nn.ReLU(True),
        nn.Conv2d(width, classes, 1),
    )


def logits_of(kind, classifier, features):
    """The three forms of a classifier on the last feature map."""
    if kind == "linear":
        return classifier(features.flatten(1))
    if kind == "pool":
        return classifier(mean_of(features))
    return mean_of(classifier(features))


def mean_of(maps):
    if maps.shape[2:] != (1, 1):
        maps = F.adaptive_avg_pool2d(maps, 1)
    return maps.flatten(1)


class LeNet(nn.Module):
    def __init__(self, channels=1, size=28, classes=10, classifier="linear"):
        super().__init__()
        side = size // 4
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(True),
            nn.MaxPool2d(2),
        )
        self.kind = classifier
        self.classifier = {
            "linear": lambda: linear_classifier(64 * side * side, (512,), classes),
            "pool": lambda: nn.Linear(64, classes),
            "conv": lambda: conv_classifier(64, side, classes),
        }[classifier]()

    def forward(self, x):
        return logits_of(self.kind, self.classifier, self.features(x))


class Vgg16(nn.Module):
    def __init__(self, size=32, classes=10, classifier="pool"):
        super().__init__()
        layers, width_in = [], 3
        for stage in ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)):
            for width in stage:
                layers += [
                    nn.Conv2d(width_in, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(True),
                ]
                width_in = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        side = size // 32
        self.kind = classifier
        self.classifier = {
            "linear": lambda: linear_classifier(512 * side * side, (4096, 4096), classes),
            "pool": lambda: nn.Linear(512, classes),
            "conv": lambda: conv_classifier(512, side, classes),
        }[classifier]()

    def forward(self, x):
        return logits_of(self.kind, self.classifier, self.features(x))


class ResidualBlock(nn.Module):
    def __init__(self, width_in, width, stride, bottleneck):
        super().__init__()
        width_out = width * 4 if bottleneck else width
        shapes = (
            [(width_in, width, 1, 1), (width, width, 3, stride), (width, width_out, 1, 1)]
            if bottleneck
            else [(width_in, width, 3, stride), (width, width, 3, 1)]
        )
        self.convs = nn.ModuleList(
            [nn.Conv2d(a, b, k, stride=s, padding=k // 2, bias=False) for a, b, k, s in shapes]
        )
        self.bns = nn.ModuleList([nn.BatchNorm2d(b) for _, b, _, _ in shapes])
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride > 1 or width_in != width_out:
            self.down = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(width_out),
            )

    def forward(self, x):
        shortcut = self.down(x) if self.down is not None else x
        for conv, norm in zip(self.convs[:-1], self.bns[:-1]):
            x = self.relu(norm(conv(x)))
        return self.relu(self.bns[-1](self.convs[-1](x)).add_(shortcut))


class ResNet(nn.Module):
    def __init__(self, depths, bottleneck, small_stem, classes):
        super().__init__()
        if small_stem:
            stem = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
        else:
            stem = [
                nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
                nn.BatchNorm2d(64),
                nn.ReLU(True),
                nn.MaxPool2d(3, stride=2, padding=1),
            ]
        self.stem = nn.Sequential(*stem)
        blocks, width_in = [], 64
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            for index in range(depth):
                blocks.append(
                    ResidualBlock(width_in, width, 2 if stage and not index else 1, bottleneck)
                )
                width_in = width * 4 if bottleneck else width
        self.blocks = nn.ModuleList(blocks)
        self.fc = nn.Linear(width_in, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def make(name, classes=None):
    """The model as comparisons run it: lenet and the CIFAR nets with ten classes, resnet50 with a
    thousand. "lenet-conv" is lenet with another classifier than its own."""
    name, _, classifier = name.partition("-")
    if name == "lenet":
        return LeNet(classes=classes or 10, classifier=classifier or "linear")
    if name == "vgg16":
        return Vgg16(classes=classes or 10, classifier=classifier or "pool")
    if name == "resnet18":
        return ResNet((2, 2, 2, 2), False, True, classes or 10)
    if name == "resnet50":
        return ResNet((3, 4, 6, 3), True, False, classes or 1000)
    raise ValueError(f"unknown model {name}")


IMAGE = {
    "lenet": (1, 28, 28),
    "vgg16": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "resnet50": (3, 224, 224),
}
CLASSES = {"lenet": 10, "vgg16": 10, "resnet18": 10, "resnet50": 1000}


def decay_groups(model, decay):
    """Weight decay for parameters of two or more dimensions only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [dict(params=matrices, weight_decay=decay), dict(params=vectors, weight_decay=0.0)]


def channels_last(t):
    return t.to(memory_format=torch.channels_last)
