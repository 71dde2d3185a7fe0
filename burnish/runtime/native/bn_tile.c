/* The register tile and packing. See bn_tile.h. */
#include "bn_tile.h"

#include "bn_real_f32.h"
#include "bn_tile_body.h"
