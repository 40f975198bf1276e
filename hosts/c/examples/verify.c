/* Verify a bundle on this machine: verify BUNDLE. Exits with 0 unless the verdict is FAIL. */
#include <stdio.h>

#include "ortolan.h"

int main(int argc, char **argv) {
  static const char *const verdicts[] = {"PASS", "AMBIGUOUS", "FAIL"};
  ortolan_error error;
  ortolan_report report;
  if (argc != 2) {
    fprintf(stderr, "usage: %s BUNDLE\n", argv[0]);
    return 2;
  }
  ortolan_model *model = ortolan_open(argv[1], NULL, &error);
  bool ok = model != NULL && ortolan_verify(model, &report, &error);
  if (!ok) {
    ortolan_close(model);
    fprintf(stderr, "%s: %s\n", ortolan_code_name(error.code), error.message);
    return 2;
  }
  printf("%s  mean KL %.3g (at most %.3g), largest %.3g, logits differ by at most %.3g, "
         "%.1f %% same tokens, %zu near ties, %zu positions\n",
         verdicts[report.verdict], report.mean_kl, report.mean_kl_limit, report.max_kl,
         report.max_abs_delta, 100 * report.top1_agreement, report.near_ties, report.positions);
  if (report.changed_file != NULL) printf("%s differs from the export\n", report.changed_file);
  ortolan_close(model);
  return report.verdict == ORTOLAN_FAIL;
}
