/* Parameters of the *_body.h files for double precision. Meant to be included again and again. */
#undef REAL
#undef LANES
#undef DTYPE
#undef DTYPE_HAS_NARROW
#undef MASK_BITS
#undef TYPE
#define REAL double
#define LANES BN_LANES_F64
#define DTYPE BN_F64
#define DTYPE_HAS_NARROW 0 /* whether narrower dtypes are widened to this one */
#define MASK_BITS 64
#define TYPE(name) name##_f64
