/* Parameters of the *_body.h files for single precision. Meant to be included again and again. */
#undef REAL
#undef LANES
#undef DTYPE
#undef DTYPE_HAS_NARROW
#undef MASK_BITS
#undef TYPE
#define REAL float
#define LANES BN_LANES_F32
#define DTYPE BN_F32
#define DTYPE_HAS_NARROW 1 /* whether narrower dtypes are widened to this one */
#define MASK_BITS 32
#define TYPE(name) name##_f32
