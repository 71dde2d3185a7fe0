/* The register tile and packing for both precisions. See bn_tile.h. */
#include "bn_tile.h"

#include "bn_real_f32.h"
#include "bn_tile_body.h"

#include "bn_real_f64.h"
#include "bn_tile_body.h"
