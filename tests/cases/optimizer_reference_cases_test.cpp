// O03, O06, O07, O10, O11 and O46 at once: every rule, over several groups, dtypes, layouts and
// ranks, with clipping, a loss scaler, accumulation, gradients that are missing and windows that
// overflow, against the rules written out for plain numbers.
#include <cmath>
#include <memory>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "optim/optimizer.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

enum class Rule : uint8_t { sgd, sgd_nesterov, adam, adamw };
constexpr double kLr = 0.0625, kMomentum = 0.9, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8;
constexpr double kClipNorm = 2;

// One parameter in double.
struct Reference {
  Values w, first, second;
  int64_t steps = 0;

  void step(Rule rule, const Values& gradient, double scale, double lr, double decay) {
    first.resize(w.size());
    second.resize(w.size());
    ++steps;
    const auto t = static_cast<double>(steps);
    for (size_t i = 0; i < w.size(); ++i) {
      double g = gradient[i] * scale;
      if (rule == Rule::adamw) {
        w[i] *= 1 - lr * decay;
      } else {
        g += decay * w[i];
      }
      if (rule == Rule::sgd || rule == Rule::sgd_nesterov) {
        first[i] = steps == 1 ? g : kMomentum * first[i] + g;
        w[i] -= lr * (rule == Rule::sgd ? first[i] : g + kMomentum * first[i]);
        continue;
      }
      first[i] = kBeta1 * first[i] + (1 - kBeta1) * g;
      second[i] = kBeta2 * second[i] + (1 - kBeta2) * g * g;
      const double m = first[i] / (1 - std::pow(kBeta1, t));
      const double v = second[i] / (1 - std::pow(kBeta2, t));
      w[i] -= lr * m / (std::sqrt(v) + kEps);
    }
  }
};

std::unique_ptr<Optimizer> make_optimizer(Rule rule, const std::vector<ParameterGroup>& groups) {
  if (rule == Rule::adam || rule == Rule::adamw) {
    AdamOptions options;
    options.lr = kLr;
    options.decoupled = rule == Rule::adamw;
    return std::make_unique<Adam>(groups, options);
  }
  SgdOptions options;
  options.lr = kLr;
  options.momentum = kMomentum;
  options.nesterov = rule == Rule::sgd_nesterov;
  return std::make_unique<Sgd>(groups, options);
}

class OptimizerReference : public CaseTest {
 protected:
  void run(Rule rule, DType dtype) const;
};
HEADROOM_CASES(OptimizerReference);

void OptimizerReference::run(Rule rule, DType dtype) const {
  constexpr size_t kParameters = 5;
  const Shape shapes[kParameters] = {{3, 2, 3, 3}, {5, 7}, {1025}, {}, {0, 4}};
  std::vector<Tensor> w;
  std::vector<Reference> reference;
  for (size_t p = 0; p < kParameters; ++p) {
    const Values start = testing_kernels::test_values(numel_of(shapes[p]), 1.5, 3, p + 1);
    w.push_back(leaf(start, shapes[p], dtype,
                     p == 0 ? MemoryFormat::channels_last : MemoryFormat::contiguous));
    reference.emplace_back().w = values_of(w[p]);
  }
  const double decay[kParameters] = {0.25, 0.25, 0, 0, 0.25};
  const double factor[kParameters] = {1, 1, 0.5, 0.5, 1};
  const auto optimizer =
      make_optimizer(rule, {{.parameters = {w[0], w[1], w[4]}, .weight_decay = 0.25},
                            {.parameters = {w[2], w[3]}, .lr_factor = 0.5}});
  GradScaler scaler({.init_scale = 1024}, device());
  // For each parameter: '+' a gradient from two micro-batches, 'x' one that overflows in the
  // second,
  // '-' none.
  const char* const steps[] = {"++-++", "+++++", "+x+++", "-+++-", "+++x+", "+-+++", "+++++"};
  int64_t applied = 0;
  uint64_t seed = 100;
  for (const char* const step : steps) {
    std::vector<Values> sum(kParameters);
    bool overflow = false;
    for (size_t p = 0; p < kParameters; ++p) {
      sum[p].assign(reference[p].w.size(), 0);
      if (step[p] == '-') continue;
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        Values g = testing_kernels::test_values(numel_of(shapes[p]), -1, 1, ++seed);
        // Whole 256ths, which neither scale nor sum rounds.
        for (double& v : g) v = std::round(v * 256) / 256;
        for (size_t i = 0; i < g.size(); ++i) sum[p][i] += g[i];
        if (step[p] == 'x' && micro_batch == 1) {
          g.back() = INFINITY;
          overflow = true;
        }
        const Tensor weights = tensor(g, shapes[p], dtype);
        backward(mul(w[p], weights), mul(scaler.scale_tensor(), 0.5));
      }
    }
    double squares = 0;
    for (const Values& values : sum) {
      for (const double v : values) squares += v * v / 4;
    }
    optimizer->step({.scaler = &scaler, .clip_norm = kClipNorm});
    optimizer->zero_grad();
    EXPECT_EQ(optimizer->last_step_skipped(), overflow);
    if (overflow) continue;
    ++applied;
    const double norm = std::sqrt(squares);
    EXPECT_NEAR(optimizer->last_grad_norm(), norm, 1e-6 * norm);
    for (size_t p = 0; p < kParameters; ++p) {
      if (step[p] == '-') continue;
      reference[p].step(rule, sum[p], 0.5 * std::min(1.0, kClipNorm / norm), kLr * factor[p],
                        decay[p]);
    }
  }
  EXPECT_EQ(optimizer->applied_steps(), applied);
  EXPECT_EQ(scaler.current_scale(), 256);
  for (size_t p = 0; p < kParameters; ++p) {
    const Values values = values_of(w[p]);
    ASSERT_EQ(values.size(), reference[p].w.size());
    // Seven steps, each rounded to the parameter's type at 1 to 3. (Decay is larger than any
    // clipped gradient, so that no sum of the two cancels, whose size Adam would make 1 again.)
    const double unit = testing_kernels::unit_of(dtype == DType::f64 ? DType::f32 : dtype);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], reference[p].w[i], 40 * unit)
          << static_cast<int>(rule) << " " << dtype << " parameter " << p << " at " << i;
    }
  }
}

TEST_P(OptimizerReference, O46_EveryRuleFollowsItsFormulaInF32) {
  for (const Rule rule : {Rule::sgd, Rule::sgd_nesterov, Rule::adam, Rule::adamw}) {
    run(rule, DType::f32);
  }
}

TEST_P(OptimizerReference, O46_EveryRuleFollowsItsFormulaOnHalfParameters) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Rule rule : {Rule::sgd, Rule::sgd_nesterov, Rule::adam, Rule::adamw}) {
      run(rule, dtype);
    }
  }
}

TEST_P(OptimizerReference, O46_EveryRuleFollowsItsFormulaInF64) {
  if (device().is_cuda()) GTEST_SKIP() << "f64 exists on the CPU only";
  for (const Rule rule : {Rule::sgd, Rule::sgd_nesterov, Rule::adam, Rule::adamw}) {
    run(rule, DType::f64);
  }
}

}  // namespace
}  // namespace headroom::cases
