// Rows sorted by group, for products in which every group of rows has a weight of its own (the experts of a mixture),
// and the division of such a product among workers.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// A stable counting sort. Every worker sorts for itself, which takes no longer than waiting for another one. Rows whose
// group is out of range are skipped.
class SortedRows {
 public:
  // `groups` [num_rows] is the group of each row, 0 … num_groups - 1. `scratch` has bytes(num_rows, num_groups) bytes.
  SortedRows(const int32_t* groups, int64_t num_rows, int64_t num_groups, void* scratch)
      : num_rows_(num_rows), num_groups_(num_groups), begins_(static_cast<int32_t*>(scratch)) {
    // Counts are placed two groups further on: their sums are then the begins of the groups before, and placing the
    // rows advances these to the begins of the groups themselves.
    int32_t* counts = begins_ + 2;
    std::memset(begins_, 0, static_cast<size_t>(num_groups + 2) * sizeof(int32_t));
    const auto is_valid = [num_groups](int32_t group) { return static_cast<uint32_t>(group) < num_groups; };
    for (int64_t row = 0; row < num_rows; ++row) {
      if (is_valid(groups[row])) ++counts[groups[row]];
    }
    for (int64_t group = 1; group < num_groups; ++group) counts[group] += counts[group - 1];
    int32_t* order = begins_ + num_groups + 2;
    for (int64_t row = 0; row < num_rows; ++row) {
      if (is_valid(groups[row])) order[begins_[groups[row] + 1]++] = static_cast<int32_t>(row);
    }
  }

  // Rows of which every num_groups-th belongs to the same group: the heads of tokens, for example.
  static SortedRows interleaved(int64_t num_rows, int64_t num_groups, void* scratch) {
    SortedRows result(num_rows, num_groups, scratch);
    const int64_t size = num_rows / num_groups;
    int32_t* order = result.begins_ + num_groups + 2;
    for (int64_t group = 0; group < num_groups; ++group) {
      result.begins_[group] = static_cast<int32_t>(group * size);
      for (int64_t i = 0; i < size; ++i) order[group * size + i] = static_cast<int32_t>(i * num_groups + group);
    }
    result.begins_[num_groups] = static_cast<int32_t>(num_rows);
    return result;
  }

  int64_t num_rows() const { return num_rows_; }
  int64_t num_groups() const { return num_groups_; }

  // Positions of a group's rows in the sorted order, and the row at a position.
  int64_t begin(int64_t group) const { return begins_[group]; }
  int64_t size(int64_t group) const { return begins_[group + 1] - begins_[group]; }
  int64_t operator[](int64_t position) const { return begins_[num_groups_ + 2 + position]; }

  static size_t bytes(int64_t num_rows, int64_t num_groups) {
    return static_cast<size_t>(round_up((num_rows + num_groups + 2) * static_cast<int64_t>(sizeof(int32_t)), 64));
  }

 private:
  SortedRows(int64_t num_rows, int64_t num_groups, void* scratch)
      : num_rows_(num_rows), num_groups_(num_groups), begins_(static_cast<int32_t*>(scratch)) {}

  int64_t num_rows_, num_groups_;
  int32_t* begins_;  // [num_groups + 1], an unused element, and the sorted rows
};

// Rows of one group that are multiplied together: sorted positions [row_begin, row_begin + num_rows).
struct RowUnit {
  int64_t cost_begin;  // cost of all units before
  int32_t group, row_begin, num_rows;
};

// A grouped product as one sequence of costs: unit after unit, and in each unit its items (SkinnySplit). Workers claim
// ranges of cost, so that units of many rows and units of few are divided evenly, and read weights in order.
class GroupedSchedule {
 public:
  // Units have up to `max_unit_rows` rows; `items_at_once` items are not divided. `units` has bytes(…) bytes.
  GroupedSchedule(const SortedRows& rows, int64_t max_unit_rows, int64_t num_items, int64_t items_at_once, void* units)
      : units_(static_cast<RowUnit*>(units)), num_items_(num_items), items_at_once_(items_at_once) {
    for (int64_t group = 0; group < rows.num_groups(); ++group) {
      const int64_t size = rows.size(group), count = ceil_div(size, max_unit_rows);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t begin = size * i / count, num_rows = size * (i + 1) / count - begin;
        units_[num_units_++] = {total_, static_cast<int32_t>(group), static_cast<int32_t>(rows.begin(group) + begin),
                                static_cast<int32_t>(num_rows)};
        total_ += num_granules() * cost_of(num_rows);
      }
    }
  }

  // One worker's part. Calls `work(unit, item_begin, item_end, next)` for all items of all units; `next` is the unit
  // that is multiplied afterwards as a rule. Workers claim at least `min_claim` items. At most once in a kernel.
  template <class F>
  AETHER_INLINE void for_each_part(const am_team* team, int64_t min_claim, F work) const {
    if (num_units_ == 0 || num_items_ == 0) return;
    const int64_t mean_cost = total_ / (num_units_ * num_granules());
    for_each_chunk(team, total_, 1, ceil_div(min_claim, items_at_once_) * mean_cost, [&](int64_t begin, int64_t end) {
      for (int64_t i = unit_at(begin); i < num_units_ && units_[i].cost_begin < end; ++i) {
        const RowUnit& unit = units_[i];
        const int64_t first = item_at(unit, begin), last = item_at(unit, end);
        if (first < last) work(unit, first, last, units_[smaller(i + 1, num_units_ - 1)]);
      }
    });
  }

  static size_t bytes(int64_t num_rows, int64_t num_groups, int64_t max_unit_rows) {
    const int64_t max_units = smaller(num_rows, num_groups + num_rows / larger(1, max_unit_rows));
    return static_cast<size_t>(round_up(max_units * static_cast<int64_t>(sizeof(RowUnit)), 64));
  }

 private:
  // An item takes the time to read its weights, which equals that of multiplying them by some rows, and the time to
  // multiply them.
  static constexpr int64_t kRowsPerRead = 8;
  static int64_t cost_of(int64_t num_rows) { return kRowsPerRead + num_rows; }

  int64_t num_granules() const { return ceil_div(num_items_, items_at_once_); }

  // The last unit that begins at or before `cost`.
  int64_t unit_at(int64_t cost) const {
    int64_t first = 0, last = num_units_;
    while (last - first > 1) {
      const int64_t middle = (first + last) / 2;
      (units_[middle].cost_begin <= cost ? first : last) = middle;
    }
    return first;
  }

  // The first item of a unit that begins at or after `cost`.
  int64_t item_at(const RowUnit& unit, int64_t cost) const {
    const int64_t granule = ceil_div(larger(0, cost - unit.cost_begin), cost_of(unit.num_rows));
    return smaller(granule * items_at_once_, num_items_);
  }

  RowUnit* units_;
  int64_t num_units_ = 0, total_ = 0;
  int64_t num_items_, items_at_once_;
};

}  // namespace aether::cpu::AETHER_ISA
