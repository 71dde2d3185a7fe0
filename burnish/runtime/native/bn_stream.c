/* Streaming products. See bn_stream.h. */
#include "bn_stream.h"

#include "bn_real_f32.h"
#include "bn_stream_body.h"
