// References of convolution, pooling, batch normalisation and losses.
#include <cmath>
#include <limits>

#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops::reference {
namespace {

double at(const Array& x, int64_t n, int64_t c, int64_t h, int64_t w) {
  const int64_t flat = ((n * x.shape[1] + c) * x.shape[2] + h) * x.shape[3] + w;
  return x.values[static_cast<size_t>(flat)];
}

// Windows along one axis, counted one by one. With ceil_mode a window is added while the one before
// it leaves some of the padded input uncovered and its own start lies inside the input or its left
// padding.
int64_t windows(int64_t size, const Pool2dOptions& options, size_t axis) {
  const int64_t kernel = options.kernel[axis], padding = options.padding[axis];
  const int64_t stride = options.stride[axis] > 0 ? options.stride[axis] : kernel;
  const int64_t reach = options.dilation[axis] * (kernel - 1) + 1, room = size + 2 * padding;
  int64_t count = 1;
  while (true) {
    const int64_t start = count * stride;
    const bool fits = start + reach <= room;
    const bool uncovered = start - stride + reach < room;
    if (!fits && !(options.ceil_mode && uncovered && start < size + padding)) return count;
    ++count;
  }
}

// Calls visit(place in y, n, c, first row of the window, first column of the window).
template <class Visit>
Array pooled(const Array& x, const Pool2dOptions& options, const Visit& visit) {
  const Shape shape{x.shape[0], x.shape[1], windows(x.shape[2], options, 0),
                    windows(x.shape[3], options, 1)};
  Array out = filled(shape, 0);
  const auto stride = [&](size_t i) {
    return options.stride[i] > 0 ? options.stride[i] : options.kernel[i];
  };
  size_t place = 0;
  for (int64_t n = 0; n < shape[0]; ++n) {
    for (int64_t c = 0; c < shape[1]; ++c) {
      for (int64_t p = 0; p < shape[2]; ++p) {
        for (int64_t q = 0; q < shape[3]; ++q, ++place) {
          out.values[place] =
              visit(n, c, p * stride(0) - options.padding[0], q * stride(1) - options.padding[1]);
        }
      }
    }
  }
  return out;
}

bool inside(const Array& x, int64_t h, int64_t w) {
  return h >= 0 && h < x.shape[2] && w >= 0 && w < x.shape[3];
}

}  // namespace

Array conv2d(const Array& x, const Array& w, const Array* bias, const Conv2dOptions& options) {
  const auto size = [&](int axis) {
    const size_t i = static_cast<size_t>(axis - 2);
    const int64_t reach = options.dilation[i] * (w.shape[axis] - 1) + 1;
    return (x.shape[axis] + 2 * options.padding[i] - reach) / options.stride[i] + 1;
  };
  const int64_t outputs = w.shape[0], depth = w.shape[1];
  Array y = filled({x.shape[0], outputs, size(2), size(3)}, 0);
  size_t place = 0;
  for (int64_t n = 0; n < y.shape[0]; ++n) {
    for (int64_t k = 0; k < outputs; ++k) {
      const int64_t first = k / (outputs / options.groups) * depth;
      for (int64_t p = 0; p < y.shape[2]; ++p) {
        for (int64_t q = 0; q < y.shape[3]; ++q, ++place) {
          double total = bias ? bias->values[static_cast<size_t>(k)] : 0;
          for (int64_t r = 0; r < w.shape[2]; ++r) {
            const int64_t h = p * options.stride[0] - options.padding[0] + r * options.dilation[0];
            for (int64_t s = 0; s < w.shape[3]; ++s) {
              const int64_t v =
                  q * options.stride[1] - options.padding[1] + s * options.dilation[1];
              if (!inside(x, h, v)) continue;
              for (int64_t c = 0; c < depth; ++c)
                total += at(x, n, first + c, h, v) * at(w, k, c, r, s);
            }
          }
          y.values[place] = total;
        }
      }
    }
  }
  return y;
}

Array max_pool2d(const Array& x, const Pool2dOptions& options) {
  return pooled(x, options, [&](int64_t n, int64_t c, int64_t top, int64_t left) {
    double best = -std::numeric_limits<double>::infinity();
    for (int64_t r = 0; r < options.kernel[0]; ++r) {
      for (int64_t s = 0; s < options.kernel[1]; ++s) {
        const int64_t h = top + r * options.dilation[0], w = left + s * options.dilation[1];
        if (!inside(x, h, w)) continue;
        const double value = at(x, n, c, h, w);
        if (value > best || std::isnan(value)) best = value;
      }
    }
    return best;
  });
}

Array avg_pool2d(const Array& x, const Pool2dOptions& options) {
  return pooled(x, options, [&](int64_t n, int64_t c, int64_t top, int64_t left) {
    double total = 0;
    int64_t real = 0, padded = 0;
    for (int64_t h = top; h < top + options.kernel[0]; ++h) {
      for (int64_t w = left; w < left + options.kernel[1]; ++w) {
        if (h < x.shape[2] + options.padding[0] && w < x.shape[3] + options.padding[1]) ++padded;
        if (!inside(x, h, w)) continue;
        ++real;
        total += at(x, n, c, h, w);
      }
    }
    return total / static_cast<double>(options.count_padding ? padded : real);
  });
}

Arrays batch_norm(const Array& x, const NormInputs& with, const BatchNormOptions& options) {
  const int64_t channels = x.shape[1];
  const int64_t area = x.shape.rank() == 4 ? x.shape[2] * x.shape[3] : 1;
  const double count = static_cast<double>(x.shape[0] * area);
  const auto channel_of = [&](size_t i) {
    return static_cast<size_t>(static_cast<int64_t>(i) / area % channels);
  };
  Array mean = filled({channels}, 0), var = filled({channels}, 0);
  if (options.training) {
    for (size_t i = 0; i < x.values.size(); ++i) mean.values[channel_of(i)] += x.values[i] / count;
    for (size_t i = 0; i < x.values.size(); ++i) {
      const double away = x.values[i] - mean.values[channel_of(i)];
      var.values[channel_of(i)] += away * away / count;
    }
  } else {
    mean = *with.running_mean;
    var = *with.running_var;
  }
  Array y = x;
  for (size_t i = 0; i < x.values.size(); ++i) {
    const size_t c = channel_of(i);
    double value = (x.values[i] - mean.values[c]) / std::sqrt(var.values[c] + options.eps);
    if (with.gamma) value *= with.gamma->values[c];
    if (with.beta) value += with.beta->values[c];
    if (with.residual) value += with.residual->values[i];
    y.values[i] = options.relu && value < 0 ? 0 : value;
  }
  if (!with.running_mean) return {y};
  Array running_mean = *with.running_mean, running_var = *with.running_var;
  if (options.training) {
    for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
      const double unbiased = var.values[c] * count / (count - 1);
      running_mean.values[c] += options.momentum * (mean.values[c] - running_mean.values[c]);
      running_var.values[c] += options.momentum * (unbiased - running_var.values[c]);
    }
  }
  return {y, running_mean, running_var};
}

Array softmax(const Array& x, int axis, bool logarithm) {
  if (x.shape.rank() == 0) return filled({}, logarithm ? 0 : 1);
  const Array largest = max_along(x, axis, true)[0];
  const Array shifted = zip(x, largest, [](double a, double b) { return a - b; });
  const Array powers = map(shifted, [](double v) { return std::exp(v); });
  const Array totals = sum(powers, {axis}, true, false);
  if (logarithm) return zip(shifted, totals, [](double a, double b) { return a - std::log(b); });
  return zip(powers, totals, [](double a, double b) { return a / b; });
}

Array cross_entropy(const Array& logits, const Array& labels, const CrossEntropyOptions& options) {
  const Array log_p = softmax(logits, 1, true);
  const size_t classes = static_cast<size_t>(logits.shape[1]);
  double total = 0, counted = 0;
  for (size_t row = 0; row < labels.values.size(); ++row) {
    const int64_t label = static_cast<int64_t>(labels.values[row]);
    if (label == options.ignored_label) continue;
    double all = 0;
    for (size_t c = 0; c < classes; ++c) all -= log_p.values[row * classes + c];
    const double own = -log_p.values[row * classes + static_cast<size_t>(label)];
    const double s = options.label_smoothing;
    total += (1 - s) * own + s * all / static_cast<double>(classes);
    counted += 1;
  }
  return filled({}, options.reduction == Reduction::mean ? total / counted : total);
}

}  // namespace headroom::testing_ops::reference
