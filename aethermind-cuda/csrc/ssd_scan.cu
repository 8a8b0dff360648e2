// ssd_scan: the linear recurrence of Mamba 2 (Dao and Gu 2024).

#include "common/dependent_launch.cuh"
#include "common/recurrent_scan.cuh"

#define AETHER_SSD_SCAN(dtype) AETHER_RECURRENT_SCAN(ssd_scan, false, dtype)
AETHER_FOR_EACH_FLOAT(AETHER_SSD_SCAN)
