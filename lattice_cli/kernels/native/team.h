// A team of threads that shares the chunks of one job: the caller and its helpers.
//
// What is special: the caller never waits for a helper that has not joined. A helper joins an open job by
// raising `joined` in the state word; when the chunks are used up the caller closes the job and waits only for
// those who joined, each of whom holds at most one chunk. So a machine busy with other work costs nothing but
// the help.
//
//   state (64 bits):  number of the job (32) | ... | open (bit 16) | joined (bits 0-15)
//
// A helper without work spins for 100 us, because the next job of a forward pass is near, and then sleeps
// (std::atomic::wait, a futex on Linux). The team is never destroyed: a joinable thread at exit would abort
// the process, and a helper asleep harms nobody.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include "isa.h"

namespace lattice {

class Team {
 public:
  // `helpers` threads beside the caller, started at once. Make it with `new` and keep it for ever.
  explicit Team(int helpers) : limit_(uint32_t(helpers)) {
    for (int i = 0; i < helpers; ++i) {
      std::thread([this, i] { help(uint32_t(i)); }).detach();
    }
    size_ = helpers;
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // How many threads work from now on, the caller included; at least one. Any thread.
  void resize(int threads) {
    const int helpers = threads < 1 ? 0 : threads - 1 > size_ ? size_ : threads - 1;
    if (limit_.exchange(uint32_t(helpers)) != uint32_t(helpers)) limit_.notify_all();
  }

  int threads() const { return int(limit_.load(std::memory_order_relaxed)) + 1; }

  // Calls work(chunk) for every chunk in [0, chunks), in any order, on any of the threads; returns when all
  // are done. `work` must not throw. A second caller at the same time works alone.
  template <class Work>
  void run(int64_t chunks, const Work& work) {
    const FlushDenormals flush;
    if (chunks <= 0) return;
    std::unique_lock<std::mutex> alone(busy_, std::defer_lock);
    if (chunks == 1 || threads() == 1 || !alone.try_lock()) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk) work(chunk);
      return;
    }
    work_ = &work;
    call_ = [](const void* w, int64_t chunk) { (*static_cast<const Work*>(w))(chunk); };
    chunks_ = chunks;
    next_.store(0, std::memory_order_relaxed);
    const uint64_t number = (state_.load(std::memory_order_relaxed) >> 32) + 1;
    state_.store(number << 32 | kOpen, std::memory_order_release);
    bell_.store(uint32_t(number), std::memory_order_seq_cst);
    bell_.notify_all();
    take_chunks();
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    while (state_.load(std::memory_order_acquire) & kJoined) pause();
  }

 private:
  static constexpr uint64_t kOpen = 1ull << 16, kJoined = 0xffff;

  static void pause() {
#if LATTICE_X86
    _mm_pause();
#elif LATTICE_ARM
    __asm__ __volatile__("yield");
#endif
  }

  void take_chunks() {
    for (int64_t chunk; (chunk = next_.fetch_add(1, std::memory_order_relaxed)) < chunks_;) call_(work_, chunk);
  }

  // True when the caller's thread count has joined the open job that is not number `last`.
  bool join(uint32_t& last) {
    uint64_t state = state_.load(std::memory_order_acquire);
    while ((state & kOpen) && uint32_t(state >> 32) != last) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
        last = uint32_t(state >> 32);
        return true;
      }
    }
    return false;
  }

  void help(uint32_t index) {
    const FlushDenormals flush;
    uint32_t last = 0, looks = 0;
    auto idle_since = std::chrono::steady_clock::now();
    for (;;) {
      const uint32_t limit = limit_.load(std::memory_order_acquire);
      if (index >= limit) {
        limit_.wait(limit);
        continue;
      }
      const uint32_t rung = bell_.load(std::memory_order_seq_cst);
      if (join(last)) {
        take_chunks();
        state_.fetch_sub(1, std::memory_order_release);
        idle_since = std::chrono::steady_clock::now();
        continue;
      }
      pause();
      if (++looks % 64 == 0 && std::chrono::steady_clock::now() - idle_since > std::chrono::microseconds(100)) {
        bell_.wait(rung);
        idle_since = std::chrono::steady_clock::now();
      }
    }
  }

  std::mutex busy_;
  int size_ = 0;
  alignas(64) std::atomic<uint32_t> limit_;
  alignas(64) std::atomic<uint32_t> bell_{0};
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  // Written by the caller while no job is open and none has joined; read by those who joined.
  const void* work_ = nullptr;
  void (*call_)(const void*, int64_t) = nullptr;
  int64_t chunks_ = 0;
};

}  // namespace lattice
