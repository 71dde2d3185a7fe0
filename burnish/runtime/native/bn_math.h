#ifndef BN_MATH_H
#define BN_MATH_H
#include <stdint.h>
#define BN_FN static inline __attribute__((always_inline))
BN_FN float bn_as_f32(uint32_t bits){union{uint32_t u;float f;}c={bits};return c.f;}
BN_FN uint32_t bn_as_u32(float x){union{float f;uint32_t u;}c={x};return c.u;}
BN_FN float bn_bf16_to_f32(uint16_t x){return bn_as_f32((uint32_t)x<<16);}
BN_FN uint16_t bn_f32_to_bf16(float x){uint32_t u=bn_as_u32(x);uint32_t r=(u+0x7fff+((u>>16)&1))>>16;return (uint16_t)(x!=x?((u>>16)|0x40):r);}
BN_FN float bn_f16_to_f32(uint16_t h)
{
    uint32_t magnitude = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = normal + (112u << 23);
    float tiny = bn_as_f32(0x3f000000u + magnitude) - 0.5f;
    uint32_t bits = magnitude >= 0x7c00u ? special : normal;
    bits = magnitude < 0x400u ? bn_as_u32(tiny) : bits;
    return bn_as_f32(bits | sign);
}
BN_FN uint16_t bn_f32_to_f16(float x)
{
    uint32_t u = bn_as_u32(x), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
    uint32_t normal = (m - (112u << 23) + 0xfffu + ((m >> 13) & 1u)) >> 13;
    uint32_t tiny = bn_as_u32(bn_as_f32(m) + 0.5f) - 0x3f000000u;
    uint32_t r = m < 0x38800000u ? tiny : normal;
    r = m >= 0x47800000u ? 0x7c00u : r;
    r = m > 0x7f800000u ? (0x7e00u | (m >> 13 & 0x3ff)) : r;
    return (uint16_t)(r | sign);
}
#endif
