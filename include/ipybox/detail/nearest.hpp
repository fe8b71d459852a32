#pragma once
// The right name for one that was misspelt.
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace ipybox::detail {

inline constexpr std::size_t max_compared_name = 64;  // bytes

// How many bytes of one name are to be changed, put in or left out to get the other; longer names
// are compared by their beginnings.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
    a = a.substr(0, max_compared_name), b = b.substr(0, max_compared_name);
    std::array<std::size_t, max_compared_name + 1> row{};
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        auto before = std::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const auto changed = before + (a[i - 1] == b[j - 1] ? 0 : 1);
            before = std::exchange(row[j], std::min({changed, row[j] + 1, row[j - 1] + 1}));
        }
    }
    return row[b.size()];
}

// Their distance, when a person who wrote one may have meant the other: a third of it may be wrong.
inline std::optional<std::size_t> near_by(std::string_view a, std::string_view b) {
    const auto longer = std::max(a.size(), b.size());
    if (3 * (longer - std::min(a.size(), b.size())) > longer) return std::nullopt;
    const auto distance = edit_distance(a, b);
    if (3 * distance > longer) return std::nullopt;
    return distance;
}

// Collects the best of many; of names beyond the first thousand it takes no notice.
class NearestName {
public:
    explicit NearestName(std::string_view wanted) : wanted_(wanted) {}
    // The name must stay where it is.
    void offer(std::string_view name) {
        if (offered_++ >= max_offered) return;
        const auto distance = near_by(wanted_, name);
        if (!distance || (!best_.empty() && *distance >= distance_)) return;
        best_ = name;
        distance_ = *distance;
    }
    // Empty when none is near.
    std::string_view best() const { return best_; }

private:
    static constexpr std::size_t max_offered = 1000;
    std::string_view wanted_, best_;
    std::size_t distance_ = 0, offered_ = 0;
};

}  // namespace ipybox::detail
