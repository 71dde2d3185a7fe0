/* Streaming products in double precision. See bn_stream.h. */
#include "bn_stream.h"

#include "bn_real_f64.h"
#include "bn_stream_body.h"
