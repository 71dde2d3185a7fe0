/* The register tile and packing in double precision. See bn_tile.h. */
#include "bn_tile.h"

#include "bn_real_f64.h"
#include "bn_tile_body.h"
