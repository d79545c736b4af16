// Which instruction sets this processor has, asked at run time; and the state a computing thread needs.
//
// Loops are compiled once per set (see loops.h); `-march=native` is never used, so a module built on one
// machine runs on another.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define LATTICE_X86 1
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#define LATTICE_ARM 1
#include <arm_neon.h>
#include <sys/auxv.h>
#elif defined(__aarch64__)
#define LATTICE_ARM 1
#include <arm_neon.h>
#endif

namespace lattice {

enum class Isa { plain, neon, avx2, avx_vnni, avx512 };

constexpr Isa kAllIsas[] = {Isa::plain, Isa::neon, Isa::avx2, Isa::avx_vnni, Isa::avx512};  // the best comes last

inline const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512: return "AVX512-VNNI";
    case Isa::avx_vnni: return "AVX2-VNNI";
    case Isa::avx2: return "AVX2";
    case Isa::neon: return "NEON dot product";
    default: return "plain C++";
  }
}

// Whether the processor and the operating system (which must save the registers) know a set.
inline bool has_isa(Isa isa) {
#if LATTICE_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == Isa::avx2) return avx2;
  if (isa == Isa::avx_vnni) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 16);  // not every compiler knows its name
  }
  if (isa == Isa::avx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni");
  }
#elif LATTICE_ARM && defined(__linux__)
  if (isa == Isa::neon) return (getauxval(AT_HWCAP) & (1ul << 20)) != 0;  // HWCAP_ASIMDDP
#elif LATTICE_ARM
  if (isa == Isa::neon) return true;
#endif
  return isa == Isa::plain;
}

inline Isa best_isa() {
  Isa best = Isa::plain;
  for (Isa isa : kAllIsas) best = has_isa(isa) ? isa : best;
  return best;
}

// Denormal numbers become zero while an object of this class lives: a product with many of them is 14 times
// slower. The thread's own setting comes back at the end.
class FlushDenormals {
 public:
#if LATTICE_X86
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // FTZ and DAZ
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  FlushDenormals() {}
  ~FlushDenormals() {}
#endif
};

}  // namespace lattice
