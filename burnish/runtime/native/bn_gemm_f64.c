/* bn_gemm.c in double precision. */
#include "bn_gemm.h"

#include "bn_real_f64.h"
#include "bn_gemm_packed.h"
#include "bn_gemm_thin.h"
#include "bn_gemm_blas.h"
#include "bn_gemm_entry.h"
