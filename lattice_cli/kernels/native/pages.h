// The memory of one sequence: keys and values of all its attention layers in pages, and the fixed-size states of
// its recurrent layers.
//
//   page:    layer 0 | layer 1 | ...                 kTokens tokens of one sequence, all attention layers
//   layer:   head 0 | head 1 | ...                   key heads
//   head:    keys: kTokens / 64 tiles of D x 64 | values: kTokens x D          (PagedAttention in loops.h)
//
// A sequence grows in place: pages are added, never moved. Copies share pages, and who appends to a page that
// another sequence uses too gets a page of its own first ("copy on branch"). Sharing is counted by sequences:
// work in flight holds pages alive without counting.
//
// Two threads: sequences are changed by the one that builds the graph; memory is read and written by the one
// that runs it, in the order in which the graph was built.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "loops.h"

namespace lattice {

// Sizes of a model's state. Bytes of a recurrent layer: see delta.h.
struct StateShape {
  int64_t attention_layers = 0, heads = 0, D = 0;
  bool half = false;
  int64_t recurrent_layers = 0, recurrent_floats = 0;  // per layer

  int64_t head_bytes() const { return 2 * PagedAttention::kTokens * D * (half ? 2 : 4); }
  int64_t page_bytes() const { return attention_layers * heads * head_bytes(); }
  int64_t head_offset(int64_t layer, int64_t head) const { return (layer * heads + head) * head_bytes(); }
  int64_t state_bytes() const { return 4 * recurrent_layers * recurrent_floats; }
};

// Asks the system to back memory that nobody has touched yet with huge pages, where it has them: weights and keys
// are read once a token, and a walk through page tables for every 4 KiB costs as much as the reading.
inline void prefer_huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kHuge = 1 << 21;
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + kHuge - 1) & ~(kHuge - 1);
  const auto end = (reinterpret_cast<uintptr_t>(memory) + uintptr_t(bytes)) & ~(kHuge - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// A piece of memory on a cache line, and how many sequences use it.
class Piece {
 public:
  explicit Piece(int64_t bytes) : bytes_(bytes) {
    const size_t whole = size_t((bytes + 63) / 64 * 64);
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(whole >= (2u << 20) ? 1 << 21 : 64, whole ? whole : 64));
    if (memory_ == nullptr) throw std::bad_alloc();
    prefer_huge_pages(memory_, bytes);
    in_use().fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~Piece() {
    in_use().fetch_sub(bytes_, std::memory_order_relaxed);
    std::free(memory_);
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  uint8_t* data() const { return memory_; }
  int64_t bytes() const { return bytes_; }

  // Bytes of all pieces of this process.
  static std::atomic<int64_t>& in_use() {
    static std::atomic<int64_t> total{0};
    return total;
  }

  int users = 0;  // sequences; changed by the graph's thread only

 private:
  uint8_t* memory_;
  int64_t bytes_;
};

// A sequence's hold on a piece.
class Hold {
 public:
  Hold() = default;
  explicit Hold(std::shared_ptr<Piece> piece) : piece_(std::move(piece)) { count(1); }
  Hold(const Hold& other) : piece_(other.piece_) { count(1); }
  Hold(Hold&& other) noexcept : piece_(std::move(other.piece_)) {}
  Hold& operator=(Hold other) {
    std::swap(piece_, other.piece_);
    return *this;
  }
  ~Hold() { count(-1); }

  const std::shared_ptr<Piece>& piece() const { return piece_; }
  bool shared() const { return piece_ && piece_->users > 1; }

 private:
  void count(int step) {
    if (piece_) piece_->users += step;
  }
  std::shared_ptr<Piece> piece_;
};

// One call's share of a sequence: what the running thread needs to know. Holds pages alive, counts nothing.
struct Extent {
  std::vector<std::shared_ptr<Piece>> pages;
  std::vector<const uint8_t*> places;       // of the pages
  std::shared_ptr<Piece> page_before;       // copy it to the page at `position` first; null: nothing to copy
  std::shared_ptr<Piece> state, state_before;  // new and old recurrent states; equal: updated in place
  bool fresh_state = false;                 // `state` begins as zeros
  int64_t position = 0, count = 0;          // tokens [position, position + count) are computed

  // To be run before anything reads or writes: brings branches apart.
  void begin() const {
    if (page_before) {
      uint8_t* page = pages[size_t(position / PagedAttention::kTokens)]->data();
      std::memcpy(page, page_before->data(), size_t(page_before->bytes()));
    }
    if (fresh_state) {
      std::memset(state->data(), 0, size_t(state->bytes()));
    } else if (state && state != state_before) {
      std::memcpy(state->data(), state_before->data(), size_t(state->bytes()));
    }
  }
};

class Sequence {
 public:
  explicit Sequence(StateShape shape) : shape_(shape) {}

  int64_t tokens() const { return tokens_; }

  // Room for `count` tokens more, which the call that gets the extent computes.
  Extent append(int64_t count) {
    constexpr int64_t kTokens = PagedAttention::kTokens;
    Extent extent;
    extent.position = tokens_;
    extent.count = count;
    if (shape_.attention_layers > 0) {
      const int64_t filled = tokens_ / kTokens;
      if (count > 0 && tokens_ % kTokens != 0 && pages_[size_t(filled)].shared()) {
        extent.page_before = pages_[size_t(filled)].piece();
        pages_[size_t(filled)] = new_piece(shape_.page_bytes());
      }
      while (int64_t(pages_.size()) * kTokens < tokens_ + count) pages_.push_back(new_piece(shape_.page_bytes()));
      for (const Hold& page : pages_) {
        extent.pages.push_back(page.piece());
        extent.places.push_back(page.piece()->data());
      }
    }
    if (shape_.recurrent_layers > 0 && count > 0) {
      extent.state_before = state_.piece();
      extent.fresh_state = !state_.piece();
      if (!state_.piece() || state_.shared()) state_ = new_piece(shape_.state_bytes());
      extent.state = state_.piece();
    }
    tokens_ += count;
    return extent;
  }

  // Forgets all but the first `tokens`. Only for sequences without recurrent layers.
  void trim(int64_t tokens) {
    tokens_ = tokens;
    pages_.resize(size_t((tokens + PagedAttention::kTokens - 1) / PagedAttention::kTokens));
  }

  // All its memory: pages in order, then the recurrent states. Shared with the sequences that use it too.
  std::vector<std::shared_ptr<Piece>> pieces() const {
    std::vector<std::shared_ptr<Piece>> found;
    for (const Hold& page : pages_) found.push_back(page.piece());
    if (state_.piece()) found.push_back(state_.piece());
    return found;
  }

  // A sequence of `tokens` with copies of what the pieces of one like it held. Throws where sizes do not fit.
  static Sequence restored(StateShape shape, int64_t tokens, const std::vector<std::pair<const void*, size_t>>& memory) {
    constexpr int64_t kTokens = PagedAttention::kTokens;
    Sequence made(shape);
    made.tokens_ = tokens;
    const size_t pages = shape.attention_layers > 0 ? size_t((tokens + kTokens - 1) / kTokens) : 0;
    const bool recurrent = shape.recurrent_layers > 0 && tokens > 0;
    if (tokens < 0 || memory.size() != pages + recurrent) throw std::invalid_argument("sequence: other pieces");
    for (size_t index = 0; index < memory.size(); ++index) {
      const int64_t bytes = index < pages ? shape.page_bytes() : shape.state_bytes();
      if (int64_t(memory[index].second) != bytes) throw std::invalid_argument("sequence: a piece of another size");
      Hold hold = new_piece(bytes);
      std::memcpy(hold.piece()->data(), memory[index].first, size_t(bytes));
      if (index < pages) made.pages_.push_back(hold); else made.state_ = hold;
    }
    return made;
  }

  bool can_trim() const { return shape_.recurrent_layers == 0; }
  int64_t bytes() const { return int64_t(pages_.size()) * shape_.page_bytes() + (state_.piece() ? shape_.state_bytes() : 0); }

 private:
  static Hold new_piece(int64_t bytes) { return Hold(std::make_shared<Piece>(bytes)); }

  StateShape shape_;
  std::vector<Hold> pages_;
  Hold state_;
  int64_t tokens_ = 0;
};

}  // namespace lattice
