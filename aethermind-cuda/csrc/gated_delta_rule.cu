// gated_delta_rule: a linear recurrence whose update is what its state did not predict (Yang et al. 2024).

#include "common/dependent_launch.cuh"
#include "common/recurrent_scan.cuh"

#define AETHER_GATED_DELTA_RULE(dtype) AETHER_RECURRENT_SCAN(gated_delta_rule, true, dtype)
AETHER_FOR_EACH_FLOAT(AETHER_GATED_DELTA_RULE)
