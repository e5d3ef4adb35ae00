// O49 and O50: averages and counters of losses, and labels that name no class. (O49 through the
// trainer is in training_cases_test.cpp.)
#include <cmath>
#include <string>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/cases/case_test.h"
#include "train/meters.h"

namespace headroom::cases {
namespace {

class LossCases : public CaseTest {
 protected:
  LossMeter open_meter() const {
    LossMeter meter;
    meter.open(device());
    return meter;
  }
  Tensor sum_of(double mean, int64_t count) const {
    return scalar(mean * static_cast<double>(count), {DType::f32, device()});
  }
};
HEADROOM_CASES(LossCases);

TEST_P(LossCases, O49_EpochAveragesWeighSamplesAndCountersStayExact) {
  LossMeter batches = open_meter();
  EXPECT_TRUE(std::isnan(batches.mean()));
  batches.add(sum_of(0.7, 256), 256, true);
  batches.add(sum_of(0.8, 256), 256, true);
  batches.add(sum_of(0.9, 10), 10, true);
  EXPECT_NEAR(batches.mean(), 0.7528736, 1e-7);
  EXPECT_NEAR(batches.last_window_mean(), 0.9, 1e-6);

  LossMeter counter = open_meter();
  counter.restore(0, 16'777'216);
  counter.add(sum_of(0, 1), 1, true);
  EXPECT_EQ(counter.count(), 16'777'217);

  // In windows of one, and as one window.
  for (const bool windows : {true, false}) {
    LossMeter many = open_meter();
    const Tensor loss = sum_of(2.3, 1);
    for (int i = 0; i < 200'000; ++i) many.add(loss, 1, windows || i == 0);
    EXPECT_NEAR(many.mean(), 2.3, 1e-6);
    EXPECT_NEAR(many.last_window_mean(), 2.3, 1e-6);
  }
}

TEST_P(LossCases, O49_CorrectAnswersAreCountedExactly) {
  const Tensor logits = tensor({0, 1, 1, 0}, {2, 2});
  Tensor count = full({}, 16'777'216, {DType::i64, device()});
  count_correct(logits, labels({1, 1}), count);
  EXPECT_EQ(count.to_vector<int64_t>()[0], 16'777'217);
}

TEST_P(LossCases, O50_ALabelEqualToTheClassCount) {
  struct BadLabels {
    std::vector<int64_t> labels;
    std::string row, label;
  };
  const BadLabels bads[] = {{{3, 10, 2}, "row 1", "label 10"},
                            {{-1, 0, 2}, "row 0", "label -1"},
                            {{3, -100, int64_t{1} << 40}, "row 2", "label 1099511627776"}};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const BadLabels& bad : bads) {
      for (const double smoothing : {0.0, 0.1}) {
        const Tensor eye = tensor({2, 0, 0, 2}, {2, 2});
        Tensor logits = zeros({3, 10}, {dtype, device()});
        logits.set_requires_grad(true);
        // On CUDA the bad label is found on the device and told at the next wait, which may be that
        // for something else.
        const std::string said = message_of([&] {
          const Tensor loss =
              cross_entropy(logits, labels(bad.labels), {.label_smoothing = smoothing});
          backward(loss);
          values_of(matmul(eye, eye));
        });
        for (const std::string& part :
             {std::string("cross_entropy"), bad.row, bad.label, std::string("10 classes")}) {
          EXPECT_NE(said.find(part), std::string::npos) << said << " lacks " << part;
        }
        EXPECT_EQ(said.find("matmul"), std::string::npos) << said;
        // The process goes on.
        EXPECT_EQ(values_of(matmul(eye, eye)), (Values{4, 0, 0, 4}));
        logits.set_grad({});
        const Tensor loss =
            cross_entropy(logits, labels({3, 9, 2}), {.label_smoothing = smoothing});
        expect_values(loss, {2.3025851});
        backward(loss);
        const double gradient = (1 - smoothing) / 30;  // of a class that is not the label
        EXPECT_NEAR(values_of(logits.grad())[0], gradient, gradient * 0x1p-8) << dtype;
      }
    }
  }
}

}  // namespace
}  // namespace headroom::cases
